"""Reading record files: local, served, or at a store."""

import os
import warnings
import weakref
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt

from ffrecord import _ffrecord
from ffrecord._base.addresses import SCHEME
from ffrecord._base.closeable import Closing
from ffrecord._base.process_start import is_spawning
from ffrecord._order.epoch_order import EpochShare, Indices
from ffrecord._read.batch import CORRUPT, Batch
from ffrecord._read.locations import (
    Where,
    expand,
    is_address,
    normalise,
    reads_through_fsspec,
)
from ffrecord._read.named_versions import Located, asked_version, check_is, gone, locate, newest
from ffrecord._read.opening import CACHE_SIZE, ReadOptions, refuse_missing
from ffrecord._read.read_ahead import ReadAhead
from ffrecord._read.read_rate import read_rate
from ffrecord._read.records import OnCorrupt, Records, as_indices, check_on_corrupt
from ffrecord._tables.arrow_schema import Facts, facts_of
from ffrecord._tables.logical import LogicalSchema
from ffrecord._tables.schema import Column, columns_of
from ffrecord.errors import CorruptionError

if TYPE_CHECKING:
    from concurrent import futures

    from ffrecord._read.file_info import FileInfo
    from ffrecord._read.fsspec_reads import FileService
    from ffrecord._read.queue import BatchQueue, FutureReads, LoopReads

_PROBE_MAX_S = 3600.0
# Batches of `submit`, and of each loop of `read_async`, that are read at a time.
_READS_IN_FLIGHT = 8
# Metadata of files, at a daemon or a store, that are read at a time.
_METADATA_AT_ONCE = 16
_Reads = TypeVar("_Reads", "FutureReads", "LoopReads")
_NOTHING_READ: dict[str, Any] = {
    "batches": 0,
    "batches_from_memory": 0,
    "records": 0,
    "size_bytes": 0,
    "submit_s": 0.0,
    "device_s": 0.0,
    "verify_s": 0.0,
    "decompress_s": 0.0,
}


