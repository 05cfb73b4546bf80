"""A training state as a tree of small values and a list of tensors, and back."""

import collections
import dataclasses
import math
import sys
from collections.abc import Callable, Collection, Iterator
from typing import Any, Protocol, runtime_checkable

from ffrecord import _ffrecord
from ffrecord.checkpoint._layouts import (
    Layouts,
    has_elements,
    is_distributed,
    is_made_of_tensors,
    parts_of,
)
from ffrecord.checkpoint._named import named_of, type_name
from ffrecord.checkpoint._sharing import Leaf, Sharing
from ffrecord.checkpoint._tensors import (
    ITEM_SIZES,
    kind_of,
    known_kind,
    look_at,
    torch_if_imported,
)
from ffrecord.checkpoint._values import DEPTH_MAX, Kind, Named, OwnPlace, TensorRef

# The types of state_dicts, saved as plain dicts and tuples: their order and content is kept.
DICT_TYPES = frozenset(
    (dict, collections.OrderedDict, collections.defaultdict, collections.Counter)
)
SCALAR_TYPES = frozenset((bool, int, float, str, bytes))


# Types of tensors that ranks hold together, as they are met.
_distributed_types: set[type] = set()


@runtime_checkable
class Stateful(Protocol):
    """A model, an optimizer, a sampler: an object that returns and restores its state."""

    def state_dict(self) -> Any:  # noqa: ANN401 (theirs)
        """Return the state."""

    def load_state_dict(self, state_dict: Any) -> object:  # noqa: ANN401 (theirs)
        """Restore the state."""


@dataclasses.dataclass(frozen=True)
class PerRank:
    """A value that differs from rank to rank, such as random states: each rank gets its own back.

    All other values in a state are the same on all ranks, or are taken from rank 0.
    """

    value: object


@dataclasses.dataclass(frozen=True)
class OnRanks:
    """A part of a state that some ranks have alike and others need not have at all.

    Such as the layers of a stage of a pipeline, or experts: in a dict, under keys that may differ
    from rank to rank. The checkpoint has them all. DTensors and Shards need no such mark.

    Attributes:
        value: the same on each of these ranks, as replicas are.
        ranks: which ones, numbered within the group that saves; each writes a share of the tensors.
    """

    value: object
    ranks: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Shard:
    """A slice of a tensor that the ranks hold together; each element is saved by one rank.

    Attributes:
        data: this rank's slice, an array or tensor.
        shape: of the whole tensor.
        offset: of the slice in it.
    """

    data: object
    shape: tuple[int, ...]
    offset: tuple[int, ...]


def part_of_path(key: object) -> str:
    """One step of a path: names as they are, others behind '#'; unique among siblings."""
    if isinstance(key, str) and key:
        if "~" in key or "/" in key:
            key = key.replace("~", "~0").replace("/", "~1")
        return "~2" + key[1:] if key[0] == "#" else key
    return f"#{key!r}"


def join(path: str, key: object) -> str:
    """The path of a child."""
    return f"{path}/{part_of_path(key)}" if path else part_of_path(key)


