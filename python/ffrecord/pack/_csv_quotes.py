"""Quotes in CSV: where rows end, and which texts a reader would join, or change, without a word."""

import re
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

_BOM = b"\xef\xbb\xbf"
_OLD_END = re.compile(rb"\r[^\n]")  # Of rows that only this ends.
_ROW_BYTES_MAX = 64 << 20
_QUOTE, _NEWLINES = ord('"'), b"\r\n"


class Quotes:
    """Checks that each field that begins with a quote ends with one.

    Else all rows as far as the next quote, or the end of the file, are one value for a reader. A
    quote in a field that begins without one is text.
    """

    def __init__(self, path: str, delimiter: str) -> None:
        """Before the first byte."""
        self._path = path
        self._around = np.frombuffer(delimiter.encode() + _NEWLINES, np.uint8)
        self._begin = re.compile(rb'[%s\r\n]"' % re.escape(delimiter.encode()))
        self._rest = (
            b"\n"  # The byte before those to come, and quotes whose next byte is not known.
        )
        self._line = 0  # Line of the byte in front of the rest.
        self._inside = False
        self._opened = 1
        self._is_first = True
        self._at = -1  # Where the rest begins in the file.
        self._end = 0
        self._newline = 0  # The byte that ends rows, once one was seen.

    def take(self, data: bytes) -> int:
        """Look at the next bytes; return where the last row ends that is known to have ended.

        Raises:
            ValueError: a field goes on behind its last quote; names the line.
        """
        if self._is_first and data:
            self._is_first = False
            if data.startswith(_BOM):
                data, self._at = data[len(_BOM) :], self._at + len(_BOM)
        data = self._rest + data
        if not self._newline:
            self._newline = 10 if b"\n" in data[1:] else 13 if _OLD_END.search(data) else 0
        end = len(data.rstrip(b'"'))
        if end < 2:
            self._rest = data
            return self._end
        if b'"' in data[:end]:
            self._look(data[: end + 1] if end < len(data) else data, end)
        elif not self._inside:
            self._note_end(data, 1, end)
        self._line += data.count(b"\n", 0, end - 1)
        self._rest = data[end - 1 :]
        self._at += end - 1
        return self._end

    def finish(self) -> None:
        """Look at the last bytes.

        Raises:
            ValueError: as `take`, or a quote was never closed.
        """
        self.take(b"\n")
        if self._inside:
            raise ValueError(
                f"{self._path}, line {self._opened}: a field begins with a quote, and none ends it"
            )

    @property
    def place(self) -> str:
        """Where a row is that has not ended yet."""
        if self._inside:
            return f"line {self._opened}, from a quote on that is not closed"
        return f"line {self._line + 1}"

    def _look(self, data: bytes, end: int) -> None:
        """Look at the bytes before `end`, the last of which is no quote; the first is known."""
        found = np.frombuffer(data, np.uint8)
        quotes = np.flatnonzero(found[1:end] == _QUOTE) + 1
        opening, closing = quotes[self._inside :: 2], quotes[not self._inside :: 2]
        before, after = found[opening - 1], found[closing + 1]
        begins = np.isin(before, self._around)
        if (begins | (before == _QUOTE)).all() and np.isin(after, self._around_or_quote).all():
            newlines = np.flatnonzero(found[1:end] == self._newline) + 1
            outside = (np.searchsorted(quotes, newlines) + self._inside) % 2 == 0
            if self._newline and outside.any():
                self._end = self._at + int(newlines[outside][-1]) + 1
            self._inside ^= bool(len(quotes) % 2)
            if self._inside and begins.any():
                self._note(data, int(opening[begins][-1]))
        else:
            self._look_at_each(data, end)

    @property
    def _around_or_quote(self) -> np.ndarray:
        return np.append(self._around, np.uint8(_QUOTE))

    def _look_at_each(self, data: bytes, end: int) -> None:
        at = 1
        while at < end:
            if not self._inside:
                match = self._begin.search(data, at - 1, end)
                self._note_end(data, at, end if match is None else match.end())
                if match is None:
                    return
                self._inside, at = True, match.end()
                self._note(data, at - 1)
                continue
            at = data.find(b'"', at, end)
            if at < 0:
                return
            if data[at + 1] == _QUOTE:
                at += 2
                continue
            if data[at + 1] not in self._around:
                line = self._line + data.count(b"\n", 0, at)
                raise ValueError(
                    f"{self._path}, line {line}: a field that began with a quote in line "
                    f"{self._opened} goes on behind the quote that ends it: write quotes in a "
                    "quoted field twice"
                )
            self._inside, at = False, at + 1

    def _note_end(self, data: bytes, begin: int, end: int) -> None:
        """Remember the last end of a row in bytes that are in no quotes."""
        if self._newline and (found := data.rfind(self._newline, begin, end)) >= 0:
            self._end = self._at + found + 1

    def _note(self, data: bytes, at: int) -> None:
        """Remember the line of a quote that begins a field."""
        self._opened = self._line + data.count(b"\n", 0, at)


def blocks_of(file: BinaryIO, path: str, delimiter: str, size: int) -> Iterator[bytes]:
    """The content of a file in pieces of whole rows, of about that size; `Quotes` checks it."""
    quotes = Quotes(path, delimiter)
    rest, begin = bytearray(), 0
    while data := file.read(size):
        rest += data
        if (end := quotes.take(data)) > begin:
            yield bytes(rest[: end - begin])
            del rest[: end - begin]
            begin = end
        if len(rest) > _ROW_BYTES_MAX:
            raise ValueError(f"{path}, {quotes.place}: a row has more than {_ROW_BYTES_MAX} bytes")
    quotes.finish()
    if rest:
        yield bytes(rest)
