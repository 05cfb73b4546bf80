"""The records of one read."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self, overload

import numpy as np
import numpy.typing as npt

from ffrecord import _ffrecord
from ffrecord._read.widening import widened
from ffrecord._tables.arrow_schema import NULLS
from ffrecord._tables.formats import Format, checked, converter, nested_converter
from ffrecord._tables.logical import LogicalSchema
from ffrecord._tables.nested import Gathering, as_numpy, merged, row_of, rows_of
from ffrecord._tables.nested import Values as Nested
from ffrecord._tables.schema import Bytes, Column, Kind, Values
from ffrecord.errors import CorruptionError

if TYPE_CHECKING:
    import pyarrow as pa

# One record: its bytes, or what a decoder made of them; in a file with a schema, values by column.
Sample = Any
# The results of decoders, by column; those of records that are just bytes, under None.
Decoded = Mapping[str | None, Values]


class _Spans(NamedTuple):
    """Where the bytes of a column are."""

    slab: Bytes
    starts: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    status: npt.NDArray[np.uint8]


CORRUPT = 3
"""The status of a record that is damaged: kCorruption of result.h."""


class Batch(Sequence[Sample]):
    """Records in request order, in one block of memory; arrays are views that keep it alive.

    `batch[i]` is a sample: uint8 of shape (size,), or, in a file with a schema, a dict with a value
    for each column. `batch["label"]` is a whole column: an array of shape (n, *shape) for numbers
    (bf16 as uint16 bits), a list of uint8 views for bytes, a list of str for utf8. `batch[2:5]` is
    a batch of these rows over the same block.

    Nullable, ragged and nested columns are as tables of Arrow have them: numbers of which some may
    be missing are a masked array, and a sample has None for those; bytes and text have None in
    their lists; lists of numbers are a list of arrays, views of one block; a struct is a dict of
    columns, in which all is missing where the struct is; a list of structs is a list of dicts. A
    sample has None for whatever is missing.

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
        "logical",
        "reasons",
    )

    columns: tuple[str, ...]
    """Names of the columns in sight; empty if records are just bytes."""
    indices: npt.NDArray[np.int64]
    """The index of each record, shape (n,), never negative."""
    format: Format
    """The format of samples and columns."""
    logical: LogicalSchema
    """The columns, selected or not, and how they are stored."""
    reasons: Mapping[int, str]
    """By row, why a decoder could make nothing of a record; empty unless kept on request."""

    def __init__(
        self,
        inner: _ffrecord.Batch,
        indices: npt.NDArray[np.int64],
        schema: _ffrecord.Schema,
        logical: LogicalSchema,
        names: Iterable[str] | None = None,
        format: Format = "numpy",
    ) -> None:
        """Made by a `Reader`; callers do not create batches."""
        self._inner = inner
        self._schema = schema
        self.logical = logical
        self._values: dict[str, Values] = {}
        self._shown: dict[str | None, Any] = {}  # In the format.
        self.format = format
        self._packed: tuple[Bytes, npt.NDArray[np.int64]] | None = None
        self._records: list[Bytes] | None = None
        self._decoded: Decoded = {}
        self._status: Bytes | None = None
        self.reasons = {}
        self.columns = logical.names if names is None else tuple(names)
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
        return self.logical.columns

    @property
    def inner_schema(self) -> _ffrecord.Schema:
        """The library's own schema, for code that makes a batch over other memory."""
        return self._schema

    def pin_memory(self) -> "Batch":
        """Copy into page-locked memory; torch's loader calls this; needs a GPU."""
        return _pinned(self)

    @property
    def decoded(self) -> Decoded:
        """Decoded values by column; those of records that are plain bytes are under None."""
        return self._decoded

    def field(self, name: str | None) -> tuple[Bytes, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Where the bytes of a column are, or of whole records for None: block, starts, sizes."""
        if name is None:
            return self.slab, self.starts, self.sizes
        if self.kind(name).fields:
            raise KeyError(
                f"column '{name}' is {self.kind(name).spelling}: it has no bytes of its own"
            )
        return self._span(name)

    def stored_field(
        self, name: str | None
    ) -> tuple[Bytes, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """As `field`, of a stored column."""
        return self.field(None) if name is None else self._span(name)

    def with_format(self, format: str) -> "Batch":
        """The same records, handed out as `format`; see `Records.with_format`."""
        made = self.relabelled(self.indices)
        made.format, made._shown = checked(format), {}
        return made

    def to_arrow(self) -> "pa.Table":
        """Return the selected columns as a pyarrow table; plain records are one column, `record`.

        Numbers are not copied, except booleans and bf16. A file that was written from a table
        returns its types, nulls and metadata. For other files, columns with a shape have Arrow's
        tensor type, bytes are large_binary, text is string, no value is null, and the metadata of a
        field has its type, `ffrecord.type`: bf16, which Arrow lacks, is float32.

        Raises:
            ImportError: pyarrow is not installed.
            CorruptionError: a nested column, or the stored schema of Arrow, is damaged.
            ValueError: the files were written from tables with different types for equal values.
        """
        from ffrecord._tables.arrow_reading import table_of  # Few programs need it.

        return table_of(self)

    def stored(self) -> "Batch":
        """The same records with the columns as they are stored: a nested one is several."""
        return self.under(self.logical.raw)

    def under(self, logical: LogicalSchema) -> "Batch":
        """The same records as those of a sequence with this schema.

        It has the same stored columns, or more, that say which values are there.
        """
        if logical is self.logical:
            return self
        made = self.relabelled(self.indices)
        made._values, made._shown = {}, {}  # They may have another form.
        if logical.stored != self.logical.stored:
            known = frozenset(column.name for column in self.logical.stored)
            made._inner = widened(logical.stored, known, self._span, self._inner.status)
            made._schema = _ffrecord.Schema([column[:3] for column in logical.stored])
        made.logical = logical
        if self.columns == self.logical.names:
            made.columns = logical.names
        # As decoded in such a sequence: a value may be missing, so the column is no array.
        made._decoded = {
            name: list(values)
            if isinstance(values, np.ndarray) and name is not None and made.kind(name).nullable
            else values
            for name, values in self._decoded.items()
        }
        return made

    def nested(self, name: str) -> Kind | None:
        """The type of a nullable, ragged or nested column; None for others."""
        return self.logical.nested(name)

    def kind(self, name: str) -> Kind:
        """The type of a column, nested or not.

        Raises:
            KeyError: there is no such column.
        """
        return self.logical.kind(name)

    def missing(self, name: str) -> npt.NDArray[np.bool_] | None:
        """Where a nullable column has no value, shape (n,); None if it has one everywhere."""
        if not self.kind(name).nullable:
            return None
        valid = self._gather(f"{name}:valid")
        assert isinstance(valid, np.ndarray)
        found: npt.NDArray[np.bool_] = ~valid & (self._inner.status == 0)
        return found

    def values_of(self, name: str) -> Nested:
        """The values of a column end to end, with all that is in it.

        Raises:
            CorruptionError: its parts do not fit each other.
        """
        self._check_full(name)
        try:
            return Gathering(len(self), self._joined, self._fixed).values(name, self.kind(name))
        except ValueError as error:
            raise CorruptionError(f"a record is damaged: {error}") from None

    def plain(self, name: str) -> Values:
        """The values of one column of the file, not decoded."""
        return self._own(name)

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

    def apart(self) -> "Batch":
        """The same records, each in memory of its own: one that was read twice is there twice.

        For code that changes samples in place. Copies nothing if they are apart already, as columns
        of numbers always are. Decoded values stay as they are.
        """
        stored = self.logical.stored
        if stored and all(column.dtype is not None for column in stored):
            return self
        starts = np.sort(self.starts[self.sizes > 0])
        if (starts[1:] != starts[:-1]).all():
            return self
        data, offsets = self._packed_form()
        status = np.array(self._inner.status)
        sizes = np.diff(offsets)
        made = self._alike(
            _ffrecord.Batch.over(data, offsets[:-1], sizes, status, self._schema), self.indices
        )
        made._decoded, made._status, made.reasons = self._decoded, self._status, self.reasons
        return made

    def relabelled(self, indices: npt.NDArray[np.int64]) -> "Batch":
        """The same records under the indices of a view; with the arrays that were handed out."""
        made = self._alike(self._inner, indices)
        made._decoded, made._status, made.reasons = self._decoded, self._status, self.reasons
        made._values, made._shown = self._values, self._shown
        return made

    @staticmethod
    def joined(batches: "Sequence[Batch]", rows: npt.NDArray[np.int64]) -> "Batch":
        """Copy the records of several batches into one block; `rows[i]` is the row of the i-th.

        Arrays that were handed out are copied, too, for a program may have changed them. Requires
        batches of the same columns, and rows that are a permutation.
        """
        first = batches[0]
        block = np.concatenate([batch.data for batch in batches])
        sizes = np.concatenate([batch.sizes for batch in batches])
        order = np.argsort(rows)
        starts = np.cumsum(sizes) - sizes
        status = np.concatenate([batch.status for batch in batches])[order]
        inner = _ffrecord.Batch.over(block, starts[order], sizes[order], status, first._schema)
        made = first._alike(inner, np.arange(rows.size))
        made._decoded = {
            name: merged([each._decoded[name] for each in batches], order)
            for name in first._decoded
        }
        made._values = {
            name: merged([each._own(name) for each in batches], order)
            for name in dict.fromkeys(name for each in batches for name in each._values)
        }
        return made

    def only(self, names: Iterable[str]) -> "Batch":
        """The same records with only these columns selected."""
        wanted = tuple(names)
        for name in wanted:
            self.kind(name)
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
        if not self.logical.stored:
            return self._in_format(None)[key]
        column = self._column if self.format == "numpy" else self._in_format
        if not self.logical.is_flat:
            return {name: row_of(column(name), key) for name in self.columns}
        return {name: column(name)[key] for name in self.columns}

    def __iter__(self) -> Iterator[Sample]:
        if self.format == "arrow":
            whole = self.to_arrow()
            yield from (whole.slice(row, 1) for row in range(len(self)))
            return
        if not self.logical.stored:
            yield from self._in_format(None)
            return
        columns: Iterable[Iterable[Any]] = map(self._in_format, self.columns)
        if not self.logical.is_flat:
            columns = map(rows_of, columns)
        for values in zip(*columns, strict=True):
            yield dict(zip(self.columns, values, strict=True))

    def __repr__(self) -> str:
        what = f" of {', '.join(self.columns)}" if self.columns else ""
        return f"<ffrecord.Batch: {len(self)} records{what}>"

    def __reduce__(self) -> tuple[Any, ...]:
        data, offsets = self._packed_form()
        status = np.array(self.status)
        parts = (data, offsets, status, self.indices, self.logical, self.columns)
        return _restore, (*parts, dict(self._decoded), dict(self.reasons), self.format)

    def __copy__(self) -> Self:
        return self  # Nothing in it changes.

    def _packed_form(self) -> tuple[Bytes, npt.NDArray[np.int64]]:
        if self._packed is None:
            self._packed = self._inner.packed()
        return self._packed

    def _alike(self, inner: _ffrecord.Batch, indices: npt.NDArray[np.int64]) -> "Batch":
        return Batch(inner, indices, self._schema, self.logical, self.columns, self.format)

    def _in_format(self, name: str | None) -> Any:  # noqa: ANN401 - as the format has it
        """The values of a column, or the records for None, as they are handed out."""
        if self.format != "numpy" and name in self._shown:
            return self._shown[name]
        is_decoded = name in self._decoded
        if self.format == "arrow":
            from ffrecord._tables.arrow_reading import array_of  # Few programs need it.

            self._shown[name] = array_of(self, name)
            return self._shown[name]
        values = self.whole if name is None else self._column(name)
        if self.format == "numpy" or (self.format == "bytes" and is_decoded):
            return values
        kind = None if name is None or is_decoded else self.nested(name)
        if kind is not None:
            self._shown[name] = nested_converter(self.format)(values, kind)
            return self._shown[name]
        column = None if name is None or is_decoded else self.logical.column(name)
        self._shown[name] = converter(self.format)(values, column)
        return self._shown[name]

    def _column(self, name: str) -> Values:
        if name in self._decoded:
            return self._decoded[name]
        return self._own(name)

    def _own(self, name: str) -> Values:
        if name not in self._values:
            try:
                if self.logical.column(name).nested is not None:
                    made = as_numpy(self.values_of(name))
                else:
                    self._check_full(name)
                    made = self._gather(name)
            except UnicodeDecodeError as error:
                raise CorruptionError(f"column '{name}' is not UTF-8: {error}") from None
            self._values[name] = made
        return self._values[name]

    def _fixed(self, name: str) -> Values:
        """The values of a stored column, gathered once if it is a column of the user's."""
        column = self.logical.find(name)
        is_own = column is not None and column.nested is None
        return self._own(name) if is_own else self._gather(name)

    def _check_full(self, name: str) -> None:
        """Check that a column has no null where the file tells that it has none."""
        if name in self.logical.full:
            valid = self._gather(f"{name}:valid")
            if not (valid | (self._inner.status != 0)).all():
                raise CorruptionError(
                    f"column '{name}' has nulls, and the metadata {NULLS} of its file tell of "
                    "none: write the file again with other metadata"
                )

    def _joined(self, name: str) -> tuple[Bytes, npt.NDArray[np.int64]]:
        """The bytes of a column, all records' end to end, and where each ends: n + 1 offsets."""
        slab, starts, sizes = self._span(name)
        good = self._inner.status
        sizes = np.where(good == 0, sizes, 0)
        ends = np.zeros(len(self) + 1, np.int64)
        np.cumsum(sizes, out=ends[1:])
        block = np.empty(int(ends[-1]), np.uint8)
        _ffrecord.gather_spans(_Spans(slab, starts, sizes, good), ends[:-1], block)
        return block, ends

    def _span(self, name: str) -> tuple[Bytes, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Where the bytes of a stored column are."""
        return self.slab, *self._inner.column_spans(self.logical.number(name))

    def _gather(self, name: str) -> Values:
        """The values of a stored column."""
        number = self.logical.number(name)
        column = self.logical.stored[number]
        dtype = column.dtype
        if dtype is None:
            gather = self._inner.column_text if column.type == "utf8" else self._inner.column_views
            return gather(number)
        values = self._in_place(column) if len(self.logical.stored) == 1 else None
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
    logical: LogicalSchema,
    names: tuple[str, ...],
    decoded: Decoded,
    reasons: Mapping[int, str],
    format: Format,
) -> Batch:
    schema = _ffrecord.Schema([column[:3] for column in logical.stored])
    inner = _ffrecord.Batch.over(data, offsets[:-1], np.diff(offsets), status, schema)
    return Batch(inner, indices, schema, logical, names, format).with_decoded(decoded, reasons)


def _rows(values: Values, rows: npt.NDArray[np.int64]) -> Values:
    return values[rows] if isinstance(values, np.ndarray) else [values[row] for row in rows]


def _pinned(batch: Batch) -> Batch:
    """A copy of a batch in page-locked memory."""
    import torch  # Not without need: it is large.

    data, offsets = batch.data, batch.offsets
    locked = torch.from_numpy(np.require(data, requirements="W")).pin_memory().numpy()
    inner = _ffrecord.Batch.over(
        locked, offsets[:-1], np.diff(offsets), batch.status, batch.inner_schema
    )
    types = batch.inner_schema, batch.logical, batch.columns
    made = Batch(inner, batch.indices, *types, batch.format)
    locked_values = {
        name: torch.from_numpy(values).pin_memory().numpy() if _is_array(values) else values
        for name, values in batch.decoded.items()
    }
    return made.with_decoded(locked_values, batch.reasons)


def _is_array(values: Any) -> bool:  # noqa: ANN401 - a decoder's own
    return isinstance(values, np.ndarray)
