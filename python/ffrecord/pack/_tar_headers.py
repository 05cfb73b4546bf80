"""Headers of plain tars, as most tars have them, without `tarfile`, which takes 30 us for each.

Whatever is not an ordinary file or folder under an ordinary header is left to `tarfile`.
"""

import os
from collections.abc import Iterator
from typing import NamedTuple

_BLOCK_BYTES = 512
_MAGICS = (b"ustar\x0000", b"ustar  \0")
_FILE, _OLD_FILE, _FOLDER = b"0", b"\0", b"5"
# Behind the magic: names of owners and numbers of devices; then a beginning of the name, if it is
# long, or what GNU tar knows of sparse files.
_PREFIX = 345
# So much is asked for before it is read, since a disk waits for each header else.
_AHEAD_BYTES = 8 << 20


class Header(NamedTuple):
    """A file in a tar."""

    name: str
    offset_bytes: int
    """Where the header begins; the content is behind it."""
    size_bytes: int

    @property
    def content_bytes(self) -> int:
        """Where the content begins."""
        return self.offset_bytes + _BLOCK_BYTES

    @property
    def end_bytes(self) -> int:
        """Where the next header is."""
        return self.content_bytes + -(-self.size_bytes // _BLOCK_BYTES) * _BLOCK_BYTES


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
            block = os.pread(self._descriptor, _BLOCK_BYTES, self.at)
            header = _ordinary(block, self.at)
            if header is None or header.content_bytes + header.size_bytes > self._size_bytes:
                return
            self.at = header.end_bytes
            if block[156:157] != _FOLDER:
                yield header


def _ordinary(block: bytes, at: int) -> Header | None:
    """The header of a file or a folder; None if it takes more to understand it."""
    kind = block[156:157]
    if len(block) < _BLOCK_BYTES:
        return None  # The tar was cut in its header.
    if block[257:265] not in _MAGICS or kind not in (_FILE, _OLD_FILE, _FOLDER) or block[_PREFIX]:
        return None
    name = block[:100].partition(b"\0")[0]
    try:
        size_bytes = int(block[124:136].rstrip(b" \0"), 8)
        check = int(block[148:156].strip(b" \0"), 8)
        text = name.decode()
    except ValueError:
        return None
    if check != sum(block) - sum(block[148:156]) + 8 * ord(" ") or size_bytes < 0 or not text:
        return None
    is_folder = kind == _FOLDER
    if (is_folder and size_bytes) or (not is_folder and text.endswith("/")):
        return None
    return Header(text, at, size_bytes)
