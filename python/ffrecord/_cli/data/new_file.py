"""A file that gets its name only when it is complete."""

import errno
import io
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from ffrecord import Reader
from ffrecord._base.folders import sync_folder
from ffrecord._write.new_folder import is_replaced, partial_folder
from ffrecord.errors import ConflictError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def check_vacant_file(path: Path, overwrite: bool) -> None:
    """Check that a file of that name may be written.

    Raises:
        ConflictError: there is a file, and it may not be replaced; or a folder, link or device.
        FileNotFoundError: its folder does not exist.
        PermissionError: nothing may be written there.
    """
    if path.is_dir():
        raise ConflictError(errno.EISDIR, f"{path} is a folder; choose another name")
    if not is_replaced(path, overwrite):
        return
    if not path.is_file():  # Such as /dev/null, which would be a file from then on.
        raise ConflictError(errno.EEXIST, f"{path} is no plain file: it is not replaced")


def check_no_source(path: Path, reader: Reader) -> None:
    """Check that a file that would be replaced is none of those that are read.

    Raises:
        ValueError: it is: its records would be lost.
    """
    for file in reader.files:
        with suppress(OSError):  # One of them is in a store, or not there yet.
            if os.path.samefile(file.name, path):
                raise ValueError(f"{path} is a file that is read; choose another name")


class _Named(io.FileIO):
    """A file whose errors name it, by the name that it will have."""

    def __init__(self, file: int | Path, mode: str, shown: Path) -> None:
        super().__init__(file, mode)
        self._shown = shown

    def write(self, data: "ReadableBuffer") -> int:
        try:
            return super().write(data)
        except OSError as error:
            error.filename = str(self._shown)
            raise


def named_file(path: Path, shown: Path) -> BinaryIO:
    """A new file to write; an error names `shown`."""
    return io.BufferedWriter(_Named(path, "xb", shown))


@contextmanager
def new_file(path: Path, overwrite: bool) -> Iterator[BinaryIO]:
    """Publish a file as `path`, synced to the disk, at the end of the block.

    An exception leaves nothing behind, and where the file system has nameless files, neither does a
    kill; elsewhere the next run on this host with the same `path` removes what a kill has left.

    Raises:
        ConflictError: see `check_vacant_file`.
        OSError: it cannot be made, or not be synced.
    """
    check_vacant_file(path, overwrite)
    descriptor = _nameless(path.parent)
    with ExitStack() as stack:
        source = f"/proc/self/fd/{descriptor}"
        if descriptor is None:
            source = str(stack.enter_context(partial_folder(path)) / "complete")
            descriptor = os.open(source, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with io.BufferedWriter(_Named(descriptor, "wb", path)) as file:
            yield file
            file.flush()
            os.fsync(descriptor)
            _name(source, path, overwrite)
    sync_folder(path.parent)


def _nameless(folder: Path) -> int | None:
    """A new file without a name; None where the file system has no such files."""
    try:
        return os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL):
            raise
    return None


def _name(source: str, path: Path, overwrite: bool) -> None:
    """Give the file its name; another file of that name is replaced at once, or not at all."""
    if not overwrite:
        try:
            _link(source, path)
        except FileExistsError:
            message = f"{path} has appeared meanwhile; it was left as it is"
            raise ConflictError(errno.EEXIST, message) from None
        return
    with partial_folder(path) as folder:
        named = folder / "named"
        _link(source, named)
        named.replace(path)


def _link(source: str, path: Path) -> None:
    """Link what `source` leads to; Python follows links only if it is also given a descriptor."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.link(source, path.name, dst_dir_fd=folder, follow_symlinks=True)
    finally:
        os.close(folder)
