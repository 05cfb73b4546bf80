"""Files under the names that code written for HFAiLab/ffrecord knows.

Errors are those that such code expects, and a fitting class as well: RuntimeError for data, range,
count and closed objects, AssertionError for files that are missing or badly named, TypeError for
arguments that are not paths. They are raised, not asserted: `python -O` changes nothing.
"""

import fcntl
import operator
import os
import struct
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ffrecord import _ffrecord
from ffrecord._base.closeable import Closing
from ffrecord._read.locations import expand
from ffrecord._read.reader import Reader
from ffrecord._tables.schema import Bytes
from ffrecord._tables.values import BytesLike, as_buffer
from ffrecord.errors import (
    BadArgumentError,
    ClosedError,
    CorruptionError,
    CountError,
    MissingError,
    PathTypeError,
    RangeError,
)

Path = str | os.PathLike[str]

_SUFFIX = ".ffr"
_IOCTL_CHECK_FS_ALIGN = 0x80046664
_V1_HEADER = struct.Struct("<Iq")


class FileReader(Closing):
    """Records of one file, of a folder's `*.ffr` or of a list, by index; a context manager.

    Version 1 and 2 alike. Opened at once; thread-safe; works in a child after a fork.
    """

    def __init__(self, fname: Path | Sequence[Path], check_data: bool = True) -> None:
        """Open the files.

        Raises:
            PathTypeError: `fname` is neither a path nor a list of paths.
            MissingError: a file is missing.
            BadArgumentError: the list is empty, or a name does not end in .ffr.
            CorruptionError: a file is damaged; the message names it.
        """
        self.fnames = _existing_files(fname)
        self.check_data = check_data
        self.source = Reader(self.fnames, check_data=check_data)
        len(self.source)  # Opens it: what is wrong shows here.

    @classmethod
    def over(cls, source: Reader) -> "FileReader":
        """Wrap an existing reader, whatever the names of its files."""
        reader = cls.__new__(cls)
        reader.fnames = list(source.where)
        reader.check_data = source.options["check_data"]
        reader.source = source
        return reader

    @property
    def n(self) -> int:
        """Number of records."""
        return len(self._opened())

    def read(self, indices: Iterable[int]) -> list[Bytes]:
        """Records in request order, each uint8 of shape (size,), writable, with its own memory.

        Args:
            indices: integers in [0, n), any number of them, any order; they may repeat.

        Raises:
            RangeError: an index is negative or too large; nothing was read.
            CorruptionError: a record fails its check; names file and index.
        """
        source = self._opened()
        wanted = [operator.index(index) for index in indices]
        count = len(source)
        if wanted and (min(wanted) < 0 or max(wanted) >= count):
            bad = next(index for index in wanted if not 0 <= index < count)
            raise RangeError(f"record index {bad} is out of range: there are {count} records")
        return owned(source.read(np.array(wanted, np.int64)).records())

    def read_one(self, index: int) -> Bytes:
        """The record `index`; see `read`."""
        return self.read([index])[0]

    def validate(self) -> None:
        """Read everything and check it.

        Raises:
            CorruptionError: the first record that fails its check; names file and index.
        """
        for _ in Reader(self._opened().where).batches():
            pass

    def get_offsets(self, file_index: int) -> npt.NDArray[np.int64]:
        """Where each record of a version 1 file begins, then the file's size: shape (n + 1,)."""
        path, count, size_bytes = self._table(file_index)
        offsets = np.fromfile(path, "<i8", count, offset=_V1_HEADER.size + 4 * count)
        return np.append(offsets, size_bytes).astype(np.int64)

    def get_checksums(self, file_index: int) -> npt.NDArray[np.uint32]:
        """CRC-32 of each record of a version 1 file, shape (n,)."""
        path, count, _ = self._table(file_index)
        return np.fromfile(path, "<u4", count, offset=_V1_HEADER.size).astype(np.uint32)

    def close(self) -> None:
        """Release the files. Idempotent; records that were read stay valid."""
        self.source.close()

    def __reduce__(self) -> tuple[Any, ...]:
        # Not the names as they were given: the process may have gone to another folder.
        return FileReader, (list(self.source.where), self.check_data)

    def __repr__(self) -> str:
        return f"<ffrecord.FileReader over {self.source!r}>"

    def _opened(self) -> Reader:
        if self.source.closed:
            raise ClosedError(f"{self!r} cannot be read: it is closed")
        return self.source

    def _table(self, file_index: int) -> tuple[str, int, int]:
        files = self._opened().files
        if not 0 <= file_index < len(files):
            raise RangeError(f"file {file_index} is out of range: there are {len(files)}")
        info = files[file_index]
        if info.format_version != 1:
            raise CountError(
                f"{info.name} is of version {info.format_version}: it has no such table"
            )
        with open(info.name, "rb") as file:
            header = file.read(_V1_HEADER.size)
            if len(header) < _V1_HEADER.size or _V1_HEADER.unpack(header)[1] != info.record_count:
                raise CorruptionError(f"{info.name} has changed since it was opened")
        return info.name, info.record_count, info.size_bytes


