"""The decompressed content of a file (gzip, bzip2 or xz), read strictly forward to its very end.

Python's own modules ignore damaged data after the first stream of bzip2 or xz, and check a
stream's trailer only if the caller reads that far. Here both are errors, and `finish` reads that
far.
"""

import bz2
import io
import lzma
import re
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO

from ffrecord.errors import CorruptionError
from ffrecord.pack import _places
from ffrecord.pack._source import WHOLE

_PIECE_BYTES = 1 << 20
# Tapes and some copies are filled up with zeros.
_PADDING = b"\0"


class _Gzip:
    """zlib's decompressor with the interface of bz2's and lzma's. Checks header, CRC and size."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(16 + zlib.MAX_WBITS)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def needs_input(self) -> bool:
        return not self._inner.eof and not self._inner.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, max_length)


# All that is the same in each such file: a tar may begin with a name like BZh1.txt, and a TFRecord
# with the first two bytes of gzip, which are a length then.
_KINDS: tuple[tuple[re.Pattern[bytes], Callable[[], Any]], ...] = (
    (re.compile(rb"\x1f\x8b\x08"), _Gzip),
    (re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"), bz2.BZ2Decompressor),
    (re.compile(rb"\xfd7zXZ\0"), lzma.LZMADecompressor),
)
_MAGIC_BYTES_MAX = 10


class _Plain:
    """For uncompressed files: returns the same bytes."""

    eof, needs_input, unused_data = False, True, b""

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return data


class Stream(io.RawIOBase):
    """The content of an open file, decompressed if it is compressed; forward only.

    Every error of the compressed form is a CorruptionError that names the file, including streams
    that are truncated, damaged in their trailer, or followed by other data.
    """

    def __init__(self, file: BinaryIO, path: str, begin: int = 0, end: int = WHOLE) -> None:
        """Read the content of `file`, which is at its start; `path` is for messages.

        A part of a file, from `begin` to `end`, is one of a file that is known to be plain.
        """
        self._file = file
        self._path = path
        self._left_bytes = end - begin if end != WHOLE else 1 << 62
        if begin:
            file.seek(begin)
        self._fed = b"" if begin else self._raw(_MAGIC_BYTES_MAX)
        self._new: Callable[[], Any] = next(
            (new for magic, new in _KINDS if magic.match(self._fed)), _Plain
        )
        self._decompressor: Any = self._new()
        self._position = begin

    @property
    def is_compressed(self) -> bool:
        """Whether it is."""
        return self._new is not _Plain

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Forward only."""
        return True

    def tell(self) -> int:
        """Bytes of the content that were read."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to `offset`, reading everything before it."""
        if whence != io.SEEK_SET or offset < self._position:
            raise io.UnsupportedOperation(f"{self._path} can only be read forward")
        while self._position < offset and self.read(min(offset - self._position, _PIECE_BYTES)):
            pass
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill the start of `buffer`; 0 at the end, which was checked."""
        data = self._decompressed(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def read(self, size: int = -1) -> bytes:
        """`size` bytes, or fewer at the end, which was checked.

        Takes no more memory than it returns, so a wrong length in the file costs none.
        """
        if size < 0:
            size = 1 << 62
        pieces = []
        while size > 0 and (piece := self._decompressed(min(size, _PIECE_BYTES))):
            pieces.append(piece)
            size -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def finish(self) -> bool:
        """Read to the very end; return whether the rest is all zeros."""
        zeros = True
        while piece := self._decompressed(_PIECE_BYTES):
            zeros = zeros and piece.count(0) == len(piece)
        return zeros

    def _decompressed(self, size_max: int) -> bytes:
        """Up to `size_max` bytes; none only at the end."""
        try:
            while size_max > 0:
                if self._decompressor.eof and not self._begin_next():
                    return b""
                at_end = False
                if self._decompressor.needs_input and not self._fed:
                    self._fed = self._raw(_PIECE_BYTES)
                    at_end = not self._fed
                fed, self._fed = self._fed, b""
                if not self.is_compressed:
                    fed, self._fed = fed[:size_max], fed[size_max:]
                # At the end too: zlib may hold back what it has decompressed already.
                data: bytes = self._decompressor.decompress(fed, size_max)
                if data:
                    self._position += len(data)
                    return data
                if at_end and not self._decompressor.eof:
                    return self._end()
        except (zlib.error, lzma.LZMAError, EOFError, ValueError) as error:
            raise self._damaged(str(error)) from error
        except OSError as error:
            if error.errno is not None:  # Else it is bz2's word for damage.
                raise
            raise self._damaged(str(error)) from error
        return b""

    def _raw(self, size: int) -> bytes:
        """Bytes of the file as they are; an error names it, which those of a disk do not."""
        try:
            data = self._file.read(min(size, self._left_bytes))
            self._left_bytes -= len(data)
            return data
        except OSError as error:
            if error.filename is None and not _places.is_address(self._path):
                error.filename = self._path  # Stores name it.
            raise

    def _begin_next(self) -> bool:
        """Whether another stream follows; anything but that or padding is damage."""
        rest = self._decompressor.unused_data.lstrip(_PADDING)
        while not rest:
            if not (piece := self._raw(_PIECE_BYTES)):
                return False
            rest = piece.lstrip(_PADDING)
        self._decompressor, self._fed = self._new(), rest
        return True

    def _end(self) -> bytes:
        if self.is_compressed:
            raise self._damaged("its compressed data end early")
        return b""

    def _damaged(self, what: str) -> CorruptionError:
        return CorruptionError(f"{self._path} is damaged or truncated: {what}")


def open_stream(file: BinaryIO, path: str, begin: int = 0, end: int = WHOLE) -> io.BufferedReader:
    """The content of `file` as a buffered reader, for lines; see `Stream`."""
    return io.BufferedReader(Stream(file, path, begin, end), _PIECE_BYTES)
