"""A folder that gets its name only when it is complete.

It is made as `.NAME.partial-XXXXXXXX/parts`, beside a file that names its maker and is locked for
as long as the maker lives. A later run removes the remains of a killed one: only folders in which
that file exists, is whole, names this host and is not locked. Any other folder with a name like
that belongs to somebody else, or may be in use, and stays.
"""

import errno
import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ffrecord._base.folders import sync_folder
from ffrecord.errors import ConflictError

_MAKER = "made-by-ffrecord-pack"
_PARTS = "parts"
# Digits of the number in a part's name; more if there are more parts.
DIGITS = 5
# Beside the parts of a folder: what came from where.
MANIFEST = "PACKED.json"
# As tempfile.mkdtemp ends a name.
_RANDOM = re.compile(r"[a-z0-9_]{8}")


@contextmanager
def new_folder(path: Path, replace: bool) -> Iterator[Path]:
    """Publish a folder as `path` at the end of the block; an exception removes it.

    Raises:
        ConflictError: `path` has appeared in the meantime, and may not be replaced.
        OSError: it cannot be made, or not be synced to the disk.
    """
    with partial_folder(path) as partial:
        parts = partial / _PARTS
        parts.mkdir()
        yield parts
        sync_folder(parts)
        publish_folder(parts, path, replace)


