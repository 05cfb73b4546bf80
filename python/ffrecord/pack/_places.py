"""Where inputs are: local files, objects of a store, files of a server; asked in the same way.

A path is local, or `s3://BUCKET/KEY`, or `http(s)://HOST/PATH`. A bucket is like a folder: `/` in
keys separates folders. Answers of a store count until `forget`: files are read in the version that
was found, and an error tells if there is another one now.
"""

import errno
import io
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

from ffrecord import _ffrecord
from ffrecord._base.addresses import STORES
from ffrecord._ffrecord import StoredFile
from ffrecord.pack._stored_file import StoredArray, StoredInput, buffered

_S3 = "s3://"
_PATTERN = frozenset("*?[")
# For each request to a store, with retries.
_TIMEOUT_S = 60.0


class Facts(NamedTuple):
    """Distinguishes one version of a file from another."""

    size_bytes: int
    version: str


class Entry(NamedTuple):
    """An entry of a folder at a store; has the attributes of `os.scandir`'s entries."""

    name: str
    path: str
    file: StoredFile | None

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a folder."""
        return self.file is None

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a file."""
        return self.file is not None

    def is_symlink(self) -> bool:
        """Stores have none."""
        return False


class _Scan(list[Entry]):
    """Entries, for a `with` block as that of `os.scandir`."""

    def __enter__(self) -> "_Scan":
        return self

    def __exit__(self, *_: object) -> None:
        pass


class _Stores:
    """The answers of stores in this process."""

    def __init__(self) -> None:
        self.addresses: dict[str, str] = {}
        """The address of a path, where that has a query or a user in it, which may be secrets."""
        self._files: dict[str, StoredFile | None] = {}
        self._folders: dict[str, dict[str, StoredFile | None]] = {}
        """The contents of each known folder: files, and None for folders."""
        self._listed: set[str] = set()

    def forget(self) -> None:
        self._files, self._folders, self._listed = {}, {}, set()

    def forget_one(self, path: str) -> None:
        self._files.pop(path, None)

    def remember(self, paths: Iterable[str]) -> None:
        """Ask for many files at once."""
        new = [path for path in dict.fromkeys(paths) if path not in self._files]
        asked = [self.addresses.get(path, path) for path in new]
        found = _ffrecord.look_for_stored_files(asked, timeout_s=_TIMEOUT_S) if asked else []
        self._files.update(zip(new, found, strict=True))

    def matching(self, pattern: str) -> list[str]:
        found = _ffrecord.match_stored_files(pattern, timeout_s=_TIMEOUT_S)
        self._files.update((file.name, file) for file in found)
        return sorted((file.name for file in found), key=natural)

    def file(self, path: str) -> StoredFile | None:
        """The file there; None if there is none."""
        if path in self._files:
            return self._files[path]
        folder, name = os.path.split(path)
        for above in _above(path):
            if self._files.get(above) is not None:
                return None  # A file has nothing in it.
            if above in self._listed:
                return self._folders.get(folder, {}).get(name)
        self.remember([path])
        return self._files[path]

    def folder(self, path: str) -> Mapping[str, StoredFile | None]:
        """The contents of a folder; nothing if there is none."""
        if not path.startswith(_S3) or self.file(path) is not None:
            return {}
        if path not in self._listed and not any(each in self._listed for each in _above(path)):
            self._list(path)
        return self._folders.get(path, {})

    def _list(self, root: str) -> None:
        for file in _ffrecord.list_stored_files(root, timeout_s=_TIMEOUT_S):
            *folders, name = file.name[len(root) + 1 :].split("/")
            if any(each in ("", ".", "..") for each in (*folders, name)):
                raise ValueError(
                    f"{file.name}: a part of its key is empty or dots, which no folder is called: "
                    "name the objects to pack"
                )
            at = root
            for each in folders:
                self._put(at, each, None)
                at = f"{at}/{each}"
            self._put(at, name, file)
        self._listed.add(root)

    def _put(self, folder: str, name: str, file: StoredFile | None) -> None:
        entries = self._folders.setdefault(folder, {})
        if name in entries and (entries[name] is None) != (file is None):
            raise ValueError(
                f"{folder}/{name} is an object, and a folder with others in it: name the objects "
                "to pack"
            )
        entries[name] = file


