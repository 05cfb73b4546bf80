"""Puts a stored tree and its tensors into a state, or makes a new state from them."""

import sys
from collections.abc import Mapping
from typing import Any

from ffrecord._ffrecord import CheckpointReader
from ffrecord.checkpoint._deciding import Decision, may_refuse
from ffrecord.checkpoint._layouts import (
    Layouts,
    Piece,
    is_distributed,
    is_made_of_tensors,
    parts_of,
)
from ffrecord.checkpoint._named import (
    fields_of,
    kind_of_template,
    member_like,
    members_in,
    with_fields,
    without_template,
)
from ffrecord.checkpoint._optimizers import distributed_like, optimizer_misfits
from ffrecord.checkpoint._pieces import Wanted, read_into
from ffrecord.checkpoint._state import (
    DICT_TYPES,
    Flattener,
    OnRanks,
    PerRank,
    Shard,
    Stateful,
    join,
)
from ffrecord.checkpoint._tensors import (
    Destination,
    describe,
    empty,
    is_castable,
    kind_of,
    known_kind,
    plain_address,
)
from ffrecord.checkpoint._ties import clashing
from ffrecord.checkpoint._values import EachRank, Kind, Named, TensorRef, encode
from ffrecord.errors import CorruptionError


class MismatchError(ValueError):
    """The state and the checkpoint differ; the message lists every path that does.

    Attributes:
        missing: paths that the state has and the checkpoint lacks.
        extra: paths that the checkpoint has and the state lacks.
        different: differences in type, shape or structure, with the path.
    """

    def __init__(self, missing: list[str], extra: list[str], different: list[str]) -> None:
        """Store the differences."""
        self.missing, self.extra, self.different = missing, extra, different
        parts = [
            f"{title}: {', '.join(paths)}"
            for title, paths in [
                ("missing in the checkpoint", missing),
                ("not in the state", extra),
                ("different", different),
            ]
            if paths
        ]
        super().__init__("state and checkpoint do not match; " + "; ".join(parts))


