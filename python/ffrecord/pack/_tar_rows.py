"""Samples of a plain tar as rows whose contents the writer reads from it."""

import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ffrecord._tables.arrow_writing import Rows
from ffrecord._write.file_rows import FileRanges, FileRows, RowFile, integers, texts
from ffrecord.pack._source import InFiles, Progressed
from ffrecord.pack._tar_members import Member

# Samples that the writer gets in one call: between calls it tells how far it is, and Ctrl-C acts.
_ROWS_MAX, _BYTES_MAX = 256, 16 << 20
# The size of a number, or of the mark that says whether there is a value.
_SCALAR_BYTES = 8


class TarRows:
    """Samples that wait for the writer."""

    def __init__(self, path: str, columns: Mapping[str, str], lacks: frozenset[str]) -> None:
        """Take the columns of the tar; those in `lacks` may be null."""
        self._path = path
        self._columns = columns
        self._lacks = lacks
        self._samples: list[Mapping[str, Any]] = []
        self._size_bytes = 0

    def take(self, sample: Mapping[str, Any]) -> bool:
        """Add a sample; False if it has contents that were read, which the writer takes alone."""
        if any(isinstance(sample.get(name), bytes) for name in self._columns):
            return False
        self._samples.append(sample)
        self._size_bytes += sum(
            value.size_bytes for value in sample.values() if isinstance(value, Member)
        )
        return True

    @property
    def are_enough(self) -> bool:
        """Whether it is time for the writer."""
        return len(self._samples) >= _ROWS_MAX or self._size_bytes >= _BYTES_MAX

    def forget(self) -> int:
        """Drop them, which were given; return how many they were."""
        count, self._size_bytes = len(self._samples), 0
        self._samples = []
        return count

    def given(self, first: int, done_bytes: int) -> Iterator[Progressed]:
        """Yield them, if there are some; the first has that number."""
        if not self._samples:
            return
        columns: list[Rows | FileRanges] = []
        sizes = np.zeros(len(self._samples), np.int64)
        for name, kind in self._columns.items():
            values = [sample.get(name) for sample in self._samples]
            if name in self._lacks:
                is_there = np.array([value is not None for value in values])
                columns.append(Rows(is_there, np.arange(len(values) + 1)))
                sizes += _SCALAR_BYTES
            column, own_sizes = _column(kind, values)
            columns.append(column)
            sizes += own_sizes
        lacking = [
            frozenset(name for name in self._lacks if sample.get(name) is None)
            for sample in (self._samples if self._lacks else ())
        ]
        rows = FileRows(columns, [RowFile(os.fsencode(self._path))])
        yield InFiles(rows, sizes, first, lacking=lacking), done_bytes


def _column(kind: str, values: list[Any]) -> tuple[Rows | FileRanges, Any]:
    """A column, and the size of each value as `part_size_bytes` counts it."""
    if kind == "i64":
        return integers([value or 0 for value in values]), _SCALAR_BYTES
    if kind == "utf8":
        found = [value or "" for value in values]
        return texts(found), np.fromiter(map(len, found), np.int64)
    places = [(0, 0) if v is None else (v.offset_bytes, v.size_bytes) for v in values]
    offsets, sizes = np.array(places, np.int64).T
    numbers = np.zeros(len(values), np.int64)
    return FileRanges(numbers, np.ascontiguousarray(offsets), np.ascontiguousarray(sizes)), sizes
