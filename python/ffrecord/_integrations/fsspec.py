"""The files of a daemon, as a read-only file system of fsspec; `pip install 'ffrecord[fsspec]'`.

    with fsspec.open("ffrecord://host:9400/train/part-0.ffr") as file:
        header = file.read(12)
    fsspec.filesystem("ffrecord").get("host:9400/train", "copy", recursive=True)

A published name is a folder of its files: a dataset of its record files, a step of a checkpoint of
its manifests and segments. The bytes are not interpreted: for records and tensors `ffrecord.open`
and `ffrecord.checkpoint.load` are faster, and verify each. Copies of whole files (`get`, `cat`) are
verified; reads of parts are not.
"""

import errno
import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

from ffrecord import _ffrecord
from ffrecord._base.addresses import SCHEME
from ffrecord.errors import ConflictError

try:
    from fsspec.spec import AbstractBufferedFile, AbstractFileSystem
except ImportError as error:
    raise ImportError(
        "ffrecord.fsspec needs fsspec 2025.3.2 or newer: pip install 'ffrecord[fsspec]'"
    ) from error

__all__ = ["File", "FileSystem"]

Info = dict[str, Any]

# Options that an address may have behind its name; see daemon.md.
_OPTIONS = (
    *("transport", "tls", "token_file", "rdma_devices"),
    *("rdma_traffic_class", "rdma_service_level"),
)
# Another question mark is one of a pattern: part-?.ffr.
_QUERY = re.compile(rf"\?(?=(?:{'|'.join(_OPTIONS)})=)")
# Names of files may have it, but no name at a daemon.
_NEVER_PUBLISHED = "?"
_NAMES_SHOWN = 5


class _Served(NamedTuple):
    """The files of one published name, as they were when it was opened."""

    folder: str  # Daemon and name.
    files: _ffrecord.ServedFiles
    # By path in the folder: the number of the file, and facts. Those of checkpoints are in folders.
    entries: dict[str, tuple[int, Info]]


