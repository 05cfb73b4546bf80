"""Views: some records of a sequence, several sequences as one, or mixed. Nothing is copied."""

import hashlib
import operator
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from ffrecord._base.shared_memory import SharedArray
from ffrecord._base.stage_times import summed
from ffrecord._order.epoch_order import Indices, mixture_of
from ffrecord._order.mixture import BY_SOURCE, Mixture, proportions
from ffrecord._read.batch import Batch
from ffrecord._read.reader import Reader
from ffrecord._read.records import Records
from ffrecord._tables.formats import Format, checked
from ffrecord._tables.logical import LogicalSchema


class Choice:
    """Which records of a sequence, in which order: a range if it is one, else indices.

    A pickle is small: it holds a range as such, and shares the memory of other indices with a
    process that is being started.
    """

    def __init__(self, indices: npt.ArrayLike | range | slice, count: int) -> None:
        """Choose from `count` records; see `Records.subset`."""
        self._chosen = _compact(indices, count)

    def __len__(self) -> int:
        chosen = self._chosen
        return len(chosen) if isinstance(chosen, range) else chosen.values.size

    def at(self, wanted: Indices) -> Indices:
        """The chosen indices at these positions, in [-n, n)."""
        places = positive(wanted, len(self))
        if isinstance(self._chosen, range):
            return self._chosen.start + places * self._chosen.step
        return self._chosen.values[places]

    @property
    def may_repeat(self) -> bool:
        """Whether an index may be chosen more than once; looks at none."""
        return not isinstance(self._chosen, range)

    def tobytes(self) -> bytes:
        """Bytes that differ if and only if the choices do."""
        chosen = self._chosen
        return repr(chosen).encode() if isinstance(chosen, range) else chosen.values.tobytes()


class Subset(Records):
    """Some records of `source`, in an order of its own; made by `subset` and `filter`.

    A pickle holds a range if the indices are one, however many; it shares the memory of other
    indices with a process that is being started.
    """

    def __init__(self, source: Records, indices: npt.ArrayLike | range | slice | Choice) -> None:
        """See `Records.subset`; a choice must have been made from as many records."""
        super().__init__(source._max_corrupt)
        self.source = source
        self.choice = indices if isinstance(indices, Choice) else Choice(indices, len(source))

    @property
    def format(self) -> Format:
        """That of the source."""
        return self.source.format

    @property
    def logical(self) -> LogicalSchema:
        """That of the source."""
        return self.source.logical

    @property
    def fingerprint(self) -> str:
        """Covers the source, and which of its records are chosen."""
        return digest([self.source.fingerprint.encode(), self.choice.tobytes()])

    @property
    def size_bytes(self) -> int:
        """The view's approximate share of the size of the source's files."""
        return self.source.size_bytes * len(self) // max(1, len(self.source))

    def probe(self, seconds: float = 0.25) -> float:
        """See `Records.probe`; measures the whole source."""
        return self.source.probe(seconds)

    def stats(self) -> dict[str, Any]:
        """The statistics of the source; `damaged` is by index of the view."""
        return {**self.source.stats(), "damaged": dict(self._damaged)}

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


class Formatted(Records):
    """The records of `source`, handed out in another format; made by `with_format`."""

    def __init__(self, source: Records, format: Format) -> None:
        """See `Records.with_format`; the source must hand out NumPy's."""
        super().__init__(source._max_corrupt)
        self.source = source
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
    def logical(self) -> LogicalSchema:
        """That of the source."""
        return self.source.logical

    @property
    def fingerprint(self) -> str:
        """That of the source: the records are the same."""
        return self.source.fingerprint

    @property
    def size_bytes(self) -> int:
        """The size of the source's files."""
        return self.source.size_bytes

    @property
    def mixture(self) -> Mixture | None:
        """That of the source."""
        return mixture_of(self.source)

    def probe(self, seconds: float = 0.25) -> float:
        """See `Records.probe`."""
        return self.source.probe(seconds)

    def stats(self) -> dict[str, Any]:
        """The statistics of the source."""
        return {**self.source.stats(), "damaged": dict(self._damaged)}

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


