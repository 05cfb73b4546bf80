"""File systems of fsspec for tests: one that answers at once, one with an event loop; with faults.

Both keep their files in one shelf of this process, and tell it what they are asked for.
"""

# ruff: noqa: ANN401, D102 - fsspec's own signatures

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import fsspec
from fsspec.asyn import AsyncFileSystem

# What to do with a read of that number: None serves it; an exception is raised; "short" leaves out
# the last byte, "long" adds one, "whole" gives the whole file, "damage" flips a bit; "stall" waits
# until `Shelf.resume` is set.
Fault = Callable[[int, str], str | BaseException | None]


class Shelf:
    """Files by path, `train/x.ffr`, and what was asked for."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.versions: dict[str, int] = {}
        self.is_tagged = True
        self.resume = threading.Event()
        self.fault: Fault = lambda number, path: None
        self.reads: list[tuple[str, int, int]] = []
        self.calls: list[int] = []  # How many ranges each call had.
        self.known: dict[str, dict[str, Any]] = {}  # What its file systems remember of files.
        self.options: list[dict[str, Any]] = []
        self.lock = threading.Lock()

    def put(self, path: str, data: bytes) -> None:
        """Stores a new version of a file."""
        self.files[path] = data
        self.versions[path] = self.versions.get(path, 0) + 1

    def note(self, path: str, begin: int, end: int) -> str | BaseException | None:
        """Counts a read; numbers begin at 1."""
        with self.lock:
            self.reads.append((path, begin, end))
            number = len(self.reads)
        return self.fault(number, path)

    def info(self, path: str) -> dict[str, Any]:
        path = path.strip("/")
        if path in self.known:
            return self.known[path]
        if path in self.files:
            facts: dict[str, Any] = {
                "name": path,
                "size": len(self.files[path]),
                "type": "file",
            }
            if self.is_tagged:
                facts["etag"] = f'"{self.versions[path]}"'
            self.known[path] = facts
            return facts
        if any(name.startswith(f"{path}/" if path else "") for name in self.files):
            return {"name": path, "size": 0, "type": "directory"}
        raise FileNotFoundError(path)

    def forget(self, path: str | None) -> None:
        """As a file system does when its cache is invalidated."""
        if path is None:
            self.known.clear()
        else:
            self.known.pop(path.strip("/"), None)

    def ls(self, path: str) -> list[dict[str, Any]]:
        path = path.strip("/")
        begin = f"{path}/" if path else ""
        below = {name[len(begin) :].split("/")[0] for name in self.files if name.startswith(begin)}
        if not below:
            return [self.info(path)]
        return [self.info(begin + name) for name in sorted(below)]

    def bytes_of(self, path: str, begin: int, end: int, fault: str | None) -> bytes:
        if path not in self.files:
            raise FileNotFoundError(path)
        data = self.files[path][begin:end]
        if fault == "short":
            return data[:-1]
        if fault == "long":
            return data + b"x"
        if fault == "whole":
            return self.files[path]
        if fault == "damage":
            return bytes([data[0] ^ 1]) + data[1:]
        return data


shelf = Shelf()


class SyncShelf(fsspec.AbstractFileSystem):
    """Answers in the calling thread."""

    protocol = "shelf"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        shelf.options.append(options)

    def invalidate_cache(self, path: str | None = None) -> None:
        shelf.forget(path)

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        return shelf.info(self._strip_protocol(path))

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        listed = shelf.ls(self._strip_protocol(path))
        return listed if detail else [info["name"] for info in listed]

    def cat_ranges(self, paths: Any, starts: Any, ends: Any, **options: Any) -> Any:
        shelf.calls.append(len(paths))
        return super().cat_ranges(paths, starts, ends, **options)

    def cat_file(self, path: str, start: Any = None, end: Any = None, **options: Any) -> bytes:
        path = self._strip_protocol(path)
        fault = shelf.note(path, start, end)
        if isinstance(fault, BaseException):
            raise fault
        if fault == "stall":
            shelf.resume.wait()
        return shelf.bytes_of(path, start, end, fault)


class AsyncShelf(AsyncFileSystem):
    """Answers in fsspec's event loop."""

    protocol = "ashelf"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        shelf.options.append(options)

    def invalidate_cache(self, path: str | None = None) -> None:
        shelf.forget(path)

    async def _info(self, path: str, **options: Any) -> dict[str, Any]:
        return shelf.info(self._strip_protocol(path))

    async def _ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        listed = shelf.ls(self._strip_protocol(path))
        return listed if detail else [info["name"] for info in listed]

    async def _cat_ranges(self, paths: Any, starts: Any, ends: Any, **options: Any) -> Any:
        shelf.calls.append(len(paths))
        return await super()._cat_ranges(paths, starts, ends, **options)

    async def _cat_file(self, path: str, start: Any = None, end: Any = None, **o: Any) -> bytes:
        path = self._strip_protocol(path)
        fault = shelf.note(path, start, end)
        if isinstance(fault, BaseException):
            raise fault
        while fault == "stall" and not shelf.resume.is_set():
            await asyncio.sleep(0.01)
        return shelf.bytes_of(path, start, end, fault)


fsspec.register_implementation("shelf", SyncShelf, clobber=True)
fsspec.register_implementation("ashelf", AsyncShelf, clobber=True)


@contextmanager
def filled(files: dict[str, bytes]) -> Iterator[Shelf]:
    """The shelf with these files; what still stalls goes on at the end."""
    shelf.__init__()  # type: ignore[misc]
    SyncShelf.clear_instance_cache()
    AsyncShelf.clear_instance_cache()
    for path, data in files.items():
        shelf.put(path, data)
    yield shelf
    shelf.resume.set()
