"""Columns of a batch as arrays of pyarrow, of the types that they were written with."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ffrecord._tables.arrow_types import entry_of, fits, is_list, mark_of, of_view, shown_type
from ffrecord._tables.formats import as_arrow, pyarrow
from ffrecord._tables.nested import Values
from ffrecord._tables.schema import Column, Kind
from ffrecord._tables.values import bf16_numbers
from ffrecord.errors import CorruptionError

_I32_MAX = (1 << 31) - 1


class Stored(Protocol):
    """The part of a `LogicalSchema` that reading Arrow needs."""

    @property
    def stored(self) -> Sequence[Column]:
        """The columns that the files have; empty if records are just bytes."""

    def arrow_schemas(self) -> tuple[bytes, ...]:
        """The schemas of Arrow that the files were written with."""


class Columns(Protocol):
    """The part of a `Batch` that reading Arrow needs."""

    @property
    def columns(self) -> Sequence[str]:
        """Names of the columns in sight; empty if records are just bytes."""

    @property
    def logical(self) -> Stored:
        """The columns, and how they are stored."""

    @property
    def decoded(self) -> Mapping[str | None, Any]:
        """Decoded values by column."""

    @property
    def whole(self) -> Any:  # noqa: ANN401 - as records are
        """The records."""

    def kind(self, name: str) -> Kind:
        """The type of a column's values."""

    def plain(self, name: str) -> Any:  # noqa: ANN401 - as the column has them
        """A column's values as NumPy's."""

    def values_of(self, name: str) -> Values:
        """A column's values as they are stored."""


class TooManyError(ValueError):
    """A batch has more of something than the type of a column can count."""


def table_of(batch: Columns) -> Any:  # noqa: ANN401 - pyarrow has no types
    """The columns in sight as a table; records without columns are a column `record`."""
    pa = pyarrow()
    if not batch.logical.stored:
        array = as_arrow(batch.whole, None)
        field = pa.field("record", array.type, nullable=False)
        return pa.Table.from_arrays([array], schema=pa.schema([field]))
    schema = schema_of(batch.logical.arrow_schemas())
    arrays, fields = [], []
    for name in batch.columns:
        wanted = _wanted(batch, name, schema)
        arrays.append(_array(batch, name, wanted))
        fields.append(pa.field(name, arrays[-1].type, wanted.nullable, wanted.metadata))
    metadata = None if schema is None else schema.metadata
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields, metadata=metadata))


def array_of(batch: Columns, name: str | None) -> Any:  # noqa: ANN401 - pyarrow has no types
    """One column, or for None the records."""
    if name is None:
        return as_arrow(batch.whole, None)
    return _array(batch, name, _wanted(batch, name, schema_of(batch.logical.arrow_schemas())))


@lru_cache(maxsize=16)
def schema_of(stored: tuple[bytes, ...]) -> Any:  # noqa: ANN401 - pyarrow has no types
    """The schema that the files of a batch were written with; None if there is none.

    Raises:
        ValueError: they were written with columns of different types.
        CorruptionError: it is no schema.
    """
    pa = pyarrow()
    schemas = []
    for each in stored:
        try:
            schemas.append(pa.ipc.read_schema(pa.py_buffer(each)))
        except (pa.ArrowException, OSError) as error:
            raise CorruptionError(f"the metadata ARROW:schema is no schema: {error}") from None
    for other in schemas[1:]:
        for name in schemas[0].names:
            first = schemas[0].field(name).type
            if name in other.names and other.field(name).type != first:
                raise ValueError(
                    f"the files were written from tables of different types: column '{name}' is "
                    f"{first} and {other.field(name).type}; open them one by one"
                )
    return schemas[0] if schemas else None


class _Wanted(NamedTuple):
    """How a column is handed out; no type: as NumPy's values are."""

    type: Any
    nullable: bool
    metadata: Any


def _wanted(batch: Columns, name: str, schema: Any) -> _Wanted:  # noqa: ANN401 - no types
    """As the column was written, if that fits it, else as its kind says."""
    kind = batch.kind(name)
    if name in batch.decoded:
        return _Wanted(None, kind.nullable, {})
    if schema is not None and schema.get_field_index(name) >= 0:
        found = schema.field(name)
        if fits(kind, found.type):
            return _Wanted(found.type, found.nullable or kind.nullable, found.metadata)
    if kind.is_plain:
        return _Wanted(None, False, {"ffrecord.type": kind.column(name).spelling})
    return _Wanted(shown_type(kind), kind.nullable, mark_of(kind))