class Flattener:
    """Takes a state apart.

    Raises:
        TypeError: a value in it would need pickling; names its path.
        ValueError: it is nested deeper than 64, or contains itself.
    """

    def __init__(
        self, rank: int, members: Collection[int] | None = None, *, compares: bool = False
    ) -> None:
        """Start with nothing, for this rank.

        Args:
            rank: among those that save.
            members: the ranks of the job that save, of which some may hold the same as this one;
                empty: this one alone. None: all.
            compares: keep what other ranks have as well, also where they write it.
        """
        self.rank = rank
        self.leaves: list[Leaf] = []
        self.own_trees: dict[str, object] = {}  # Trees of PerRank values, by their paths.
        self.training: set[str] = set()  # The keys of tensors that training changes, if known.
        # The paths of what ranks hold together and is in no PerRank.
        self.sharded: list[str] = []
        self._members = None if members is None else frozenset(members)
        self.on_ranks: dict[str, tuple[tuple[int, ...], object]] = {}  # Ranks and tree by path.
        # Slices that some ranks have alike, by those ranks, of the group or of the job; only if
        # they are compared.
        self.replicas: dict[tuple[bool, tuple[int, ...]], list[Leaf]] = {}
        self._held: list[tuple[Leaf, bool, tuple[int, ...], int]] = []
        self._layouts, self._compares = Layouts(), compares
        self._distributed_paths: dict[object, tuple[str, object]] = {}
        # The ranks that hold the same, by their address: tuples of them are long.
        self._saving: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self._shapes: dict[tuple[int, ...], tuple[tuple[int, ...], int]] = {}

    def value(self, value: object, path: str = "", depth: int = 0, is_own: bool = False) -> object:
        """The tree of `value`, with TensorRef for tensors; PerRank values have their place kept."""
        if depth > DEPTH_MAX:
            raise ValueError(f"state: {path[:200]} is nested deeper than {DEPTH_MAX}")
        kind_of_value = type(value)
        if value is None or kind_of_value in SCALAR_TYPES:
            return value
        if (kind := known_kind(kind_of_value)) is not None:
            return self._tensor(value, kind, path or "#", is_own, depth)
        if kind_of_value in DICT_TYPES:
            return self._dict(value, path, depth, is_own)  # type: ignore[arg-type]
        if kind_of_value in _distributed_types:
            return self._distributed(value, path or "#", is_own)
        if kind_of_value is list:
            return list(self._elements(value, path, depth, is_own))  # type: ignore[arg-type]
        if isinstance(value, PerRank):
            return self._per_rank(value, path, depth, is_own)
        if isinstance(value, OnRanks):
            return self._on_ranks(value, path, depth, is_own)
        if isinstance(value, Shard):
            if not is_own:
                self.sharded.append(path)
            return self._shard(value, path or "#")
        if (kind := kind_of(value)) is not None:
            return self._tensor(value, kind, path or "#", is_own, depth)
        if kind_of_value is tuple or _is_torch_size(value):
            return tuple(self._elements(value, path, depth, is_own))  # type: ignore[arg-type]
        if isinstance(value, Stateful) and not isinstance(value, type):
            self.training |= _training_in(value, path)
            return self.value(value.state_dict(), path, depth, is_own)
        if kind_of_value is complex:
            return value
        if kind_of_value is set or kind_of_value is frozenset:
            elements = (self._element(item, path, depth) for item in value)  # type: ignore[attr-defined]
            return kind_of_value(elements)
        if (named := self._named(value, path)) is not None:
            return Named(named.kind, named.name, self.value(named.value, path, depth + 1, is_own))
        raise TypeError(
            f"state: {path or 'the state'} is of type {type(value).__qualname__}, which would need "
            "pickling; save plain values, arrays, dataclasses of them and state_dicts"
        )

    def _named(self, value: object, path: str) -> Named | None:
        try:
            return named_of(value)
        except TypeError as error:
            raise TypeError(f"state: {path or 'the state'}: {error}") from None

    def _element(self, item: object, path: str, depth: int) -> object:
        """One of a set."""
        if isinstance(item, tuple | frozenset) and type(item) in (tuple, frozenset):
            return type(item)(self._element(each, path, depth + 1) for each in item)
        named = self._named(item, path)
        if named is not None and named.kind in ("enum", "dtype", "device"):
            return named
        if item is not None and type(item) not in SCALAR_TYPES and type(item) is not complex:
            raise TypeError(
                f"state: {path or 'the state'} is a set with a {type(item).__qualname__}; the "
                "elements of a set are plain values, and tuples and frozensets of them"
            )
        return item

    def _per_rank(self, value: PerRank, path: str, depth: int, is_own: bool) -> object:
        if is_own:  # In another one: this rank's already.
            return self.value(value.value, path, depth + 1, is_own)
        own = self.value(value.value, f"{path}/@rank{self.rank}", depth + 1, is_own=True)
        self.own_trees[path] = own
        return OwnPlace(path)

    def _on_ranks(self, value: OnRanks, path: str, depth: int, is_own: bool) -> object:
        ranks = tuple(sorted(set(value.ranks)))
        if is_own or self.rank not in ranks:
            why = "is in a PerRank or in another OnRanks" if is_own else f"is of the ranks {ranks}"
            raise ValueError(f"state: {path}: the OnRanks of rank {self.rank} {why}")
        inner = Flattener(self.rank, self._members, compares=self._compares)
        tree = inner.value(value.value, path, depth)
        if inner.own_trees or inner.on_ranks:
            raise ValueError(f"state: {path}: an OnRanks has another one, or a PerRank, in it")
        self.on_ranks[path] = ranks, tree
        self.sharded += inner.sharded
        self.training |= inner.training
        self._held += inner._held
        for holders, leaves in inner.replicas.items():
            self.replicas.setdefault(holders, []).extend(leaves)
        for leaf in inner.leaves:
            if leaf.is_own:
                self.leaves.append(leaf)
                continue
            self.sharded.append(leaf.key)
            self._share(leaf._replace(is_own=True), True, ranks, self.rank)
        return tree

    def _share(self, leaf: Leaf, of_group: bool, holders: tuple[int, ...], mine: int) -> None:
        """Note a slice that `holders` have: ranks of the group or of the job, `mine` among them."""
        self._held.append((leaf, of_group, holders, mine))
        if self._compares and len(holders) > 1:
            self.replicas.setdefault((of_group, holders), []).append(leaf)

    def divide(self) -> None:
        """Add what this rank writes of the slices that ranks hold together."""
        sharing = Sharing(), Sharing()
        # Dicts of ranks have other orders.
        self._held.sort(key=lambda held: (held[0].key, held[0].offset))
        for leaf, of_group, holders, mine in self._held:
            part = sharing[of_group].part_of(leaf, holders, mine)
            if part is not None:
                self.leaves.append(part)
        self._held.clear()

    def _shard(self, shard: Shard, path: str) -> TensorRef:
        if (kind := kind_of(shard.data)) is None:
            raise TypeError(f"state: {path}: the data of a Shard is neither array nor tensor")
        dtype, extent, address = self._look_at(shard.data, kind, path)
        size = math.prod(extent) * ITEM_SIZES[dtype]
        shape, offset = tuple(shard.shape), tuple(shard.offset)
        leaf = Leaf(
            path, dtype, shape, offset, extent, address, size, False, shard.data, is_own=True
        )
        self.leaves.append(leaf)
        return TensorRef(kind, path)

    def _tensor(self, value: object, kind: Kind, path: str, is_own: bool, depth: int) -> object:
        if kind is Kind.TORCH and known_kind(type(value)) is None:
            if is_distributed(value):
                if is_distributed(type(value)):
                    _distributed_types.add(type(value))
                return self._distributed(value, path, is_own)
            if is_made_of_tensors(value):
                return self._made_of_tensors(value, path, is_own, depth)
        dtype, shape, address = self._look_at(value, kind, path)
        zeros, count = self._of_shape(shape)
        size = count * ITEM_SIZES[dtype]
        self.leaves.append(
            Leaf(path, dtype, shape, zeros, shape, address, size, False, value, is_own)
        )
        return TensorRef(kind, path)

    def _distributed(self, value: object, path: str, is_own: bool) -> TensorRef:
        """The shards that this rank writes of a tensor that ranks hold together."""
        if is_own:
            raise TypeError(
                f"state: {path}: a {type(value).__name__} is one tensor of all ranks: take it out "
                "of the PerRank"
            )
        self.sharded.append(path)
        try:
            layout = self._layouts.of(value)
        except TypeError as error:
            raise TypeError(f"state: {path}: {error}") from None
        known, _ = self._distributed_paths.setdefault(layout.identity, (path, value))
        if known != path:  # Two names of one tensor.
            return TensorRef(Kind.TORCH, known)
        holders = self._holders(layout.holders, layout.rank)
        for piece in layout.pieces:
            _, count = self._of_shape(piece.extent)
            if count or not has_elements(layout.shape):
                leaf = Leaf(
                    path, layout.dtype, layout.shape, piece.offset, piece.extent, piece.address,
                    count * ITEM_SIZES[layout.dtype], False, piece.data, True,
                )  # fmt: skip
                self._share(leaf, False, holders, layout.rank)
        return TensorRef(Kind.TORCH, path)

    def _holders(self, holders: tuple[int, ...], rank: int) -> tuple[int, ...]:
        """Those that save: the same object for the same holders."""
        if self._members is None or len(holders) < 2:
            return holders
        known, saving = self._saving.get(id(holders), ((), ()))
        if known is not holders:
            saving = tuple(each for each in holders if each == rank or each in self._members)
            self._saving[id(holders)] = holders, saving
        return saving

    def _made_of_tensors(self, value: object, path: str, is_own: bool, depth: int) -> Named:
        parts, context = self._parts_of(value, path)
        told = Flattener(self.rank)
        tree = told.value(context, join(path, "context"), depth + 2)
        if told.leaves or told.own_trees or told.sharded:
            raise TypeError(
                f"state: {path}: the context of {type(value).__name__} has tensors, which it does "
                "not name as its parts"
            )
        made = {
            name: self.value(part, join(path, name), depth + 2, is_own)
            for name, part in parts.items()
        }
        return Named("tensor", type_name(type(value)), {"parts": made, "context": tree})

    def _parts_of(self, value: object, path: str) -> tuple[dict[str, Any], object]:
        try:
            return parts_of(value)
        except (TypeError, AttributeError) as error:
            raise TypeError(f"state: {path}: {error}") from None

    def _of_shape(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
        """Zeros for its dimensions, and its elements; tensors of a state have few shapes."""
        found = self._shapes.get(shape)
        if found is None:
            found = self._shapes[shape] = ((0,) * len(shape), math.prod(shape))
        return found

    def _look_at(
        self, value: object, kind: Kind, path: str
    ) -> tuple[str, tuple[int, ...], int | None]:
        try:
            return look_at(value, kind)
        except TypeError as error:
            raise TypeError(f"state: {path or 'the state'}: {error}") from None

    def _dict(
        self, value: dict[object, object], path: str, depth: int, is_own: bool
    ) -> dict[object, object]:
        tree: dict[object, object] = {}
        prefix = f"{path}/" if path else ""

        def other(key: object, item: object) -> object:
            if type(key) not in SCALAR_TYPES and key is not None:
                raise TypeError(
                    f"state: {path or 'the state'} has a key of type {type(key).__qualname__}; "
                    "keys are None, bool, int, float, str or bytes"
                )
            return self.value(item, prefix + part_of_path(key), depth + 1, is_own)

        items = value if type(value) is dict else dict(value)  # In the order of an OrderedDict.
        if (plain := _plain_tensors()) is not None:
            plain.take(items, prefix, is_own, self.leaves, tree, other)
        else:
            for key, item in items.items():
                tree[key] = other(key, item)
        return tree

    def _elements(
        self, value: list[object] | tuple[object, ...], path: str, depth: int, is_own: bool
    ) -> Iterator[object]:
        for index, item in enumerate(value):
            yield self.value(item, join(path, index), depth + 1, is_own)


_plain: _ffrecord.PlainTensors | None = None


def _plain_tensors() -> _ffrecord.PlainTensors | None:
    """The function that takes dicts of torch's tensors apart, if the program has imported torch."""
    global _plain
    torch = torch_if_imported()
    if _plain is None and torch is not None:
        dtypes = {
            getattr(torch, name): (name, size)
            for name, size in ITEM_SIZES.items()
            if hasattr(torch, name)
        }
        types = (torch.Tensor, torch.nn.Parameter)
        exchange = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)  # Of torch 2.10.
        _plain = _ffrecord.PlainTensors(
            Leaf, TensorRef, Kind.TORCH, types, torch.strided, dtypes, exchange
        )
    return _plain


