"""Plain files that others lay out, each with checksums of its blocks in a hidden file beside it.

`NAME` holds the bytes as they are, so any program can read it. `.NAME.sums` holds their size and
the XXH3 of each block, seeded with the number of the block, and its own XXH3 at the end. A file is
written as `.NAME.part`, which only one writer can hold, with its sums as `.NAME.next`; both get
their names when it is durable. So a file has sums at every moment: those that name its inode, or
after a copy of the folder those at its side. A file that another program wrote is read unchecked,
with a warning.
"""

import errno
import fcntl
import io
import os
import pathlib
import re
import stat
import struct
import sys
import warnings
from contextlib import suppress
from types import TracebackType
from typing import Any, NamedTuple

from ffrecord import _ffrecord
from ffrecord._base.folders import sync_folder
from ffrecord.errors import CorruptionError

Path = pathlib.Path

BLOCK_BYTES = 1 << 20
_HEAD = struct.Struct("<8sQQQ")  # Magic, bytes of the file, bytes of a block, the file's inode.
_MAGIC = b"FFRSUMS1"
_SUM_BYTES = 8
_HIDDEN = re.compile(r"\..*\.(sums|next|part|removed)", re.DOTALL)
_CHUNK_BYTES = 1 << 30  # Bytes of one system call; Linux moves less than 2 GiB.
_OPENINGS = 100  # Tries for a file that is replaced again and again.


def is_hidden(name: str) -> bool:
    """Whether files of that name are of these modules."""
    return _HIDDEN.fullmatch(name) is not None


def refuse_hidden(path: Path) -> None:
    """Raise if the name is one of these modules'."""
    if is_hidden(path.name):
        raise ValueError(f"{path}: names like .NAME.sums, .next, .part and .removed are taken")


def beside(path: Path, kind: str) -> Path:
    """The hidden name of that kind."""
    return path.with_name(f".{path.name}.{kind}")


def occupied(source: Path, destination: Path, number: int) -> FileExistsError:
    """The error for a place that is taken."""
    return FileExistsError(
        number,
        f"{source} does not replace {destination}: something is there. Remove that first if it "
        "is meant to go",
    )


