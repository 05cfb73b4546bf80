"""From what a caller names - a file, a folder, a glob, a list, an address - to what is opened."""

import errno
import glob
import os
from collections.abc import Iterable, Iterator

Where = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

SCHEME = "ffrecord://"


def normalise(where: Where) -> tuple[str, ...]:
    """The locations as strings, neither looked at nor expanded.

    Raises:
        ValueError: the list is empty.
        TypeError: something in it is no path.
    """
    paths = [where] if isinstance(where, str | os.PathLike) else list(where)
    if not paths:
        raise ValueError("nothing to open: the list of files is empty")
    names = tuple(os.fspath(path) for path in paths)
    if wrong := [name for name in names if not isinstance(name, str) or not name]:
        raise TypeError(f"not a path: {wrong[0]!r}; give str or os.PathLike[str]")
    return names


def expand(names: Iterable[str]) -> list[bytes]:
    """Every file that `names` stand for, in order.

    A folder stands for its own `*.ffr`, dot files included, sorted by code point; a glob for what
    it matches, sorted likewise. An address is kept as it is.

    Raises:
        FileNotFoundError: a name stands for nothing.
        IsADirectoryError: a subfolder is called `*.ffr`.
    """
    return [os.fsencode(file) for name in names for file in _files(name)]


def _files(name: str) -> Iterator[str]:
    if name.startswith(SCHEME) or os.path.isfile(name):
        yield name
    elif os.path.isdir(name):
        yield from _folder(name)
    elif glob.has_magic(name) and not os.path.lexists(name):
        yield from _matches(name)
    else:
        yield name  # Not there, or no plain file: the library says which.


def _folder(folder: str) -> list[str]:
    with os.scandir(folder) as entries:
        found = [entry for entry in entries if entry.name.endswith(".ffr")]
    if nested := [entry.path for entry in found if entry.is_dir()]:
        raise IsADirectoryError(
            errno.EISDIR, f"{nested[0]} is a folder, though it is called like a file"
        )
    if not found:
        raise FileNotFoundError(errno.ENOENT, f"no *.ffr files in the folder {folder}")
    return sorted(entry.path for entry in found)


def _matches(pattern: str) -> list[str]:
    found = glob.glob(pattern, recursive=True, include_hidden=True)
    if not found:
        raise FileNotFoundError(errno.ENOENT, f"no file matches {pattern}")
    return sorted(found)
