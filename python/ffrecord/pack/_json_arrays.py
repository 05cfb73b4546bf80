"""The elements of the arrays in one large JSON object, read one after the other.

Each comes with its place in the file, so that it can be read again: the whole is never in memory.
"""

import codecs
import json
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

from ffrecord.pack._json_types import ConflictingTypesError, float_of, object_of

_PIECE_BYTES = 1 << 20
# Bytes of one element, such as an annotation with a long outline.
_ELEMENT_BYTES_MAX = 64 << 20
_SPACE = " \t\n\r"
# Characters behind a value.
_BEHIND = _SPACE + ",]}:"


class NotJsonError(ValueError):
    """A file is no JSON object, or only the beginning of one."""


class Element(NamedTuple):
    """A value in an array; or of another field, all of it."""

    field: str
    value: Any
    begin: int
    size_bytes: int


def elements_of(file: BinaryIO) -> Iterator[Element]:
    """Each element of each array that is a field of the object, and each other field.

    Raises:
        NotJsonError: the file is no JSON object, or is damaged.
        ConflictingTypesError: an object has a key twice, or a number is too large.
    """
    text = _Text(file)
    text.take("{")
    seen: set[str] = set()
    while True:
        field = text.value().value
        if not isinstance(field, str):
            raise NotJsonError(f"a field is called {field!r:.40}")
        if field in seen:
            raise ConflictingTypesError(f"the key '{field:.40}' is there twice")
        seen.add(field)
        text.take(":")
        if text.peek() == "[":
            yield from _array(text, field)
        else:
            yield text.value(field)
        if text.take(",}") == "}":
            break
    if text.peek():
        raise NotJsonError("there is more behind its end")


def _array(text: "_Text", field: str) -> Iterator[Element]:
    text.take("[")
    if text.peek() == "]":
        text.take("]")
        return
    while True:
        yield text.value(field)
        if text.take(",]") == "]":
            return


class _Text:
    """The text of a file, of which a piece is in memory."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._parser = json.JSONDecoder(
            parse_constant=_refused, object_pairs_hook=object_of, parse_float=float_of
        )
        self._text = ""
        self._at = 0
        self._place = 0  # Place of the character at `_at`, in the file.
        self._is_whole = False

    def peek(self) -> str:
        """The next character that is no space; empty at the end."""
        while True:
            while self._at < len(self._text):
                if (found := self._text[self._at]) not in _SPACE:
                    return found
                self._skip(1, 1)
            if not self._more():
                return ""

    def take(self, wanted: str) -> str:
        """The next character, which must be one of these."""
        if (found := self.peek()) == "" or found not in wanted:
            raise NotJsonError(f"{found or 'its end'!r} where one of {wanted!r} should be")
        self._skip(1, 1)
        return found

    def value(self, field: str = "") -> Element:
        """The next value."""
        self.peek()
        while True:
            try:
                value, end = self._parser.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if len(self._text) - self._at > _ELEMENT_BYTES_MAX or not self._more():
                    raise NotJsonError(error.msg) from None
                continue
            # A number may go on behind the piece: 1.5 is 1 there.
            if self._text[end : end + 1] in _BEHIND and end < len(self._text):
                break
            if not self._more():
                break
        begin, taken = self._place, self._text[self._at : end]
        size_bytes = len(taken) if taken.isascii() else len(taken.encode())
        self._skip(len(taken), size_bytes)
        return Element(field, value, begin, size_bytes)

    def _skip(self, characters: int, size_bytes: int) -> None:
        self._at += characters
        self._place += size_bytes

    def _more(self) -> bool:
        """Read on; False at the end of the file."""
        if self._is_whole:
            return False
        read = self._file.read(max(_PIECE_BYTES, len(self._text) - self._at))
        self._is_whole = not read
        new = self._decoder.decode(read, final=self._is_whole)
        self._text, self._at = self._text[self._at :] + new, 0
        return not self._is_whole


def _refused(name: str) -> Any:  # noqa: ANN401
    raise NotJsonError(f"{name} is no number of JSON")
