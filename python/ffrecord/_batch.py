"""The records of one read."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, overload

import numpy as np
import numpy.typing as npt

from ffrecord import _ffrecord
from ffrecord._formats import Format, checked, converter, table
from ffrecord._schema import Column

if TYPE_CHECKING:
    import pyarrow as pa

Bytes = npt.NDArray[np.uint8]
# One record: its bytes, or what a decoder made of them; in a file with a schema, values by column.
Sample = Any
# All values of a column: numbers stacked, bytes and text as lists; of a decoder, what it makes.
Values = npt.NDArray[Any] | list[Any]
# What decoders made, by column; of records that are just bytes, under None.
Decoded = Mapping[str | None, Values]

CORRUPT = 3
"""The status of a record that is damaged: kCorruption of result.h."""


class Batch(Sequence[Sample]):
    """Records in request order, in one block of memory; arrays are views that keep it alive.

    `batch[i]` is a sample: uint8 of shape (size,), or, in a file with a schema, a dict with a value
    for each column. `batch["label"]` is a whole column: an array of shape (n, *shape) for numbers
    (bf16 as uint16 bits), a list of uint8 views for bytes, a list of str for utf8. `batch[2:5]` is
    a batch of these rows over the same block.

    The block is available in two forms. As it was read, in the order of the files: record i is
    `slab[starts[i] : starts[i] + sizes[i]]`. In request order, without gaps: record i is
    `data[offsets[i] : offsets[i + 1]]`; this form costs one copy, unless the block has that order
    already. Every array supports DLPack, as NumPy arrays do.

    If the batch was read with decoders, samples and columns are the decoded values; the block
    holds the undecoded bytes.

    In another `format` than "numpy", samples and columns are what `Records.with_format` says; all
    else, such as `data` and `records()`, is the same.
    """

    __slots__ = (
        "_columns",
        "_decoded",
        "_inner",
        "_packed",
        "_records",
        "_schema",
        "_shown",
        "_status",
        "_values",
        "columns",
        "format",
        "indices",
        "reasons",
    )

    columns: tuple[str, ...]
    """Names of the columns in sight; empty if records are just bytes."""
    indices: npt.NDArray[np.int64]
    """The index of each record, shape (n,), never negative."""
    format: Format
    """What samples and columns are handed out as."""
    reasons: Mapping[int, str]
    """By row, why a decoder could make nothing of a record; empty unless kept on request."""

    def __init__(
        self,
        inner: _ffrecord.Batch,
        indices: npt.NDArray[np.int64],
        schema: _ffrecord.Schema,
        columns: tuple[Column, ...],
        names: Iterable[str] | None = None,
        format: Format = "numpy",
    ) -> None:
        """Made by a `Reader`; callers do not create batches."""
        self._inner = inner
        self._schema = schema
        self._columns = columns
        self._values: dict[str, Values] = {}
        self._shown: dict[str | None, Any] = {}  # In the format.
        self.format = format
        self._packed: tuple[Bytes, npt.NDArray[np.int64]] | None = None
        self._records: list[Bytes] | None = None
        self._decoded: Decoded = {}
        self._status: Bytes | None = None
        self.reasons = {}
        self.columns = tuple(column.name for column in columns) if names is None else tuple(names)
        self.indices = indices

    @property
    def slab(self) -> Bytes:
        """The block as it was read, uint8 of shape (slab_bytes,)."""
        return self._inner.slab

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        """Where each record begins in `slab`, in bytes, shape (n,)."""
        return self._inner.starts

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Size of each record in bytes, shape (n,)."""
        return self._inner.sizes

    @property
    def status(self) -> npt.NDArray[np.uint8]:
        """0 for a good record, else its error code, shape (n,); all 0 unless kept on request."""
        return self._inner.status if self._status is None else self._status

    @property
    def data(self) -> Bytes:
        """The records back to back in request order, uint8 of shape (total_bytes,)."""
        return self._packed_form()[0]

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """Where each record begins in `data`, and where the last ends, in bytes, shape (n + 1,)."""
        return self._packed_form()[1]

    @property
    def column_types(self) -> tuple[Column, ...]:
        """Name, type and shape of all columns, selected or not."""
        return self._columns

    @property
    def inner_schema(self) -> _ffrecord.Schema:
        """The library's own schema, for code that makes a batch over other memory."""
        return self._schema

    def pin_memory(self) -> "Batch":
        """Copy into page-locked memory; torch's loader calls this; needs a GPU."""
        from ffrecord.torch._placing import pinned

        return pinned(self)

    @property
    def decoded(self) -> Decoded:
        """Decoded values by column; those of records that are plain bytes are under None."""
        return self._decoded

    def field(self, name: str | None) -> tuple[Bytes, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Where the bytes of a column are, or of whole records for None: block, starts, sizes."""
        if name is None:
            return self.slab, self.starts, self.sizes
        return self.slab, *self._inner.column_spans(self._number(name))

    def with_format(self, format: str) -> "Batch":
        """The same records, handed out as `format`; see `Records.with_format`."""
        made = self.relabelled(self.indices)
        made.format = checked(format)
        return made

    def to_arrow(self) -> "pa.Table":
        """Return the selected columns as a pyarrow table; plain records are one column, `record`.

        Numbers are not copied, except booleans; columns with a shape have Arrow's tensor type.
        Bytes are large_binary, text is string. No value is null. The metadata of a field
        has its type, `ffrecord.type`: bf16, which Arrow lacks, is uint16.
        """
        if not self._columns:
            return table([("record", self.whole, None)])
        types = {column.name: column for column in self._columns}
        kinds = ((name, None if name in self._decoded else types[name]) for name in self.columns)
        return table((name, self._column(name), column) for name, column in kinds)

    def with_decoded(self, decoded: Decoded, reasons: Mapping[int, str]) -> "Batch":
        """The same records with decoded values; a record with a reason counts as corrupt."""
        made = self._alike(self._inner, self.indices)
        made._decoded = decoded
        if reasons:
            made.reasons = reasons
            made._status = np.array(self.status)
            made._status[list(reasons)] = CORRUPT
        return made

    def with_values(self, values: "Mapping[str, Values]") -> "Batch":
        """The same records; the values of these columns need not be gathered any more."""
        made = self._alike(self._inner, self.indices)
        made._values.update(values)
        return made

    @property
    def whole(self) -> Values:
        """Each record without its columns: its bytes, or its decoded value."""
        return self._decoded[None] if None in self._decoded else self.records()

    def records(self) -> list[Bytes]:
        """The bytes of each record, without its columns."""
        if self._records is None:
            self._records = self._inner.records()
        return self._records

    def select(self, rows: npt.ArrayLike) -> "Batch":
        """The rows `rows`, integers in [0, n), as a batch over the same block."""
        positions = np.asarray(rows, np.int64).reshape(-1)
        made = self._alike(self._inner.select(positions), self.indices[positions])
        made._decoded = {name: _rows(values, positions) for name, values in self._decoded.items()}
        if self._status is not None:
            made._status = self._status[positions]
            places = enumerate(positions.tolist())
            made.reasons = {to: self.reasons[at] for to, at in places if at in self.reasons}
        return made

    def relabelled(self, indices: npt.NDArray[np.int64]) -> "Batch":
        """The same records under the indices of a view."""
        made = self._alike(self._inner, indices)
        made._decoded, made._status, made.reasons = self._decoded, self._status, self.reasons
        return made

    @staticmethod
    def joined(batches: "Sequence[Batch]", rows: npt.NDArray[np.int64]) -> "Batch":
        """Copy the records of several batches into one block; `rows[i]` is the row of the i-th.

        Requires batches of the same columns, and rows that are a permutation.
        """
        first = batches[0]
        block = np.concatenate([batch.data for batch in batches])
        sizes = np.concatenate([batch.sizes for batch in batches])
        order = np.argsort(rows)
        starts = np.cumsum(sizes) - sizes
        status = np.concatenate([batch.status for batch in batches])[order]
        inner = _ffrecord.Batch.over(block, starts[order], sizes[order], status, first._schema)
        return Batch(inner, np.arange(rows.size), first._schema, first._columns, first.columns)

    def only(self, names: Iterable[str]) -> "Batch":
        """The same records with only these columns selected."""
        wanted = tuple(names)
        for name in wanted:
            self._number(name)
        made = self.relabelled(self.indices)
        made.columns = wanted
        return made

    def __len__(self) -> int:
        return len(self._inner)

    @overload
    def __getitem__(self, key: int) -> Sample: ...
    @overload
    def __getitem__(self, key: str) -> Values: ...
    @overload
    def __getitem__(self, key: slice) -> "Batch": ...
    def __getitem__(self, key: int | str | slice) -> "Sample | Values | Batch":
        if isinstance(key, str):
            return self._in_format(key)
        if isinstance(key, slice):
            return self.select(np.arange(len(self), dtype=np.int64)[key])
        if self.format == "arrow":
            return self.select([range(len(self))[key]]).to_arrow()
        if not self._columns:
            return self._in_format(None)[key]
        column = self._column if self.format == "numpy" else self._in_format
        return {name: column(name)[key] for name in self.columns}

    def __iter__(self) -> Iterator[Sample]:
        if self.format == "arrow":
            whole = self.to_arrow()
            yield from (whole.slice(row, 1) for row in range(len(self)))
            return
        if not self._columns:
            yield from self._in_format(None)
            return
        for values in zip(*map(self._in_format, self.columns), strict=True):
            yield dict(zip(self.columns, values, strict=True))

    def __repr__(self) -> str:
        what = f" of {', '.join(self.columns)}" if self._columns else ""
        return f"<ffrecord.Batch: {len(self)} records{what}>"

    def __reduce__(self) -> tuple[Any, ...]:
        data, offsets = self._packed_form()
        columns = [tuple(column) for column in self._columns]
        status = np.array(self.status)
        parts = (data, offsets, status, self.indices, columns, self.columns)
        return _restore, (*parts, dict(self._decoded), dict(self.reasons), self.format)

    def __copy__(self) -> Self:
        return self  # Nothing in it changes.

    def _packed_form(self) -> tuple[Bytes, npt.NDArray[np.int64]]:
        if self._packed is None:
            self._packed = self._inner.packed()
        return self._packed

    def _alike(self, inner: _ffrecord.Batch, indices: npt.NDArray[np.int64]) -> "Batch":
        return Batch(inner, indices, self._schema, self._columns, self.columns, self.format)

    def _in_format(self, name: str | None) -> Any:  # noqa: ANN401 - as the format has it
        """The values of a column, or the records for None, as they are handed out."""
        if self.format != "numpy" and name in self._shown:
            return self._shown[name]
        values = self.whole if name is None else self._column(name)
        is_decoded = name in self._decoded
        if self.format == "numpy" or (self.format == "bytes" and is_decoded):
            return values
        column = None if name is None or is_decoded else self._columns[self._number(name)]
        self._shown[name] = converter(self.format)(values, column)
        return self._shown[name]

    def _column(self, name: str) -> Values:
        if name in self._decoded:
            return self._decoded[name]
        if name not in self._values:
            self._values[name] = self._gather(name)
        return self._values[name]

    def _number(self, name: str) -> int:
        for number, column in enumerate(self._columns):
            if column.name == name:
                return number
        known = ", ".join(column.name for column in self._columns)
        raise KeyError(f"no column '{name}'; columns: {known or 'none, records are plain bytes'}")

    def _gather(self, name: str) -> Values:
        number = self._number(name)
        column = self._columns[number]
        dtype = column.dtype
        if dtype is None:
            gather = self._inner.column_text if column.type == "utf8" else self._inner.column_views
            return gather(number)
        values = self._in_place(column) if len(self._columns) == 1 else None
        if values is None:
            values = np.empty((len(self), *column.shape), dtype)
            self._inner.gather_fixed(number, values.reshape(-1).view(np.uint8))
        # Any byte may stand in a hostile file; NumPy's bool must be 0 or 1.
        return values.view(np.uint8) != 0 if column.type == "bool" else values

    def _in_place(self, column: Column) -> npt.NDArray[Any] | None:
        """The values of a column that is all there is of a record: the records themselves."""
        assert column.dtype is not None
        width = column.dtype.itemsize * math.prod(column.shape)
        rows = self._inner.rows(width)
        if rows is None:
            return None
        values = rows.view(column.dtype).reshape(len(self), *column.shape)
        return values if values.flags.aligned else None


def _restore(
    data: Bytes,
    offsets: npt.NDArray[np.int64],
    status: npt.NDArray[np.uint8],
    indices: npt.NDArray[np.int64],
    columns: list[tuple[str, str, tuple[int, ...]]],
    names: tuple[str, ...],
    decoded: Decoded,
    reasons: Mapping[int, str],
    format: Format,
) -> Batch:
    schema = _ffrecord.Schema(columns)
    inner = _ffrecord.Batch.over(data, offsets[:-1], np.diff(offsets), status, schema)
    types = tuple(Column(*column) for column in columns)
    made = Batch(inner, indices, schema, types, names, format)
    return made.with_decoded(decoded, reasons)


def _rows(values: Values, rows: npt.NDArray[np.int64]) -> Values:
    return values[rows] if isinstance(values, np.ndarray) else [values[row] for row in rows]