class Concat(Records):
    """Several sequences as one; made by `concat`."""

    def __init__(self, sources: Iterable[Records]) -> None:
        """See `concat`."""
        self.sources = tuple(sources)
        if not self.sources:
            raise ValueError("the list of sequences is empty")
        if wrong := [s for s in self.sources if not isinstance(s, Records)]:
            raise TypeError(f"{wrong[0]!r} does not come from ffrecord.open or a view")
        if len(formats := {source.format for source in self.sources}) > 1:
            raise ValueError(
                f"the sequences have the formats {', '.join(sorted(formats))}: use with_format on "
                "the whole"
            )
        super().__init__(max(source._max_corrupt for source in self.sources))
        self._ends: list[int] | None = None
        self._logical: LogicalSchema | None = None

    @property
    def format(self) -> Format:
        """That of the sources."""
        return self.sources[0].format

    @property
    def logical(self) -> LogicalSchema:
        """The columns, the same in all sources."""
        self._bounds()
        assert self._logical is not None
        return self._logical

    @property
    def fingerprint(self) -> str:
        """Covers all sources in their order."""
        return digest([source.fingerprint.encode() for source in self.sources])

    @property
    def size_bytes(self) -> int:
        """The size of the files of all sources."""
        return sum(source.size_bytes for source in self.sources)

    def probe(self, seconds: float = 0.25) -> float:
        """See `Records.probe`; as if each byte of all sources were read once."""
        held = [source for source in self.sources if len(source)] or list(self.sources)
        needed_s = [each.size_bytes / each.probe(seconds / len(held)) for each in held]
        return sum(each.size_bytes for each in held) / sum(needed_s)

    def stats(self) -> dict[str, Any]:
        """The sums over all sources; `damaged` is by index of the whole."""
        sums = summed(source.stats() for source in self.sources)
        return {**sums, "damaged": dict(self._damaged)}

    def __len__(self) -> int:
        return self._bounds()[-1]

    def __repr__(self) -> str:
        return f"<ffrecord.{type(self).__name__} of {', '.join(map(repr, self.sources))}>"

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_ends": None, "_logical": None}

    def _sizes(self, wanted: Indices) -> Indices:
        ends = self._bounds()
        owners = np.searchsorted(ends, wanted, "right")
        sizes = np.empty(wanted.size, np.int64)
        for number in np.unique(owners).tolist():
            mine = owners == number
            first = ends[number - 1] if number else 0
            sizes[mine] = self.sources[number]._sizes(wanted[mine] - first)
        return sizes

    def _read(self, wanted: Indices) -> Batch:
        places = positive(wanted, len(self))
        return self._read_laid(places).relabelled(places)

    def _read_laid(self, laid: Indices) -> Batch:
        """Records by index of the sources laid end to end."""
        ends = self._bounds()
        owners = np.searchsorted(ends, laid, "right")
        parts: list[Batch] = []
        rows: list[Indices] = []
        for number in np.unique(owners).tolist():
            mine = np.flatnonzero(owners == number)
            first = ends[number - 1] if number else 0
            read = self.sources[number]._read(laid[mine] - first)
            parts.append(read.under(self.logical))
            rows.append(mine)
        if not parts:
            return self.sources[0]._read(laid).under(self.logical)
        return parts[0] if len(parts) == 1 else Batch.joined(parts, np.concatenate(rows))

    def _describe(self, index: int, status: int) -> str:
        source, own = self._owner(index)
        return source._describe(own, status)

    def _raise_for(self, index: int, status: int) -> NoReturn:
        source, own = self._owner(index)
        source._raise_for(own, status)

    def _owner(self, index: int) -> tuple[Records, int]:
        ends = self._bounds()
        number = bisect_right(ends, index)
        return self.sources[number], index - (ends[number - 1] if number else 0)

    def _bounds(self) -> list[int]:
        """Where each source ends; opens all of them."""
        if self._ends is None:
            parts = [source.logical for source in self.sources]
            self._logical = LogicalSchema.of_all(parts, lambda number: repr(self.sources[number]))
            self._ends = list(accumulate(map(len, self.sources)))
        return self._ends