class FileSystem(AbstractFileSystem):  # type: ignore[misc]
    """The names that daemons serve, as `ffrecord://host[:port]/name/file`.

    Paths begin with the daemon, or with several that serve the same: `a:9400,b:9400/name/file`. A
    name with slashes is folders in folders. `info` has the `size` in bytes and an `etag`, which
    changes if any byte of the file changes. Nothing is remembered between calls: listings are as
    the daemon answers, and an open file stays the version that was opened.

    Threads may share it, and it works in a forked child. Everything that would write raises
    `OSError` (EROFS): use `ffrecord.publish`. An address of IPv6 in brackets works as a path of
    this class, but not in a URL of fsspec, where `::` and brackets have meanings.
    """

    protocol = "ffrecord"
    # `get_file` reads so much at a time: parts that are verified.
    blocksize = _ffrecord.ServedFiles.verified_bytes

    def __init__(
        self,
        *args: Any,  # noqa: ANN401 - fsspec's own
        timeout_s: float = 30.0,
        transport: str | None = None,
        tls: str | None = None,
        token_file: str | None = None,
        rdma_devices: str | None = None,
        rdma_traffic_class: int | str | None = None,
        rdma_service_level: int | str | None = None,
        **options: Any,  # noqa: ANN401 - fsspec's own
    ) -> None:
        """Store the arguments; connect to nothing yet.

        Args:
            args: fsspec's own.
            timeout_s: time limit of each call to a daemon, retries included.
            transport: "auto", "shm", "rdma" or "tcp". This, and what follows, may also stand
                behind a URL: `ffrecord://host/name/file?tls=FOLDER&token_file=PATH`.
            tls: folder with the client's certificates.
            token_file: file with the token for the daemon.
            rdma_devices: names of devices, with commas between them.
            rdma_traffic_class: of RDMA's packets.
            rdma_service_level: of RDMA's packets.
            options: fsspec's own.
        """
        super().__init__(*args, **options)
        given = {
            **{"transport": transport, "tls": tls, "token_file": token_file},
            **{"rdma_devices": rdma_devices, "rdma_traffic_class": rdma_traffic_class},
            "rdma_service_level": rdma_service_level,
        }
        pairs = [f"{name}={value}" for name, value in given.items() if value is not None]
        self._timeout_s = timeout_s
        self._query = "?" + "&".join(pairs) if pairs else ""

    @property
    def fsid(self) -> str:
        """A text that distinguishes file systems of this kind from others."""
        return "ffrecord"

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:  # noqa: ANN401 - text, or a list of it
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        stripped = super()._strip_protocol(path)
        is_url = stripped != str(path).rstrip("/")
        # A path has no options: a file may be called what would be some.
        return _QUERY.split(stripped, maxsplit=1)[0].rstrip("/") if is_url else stripped

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, str]:
        _, *query = _QUERY.split(path, maxsplit=1)
        pairs = (pair.partition("=") for pair in "&".join(query).split("&") if pair)
        options = {name: value for name, _, value in pairs}
        if unknown := sorted(options.keys() - set(_OPTIONS)):
            known = ", ".join(_OPTIONS)
            raise ValueError(f"{path}: unknown option {unknown[0]}; there are {known}")
        return options

    def info(self, path: str, **_: object) -> Info:
        """Facts about a file or a folder: `name`, `type`, and of a file `size` and `etag`.

        Raises:
            FileNotFoundError: there is neither.
            ValueError: the path names no daemon, or a part of it can be no name.
            UnavailableError: the daemon does not answer.
        """
        path = self._strip_protocol(path)
        place, name = _split(path)
        known: list[str] = []
        for served, rest in self._above(place, name):
            if rest in served.entries:
                return served.entries[rest][1]
            if any(entry.startswith(f"{rest}/") for entry in served.entries):
                return _folder(path)
            known += served.entries
        # Also of the daemon itself, which has to answer.
        names = self._names(place, name)
        if not name or any(_is_below(one, name) for one in names):
            return _folder(path)
        raise _absent(path, known)

    def exists(self, path: str, **_: object) -> bool:
        """Whether there is a file or a folder; raises if the daemon does not answer."""
        try:
            self.info(path)
        except FileNotFoundError:
            return False
        return True

    def ls(self, path: str, detail: bool = True, **_: object) -> list[Any]:
        """The files and folders of a folder, or the file itself, sorted: names, or facts.

        Raises:
            FileNotFoundError: there is no such file or folder.
            ValueError, UnavailableError: as for `info`.
        """
        path = self._strip_protocol(path)
        place, name = _split(path)
        below = [one for one in self._names(place, name) if _is_below(one, name)]
        depth = len(name) + 1 if name else 0
        steps = {one[depth:].partition("/")[0] for one in below} - {""}
        found = {f"{path}/{step}": _folder(f"{path}/{step}") for step in steps}
        holders = list(self._above(place, name))
        if name in below and (served := self._find(place, name)) is not None:
            holders.append((served, ""))
        for served, rest in holders:
            found |= _listed(served, f"{served.folder}/{rest}".rstrip("/"))
        if not found and name:
            found = {path: self.info(path)}  # A file, or nothing.
        return [found[one] if detail else one for one in sorted(found)]

    def walk(
        self,
        path: str,
        maxdepth: int | None = None,
        topdown: bool = True,
        on_error: str | Callable[[OSError], object] = "omit",
        **options: Any,  # noqa: ANN401 - fsspec's own
    ) -> Iterator[Any]:
        """As fsspec's, but a daemon that does not answer is never an empty folder: that raises."""
        handle = _raise_unless_absent if on_error == "omit" else on_error
        yield from super().walk(path, maxdepth, topdown, handle, **options)

    def get_file(self, rpath: str, lpath: Any = None, **options: Any) -> None:  # noqa: ANN401
        """Copy a file here, verified part by part; `get` calls it.

        Raises:
            CorruptionError: the daemon's copy is damaged, and no other one can be read.
            FileNotFoundError, ValueError, UnavailableError: as for `info`.
        """
        super().get_file(rpath, lpath, cache_type="none", **options)

    def cat_file(
        self,
        path: str,
        start: int | None = None,
        end: int | None = None,
        **_: object,
    ) -> bytes:
        """The bytes [start, end) of a file; negative numbers count from its end.

        Raises:
            FileNotFoundError, ValueError, UnavailableError: as for `info`.
            IsADirectoryError: it is a folder.
        """
        served, number, info = self._file(path)
        (found,) = served.files.read([(number, *_range(info["size"], start, end))])
        return found

    def cat_ranges(
        self,
        paths: list[str],
        starts: list[int | None] | int | None,
        ends: list[int | None] | int | None,
        max_gap: int | None = None,
        on_error: str = "return",
        **_: object,
    ) -> list[Any]:
        """The bytes of many ranges, those of one published name in one submission.

        Args:
            paths: of the files, one for each range.
            starts: as for `cat_file`, one for each range, or one for all.
            ends: as `starts`.
            max_gap: not used: the daemon is asked for what is wanted.
            on_error: "raise", or "return" an exception in the place of each range that it concerns.
        """
        if not isinstance(paths, list):
            raise TypeError(f"paths is {type(paths).__name__}; it must be a list")
        begins = starts if isinstance(starts, list) else [starts] * len(paths)
        stops = ends if isinstance(ends, list) else [ends] * len(paths)
        if not len(paths) == len(begins) == len(stops):
            raise ValueError(f"{len(paths)} paths, {len(begins)} starts and {len(stops)} ends")
        groups: defaultdict[str, list[int]] = defaultdict(list)
        for row, path in enumerate(paths):
            groups[self._strip_protocol(path).rpartition("/")[0]].append(row)
        out: list[Any] = [None] * len(paths)
        for rows in groups.values():
            asked = [(paths[row], begins[row], stops[row]) for row in rows]
            for row, found in zip(rows, self._read_group(asked, on_error), strict=True):
                out[row] = found
        return out

    def _read_group(
        self, asked: Sequence[tuple[str, int | None, int | None]], on_error: str
    ) -> list[Any]:
        """The bytes of ranges of one published name, or what stands in their place."""
        out: list[Any] = [None] * len(asked)
        ranges: dict[int, tuple[int, int, int]] = {}
        served: _Served | None = None
        for row, (path, start, end) in enumerate(asked):
            try:
                served, number, info = self._file(path, served)
                ranges[row] = (number, *_range(info["size"], start, end))
            except Exception as error:
                if on_error != "return":
                    raise
                out[row] = error
        read: Sequence[Any] = ()
        try:
            if served is not None:
                read = served.files.read(list(ranges.values()))
        except Exception as error:
            if on_error != "return":
                raise
            read = [error] * len(ranges)
        for row, found in zip(ranges, read, strict=True):
            out[row] = found
        return out

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **options: Any,  # noqa: ANN401 - fsspec's own
    ) -> "File":
        if mode != "rb":
            _refuse(self)
        return File(self, path, block_size, cache_options, **options)

    def _file(self, path: str, served: _Served | None = None) -> tuple[_Served, int, Info]:
        """A file: those that it belongs to, its number among them, and facts.

        `served`: what its folder stands for, if that is known.
        """
        path = self._strip_protocol(path)
        holders = [served] if served is not None else []
        more = (one for one, _rest in self._above(*_split(path)))
        for holder in itertools.chain(holders, more):
            rest = path.removeprefix(f"{holder.folder}/")
            if rest in holder.entries:
                return holder, *holder.entries[rest]
        self.info(path)  # Raises if it is nothing.
        raise IsADirectoryError(errno.EISDIR, f"{SCHEME}{path} is a folder; `ls` lists its files")

    def _above(self, place: str, name: str) -> Iterator[tuple[_Served, str]]:
        """Each published name that has the path in it, the longest first; and the rest of it."""
        end = name.rfind("/")
        while end > 0:
            if (served := self._find(place, name[:end])) is not None:
                yield served, name[end + 1 :]
            end = name.rfind("/", 0, end)

    def _find(self, place: str, name: str) -> _Served | None:
        """The dataset of a published name; None if there is no such name."""
        if _NEVER_PUBLISHED in name:
            return None
        address = f"{SCHEME}{place}/{name}{self._query}"
        try:
            files = _ffrecord.ServedFiles.open(address, timeout_s=self._timeout_s)
        except FileNotFoundError:
            return None
        folder = f"{place}/{name}"
        return _Served(folder, files, _entries(files, folder))

    def _names(self, place: str, prefix: str) -> list[str]:
        """The published names that begin with `prefix`, or with what may be part of a name."""
        asked = prefix.partition(_NEVER_PUBLISHED)[0]
        address = f"{SCHEME}{place}/{asked}{self._query}"
        found = _ffrecord.list_published(address, timeout_s=self._timeout_s)
        return [name for name, *_facts in found]


