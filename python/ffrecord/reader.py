"""Reading record files, local or served."""

import operator
import warnings
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self, overload

import numpy as np
import numpy.typing as npt

from ffrecord import _ffrecord
from ffrecord.batch import Batch, Sample
from ffrecord.errors import CorruptionError
from ffrecord.locations import Where, expand, normalise
from ffrecord.schema import Column, columns_of

OnCorrupt = Literal["raise", "skip", "replace", "keep"]

# Iteration reads about so much at a time: large enough for the device, small beside the data.
_READ_AHEAD_BYTES = 8 << 20
_READ_AHEAD_RECORDS_MAX = 4096
# So many damaged records are always put up with, lest one of a hundred be "too many".
_DAMAGED_ALWAYS_ALLOWED = 10
_TIMEOUT_MAX_S = 86_400.0


@dataclass(frozen=True)
class FileInfo:
    """What is known of one file without reading its records; sizes in bytes."""

    name: str
    format_version: int
    size_bytes: int
    record_count: int
    first_index: int
    fingerprint: str
    warnings: tuple[str, ...]


class Reader:
    """An ordered list of record files as one sequence of samples; made by `ffrecord.open`.

    Nothing is opened before the first use, and pickling keeps only the arguments: cheap to send to
    workers, under any start method. May be used by many threads, and in a child after a fork.
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
    ) -> None:
        """Remember what to open.

        Args:
            where: file, folder (its own `*.ffr`, sorted by code point), glob, list of these in
                its order, or `ffrecord://host[:port]/name`.
            check_data: verify the checksum of each record on every read.
            salvage: open a damaged version 1 file; records that are not whole are corrupt.
            direct: read past the page cache, for data that is read once.
            timeout_s: for each call to a daemon, retries included.
            max_corrupt: share of all records, 0 to 1, that `on_corrupt` may skip or replace
                before it raises after all; ten records are always allowed.
        """
        if not 0 < timeout_s <= _TIMEOUT_MAX_S:
            raise ValueError(f"timeout_s is {timeout_s}; it must be above 0, at most a day")
        if not 0 <= max_corrupt <= 1:
            raise ValueError(f"max_corrupt is {max_corrupt}; it is a share, 0 to 1")
        self.where = normalise(where)
        self._options: dict[str, Any] = {
            "check_data": check_data,
            "salvage": salvage,
            "direct": direct,
            "timeout_s": timeout_s,
            "max_corrupt": max_corrupt,
        }
        self._max_corrupt = max_corrupt
        self._closed = False
        self._inner: _ffrecord.RecordReader | None = None
        self._kept: dict[str, _ffrecord.RecordReader] = {}
        self._schema: _ffrecord.Schema | None = None
        self._columns: tuple[Column, ...] = ()
        self._damaged: dict[int, str] = {}

    def read(self, indices: npt.ArrayLike, *, on_corrupt: OnCorrupt = "raise") -> Batch:
        """Read records in one submission.

        Args:
            indices: integers, shape (n,), in [-len(self), len(self)); any order, may repeat.
            on_corrupt: what becomes of a record that cannot be read: "raise"; "skip" leaves it
                out; "replace" takes the next good one by index; "keep" leaves it empty, with its
                `status`. A daemon that is gone always raises.

        Returns:
            The records in that order; views of one block.

        Raises:
            IndexError: an index is out of range; nothing was read.
            CorruptionError: a record fails its checksum; names file and index.
            OSError: a file is missing or cannot be read.
            UnavailableError: the daemon does not answer.
            DeadlineExceeded: the daemon did not answer in time.
        """
        if on_corrupt not in ("raise", "skip", "replace", "keep"):
            raise ValueError(f"on_corrupt is {on_corrupt!r}; it can be raise, skip, replace, keep")
        wanted = _as_indices(indices)
        batch = self._read(wanted)
        if not batch.status.any():
            return batch
        self._note_damage(batch, on_corrupt)
        if on_corrupt == "keep":
            return batch
        if on_corrupt == "skip":
            return batch.select(np.flatnonzero(batch.status == 0))
        return self._replace_damaged(batch)

    def batches(
        self,
        size: int | None = None,
        *,
        start: int = 0,
        stop: int | None = None,
        on_corrupt: OnCorrupt = "raise",
    ) -> Iterator[Batch]:
        """Yield the records [start, stop) in order, `size` at a time, reading one batch ahead."""
        stop = len(self) if stop is None else min(stop, len(self))
        step = self._read_ahead_records() if size is None else size
        if step < 1:
            raise ValueError(f"size is {step}; a batch has at least one record")
        # The thread waits without the GIL: the caller works on one batch while the next is read.
        with ThreadPoolExecutor(1, "ffrecord-read-ahead") as thread:
            ahead: Future[Batch] | None = None
            for first in range(start, stop, step):
                indices = np.arange(first, min(first + step, stop), dtype=np.int64)
                following = thread.submit(self.read, indices, on_corrupt=on_corrupt)
                if ahead is not None:
                    yield ahead.result()
                ahead = following
            if ahead is not None:
                yield ahead.result()

    def __len__(self) -> int:
        return len(self._open())

    @overload
    def __getitem__(self, key: int) -> Sample: ...
    @overload
    def __getitem__(self, key: slice) -> Batch: ...
    def __getitem__(self, key: int | slice) -> Sample | Batch:
        if isinstance(key, slice):
            return self.read(np.arange(*key.indices(len(self)), dtype=np.int64))
        try:
            index = operator.index(key)
        except TypeError:
            message = f"an index or a slice is needed, not {type(key).__name__}; for many: read()"
            raise TypeError(message) from None
        return self.read([index])[0]

    def __iter__(self) -> Iterator[Sample]:
        for batch in self.batches():
            yield from batch

    @property
    def schema(self) -> dict[str, str]:
        """Type by column, as `Writer` takes it; empty if records are just bytes."""
        self._open()
        return {column.name: column.spelling for column in self._columns}

    @property
    def columns(self) -> tuple[Column, ...]:
        """Name, type and shape of each column."""
        self._open()
        return self._columns

    @property
    def fingerprint(self) -> str:
        """32 hex digits that change if any record, or the order of records, changes."""
        return self._open().fingerprint.hex()

    @property
    def files(self) -> tuple[FileInfo, ...]:
        """The files in order."""
        inner = self._open()
        return tuple(_file_info(inner.file(number)) for number in range(inner.file_count))

    def stats(self) -> dict[str, Any]:
        """What this reader did in this process.

        Returns:
            `batches`, `records` and `size_bytes` read, `wait_s` inside reads over all threads,
            and `damaged`: what was found, by record index.
        """
        done = {"batches": 0, "records": 0, "size_bytes": 0, "wait_s": 0.0}
        if self._inner is not None:
            done = self._inner.stats()
        return {**done, "damaged": dict(self._damaged)}

    def close(self) -> None:
        """Let go of the files; batches that were read stay valid."""
        self._closed = True
        self._inner = None
        self._kept = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"where": self.where, **self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def __repr__(self) -> str:
        first = repr(self.where[0])
        more = f" and {len(self.where) - 1} more" if len(self.where) > 1 else ""
        state = "not opened yet" if self._inner is None else f"{len(self._inner)} records"
        return f"<ffrecord.Reader {first}{more}: {'closed' if self._closed else state}>"

    def _open(self) -> _ffrecord.RecordReader:
        if (inner := self._inner) is not None:
            return inner
        if self._closed:
            raise ValueError(f"{self!r} cannot be read any more")
        inner = _ffrecord.RecordReader.open(
            expand(self.where),
            check_data=self._options["check_data"],
            salvage=self._options["salvage"],
            direct=self._options["direct"],
            timeout_s=self._options["timeout_s"],
        )
        # Of threads that open at once all use what the first has kept, for it does the counting.
        inner = self._kept.setdefault("reader", inner)
        for warning in inner.warnings:
            warnings.warn(warning, stacklevel=3)
        self._schema = inner.schema
        self._columns = columns_of(inner.schema)
        self._inner = inner
        return inner

    def _read(self, wanted: npt.NDArray[np.int64]) -> Batch:
        inner = self._open()
        assert self._schema is not None
        batch = inner.read_batch(wanted)
        positive = np.where(wanted < 0, wanted + len(inner), wanted)
        return Batch(batch, positive, self._schema, self._columns)

    def _note_damage(self, batch: Batch, on_corrupt: OnCorrupt) -> None:
        inner = self._open()
        for row in np.flatnonzero(batch.status).tolist():
            index, status = int(batch.indices[row]), int(batch.status[row])
            if on_corrupt == "raise" or status not in _DAMAGED_STATUSES:
                inner.raise_for(index, status)
            self._damaged.setdefault(index, inner.describe(index, status))
        allowed = max(_DAMAGED_ALWAYS_ALLOWED, int(self._max_corrupt * len(inner)))
        if on_corrupt != "keep" and len(self._damaged) > allowed:
            last = next(reversed(self._damaged.values()))
            raise CorruptionError(
                f"{len(self._damaged)} damaged records, more than the {allowed} that max_corrupt="
                f"{self._max_corrupt} allows; the last: {last}. Run `ffrecord verify` on the files"
            )

    def _replace_damaged(self, batch: Batch) -> Batch:
        """Every damaged record's place taken by the next good one by index."""
        count = len(self)
        indices = np.array(batch.indices)
        damaged = np.flatnonzero(batch.status)
        for _ in range(count):
            indices[damaged] = (indices[damaged] + 1) % count
            candidates = self._read(indices[damaged])
            self._note_damage(candidates, "replace")
            damaged = damaged[candidates.status != 0]
            if damaged.size == 0:
                return self.read(indices, on_corrupt="raise")
        raise CorruptionError(f"none of the {count} records of {self!r} is good")

    def _read_ahead_records(self) -> int:
        total = sum(file.size_bytes for file in self.files)
        mean = max(1, total // max(1, len(self)))
        return min(_READ_AHEAD_RECORDS_MAX, max(1, _READ_AHEAD_BYTES // mean))


# Codes of result.h that speak of the record, not of the way to it: kCorruption and kIo.
_DAMAGED_STATUSES = (3, 4)


def open(
    where: Where,
    *,
    check_data: bool = True,
    salvage: bool = False,
    direct: bool = False,
    timeout_s: float = 30.0,
    max_corrupt: float = 0.001,
) -> Reader:
    """Open record files, local or served; the arguments are those of `Reader`.

    Nothing is touched before the first use: a missing file shows then.
    """
    return Reader(
        where,
        check_data=check_data,
        salvage=salvage,
        direct=direct,
        timeout_s=timeout_s,
        max_corrupt=max_corrupt,
    )


def _as_indices(indices: npt.ArrayLike) -> npt.NDArray[np.int64]:
    array = np.asarray(indices)
    if array.ndim != 1:
        raise ValueError(f"indices have the shape {array.shape}; (n,) is needed")
    if array.size == 0:
        return np.empty(0, np.int64)
    if array.dtype.kind == "u" and int(array.max()) >= 2**63:
        raise IndexError(f"record index {array.max()} is out of range")
    if array.dtype.kind not in "iu":
        raise TypeError(f"indices are {array.dtype}; integers are needed")
    return np.ascontiguousarray(array, np.int64)


def _file_info(info: dict[str, Any]) -> FileInfo:
    fields = {
        **info,
        "fingerprint": info["fingerprint"].hex(),
        "warnings": tuple(info["warnings"]),
    }
    return FileInfo(**fields)
