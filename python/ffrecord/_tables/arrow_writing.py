"""Tables of pyarrow as the records of a file: one record for each row."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ffrecord._tables.arrow_schema import KEY
from ffrecord._tables.arrow_types import (
    BF16_STORAGE,
    dictionary_trouble,
    entry_of,
    fits,
    is_bf16,
    is_list,
    leaf_of,
    plain_type,
)
from ffrecord._tables.arrow_values import maker
from ffrecord._tables.formats import pyarrow
from ffrecord._tables.nested import is_name, layout_of, stored
from ffrecord._tables.schema import Column, Kind
from ffrecord._tables.values import UnfitError, exact, in_row

_NULL_REFUSED = (
    "column '{}' has a null, which its schema does not allow, or for which the file has no place, "
    "as files of earlier versions: write it to another file"
)
# Rows that are converted at a time: their numbers are not copied, their lists' lengths are.
_ROWS = 16384
_U32_MAX = (1 << 32) - 1


class Rows:
    """The values of one stored column, row by row: that of row i is `data[bounds[i]:bounds[i+1]]`.

    Given as they are to the writer, which makes no object for a value.
    """

    __slots__ = ("bounds", "data")

    def __init__(self, data: Any, bounds: npt.NDArray[np.int64]) -> None:  # noqa: ANN401
        """The column of any object with a buffer, which stays as it is."""
        self.data = memoryview(data).cast("B") if len(data) else memoryview(b"")
        self.bounds = np.ascontiguousarray(bounds, np.int64)

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __iter__(self) -> Iterator[memoryview]:
        for begin, end in pairwise(self.bounds.tolist()):
            yield self.data[begin:end]

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """The size of each value in bytes."""
        return np.diff(self.bounds)


def is_arrow_schema(schema: object) -> bool:
    """Whether it is a schema of pyarrow, which need not be imported to know that."""
    return type(schema).__module__.partition(".")[0] == "pyarrow"


def as_table(data: Any) -> Any:  # noqa: ANN401 - pyarrow has no types
    """A table, or a stream of batches, of whatever shows its data as Arrow does.

    Raises:
        TypeError: it does not.
    """
    pa = pyarrow()
    if isinstance(data, pa.Table | pa.RecordBatchReader):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        return pa.table(data)
    raise TypeError(
        f"a {type(data).__name__} is no table: give a pyarrow Table, RecordBatch or "
        "RecordBatchReader, or what has __arrow_c_stream__, such as a DataFrame of polars"
    )


class Encoder:
    """Makes records of rows."""

    def __init__(
        self,
        schema: Any,  # noqa: ANN401 - pyarrow has no types
        table: Any = None,  # noqa: ANN401
        columns: tuple[Column, ...] | None = None,
    ) -> None:
        """For rows of that schema.

        Args:
            schema: of pyarrow. A column that may be null by it is stored with its validity, whether
                or not there are nulls: so files of one schema have the same columns.
            table: all rows that will come, if they are known: then lists of a fixed size, some of
                whose items are null, are stored as lists.
            columns: those of the file, if there is one already.

        Raises:
            ValueError: a column's type or name cannot be stored, the file has other columns, or the
                table is not valid; names the column.
        """
        if len(set(schema.names)) < len(schema.names):
            twice = next(name for name in schema.names if schema.names.count(name) > 1)
            raise ValueError(f"there are several columns called '{twice}': rename them")
        if not schema.names:
            raise ValueError("a table without columns cannot be stored")
        if table is not None:
            _check_valid(table)
        self.arrow = schema
        self.holding: set[str] = set()
        """Columns that have had nulls so far, as `stored` names them."""
        self.kinds: dict[str, Kind] = {}
        """The columns that store each column."""
        for field in schema:
            chunks = None if table is None else _plain(table.column(field.name).chunks)
            kind = _kind_of(field.name, field, field.nullable, chunks)
            if chunks is not None and not kind.fields and not is_name(field.name):
                # Names that look like those of stored columns have no room for a mark of nulls.
                kind = replace(kind, nullable=any(chunk.null_count for chunk in chunks))
            self.kinds[field.name] = kind if columns is None else _kind_in(columns, field, kind)
        self._makers = {field.name: maker(field.type, is_bf16(field)) for field in schema}
        self._columns = tuple(c for name, kind in self.kinds.items() for c in stored(name, kind))
        if columns is None:
            self._check_names()
        elif self._columns != columns:
            raise ValueError("the table has other columns than the file, or in another order")

    @property
    def schema(self) -> dict[str, str]:
        """Type by stored column, as `Writer` takes it."""
        return {column.name: column.spelling for column in self._columns}

    @property
    def metadata(self) -> dict[str, bytes]:
        """Metadata that tell readers the types of Arrow."""
        return {KEY: self.arrow.serialize().to_pybytes()}

    def row(self, sample: Mapping[str, Any]) -> Iterator[memoryview]:
        """The bytes of each stored column, of one row; what is left out is null.

        Raises:
            ValueError: a column is unknown, or a value does not fit its type; names it.
            TypeError: a value is of another kind than its column.
        """
        if unknown := [name for name in sample if name not in self._makers]:
            names = ", ".join(self._makers)
            raise ValueError(f"unknown: {', '.join(map(str, unknown))}; the columns are {names}")
        for name, make in self._makers.items():
            array = make([sample.get(name)], f"column '{name}'")
            for (buffer,) in _encoded(name, self.kinds[name], array, None, self.holding):
                yield buffer

    def rows(self, data: Any, first_row: int = 0) -> Iterator[tuple[Rows, ...]]:  # noqa: ANN401
        """The values of each stored column, of some rows at a time.

        Errors count from `first_row`.

        Raises:
            ValueError: the data have another schema, are not valid, or have a null where none was
                to come; the message has the row and the column.
        """
        done = first_row
        is_table = hasattr(data, "to_batches")
        if is_table:
            self._check(data)
        for batch in data.to_batches(max_chunksize=_ROWS) if is_table else data:
            if not is_table:
                self._check(batch)
            for first in range(0, len(batch), _ROWS):
                some = batch.slice(first, _ROWS)
                try:
                    yield tuple(self._encoded(some))
                except UnfitError as error:
                    raise in_row(done + error.at, error) from None
                done += len(some)

    def _check(self, data: Any) -> None:  # noqa: ANN401 - pyarrow has no types
        if not data.schema.equals(self.arrow):
            raise ValueError(
                f"the table has the schema {_brief(data.schema)}, and the file was begun with "
                f"{_brief(self.arrow)}: use table.cast(schema)"
            )
        _check_valid(data)

    def _encoded(self, batch: Any) -> Iterator[Rows]:  # noqa: ANN401 - pyarrow has no types
        for name, kind in self.kinds.items():
            (array,) = _plain([batch.column(name)])
            yield from _encoded(name, kind, array, None, self.holding)

    def _check_names(self) -> None:
        """Check that a reader recognises the same columns in the stored ones."""
        names = [column.name for column in self._columns]
        layout = layout_of(self._columns)
        nested = {} if layout is None else layout.nested
        for name, kind in self.kinds.items():
            own = nested.get(name, kind if kind.is_plain else None)
            taken = [column.name for column in stored(name, kind) if names.count(column.name) > 1]
            if own != kind or taken or (kind.is_plain and name in nested):
                raise ValueError(
                    f"column '{name}' cannot be stored under its name, or one of its fields "
                    "cannot: names of nested columns have none of []{}: and are not empty, and "
                    "types nest at most 32 deep"
                )
        for name in () if layout is None else layout.names:
            if name not in self.kinds:
                raise ValueError(f"names of columns would be taken for a nested one's, '{name}'")


def _check_valid(data: Any) -> None:  # noqa: ANN401 - a table or a batch of pyarrow
    """Check what others made: offsets out of their buffers, text that is not UTF-8."""
    for name in data.schema.names:
        try:
            data.column(name).validate(full=True)
        except (pyarrow().ArrowException, IndexError) as error:
            raise ValueError(f"column '{name}' is not valid as Arrow's: {error}") from None


def _brief(schema: Any) -> str:  # noqa: ANN401 - pyarrow has no types
    text = ", ".join(f"{field.name}: {field.type}" for field in schema)
    return text if len(text) <= 300 else f"{text[:300]}..."


def _plain(arrays: Iterable[Any]) -> list[Any]:
    """The arrays that store the values: without extensions, dictionaries and views."""
    return [_plain_one(array) for array in arrays]


def _plain_one(array: Any) -> Any:  # noqa: ANN401 - pyarrow has no types
    pa = pyarrow()
    if isinstance(array, pa.ExtensionArray):
        return _plain_one(array.storage)
    if isinstance(array, pa.DictionaryArray):
        # Plain first: pyarrow does not decode dictionaries of all types.
        values = _plain_one(array.dictionary)
        return pa.DictionaryArray.from_arrays(array.indices, values, safe=False).dictionary_decode()
    wanted = plain_type(array.type)
    return array if wanted.equals(array.type) else array.cast(wanted)


def _kind_of(
    name: str,
    field: Any,  # noqa: ANN401 - pyarrow has no types
    nullable: bool,
    chunks: list[Any] | None,
    marked: bool = False,
) -> Kind:
    """The columns that store a column of that field.

    Args:
        name: of the column, or of what is in it, for errors.
        field: its type, and whether it is marked as bf16.
        nullable: whether nulls may come.
        chunks: all values, if they are known, plain.
        marked: whether lists that they are in are marked as bf16.
    """
    pa, wanted = pyarrow(), field.type
    marked = marked or is_bf16(field)
    if trouble := dictionary_trouble(wanted):
        raise ValueError(f"column '{name}' is {wanted}, and {trouble}")
    if isinstance(wanted, pa.FixedShapeTensorType) and _is_in_order(wanted.permutation):
        leaf = leaf_of(plain_type(wanted.value_type))
        if leaf is not None and 0 not in wanted.shape:
            shape = (*wanted.shape, *leaf[1])
            return Kind(_stored_type(leaf[0], marked), shape, nullable)
    wanted = plain_type(wanted)
    if pa.types.is_fixed_size_list(wanted):
        if (dense := _dense(wanted, chunks)) is not None:
            return Kind(_stored_type(dense[0], marked), dense[1], nullable)
        # Under a null there are items, too, which are null whatever their field says.
        item, known = wanted.value_field, _below(chunks, _slots)
        inner = _kind_of(f"{name}[]", item, item.nullable or nullable, known, marked)
        return Kind("list", (), nullable, (("item", inner),))
    if is_list(wanted):
        is_map = pa.types.is_map(wanted)  # Its pairs are marked, each for itself.
        item, known = entry_of(wanted), _below(chunks, _items)
        inner = _kind_of(f"{name}[]", item, item.nullable, known, marked and not is_map)
        return Kind("list", (), nullable, (("item", inner),))
    if pa.types.is_struct(wanted) and wanted.num_fields:
        fields = []
        for number, each in enumerate(wanted):
            known = None if chunks is None else _plain(chunk.field(number) for chunk in chunks)
            # Under a null there are fields, too, which are null whatever their field says.
            may_lack = each.nullable or nullable
            inner = _kind_of(f"{name}{{{each.name}}}", each, may_lack, known)
            fields.append((each.name, inner))
        return Kind("struct", (), nullable, tuple(fields))
    leaf = leaf_of(wanted)
    if leaf is None:
        raise ValueError(
            f"column '{name}' is {wanted}, which records cannot hold: leave it out, or cast it"
        )
    return Kind(_stored_type(leaf[0], marked), leaf[1], nullable)


def _stored_type(name: str, marked: bool) -> str:
    return "bf16" if marked and name in BF16_STORAGE else name


def _kind_in(columns: tuple[Column, ...], field: Any, own: Kind) -> Kind:  # noqa: ANN401
    """The kind that a file stores a column as, which would be `own` in a file of its own."""
    layout = layout_of(columns)
    kinds = {column.name: Kind(column.type, column.shape) for column in columns}
    kind = (kinds if layout is None else {**kinds, **layout.nested}).get(field.name)
    is_like = kind is not None and (kind == own or fits(kind, field.type))
    if kind is None or not is_like:
        raise ValueError(
            f"column '{field.name}' is {field.type}, and the file has "
            f"{'no such column' if kind is None else 'another type'}"
        )
    return kind


def _is_in_order(permutation: Sequence[int] | None) -> bool:
    """Whether the dimensions of a tensor lie in memory as they are named."""
    return permutation is None or list(permutation) == sorted(permutation)


def _below(chunks: list[Any] | None, items: Any) -> list[Any] | None:  # noqa: ANN401
    return None if chunks is None else _plain(items(chunk) for chunk in chunks)


def _dense(wanted: Any, chunks: list[Any] | None) -> tuple[str, tuple[int, ...]] | None:  # noqa: ANN401
    """Type and shape of lists of one size, of numbers, none of which is null as far as is known."""
    types, shape = pyarrow().types, []
    while types.is_fixed_size_list(wanted):
        shape.append(wanted.list_size)
        if chunks is not None:
            chunks = _plain(_flat(chunk) for chunk in chunks)
            if any(chunk.null_count for chunk in chunks):
                return None
        wanted = plain_type(wanted.value_type)
    leaf = leaf_of(wanted)
    if leaf is None or leaf[0] in ("utf8", "bytes") or 0 in shape:
        return None
    return leaf[0], (*shape, *leaf[1])


def _items(array: Any) -> Any:  # noqa: ANN401 - pyarrow has no types
    """The items of lists, without those under nulls."""
    pa = pyarrow()
    if pa.types.is_map(array.type):
        entry = entry_of(array.type)
        pairs = pa.StructArray.from_arrays([array.keys, array.items], fields=list(entry.type))
        buffers = array.buffers()[:2]
        array = pa.Array.from_buffers(
            pa.list_(entry), len(array), buffers, offset=array.offset, children=[pairs]
        )
    return _flat(array)


def _flat(array: Any) -> Any:  # noqa: ANN401 - pyarrow has no types
    """The items of valid lists; `flatten` makes no empty arrays of extension types."""
    return array.values[:0] if array.null_count == len(array) else array.flatten()


def _slots(array: Any) -> Any:  # noqa: ANN401 - pyarrow has no types
    """The items of lists of one size, with those under nulls."""
    size = array.type.list_size
    return array.values.slice(array.offset * size, len(array) * size)


def _encoded(
    name: str,
    kind: Kind,
    array: Any,  # noqa: ANN401 - pyarrow has no types
    ends: npt.NDArray[np.int64] | None,
    holding: set[str],
    hidden: npt.NDArray[np.bool_] | None = None,
) -> Iterator[Rows]:
    """The buffers of the stored columns of a kind, in their order.

    Args:
        name: of the column, or of what is in it, for errors.
        kind: what it is stored as.
        array: its values, plain.
        ends: of values in lists, where those of each row begin, and the last end; else None.
        holding: gets the name if a value is null.
        hidden: values of a struct that is null, where anything may be.

    Raises:
        UnfitError: there is a null where none may be, or a number that is too large; `at` is the
            row.
    """
    valid = None
    if kind.nullable and not array.null_count and ends is not None:
        yield Rows(b"", np.zeros(len(ends), np.int64))  # In lists: all are there.
    elif kind.nullable:
        if array.null_count:
            holding.add(name)
        valid = _validity(array)
        yield _by_width(valid.view(np.uint8), 1, len(array), ends)
    elif array.null_count:
        valid = _validity(array)
        shown = ~valid if hidden is None else ~valid & ~hidden
        _refuse_at(shown, _NULL_REFUSED.format(name), ends)
    if kind.type == "list":
        yield from _encoded_list(name, kind, array, ends, holding)
    elif kind.type == "struct":
        under = hidden if valid is None else ~valid if hidden is None else hidden | ~valid
        for number, (inner, each) in enumerate(kind.fields):
            (part,) = _plain([array.field(number)])
            below = f"{name}{{{inner}}}"
            # Stored as nullable if the struct is: only where the struct is null may it be null.
            if part.null_count and not array.type.field(number).nullable:
                lacking = ~_validity(part) if under is None else ~_validity(part) & ~under
                _refuse_at(lacking, _NULL_REFUSED.format(below), ends)
            yield from _encoded(below, each, part, ends, holding, under)
    elif kind.is_text:
        yield from _encoded_text(name, kind, array, ends)
    else:
        data = _numbers(name, kind, array, ends, valid)
        if valid is not None and not valid.all():
            data = np.array(data).reshape(len(array), -1)
            data[~valid] = 0  # Anything may lie under a null.
        column = kind.column("")
        assert column.dtype is not None
        yield _by_width(data, column.dtype.itemsize * math.prod(kind.shape), len(array), ends)


def _refuse_at(wrong: Any, said: str, ends: npt.NDArray[np.int64] | None) -> None:  # noqa: ANN401
    """Raise the error for the row of the first wrong value, if there is one."""
    if wrong.any():
        raise UnfitError(said, _row_of(int(wrong.argmax()), ends))


def _row_of(at: int, ends: npt.NDArray[np.int64] | None) -> int:
    return at if ends is None else int(np.searchsorted(ends, at, "right")) - 1


def _encoded_list(
    name: str,
    kind: Kind,
    array: Any,  # noqa: ANN401 - pyarrow has no types
    ends: npt.NDArray[np.int64] | None,
    holding: set[str],
) -> Iterator[Rows]:
    if pyarrow().types.is_fixed_size_list(array.type):
        (items,) = _plain([_slots(array)])
        lengths = np.full(len(array), array.type.list_size, np.int64)
    else:
        (items,) = _plain([_items(array)])
        lengths = _lengths(array)
    bounds = _bounds(lengths)
    if ends is not None:
        yield _by_width(_as_u32(lengths, name), 4, len(array), ends)
        bounds = bounds[ends]
    yield from _encoded(f"{name}[]", kind.item, items, bounds, holding)


def _encoded_text(
    name: str,
    kind: Kind,
    array: Any,  # noqa: ANN401 - pyarrow has no types
    ends: npt.NDArray[np.int64] | None,
) -> Iterator[Rows]:
    if array.null_count:
        array = array.fill_null("" if kind.type == "utf8" else b"")
    bounds, data = _text(array)
    if ends is not None:
        yield _by_width(_as_u32(np.diff(bounds), name), 4, len(array), ends)
        bounds = bounds[ends]
    yield Rows(data, bounds)


def _lengths(array: Any) -> npt.NDArray[np.int64]:  # noqa: ANN401 - pyarrow has no types
    pa = pyarrow()
    width = np.int64 if pa.types.is_large_list(array.type) else np.int32
    buffer = array.buffers()[1]
    if not len(array) or buffer is None:
        return np.zeros(len(array), np.int64)
    offsets = np.frombuffer(buffer, width)[array.offset : array.offset + len(array) + 1]
    lengths = np.diff(offsets).astype(np.int64)
    if array.null_count:
        lengths[~_validity(array)] = 0
    return lengths


def _text(array: Any) -> tuple[npt.NDArray[np.int64], Any]:  # noqa: ANN401 - no types
    """Where each value begins and the last ends, and the bytes."""
    types = pyarrow().types
    large = types.is_large_string(array.type) or types.is_large_binary(array.type)
    _, offsets, data = array.buffers()
    if not len(array) or offsets is None:
        return np.zeros(len(array) + 1, np.int64), b""
    bounds = np.frombuffer(offsets, np.int64 if large else np.int32)
    bounds = bounds[array.offset : array.offset + len(array) + 1]
    return bounds.astype(np.int64), b"" if data is None else data


def _numbers(
    name: str,
    kind: Kind,
    array: Any,  # noqa: ANN401 - pyarrow has no types
    ends: npt.NDArray[np.int64] | None,
    valid: npt.NDArray[np.bool_] | None,
) -> npt.NDArray[np.uint8]:
    """The bytes of numbers, as they lie in Arrow's memory if they are of the stored type."""
    types, count = pyarrow().types, len(array)
    while types.is_fixed_size_list(array.type):
        (items,) = _plain([_slots(array)])
        if _flat(array).null_count:
            lacking = ~_validity(items).reshape(len(array), -1).all(1) & _validity(array)
            said = f"column '{name}' has a null in a list or tensor of a fixed size"
            _refuse_at(lacking.reshape(count, -1).any(1), said, ends)
        array = items
    if kind.type == "bf16" and not types.is_uint16(array.type):
        return _bf16(name, kind, array, ends, valid)
    if kind.type == "bool":
        values = array.fill_null(False) if array.null_count else array
        return np.asarray(values.to_numpy(zero_copy_only=False), np.bool_).view(np.uint8)
    width = array.type.bit_width // 8
    buffer = array.buffers()[1]
    if not count or buffer is None:
        return np.empty(0, np.uint8)
    first = array.offset * width
    return np.frombuffer(buffer, np.uint8)[first : first + len(array) * width]


