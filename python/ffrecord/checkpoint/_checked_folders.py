"""Folders of files with checksums: moved, removed and verified with what belongs to them."""

import errno
import os
import pathlib
import shutil
import warnings
from collections.abc import Iterator
from typing import NamedTuple

from ffrecord._base.folders import sync_folder
from ffrecord.checkpoint._checked_files import (
    BLOCK_BYTES,
    CheckedReader,
    beside,
    is_hidden,
    occupied,
    refuse_hidden,
    settle,
)
from ffrecord.errors import CorruptionError

Path = pathlib.Path


def rename(source: Path, destination: Path) -> None:
    """Move a file or a folder to exactly that place; durable when it returns.

    A folder goes where nothing or an empty folder is, a file where nothing or a file is. Anything
    else is a FileExistsError, and nothing has changed. A folder moves in one step, without what
    killed writers left in it; nobody may be writing there.
    """
    refuse_hidden(destination)
    if source.lstat().st_dev != destination.parent.stat().st_dev:
        raise OSError(
            errno.EXDEV,
            f"{source} and {destination} are on two file systems: a move would not be one step. "
            "Keep the temporary folder beside the final one",
        )
    is_folder = source.is_dir() and not source.is_symlink()
    if os.path.lexists(destination) and destination.is_dir() != is_folder:
        raise occupied(source, destination, errno.ENOTDIR if is_folder else errno.EISDIR)
    try:
        if is_folder:
            _sweep(source)
            os.rename(source, destination)
        elif _entry(source) != _entry(destination):
            _move_file(source, destination)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.EISDIR, errno.ENOTDIR):
            raise occupied(source, destination, error.errno) from error
        raise
    for folder in {source.parent, destination.parent}:
        sync_folder(folder)


def remove_file(path: Path) -> None:
    """Remove a file and its sums."""
    path.unlink()  # First: a file without sums would be read unchecked.
    for kind in ("sums", "next"):
        beside(path, kind).unlink(missing_ok=True)
    sync_folder(path.parent)


def remove_folder(path: Path) -> None:
    """Remove a folder with all that is in it; it is gone in one step, even if this is killed.

    Called again after that, it removes the rest, which is hidden as `.NAME.removed`.
    """
    path = Path(os.path.abspath(path))
    if path.is_symlink():
        raise NotADirectoryError(errno.ENOTDIR, "is a symbolic link", str(path))
    aside = beside(path, "removed")
    finished = aside.is_dir()
    if finished:
        shutil.rmtree(aside, ignore_errors=True)
    if finished and not path.exists():
        return
    os.listdir(path)  # It raises if this is no folder.
    path.rename(aside)
    sync_folder(path.parent)
    shutil.rmtree(aside)


def make_folder(path: Path, *, parents: bool) -> None:
    """Make a folder, durable; with `parents` those above too, and one that exists is fine."""
    refuse_hidden(path)
    if parents and path.is_dir():
        return
    if parents and not path.parent.exists():
        make_folder(path.parent, parents=True)
    path.mkdir(exist_ok=parents)
    sync_folder(path.parent)


def names_in(path: Path) -> list[str]:
    """The names in a folder, without those of these modules."""
    return [name for name in os.listdir(path) if not is_hidden(name)]


class Verified(NamedTuple):
    """The findings of `verify`.

    Attributes:
        checked: how many files are as they were written.
        unchecked: files without checksums.
        damaged: files that are not as they were written, cannot be read, or are gone, and why.
    """

    checked: int
    unchecked: list[str]
    damaged: dict[str, str]


def verify(folder: Path) -> Verified:
    """Read every file under a folder and compare it with its sums.

    Raises:
        OSError: the folder itself cannot be read.
    """
    checked, unchecked = 0, []
    damaged: dict[str, str] = {}
    os.listdir(folder)
    for path in _files_under(folder, damaged):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with CheckedReader(path) as reader:
                    _read_through(reader)
                    is_checked = reader.is_checked
        except (CorruptionError, OSError) as error:
            damaged[str(path)] = str(error)
            continue
        if is_checked:
            checked += 1
        else:
            unchecked.append(str(path))
    return Verified(checked, unchecked, damaged)


def _entry(path: Path) -> Path:
    return Path(os.path.realpath(path.parent)) / path.name


def _move_file(source: Path, destination: Path) -> None:
    """Rename a file with its sums, which wait beside the destination until it has arrived."""
    for path in (source, destination):
        settle(path)
    sums, waiting = beside(source, "sums"), beside(destination, "next")
    if not sums.exists():
        beside(destination, "sums").unlink(missing_ok=True)
        os.replace(source, destination)
        return
    os.replace(sums, waiting)
    try:
        os.replace(source, destination)
    except BaseException:
        os.replace(waiting, sums)
        raise
    os.replace(waiting, beside(destination, "sums"))


def _sweep(folder: Path) -> None:
    """Remove what killed writers and removals left under a folder in which nobody works."""
    for where, folders, names in os.walk(folder):
        for name in [name for name in names if name.startswith(".") and name.endswith(".part")]:
            Path(where, name).unlink(missing_ok=True)
        for name in [name for name in folders if is_hidden(name) and name.endswith(".removed")]:
            shutil.rmtree(Path(where, name))
            folders.remove(name)


def _read_through(reader: CheckedReader) -> None:
    buffer = bytearray(min(reader.size, 16 * BLOCK_BYTES))
    while reader.readinto(buffer):
        pass


def _files_under(folder: Path, damaged: dict[str, str]) -> Iterator[Path]:
    """Every file, and into `damaged` what is gone or cannot be listed."""

    def unreadable(error: OSError) -> None:
        damaged[str(error.filename)] = str(error)

    for where, folders, names in os.walk(folder, onerror=unreadable):
        folders[:] = sorted(name for name in folders if not name.endswith(".removed"))
        there = set(names)
        for name in sorted(names):
            if not is_hidden(name):
                yield Path(where, name)
            elif name.endswith(".sums") and (owner := name[1 : -len(".sums")]) not in there:
                damaged[str(Path(where, owner))] = "the file is gone; its checksums are there"
