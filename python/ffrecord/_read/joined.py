"""Several sequences of records as one, end to end or mixed. Nothing is copied."""

import operator
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any, NoReturn

import numpy as np

from ffrecord._base.stage_times import summed
from ffrecord._order.epoch_order import Indices
from ffrecord._order.mixture import BY_SOURCE, Mixture, proportions
from ffrecord._read.batch import Batch
from ffrecord._read.choice import digest, positive
from ffrecord._read.reader import Reader
from ffrecord._read.records import Records
from ffrecord._tables.formats import Format
from ffrecord._tables.logical import LogicalSchema


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
    def versions(self) -> tuple[str, ...]:
        """Those of all sources, in their order."""
        return tuple(version for source in self.sources for version in source.versions)

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
