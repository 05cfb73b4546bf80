"""From addresses of fsspec's file systems to the files that they stand for."""

import glob
import re
import selectors
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from ffrecord._base import clock
from ffrecord._base.addresses import WEB
from ffrecord._read import fsspec_errors as failures
from ffrecord.errors import DeadlineExceeded

Options = Mapping[str, Any]
Info = Mapping[str, Any]
_Item = TypeVar("_Item")
_Made = TypeVar("_Made")

# Facts of a file that differ between any two versions of it, the best first; the names are those
# that file systems use.
_VERSION_TAGS = (
    *("etag", "ETag", "generation", "version_id", "VersionId", "md5Hash", "md5", "Content-MD5"),
    *("content_md5", "content_hash", "blob_id", "sha256", "checksum", "crc32c", "CRC", "hex"),
)
_VERSION_TIMES = (
    *("mtime", "last_modified", "LastModified", "Last-Modified", "modified", "last_write_time"),
    *("updated", "created", "time"),
)
# Options of a file system that let somebody in, and are not where it is.
_CREDENTIALS = re.compile("key|secret|token|password|passphrase|cred|signature|sas|auth", re.I)
_OPENERS_MAX = 16
_kinds: set[type[Any]] = set()
"""Kinds of file systems that were made."""
_held: list[list[Any]] = []
"""Those that are there while the process forks; of a forked child, those of its parents."""
_FIRST_PAUSE_S, _PAUSE_MAX_S = 0.05, 3.0


@dataclass(frozen=True)
class Mount:
    """How to make a file system, in any thread and process."""

    kind: type[Any]
    arguments: tuple[Any, ...]
    options: Options
    is_chained: bool

    @cached_property
    def key(self) -> str:
        """The same for mounts that make the same file system."""
        return f"{self.kind} {self.arguments} {self.options} {self.is_chained}"

    @property
    def place(self) -> str:
        """Where the file system is, in every process: an address may leave that to options.

        Without credentials, which change although the place does not.
        """
        return f"{self.kind.__module__}.{self.kind.__qualname__} " + repr(
            [_plain(self.arguments), _plain(self.options)]
        )

    def here(self) -> Any:  # noqa: ANN401 - fsspec has no types
        """The file system for this thread; fsspec keeps those that it has made."""
        return self.kind(*self.arguments, **self.options)

    @property
    def is_async(self) -> bool:
        """Whether many ranges are read at a time by one call, which can be cancelled.

        A chain (`simplecache::gs://...`) has one local copy or archive that its reads share.
        """
        return bool(self.kind.async_impl) and not self.is_chained


@dataclass(frozen=True)
class StoredFile:
    """A file of a file system, in the version that was found."""

    mount: Mount
    path: str
    name: str
    size_bytes: int
    info: Info

    @property
    def version(self) -> str:
        """Text that another version does not have; empty if the file system has none."""
        for key in (*_VERSION_TAGS, *_VERSION_TIMES):
            if (value := _fact(self.info, key)) is not None:
                return f"{key}={value}"
        return ""

    @property
    def identity(self) -> str:
        """Text that no other file or version has; empty if the file system has no versions."""
        return f"{self.version}\n{self.mount.place}" if self.version else ""

    def is_same(self, now: Info) -> bool:
        """Whether `now` is about the same version, as far as both can tell.

        A listing and a question about one file may know different facts: only those count that
        both have, and times only where there is no tag.
        """
        if now.get("size") not in (None, self.size_bytes):
            return False
        for keys in (_VERSION_TAGS, _VERSION_TIMES):
            pairs = [(_fact(self.info, key), _fact(now, key)) for key in keys]
            known = [(before, after) for before, after in pairs if before and after]
            if known:
                return all(before == after for before, after in known)
        return True

    def is_replaced(self) -> bool:
        """Ask the file system, past what it remembers. May raise what it raises."""
        system = self.mount.here()
        system.invalidate_cache(self.path)
        return not self.is_same(system.info(self.path))


def find(names: Iterable[str], options: Options, timeout_s: float) -> list[StoredFile]:
    """Every file that the addresses stand for, in their order.

    A folder stands for its own `*.ffr`, a glob for its matches, both sorted.

    Raises:
        ValueError: there is no such kind of address.
        ImportError: fsspec, or the package of a file system, is not installed.
        OSError: an address stands for nothing, or its store refuses or does not answer.
    """
    given = list(names)
    _import_fsspec(given[0])
    end = clock.now() + timeout_s
    found = _in_threads(lambda name: _patiently(lambda: _find_one(name, options), name, end), given)
    return [file for files in found(end) for file in files]


def _import_fsspec(name: str) -> None:
    try:
        import fsspec  # noqa: F401 - optional, and slow to import
    except ImportError as error:
        raise ImportError(
            f"{failures.without_secrets(name)}: stores of this kind are read through fsspec, which "
            "is not installed: pip install 'ffrecord[fsspec]'"
        ) from error


def _mount(name: str, options: Options) -> tuple[Mount, str]:
    from fsspec.core import url_to_fs

    shown = failures.without_secrets(name)
    try:
        system, path = url_to_fs(name, **options)
    except ImportError as error:
        raise ImportError(f"{shown}: a package is missing: {error}") from error
    except ValueError as error:
        raise ValueError(
            f"{shown}: unknown kind of address, or a wrong option of its store: {error}; there are "
            "paths, ffrecord://, s3://, http(s)://, and the protocols that fsspec knows"
        ) from error
    _kinds.add(type(system))
    mount = Mount(type(system), system.storage_args, dict(system.storage_options), "::" in name)
    return mount, path


