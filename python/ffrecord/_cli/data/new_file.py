"""A file that gets its name only when it is complete."""

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from ffrecord.errors import ConflictError
from ffrecord.pack._new_folder import sync


def check_vacant_file(path: Path, overwrite: bool) -> None:
    """Check that a file of that name may be written.

    Raises:
        ConflictError: there is a file, and it may not be replaced; or a folder, link or device.
        FileNotFoundError: its folder does not exist.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, f"there is no folder {path.parent}")
    if path.is_dir():
        raise ConflictError(errno.EISDIR, f"{path} is a folder; choose another name")
    if not os.path.lexists(path):
        return
    if not overwrite:
        raise ConflictError(errno.EEXIST, f"{path} exists; --overwrite replaces it")
    if path.is_symlink():
        message = f"{path} is a symbolic link to {os.readlink(path)}: name that, or remove the link"
        raise ConflictError(errno.EEXIST, message)
    if not path.is_file():  # Such as /dev/null, which would be a file from then on.
        raise ConflictError(errno.EEXIST, f"{path} is no plain file: it is not replaced")


@contextmanager
def new_file(path: Path, overwrite: bool) -> Iterator[BinaryIO]:
    """Publish a file as `path`, synced to the disk, at the end of the block.

    An exception leaves nothing behind, and where the file system has nameless files, neither does a
    kill.

    Raises:
        ConflictError: see `check_vacant_file`.
        OSError: it cannot be made, or not be synced.
    """
    check_vacant_file(path, overwrite)
    descriptor, name = _nameless(path)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(descriptor)
            _name(name or f"/proc/self/fd/{descriptor}", path, overwrite)
    finally:
        if name is not None:
            with suppress(FileNotFoundError):
                os.unlink(name)
    sync(path.parent)


def _nameless(path: Path) -> tuple[int, str | None]:
    """A new file in the folder of `path`, with a name only if there must be one."""
    try:
        return os.open(path.parent, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o666), None
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL):
            raise
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.partial-", dir=path.parent)
    umask = os.umask(0o077)
    os.umask(umask)
    os.fchmod(descriptor, 0o666 & ~umask)
    return descriptor, name


def _name(source: str, path: Path, overwrite: bool) -> None:
    """Give the file its name; another file of that name is replaced at once, or not at all."""
    if not overwrite:
        try:
            _link(source, path)
        except FileExistsError:
            message = f"{path} has appeared meanwhile; it was left as it is"
            raise ConflictError(errno.EEXIST, message) from None
        return
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.partial-", dir=path.parent) as folder:
        complete = Path(folder, "complete")
        _link(source, complete)
        complete.replace(path)


def _link(source: str, path: Path) -> None:
    """Link what `source` leads to; Python follows links only if it is also given a descriptor."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.link(source, path.name, dst_dir_fd=folder, follow_symlinks=True)
    finally:
        os.close(folder)
