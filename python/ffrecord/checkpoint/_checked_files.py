"""Plain files that others lay out, each with checksums of its blocks in a hidden file beside it.

`NAME` holds the bytes as they are, so any program can read it. `.NAME.sums` holds their size and
the XXH3 of each block, seeded with the number of the block, and its own XXH3 at the end. A file
appears whole and durable or not at all. A file without sums, such as one that another program
wrote, is read unchecked, with a warning.

Not for two writers of one path at once.
"""

import errno
import io
import os
import pathlib
import re
import secrets
import shutil
import struct
import warnings
from collections.abc import Iterator
from types import TracebackType
from typing import Any, NamedTuple

from ffrecord import _ffrecord
from ffrecord.errors import CorruptionError

Path = pathlib.Path

BLOCK_BYTES = 1 << 20
_HEAD = struct.Struct("<8sQQ")  # Magic, bytes of the file, bytes of a block.
_MAGIC = b"FFRSUMS1"
_SUM_BYTES = 8
_HIDDEN = re.compile(r"\..*\.(sums|part|removed)", re.DOTALL)
_CHUNK_BYTES = 1 << 30  # Of one system call; Linux moves less than 2 GiB.


def is_hidden(name: str) -> bool:
    """Whether files of that name are this module's own."""
    return _HIDDEN.fullmatch(name) is not None


def _beside(path: Path, kind: str) -> Path:
    return path.with_name(f".{path.name}.{kind}")


def _fresh(path: Path, kind: str) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.{kind}")


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Sums(NamedTuple):
    """What is known of a file's bytes."""

    size: int
    block_bytes: int
    blocks: bytes

    def encode(self) -> bytes:
        """The content of the hidden file."""
        body = _HEAD.pack(_MAGIC, self.size, self.block_bytes) + self.blocks
        return body + _ffrecord.block_checksums(body, len(body), 0)

    @classmethod
    def of(cls, path: Path) -> "Sums | None":
        """Those of the file at `path`; None if it has none."""
        where = _beside(path, "sums")
        try:
            content = where.read_bytes()
        except FileNotFoundError:
            return None
        body, own = content[:-_SUM_BYTES], content[-_SUM_BYTES:]
        if len(body) >= _HEAD.size and _ffrecord.block_checksums(body, len(body), 0) == own:
            magic, size, block_bytes = _HEAD.unpack_from(body)
            blocks = body[_HEAD.size :]
            if magic == _MAGIC and 0 < block_bytes <= 1 << 40:
                count = (size + block_bytes - 1) // block_bytes
                if len(blocks) == count * _SUM_BYTES:
                    return cls(size, block_bytes, blocks)
        raise CorruptionError(
            f"{where} is damaged: it holds the checksums of {path.name}. Restore both from a copy, "
            "or remove it to read the file unchecked"
        )

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
            "copy, or load an earlier checkpoint"
        )