def _bf16(
    name: str,
    kind: Kind,
    array: Any,  # noqa: ANN401 - pyarrow has no types
    ends: npt.NDArray[np.int64] | None,
    valid: npt.NDArray[np.bool_] | None,
) -> npt.NDArray[np.uint8]:
    """Numbers of a column that is marked as bf16."""
    numbers = np.array(array.to_numpy(zero_copy_only=False)).reshape(-1, math.prod(kind.shape))
    if valid is not None:
        numbers[~valid] = 0
    try:
        return exact(numbers, "bf16", f"column '{name}'").view(np.uint8)
    except UnfitError as error:
        raise UnfitError(str(error), _row_of(error.at // numbers.shape[1], ends)) from None


def _validity(array: Any) -> npt.NDArray[np.bool_]:  # noqa: ANN401 - pyarrow has no types
    return np.asarray(array.is_valid().to_numpy(zero_copy_only=False), np.bool_)


def _bounds(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    bounds = np.zeros(lengths.size + 1, np.int64)
    np.cumsum(lengths, out=bounds[1:])
    return bounds


def _as_u32(lengths: npt.NDArray[np.int64], name: str) -> npt.NDArray[np.uint8]:
    if lengths.size and lengths.max() > _U32_MAX:
        raise ValueError(f"a value of column '{name}' has {lengths.max()} bytes or items, too many")
    return lengths.astype("<u4").view(np.uint8)


def _by_width(
    data: npt.NDArray[np.uint8], width: int, count: int, ends: npt.NDArray[np.int64] | None
) -> Rows:
    """For each row the bytes of its values, each of that width."""
    bounds = np.arange(count + 1, dtype=np.int64) if ends is None else ends
    return Rows(data.reshape(-1), bounds * width)