class File(AbstractBufferedFile):  # type: ignore[misc]
    """A served file that is open for reading; made by `FileSystem.open`.

    It stays the version that was opened: if the name is replaced, the daemon keeps the old bytes
    for its client. If it has started anew since, reads raise `FileNotFoundError`. A pickle opens it
    again, in the same version or not at all: that raises `ConflictError`.
    """

    def __init__(
        self,
        system: FileSystem,
        path: str,
        block_size: int | None,
        cache_options: dict[str, Any] | None,
        *,
        version: str | None = None,
        size: int | None = None,
        cache_type: str = "readahead",
        **options: Any,  # noqa: ANN401 - fsspec's own
    ) -> None:
        """Look the file up.

        Args:
            system: the file system.
            path: without the protocol.
            block_size: bytes that are read ahead.
            cache_options: for fsspec's cache.
            version: the `etag` that it must have.
            size: not used: the daemon tells it.
            cache_type: fsspec's; "none" for reads of a few bytes here and there.
            options: fsspec's own.

        Raises:
            ConflictError: it has another version.
            FileNotFoundError, IsADirectoryError, UnavailableError: as `FileSystem.cat_file`.
        """
        served, self._number, info = system._file(path)
        self._files = served.files
        if version not in (None, info["etag"]):
            raise ConflictError(
                f"{SCHEME}{path} was replaced: it has the version {info['etag']}, expected "
                f"{version}; open it again"
            )
        self._details = info
        if info["size"]:  # A daemon keeps the bytes of what was read while its client is there.
            self._files.read([(self._number, 0, 1)])
        super().__init__(
            system,
            path,
            "rb",
            "default" if block_size is None else block_size,
            cache_type=cache_type,
            cache_options=cache_options,
            size=info["size"],
            **options,
            version=info["etag"],
        )

    def _fetch_range(self, start: int, end: int) -> bytes:
        (found,) = self._files.read([(self._number, *_range(self.size, start, end))])
        return found