class Sums(NamedTuple):
    """The known facts of a file's bytes."""

    size: int
    block_bytes: int
    inode: int
    blocks: bytes

    def encode(self) -> bytes:
        """The content of the hidden file."""
        body = _HEAD.pack(_MAGIC, self.size, self.block_bytes, self.inode) + self.blocks
        return body + _ffrecord.block_checksums(body, len(body), 0)

    @classmethod
    def read(cls, where: Path) -> "Sums | None":
        """Those in a hidden file, if it is there."""
        try:
            content = where.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                return None
            raise
        body, own = content[:-_SUM_BYTES], content[-_SUM_BYTES:]
        if len(body) >= _HEAD.size and _ffrecord.block_checksums(body, len(body), 0) == own:
            magic, size, block_bytes, inode = _HEAD.unpack_from(body)
            blocks = body[_HEAD.size :]
            if magic == _MAGIC and 0 < block_bytes <= 1 << 40:
                count = (size + block_bytes - 1) // block_bytes
                if len(blocks) == count * _SUM_BYTES:
                    return cls(size, block_bytes, inode, blocks)
        raise CorruptionError(
            f"{where} is damaged: it holds the checksums of the file beside it. Restore both from "
            "a copy, or remove it to read the file unchecked"
        )

    @classmethod
    def of(cls, path: Path, inode: int) -> "Sums | None":
        """Those of the file at `path` that has that inode; None if it has none.

        A writer renames `next` to `sums` when its file is there, so a reader that has opened that
        file and does not find one finds the other. A `next` that is no sums is being written, and
        its file is not there yet.
        """
        waiting: Sums | None = None
        with suppress(CorruptionError):
            waiting = cls.read(beside(path, "next"))
            if waiting is not None and waiting.inode == inode:
                return waiting
        return cls.read(beside(path, "sums")) or waiting

    def check(self, path: Path, first: int, data: memoryview) -> None:
        """Raise if `data`, whole blocks from number `first` on, is not what was written."""
        found = _ffrecord.block_checksums(data, self.block_bytes, first)
        expected = self.blocks[first * _SUM_BYTES :][: len(found)]
        if found == expected:
            return
        bad = next(i for i in range(0, len(found), _SUM_BYTES) if found[i:][:8] != expected[i:][:8])
        offset = (first + bad // _SUM_BYTES) * self.block_bytes
        raise CorruptionError(
            f"{path}: the block at offset {offset} fails its checksum. Restore the file from a "
            "copy, or load an earlier checkpoint; if another program wrote it, remove "
            f"{beside(path, 'sums').name}"
        )


class CheckedWriter(io.RawIOBase):
    """A file that appears at its path, durable and with its sums, when it is closed.

    After an exception, in a write or within `with`, or if it is dropped unclosed, nothing appears.
    A symbolic link is written through. For one thread.
    """

    def __init__(self, path: Path) -> None:
        """Begin; the folder must exist, and nobody else write there."""
        self._descriptor, self._pid, self._failed = -1, os.getpid(), False
        self._handled = sys.exc_info()[1]
        refuse_hidden(path)
        self._path = Path(os.path.realpath(path))
        if self._path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "is a folder", str(path))
        self._part = beside(self._path, "part")
        self._block, self._sums, self._size = bytearray(), bytearray(), 0
        self._descriptor = _hold(self._part)

    def writable(self) -> bool:
        """Yes."""
        return True

    def write(self, data: Any) -> int:  # noqa: ANN401 - any buffer
        """Take all of it; whole blocks go to the file at once."""
        if self._descriptor < 0 or self._failed:
            raise ValueError(f"{self._path}: the file is closed, or an earlier write failed")
        with memoryview(data) as given:
            if given.nbytes == 0:
                return 0
            self._failed = True
            with given.cast("B") as view:
                self._take(view)
            self._failed = False
            return given.nbytes

    def flush(self) -> None:
        """Do nothing: closing makes everything durable."""

    def close(self) -> None:
        """Make the file durable and let it appear.

        Raises:
            OSError: it cannot be written, or a write before failed; nothing has changed.
            RuntimeError: an exception that arose since the beginning is being handled, as in
                `finally: stream.close()`: what was written may be half. Use `with`.
        """
        if self._descriptor < 0:
            return
        try:
            if self._failed:
                raise OSError(errno.EIO, "a write failed before: nothing appears", str(self._path))
            if sys.exc_info()[1] not in (None, self._handled):
                raise RuntimeError(
                    f"{self._path} is closed while an exception is handled, and may be half "
                    "written: nothing appears. Use `with`"
                )
            self._finish()
        finally:
            self.abort()  # A file that has its place leaves nothing to remove.

    def abort(self) -> None:
        """Leave nothing."""
        if self._descriptor < 0:
            return
        if self._pid == os.getpid():  # A forked child's copy is the parent's business.
            with suppress(FileNotFoundError):
                if os.path.samestat(os.stat(self._part), os.fstat(self._descriptor)):
                    self._part.unlink()
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)
        super().close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close, or leave nothing after an exception."""
        if kind is None:
            self._handled = sys.exc_info()[1]
            self.close()
        else:
            self.abort()

    def __del__(self) -> None:
        """Leave nothing of a file that nobody closed."""
        self.abort()

    def _take(self, view: memoryview) -> None:
        begin = 0
        if self._block:
            begin = min(BLOCK_BYTES - len(self._block), len(view))
            self._block += view[:begin]
            if len(self._block) == BLOCK_BYTES:
                self._append(memoryview(self._block))
                self._block = bytearray()
        end = begin + (len(view) - begin) // BLOCK_BYTES * BLOCK_BYTES
        if end > begin:
            with view[begin:end] as blocks:
                self._append(blocks)
        self._block += view[end:]

    def _append(self, blocks: memoryview) -> None:
        done = 0
        while done < len(blocks):
            with blocks[done : done + _CHUNK_BYTES] as chunk:
                done += os.write(self._descriptor, chunk)
        first = len(self._sums) // _SUM_BYTES
        self._sums += _ffrecord.block_checksums(blocks, BLOCK_BYTES, first)
        self._size += done

    def _finish(self) -> None:
        if self._block:
            self._append(memoryview(self._block))
        os.fsync(self._descriptor)
        inode = os.fstat(self._descriptor).st_ino
        sums = Sums(self._size, BLOCK_BYTES, inode, bytes(self._sums))
        settle(self._path)
        _write_durably(beside(self._path, "next"), sums.encode())
        os.replace(self._part, self._path)
        os.replace(beside(self._path, "next"), beside(self._path, "sums"))
        sync_folder(self._path.parent)


class CheckedReader(io.RawIOBase):
    """Reads a file at any position; a block that fails its checksum is a CorruptionError.

    Whole blocks go straight into the caller's buffer; a block of which only a part is asked is kept
    for the next read. If an error that follows from damage leaves `with`, the CorruptionError
    leaves it instead: torch hides what a stream raises. For one thread.
    """

    def __init__(self, path: Path) -> None:
        """Open."""
        self._descriptor = -1
        self._path, self._position = Path(os.path.realpath(path)), 0
        self._descriptor, self._sums = _open(self._path)
        self._size = os.fstat(self._descriptor).st_size
        self._kept: tuple[int, bytearray] = (-1, bytearray())
        self._damage: CorruptionError | None = None
        if self._sums is None:
            warnings.warn(f"{path} has no checksums: it is read unchecked", stacklevel=3)
        elif self._sums.size != self._size:
            raise CorruptionError(
                f"{path} has {self._size} bytes, but {self._sums.size} were written. Restore it "
                "from a copy, or load an earlier checkpoint; if another program wrote it, remove "
                f"{beside(self._path, 'sums').name}"
            )

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._size

    @property
    def is_checked(self) -> bool:
        """Whether the file has checksums."""
        return self._sums is not None

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def tell(self) -> int:
        """The position of the next byte."""
        self._require_open()
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move; a position after the end is allowed, one before the beginning is not."""
        self._require_open()
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}
        if whence not in base:
            raise ValueError(f"whence is {whence}; it must be 0, 1 or 2")
        if base[whence] + offset < 0:
            raise ValueError(f"{self._path}: a seek to {base[whence] + offset}")
        self._position = base[whence] + offset
        return self._position

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - any buffer
        """Fill the buffer; less only at the end of the file."""
        self._require_open()
        with memoryview(buffer) as given:
            if given.nbytes == 0:
                return 0
            try:
                with given.cast("B") as view:
                    return self._fill(view)
            except CorruptionError as error:
                self._damage = error
                raise

    def readall(self) -> bytes:
        """Everything from the position on."""
        self._require_open()
        if (left := self._size - self._position) <= 0:
            return b""
        whole = io.BytesIO()  # Its bytes can be filled, and then had without a copy.
        whole.seek(left - 1)
        whole.write(b"\0")
        with whole.getbuffer() as view:
            self.readinto(view)
        return whole.getvalue()

    def close(self) -> None:
        """Close."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)
        super().close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close; raise the damage that hides behind another error."""
        self.close()
        if self._damage is not None and isinstance(error, Exception) and error is not self._damage:
            raise self._damage from error

    def _require_open(self) -> None:
        if self._descriptor < 0:
            raise ValueError(f"{self._path}: the file is closed")

    def _fill(self, view: memoryview) -> int:
        wanted = max(0, min(len(view), self._size - self._position))
        done = 0
        while done < wanted:
            # A part that an error's traceback held would keep the caller from freeing all.
            with view[done:wanted] as part:
                done += self._read_some(part)
        return wanted

    def _read_some(self, view: memoryview) -> int:
        if self._sums is None:
            self._read_at(self._position, view)
            self._position += len(view)
            return len(view)
        block_bytes = self._sums.block_bytes
        number, skipped = divmod(self._position, block_bytes)
        ends = self._position + len(view) == self._size
        whole = len(view) if ends else len(view) // block_bytes * block_bytes
        if skipped == 0 and whole > 0:
            with view[:whole] as blocks:
                self._read_at(self._position, blocks)
                self._sums.check(self._path, number, blocks)
        else:
            block = self._block(number, self._sums)
            whole = min(len(view), len(block) - skipped)
            view[:whole] = memoryview(block)[skipped : skipped + whole]
        self._position += whole
        return whole

    def _block(self, number: int, sums: Sums) -> bytearray:
        if self._kept[0] != number:
            begin = number * sums.block_bytes
            block = bytearray(min(sums.block_bytes, self._size - begin))
            self._read_at(begin, memoryview(block))
            sums.check(self._path, number, memoryview(block))
            self._kept = (number, block)
        return self._kept[1]

    def _read_at(self, offset: int, view: memoryview) -> None:
        done = 0
        while done < len(view):
            with view[done : done + _CHUNK_BYTES] as piece:
                count = os.preadv(self._descriptor, [piece], offset + done)
            if count == 0:
                raise CorruptionError(f"{self._path} was cut to {offset + done} bytes while read")
            done += count


