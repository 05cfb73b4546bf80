"""The base of everything that is read in batches: files, and views of them."""

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NoReturn, overload

import numpy as np
import numpy.typing as npt

from ffrecord._order.epoch_order import IndexBatch, Indices, mixture_of, successors
from ffrecord._order.mixture import Mixture
from ffrecord._read.batch import Batch, Sample
from ffrecord._read.choice import Choice, digest, positive
from ffrecord._tables.formats import Format, checked
from ffrecord._tables.logical import LogicalSchema
from ffrecord._tables.schema import Column
from ffrecord.errors import CorruptionError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from ffrecord.decode._decoder import Decode, Timed

OnCorrupt = Literal["raise", "skip", "replace", "keep"]

# Iteration reads about so much at a time: large enough for the device, small beside the data.
_READ_AHEAD_BYTES = 8 << 20
_READ_AHEAD_RECORDS_MAX = 4096
# Tolerate this many damaged records even in small datasets.
_DAMAGED_ALWAYS_ALLOWED = 10
# Codes of result.h that speak of the record, not of the way to it: kCorruption and kIo.
_DAMAGED_STATUSES = (3, 4)
_FILTER_STEP = 1 << 20


class Records(ABC):
    """An ordered sequence of samples that is read in batches."""

    def __init__(self, max_corrupt: float) -> None:
        """Store which share of the records may be damaged."""
        if not 0 <= max_corrupt <= 1:
            raise ValueError(f"max_corrupt is {max_corrupt}; it is a share, 0 to 1")
        self._max_corrupt = max_corrupt
        self._damaged: dict[int, str] = {}

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def logical(self) -> LogicalSchema:
        """The columns, and how they are stored."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """Name, type and shape of each column."""
        return self.logical.columns

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """32 hex digits that change if any record, or the order of records, changes."""

    @property
    def versions(self) -> tuple[str, ...]:
        """The named versions that it reads, such as `train@1.2`, in order; empty if of none."""
        return ()

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """The size of the files behind it."""

    @abstractmethod
    def stats(self) -> dict[str, Any]:
        """Return statistics of the reads in this process."""

    @abstractmethod
    def probe(self, seconds: float = 0.25) -> float:
        """Measure how fast these records can be read, in bytes/s; a loader is compared with it.

        Reads random batches for `seconds`, with one thread per processor, past the page cache and
        without checks. A daemon may answer from its own page cache.
        """

    @abstractmethod
    def _sizes(self, wanted: Indices) -> Indices:
        """Size of each record in bytes, from the index alone; `wanted` are positive."""

    @abstractmethod
    def _read(self, wanted: Indices) -> Batch:
        """Records with their statuses, the bad ones empty; `indices` are positive."""

    @abstractmethod
    def _describe(self, index: int, status: int) -> str:
        """Why the record has that status, for people."""

    @abstractmethod
    def _raise_for(self, index: int, status: int) -> NoReturn:
        """Raise the Python exception that belongs to the status."""

    def __getstate__(self) -> dict[str, Any]:
        """A copy has the same records, and has found no damage yet."""
        return {**vars(self), "_damaged": {}}

    @property
    def schema(self) -> dict[str, str]:
        """Type by column, as `Writer` takes it; empty if the records are plain bytes.

        Columns of tables that are nullable, ragged or nested are spelled for people, `i64?` or
        `list<utf8>`; `Writer` takes a schema of Arrow for these.
        """
        return self.logical.schema

    @property
    def format(self) -> Format:
        """The format of the values that `read` returns; see `with_format`."""
        return "numpy"

    def with_format(self, format: str) -> "Records":
        """Return a view whose samples and columns come in another format; nothing is read.

        Args:
            format: "numpy", as `Batch` describes them; "bytes", the same with bytes and plain
                records as `bytes`, for code that takes no arrays, such as `json.loads`; "torch",
                numbers and bytes as tensors, bf16 as `torch.bfloat16`; "arrow", a sample as a
                `pyarrow.Table` of one row, a column as a `pyarrow.Array`; `Batch.to_arrow` gives
                the whole table. A decoder's result keeps its type in "bytes".

        Raises:
            ValueError: there is no such format.
        """
        return Formatted.of(self, format)

    def read(
        self,
        indices: npt.ArrayLike,
        *,
        on_corrupt: OnCorrupt = "raise",
        decode: "Decode | Timed | None" = None,
    ) -> Batch:
        """Read records in one submission.

        Args:
            indices: integers, shape (n,), in [-len(self), len(self)); any order, may repeat.
            on_corrupt: what to do with a record that cannot be read. "raise" raises; "skip"
                leaves it out; "replace" reads the next good record in its place, in the order of
                the `Sampler` if the indices come from one, else by index; "keep" leaves it empty,
                with its `status`. If the daemon cannot be reached, the read always raises.
            decode: decoders by column, or one decoder for records that are plain bytes; see
                `ffrecord.decode`. A record that cannot be decoded counts as corrupt.

        Returns:
            The records in the order of `indices`; views of one block.

        Raises:
            IndexError: an index is out of range; nothing was read.
            CorruptionError: a record fails its checksum; names file and index.
            OSError: a file is missing or cannot be read.
            UnavailableError: the daemon does not answer.
            DeadlineExceeded: the daemon did not answer in time.
        """
        check_on_corrupt(on_corrupt)

        def load(wanted: Indices, rows: Indices | None = None) -> Batch:
            batch = self._read(wanted)
            if decode is None:
                return batch
            # Slow to import, and few reads decode.
            from ffrecord._read.decoding import Origin, decoded

            return decoded(batch, decode, Origin.of(indices), rows)

        batch = self._settled(load(as_indices(indices)), load, indices, on_corrupt)
        return batch if self.format == batch.format else batch.with_format(self.format)

    def _settled(
        self,
        batch: Batch,
        load: Callable[..., Batch],
        indices: npt.ArrayLike,
        on_corrupt: OnCorrupt,
    ) -> Batch:
        """The batch that was read for `indices`, with `on_corrupt` applied to it."""
        if not batch.status.any():
            return batch
        self._note_damage(batch, on_corrupt)
        if on_corrupt == "keep":
            return batch
        if on_corrupt == "skip":
            return batch.select(np.flatnonzero(batch.status == 0))
        return self._replace_damaged(batch, load, *successors(indices, batch.indices, len(self)))

    def batches(
        self,
        size: int | None = None,
        *,
        start: int = 0,
        stop: int | None = None,
        on_corrupt: OnCorrupt = "raise",
        decode: "Decode | Timed | None" = None,
    ) -> Iterator[Batch]:
        """Yield the records [start, stop) in order, `size` at a time, reading one batch ahead.

        Raises:
            ValueError: `size` is below 1, or `start` or `stop` below 0.
        """
        if start < 0 or (stop is not None and stop < 0):
            raise ValueError(f"start is {start}, stop is {stop}; neither may be below 0")
        stop = len(self) if stop is None else min(stop, len(self))
        step = self._read_ahead_records() if size is None else size
        if step < 1:
            raise ValueError(f"size is {step}; a batch has at least one record")
        from concurrent.futures import ThreadPoolExecutor  # Slow to import.

        # The thread waits without the GIL: the caller works on one batch while the next is read.
        with ThreadPoolExecutor(1, "ffrecord-read-ahead") as thread:
            ahead: Future[Batch] | None = None
            for first in range(start, stop, step):
                indices = np.arange(first, min(first + step, stop), dtype=np.int64)
                following = thread.submit(self.read, indices, on_corrupt=on_corrupt, decode=decode)
                if ahead is not None:
                    yield ahead.result()
                ahead = following
            if ahead is not None:
                yield ahead.result()

    def subset(self, indices: npt.ArrayLike | range | slice) -> "Subset":
        """Return a view of some records, in that order, without reading or copying records.

        Args:
            indices: a range, a slice, or integers of shape (n,); they may repeat.

        Raises:
            IndexError: an index is out of range.
        """
        return Subset(self, indices)

    def filter(self, keep: npt.ArrayLike | Callable[[Indices], npt.NDArray[np.bool_]]) -> "Subset":
        """Return a view of the records that `keep` selects, without reading records.

        Args:
            keep: booleans of shape (len(self),), or a function from indices, shape (m,), to them;
                where they are masked, as comparisons of a nullable column, a record is left out.

        Raises:
            ValueError: `keep` does not give one boolean per record.
        """
        count = len(self)
        if callable(keep):
            pieces = []
            for first in range(0, count, _FILTER_STEP):
                indices = np.arange(first, min(first + _FILTER_STEP, count), dtype=np.int64)
                pieces.append(_as_mask(keep(indices), indices.size))
            mask = np.concatenate(pieces) if pieces else np.empty(0, np.bool_)
        else:
            mask = _as_mask(keep, count)
        return self.subset(np.flatnonzero(mask))

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
            message = f"expected an index or a slice, not {type(key).__name__}; for many: read()"
            raise TypeError(message) from None
        return self.read([index])[0]

    def __iter__(self) -> Iterator[Sample]:
        for batch in self.batches():
            yield from batch

    def _note_damage(self, batch: Batch, on_corrupt: OnCorrupt) -> None:
        for row in np.flatnonzero(batch.status).tolist():
            index, status = int(batch.indices[row]), int(batch.status[row])
            if on_corrupt == "raise" or status not in _DAMAGED_STATUSES:
                if row in batch.reasons:
                    raise CorruptionError(self.damage_of(batch, row))
                self._raise_for(index, status)
            self._damaged.setdefault(index, self.damage_of(batch, row))
        if on_corrupt != "keep":
            self._refuse_too_many()

    def damage_of(self, batch: Batch, row: int) -> str:
        """Why a record of a batch that `read` returned cannot be read."""
        index, status = int(batch.indices[row]), int(batch.status[row])
        if row in batch.reasons:
            return f"{self._describe(index, 0)}, but {batch.reasons[row]}"
        return self._describe(index, status)

    def note_damaged(self, found: Mapping[int, str], *, elsewhere: bool = False) -> None:
        """Count damaged records that another process or a view found, with the reasons by index.

        Args:
            found: why each cannot be read.
            elsewhere: a view found them, which has a limit of its own.

        Raises:
            CorruptionError: there are now more than `max_corrupt` allows.
        """
        for index, what in found.items():
            self._damaged.setdefault(index, what)
        if not elsewhere:
            self._refuse_too_many()

    def _refuse_too_many(self) -> None:
        refuse_too_many(self._damaged, len(self), self._max_corrupt)

    def _replace_damaged(
        self,
        batch: Batch,
        load: Callable[..., Batch],
        following: Callable[[Indices, int], Indices],
        farthest: int,
    ) -> Batch:
        """Every damaged record's place taken by the next good one."""
        indices = np.array(batch.indices)
        rows = np.flatnonzero(batch.status)
        for distance in range(1, farthest + 1):
            indices[rows] = following(rows, distance)
            candidates = load(indices[rows], rows)
            self._note_damage(candidates, "replace")
            rows = rows[candidates.status != 0]
            if rows.size == 0:
                replaced = load(indices)
                self._note_damage(replaced, "raise")
                return replaced
        raise CorruptionError(none_is_good(farthest, self))

    def _read_ahead_records(self) -> int:
        mean = max(1, self.size_bytes // max(1, len(self)))
        return min(_READ_AHEAD_RECORDS_MAX, max(1, _READ_AHEAD_BYTES // mean))


class View(Records):
    """Records that are made of those of one `source`; its properties are theirs by default."""

    def __init__(self, source: Records) -> None:
        """Nothing is opened."""
        super().__init__(source._max_corrupt)
        self.source = source

    @property
    def logical(self) -> LogicalSchema:
        """That of the source."""
        return self.source.logical

    @property
    def versions(self) -> tuple[str, ...]:
        """Those of the source."""
        return self.source.versions

    @property
    def size_bytes(self) -> int:
        """The size of the source's files."""
        return self.source.size_bytes

    def probe(self, seconds: float = 0.25) -> float:
        """See `Records.probe`; measures the source."""
        return self.source.probe(seconds)

    def stats(self) -> dict[str, Any]:
        """The statistics of the source; `damaged` is by index of the view."""
        return {**self.source.stats(), "damaged": dict(self._damaged)}


class Subset(View):
    """Some records of `source`, in an order of its own; made by `subset` and `filter`.

    A pickle holds a range if the indices are one, however many; it shares the memory of other
    indices with a process that is being started.
    """

    def __init__(self, source: Records, indices: npt.ArrayLike | range | slice | Choice) -> None:
        """See `Records.subset`; a choice must have been made from as many records."""
        super().__init__(source)
        self.choice = indices if isinstance(indices, Choice) else Choice(indices, len(source))

    @property
    def format(self) -> Format:
        """That of the source."""
        return self.source.format

    @property
    def fingerprint(self) -> str:
        """Covers the source, and which of its records are chosen."""
        return digest([self.source.fingerprint.encode(), self.choice.tobytes()])

    @property
    def size_bytes(self) -> int:
        """The view's approximate share of the size of the source's files."""
        return self.source.size_bytes * len(self) // max(1, len(self.source))

    def __len__(self) -> int:
        return len(self.choice)

    def __repr__(self) -> str:
        return f"<ffrecord.Subset: {len(self)} records of {self.source!r}>"

    def _sizes(self, wanted: Indices) -> Indices:
        return self.source._sizes(self.choice.at(wanted))

    def _read(self, wanted: Indices) -> Batch:
        places = positive(wanted, len(self))
        return self.source._read(self.choice.at(places)).relabelled(places)

    def _describe(self, index: int, status: int) -> str:
        return self.source._describe(int(self.choice.at(np.array([index]))[0]), status)

    def _raise_for(self, index: int, status: int) -> NoReturn:
        self.source._raise_for(int(self.choice.at(np.array([index]))[0]), status)


class Formatted(View):
    """The records of `source`, handed out in another format; made by `with_format`."""

    def __init__(self, source: Records, format: Format) -> None:
        """See `Records.with_format`; the source must hand out NumPy's."""
        super().__init__(source)
        self._format = format

    @staticmethod
    def of(source: Records, format: str) -> Records:
        """The view, or what it would be a view of if that is in this format already."""
        wanted = checked(format)
        inner = source.source if isinstance(source, Formatted) else source
        return inner if inner.format == wanted else Formatted(inner, wanted)

    @property
    def format(self) -> Format:
        """As it was made."""
        return self._format

    @property
    def fingerprint(self) -> str:
        """That of the source: the records are the same."""
        return self.source.fingerprint

    @property
    def mixture(self) -> Mixture | None:
        """That of the source."""
        return mixture_of(self.source)

    def __len__(self) -> int:
        return len(self.source)

    def __repr__(self) -> str:
        return f"<ffrecord.Formatted: {self.source!r} as {self.format}>"

    def _sizes(self, wanted: Indices) -> Indices:
        return self.source._sizes(wanted)

    def _read(self, wanted: Indices) -> Batch:
        return self.source._read(wanted)

    def _describe(self, index: int, status: int) -> str:
        return self.source._describe(index, status)

    def _raise_for(self, index: int, status: int) -> NoReturn:
        self.source._raise_for(index, status)


def number_of_records(damaged: Mapping[int, str]) -> int:
    """How many records are damaged; a view may have one at several indices.

    The text tells them apart: it names the file and the record in it.
    """
    return len(set(damaged.values()))


def refuse_too_many(damaged: Mapping[int, str], count: int, max_corrupt: float) -> None:
    """Raise CorruptionError if more of `count` records are damaged than `max_corrupt` allows."""
    allowed = max(_DAMAGED_ALWAYS_ALLOWED, int(max_corrupt * count))
    if len(damaged) > allowed and (found := number_of_records(damaged)) > allowed:
        raise CorruptionError(
            f"{found} damaged records, more than the {allowed} that max_corrupt="
            f"{max_corrupt} allows; the last: {list(damaged.values())[-1]}. Run `ffrecord verify` "
            "on the files"
        )


def none_is_good(farthest: int, records: object) -> str:
    """Why nothing takes the place of a damaged record."""
    return f"none of the {farthest} records of {records!r} that could take its place is good"


def check_on_corrupt(on_corrupt: OnCorrupt) -> None:
    """Raise ValueError for a word that `read` does not know."""
    if on_corrupt not in ("raise", "skip", "replace", "keep"):
        raise ValueError(f"on_corrupt is {on_corrupt!r}; it can be raise, skip, replace, keep")


def as_indices(indices: npt.ArrayLike) -> Indices:
    """Return `indices` as int64, shape (n,); raise what `Records.read` raises for others."""
    if isinstance(indices, IndexBatch):
        return indices.array
    array = np.asarray(indices)
    if array.ndim == 0:
        raise TypeError(
            f"indices are of type {type(indices).__name__}; they must be a list, a range or an"
            " array of integers"
        )
    if array.ndim != 1:
        raise ValueError(f"indices have the shape {array.shape}; they must have the shape (n,)")
    if array.size == 0:
        return np.empty(0, np.int64)
    if array.dtype.kind == "u" and int(array.max()) >= 2**63:
        raise IndexError(f"record index {array.max()} is out of range")
    if array.dtype.kind not in "iu":
        raise TypeError(f"indices are {array.dtype}; they must be integers")
    return np.ascontiguousarray(array, np.int64)


def _as_mask(keep: npt.ArrayLike, count: int) -> npt.NDArray[np.bool_]:
    # A missing value is not selected; NumPy has the values under a mask as they come.
    mask = np.asarray(np.ma.filled(keep, False) if np.ma.isMaskedArray(keep) else keep)
    if mask.dtype != np.bool_ or mask.shape != (count,):
        raise ValueError(
            f"keep is {mask.dtype} of shape {mask.shape}; it must be bool of shape ({count},)"
        )
    return mask
