"""From the name that a caller gives (file, folder, glob, list, address) to the files to open."""

import errno
import fnmatch
import glob
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from ffrecord._base.addresses import EVICTED, SCHEME, STORES, address_from_root

# The end of an index's name, behind that of its source.
INDEX_SUFFIX = ".ffindex"

Where = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

# Protocols of file systems that fsspec knows, perhaps a chain of them:
# `simplecache::gs://bucket/x`.
_PROTOCOL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(://|::)")


class Eviction(Protocol):
    """The part that opening needs of the room that evicts files to a store."""

    def restore(self, folder: str, names: Iterable[str] | None = None) -> object:
        """Fetch the files that were evicted from a folder, or those of them in `names`."""

    def evicted(self, folder: str) -> list[str]:
        """The names of the files that are only in the store now."""


_find_eviction: Callable[[], Eviction]


def fetch_evicted_with(find: Callable[[], Eviction]) -> None:
    """Set who fetches evicted files; `find` is called when a folder has some."""
    global _find_eviction
    _find_eviction = find


def normalise(where: Where) -> tuple[str, ...]:
    """The locations as strings, with absolute paths; nothing is opened or expanded.

    Raises:
        ValueError: the list is empty, or a name in it.
        TypeError: an item is not a path.
    """
    if isinstance(where, bytes | bytearray | int) or where is None:
        raise TypeError(f"not a path: {where!r}; give str or os.PathLike[str]")
    paths = [where] if isinstance(where, str | os.PathLike) else list(where)
    if not paths:
        raise ValueError("nothing to open: the list of files is empty")
    names = tuple(os.fspath(path) for path in paths)
    if wrong := [name for name in names if not isinstance(name, str)]:
        raise TypeError(f"not a path: {wrong[0]!r}; give str or os.PathLike[str]")
    if "" in names:
        raise ValueError("nothing to open: the name of a file is empty")
    return tuple(address_from_root(name) if "://" in name else absolute(name) for name in names)


def is_address(name: str) -> bool:
    """Whether a location is at a daemon, or at a store that the library knows."""
    return name.startswith((SCHEME, *STORES))


def is_file_system(name: str) -> bool:
    """Whether a location is at a store that only fsspec knows."""
    return not is_address(name) and _PROTOCOL.match(name) is not None and not os.path.exists(name)


def is_in_place(path: str) -> bool:
    """Whether a local file is, or has, an index by which a file of another kind is read."""
    return path.endswith(INDEX_SUFFIX) or (
        not path.endswith(".ffr") and os.path.exists(path + INDEX_SUFFIX)
    )


def is_malformed(name: str) -> bool:
    """Whether the address of a store names no host or bucket, or a protocol that nothing knows."""
    if name.partition("://")[2][:1] in ("", "/", "?", "#") and name.startswith(STORES):
        return True
    if is_address(name):
        return False
    try:
        from fsspec.registry import known_implementations, registry  # Few programs use it.
    except ImportError:
        return True  # Opening says what is missing.
    protocols = name.partition("://")[0].split("::")
    return not all(each in registry or each in known_implementations for each in protocols)


def reads_through_fsspec(names: Sequence[str], storage_options: object) -> bool:
    """Whether fsspec reads the locations: all others do not know them, or there are options for it.

    Raises:
        ValueError: the locations are of several kinds, or the options are not for them.
    """
    mine = [is_file_system(name) for name in names]
    if storage_options is not None:
        if paths := [
            n
            for n, is_mine in zip(names, mine, strict=True)
            if not is_mine and not n.startswith(STORES)
        ]:
            raise ValueError(
                f"storage_options are for stores that fsspec reads, not for {paths[0]}"
            )
        return True
    if any(mine) and not all(mine):
        one, other = names[mine.index(True)], names[mine.index(False)]
        raise ValueError(
            f"{one} and {other}: one list holds files of one kind; join readers of several kinds "
            "with ffrecord.concat"
        )
    return any(mine)


def absolute(name: str) -> str:
    """The absolute path or glob, which stays the same when the process changes its folder.

    Nothing in it is resolved: `a/../b` is not `b` if `a` is a link.
    """
    if os.path.isabs(name):
        return name
    folder = os.getcwd()
    is_glob = glob.has_magic(name) and not os.path.lexists(name)
    return os.path.join(glob.escape(folder) if is_glob else folder, name)


def expand(names: Iterable[str]) -> list[bytes]:
    """Every file that `names` stand for, in order.

    A folder stands for its own `*.ffr`, dot files included, sorted by code point, or if it has none
    for the sources of its `*.ffindex`; a glob for its matches, sorted too. An address is kept
    as it is, folders and globs of a store too. Files that were evicted to a store are fetched
    first.

    Raises:
        FileNotFoundError: a name stands for no file.
        OSError: a file that was evicted cannot be fetched.
        IsADirectoryError: a subfolder is called `*.ffr`.
        ValueError: an address of an unknown kind.
    """
    return [os.fsencode(file) for name in names for file in _files(name, _restore)]


def look(names: Iterable[str]) -> tuple[list[bytes], list[bytes]]:
    """The local files that `names` stand for, and the missing ones; fetches nothing.

    A file that was evicted is there by its name, and in neither list.

    Raises:
        As `expand`, if a folder or a glob has no files.
    """
    found: list[bytes] = []
    missing: list[bytes] = []
    for name in names:
        for file in _files(name, _evicted):
            is_missing = file == name and not os.path.isfile(name)
            (missing if is_missing else found).append(os.fsencode(file))
    return found, missing


# Handles the evicted files of a folder, or those of some names; returns names that stay away.
_Away = Callable[[str, list[str] | None], list[str]]


def _files(name: str, away: _Away) -> Iterator[str]:
    if is_address(name) or os.path.isfile(name):
        yield name
    elif os.path.isdir(name):
        yield from _folder(name, away)
    elif _PROTOCOL.match(name):
        known = ", ".join((SCHEME, *STORES))
        raise ValueError(
            f"{name}: this kind of address is not known here; known are paths, {known}"
        )
    elif glob.has_magic(name) and not os.path.lexists(name):
        yield from _matches(name, away)
    elif not away(os.path.dirname(name), [os.path.basename(name)]):
        yield name  # If it is not there, or no plain file, the library says which.


def _restore(folder: str, names: list[str] | None) -> list[str]:
    """Fetch the files of a folder, or those of `names`, if they were evicted from it."""
    if os.path.isfile(os.path.join(folder, EVICTED)):
        _find_eviction().restore(folder or ".", names)
    return []


def _evicted(folder: str, names: list[str] | None) -> list[str]:
    """The files that were evicted from a folder, or those of them in `names`."""
    if not os.path.isfile(os.path.join(folder, EVICTED)):
        return []
    away = _find_eviction().evicted(folder or ".")
    return away if names is None else [name for name in names if name in away]


def _folder(folder: str, away: _Away) -> list[str]:
    evicted = away(folder, None)
    with os.scandir(folder) as entries:
        there = list(entries)
    found = [entry for entry in there if entry.name.endswith(".ffr")]
    if not found and not evicted:
        found = [entry for entry in there if entry.name.endswith(INDEX_SUFFIX)]
        _refuse_without_index(folder, {entry.name for entry in there if entry.is_file()})
    if nested := [entry.path for entry in found if entry.is_dir()]:
        raise IsADirectoryError(
            errno.EISDIR, f"{nested[0]} is a folder, although it has the name of a file"
        )
    if not found and not evicted:
        raise FileNotFoundError(
            errno.ENOENT,
            f"no *.ffr files in the folder {folder}; 'ffrecord index' makes other files readable",
        )
    return sorted(entry.path for entry in found)


def _refuse_without_index(folder: str, names: set[str]) -> None:
    """Raise if only some of the sources of one kind have an index: an indexing did not end."""

    def kind(name: str) -> str:  # .tfrecord-00001-of-00002 as .tfrecord-00002-of-00002.
        return re.sub(r"\d+", "0", os.path.splitext(name)[1])

    indexed = {name.removesuffix(INDEX_SUFFIX) for name in names if name.endswith(INDEX_SUFFIX)}
    kinds = {kind(name) for name in indexed & names}
    bare = {name for name in names - indexed if kind(name) in kinds}
    if without := sorted(name for name in bare if not name.endswith(INDEX_SUFFIX)):
        raise FileNotFoundError(
            errno.ENOENT,
            f"{os.path.join(folder, without[0])} has no index ({len(without)} such), and "
            f"{len(indexed)} files beside it have one: run 'ffrecord index {folder}' to its end, "
            "or name the files to read",
        )


def _matches(pattern: str, away: _Away) -> list[str]:
    folders = pattern if pattern.endswith("**") else os.path.dirname(pattern)
    evicted: list[str] = []
    for marker in glob.glob(os.path.join(folders, EVICTED), recursive=True, include_hidden=True):
        folder = os.path.dirname(marker)
        evicted += [os.path.join(folder, name) for name in away(folder, None)]
    found = glob.glob(pattern, recursive=True, include_hidden=True)
    # fnmatch does not know that ** stands for no folder, too; the first read looks again.
    may_be_evicted = evicted if "**" in pattern else fnmatch.filter(evicted, pattern)
    if not found and not may_be_evicted:
        raise FileNotFoundError(errno.ENOENT, f"no file matches {pattern}")
    # A glob that finds a source and its index means the source.
    sources = set(found)
    return sorted(name for name in found if name.removesuffix(INDEX_SUFFIX) not in sources - {name})
