"""Cutting one input into parts, at places where a reader can begin."""

from collections.abc import Callable, Iterable, Iterator
from io import BufferedReader
from typing import Any, NamedTuple

import numpy as np

from ffrecord.pack import _places
from ffrecord.pack._decompressed import Stream
from ffrecord.pack._source import WHOLE, Part

_PIECE_BYTES = 4 << 20
_NEWLINE = ord("\n")


class Mark(NamedTuple):
    """A place where an input can be cut."""

    place: int
    """In the source's own terms."""
    behind_bytes: int
    samples: int
    """Before it."""


def parts_between(marks: Iterable[Mark], size_bytes: int) -> list[Part]:
    """Parts that begin and end at marks and have at least this size; the last may be smaller.

    The first mark is the beginning of the input, the last one its end. The last part ends with
    WHOLE, so its reader looks at the end of the input, too.
    """
    found: list[Part] = []
    begin = last = None
    for last in marks:
        if begin is None:
            begin = last
        elif last.behind_bytes - begin.behind_bytes >= size_bytes:
            found.append(_between(begin, last))
            begin = last
    assert begin is not None
    assert last is not None
    if last.place > begin.place or not found:
        found.append(_between(begin, last))
    return [*found[:-1], found[-1]._replace(end=WHOLE)]


def _between(begin: Mark, end: Mark) -> Part:
    size_bytes = end.behind_bytes - begin.behind_bytes
    return Part(begin.place, end.place, size_bytes, begin.samples)


def is_plain(path: str) -> bool:
    """Whether a file is not compressed, so that it can be read from anywhere."""
    with _places.open_input(path) as file:
        return not Stream(file, path).is_compressed


def line_marks(
    path: str, size_bytes: int, suits: Callable[[bytes], bool] = lambda _: True
) -> Iterator[Mark]:
    """Ends of lines, one for each `size_bytes`; samples are lines with something in them.

    `suits` says of the first bytes after a mark whether a part may begin there.
    """
    with _places.open_input(path) as file:
        at = lines = 0
        while file.peek(1):
            yield Mark(at, at, lines)
            end = at + size_bytes
            while at < end or not suits(file.peek(4)[:4]):
                if not (data := lines_of(file, max(end - at, 1))):
                    break
                at += len(data)
                lines += lines_in(data)
        yield Mark(at, at, lines)


def lines_of(file: "BufferedReader[Any]", size_bytes: int) -> bytes:
    """Read whole lines, of this size or of some MiB."""
    data = file.read(min(size_bytes, _PIECE_BYTES))
    return data if data.endswith(b"\n") else data + file.readline()


def lines_in(data: bytes) -> int:
    """How many lines have something in them."""
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n")
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == _NEWLINE)
    is_cut_off = not data.endswith(b"\n") and data != b""
    return int(np.count_nonzero(np.diff(ends, prepend=-1) > 1)) + is_cut_off


def parts_of_lines(path: str, total_bytes: int, size_bytes: int) -> list[Part]:
    """Cut a file of lines, unless it is compressed."""
    if total_bytes <= size_bytes or not is_plain(path):
        return [Part(0, WHOLE, total_bytes)]
    return parts_between(line_marks(path, size_bytes), size_bytes)