def settle(path: Path) -> None:
    """Finish what a killed writer of `path` began: only sums of the file that is there stay."""
    waiting = beside(path, "next")
    try:
        sums = Sums.read(waiting)
    except CorruptionError:  # It was being written, so the file is the one before.
        sums = None
    if sums is not None and path.exists() and path.stat().st_ino == sums.inode:
        os.replace(waiting, beside(path, "sums"))
    else:
        waiting.unlink(missing_ok=True)


def _open(path: Path) -> tuple[int, Sums | None]:
    """The file and its own sums: both are read again if the file was replaced in between."""
    for left in reversed(range(_OPENINGS)):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            opened = os.fstat(descriptor)
            if not stat.S_ISREG(opened.st_mode):
                raise IsADirectoryError(errno.EISDIR, "is no regular file", str(path))
            sums = Sums.of(path, opened.st_ino)
            if left == 0 or os.path.samestat(os.stat(path), opened):
                return descriptor, sums
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    raise AssertionError


def _hold(part: Path) -> int:
    """The part file, empty and this writer's alone; one that a killed writer left is used again."""
    while True:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            _lock(descriptor, part)
            with suppress(FileNotFoundError):  # Its holder gave it its name, or removed it.
                if os.path.samestat(os.stat(part), os.fstat(descriptor)):
                    os.ftruncate(descriptor, 0)
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _lock(descriptor: int, part: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BlockingIOError(
            errno.EWOULDBLOCK, "another writer has begun this file", str(part)
        ) from None
    except OSError as error:  # A mount without locks: there each path has one writer by contract.
        if error.errno not in (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK, errno.EINVAL):
            raise


def _write_durably(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        with memoryview(content) as view:
            done = 0
            while done < len(view):
                done += os.write(descriptor, view[done:])
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