@contextmanager
def partial_folder(path: Path) -> Iterator[Path]:
    """A folder beside `path` for what becomes it, removed at the end of the block.

    First removes what killed runs of this host have left for the same `path`.

    Raises:
        OSError: it cannot be made.
    """
    prefix = f".{path.name}.partial-"
    _remove_left_over(path.parent, prefix)
    import tempfile  # Slow to import, and few packings need it.

    partial = Path(tempfile.mkdtemp(prefix=prefix, dir=path.parent))
    lock = None
    try:
        lock = _claim(partial)
        yield partial
    finally:
        # Everything in here now is unfinished, or was replaced.
        shutil.rmtree(partial, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _claim(partial: Path) -> int:
    """Name the maker of the folder. The file has its name only once it is whole and locked."""
    unnamed = partial / "claim"
    descriptor = os.open(unnamed, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(descriptor, _claim_text())
        os.rename(unnamed, partial / _MAKER)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _claim_text() -> bytes:
    """Name the host, because a lock does not show another host's runs."""
    return f"{_MAKER} on {os.uname().nodename}: removed by the next run\n".encode()


def _remove_left_over(parent: Path, prefix: str) -> None:
    for entry in os.scandir(parent):
        is_named_so = entry.name.startswith(prefix) and _RANDOM.fullmatch(entry.name[len(prefix) :])
        if is_named_so and entry.is_dir(follow_symlinks=False):
            _remove_if_dead(Path(entry.path))


def _remove_if_dead(partial: Path) -> None:
    try:
        descriptor = os.open(partial / _MAKER, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return  # Not made by a run of ours, or gone meanwhile.
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.read(descriptor, 4096) == _claim_text():
            shutil.rmtree(partial, ignore_errors=True)
    except OSError:
        pass  # Its maker lives, or another run is removing it.
    finally:
        os.close(descriptor)


def check_vacant(path: Path, replace: bool) -> None:
    """Check that `path`, if it exists, may be replaced.

    Raises:
        ConflictError: it may not; the message says why, and what to do.
        FileNotFoundError: its parent folder does not exist.
        PermissionError: nothing may be written there.
    """
    if not is_replaced(path, replace):
        return
    if path.suffix == ".ffr":
        if path.is_dir():
            raise ConflictError(errno.EISDIR, f"{path} is a folder; choose another name")
        return
    if not path.is_dir():
        raise ConflictError(
            errno.ENOTDIR, f"{path} is not a folder; remove it, or name a *.ffr file"
        )
    if (other := _other_than_record_files(path)) is not None:
        message = f"{path} contains other files than *.ffr, such as {other}: not replaced"
        raise ConflictError(errno.EEXIST, message)


def is_replaced(path: Path, replace: bool) -> bool:
    """Whether there is something at `path`, which may be replaced as far as its name tells.

    Raises:
        ConflictError: it may not; the message says why, and what to do.
        FileNotFoundError: its parent folder does not exist.
        PermissionError: nothing may be written there.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, f"there is no folder {path.parent}; make it first")
    check_writable(path.parent)
    if not os.path.lexists(path):
        return False
    if not replace:
        raise ConflictError(errno.EEXIST, f"{path} exists; --overwrite replaces it")
    if path.is_symlink():
        message = f"{path} is a symbolic link to {os.readlink(path)}: name that, or remove the link"
        raise ConflictError(errno.EEXIST, message)
    return True


def check_writable(folder: Path) -> None:
    """Check that files can be made in a folder, before hours of work for them.

    Raises:
        PermissionError: they cannot.
    """
    if not os.access(folder, os.W_OK | os.X_OK):
        why = "is read-only, or you may not write to it; choose another"
        raise PermissionError(errno.EACCES, f"the folder {folder} {why}")


def check_can_be_made(path: Path) -> None:
    """Check that a folder is there to be written to, or can be made with those above it.

    Raises:
        NotADirectoryError: something else is in the way.
        PermissionError: nothing may be written there.
    """
    nearest = next(each for each in (path, *path.parents) if os.path.lexists(each))
    if not nearest.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, f"{nearest} is not a folder")
    check_writable(nearest)


def _other_than_record_files(folder: Path) -> str | None:
    """A file in the folder that packing did not make, and that would be lost; one is enough."""
    for entry in os.scandir(folder):
        is_ours = entry.name.endswith(".ffr") or entry.name == MANIFEST
        if not is_ours or entry.is_dir(follow_symlinks=False):
            return entry.name
    return None


def publish_folder(parts: Path, path: Path, replace: bool) -> None:
    """Give a folder, which is synced, its name; what is replaced has its old name then.

    Raises:
        ConflictError: `path` is there, and may not be replaced.
    """
    _publish(parts, path, replace)
    sync_folder(path.parent)


def _publish(parts: Path, path: Path, replace: bool) -> None:
    if replace and os.path.lexists(path):
        check_vacant(path, replace)  # Packing may have taken hours.
        _exchange(parts, path)
        # Only now is it out of everybody's way: what is found here cannot come into being later.
        if (other := _other_than_record_files(parts)) is not None:
            _exchange(parts, path)
            message = f"{other} has appeared in {path} meanwhile; the folder was left as it is"
            raise ConflictError(errno.EEXIST, message)
        return
    try:
        os.rename(parts, path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        message = f"{path} has appeared meanwhile; it was left as it is"
        raise ConflictError(errno.EEXIST, message) from None


def _exchange(one: Path, other: Path) -> None:
    """Swap two names at once: at no moment is either missing."""
    at_fdcwd, rename_exchange = -100, 2
    import ctypes  # Slow to import, and few packings need it.

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(at_fdcwd, bytes(one), at_fdcwd, bytes(other), rename_exchange) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot swap {one} and {other}: {os.strerror(number)}")


def part_name(number: int, count: int = 1) -> str:
    """The name of a part; readers sort names as text, so all have as many digits."""
    return f"PART_{number:0{max(DIGITS, len(str(count - 1)))}}.ffr"


def widen_part_names(folder: Path, count: int) -> None:
    """Give the numbers of `count` parts the same number of digits; they were named one by one."""
    for number in range(10**DIGITS if len(str(count - 1)) > DIGITS else 0):
        os.rename(folder / part_name(number), folder / part_name(number, count))


def sync_contents(folder: Path) -> None:
    """Sync all that is on the file system of a folder: one call, however many files it has."""
    import ctypes  # Slow to import, and few packings need it.

    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if libc.syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(folder))
    finally:
        os.close(descriptor)
