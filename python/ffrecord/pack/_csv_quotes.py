"""Quotes in CSV: which texts a reader would join, or change, without a word."""

import io
import re

import numpy as np

_BOM = b"\xef\xbb\xbf"
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
        self._line = 0  # Of the byte in front of the rest.
        self._inside = False
        self._opened = 1
        self._is_first = True

    def take(self, data: bytes) -> None:
        """Look at the next bytes.

        Raises:
            ValueError: a field goes on behind its last quote; names the line.
        """
        if self._is_first and len(data):
            data, self._is_first = data.removeprefix(_BOM), False
        data = self._rest + data
        end = len(data.rstrip(b'"'))
        if end < 2:
            self._rest = data
            return
        if b'"' in data[:end]:
            self._look(data[: end + 1] if end < len(data) else data, end)
        self._line += data.count(b"\n", 0, end - 1)
        self._rest = data[end - 1 :]

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

    def _look(self, data: bytes, end: int) -> None:
        """Look at the bytes before `end`, the last of which is no quote; the first is known."""
        found = np.frombuffer(data, np.uint8)
        quotes = np.flatnonzero(found[1:end] == _QUOTE) + 1
        opening, closing = quotes[self._inside :: 2], quotes[not self._inside :: 2]
        before, after = found[opening - 1], found[closing + 1]
        begins = np.isin(before, self._around)
        if (begins | (before == _QUOTE)).all() and np.isin(after, self._around_or_quote).all():
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

    def _note(self, data: bytes, at: int) -> None:
        """Remember the line of a quote that begins a field."""
        self._opened = self._line + data.count(b"\n", 0, at)


class Checked:
    """A file whose quotes are checked while it is read."""

    closed = False

    def __init__(self, file: io.BufferedReader, quotes: Quotes) -> None:
        """Read that file."""
        self._file = file
        self._quotes: Quotes | None = quotes

    def read(self, size: int = -1) -> bytes:
        """The next bytes; ValueError as `Quotes`."""
        data = self._file.read(size)
        if self._quotes is not None:
            self._quotes.take(data)
            if not data:
                self._quotes.finish()
                self._quotes = None
        return data