def _split(path: str) -> tuple[str, str]:
    """The daemon, and the name below it."""
    place, _, name = path.partition("/")
    if not place:
        raise ValueError(f"'{SCHEME}{path}' names no daemon: write {SCHEME}host[:port]/name/file")
    return place, name.strip("/")


def _is_below(name: str, folder: str) -> bool:
    """Whether a published name is the folder, or in it."""
    return not folder or name == folder or name.startswith(f"{folder}/")


def _folder(path: str) -> Info:
    return {"name": path, "size": 0, "type": "directory"}


def _listed(served: _Served, folder: str) -> dict[str, Info]:
    """The files and folders of a folder of a published name, by path."""
    found: dict[str, Info] = {}
    for _number, info in served.entries.values():
        inside = info["name"].removeprefix(f"{folder}/")
        if inside == info["name"]:
            continue
        step, deeper, _ = inside.partition("/")
        path = f"{folder}/{step}"
        found.setdefault(path, _folder(path) if deeper else info)
    return found


def _entries(files: _ffrecord.ServedFiles, folder: str) -> dict[str, tuple[int, Info]]:
    return {
        name: (number, {"name": f"{folder}/{name}", "size": size, "type": "file", "etag": version})
        for number, (name, size, version) in enumerate(files.files)
    }


def _range(size: int, start: int | None, end: int | None) -> tuple[int, int]:
    """Offset and size of [start, end) in a file of `size` bytes, as slices cut it."""
    first, last, _ = slice(start, end).indices(size)
    return first, max(0, last - first)


def _absent(path: str, known: Iterable[str]) -> FileNotFoundError:
    shown = sorted(known)
    more = ", ..." if len(shown) > _NAMES_SHOWN else ""
    there = f"; there are {', '.join(shown[:_NAMES_SHOWN])}{more}" if shown else ""
    return FileNotFoundError(errno.ENOENT, f"no file or folder {SCHEME}{path}{there}")


def _raise_unless_absent(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _refuse(_system: FileSystem, *_: object, **__: object) -> NoReturn:
    """Raise what everything raises that would write."""
    raise OSError(
        errno.EROFS,
        f"what a daemon serves is read-only as a file system ({SCHEME}...): ffrecord.publish puts "
        "files there, ffrecord.remove_published removes them",
    )


# fsspec would do nothing for some of these, and say nothing.
for _writing in (
    *("mkdir", "makedirs", "rmdir", "rm", "rm_file", "_rm", "touch", "cp_file", "mv"),
    *("pipe_file", "put_file"),
):
    setattr(FileSystem, _writing, _refuse)
