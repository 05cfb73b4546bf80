"""A training state as a tree of small values and a list of tensors, and back."""

import collections
import dataclasses
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, runtime_checkable

from ffrecord import _ffrecord
from ffrecord.checkpoint._tensors import (
    ITEM_SIZES,
    kind_of,
    known_kind,
    look_at,
    torch_if_imported,
)
from ffrecord.checkpoint._values import DEPTH_MAX, EachRank, Kind, TensorRef

# What state_dicts are made of, saved as plain dicts and tuples: their order and content is kept.
DICT_TYPES = frozenset(
    (dict, collections.OrderedDict, collections.defaultdict, collections.Counter)
)
SCALAR_TYPES = frozenset((bool, int, float, str, bytes))


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


class Leaf(NamedTuple):
    """A slice of a tensor of a state, or all of it.

    The extension takes its first eight elements as a slice: states have leaves by the 100,000, so
    nothing is made of them a second time.

    Attributes:
        key: path in the state.
        dtype: of its elements.
        shape: of the whole tensor.
        offset: of the slice in it.
        extent: of the slice.
        address: of the slice; None if its bytes are not on the CPU, contiguous and as they are.
        size_bytes: of the slice.
        is_stable: nobody changes the bytes until the save has ended.
        data: an array or tensor.
        is_own: this rank's alone; otherwise all ranks have the same.
        skip_bytes: where the slice begins in the data.
    """

    key: str
    dtype: str
    shape: tuple[int, ...]
    offset: tuple[int, ...]
    extent: tuple[int, ...]
    address: int | None
    size_bytes: int
    is_stable: bool
    data: object
    is_own: bool
    skip_bytes: int = 0


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

    def __init__(self, rank: int) -> None:
        """Start with nothing, for this rank."""
        self.rank = rank
        self.leaves: list[Leaf] = []
        self.own_trees: dict[str, object] = {}  # Of PerRank values, by their paths.
        self.sharded: list[str] = []  # The paths of Shards that are in no PerRank.
        self._shapes: dict[tuple[int, ...], tuple[tuple[int, ...], int]] = {}

    def value(self, value: object, path: str = "", depth: int = 0, is_own: bool = False) -> object:
        """The tree of `value`, with TensorRef for tensors; PerRank values have their place kept."""
        if depth > DEPTH_MAX:
            raise ValueError(f"state: {path[:200]} is nested deeper than {DEPTH_MAX}")
        kind_of_value = type(value)
        if value is None or kind_of_value in SCALAR_TYPES:
            return value
        if (kind := known_kind(kind_of_value)) is not None:
            return self._tensor(value, kind, path or "#", is_own)
        if kind_of_value in DICT_TYPES:
            return self._dict(value, path, depth, is_own)  # type: ignore[arg-type]
        if kind_of_value is list:
            return list(self._elements(value, path, depth, is_own))  # type: ignore[arg-type]
        if isinstance(value, PerRank):
            return self._per_rank(value, path, depth, is_own)
        if isinstance(value, Shard):
            if not is_own:
                self.sharded.append(path)
            return self._shard(value, path or "#")
        if (kind := kind_of(value)) is not None:
            return self._tensor(value, kind, path or "#", is_own)
        if kind_of_value is tuple or _is_torch_size(value):
            return tuple(self._elements(value, path, depth, is_own))  # type: ignore[arg-type]
        if isinstance(value, Stateful) and not isinstance(value, type):
            return self.value(value.state_dict(), path, depth, is_own)
        raise TypeError(
            f"state: {path or 'the state'} is of type {type(value).__qualname__}, which would need "
            "pickling; save plain values, arrays and state_dicts"
        )

    def _per_rank(self, value: PerRank, path: str, depth: int, is_own: bool) -> object:
        if is_own:  # In another one: this rank's already.
            return self.value(value.value, path, depth + 1, is_own)
        own = self.value(value.value, f"{path}/@rank{self.rank}", depth + 1, is_own=True)
        self.own_trees[path] = own
        return EachRank([path])  # Its elements are filled in when all ranks' trees are known.

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

    def _tensor(self, value: object, kind: Kind, path: str, is_own: bool) -> TensorRef:
        dtype, shape, address = self._look_at(value, kind, path)
        zeros, count = self._of_shape(shape)
        size = count * ITEM_SIZES[dtype]
        self.leaves.append(
            Leaf(path, dtype, shape, zeros, shape, address, size, False, value, is_own)
        )
        return TensorRef(kind, path)

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


def _is_torch_size(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and type(value) is torch.Size


def fill_ranks(tree: object, trees_of_ranks: list[dict[str, object]]) -> object:
    """Puts the PerRank trees of all ranks into their places in rank 0's tree."""
    if isinstance(tree, EachRank):
        path: Any = tree.values[0]
        return EachRank([trees[path] for trees in trees_of_ranks])
    return map_children(tree, lambda child: fill_ranks(child, trees_of_ranks))


def map_children(tree: object, change: Callable[[object], object]) -> object:
    """A copy of a dict, list or tuple with `change` applied to its elements; leaves as they are."""
    if isinstance(tree, dict):
        return {key: change(item) for key, item in tree.items()}
    if isinstance(tree, list):
        return [change(item) for item in tree]
    if isinstance(tree, tuple):
        return tuple(change(item) for item in tree)
    return tree