def _training_in(value: object, path: str) -> set[str]:
    """The keys of a module's parameters that train."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.nn.Module):
        return set()
    named = value.named_parameters(remove_duplicate=False)
    return {join(path, name) for name, parameter in named if parameter.requires_grad}


def _is_torch_size(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and type(value) is torch.Size


def map_children(tree: object, change: Callable[[object], object]) -> object:
    """A copy of a container with `change` applied to its elements; leaves and sets as they are."""
    if isinstance(tree, dict):
        return {key: change(item) for key, item in tree.items()}
    if isinstance(tree, list):
        return [change(item) for item in tree]
    if isinstance(tree, tuple):
        return tuple(change(item) for item in tree)
    if isinstance(tree, Named):
        return Named(tree.kind, tree.name, change(tree.value))
    return tree


def named_values(value: object, path: str = "") -> Iterator[tuple[str, Named]]:
    """Values of types of the program in a state, with their paths; a load gives them as `Named`."""
    if isinstance(value, set | frozenset):
        for each in value:
            yield from named_values(each, path)
    elif type(value) in DICT_TYPES or type(value) in (list, tuple):
        items: Any = value
        for key, item in items.items() if isinstance(value, dict) else enumerate(items):
            yield from named_values(item, join(path, key))
    elif (named := named_of(value)) is not None:
        yield path, named
    elif kind_of(value) is Kind.TORCH and is_made_of_tensors(value):
        yield path, Named("tensor", type_name(type(value)), None)