class CheckedWriter(io.RawIOBase):
    """A file that appears at its path, durable and with its sums, when it is closed.

    After an exception within `with`, or if it is dropped unclosed, nothing appears.
    """

    def __init__(self, path: Path) -> None:
        """Begin; the folder must exist."""
        self._descriptor = -1
        if is_hidden(path.name):
            raise ValueError(f"{path}: names like .NAME.sums, .part and .removed are taken")
        self._path = path
        self._part = _fresh(path, "part")
        self._block = bytearray()
        self._sums = bytearray()
        self._size = 0
        self._descriptor = os.open(self._part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)

    def writable(self) -> bool:
        """Yes."""
        return True

    def write(self, data: Any) -> int:  # noqa: ANN401 - any buffer
        """Take all of it; whole blocks go to the file at once."""
        if self._descriptor < 0:
            raise ValueError(f"{self._path}: the file is closed")
        with memoryview(data) as given, given.cast("B") as view:
            begin = 0
            if self._block:
                begin = min(BLOCK_BYTES - len(self._block), len(view))
                self._block += view[:begin]
                if len(self._block) == BLOCK_BYTES:
                    self._append(memoryview(self._block))
                    self._block = bytearray()
            end = begin + (len(view) - begin) // BLOCK_BYTES * BLOCK_BYTES
            if end > begin:
                self._append(view[begin:end])
            self._block += view[end:]
            return len(view)

    def flush(self) -> None:
        """Do nothing: closing makes everything durable."""

    def close(self) -> None:
        """Make the file durable and let it appear."""
        if self._descriptor < 0:
            return
        try:
            if self._block:
                self._append(memoryview(self._block))
            os.fsync(self._descriptor)
            sums = Sums(self._size, BLOCK_BYTES, bytes(self._sums))
            _write_durably(_beside(self._part, "sums"), sums.encode())
            if self._path.is_dir():
                raise _occupied(self._part, self._path, errno.EISDIR)
            _place(self._part, self._path)
            sync_folder(self._path.parent)
        finally:
            self.abort()  # Of what has its place nothing is left to remove.

    def abort(self) -> None:
        """Leave nothing."""
        if self._descriptor < 0:
            return
        os.close(self._descriptor)
        self._descriptor = -1
        self._part.unlink(missing_ok=True)
        _beside(self._part, "sums").unlink(missing_ok=True)
        super().close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close, or leave nothing after an exception."""
        if kind is None:
            self.close()
        else:
            self.abort()

    def __del__(self) -> None:
        """Leave nothing of a file that nobody closed."""
        self.abort()

    def _append(self, blocks: memoryview) -> None:
        first = len(self._sums) // _SUM_BYTES
        self._sums += _ffrecord.block_checksums(blocks, BLOCK_BYTES, first)
        done = 0
        while done < len(blocks):
            done += os.write(self._descriptor, blocks[done : done + _CHUNK_BYTES])
        self._size += done


class CheckedReader(io.RawIOBase):
    """Reads a file at any position; a block that fails its checksum is a CorruptionError.

    Whole blocks go straight into the caller's buffer; a block of which only a part is asked is kept
    for the next read. For one thread.
    """

    def __init__(self, path: Path) -> None:
        """Open."""
        self._descriptor = -1
        self._path, self._position = path, 0
        self._descriptor, self._sums = _open(path)
        self._size = os.fstat(self._descriptor).st_size
        self._kept: tuple[int, bytearray] = (-1, bytearray())
        if self._sums is None:
            warnings.warn(f"{path} has no checksums: it is read unchecked", stacklevel=3)
        elif self._sums.size != self._size:
            raise CorruptionError(
                f"{path} has {self._size} bytes, but {self._sums.size} were written. Restore it "
                "from a copy, or load an earlier checkpoint"
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
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move; a position after the end is allowed, one before the beginning is not."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}
        if whence not in base:
            raise ValueError(f"whence is {whence}; it must be 0, 1 or 2")
        if base[whence] + offset < 0:
            raise ValueError(f"{self._path}: a seek to {base[whence] + offset}")
        self._position = base[whence] + offset
        return self._position

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - any buffer
        """Fill the buffer; less only at the end of the file."""
        if self._descriptor < 0:
            raise ValueError(f"{self._path}: the file is closed")
        with memoryview(buffer) as given, given.cast("B") as view:
            wanted = max(0, min(len(view), self._size - self._position))
            done = 0
            while done < wanted:
                # A part that an error's traceback held would keep the caller from freeing all.
                with view[done:wanted] as part:
                    done += self._read_some(part)
            return wanted

    def readall(self) -> bytes:
        """Everything from the position on."""
        into = bytearray(max(0, self._size - self._position))
        self.readinto(into)
        return bytes(into)

    def close(self) -> None:
        """Close."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        super().close()

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


