"""Reading in bounded memory: batches by size, in any order, damaged records included."""

import errno
import mmap
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

import ffrecord
from ffrecord import Batch, Reader
from ffrecord._cli.text import shown
from ffrecord._ffrecord import Permutation
from ffrecord._order.epoch_order import Indices
from ffrecord._tables.schema import Column

# One read takes so many records, or fewer that have so many bytes together.
_RECORDS_MAX, _BATCH_BYTES = 4096, 16 << 20


@contextmanager
def opened(where: Iterable[str], timeout_s: float) -> Iterator[Reader]:
    """The records of `where`, opened: errors are raised here."""
    with ffrecord.open(list(where), timeout_s=timeout_s) as reader:
        len(reader)
        yield reader


def selected(reader: Reader, names: Iterable[str]) -> tuple[Column, ...]:
    """The columns of these names, each once, in this order; all columns without names.

    Raises:
        ValueError: there is no such column.
    """
    logical, wanted = reader.logical, []
    for name in dict.fromkeys(names):
        if (found := logical.find(name)) is None:
            known = ", ".join(map(shown, logical.names)) or "none, the records are plain bytes"
            raise ValueError(f"{reader.where[0]} has no column '{shown(name)}'; columns: {known}")
        wanted.append(found)
    return tuple(wanted) or logical.columns


def steps(reader: Reader, pieces: Iterable[Indices]) -> Iterator[Indices]:
    """The indices cut so that the records of each step fit into memory; one always fits."""
    for piece in pieces:
        for first in range(0, piece.size, _RECORDS_MAX):
            indices = piece[first : first + _RECORDS_MAX]
            ends = np.cumsum(reader._sizes(indices))
            begin, behind = 0, 0
            while begin < indices.size:
                end = int(np.searchsorted(ends, behind + _BATCH_BYTES, "right"))
                end = max(end, begin + 1)
                yield indices[begin:end]
                begin, behind = end, int(ends[end - 1])


def batches(reader: Reader, pieces: Iterable[Indices], *, keep: bool = False) -> Iterator[Batch]:
    """Read the indices in their order.

    Args:
        reader: the records.
        pieces: indices, of shape (n,) each.
        keep: keep damaged records, empty and with their status.

    Raises:
        CorruptionError: a record is damaged, and not kept.
    """
    for indices in steps(reader, pieces):
        yield reader.read(indices, on_corrupt="keep" if keep else "raise")


def in_order(start: int, stop: int) -> Iterator[Indices]:
    """The indices [start, stop), some thousands at a time."""
    for first in range(start, stop, _RECORDS_MAX):
        yield np.arange(first, min(first + _RECORDS_MAX, stop), dtype=np.int64)


def shuffled(count: int, seed: int, most: int | None = None) -> Iterator[Indices]:
    """The indices [0, count) in the order of `seed`, or the first `most` of them.

    The order is a function: it takes no memory.
    """
    if count == 0:
        return
    order = Permutation(seed=seed, epoch=0, count=count)
    end = count if most is None else min(most, count)
    for first in range(0, end, _RECORDS_MAX):
        yield order.range(first, min(first + _RECORDS_MAX, end))


class Keys:
    """The keys of all records, by index, in a nameless temporary file; those of one file at a time.

    While a file's keys are copied they are in memory, those of other files are not.
    """

    def __init__(self, reader: Reader) -> None:
        """Copy the keys of all files.

        Raises:
            CorruptionError: a list of keys is damaged.
            OSError: the folder for temporary files is full.
        """
        try:
            self._copy(reader)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or error.filename is not None:
                raise
            folder = tempfile.gettempdir()
            why = f"{os.strerror(error.errno)} for a copy of the keys; name another with TMPDIR"
            raise OSError(error.errno, f"{folder}: {why}") from error

    def _copy(self, reader: Reader) -> None:
        count = len(reader)
        self.count = 0
        self._text = tempfile.TemporaryFile()  # noqa: SIM115 - closed with this object
        self._places = tempfile.TemporaryFile()  # noqa: SIM115
        self._spans: npt.NDArray[np.int64] | None = None
        inner, at = reader._open(), 0
        for number, file in enumerate(reader.files):
            keys = inner.keys(number)
            if not keys:
                continue
            if self._spans is None:
                # Not sparse: a full disk would end the process at a write to the mapping (SIGBUS).
                os.posix_fallocate(self._places.fileno(), 0, count * 16)
                space = mmap.mmap(self._places.fileno(), count * 16)
                self._spans = np.frombuffer(space, np.int64).reshape(count, 2)
            for index, key in keys:
                self._text.write(key)
                self._spans[file.first_index + index] = at, len(key)
                at += len(key)
            self.count += len(keys)
        self._text.flush()
        self._all = mmap.mmap(self._text.fileno(), at, access=mmap.ACCESS_READ) if at else b""

    def of(self, index: int) -> bytes | None:
        """The key of a record; None if it has none."""
        if self._spans is None:
            return None
        begin, size = self._spans[index].tolist()
        return self._all[begin : begin + size] if size else None

    def close(self) -> None:
        """Give the disk space back."""
        self._spans = None
        self._text.close()
        self._places.close()
