"""Headers of plain tars, as most tars have them, without `tarfile`, which takes 30 us for each.

Whatever is not an ordinary file or folder under an ordinary header, with a long name or a pax
header before it at most, is left to `tarfile`.
"""

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

_BLOCK_BYTES = 512
_MAGICS = (b"ustar\x0000", b"ustar  \0")
_FILE, _OLD_FILE, _FOLDER = b"0", b"\0", b"5"
# Kinds of headers before that of a file: pax records of it, or its name if that is long.
_PAX, _LONG_NAME = b"x", b"L"
_ABOUT_BYTES_MAX = 1 << 16
# Behind the magic: names of owners and numbers of devices; then a beginning of the name, if it is
# long, or what GNU tar knows of sparse files.
_PREFIX = 345
# Keys of pax records, beside path and size, that say nothing about where and how contents are.
_OTHER_KEYS = re.compile(rb"[acm]time|[ug]id|[ug]name|comment|(SCHILY|LIBARCHIVE|RHT)\..*")
# A record: its size in all, a key, a value.
_RECORD = re.compile(rb"([1-9][0-9]{0,5}) ([^=\n]+)=")
# So much is asked for before it is read, since a disk waits for each header else.
_AHEAD_BYTES = 8 << 20


class Header(NamedTuple):
    """A file or folder in a tar."""

    name: str
    offset_bytes: int
    """Where the first header that belongs to it begins."""
    content_bytes: int
    """Where its content begins."""
    size_bytes: int
    is_folder: bool

    @property
    def end_bytes(self) -> int:
        """Where the next header is."""
        return self.content_bytes + _blocks(self.size_bytes)


class _Said(NamedTuple):
    """The facts about a file that stand before its header."""

    name: str | None = None
    size_bytes: int | None = None


class Headers:
    """Iterates over files from a place on, until `end`, or a header that is not ordinary."""

    def __init__(self, descriptor: int, begin: int, end: int, *, reads_contents: bool) -> None:
        """Take an open file, which may not grow meanwhile; `end` below 0 is its end."""
        self._descriptor = descriptor
        self._size_bytes = os.fstat(descriptor).st_size
        self._end = end if end >= 0 else self._size_bytes
        self._reads_contents = reads_contents
        self.at = begin
        """All headers before this place were read."""

    def __iter__(self) -> Iterator[Header]:
        """Yield them."""
        asked = self.at
        while self.at < self._end:
            if self._reads_contents and self.at >= asked:
                size_bytes = 2 * _AHEAD_BYTES
                os.posix_fadvise(self._descriptor, self.at, size_bytes, os.POSIX_FADV_WILLNEED)
                asked = self.at + _AHEAD_BYTES
            header = self._next()
            if header is None or header.content_bytes + header.size_bytes > self._size_bytes:
                return
            self.at = header.end_bytes
            if not header.is_folder:
                yield header

    def _next(self) -> Header | None:
        """The next one; None if it takes more to understand it."""
        # With records of one block, which is what pax headers mostly have.
        read = os.pread(self._descriptor, 3 * _BLOCK_BYTES, self.at)
        block, said, begin = read[:_BLOCK_BYTES], _Said(), 0
        if block[156:157] in (_PAX, _LONG_NAME):
            size_bytes = _size_in(block)
            if size_bytes is None or not 0 < size_bytes <= _ABOUT_BYTES_MAX:
                return None
            begin = _BLOCK_BYTES + _blocks(size_bytes)
            if begin + _BLOCK_BYTES > len(read):
                read = os.pread(self._descriptor, begin + _BLOCK_BYTES, self.at)
            about = read[_BLOCK_BYTES : _BLOCK_BYTES + size_bytes]
            found = _said_by_pax(about) if block[156:157] == _PAX else _said_by_gnu(about)
            if found is None:
                return None
            block, said = read[begin : begin + _BLOCK_BYTES], found
        return _ordinary(block, said, self.at, begin)


def _blocks(size_bytes: int) -> int:
    """The bytes of whole blocks."""
    return -(-size_bytes // _BLOCK_BYTES) * _BLOCK_BYTES


def _size_in(block: bytes) -> int | None:
    """The size in a header; None if that is not ordinary, or its checksum is wrong."""
    if len(block) < _BLOCK_BYTES or block[257:265] not in _MAGICS:
        return None  # The tar was cut in its header, for example.
    try:
        size_bytes = int(block[124:136].rstrip(b" \0"), 8)
        check = int(block[148:156].strip(b" \0"), 8)
    except ValueError:
        return None
    is_whole = check == sum(block) - sum(block[148:156]) + 8 * ord(" ")
    return size_bytes if is_whole and size_bytes >= 0 else None


def _said_by_gnu(about: bytes) -> _Said | None:
    return None if (name := _text(about.partition(b"\0")[0])) is None else _Said(name)


def _said_by_pax(about: bytes) -> _Said | None:
    """The facts in pax records; None if one is not known here, or they are damaged."""
    said, at = _Said(), 0
    while at < len(about):
        if (record := _RECORD.match(about, at)) is None:
            return None
        end = at + int(record[1])
        value = about[record.end() : end - 1]
        if about[end - 1 : end] != b"\n" or end <= record.end():
            return None
        if record[2] == b"path":
            if (name := _text(value)) is None:
                return None
            said = said._replace(name=name)
        elif record[2] == b"size":
            if not value.isdigit() or len(value) > 18:
                return None
            said = said._replace(size_bytes=int(value))
        elif not _OTHER_KEYS.fullmatch(record[2]):
            return None
        at = end
    return said


def _text(name: bytes) -> str | None:
    """A name; None if there is none, or it is not UTF-8."""
    try:
        return name.decode() or None
    except UnicodeDecodeError:
        return None


def _ordinary(block: bytes, said: _Said, at: int, begin: int) -> Header | None:
    """The file or folder whose own header is at `at + begin`; None if it is not ordinary."""
    kind, size_bytes = block[156:157], _size_in(block)
    if size_bytes is None or kind not in (_FILE, _OLD_FILE, _FOLDER) or block[_PREFIX]:
        return None
    own = _text(block[:100].partition(b"\0")[0])
    name = own if said.name is None else said.name
    if said.size_bytes is not None:
        size_bytes = said.size_bytes
    is_folder = kind == _FOLDER
    if own is None or name is None or (is_folder and size_bytes):
        return None
    # In the first format of tars, a folder is a file whose own name ends with a slash.
    if not is_folder and (name.endswith("/") or (kind == _OLD_FILE and own.endswith("/"))):
        return None
    return Header(name, at, at + begin + _BLOCK_BYTES, size_bytes, is_folder)
