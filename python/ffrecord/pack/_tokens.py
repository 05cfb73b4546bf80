"""Files of tokens: Megatron's `.bin` with its `.idx`, llm.c's, and those of nothing but tokens.

The index is that of `IndexedDataset` in megatron/core/datasets/indexed_dataset.py: a magic, the
version (u64), the type of tokens (u8), the counts of sequences and of bounds of documents (u64
each), then the size of each sequence (i32), where it begins in the `.bin` (i64), and the number of
the first sequence of each document, with that behind the last one (i64).
"""

import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from ffrecord._tables.formats import pyarrow
from ffrecord.errors import CorruptionError
from ffrecord.pack import _places
from ffrecord.pack._row_table import RowTable
from ffrecord.pack._source import SourceOptions

_MAGIC, _OLD_MAGIC = b"MMIDIDX\x00\x00", b"TNTIDX\x00\x00"
_HEAD = struct.Struct("<9sQBQQ")
# The codes of types in an index.
_CODES = {1: "u1", 2: "i1", 3: "i2", 4: "i4", 5: "i8", 6: "f8", 7: "f4", 8: "u2"}
# llm.c: the first of 256 integers of 32 bits, and the type of the tokens behind them; the third of
# the integers is how many.
_LLMC = {20240520: "u2", 20240801: "u4"}
_LLMC_BYTES = 1024
_TYPES = {"u16": "u2", "u32": "u4"}
# Tokens of a record, where nothing says where documents end.
_BLOCK = 1 << 16
_LOOK = 1 << 22


def is_tokens(path: str) -> bool:
    """By its name: plain tokens have no mark."""
    return path.endswith(".bin") and _places.is_file(path)