_stores = _Stores()
forget = _stores.forget
remember = _stores.remember


def natural(name: str) -> tuple[list[str | int], str]:
    """A key to sort names: numbers in them by their values, so shard-2 is before shard-10."""
    parts: list[str | int] = [*re.split(r"([0-9]+)", name)]
    parts[1::2] = map(int, parts[1::2])
    return parts, name


def is_address(path: str) -> bool:
    """Whether a path is at a store or server."""
    return path.startswith(STORES)


def _above(path: str) -> Iterator[str]:
    while len(above := os.path.dirname(path)) < len(path) and not above.endswith(":"):
        yield above
        path = above


def from_root(name: str) -> list[str]:
    """The paths that a name given by the user stands for: more than one of a pattern.

    Raises:
        ValueError: it is an address of another kind, or one that is not complete.
        FileNotFoundError: no object matches the pattern.
    """
    if not is_address(name):
        scheme, colon, _ = name.partition("://")
        if colon and scheme.isalnum() and not os.path.lexists(name):
            raise ValueError(
                f"{name}: inputs are local, or at {', '.join(STORES)}; download it, or name it so"
            )
        return [os.path.join(os.getcwd(), name)]
    if not name.startswith(_S3):
        return [_without_secrets(name)]
    if _PATTERN & set(name):
        return _stores.matching(name)
    if not name.removeprefix(_S3).strip("/"):
        raise ValueError(f"{name} names no bucket")
    return [name.rstrip("/")]


def all_from_root(names: Iterable[str]) -> list[str]:
    """As `from_root`, for several names.

    Raises:
        ValueError: two of them differ in what is not shown.
    """
    seen: dict[str, str] = {}
    found: list[str] = []
    for name in names:
        paths = from_root(name)
        for path in paths if is_address(name) and not name.startswith(_S3) else ():
            if seen.setdefault(path, name) != name:
                raise ValueError(
                    f"several addresses are {path} with different queries: pack each on its own"
                )
        found += paths
    return found


def _without_secrets(address: str) -> str:
    """The path of an address, without a signature or a user in it."""
    parts = urlsplit(address)
    path = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    if _stores.addresses.get(path, path) != address:
        _stores.addresses[path] = address
        _stores.forget_one(path)
    return path


def addresses_of(paths: Iterable[str]) -> dict[str, str]:
    """The addresses that another process needs to read these paths."""
    return {path: _stores.addresses[path] for path in paths if path in _stores.addresses}


def learn(addresses: Mapping[str, str]) -> None:
    """Take what `addresses_of` said in another process."""
    _stores.addresses.update(addresses)


def address_of(path: str) -> str:
    """The address of a path, with all that is needed to read it."""
    return _stores.addresses.get(path, path)


def _asked(local: Callable[[str], bool], stored: Callable[[str], bool]) -> Callable[[str], bool]:
    return lambda path: stored(path) if is_address(path) else local(path)


is_file = _asked(os.path.isfile, lambda path: _stores.file(path) is not None)
is_dir = _asked(os.path.isdir, lambda path: bool(_stores.folder(path)))
is_link = _asked(os.path.islink, lambda path: False)
exists = _asked(os.path.lexists, lambda path: is_file(path) or is_dir(path))


def _found(path: str) -> StoredFile:
    """The file at a store.

    Raises:
        FileNotFoundError: there is none.
        ValueError: the server does not say which version it is.
    """
    if (file := _stores.file(path)) is None:
        what = "object" if path.startswith(_S3) else "file"
        raise FileNotFoundError(errno.ENOENT, f"{path}: there is no such {what}")
    if not file.version:
        raise ValueError(
            f"{path}: the server sends neither ETag nor Last-Modified, so nothing tells whether "
            "the file changes while it is read: download it"
        )
    return file


