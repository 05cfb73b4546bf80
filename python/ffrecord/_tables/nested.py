"""Nullable, ragged and nested columns, stored as several columns; format.md, "Nested columns".

The names of stored columns say what they are: `tokens[]:i32` has the items of lists, `x:valid` says
where `x` is there, `point{x}` is the field of a struct. So the schema of a file is all there is to
know, and a reader that knows nothing of this sees numbers and bytes.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from ffrecord._tables.schema import Column, Kind

_STEPS = r"(?:\[\]|\{[^{}\[\]]+\})"
_SHAPED = r"(?:[uif]\d\d?|bool|bf16)(?:\[\d+(?:,\d+)*\])?"
_NAME = re.compile(rf"([^\[\]{{}}]+?)({_STEPS}*)(?::(valid|lengths|bytes|utf8|{_SHAPED}))?")
_STEP = re.compile(_STEPS)
_LEAF = re.compile(r"(\w+)(?:\[([\d,]+)\])?")
# Characters that only names of stored columns have.
_MARKS = ("[]", "{", ":valid")
_DEPTH_MAX = 32


@dataclass(frozen=True)
class Layout:
    """The columns that users see: their names in order, and the kinds of those that are nested."""

    names: tuple[str, ...]
    nested: Mapping[str, Kind]
    full: tuple[str, ...]
    """Columns that are stored as nullable, but hold no null."""
    parts: Mapping[str, tuple[Column, ...]]
    """The columns that store each nullable, ragged or nested one."""


def is_name(name: str) -> bool:
    """Whether a column of that name can be nullable, ragged or nested."""
    match = _NAME.fullmatch(name)
    return match is not None and match[1] == name


def stored(name: str, kind: Kind, in_list: bool = False) -> Iterator[Column]:
    """The columns that store a column of that kind."""
    if kind.nullable:
        yield Column(f"{name}:valid", "bytes" if in_list else "bool", ())
    if kind.type == "list":
        if in_list:
            yield Column(f"{name}:lengths", "bytes", ())
        yield from stored(f"{name}[]", kind.item, True)
    elif kind.type == "struct":
        for inner, each in kind.fields:
            yield from stored(f"{name}{{{inner}}}", each, in_list)
    elif not in_list:
        yield kind.column(name)
    else:
        if kind.is_text:
            yield Column(f"{name}:lengths", "bytes", ())
        yield Column(f"{name}:{kind.column(name).spelling}", "bytes", ())


def joint(sequences: Iterable[tuple[Column, ...]]) -> tuple[Column, ...]:
    """The columns that store records of all sequences: nullable where those of any of them are.

    Raises:
        ValueError: the sequences differ in more than that.
    """
    kinds: list[tuple[str, Kind]] | None = None
    for columns in sequences:
        layout = layout_of(columns)
        own = {column.name: column.kind for column in columns}
        nested: Mapping[str, Kind] = {} if layout is None else layout.nested
        names = tuple(own) if layout is None else layout.names
        each = [(name, nested.get(name) or own[name]) for name in names]
        kinds = each if kinds is None else kinds
        if [name for name, _ in kinds] != [name for name, _ in each]:
            raise ValueError("the columns have other names")
        pairs = zip(kinds, each, strict=True)
        kinds = [(name, _either(one, other)) for (name, one), (_, other) in pairs]
    return tuple(column for name, kind in kinds or () for column in stored(name, kind))


def _either(one: Kind, other: Kind) -> Kind:
    """The kind of values of both."""
    names = [[name for name, _ in kind.fields] for kind in (one, other)]
    if (one.type, one.shape, names[0]) != (other.type, other.shape, names[1]):
        raise ValueError(f"{one.spelling} and {other.spelling} are stored otherwise")
    pairs = zip(one.fields, other.fields, strict=True)
    fields = tuple((name, _either(each, that)) for (name, each), (_, that) in pairs)
    return replace(one, nullable=one.nullable or other.nullable, fields=fields)


@lru_cache(maxsize=64)
def layout_of(columns: tuple[Column, ...], holding: frozenset[str] | None = None) -> Layout | None:
    """The layout of the columns of a file; None if each of them is a column of its own.

    Columns whose names look like those of a nested one, but do not make one, are their own.

    Args:
        columns: those of the file.
        holding: what holds nulls, as `stored` names it: `x`, `x[]`, `x{f}`. The rest is seen as if
            it could hold none. None: not known, so whatever may hold nulls is seen so.
    """
    if not any(mark in column.name for column in columns for mark in _MARKS):
        return None
    groups: dict[str, list[Column]] = {}
    owners: list[str] = []  # The owner of each column.
    for column in columns:
        match = _NAME.fullmatch(column.name)
        owners.append(column.name if match is None else match[1])
        groups.setdefault(owners[-1], []).append(column)
    found = ((name, _kind_of(name, group)) for name, group in groups.items())
    kinds = {name: kind for name, kind in found if kind is not None and not kind.is_plain}
    names = (
        owner if owner in kinds else column.name
        for owner, column in zip(owners, columns, strict=True)
    )
    if not kinds:
        return None
    seen = {name: _seen(name, kind, holding) for name, kind in kinds.items()}
    full = tuple(name for name, kind in seen.items() if kinds[name].nullable and not kind.nullable)
    nested = {name: kind for name, kind in seen.items() if not kind.is_plain}
    parts = {name: tuple(groups[name]) for name in kinds}
    return Layout(tuple(dict.fromkeys(names)), nested, full, parts)


def _seen(name: str, kind: Kind, holding: frozenset[str] | None) -> Kind:
    """The kind without the nulls that are not there."""
    if holding is None:
        return kind
    below = f"{name}[]" if kind.type == "list" else f"{name}{{%s}}"
    fields = tuple(
        (inner, _seen(below if kind.type == "list" else below % inner, each, holding))
        for inner, each in kind.fields
    )
    return replace(kind, nullable=kind.nullable and name in holding, fields=fields)


class _Node:
    """A place in a nested type: its columns by role, and what is below it by step."""

    def __init__(self) -> None:
        self.roles: dict[str, Column] = {}
        self.below: dict[str, _Node] = {}

    def kind(self, in_list: bool = False) -> Kind:
        """Raises ValueError or LookupError where it is none."""
        nullable = "valid" in self.roles
        if "[]" in self.below:
            return Kind("list", (), nullable, (("item", self.below["[]"].kind(True)),))
        if self.below:
            fields = tuple((step[1:-1], node.kind(in_list)) for step, node in self.below.items())
            return Kind("struct", (), nullable, fields)
        if not in_list:
            column = self.roles[""]
            return Kind(column.type, column.shape, nullable)
        (spelling,) = (role for role in self.roles if role not in ("valid", "lengths"))
        leaf = _LEAF.fullmatch(spelling)
        if leaf is None:
            raise ValueError(spelling)
        shape = tuple(map(int, leaf[2].split(","))) if leaf[2] else ()
        return Kind(leaf[1], shape, nullable)


def _kind_of(name: str, group: list[Column]) -> Kind | None:
    """The kind that these columns store, if they are exactly what stores it."""
    root = _Node()
    for column in group:
        match = _NAME.fullmatch(column.name)
        if match is None:
            return None
        node, steps = root, _STEP.findall(match[2])
        if len(steps) > _DEPTH_MAX:
            return None
        for step in steps:
            node = node.below.setdefault(step, _Node())
        node.roles[match[3] or ""] = column
    try:
        kind = root.kind()
    except (ValueError, LookupError):
        return None
    return kind if list(stored(name, kind)) == group else None


@dataclass
class Values:
    """Values of one kind, end to end, as a batch has them.

    Numbers are in `numbers`, shape (n, *shape); bytes and text are
    `block[offsets[i] : offsets[i + 1]]`; value i of a list is the items from `offsets[i]` to
    `offsets[i + 1]` of `below[0]`; a struct has its fields in `below`.
    """

    kind: Kind
    count: int
    valid: npt.NDArray[np.bool_] | None = None
    numbers: npt.NDArray[Any] | None = None
    block: npt.NDArray[np.uint8] | None = None
    offsets: npt.NDArray[np.int64] | None = None
    below: list["Values"] = field(default_factory=list)


# The bytes of a stored column, all records' end to end, and where each ends: n + 1 offsets.
Joined = Callable[[str], tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]]
# The values of a stored column: an array, where it is of fixed width.
Fixed = Callable[[str], npt.NDArray[Any] | list[Any]]


class Gathering:
    """Gathers the values of nested columns; checks that their parts fit each other."""

    def __init__(self, rows: int, joined: Joined, fixed: Fixed) -> None:
        """The values of so many records; `joined` and `fixed` read a stored column."""
        self._rows = rows
        self._joined = joined
        self._fixed = fixed

    def values(self, name: str, kind: Kind) -> Values:
        """The values of a column.

        Raises:
            ValueError: the parts do not fit each other.
        """
        return self._in_rows(name, kind)

    def _array(self, name: str) -> npt.NDArray[Any]:
        values = self._fixed(name)
        assert isinstance(values, np.ndarray)
        return values

    def _in_rows(self, name: str, kind: Kind) -> Values:
        """One value for each record."""
        made = Values(kind, self._rows)
        if kind.nullable:
            made.valid = self._array(f"{name}:valid")
        if kind.type == "list":
            item, ends = self._in_lists(f"{name}[]", kind.item)
            made.offsets, made.below = ends, [item]
        elif kind.type == "struct":
            made.below = [self._in_rows(f"{name}{{{n}}}", each) for n, each in kind.fields]
        elif kind.is_text:
            made.block, made.offsets = self._joined(name)
        else:
            made.numbers = self._array(name)
        return made

    def _in_lists(self, name: str, kind: Kind) -> tuple[Values, npt.NDArray[np.int64]]:
        """Any number of values for each record, and where those of each record end."""
        made = Values(kind, 0)
        if kind.type == "list":
            made.offsets, ends = self._lengths(name)
            item, item_ends = self._in_lists(f"{name}[]", kind.item)
            _require(np.array_equal(made.offsets[ends], item_ends), f"{name}[]", "lengths")
            made.below = [item]
        elif kind.type == "struct":
            parts = [self._in_lists(f"{name}{{{n}}}", each) for n, each in kind.fields]
            ends = parts[0][1]
            for (inner, _), (_, others) in zip(kind.fields, parts, strict=True):
                _require(np.array_equal(ends, others), f"{name}{{{inner}}}", "other fields")
            made.below = [part for part, _ in parts]
        elif kind.is_text:
            made.offsets, ends = self._lengths(name)
            made.block, block_ends = self._joined(f"{name}:{kind.type}")
            _require(np.array_equal(made.offsets[ends], block_ends), name, "lengths")
        else:
            column = kind.column(name)
            assert column.dtype is not None
            block, block_ends = self._joined(f"{name}:{column.spelling}")
            width = column.dtype.itemsize * int(np.prod(column.shape, dtype=np.int64))
            ends, rest = np.divmod(block_ends, width)
            _require(not rest.any(), name, f"size of {column.spelling}")
            made.numbers = _numbers(block, column)
        made.count = int(ends[-1])
        if kind.nullable:
            made.valid = self._valid_in_lists(f"{name}:valid", ends)
        return made, ends

    def _valid_in_lists(self, name: str, ends: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which values are there; of a record without a byte for them, all are."""
        block, found = self._joined(name)
        if np.array_equal(ends, found):
            marks: npt.NDArray[np.bool_] = block != 0
            return marks
        counts, sizes = np.diff(ends), np.diff(found)
        _require(bool(((sizes == counts) | (sizes == 0)).all()), name, "values")
        valid = np.ones(int(ends[-1]), np.bool_)
        valid[np.repeat(sizes != 0, counts)] = block != 0
        return valid

    def _lengths(self, name: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Where each value ends, and how many values there are up to the end of each record."""
        block, block_ends = self._joined(f"{name}:lengths")
        ends, rest = np.divmod(block_ends, 4)
        _require(not rest.any(), f"{name}:lengths", "size of u32")
        offsets = np.zeros(int(ends[-1]) + 1, np.int64)
        np.cumsum(block.view("<u4"), out=offsets[1:], dtype=np.int64)
        return offsets, ends


def _numbers(block: npt.NDArray[np.uint8], column: Column) -> npt.NDArray[Any]:
    assert column.dtype is not None
    values = block.view(np.uint8 if column.type == "bool" else column.dtype)
    values = values.reshape(-1, *column.shape)
    return values != 0 if column.type == "bool" else values


def _require(fits: bool, name: str, what: str) -> None:
    if not fits:
        raise ValueError(f"column '{name}' does not fit its {what}")


# The form of a column for users: an array, masked where there is no value; a list, with None there;
# a dict of these for a struct. Structs in a list are a dict each.
Form = Any


def as_numpy(values: Values, hidden: npt.NDArray[np.bool_] | None = None) -> Form:
    """The values as NumPy knows them.

    Args:
        values: of one column.
        hidden: values that are not there because the struct around them is not.
    """
    valid = values.valid
    if hidden is not None:
        valid = ~hidden if valid is None else valid & ~hidden
    missing = None if valid is None else ~valid
    kind = values.kind
    if kind.type == "struct":
        parts = zip(kind.fields, values.below, strict=True)
        made = Struct({name: as_numpy(part, missing) for (name, _), part in parts})
        made.valid = valid
        return made
    if values.numbers is not None:
        if missing is None:
            return values.numbers
        mask = missing.reshape(-1, *[1] * len(kind.shape))
        shape = values.numbers.shape
        return np.ma.MaskedArray(values.numbers, np.broadcast_to(mask, shape).copy())
    assert values.offsets is not None
    bounds = values.offsets.tolist()
    there = [True] * values.count if valid is None else valid.tolist()
    pieces = zip(bounds, bounds[1:], there, strict=False)
    if kind.type == "list":
        items = as_numpy(values.below[0])
        if isinstance(items, dict):
            items = list(rows_of(items))
        return [items[begin:end] if known else None for begin, end, known in pieces]
    block = values.block
    assert block is not None
    if kind.type == "utf8":
        data = block.data
        return [str(data[b:e], "utf-8") if known else None for b, e, known in pieces]
    return [block[begin:end] if known else None for begin, end, known in pieces]


class Struct(dict[str, Any]):
    """The columns of a struct; `valid` tells where there is one, None if everywhere."""

    valid: Any = None


class Maybe(dict[str, Any]):
    """Numbers of which some may be missing, as tensors: `values`, and where they are `valid`."""


def merged(forms: Sequence[Form], order: npt.NDArray[np.int64]) -> Form:
    """The values of several batches end to end, in that order; a list of arrays of other shapes."""
    if all(isinstance(form, Struct) for form in forms):
        made = Struct({name: merged([form[name] for form in forms], order) for name in forms[0]})
        if any(form.valid is not None for form in forms):
            marks = [np.ones(_count(f), np.bool_) if f.valid is None else f.valid for f in forms]
            made.valid = np.concatenate(marks)[order]
        return made
    arrays = [form for form in forms if isinstance(form, np.ndarray)]
    if len(arrays) == len(forms) and len({(a.dtype, a.shape[1:]) for a in arrays}) == 1:
        is_masked = any(isinstance(form, np.ma.MaskedArray) for form in forms)
        join: Any = np.ma.concatenate if is_masked else np.concatenate
        return join(arrays)[order]
    laid = [value for form in forms for value in form]
    return [laid[row] for row in order.tolist()]


def _count(form: Form) -> int:
    return _count(next(iter(form.values()))) if isinstance(form, dict) else len(form)


def row_of(form: Form, row: int) -> Any:  # noqa: ANN401 - as the column has it
    """One value; None if it is not there."""
    if isinstance(form, Maybe):
        return form["values"][row] if form["valid"][row] else None
    if isinstance(form, dict):
        valid = getattr(form, "valid", None)
        if valid is not None and not valid[row]:
            return None
        return {name: row_of(part, row) for name, part in form.items()}
    if isinstance(form, np.ma.MaskedArray):
        return None if np.ma.getmaskarray(form)[row].any() else form.data[row]
    return form[row]


def rows_of(form: Form) -> Iterator[Any]:
    """All values, one after the other."""
    if isinstance(form, Maybe):
        pairs = zip(form["values"], form["valid"].tolist(), strict=True)
        yield from (value if known else None for value, known in pairs)
    elif isinstance(form, dict):
        valid = getattr(form, "valid", None)
        rows = zip(*map(rows_of, form.values()), strict=True)
        for row, known in zip(rows, repeat(True) if valid is None else valid, strict=False):
            yield dict(zip(form, row, strict=True)) if known else None
    elif isinstance(form, np.ma.MaskedArray):
        yield from (row_of(form, row) for row in range(len(form)))
    else:
        yield from form


# Makes others of arrays, and of lists of bytes or text.
Leaf = Callable[[Form, Kind], Form]


def mapped(form: Form, kind: Kind, leaf: Leaf) -> Form:
    """The same structure with all its arrays, and lists of bytes or text, as `leaf` makes them."""
    if kind.type == "list":
        return [None if one is None else _mapped_items(one, kind.item, leaf) for one in form]
    if kind.type == "struct":
        made = Struct({name: mapped(form[name], each, leaf) for name, each in kind.fields})
        made.valid = getattr(form, "valid", None)
        return made
    return leaf(form, kind)


def _mapped_items(items: Form, kind: Kind, leaf: Leaf) -> Form:
    if kind.type == "struct":
        return [_mapped_row(row, kind, leaf) for row in items]
    return mapped(items, kind, leaf)


def _mapped_row(row: Any, kind: Kind, leaf: Leaf) -> Any:  # noqa: ANN401 - as the column has it
    """As `mapped`, for one value of a struct in a list."""
    if row is None:
        return None
    if kind.type == "struct":
        return {name: _mapped_row(row[name], each, leaf) for name, each in kind.fields}
    if kind.type == "list":
        return _mapped_items(row, kind.item, leaf)
    return leaf([row] if kind.is_text else np.asarray([row]), kind)[0]
