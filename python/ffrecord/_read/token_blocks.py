"""Blocks of tokens, cut on the fly from concatenated documents."""

import operator
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from ffrecord import _ffrecord
from ffrecord._base.process_start import is_spawning
from ffrecord._base.shared_memory import SharedArray
from ffrecord._order.epoch_order import Indices
from ffrecord._read.batch import CORRUPT, Batch
from ffrecord._read.choice import digest, positive
from ffrecord._read.records import Records, View
from ffrecord._tables.logical import LogicalSchema
from ffrecord._tables.schema import Column, parse
from ffrecord.decode._decoder import Field

_TYPES = {"u16": "<u2", "u32": "<u4", "i32": "<i4", "i64": "<i8"}
_NAMES = {"uint16": "u16", "uint32": "u32", "int32": "i32", "int64": "i64"}
# Records whose sizes, and blocks whose documents, are looked up at a time.
_STEP = 1 << 20
# Before the bytes of a column of any size, if another one follows.
_SIZE_BYTES = 4


class _Pieces(NamedTuple):
    """The parts of documents in blocks, in order; documents without tokens are left out."""

    row: Indices
    """The row of the block, among those that are wanted."""
    document: Indices
    offset: Indices
    """Place of its first token, in the document."""
    taken: Indices
    """Number of tokens."""
    place: Indices
    """Place of its first token, in the block."""