def look(path: str) -> Facts:
    """Size and version of a file."""
    if is_address(path):
        file = _found(path)
        return Facts(file.size_bytes, file.version)
    found = os.stat(path)
    return Facts(found.st_size, str(found.st_mtime_ns))


def identity(path: str) -> tuple[Any, ...]:
    """Tells a file from each other that takes its name, and a version of it from the next."""
    if is_address(path):
        return (look(path),)
    found = os.stat(path)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def look_at_entry(path: str) -> tuple[bool, Facts | None]:
    """Whether a path is a link; and size and version, if it is a regular file and no link."""
    if is_address(path):
        return False, look(path) if is_file(path) else None
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return False, None
    if not stat.S_ISREG(found.st_mode):
        return stat.S_ISLNK(found.st_mode), None
    return False, Facts(found.st_size, str(found.st_mtime_ns))


def look_at_regular(path: str) -> Facts:
    """Size and version of a file.

    Raises:
        ValueError: it is a device, for example.
    """
    if not is_address(path) and not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError(f"{path} is no regular file")
    return look(path)


def size_of(path: str) -> int:
    """The size of a file."""
    return look(path).size_bytes


def open_input(path: str) -> io.BufferedReader:
    """As `open(path, "rb")`."""
    return buffered(_found(path)) if is_address(path) else open(path, "rb")


def open_text(path: str, *, errors: str = "strict") -> io.TextIOWrapper:
    """As `open(path, encoding="utf-8")`."""
    return io.TextIOWrapper(open_input(path), encoding="utf-8", errors=errors)


def for_library(path: str) -> Any:  # noqa: ANN401 - whatever a library takes
    """A local path, or an object like a file, for libraries that open either."""
    return StoredInput(_found(path)) if is_address(path) else path


def read(path: str) -> tuple[bytes, str]:
    """All bytes of a file, and the version that they are of; an error names it."""
    with open_input(path) as file:
        try:
            content = file.read()
        except OSError as error:
            if not is_address(path):
                error.filename = path
            raise
        if is_address(path):
            return content, _found(path).version
        return content, str(os.fstat(file.fileno()).st_mtime_ns)


def array(
    path: str, dtype: npt.DTypeLike, offset: int = 0, shape: tuple[int, ...] | None = None
) -> Any:  # noqa: ANN401 - as an array, of which rows are read
    """The numbers in a file from there on, of which only those that are asked for are read."""
    if not is_address(path):
        return np.memmap(path, dtype, "r", offset, shape)
    file = _found(path)
    rows = (file.size_bytes - offset) // np.dtype(dtype).itemsize
    return StoredArray(file, dtype, (rows,) if shape is None else shape, offset)


def scan(path: str) -> Any:  # noqa: ANN401 - entries, as those of os.scandir
    """The entries of a folder, as `os.scandir`."""
    if not is_address(path):
        return os.scandir(path)
    found = sorted(_stores.folder(path).items())
    return _Scan(Entry(name, f"{path}/{name}", file) for name, file in found)


def names_in(path: str) -> list[str]:
    """The names in a folder, as `os.listdir`."""
    return [entry.name for entry in scan(path)] if is_address(path) else os.listdir(path)


def walk(
    folder: str,
    *,
    followlinks: bool = False,
    onerror: Callable[[OSError], None] | None = None,
) -> Iterator[tuple[str, list[str], list[str]]]:
    """As `os.walk`."""
    if not is_address(folder):
        yield from os.walk(folder, followlinks=followlinks, onerror=onerror)
        return
    entries = _stores.folder(folder)
    folders = sorted(name for name, file in entries.items() if file is None)
    yield folder, folders, sorted(name for name, file in entries.items() if file is not None)
    for name in folders:
        yield from walk(f"{folder}/{name}")


def real(path: str) -> str:
    """The real path: without links, which stores do not have."""
    return path if is_address(path) else os.path.realpath(path)


def check_local(path: str, what: str) -> None:
    """Raise a ValueError if a library needs the file on this machine."""
    if is_address(path):
        raise ValueError(f"{path}: {what} is read from local disks only: download it")