def _array(batch: Columns, name: str, wanted: _Wanted) -> Any:  # noqa: ANN401 - no types
    if wanted.type is None:
        is_decoded = name in batch.decoded
        column = None if is_decoded else batch.kind(name).column(name)
        return as_arrow(batch.decoded[name] if is_decoded else batch.plain(name), column)
    pa = pyarrow()
    try:
        made = built(batch.values_of(name), wanted.type)
        made.validate(full=_has_text(batch.kind(name)))
    except pa.ArrowInvalid as error:
        raise CorruptionError(f"column '{name}' holds no {wanted.type}: {error}") from None
    return made


def _has_text(kind: Kind) -> bool:
    return kind.type == "utf8" or any(_has_text(each) for _, each in kind.fields)


def built(values: Values, wanted: Any) -> Any:  # noqa: ANN401 - pyarrow has no types
    """The values as an array of that type, which fits their kind; numbers are not copied."""
    pa = pyarrow()
    types = pa.types
    if isinstance(wanted, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(wanted, built(values, wanted.storage_type))
    if types.is_dictionary(wanted):
        found = built(values, wanted.value_type).dictionary_encode()
        try:
            indices = found.indices.cast(wanted.index_type)
        except pa.ArrowInvalid:
            raise TooManyError(
                f"a column has {len(found.dictionary)} different values in one batch, and its type "
                f"{wanted} does not count so far: read fewer records at a time"
            ) from None
        return pa.DictionaryArray.from_arrays(indices, found.dictionary, ordered=wanted.ordered)
    if (view := of_view(wanted)) is not None:
        return built(values, view).cast(wanted)
    count, buffers = values.count, [_bitmap(pa, values.valid)]
    children = None
    if types.is_struct(wanted):
        children = [built(part, each.type) for part, each in zip(values.below, wanted, strict=True)]
    elif types.is_fixed_size_list(wanted):
        children = [built(_items(values, wanted.list_size), wanted.value_type)]
    elif is_list(wanted):
        buffers.append(_offsets(pa, values, np.int64 if types.is_large_list(wanted) else np.int32))
        children = [built(values.below[0], entry_of(wanted).type)]
    elif values.kind.is_text:
        large = types.is_large_string(wanted) or types.is_large_binary(wanted)
        offsets = _offsets(pa, values, np.int64 if large else np.int32)
        buffers += [offsets, pa.py_buffer(values.block)]
    else:
        buffers.append(_data(pa, values, wanted))
    return pa.Array.from_buffers(wanted, count, buffers, children=children)


def _items(values: Values, size: int) -> Values:
    """The items of lists of one size: items of their own, or numbers with a shape."""
    if values.kind.type == "list":
        return values.below[0]
    numbers = values.numbers
    assert numbers is not None
    width = int(np.prod(numbers.shape[1:], dtype=np.int64)) // size
    shape = (values.count * size, width) if width > 1 else (values.count * size,)
    return Values(Kind(values.kind.type, shape[1:]), shape[0], numbers=numbers.reshape(shape))


def _bitmap(pa: Any, valid: npt.NDArray[np.bool_] | None) -> Any:  # noqa: ANN401 - no types
    return None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))


def _offsets(pa: Any, values: Values, dtype: Any) -> Any:  # noqa: ANN401 - pyarrow has no types
    assert values.offsets is not None
    if dtype is np.int32 and values.offsets[-1] > _I32_MAX:
        raise TooManyError(
            f"a column has {values.offsets[-1]} bytes or items in one batch, and its type of Arrow "
            f"counts to {_I32_MAX}: read fewer records at a time"
        )
    return pa.py_buffer(np.ascontiguousarray(values.offsets, dtype))


def _data(pa: Any, values: Values, wanted: Any) -> Any:  # noqa: ANN401 - pyarrow has no types
    numbers = values.numbers
    assert numbers is not None
    if values.kind.type == "bf16" and pa.types.is_floating(wanted):
        numbers = bf16_numbers(numbers).astype(wanted.to_pandas_dtype())
    if values.kind.type == "bool":
        return pa.py_buffer(np.packbits(numbers.reshape(-1), bitorder="little"))
    return pa.py_buffer(np.ascontiguousarray(numbers))
