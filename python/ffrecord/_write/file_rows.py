"""Rows whose values are in files: what a `Writer` reads itself, without an object for a value."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ffrecord._tables.arrow_writing import Rows

Integers = npt.NDArray[np.int64]


class RowFile(NamedTuple):
    """A file that values are in."""

    path: bytes
    size_bytes: int = -1
    """As it was listed; -1 allows any version of the file."""
    modified_ns: int = 0
    """As it was listed, since the epoch."""


class FileRanges(NamedTuple):
    """The values of one stored column, row by row: ranges of files."""

    files: Integers
    """The number of the file in a list of files."""
    offsets: Integers
    """In bytes."""
    sizes: Integers
    """In bytes."""


class FileRows(NamedTuple):
    """Several rows."""

    columns: Sequence[Rows | FileRanges]
    """In the order of the schema."""
    files: Sequence[RowFile]

    @property
    def row_count(self) -> int:
        """How many they are."""
        column = self.columns[0]
        return len(column.files) if isinstance(column, FileRanges) else len(column)


def texts(values: Sequence[str]) -> Rows:
    """A column of text."""
    encoded = [value.encode() for value in values]
    return Rows(b"".join(encoded), _bounds([len(each) for each in encoded]))


def integers(values: Sequence[int]) -> Rows:
    """A column of i64."""
    return Rows(np.asarray(values, np.int64), _bounds([8] * len(values)))


def _bounds(sizes: Sequence[int]) -> Integers:
    return np.cumsum([0, *sizes], dtype=np.int64)