class Reader(Records, Closing):
    """An ordered list of record files as one sequence of samples; made by `ffrecord.open`.

    Opens the files at the first use. A pickle holds only the arguments, so a reader is cheap to
    send to workers, under any start method. Many threads may use one reader, and so may a child
    after a fork.
    """

    def __init__(
        self,
        where: Where,
        *,
        check_data: bool = True,
        salvage: bool = False,
        direct: bool = False,
        timeout_s: float = 30.0,
        max_corrupt: float = 0.001,
        cache: str | os.PathLike[str] | None = None,
        cache_size: int = CACHE_SIZE,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Store the arguments; open nothing yet.

        Args:
            where: file, folder (its own `*.ffr`, sorted by code point), glob, list of these in
                its order, also of files of other kinds that `ffrecord.index` made readable; or
                `ffrecord://host[:port]/name`, also `name@version`; or, at a store,
                `s3://bucket/key`, a folder `s3://bucket/folder/`, a glob, `http(s)://host/path`, or
                a list of these; or the same with any other protocol that fsspec knows, such as
                `gs://`.
            check_data: verify the checksum of each record on every read.
            salvage: open a damaged version 1 file; records that are not whole are corrupt.
            direct: bypass the page cache, for data that is read once.
            timeout_s: time limit of each call to a daemon or store, retries included.
            max_corrupt: share of all records, 0 to 1, that `on_corrupt` may skip or replace
                before a read raises; ten records are always allowed.
            cache: folder on a local disk for a cache of what is read from a store; any number of
                processes may share it.
            cache_size: limit of the cache in bytes, at least 64 MiB; the least recently used
                blocks are removed first.
            storage_options: for fsspec's file system, such as credentials; part of a pickle.
                `s3://` and `http(s)://` are then read through fsspec, too.
        """
        self._options = ReadOptions(
            check_data=check_data,
            salvage=salvage,
            direct=direct,
            timeout_s=timeout_s,
            max_corrupt=max_corrupt,
            cache=cache,
            cache_size=cache_size,
            storage_options=storage_options,
        )
        super().__init__(max_corrupt)
        self.where = normalise(where)
        self._is_of_fsspec = reads_through_fsspec(self.where, storage_options)
        self._closed = False
        self._expected: str | None = None
        # Once one was opened: a later, newer one is not what this reader reads.
        self._version: Located | None = None
        self._inner: _ffrecord.RecordReader | None = None
        self._service: FileService | None = None
        self._kept: dict[str, tuple[_ffrecord.RecordReader, FileService | None]] = {}
        self._schema: _ffrecord.Schema | None = None
        self._logical = LogicalSchema()
        # The reads of `submit`, and of each loop that awaits reads; with the process that made
        # them.
        self._reads: weakref.WeakKeyDictionary[object, tuple[int, object]] = (
            weakref.WeakKeyDictionary()
        )

    def __len__(self) -> int:
        return len(self._open())

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of the reader, except `where`."""
        return self._options.as_arguments()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def is_local(self) -> bool:
        """Whether it reads files rather than a daemon or a store."""
        return not self._is_of_fsspec and not is_address(self.where[0])

    @property
    def logical(self) -> LogicalSchema:
        """The columns, and how they are stored."""
        self._open()
        return self._logical

    @property
    def fingerprint(self) -> str:
        """32 hex digits that change if any record, or the order of records, changes."""
        return self._open().fingerprint.hex()

    @property
    def versions(self) -> tuple[str, ...]:
        """The named version that it reads, such as `train@1.2`; empty if it is of none."""
        self._open()
        return () if self._version is None else (self._version.label,)

    @property
    def files(self) -> "tuple[FileInfo, ...]":
        """The files in order."""
        from ffrecord._read.file_info import file_info  # Few need it.

        inner = self._open()
        return tuple(file_info(inner.file(number)) for number in range(inner.file_count))

    def metadata(self, file_index: int = 0) -> dict[str, bytes]:
        """Read and check the user metadata of one file: values by name.

        Raises:
            IndexError: there is no such file.
            CorruptionError: the metadata is damaged.
        """
        return self._open().metadata(file_index)

    @property
    def size_bytes(self) -> int:
        """The size of all files."""
        return sum(file.size_bytes for file in self.files)

    def find(self, key: str | bytes) -> int | None:
        """Return the index of the first record that was written with `key`, or None.

        Raises:
            ValueError: no file was written with keys.
            CorruptionError: a part of the key index that the search needs is damaged.
            OSError: a file cannot be read.
        """
        return self.find_all([key])[0]

    def find_all(self, keys: Iterable[str | bytes]) -> list[int | None]:
        """Return the result of `find` for each of `keys`.

        Raises:
            TypeError: a key is neither text nor bytes.
        """
        if isinstance(keys, str | bytes | bytearray | memoryview):
            raise TypeError("find_all takes a list of keys; for one key, use find")
        return self._open().find([_as_key(key) for key in keys])

    def column(self, name: str, first: int = 0, count: int | None = None) -> npt.NDArray[Any]:
        """Return the values of a column of numbers: of all records, or of `count` from `first` on.

        Use it for filters and for sampling by class. If the files have a copy of the column
        (`Writer(copy_columns=...)`), only the copy is read; otherwise the records are read. A
        column in which values may be missing is a masked array, as in a batch.

        Raises:
            KeyError: there is no such column.
            ValueError: the values of the column have no fixed width.
            IndexError: there are fewer records.
            CorruptionError: a record that had to be read is damaged.
            OSError: a file cannot be read.
        """
        logical = self.logical
        kind = logical.kind(name)
        if kind.fields or kind.is_text:
            raise ValueError(f"column '{name}' is {kind.spelling}: read the records")
        values = self._stored_column(name, first, count)
        if not kind.nullable and name not in logical.full:
            return values
        missing = ~self._stored_column(f"{name}:valid", first, count)
        if not kind.nullable and not missing.any():
            return values
        shaped = missing.reshape(-1, *[1] * len(kind.shape))
        return np.ma.MaskedArray(values, np.broadcast_to(shaped, values.shape).copy())

    def _stored_column(self, name: str, first: int, count: int | None) -> npt.NDArray[Any]:
        """As `column`, of a stored column of fixed width."""
        inner = self._open()
        number = self._logical.number(name)
        column = self._logical.stored[number]
        if count is None:
            count = max(0, len(inner) - first)
        if not 0 <= first <= len(inner) or not 0 <= count <= len(inner) - first:
            raise IndexError(f"records {first} to {first + count}: there are {len(inner)}")
        values = np.empty((count, *column.shape), column.dtype)
        inner.read_column(number, first, count, values.reshape(-1).view(np.uint8))
        # Any byte may stand in a hostile file; NumPy's bool must be 0 or 1.
        return values.view(np.uint8) != 0 if column.type == "bool" else values

    def open_queue(
        self,
        *,
        batches_in_flight: int = 4,
        in_order: bool = False,
        on_corrupt: OnCorrupt = "raise",
    ) -> "BatchQueue":
        """Open a queue that reads several batches at a time.

        Args:
            batches_in_flight: batches that have memory and are read or complete, 1 to 64; others
                wait in the order of `submit`.
            in_order: `poll` returns batches in the order of `submit`; else as they become complete.
            on_corrupt: as for `read`.

        Raises:
            ValueError: an option is out of range.
            OSError: a file is missing or cannot be read.
        """
        from ffrecord._read.queue import BatchQueue  # Slow to import; many programs need none.

        check_on_corrupt(on_corrupt)
        inner = _ffrecord.BatchQueue(
            self._open(), batches_in_flight=batches_in_flight, in_order=in_order
        )
        return BatchQueue(inner, self._settle, on_corrupt)

    def submit(
        self, indices: npt.ArrayLike, *, timeout_s: float | None = None
    ) -> "futures.Future[Batch]":
        """Begin to read a batch, and return a future of it.

        Batches that were submitted are read eight at a time. A future that is cancelled before its
        batch is complete stops the read. Thread-safe. `Future.result` raises what `read` raises,
        and `DeadlineExceeded` once `timeout_s` is over.
        """
        from ffrecord._read.queue import FutureReads

        reads = self._reads_of(FutureReads, FutureReads)
        return reads.submit(indices, timeout_s)

    async def read_async(self, indices: npt.ArrayLike, *, timeout_s: float | None = None) -> Batch:
        """Read a batch while the asyncio loop does other work.

        As `read`; several tasks read at the same time, eight batches of each loop. A task that is
        cancelled stops its read. Raises `DeadlineExceeded` once `timeout_s` is over.
        """
        import asyncio  # Slow to import, and few programs use it.

        from ffrecord._read.queue import LoopReads

        reads = self._reads_of(asyncio.get_running_loop(), LoopReads)
        return await reads.read(indices, timeout_s)

    def hint_epoch(self, share: EpochShare) -> _ffrecord.PrefetchHint | None:
        """Send the daemon a prefetch hint for an epoch; it reads ahead while the result exists.

        A hint changes when bytes are read, never which bytes. A `DataLoader` sends hints without a
        call. Returns None if no daemon can use the hint: the files are local, the daemon does not
        know the order, or it cannot be reached now.
        """
        order = share.order
        if self.is_local or not order.shuffle or (order.mixture or order.weights) is not None:
            return None
        if max(share.step_size, order.block or 0, order.window or 0) >= 1 << 32:
            return None
        with suppress(OSError, ValueError, CorruptionError):  # The read itself tells what is wrong.
            inner = self._open()
            if order.count == len(inner):
                return inner.hint_epoch(share.plan())
        return None

    def open_stream(
        self,
        share: EpochShare,
        epoch_end: int,
        columns: Iterable[Column],
        *,
        decoded: Iterable[tuple[str | None, _ffrecord.NativeDecoder]] = (),
        keeps_records: bool = False,
        ahead: ReadAhead,
    ) -> _ffrecord.BatchStream:
        """Begin to read `share`, and the epochs that follow it, ahead with native threads.

        For loaders; a `DataLoader` calls it.

        Args:
            share: the rest of the first epoch; its order is no mixture.
            epoch_end: where the epochs that follow it end; they begin at 0.
            columns: columns of fixed width, of which each batch gets arrays.
            decoded: columns, or None for whole records, and their decoders.
            keeps_records: keep the records of a batch also if all these were made of it.
            ahead: the threads, 1 to 64, and the batches that are being read or are ready at first,
                1 to 256.
        """
        inner = self._open()
        number = self._logical.number
        return _ffrecord.BatchStream(
            inner,
            share.plan(),
            epoch_end=epoch_end,
            threads=ahead.threads,
            batches_ahead=ahead.depth,
            memory_limit_bytes=ahead.memory_limit_bytes,
            columns=[(number(c.name), np.dtype(c.dtype), list(c.shape)) for c in columns],
            decoded=[(None if c is None else number(c), decoder) for c, decoder in decoded],
            keeps_records=keeps_records,
        )

    def stats(self) -> dict[str, Any]:
        """Return statistics of this reader in this process.

        Returns:
            `batches`, `records` and `size_bytes`: what it read; `batches_from_memory`: batches that
            needed no device; `submit_s`, `device_s`, `verify_s`, `decompress_s`: time inside reads,
            over all threads, by the stages of `DataLoader.stats`; `damaged`: findings by record
            index.
            Readers of object stores add `store_requests` with `store_retries`, `store_hedges`
            (second requests for late answers), `store_throttled` (answers 429 and 503) and
            `store_bytes`, and of a cache `cache_hits`, `cache_misses` (merged reads that needed
            the disk or the store) and `cache_evictions` (pieces of 16 MiB).
        """
        done = _NOTHING_READ if self._inner is None else self._inner.stats()
        return {**done, "damaged": dict(self._damaged)}

    def probe(self, seconds: float = 0.25) -> float:
        """See `Records.probe`.

        Raises:
            ValueError: there are no records, or `seconds` is not above 0 and at most an hour.
            OSError: the records cannot be read.
        """
        if not 0 < seconds <= _PROBE_MAX_S:
            raise ValueError(f"seconds is {seconds}; it must be above 0, at most an hour")
        if len(self) == 0:
            raise ValueError("a speed cannot be measured with 0 records")
        options = replace(self._options, check_data=False, direct=self.is_local)
        where = self.where if self._version is None else self._version.data
        with Reader(where, **options.as_arguments()) as raw:
            return read_rate(raw, seconds)

    def close(self) -> None:
        """Release the files; batches that were read stay valid."""
        self._closed = True
        self._inner = None
        self._service = None
        self._kept = {}
        self._reads = weakref.WeakKeyDictionary()

    def __getstate__(self) -> dict[str, Any]:
        # A process that gets the reader reads the version that this one reads.
        where = self.where if self._version is None else (self._version.address,)
        state = {"where": where, **self._options.as_arguments()}
        if self._inner is not None and is_spawning():
            # A process that is being started reads for this one: the same data, or none.
            state["expected"] = self.fingerprint
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        expected = state.pop("expected", None)
        self.__init__(**state)  # type: ignore[misc]
        self._expected = expected

    def __repr__(self) -> str:
        first = repr(self.where[0])
        more = f" and {len(self.where) - 1} more" if len(self.where) > 1 else ""
        state = "not opened yet" if self._inner is None else f"{len(self._inner)} records"
        return f"<ffrecord.Reader {first}{more}: {'closed' if self._closed else state}>"

    def _open(self) -> _ffrecord.RecordReader:
        if (inner := self._inner) is not None:
            return inner
        if self._closed:
            raise ValueError(f"{self!r} cannot be read: it is closed")
        service: FileService | None = None
        if self._is_of_fsspec:
            from ffrecord._read.fsspec_reads import open_records  # Few programs use it.

            inner, service = open_records(self.where, self._options)
        else:
            inner = self._open_here(expand(self.where), self._options.timeout_s)
        if self._expected not in (None, found := inner.fingerprint.hex()):
            raise CorruptionError(
                f"{self.where[0]}: the data was replaced after this process started: its "
                f"fingerprint is {found}, expected {self._expected}; put the old files back, or "
                "make a new dataset"
            )
        # If several threads open at once, all use the reader that the first has kept, for it does
        # the counting.
        inner, service = self._kept.setdefault("reader", (inner, service))
        for warning in inner.warnings:
            warnings.warn(warning, stacklevel=3)
        self._schema = inner.schema
        self._logical = self._logical_of(inner)
        self._service = service
        self._inner = inner
        return inner

    def _logical_of(self, inner: _ffrecord.RecordReader) -> LogicalSchema:
        """The columns of all files; raises ValueError where types of Arrow do not fit."""
        stored = columns_of(inner.schema)
        if not stored:
            return LogicalSchema()
        files = range(inner.file_count)

        def facts(number: int) -> Facts:
            try:
                return facts_of(inner.metadata(number))
            except CorruptionError as error:  # The records can be read all the same.
                return Facts(trouble=str(error))

        if self.is_local or len(files) == 1:
            found = list(map(facts, files))
        else:
            from concurrent.futures import ThreadPoolExecutor  # Slow to import.

            with ThreadPoolExecutor(_METADATA_AT_ONCE, "ffrecord-open") as threads:
                found = list(threads.map(facts, files))
        return LogicalSchema.of_files(stored, lambda number: inner.file(number)["name"], found)

    def _open_here(self, files: list[bytes], timeout_s: float) -> _ffrecord.RecordReader:
        address = os.fsdecode(files[0])
        if not address.startswith(SCHEME) or len(files) > 1:
            return self._open_named(files, timeout_s)
        if self._version is None and asked_version(address) is None:
            try:
                return self._open_named(files, timeout_s)
            except FileNotFoundError:
                self._version = newest(address, timeout_s)
                if self._version is None:
                    raise
        found = self._version = self._version or locate(address, timeout_s)
        try:
            inner = self._open_named([os.fsencode(found.data)], timeout_s)
        except FileNotFoundError:
            raise gone(found) from None
        check_is(found, inner.fingerprint.hex())
        return inner

    def _open_named(self, files: list[bytes], timeout_s: float) -> _ffrecord.RecordReader:
        # The process that started this one has read from the daemon: it comes back.
        is_known = self._expected is not None
        options = replace(self._options, timeout_s=timeout_s).bound(assume_running=is_known)
        return _ffrecord.RecordReader.open(files, options)

    def _reads_of(self, owner: object, kind: type[_Reads]) -> _Reads:
        """The reads of an owner in this process, made at its first read."""
        # Two threads that make them at once use one each; a lock would stay locked in a child.
        pid, reads = self._reads.get(owner, (0, None))
        if isinstance(reads, kind) and pid == os.getpid():
            return reads
        made = kind(self.open_queue(batches_in_flight=_READS_IN_FLIGHT))
        self._reads[owner] = (os.getpid(), made)
        return made

    def _settle(
        self, read: _ffrecord.Batch, indices: npt.ArrayLike, on_corrupt: OnCorrupt
    ) -> Batch:
        batch = self._batch_of(read, as_indices(indices))

        def load(wanted: Indices, rows: Indices | None = None) -> Batch:
            return self._read(wanted)

        return self._settled(batch, load, indices, on_corrupt)

    def _sizes(self, wanted: Indices) -> Indices:
        return self._open().sizes(wanted)

    def _read(self, wanted: Indices) -> Batch:
        return self._batch_of(self._open().read_batch(wanted), wanted)

    def _batch_of(self, read: _ffrecord.Batch, wanted: Indices) -> Batch:
        assert self._schema is not None
        positive = wanted.copy()
        if wanted.size and wanted.min() < 0:
            positive[wanted < 0] += len(self)
        return Batch(read, positive, self._schema, self._logical)

    def _describe(self, index: int, status: int) -> str:
        self._raise_if_replaced(index, status)
        return self._open().describe(index, status)

    def _raise_for(self, index: int, status: int) -> NoReturn:
        self._raise_if_replaced(index, status)
        self._open().raise_for(index, status)

    def _raise_if_replaced(self, index: int, status: int) -> None:
        """Raise ConflictError if a record looks damaged because its file is another one now."""
        if self._service is None or status != CORRUPT:
            return
        inner = self._open()
        after = bisect_right(
            range(inner.file_count), index, key=lambda number: inner.file(number)["first_index"]
        )
        self._service.raise_if_replaced([after - 1])


def open(
    where: Where,
    *,
    check_data: bool = True,
    salvage: bool = False,
    direct: bool = False,
    timeout_s: float = 30.0,
    max_corrupt: float = 0.001,
    cache: str | os.PathLike[str] | None = None,
    cache_size: int = CACHE_SIZE,
    storage_options: Mapping[str, Any] | None = None,
) -> Reader:
    """Open record files, local, served or at a store; the arguments are those of `Reader`.

    A missing location raises now, with the error that a read would raise: a missing file, a folder
    or glob without record files, a file of another kind (the first eight are looked into), a
    malformed address, a dataset that its daemon does not have. A daemon or store that cannot be
    reached, and damage, show at the first use, and so does everything in a process that gets the
    reader by pickle: files stay open from the first use on.
    """
    reader = Reader(
        where,
        check_data=check_data,
        salvage=salvage,
        direct=direct,
        timeout_s=timeout_s,
        max_corrupt=max_corrupt,
        cache=cache,
        cache_size=cache_size,
        storage_options=storage_options,
    )
    refuse_missing(
        reader.where,
        is_local=reader.is_local,
        timeout_s=timeout_s,
        open_files=reader._open_here,
        open_all=reader._open,
    )
    return reader


def _as_key(key: str | bytes) -> bytes:
    if isinstance(key, str):
        return key.encode()
    if isinstance(key, bytes | bytearray | memoryview):
        return bytes(key)
    raise TypeError(f"a key is str or bytes, not {type(key).__name__}: {key!r:.60}")