class Restorer:
    """Plans first, so that nothing is changed if anything does not fit; then reads; then fills.

    The stored tree decides about small values; a state decides where tensors go. Objects that may
    refuse their state are asked first, while they can still be given back the one that they had:
    all objects that are no plain modules or optimizers of torch.
    """

    def __init__(
        self,
        reader: CheckpointReader,
        rank: int,
        size: int,
        elastic: bool,
        cast: bool = False,
    ) -> None:
        """For rank `rank` of `size` that load together."""
        self.reader = reader
        self.rank, self.size, self.elastic, self.cast = rank, size, elastic, cast
        self.dtypes: dict[str, str] = {}  # By key: what is stored and converted.
        self.stored = {key: (dtype, tuple(shape)) for key, dtype, shape in reader.tensors}
        self.wanted: list[Wanted] = []
        self.assignments: list[tuple[Any, object, object]] = []  # container[key] = value
        self.stateful: list[tuple[Stateful, object]] = []  # That refuse nothing that fits.
        self.deciding: list[Decision] = []
        self.missing: list[str] = []
        self.extra: list[str] = []
        self.different: list[str] = []
        self._layouts = Layouts()
        self._made: dict[str, object] = {}  # By key: tensors that were one are one again.

    def fresh(self, tree: object, path: str = "", as_torch: bool = False) -> object:
        """New arrays and values for a stored tree."""
        if isinstance(tree, EachRank):
            own, _ = self._own(tree, path)
            return self.fresh(own, path, as_torch)
        if isinstance(tree, TensorRef):
            return self._fresh_tensor(tree, path, as_torch)
        if isinstance(tree, dict):
            return {key: self.fresh(item, join(path, key), as_torch) for key, item in tree.items()}
        if isinstance(tree, list | tuple):
            made = (self.fresh(item, join(path, i), as_torch) for i, item in enumerate(tree))
            return list(made) if isinstance(tree, list) else tuple(made)
        if isinstance(tree, set | frozenset):
            return type(tree)(self.fresh(item, path) for item in tree)
        if isinstance(tree, Named):
            whole = Named(tree.kind, tree.name, self.fresh(tree.value, path, as_torch))
            return without_template(whole)
        return tree

    def into(self, state: object, tree: object, path: str = "") -> object:
        """The replacement for `state`: itself if it can be filled."""
        if isinstance(state, PerRank):
            return self._into_per_rank(state, tree, path)
        if isinstance(state, OnRanks):
            return OnRanks(self.into(state.value, tree, path), state.ranks)
        if isinstance(tree, EachRank):
            own, there = self._own(tree, path)
            return self.into(state, own, path) if there else state
        if state is None:
            return self.fresh(tree, path, as_torch=True)
        if isinstance(state, Shard) or kind_of(state) is not None:
            return self._into_tensor(state, tree, path)
        if type(state) in DICT_TYPES:
            return self._into_dict(state, tree, path)  # type: ignore[arg-type]
        if isinstance(state, list | tuple) and not isinstance(tree, Named):
            return self._into_sequence(state, tree, path)
        if isinstance(state, Stateful) and not isinstance(state, type):
            return self._into_stateful(state, tree, path)
        return self._into_value(state, tree, path)

    def check(self, strict: bool) -> None:
        """Raise MismatchError if the plan does not fit, but for what the state lacks."""
        everything = [*self.wanted, *(each for one in self.deciding for each in one.wanted)]
        self.different += clashing(self.reader, everything)
        if self.different or (strict and self.missing):
            raise MismatchError(
                self.missing if strict else [], self.extra if strict else [], self.different
            )

    def ask(self) -> None:
        """Pass their state to the objects that may refuse it."""
        for decision in self.deciding:
            decision.ask()

    def undo(self) -> None:
        """Give the objects that were asked the state back that they had.

        Raises:
            Exception: what the first of them raised that does not take it.
        """
        failures: list[Exception] = []
        for decision in reversed(self.deciding):
            try:
                decision.undo()
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def read(self) -> None:
        """Read all other tensors, verified."""
        if len(self.wanted) > len(self.stored):  # Several names of one tensor, perhaps.
            self.wanted = _once(self.wanted)
        read_into(self.reader, self.wanted, self.dtypes)

    def finish(self) -> None:
        """Put values where they belong, and pass their state to the other objects."""
        self.assign()
        for target, state_dict in self.stateful:
            target.load_state_dict(state_dict)

    def assign(self) -> None:
        """Put values into dicts and lists."""
        for container, key, value in self.assignments:
            container[key] = value

    def _another(self) -> "Restorer":
        """For a part of the state that may be read apart."""
        made = Restorer(self.reader, self.rank, self.size, self.elastic, self.cast)
        made.dtypes = self.dtypes
        return made

    # --- Values ----------------------------------------------------------------------------------

    def _into_value(self, state: Any, tree: object, path: str) -> object:  # noqa: ANN401
        """The stored value, of a type of the program only if the state has one of that kind."""
        if isinstance(state, Named) and isinstance(tree, Named) and state.kind == tree.kind:
            return Named(tree.kind, tree.name, self.into(state.value, tree.value, path))
        kind = kind_of_template(state)
        stored = tree.kind if isinstance(tree, Named) else None
        if kind is None and stored in ("dtype", "device", None):
            if isinstance(tree, TensorRef | dict | list | tuple):
                self._differs(state, tree, path)
                return state
            if isinstance(tree, set | frozenset):
                return self._set(tree, members_in(state))
            return self.fresh(tree, path)
        if not isinstance(tree, Named) or tree.kind != kind:
            self._differs(state, tree, path)
            return state
        if kind == "enum":
            try:
                return member_like(state, tree.value)
            except ValueError as error:
                self.different.append(f"{path} ({error})")
                return state
        return self._into_fields(state, tree, path)

    def _into_fields(self, state: Any, tree: Named, path: str) -> object:  # noqa: ANN401
        stored = tree.value
        if not isinstance(stored, dict):
            raise CorruptionError(f"{path}: a {tree.kind} without fields is stored")
        fields = fields_of(state)
        self.missing += [join(path, name) for name in fields if name not in stored]
        self.extra += [join(path, name) for name in stored if name not in fields]
        for name, item in fields.items():
            if name in stored:
                fields[name] = self.into(item, stored[name], join(path, name))
        return with_fields(state, fields)

    def _set(self, tree: object, members: Mapping[str, type]) -> object:
        """A set whose members of enums are of the types that the state's set has."""
        if isinstance(tree, tuple | set | frozenset):
            return type(tree)(self._set(each, members) for each in tree)
        if isinstance(tree, Named):
            known: Any = members.get(tree.name)
            if (
                known is not None
                and isinstance(tree.value, str)
                and tree.value in known.__members__
            ):
                return known[tree.value]
            return without_template(tree)
        return tree

    def _differs(self, state: object, tree: object, path: str) -> None:
        self.different.append(
            f"{path} (a {_name(tree)} is stored, the state has {type(state).__name__})"
        )

    # --- Tensors ---------------------------------------------------------------------------------

    def _want(self, key: str, offset: tuple[int, ...], extent: tuple[int, ...], to: object) -> None:
        Destination.is_direct(to)  # It can be written at all.
        self.wanted.append((key, offset, extent, to))

    def _stored(self, ref: TensorRef) -> tuple[str, tuple[int, ...]]:
        if ref.key not in self.stored:
            raise CorruptionError(f"the state-dict structure refers to tensor {ref.key}: not there")
        return self.stored[ref.key]

    def _fresh_tensor(self, ref: TensorRef, path: str, as_torch: bool) -> object:
        if ref.key in self._made:
            return self._made[ref.key]
        dtype, shape = self._stored(ref)
        if ref.kind is Kind.SCALAR and shape == ():
            return self._scalar(ref, dtype, dtype)
        try:
            made: Any = empty(ref.kind, dtype, shape, as_torch)
        except TypeError as error:
            raise TypeError(f"load: {path}: {error}") from None
        self._want(ref.key, (0,) * len(shape), shape, made)
        self._made[ref.key] = made
        return made

    def _into_tensor(self, state: object, tree: object, path: str) -> object:
        if known_kind(type(state)) is None and is_made_of_tensors(state):
            return self._into_made_of_tensors(state, tree, path)
        if not isinstance(tree, TensorRef):
            self.different.append(f"{path} (a {_name(tree)} is stored, the state has a tensor)")
            return state
        stored = self._stored(tree)
        try:
            dtype, whole, pieces = self._pieces_of(state)
            if self.cast and whole == stored[1] and is_castable(stored[0], dtype):
                self.dtypes[tree.key] = stored[0]
            elif (dtype, whole) != stored:
                self.different.append(
                    f"{path} ({stored[0]} {stored[1]} is stored, the state has {dtype} {whole})"
                )
                return state
            if beyond := [piece for piece in pieces if not piece.is_within(whole)]:
                where = f"{tuple(beyond[0].extent)} at {tuple(beyond[0].offset)}"
                self.different.append(f"{path} (the state has a slice of {where} of {whole})")
                return state
            if kind_of(state) is Kind.SCALAR:
                return self._scalar(tree, stored[0], dtype)
            for piece in pieces:
                self._want(tree.key, piece.offset, piece.extent, piece.data)
        except TypeError as error:
            self.different.append(f"{path} ({error})")
        return state

    def _pieces_of(self, state: Any) -> tuple[str, tuple[int, ...], list[Piece]]:  # noqa: ANN401
        """Element type and shape of a tensor, and what of it is to be filled here."""
        if isinstance(state, Shard):
            dtype, extent = describe(state.data)
            return dtype, tuple(state.shape), [Piece(tuple(state.offset), extent, state.data)]
        if known_kind(type(state)) is None and is_distributed(state):
            layout = self._layouts.of(state)
            return layout.dtype, layout.shape, layout.pieces
        dtype, extent = describe(state)
        return dtype, extent, [Piece((0,) * len(extent), extent, state)]

    def _into_made_of_tensors(self, state: object, tree: object, path: str) -> object:
        if not isinstance(tree, Named) or tree.kind != "tensor":
            self._differs(state, tree, path)
            return state
        stored = tree.value
        if not isinstance(stored, dict) or not isinstance(stored.get("parts"), dict):
            raise CorruptionError(f"{path}: a tensor without parts is stored")
        try:
            parts, context = parts_of(state)
            told = encode(Flattener(self.rank).value(context, join(path, "context")))
        except (TypeError, ValueError, AttributeError) as error:
            self.different.append(f"{path} ({error})")
            return state
        if encode(stored.get("context")) != told or list(stored["parts"]) != list(parts):
            self.different.append(
                f"{path} (a {tree.name} is stored whose parts or context are not those of the "
                f"{type(state).__name__} of the state)"
            )
            return state
        for name, part in parts.items():
            item = stored["parts"][name]
            if part is not None:
                self.into(part, item, join(path, name))
            elif item is not None:
                self._differs(part, item, join(path, name))
        return state

    def _scalar(self, ref: TensorRef, stored: str, dtype: str) -> object:
        """Read at once, because a NumPy scalar cannot be filled later."""
        made: Any = empty(ref.kind, dtype, (), False)
        read_into(self.reader, [(ref.key, (), (), made)], {ref.key: stored})
        return made[()]

    # --- Structure -------------------------------------------------------------------------------

    def _own(self, tree: EachRank, path: str) -> tuple[object, bool]:
        """This rank's value, and whether there is one."""
        if len(tree.values) == self.size:
            return tree.values[self.rank], True
        if self.elastic:
            return None, False
        self.different.append(
            f"{path} (saved by each of {len(tree.values)} ranks, loaded by {self.size}; with "
            "elastic=True it is left as it is)"
        )
        return None, False

    def _into_per_rank(self, state: PerRank, tree: object, path: str) -> PerRank:
        if not isinstance(tree, EachRank):
            return PerRank(self.into(state.value, tree, path))
        own, there = self._own(tree, path)
        return PerRank(self.into(state.value, own, path)) if there else state

    def _into_dict(self, state: dict[object, object], tree: object, path: str) -> object:
        if not isinstance(tree, dict):
            self.different.append(f"{path} (a {_name(tree)} is stored, the state has a dict)")
            return state
        self.missing += [join(path, key) for key in state if key not in tree]
        self.extra += [join(path, key) for key in tree if key not in state]
        for key in state:
            if key in tree:
                item = self.into(state[key], tree[key], join(path, key))
                self.assignments.append((state, key, item))
        return state

    def _into_sequence(
        self, state: list[object] | tuple[object, ...], tree: object, path: str
    ) -> object:
        if not isinstance(tree, list | tuple) or len(tree) != len(state):
            length = f" of {len(tree)}" if isinstance(tree, list | tuple) else ""
            self.different.append(
                f"{path} (a {_name(tree)}{length} is stored, "
                f"the state has a {_name(state)} of {len(state)})"
            )
            return state
        made = [
            self.into(item, part, join(path, index))
            for index, (item, part) in enumerate(zip(state, tree, strict=True))
        ]
        if isinstance(state, tuple):
            return tuple(made)
        self.assignments += [(state, index, item) for index, item in enumerate(made)]
        return state

    def _into_stateful(self, state: Stateful, tree: object, path: str) -> object:
        """Fill the tensors in the object's own state if that fits; else the object decides."""
        shown = state.state_dict()
        trial = self._another()
        filled = trial.into(shown, tree, path)
        misfits = optimizer_misfits(state, tree, path, self.stored)
        self.different += misfits
        if trial.missing or trial.extra or trial.different:
            if not _is_module(state):
                # An optimizer before its first step shows nothing of what it will have.
                parts = self._another()
                if not misfits:
                    # None takes whatever is stored, but what is sharded stays so.
                    like = distributed_like(state, tree, self.stored)
                    made = parts.into(like, tree, path)
                    self.different += parts.different
                    self.deciding.append(Decision(state, shown, parts, made))
                return state
            self.missing += trial.missing
            self.extra += trial.extra
            self.different += trial.different
        self.deciding += trial.deciding
        self.stateful += trial.stateful
        if may_refuse(state):
            self.deciding.append(Decision(state, shown, trial, filled))
            return state
        self.wanted += trial.wanted
        self.assignments += trial.assignments
        self.stateful.append((state, filled))
        return state


def _is_module(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def _name(tree: object) -> str:
    if isinstance(tree, TensorRef):
        return "tensor"
    if isinstance(tree, Named):
        return f"{tree.kind} {tree.name}"
    is_container = isinstance(tree, dict | list | tuple | set | frozenset)
    return type(tree).__name__ if is_container else "value"


def _once(wanted: list[Wanted]) -> list[Wanted]:
    """Without what goes to memory to which the same is read already."""
    found: dict[object, Wanted] = {}
    for number, (key, offset, extent, to) in enumerate(wanted):
        where = plain_address(to)
        place: object = (key, tuple(offset), tuple(extent), where) if where else number
        found.setdefault(place, (key, offset, extent, to))
    return list(found.values())