class FileWriter(Closing):
    """Writes a version 1 file of `n` records, byte for byte as HFAiLab/ffrecord 1.x does.

    Nothing is visible under the name before `close`, which replaces a file of that name. If an
    exception ends the `with` block, no file is left, and the exception passes through.
    """

    def __init__(self, fname: Path, n: int) -> None:
        """Start a file.

        Raises:
            PathTypeError: `fname` is not a path.
            BadArgumentError: the name does not end in .ffr.
            CountError: `n` is negative.
            OSError: the folder is missing or cannot be written.
        """
        if not isinstance(fname, str | os.PathLike):
            raise PathTypeError(f"expected a path, not {type(fname).__name__}")
        self.n = operator.index(n)
        self.count = 0
        if self.n < 0:
            raise CountError(f"{self.n} records were declared")
        self.fname = _with_suffix(os.fspath(fname))
        self._inner: _ffrecord.V1Writer | None = _ffrecord.V1Writer.create(
            os.fsencode(self.fname), self.n, replace=True
        )

    def write_one(self, buffer: BytesLike) -> None:
        """Add one record: all bytes of `buffer` in C order; a strided buffer is copied.

        Raises:
            CountError: `n` records are written already.
            OSError: the disk fails.
        """
        if self._inner is None:
            raise ClosedError(f"{self.fname} is closed")
        if self.count >= self.n:
            raise CountError(f"{self.fname}: {self.n} records were declared, this is one more")
        # A scalar of NumPy is a buffer, too, which upstream takes.
        self._inner.write(
            as_buffer(np.asarray(buffer) if isinstance(buffer, np.generic) else buffer)
        )
        self.count += 1

    def close(self) -> None:
        """Publish the file. Idempotent.

        Raises:
            CountError: records are missing; nothing is published.
            OSError: the disk fails; an earlier file of that name is untouched.
        """
        if self._inner is None:
            return
        if self.count != self.n:
            self._discard()
            raise CountError(f"{self.fname}: {self.n} records were declared, {self.count} written")
        inner, self._inner = self._inner, None
        inner.close()

    def _abandon(self) -> None:
        self._discard()

    def __repr__(self) -> str:
        return f"<ffrecord.FileWriter {self.fname!r}: {self.count} of {self.n} records>"

    def _discard(self) -> None:
        if self._inner is not None:
            self._inner.discard()
            self._inner = None


def checkFsAlign(fd: int) -> bool:
    """Whether the file system of `fd` asks for aligned requests, as 3FS does."""
    answer = bytearray(4)
    try:
        fcntl.ioctl(fd, _IOCTL_CHECK_FS_ALIGN, answer)
    except OSError:
        return False
    return int.from_bytes(answer, "little") == 1


def owned(records: Iterable[Bytes]) -> list[Bytes]:
    """Copies that are writable and do not depend on the batch."""
    return [record.copy() for record in records]


def _existing_files(fname: Path | Sequence[Path]) -> list[str]:
    if isinstance(fname, str | os.PathLike):
        name = os.fspath(fname)
        if not os.path.isdir(name):
            return [_checked(name)]
        try:
            return [os.fsdecode(path) for path in expand([name])]
        except FileNotFoundError as error:
            raise MissingError(*error.args) from None
    if not isinstance(fname, list | tuple) or not all(
        isinstance(name, str | os.PathLike) for name in fname
    ):
        raise PathTypeError(f"expected a path or a list of paths, not {type(fname).__name__}")
    if not fname:
        raise BadArgumentError("the list of .ffr files is empty")
    return [_checked(os.fspath(name)) for name in fname]


def _checked(name: str) -> str:
    if not os.path.isfile(name):
        what = "is not a file" if os.path.exists(name) else "does not exist"
        raise MissingError(f"{name} {what}")
    return _with_suffix(name)


def _with_suffix(name: str) -> str:
    if not name.endswith(_SUFFIX):
        raise BadArgumentError(f"{name} does not end in {_SUFFIX}")
    return name