def rename(source: Path, destination: Path) -> None:
    """Move a file or a folder to exactly that place; durable when it returns.

    A folder goes where nothing or an empty folder is, a file where nothing or a file is. Anything
    else is a FileExistsError, and nothing has changed. A folder moves in one step.
    """
    if destination.exists() and destination.is_dir() != source.is_dir():
        number = errno.EISDIR if destination.is_dir() else errno.ENOTDIR
        raise _occupied(source, destination, number)
    try:
        if source.is_dir():
            os.rename(source, destination)
        elif not (destination.exists() and source.samefile(destination)):
            _place(source, destination)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.EISDIR, errno.ENOTDIR):
            raise _occupied(source, destination, error.errno) from error
        if error.errno == errno.EXDEV:
            raise OSError(
                errno.EXDEV,
                f"{source} and {destination} are on two file systems: a move would not be one "
                "step. Keep the temporary folder beside the final one",
            ) from error
        raise
    for folder in {source.parent, destination.parent}:
        sync_folder(folder)


def remove_file(path: Path) -> None:
    """Remove a file and its sums."""
    path.unlink()
    _beside(path, "sums").unlink(missing_ok=True)
    sync_folder(path.parent)


def remove_folder(path: Path) -> None:
    """Remove a folder with all that is in it; it is gone in one step, even if this is killed."""
    os.listdir(path)  # It raises if this is no folder.
    aside = _fresh(path, "removed")
    path.rename(aside)
    sync_folder(path.parent)
    shutil.rmtree(aside)
    for left in path.parent.glob(f".{path.name}.*.removed"):  # Of calls that were killed.
        shutil.rmtree(left, ignore_errors=True)


def make_folder(path: Path, *, parents: bool) -> None:
    """Make a folder, durable; with `parents` those above too, and one that exists is fine."""
    if parents and not path.parent.exists():
        make_folder(path.parent, parents=True)
    path.mkdir(exist_ok=parents)
    sync_folder(path.parent)


def names_in(path: Path) -> list[str]:
    """The names in a folder, without this module's own."""
    return [name for name in os.listdir(path) if not is_hidden(name)]


class Verified(NamedTuple):
    """What `verify` found."""

    checked: int
    unchecked: list[str]
    damaged: dict[str, str]


def verify(folder: Path) -> Verified:
    """Read every file under a folder and compare it with its sums."""
    checked, unchecked, damaged = 0, [], {}
    for path in _files_under(folder):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with CheckedReader(path) as reader:
                    _read_through(reader)
                    is_checked = reader.is_checked
        except CorruptionError as error:
            damaged[str(path)] = str(error)
            continue
        if is_checked:
            checked += 1
        else:
            unchecked.append(str(path))
    return Verified(checked, unchecked, damaged)


def _read_through(reader: CheckedReader) -> None:
    buffer = bytearray(min(reader.size, 16 * BLOCK_BYTES))
    while reader.readinto(buffer):
        pass


def _files_under(folder: Path) -> Iterator[Path]:
    for where, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not is_hidden(name))
        yield from (Path(where, name) for name in sorted(names) if not is_hidden(name))


def _open(path: Path) -> tuple[int, Sums | None]:
    """The file and its own sums: both are read again if the file was replaced in between."""
    while True:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            sums = Sums.of(path)
            if os.path.samestat(os.stat(path), os.fstat(descriptor)):
                return descriptor, sums
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _write_durably(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _place(source: Path, destination: Path) -> None:
    """Rename a file with its sums.

    At every moment the destination has its own sums or none: of a kill here nothing is left that
    looks damaged.
    """
    old, new = _beside(destination, "sums"), _beside(source, "sums")
    replaces = destination.exists() or not new.exists()
    if replaces:
        old.unlink(missing_ok=True)
    else:
        os.replace(new, old)
    os.replace(source, destination)
    if replaces and new.exists():
        os.replace(new, old)


def _occupied(source: Path, destination: Path, number: int) -> FileExistsError:
    return FileExistsError(
        number,
        f"{source} does not replace {destination}: something is there. Remove that first if it "
        "is meant to go",
    )