class TokenFile(RowTable):
    """A record for each document, whose tokens are a list of numbers of the file's type.

    A document of several sequences is a list of lists. Without an index, documents end with the
    token that `tokens` gives, or a record is as many tokens as a block has.
    """

    what = "file of tokens"
    meant = ("columns", "drop", "cast", "tokens")
    _sequences: npt.NDArray[np.int64] | None = None

    def __init__(self, path: str, options: SourceOptions) -> None:
        """Read the index; see `open_source` for arguments and errors."""
        self._index = f"{path[:-4]}.idx"
        self._has_index = _places.is_file(self._index)
        super().__init__(path, options)

    def arrow_schema(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        """One column, called tokens."""
        if self._has_index:
            self.files = (self.path, self._index)
            self._read_index()
        else:
            self._find_documents()
        self.row_count = len(self._documents) - 1
        pa = pyarrow()
        item = pa.field("item", pa.from_numpy_dtype(self._data.dtype), nullable=False)
        kind = pa.list_(item)
        if self._sequences is not None:
            kind = pa.list_(pa.field("item", kind, nullable=False))
        return pa.schema([pa.field("tokens", kind, nullable=False)])

    def read(self, names: list[str], begin: int, end: int) -> Any:  # noqa: ANN401
        """Return some documents."""
        pa = pyarrow()
        kind = self.found.field("tokens").type
        bounds = self._documents[begin : end + 1]
        if self._sequences is not None:
            inner = self._lists(kind.value_type, self._sequences[bounds[0] : bounds[-1] + 1])
            made = pa.ListArray.from_arrays(_offsets(bounds), inner, type=kind)
        else:
            made = self._lists(kind, bounds)
        return pa.table([made], schema=self.found)

    def _lists(self, kind: Any, bounds: npt.NDArray[np.int64]) -> Any:  # noqa: ANN401
        values = np.array(self._data[bounds[0] : bounds[-1]])
        return pyarrow().ListArray.from_arrays(_offsets(bounds), values, type=kind)

    def _read_index(self) -> None:
        with _places.open_input(self._index) as file:
            head = file.read(_HEAD.size)
        if head.startswith(_OLD_MAGIC):
            raise ValueError(f"{self._index} is of Megatron's old form: write it again with mmap")
        if len(head) < _HEAD.size or not head.startswith(_MAGIC):
            raise CorruptionError(f"{self._index} is no index of Megatron's, or truncated")
        if self.options.tokens:
            raise ValueError(f"{self.path} has an index, so --tokens does not apply to it")
        _, version, code, sequences, bounds = _HEAD.unpack(head)
        if version != 1 or code not in _CODES:
            raise ValueError(f"{self._index} has version {version} and tokens of type {code}")
        wanted = _HEAD.size + 12 * sequences + 8 * bounds
        size_bytes = _places.size_of(self._index)
        if size_bytes == wanted + sequences and sequences:
            raise ValueError(f"{self._index} has modes of sequences, which are not packed")
        if size_bytes != wanted:
            raise CorruptionError(f"{self._index} has {size_bytes} bytes, and needs {wanted}")
        raw = _places.array(self._index, np.uint8)[:]
        at = _HEAD.size + 4 * sequences
        sizes = raw[_HEAD.size : at].view("<i4").astype(np.int64)
        begins = raw[at : at + 8 * sequences].view("<i8")
        documents = raw[at + 8 * sequences :].view("<i8").astype(np.int64)
        self._data = self._mapped(_CODES[code])
        ends = np.concatenate([[0], np.cumsum(sizes)])
        if (sizes < 0).any() or (begins != ends[:-1] * self._data.itemsize).any():
            raise CorruptionError(f"{self._index}: sequences do not lie one behind the other")
        if ends[-1] != len(self._data):
            raise CorruptionError(
                f"{self.path} has {len(self._data)} tokens, and its index says {ends[-1]}"
            )
        is_sound = len(documents) and documents[0] == 0 and documents[-1] == sequences
        if not is_sound or (np.diff(documents) < 0).any():
            raise CorruptionError(f"{self._index}: documents do not have all sequences")
        self._documents = ends[documents]
        if (np.diff(documents) > 1).any():
            self._sequences, self._documents = ends, documents

    def _find_documents(self) -> None:
        """The form of a file without an index."""
        with _places.open_input(self.path) as file:
            head = file.read(_LLMC_BYTES)
        numbers = np.frombuffer(head[:12], "<i4") if len(head) == _LLMC_BYTES else [0, 0, 0]
        dtype = _LLMC.get(int(numbers[0]))
        asked = self.options.tokens
        said = _LLMC_BYTES + int(numbers[2]) * np.dtype(dtype or "u1").itemsize
        # Plain tokens may begin like a head, which fits the file only by chance.
        if dtype is not None and (asked is None or said == self.size_bytes):
            end = None if asked is None else self._end_asked(dtype)
            self._data = self._mapped(dtype, _LLMC_BYTES)
            if len(self._data) != numbers[2]:
                raise CorruptionError(
                    f"{self.path} has {len(self._data)} tokens, and its head says {numbers[2]}"
                )
        else:
            end = self._end_asked(None)
            self._data = self._mapped(_TYPES[self._kind_asked()])
        self._documents = self._ends(end)

    def _end_asked(self, dtype: str | None) -> int | None:
        """The token that ends documents, in a file whose head says that type, if it has one."""
        kind = self._kind_asked()
        if dtype is not None and _TYPES[kind] != dtype:
            raise ValueError(f"{self.path}: its head says u{8 * int(dtype[1:])}, and not {kind}")
        end = (self.options.tokens or "").partition(":")[2]
        if end and int(end) > np.iinfo(_TYPES[kind]).max:
            raise ValueError(f"{self.path}: {end} is no token of {kind}, so no document ends there")
        return int(end) if end else None

    def _kind_asked(self) -> str:
        kind, colon, end = (self.options.tokens or "").partition(":")
        if kind not in _TYPES or (colon and not end.isdecimal()):
            raise ValueError(
                f"{self.path} has no index (.idx) that says of which type its tokens are: give "
                "--tokens u16 or --tokens u32, with the token that ends a document behind a colon "
                "if there is one, such as u16:50256"
            )
        return kind

    def _mapped(self, kind: str, begin: int = 0) -> Any:  # noqa: ANN401 - of any type
        dtype = np.dtype(f"<{kind}")
        if (self.size_bytes - begin) % dtype.itemsize or self.size_bytes == begin:
            raise CorruptionError(
                f"{self.path} has {self.size_bytes} bytes, which are no whole tokens"
            )
        return _places.array(self.path, dtype, begin)

    def _ends(self, end: int | None) -> npt.NDArray[np.int64]:
        """Where records begin, and where the last one ends."""
        count = len(self._data)
        if end is None:
            return np.append(np.arange(0, count, _BLOCK), count)
        found = [np.zeros(1, np.int64)]
        for begin in range(0, count, _LOOK):
            found.append(np.flatnonzero(self._data[begin : begin + _LOOK] == end) + begin + 1)
        ends = np.concatenate(found)
        return ends if ends[-1] == count else np.append(ends, count)


def _offsets(bounds: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    made: npt.NDArray[np.int32] = (bounds - bounds[0]).astype(np.int32)
    return made