class TokenBlocks(View):
    """Blocks of a fixed number of tokens; a view, read and loaded like any other.

    A record of the source is a document. Documents are concatenated, and block i is the tokens
    [i * step, i * step + block) of that stream, where step is block - overlap, for every reader.
    Two binary searches in an index of 8 bytes per document find a block. The index is made from the
    index of the files at the first use, without reading a record, and is shared with processes that
    are being started. All documents of a batch are read in one submission, each once and whole.

        blocks = ffrecord.TokenBlocks(ffrecord.open("text.ffr"), 4096, dtype="u16")
        dataset = ffrecord.torch.Dataset(blocks)
    """

    def __init__(
        self,
        source: Records,
        block: int = 4096,
        *,
        dtype: str | None = None,
        column: str | None = None,
        overlap: int = 0,
        pad: int | None = None,
        boundaries: bool = False,
    ) -> None:
        """Define how to cut; nothing is opened yet.

        Args:
            source: each record is a document: its tokens, little-endian, as bytes or in one column.
            block: tokens per block.
            dtype: "u16", "u32", "i32" or "i64" (or "uint16" and so on): the type of a token, in the
                file and in a batch. Required for bytes; a column of numbers has its own type.
            column: the column with the tokens; None if records are plain bytes.
            overlap: tokens that a block shares with the next: 1 for inputs and targets in one.
            pad: token that fills the last block. None: leave the incomplete last block out.
            boundaries: also return the column `cu_seqlens`, i32: where each document begins in the
                block, from 0, and where the last ends; the end is repeated up to one width for all.

        Raises:
            ValueError: an argument is out of range; at first use, if the column holds no tokens.
            KeyError: at first use: there is no such column.
        """
        block, overlap = operator.index(block), operator.index(overlap)
        if block < 1 or not 0 <= overlap < block:
            raise ValueError(f"blocks of {block} tokens that share {overlap}: 0 <= overlap < block")
        name = _NAMES.get(dtype, dtype) if dtype is not None else None
        if name is not None and name not in _TYPES:
            raise ValueError(f"dtype is {dtype!r}; tokens are {', '.join(_TYPES)}")
        super().__init__(source)
        self.block = block
        self.column = column
        self.overlap = overlap
        self.pad = None if pad is None else operator.index(pad)
        self.boundaries = bool(boundaries)
        self._dtype = name
        self._index: SharedArray | None = None
        self._pieces_max: int | None = None

    @property
    def dtype(self) -> str:
        """The type of a token."""
        return self._tokens.type

    @property
    def logical(self) -> LogicalSchema:
        """The columns `tokens`, and `cu_seqlens` if requested."""
        tokens = Column("tokens", self.dtype, (self.block,))
        if not self.boundaries:
            return LogicalSchema((tokens,))
        bounds = Column("cu_seqlens", "i32", (self._documents_max() + 1,))
        return LogicalSchema((tokens, bounds))

    @property
    def fingerprint(self) -> str:
        """Covers the source, and how it is cut."""
        how = (self.block, self.dtype, self.column, self.overlap, self.pad, self.boundaries)
        return digest([self.source.fingerprint.encode(), repr(how).encode()])

    @property
    def token_count(self) -> int:
        """The statistics of all documents."""
        ends = self._ends()
        return int(ends[-1]) if ends.size else 0

    def __len__(self) -> int:
        beyond_first = self.token_count - self.block
        step = self.block - self.overlap
        if self.pad is None:
            return 0 if beyond_first < 0 else 1 + beyond_first // step
        return 0 if self.token_count == 0 else 1 - (-max(0, beyond_first) // step)

    def __repr__(self) -> str:
        return f"<ffrecord.TokenBlocks of {self.block} out of {self.source!r}>"

    def __getstate__(self) -> dict[str, Any]:
        state = {**vars(self), "_damaged": {}}
        for made in ("_tokens", "_made_schema"):
            state.pop(made, None)
        if not is_spawning():
            state["_index"] = None  # Its memory can be shared only with a process that begins.
        return state

    @cached_property
    def _tokens(self) -> "_TokenColumn":
        tokens = _token_column(self.source.logical, self.column, self._dtype)
        limits = np.iinfo(_TYPES[tokens.type])
        if self.pad is not None and not limits.min <= self.pad <= limits.max:
            raise ValueError(f"pad is {self.pad}, which is not a valid {tokens.type}")
        return tokens

    @cached_property
    def _made_schema(self) -> _ffrecord.Schema:
        return parse(self.schema)

    def _sizes(self, wanted: Indices) -> Indices:
        return np.full(wanted.size, sum(_width(column) for column in self.columns), np.int64)

    def _ends(self) -> npt.NDArray[np.int64]:
        """Where each document ends, in tokens of the stream."""
        if self._index is None:
            counts = np.full(len(self.source), self._tokens.each or 0, np.int64)
            if self._tokens.each is None:
                self._count(counts)
            self._index = SharedArray(np.cumsum(counts))
        return self._index.values

    def _count(self, counts: npt.NDArray[np.int64]) -> None:
        """Computes the tokens of each document from the size of its record."""
        tokens = self._tokens
        for first in range(0, counts.size, _STEP):
            wanted = np.arange(first, min(first + _STEP, counts.size), dtype=np.int64)
            # 0 is an entry that is damaged: the document is not there.
            sizes = np.maximum(self.source._sizes(wanted) - tokens.other_bytes, 0)
            counts[first : first + wanted.size], left = np.divmod(sizes, tokens.width)
            if left.any():
                row = int(np.flatnonzero(left)[0])
                raise ValueError(
                    f"record {first + row} has {sizes[row]} bytes of tokens, not a whole number of "
                    f"{tokens.type}; is dtype= another?"
                )

    def _documents_max(self) -> int:
        """The largest number of documents that any block has a part of."""
        if self._pieces_max is None:
            ends = self._ends()
            ends = ends[np.flatnonzero(np.diff(ends, prepend=0))]
            most, step = 1, self.block - self.overlap
            for first in range(0, len(self), _STEP):
                begins = np.arange(first, min(first + _STEP, len(self)), dtype=np.int64) * step
                stops = np.minimum(begins + self.block, self.token_count)
                inside = np.searchsorted(ends, stops, "left")
                inside -= np.searchsorted(ends, begins, "right")
                most = max(most, int(inside.max()) + 1)
            self._pieces_max = most
        return self._pieces_max

    def _pieces(self, blocks: Indices) -> _Pieces:
        ends = self._ends()
        begins = blocks * (self.block - self.overlap)
        stops = np.minimum(begins + self.block, self.token_count)
        first = np.searchsorted(ends, begins, "right")
        counts = np.searchsorted(ends, stops, "left") - first + 1
        row = np.repeat(np.arange(blocks.size), counts)
        document = np.arange(row.size) + np.repeat(first - (np.cumsum(counts) - counts), counts)
        document_begin = np.where(document > 0, ends[np.maximum(document - 1, 0)], 0)
        begin = np.maximum(begins[row], document_begin)
        taken = np.minimum(stops[row], ends[document]) - begin
        made = _Pieces(row, document, begin - document_begin, taken, begin - begins[row])
        return _Pieces(*(values[taken > 0] for values in made))

    def _read(self, wanted: Indices) -> Batch:
        blocks = positive(wanted, len(self))
        pieces = self._pieces(blocks)
        documents, at = np.unique(pieces.document, return_inverse=True)
        batch = self.source._read(documents)
        slab, starts, sizes = batch.stored_field(self._tokens.stored)
        width = self._tokens.width
        # A document that is shorter than the index tells is damaged as well, if that can be.
        ok = sizes[at] >= (pieces.offset + pieces.taken) * width
        found = np.where((batch.status[at] == 0) & ~ok, CORRUPT, batch.status[at]).astype(np.uint8)
        status = np.zeros(blocks.size, np.uint8)
        np.maximum.at(status, pieces.row, found)
        good = status[pieces.row] == 0
        spans = Field(
            slab,
            np.where(good, starts[at] + pieces.offset * width, 0),
            np.where(good, pieces.taken * width, 0),
            found,
            0,
            0,
            pieces.row,
        )
        return self._batch(blocks, pieces, spans, status)

    def _batch(
        self, blocks: Indices, pieces: _Pieces, spans: Field, status: npt.NDArray[np.uint8]
    ) -> Batch:
        logical = self.logical
        fields = [(column.name, column.dtype, column.shape) for column in logical.columns]
        rows = np.empty(blocks.size, np.dtype(fields))
        filled = np.bincount(pieces.row, pieces.taken, blocks.size).astype(np.int64)
        if status.any():
            rows[status != 0] = 0
        for row in np.flatnonzero(filled < self.block).tolist():  # At most the last block.
            rows["tokens"][row, filled[row] :] = self.pad
        block, stride = rows.view(np.uint8).reshape(-1), rows.dtype.itemsize
        places = pieces.row * stride + pieces.place * self._tokens.width
        _ffrecord.gather_spans(spans, places, block)
        values: dict[str, npt.NDArray[Any]] = {}
        if self.boundaries:
            values["cu_seqlens"] = self._bounds(pieces, filled)
            rows["cu_seqlens"] = values["cu_seqlens"]
        else:
            values["tokens"] = rows["tokens"]
        starts = np.arange(blocks.size, dtype=np.int64) * stride
        sizes = np.where(status == 0, stride, 0)
        inner = _ffrecord.Batch.over(block, starts, sizes, status, self._made_schema)
        made = Batch(inner, blocks, self._made_schema, logical)
        return made if status.any() else made.with_values(values)

    def _bounds(self, pieces: _Pieces, filled: Indices) -> npt.NDArray[np.int32]:
        bounds = np.empty((filled.size, self._documents_max() + 1), np.int32)
        bounds[:] = filled[:, None]
        first = np.searchsorted(pieces.row, np.arange(filled.size))
        bounds[pieces.row, np.arange(pieces.row.size) - first[pieces.row]] = pieces.place
        return bounds

    def _describe(self, index: int, status: int) -> str:
        return self._told(index, lambda document: self.source._describe(document, status))

    def _raise_for(self, index: int, status: int) -> NoReturn:
        documents = self._pieces(np.array([index])).document.tolist()
        for document in documents:
            if found := int(self.source._read(np.array([document])).status[0]):
                self.source._raise_for(document, found)
        self.source._raise_for(documents[0], status)

    def _told(self, index: int, tell: Callable[[int], str]) -> str:
        for document in self._pieces(np.array([index])).document.tolist():
            if self.source._read(np.array([document])).status[0]:
                return f"token block {index}: {tell(document)}"
        return f"token block {index}"


class _TokenColumn(NamedTuple):
    """The layout of tokens in a record."""

    type: str
    width: int
    """Size of a token, in bytes."""
    other_bytes: int
    """Bytes of a record that are no tokens."""
    each: int | None
    """Tokens of every record; None if the size of a record tells."""
    stored: str | None
    """The stored column that holds them; None if a record is tokens alone."""


def _token_column(logical: LogicalSchema, name: str | None, dtype: str | None) -> _TokenColumn:
    """Check that the column holds tokens, and that the size of a record gives their number."""
    if not logical.stored and name is not None:
        raise KeyError(f"no column '{name}': records are plain bytes")
    found = None if name is None else logical.find(name)
    if logical.stored and found is None:
        names = ", ".join(logical.names)
        raise KeyError(f"several columns may hold the tokens; set column= to one of {names}")
    held, stored = found or Column("", "bytes", ()), name
    kind = dtype if held.type == "bytes" else held.type
    if held.kind.type == "list" and held.kind.item.is_plain and not held.kind.nullable:
        kind = held.kind.item.column("").spelling
        stored = f"{name}[]:{kind}"
    what = "records" if found is None else f"column '{name}'"
    if kind is None:
        raise ValueError(f"{what} are bytes: set dtype= to one of {', '.join(_TYPES)}")
    if kind not in _TYPES or dtype not in (None, kind):
        raise ValueError(f"{what} is {held.spelling}, not tokens of {dtype or ', '.join(_TYPES)}")
    width = np.dtype(_TYPES[kind]).itemsize
    if held.dtype is not None:
        return _TokenColumn(kind, width, 0, _width(held) // width, stored)
    # Nothing tells of nulls in a list that has none, but for the size of no bytes.
    empty = f"{name}[]:valid"
    others = [column for column in logical.stored if column.name not in (stored, empty)]
    other_bytes = _SIZE_BYTES * any(column.name == empty for column in logical.stored)
    if varying := [column.name for column in others if column.dtype is None]:
        raise ValueError(
            f"{what} is beside '{varying[0]}', whose size varies: the index of the file has the "
            "size of a record, not of its columns. Write the tokens into a file of their own"
        )
    return _TokenColumn(kind, width, other_bytes + sum(map(_width, others)), None, stored)


def _width(column: Column) -> int:
    assert column.dtype is not None
    return int(np.prod(column.shape, dtype=np.int64)) * column.dtype.itemsize