class Mix(Concat):
    """Several sequences; each position of the mixed stream draws from one of them by weight.

    Made by `mix`. Record i is the i-th of the stream with seed 0, so each sampler, view and loader
    keeps the proportions. A `Sampler` over it draws the stream of its own seed, and goes on with it
    in each epoch. It names records as `BY_SOURCE` plus the index in the sources laid end to end.
    """

    def __init__(self, sources: Iterable[Records], weights: Iterable[int], seed: int = 0) -> None:
        """See `mix`."""
        super().__init__(sources)
        self.weights = proportions(weights, len(self.sources))
        self.seed = operator.index(seed)

    @cached_property
    def mixture(self) -> Mixture:
        """The source and record at each position of the stream."""
        return Mixture(map(len, self.sources), self.weights, self.seed)

    @property
    def fingerprint(self) -> str:
        """Covers all sources in their order, the weights and the seed."""
        how = repr((self.weights, self.seed)).encode()
        return digest([b"mix", how, *(source.fingerprint.encode() for source in self.sources)])

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in super().__getstate__().items() if key != "mixture"}

    def _sizes(self, wanted: Indices) -> Indices:
        return super()._sizes(self._laid(wanted))

    def _read(self, wanted: Indices) -> Batch:
        batch = self._read_laid(self._laid(wanted))
        return batch.relabelled(np.where(wanted < 0, wanted + len(self), wanted))

    def _owner(self, index: int) -> tuple[Records, int]:
        return super()._owner(int(self._laid(np.array([index]))[0]))

    def _laid(self, wanted: Indices) -> Indices:
        """The same records by index of the sources laid end to end."""
        laid = wanted - BY_SOURCE
        by_place = laid < 0
        if not by_place.any():
            return positive(laid, len(self))
        laid[by_place] = self.mixture.at(0, positive(wanted[by_place], len(self)))
        return positive(laid, len(self))


def concat(sources: Iterable[Records]) -> Records:
    """Join sequences end to end.

    Readers of local files that were opened with the same options become one reader, as if one list
    had named all their files. Otherwise, records of several sources in one batch are copied
    together.

    Raises:
        ValueError: the list is empty; at first use, if columns differ.
    """
    given = list(sources)
    readers = [source for source in given if isinstance(source, Reader) and source.is_local]
    if readers and len(readers) == len(given) and _opened_alike(readers):
        where = [name for reader in readers for name in reader.where]
        return Reader(where, **readers[0].options)
    return Concat(given)


def mix(sources: Iterable[Records], weights: Iterable[int], seed: int = 0) -> Mix:
    """Mix sequences in whole-numbered proportions.

    Each source is read in its own permuted order, which starts again when it ends. The sources
    alternate as evenly as the weights allow. Record i of the view is the i-th of this stream, and
    the view has as many records as its sources together: other samplers, views of it and mixtures
    of it keep the proportions, and have in each epoch these records alone. An
    `ffrecord.torch.Sampler` over the mix itself goes on with the stream from epoch to epoch. It can
    change the weights during a run and still resume exactly.

    Args:
        sources: readers or views of the same columns.
        weights: one for each, 0 to 65536 in sum; only their proportions matter.
        seed: added to that of a `Sampler`.

    Raises:
        ValueError: the weights do not fit the sources.
    """
    return Mix(sources, weights, seed)


def _opened_alike(readers: Sequence[Reader]) -> bool:
    return all(reader.options == readers[0].options for reader in readers)


def positive(wanted: Indices, count: int) -> Indices:
    """Convert indices in [-count, count) to indices in [0, count)."""
    if wanted.size and not (-count <= wanted.min() and wanted.max() < count):
        bad = wanted[(wanted < -count) | (wanted >= count)][0]
        raise IndexError(f"record index {bad} is out of range: there are {count} records")
    return np.where(wanted < 0, wanted + count, wanted)


def _compact(indices: npt.ArrayLike | range | slice, count: int) -> range | SharedArray:
    """The same range if the indices are one, however they were given; else these."""
    if isinstance(indices, slice):
        indices = range(count)[indices]
    if isinstance(indices, range):
        if not indices:
            return range(0)
        positive(np.array([indices[0], indices[-1]]), count)
        if min(indices[0], indices[-1]) >= 0:
            return _range_of(indices, indices.step)
    array = np.asarray(indices)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise TypeError(f"indices are {array.dtype} of shape {array.shape}; expected integers (n,)")
    places = positive(array.astype(np.int64), count)
    if places.size == 0:
        return range(0)
    step = int(places[1] - places[0]) if places.size > 1 else 1
    if step and (np.diff(places) == step).all():
        return _range_of(places, step)
    return SharedArray(places)


def _range_of(indices: range | Indices, step: int) -> range:
    """The range of these indices, which does not tell how they were given.

    Ranges of the same indices can have different ends, and different steps if they have one index.
    """
    first, last = int(indices[0]), int(indices[-1])
    step = step if first != last else 1
    return range(first, last + (1 if step > 0 else -1), step)


def digest(parts: Iterable[bytes]) -> str:
    """32 hex digits of the parts and of where each ends."""
    made = hashlib.blake2b(digest_size=16)
    for part in parts:
        made.update(len(part).to_bytes(8, "little") + part)
    return made.hexdigest()