def hold() -> None:
    """Before a fork: see `leave_to_parent`."""
    caches = [getattr(kind, "_cache", {}) for kind in list(_kinds)]
    _held.append([system for cache in caches for system in list(cache.values())])


def let_go() -> None:
    """After a fork, in the parent."""
    _held.pop()


def leave_to_parent() -> None:
    """Keep the file systems that a parent has made from being closed in its forked child.

    fsspec makes them anew in the child, and frees these, whose sessions would then close their
    connections: in an event loop whose epoll instance is the parent's, too. The parent would never
    hear from those connections again.
    """
    for system in _held[-1]:
        _forget_connections(system)


def _forget_connections(system: Any) -> None:  # noqa: ANN401 - fsspec has no types
    """Let the child's exit, which closes the sessions all the same, reach nothing of the parent."""
    while system is not None:
        loop: Any = getattr(system, "_loop", None)
        if hasattr(loop, "_selector"):
            loop._selector = selectors.DefaultSelector()
        system = getattr(system, "fs", None)  # Of a chain.


def _find_one(name: str, options: Options) -> list[StoredFile]:
    mount, path = _mount(name, options)
    system = mount.here()
    system.invalidate_cache()  # Listings that it remembers may name versions that are gone.
    shown = failures.without_secrets(name)
    if _is_pattern(name, path):
        found = [info for info in system.glob(path, detail=True).values() if _is_file(info)]
        what = f"no file matches {shown}"
    else:
        info = system.info(path)
        if _is_file(info):
            return [_stored(mount, path, shown, info)]
        listed = system.ls(path, detail=True)
        found = [info for info in listed if _is_file(info) and info["name"].endswith(".ffr")]
        what = f"no *.ffr files in the folder {shown}"
    if not found:
        raise FileNotFoundError(what)
    found.sort(key=lambda info: str(info["name"]))
    prefix = name.rpartition("::")[0]
    chain = f"{prefix}::" if prefix else ""
    return [
        _stored(mount, info["name"], chain + _unstripped(system, info["name"]), info)
        for info in found
    ]


def _unstripped(system: Any, path: str) -> str:  # noqa: ANN401 - fsspec has no types
    return failures.without_secrets(str(system.unstrip_protocol(path)))


def _is_pattern(name: str, path: str) -> bool:
    # The address of a web page may have a question mark.
    return "*" in path if name.startswith(WEB) else glob.has_magic(path)


def _is_file(info: Info) -> bool:
    return bool(info.get("type", "file") == "file")


def _plain(value: object) -> object:
    """The part of an option that is the same text in every process, without credentials."""
    if isinstance(value, Mapping):
        pairs = ((str(name), _plain(one)) for name, one in value.items())
        return sorted(
            pair for pair in pairs if pair[1] is not None and not _CREDENTIALS.search(pair[0])
        )
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return repr(value) if isinstance(value, str | bytes | int | float) else None


def _stored(mount: Mount, path: str, shown: str, info: Info) -> StoredFile:
    size = info.get("size")
    if not isinstance(size, int) or size < 0:
        raise ValueError(f"{shown}: its store does not tell the size of the file")
    return StoredFile(mount, path, shown, size, dict(info))


def _fact(info: Info, key: str) -> str | None:
    value = info.get(key)
    return None if value in (None, "") else str(value).strip('"')


def _patiently(work: Callable[[], _Made], name: str, end: float) -> _Made:
    """The result of `work`, tried again until `end` if its failure may pass."""
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            return work()
        except (ImportError, ValueError):
            raise
        except Exception as error:
            kind, retry = failures.meaning(error)
            if retry == "never" or clock.now() + pause_s > end:
                shown = failures.without_secrets(name)
                raise failures.exception(kind, f"{shown}: {failures.text_of(error)}") from error
        clock.sleep(pause_s)
        pause_s = min(2 * pause_s, _PAUSE_MAX_S)


def _in_threads(
    work: Callable[[_Item], _Made], items: list[_Item]
) -> Callable[[float], list[_Made]]:
    """Begin `work` on all items, in threads that end with the process.

    Returns a function that waits for the results until a time of the clock, and raises the first
    error. The caller can be interrupted meanwhile, however long a file system waits.
    """
    made: dict[int, _Made] = {}
    raised: list[Exception] = []
    changed = threading.Condition()
    places = iter(range(len(items)))

    def run() -> None:
        while True:
            with changed:
                place = next(places, None)
                if place is None or raised:
                    return
            try:
                value = work(items[place])
            except Exception as error:
                with changed:
                    raised.append(error)
                    changed.notify_all()
                return
            with changed:
                made[place] = value
                changed.notify_all()

    for _ in range(min(_OPENERS_MAX, len(items))):
        threading.Thread(target=run, name="ffrecord-open", daemon=True).start()

    def have_ended(limit_s: float) -> bool:
        with changed:
            return changed.wait_for(lambda: bool(raised) or len(made) == len(items), limit_s)

    def results(end: float) -> list[_Made]:
        # A file system that was to answer at the last moment may say why it does not.
        if not clock.wait(have_ended, max(0.0, end + 1 - clock.now())):
            raise DeadlineExceeded(
                f"open {failures.without_secrets(str(items[0]))}: its store does not answer; with "
                "timeout_s= you can wait longer"
            )
        with changed:
            if raised:
                raise raised[0]
            return [made[place] for place in range(len(items))]

    return results
