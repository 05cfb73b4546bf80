"""The records of one read."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self, overload

import numpy as np
import numpy.typing as npt

from ffrecord import _ffrecord
from ffrecord.schema import Column

Bytes = npt.NDArray[np.uint8]
# One record: its bytes, or, in a file with a schema, its values by column.
Sample = Bytes | dict[str, Any]
# All values of a column: numbers stacked, bytes and text as lists.
Values = npt.NDArray[Any] | list[Bytes] | list[str]


class Batch(Sequence[Sample]):
    """Records in request order, in one block of memory; arrays are views that keep it alive.

    `batch[i]` is a sample: uint8 of shape (size,), or, in a file with a schema, a dict with a value
    for each column. `batch["label"]` is a column, whole: an array of shape (n, *shape) for numbers
    (uint16 for bf16: its bits), a list of uint8 views for bytes, a list of str for utf8.
    `batch[2:5]` is a batch of these rows over the same block.

    The block as such comes in two forms. As it was read, in the order of the files: record i is
    `slab[starts[i] : starts[i] + sizes[i]]`. And in request order, without gaps:
    `data[offsets[i] : offsets[i + 1]]`; this form is free if the block lies so already, and copies
    it once if not. Every array speaks DLPack, as NumPy's do.
    """

    __slots__ = (
        "_columns",
        "_inner",
        "_packed",
        "_records",
        "_schema",
        "_values",
        "columns",
        "indices",
    )

    columns: tuple[str, ...]
    """Names of the columns in sight; empty if records are just bytes."""
    indices: npt.NDArray[np.int64]
    """The index of each record, shape (n,), never negative."""

    def __init__(
        self,
        inner: _ffrecord.Batch,
        indices: npt.NDArray[np.int64],
        schema: _ffrecord.Schema,
        columns: tuple[Column, ...],
        names: Iterable[str] | None = None,
    ) -> None:
        """Made by a `Reader`; not for callers."""
        self._inner = inner
        self._schema = schema
        self._columns = columns
        self._values: dict[str, Values] = {}
        self._packed: tuple[Bytes, npt.NDArray[np.int64]] | None = None
        self._records: list[Bytes] | None = None
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
        return self._inner.status

    @property
    def data(self) -> Bytes:
        """The records back to back in request order, uint8 of shape (total_bytes,)."""
        return self._packed_form()[0]

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """Where each record begins and the last ends in `data`, in bytes, shape (n + 1,)."""
        return self._packed_form()[1]

    @property
    def column_types(self) -> tuple[Column, ...]:
        """Name, type and shape of all columns, in sight or not."""
        return self._columns

    @property
    def inner_schema(self) -> _ffrecord.Schema:
        """The library's own schema, for who makes a batch of other memory."""
        return self._schema

    def pin_memory(self) -> "Batch":
        """A copy in page-locked memory, for torch's loader, which calls this; needs a GPU."""
        from ffrecord.torch.pinning import pinned

        return pinned(self)

    def records(self) -> list[Bytes]:
        """The bytes of each record, columns not told apart."""
        if self._records is None:
            self._records = self._inner.records()
        return self._records

    def select(self, rows: npt.ArrayLike) -> "Batch":
        """The rows `rows`, integers in [0, n), as a batch over the same block."""
        positions = np.asarray(rows, np.int64).reshape(-1)
        inner = self._inner.select(positions)
        indices = self.indices[positions]
        return Batch(inner, indices, self._schema, self._columns, self.columns)

    def relabelled(self, indices: npt.NDArray[np.int64]) -> "Batch":
        """The same records under the indices of a view."""
        return Batch(self._inner, indices, self._schema, self._columns, self.columns)

    @staticmethod
    def joined(batches: "Sequence[Batch]", rows: npt.NDArray[np.int64]) -> "Batch":
        """Records of several batches, copied into one block; `rows[i]` is where the i-th goes.

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
        """The same records, of which only these columns are in sight."""
        wanted = tuple(names)
        for name in wanted:
            self._number(name)
        return Batch(self._inner, self.indices, self._schema, self._columns, wanted)

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
            return self._column(key)
        if isinstance(key, slice):
            return self.select(np.arange(len(self), dtype=np.int64)[key])
        if not self._columns:
            return self.records()[key]
        return {name: self._column(name)[key] for name in self.columns}

    def __iter__(self) -> Iterator[Sample]:
        if not self._columns:
            yield from self.records()
            return
        for values in zip(*map(self._column, self.columns), strict=True):
            yield dict(zip(self.columns, values, strict=True))

    def __repr__(self) -> str:
        what = f" of {', '.join(self.columns)}" if self._columns else ""
        return f"<ffrecord.Batch: {len(self)} records{what}>"

    def __reduce__(self) -> tuple[Any, ...]:
        data, offsets = self._packed_form()
        columns = [tuple(column) for column in self._columns]
        status = np.array(self.status)
        return _restore, (data, offsets, status, self.indices, columns, self.columns)

    def __copy__(self) -> Self:
        return self  # Nothing in it changes.

    def _packed_form(self) -> tuple[Bytes, npt.NDArray[np.int64]]:
        if self._packed is None:
            self._packed = self._inner.packed()
        return self._packed

    def _column(self, name: str) -> Values:
        if name not in self._values:
            self._values[name] = self._gather(name)
        return self._values[name]

    def _number(self, name: str) -> int:
        for number, column in enumerate(self._columns):
            if column.name == name:
                return number
        known = ", ".join(column.name for column in self._columns)
        raise KeyError(f"no column '{name}'; there are {known or 'none: records are just bytes'}")

    def _gather(self, name: str) -> Values:
        number = self._number(name)
        column = self._columns[number]
        dtype = column.dtype
        if dtype is None:
            gather = self._inner.column_text if column.type == "utf8" else self._inner.column_views
            return gather(number)
        values = np.empty((len(self), *column.shape), dtype)
        self._inner.gather_fixed(number, values.reshape(-1).view(np.uint8))
        # Any byte may stand in a hostile file; NumPy's bool must be 0 or 1.
        return values.view(np.uint8) != 0 if column.type == "bool" else values


def _restore(
    data: Bytes,
    offsets: npt.NDArray[np.int64],
    status: npt.NDArray[np.uint8],
    indices: npt.NDArray[np.int64],
    columns: list[tuple[str, str, tuple[int, ...]]],
    names: tuple[str, ...],
) -> Batch:
    schema = _ffrecord.Schema(columns)
    inner = _ffrecord.Batch.over(data, offsets[:-1], np.diff(offsets), status, schema)
    return Batch(inner, indices, schema, tuple(Column(*column) for column in columns), names)
