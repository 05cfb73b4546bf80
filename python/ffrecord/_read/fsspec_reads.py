"""Threads that read ranges through fsspec for the library, which waits for them."""

import asyncio
import os
import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from ffrecord import _ffrecord
from ffrecord._base import clock
from ffrecord._read import fsspec_errors as failures
from ffrecord._read.fsspec_files import (
    Mount,
    StoredFile,
    find,
    hold,
    leave_to_parent,
    let_go,
)
from ffrecord._read.opening import ReadOptions
from ffrecord.errors import ConflictError

Range = tuple[int, int, int, int]  # Id, file, offset, size.

# A call to a file system with asynchronous reads has all its ranges under way, and each thread
# makes one call at a time: 128 ranges, as at the stores that the library knows.
_ASYNC_THREADS, _ASYNC_GROUP = 4, 32
# Other file systems read the ranges of a call one by one; each thread has one of its own.
_SYNC_THREADS, _SYNC_GROUP = 8, 4
# The reads of a chain share a local copy or an archive.
_CHAIN_THREADS = 1
_RANGE_BYTES = 512 << 10  # Size of a group, for each range that it may have.
_LOOK_S = 0.2

_services: "weakref.WeakSet[FileService]" = weakref.WeakSet()


class FileService:
    """Files of fsspec's file systems, and the threads that read them for one reader.

    The threads end when `reads` is closed, which its reader does. A forked child gets threads of
    its own, and makes its file systems anew: those of the parent belong to threads and an event
    loop that the child does not have.
    """

    def __init__(self, names: Iterable[str], options: ReadOptions) -> None:
        """Find the files, and start to serve. Raises what `find` raises.

        Args:
            names: addresses.
            options: of the reader. The time limit is one to find the files, and one for each range,
                retries included. With a cache, blocks of the files are kept: after each read, the
                file system is asked for the version, so that no bytes of another one are kept.
        """
        found = find(names, options.storage_options or {}, options.timeout_s)
        self.files: Sequence[StoredFile] = found
        self._is_cached = options.cache is not None
        mounts = [file.mount for file in self.files]
        if any(mount.is_chained for mount in mounts):
            self._thread_count_max, group_count = _CHAIN_THREADS, _ASYNC_GROUP
        elif all(mount.is_async for mount in mounts):
            self._thread_count_max, group_count = _ASYNC_THREADS, _ASYNC_GROUP
        else:
            self._thread_count_max, group_count = _SYNC_THREADS, _SYNC_GROUP
        self.reads = _ffrecord.DelegatedReads(
            [(file.name, file.size_bytes, file.identity) for file in self.files],
            timeout_s=options.timeout_s,
            group_count=group_count,
            group_bytes=group_count * _RANGE_BYTES,
        )
        _services.add(self)
        self.serve()

    def serve(self) -> None:
        """Start the first thread of this process; it starts others when they are needed."""
        self._thread_count = 0
        self._start_thread()

    def raise_if_replaced(self, numbers: Iterable[int]) -> None:
        """Ask for the versions of files.

        Raises:
            ConflictError: one is not that which was opened.
        """
        for number in numbers:
            trouble = self._trouble(number)
            if isinstance(trouble, ConflictError):
                raise trouble

    def _start_thread(self) -> None:
        self._thread_count += 1
        threading.Thread(target=self._run, name="ffrecord-fsspec", daemon=True).start()

    def _run(self) -> None:
        while True:
            ranges, is_help_wanted = self.reads.take()
            if not ranges:
                return
            if is_help_wanted and self._thread_count < self._thread_count_max:
                self._start_thread()
            mounts = {self._mount_of(one).key: self._mount_of(one) for one in ranges}
            for key, mount in mounts.items():
                self._read(mount, [one for one in ranges if self._mount_of(one).key == key])

    def _mount_of(self, one: Range) -> Mount:
        return self.files[one[1]].mount

    def _read(self, mount: Mount, ranges: Sequence[Range]) -> None:
        """Answer ranges of one file system. Raises nothing: the library waits for all answers."""
        try:
            results = self._cat(mount, ranges)
            if results is None:
                return
            numbers = {number for _, number, _, _ in ranges}
            troubles = {number: self._trouble(number) for number in numbers if self._is_cached}
            for one, result in zip(ranges, results, strict=True):
                self._settle(one, troubles.get(one[1]) or result)
        except BaseException as error:  # A client that calls sys.exit(), too: the thread goes on.
            for one in ranges:  # Those that were answered are not concerned.
                self._refuse(one, error)

    def _cat(self, mount: Mount, ranges: Sequence[Range]) -> Sequence[Any] | None:
        """Bytes or an exception for each range; None if nobody waits for any of them."""
        system = mount.here()
        paths = [self.files[number].path for _, number, _, _ in ranges]
        begins = [offset for _, _, offset, _ in ranges]
        ends = [offset + size for _, _, offset, size in ranges]
        results: Sequence[Any]
        if not mount.is_async:
            results = system.cat_ranges(paths, begins, ends, on_error="return")
            return results
        reading = system._cat_ranges(paths, begins, ends, on_error="return")
        future = asyncio.run_coroutine_threadsafe(reading, system.loop)
        while not clock.is_done(future, _LOOK_S):
            if not any(self.reads.is_wanted(id_) for id_, _, _, _ in ranges):
                future.cancel()
                return None
        results = future.result()
        return results

    def _settle(self, one: Range, result: Any) -> None:  # noqa: ANN401 - what a file system gives
        id_, number, _, size = one
        if isinstance(result, BaseException):
            self._refuse(one, result)
        elif len(result) < size and isinstance(trouble := self._trouble(number), ConflictError):
            self._refuse(one, trouble)
        else:
            self.reads.answer(id_, result)

    def _refuse(self, one: Range, error: BaseException) -> None:
        id_, number, _, _ = one
        kind, retry = failures.meaning(error)
        if kind == "unavailable" and retry == "never":  # Such as a range behind the end.
            trouble = self._trouble(number)
            if isinstance(trouble, ConflictError):
                kind, error = "conflict", trouble
        if isinstance(error, ConflictError):
            message = str(error.strerror)
        else:
            message = f"{self.files[number].name}: {failures.text_of(error)}"
        self.reads.refuse(id_, kind, message, retry)

    def _trouble(self, number: int) -> Exception | None:
        """Why bytes that were read just now may not be of the version that was opened."""
        file = self.files[number]
        try:
            if not file.is_replaced():
                return None
        except FileNotFoundError:  # It was there when it was read.
            return None
        except Exception as error:
            return error
        return failures.exception(
            "conflict", f"{file.name} was replaced since it was opened; open it again"
        )


def open_records(
    where: Sequence[str], options: ReadOptions
) -> tuple[_ffrecord.RecordReader, FileService]:
    """Open a reader over the files at addresses."""
    service = FileService(where, options)
    try:
        inner = _ffrecord.RecordReader.open_delegated(service.reads, options.bound())
    except BaseException:
        service.reads.close()
        raise
    return inner, service


def _serve_in_child() -> None:
    leave_to_parent()
    for service in list(_services):
        service.serve()


os.register_at_fork(before=hold, after_in_parent=let_go, after_in_child=_serve_in_child)
