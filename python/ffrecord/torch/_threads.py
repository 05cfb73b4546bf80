"""Loading with threads: each iterator has its own, which read on past the end of an epoch."""

import copy
import operator
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import accumulate, chain, pairwise
from typing import Any, NamedTuple

import numpy as np
from torch.utils import data
from torch.utils.data._utils.pin_memory import pin_memory as pin

from ffrecord._base.stage_times import Stages
from ffrecord._order.epoch_order import IndexBatch
from ffrecord._read.prefetch import Prefetcher
from ffrecord._read.read_ahead import ReadAhead
from ffrecord.errors import CorruptionError
from ffrecord.torch._batch_transfer import CrossingCollate, staying
from ffrecord.torch._collate import collate
from ffrecord.torch._dataset import Dataset
from ffrecord.torch._engine_choice import code_of_program
from ffrecord.torch._engines import Beginning, Engine, draw_seed
from ffrecord.torch._native_batches import Stream, decoders_of, source_of
from ffrecord.torch._placing import current_accelerator, size_of
from ffrecord.torch._sampler import Cursor, Sampler
from ffrecord.torch._subsets import ConcatDataset, Subset, as_ours, one_by_one

# The limits of several batches that are loaded as one; more would fill the caches and gain
# nothing.
_TOGETHER_RECORDS_MAX = 4096

# A plan: the position after the step, or None without a sampler, and a function that makes the
# indices, called in the thread that loads them.
_Plan = tuple[Cursor | None, Callable[[], Any]]
_Ahead = Prefetcher[_Plan, Any] | Stream


class _Spare(NamedTuple):
    """Threads that have reached the end of an epoch, and read on."""

    ahead: _Ahead
    stream: tuple[Any, ...]
    at: Cursor
    settings: list[Any]
    """The settings that the batches were made with."""

    def fits(self, now: list[Any], stream: tuple[Any, ...] | None, at: Cursor | None) -> bool:
        """Whether they continue where an iteration begins, and load what it would load `now`."""
        same = len(now) == len(self.settings) and all(map(operator.is_, now, self.settings))
        return same and self.ahead.alive and (self.stream, self.at) == (stream, at)


class Threads(Engine):
    """Loads in threads of this process.

    The threads of an iterator are its own until it ends: two iterators never take from each other.
    Threads that reached the end of an epoch wait for the iterator that begins at their position.
    Where code of the program takes part they stop there: what it does may depend on settings that
    the program changes between two epochs.
    """

    name = "threads"

    def __init__(self, memory_limit_bytes: int) -> None:
        """Start no threads; an iterator's may read ahead `memory_limit_bytes`."""
        self._memory_limit_bytes = memory_limit_bytes
        self._spare: _Spare | None = None
        self._may_be_native = True  # Until native threads could not make enough batches.
        self._all: weakref.WeakSet[_Ahead] = weakref.WeakSet()

    @property
    def depth(self) -> int:
        """Batches that all of them read ahead now."""
        return sum(ahead.depth for ahead in self._all if ahead.alive)

    @property
    def held_bytes(self) -> int:
        """Memory of the batches that all of them have read ahead, or are reading."""
        return sum(ahead.held_bytes for ahead in self._all if ahead.alive)

    def note_times(self) -> None:
        """Bring the stages of the loader up to date."""
        for ahead in self._all:
            if isinstance(ahead, Stream):
                ahead.note_times()

    def pending(self, loader: Any, sampler: Sampler, start: Cursor) -> int:  # noqa: ANN401 - a loader
        """Batches that the threads that wait have read ahead for an iterator at `start`."""
        spare = self._spare
        if spare is None:
            return 0
        now = _settings(loader.dataset, loader.collate_fn)
        if not spare.fits(now, sampler.identity(), start):
            return 0
        return spare.ahead.pending

    def batches(
        self,
        loader: Any,  # noqa: ANN401 - a `DataLoader`
        beginning: Beginning,
    ) -> Iterator[tuple[Cursor | None, Any]]:
        """Start the threads, or go on with those that wait.

        Reads the loader's settings now, and again when the first batch is requested.
        """
        sampler, start, place = beginning
        # With a `Sampler` nothing is drawn: a program that restores its random numbers and resumes
        # within an epoch goes on with those that it would have had.
        if place is not None:
            draw_seed(loader, place)
        steps = () if place is None else loader._steps.at(place)
        return self._batches(loader, steps, sampler, start)

    def _batches(
        self,
        loader: Any,  # noqa: ANN401 - a loader
        steps: Iterable[Any],
        sampler: Sampler | None,
        start: Cursor | None,
    ) -> Iterator[tuple[Cursor | None, Any]]:
        # A state may be loaded meanwhile: this iteration stays in its order.
        sampler = copy.copy(sampler)
        settings = _settings(loader.dataset, loader.collate_fn)
        reads_on = code_of_program(loader) is None
        ahead = self._begin(loader, steps, sampler, start, reads_on, settings)
        stream = None if sampler is None else sampler.identity()
        cursor = start
        try:
            while True:
                for cursor, batch in _with_cursors(ahead):
                    yield cursor, batch
                    if start is not None and cursor is not None and cursor.epoch != start.epoch:
                        if reads_on and stream is not None and ahead.alive:
                            self._keep(_Spare(ahead, stream, cursor, settings))
                        return
                    if isinstance(ahead, Stream) and not ahead.pays:
                        break
                else:
                    return
                _end(ahead)
                self._may_be_native = False
                ahead = self._new(loader, steps, sampler, cursor, reads_on)
        finally:
            if self._spare is None or self._spare.ahead is not ahead:
                _end(ahead)

    def rest(self) -> None:
        """End the threads that wait for a next iterator."""
        spare, self._spare = self._spare, None
        if spare is not None:
            _end(spare.ahead)

    def close(self) -> None:
        """End them all."""
        self._spare = None
        for ahead in list(self._all):
            _end(ahead)

    def _keep(self, spare: _Spare) -> None:
        if self._spare is not None:
            _end(self._spare.ahead)
        self._spare = spare

    def _begin(
        self,
        loader: Any,  # noqa: ANN401 - a loader
        steps: Iterable[Any],
        sampler: Sampler | None,
        start: Cursor | None,
        reads_on: bool,
        settings: list[Any],
    ) -> _Ahead:
        """The threads that are at `start` already, or new ones."""
        spare, self._spare = self._spare, None
        if spare is not None:
            stream = None if sampler is None else sampler.identity()
            if spare.fits(settings, stream, start):
                return spare.ahead
            _end(spare.ahead)
        return self._new(loader, steps, sampler, start, reads_on)

    def _new(
        self,
        loader: Any,  # noqa: ANN401 - a loader
        steps: Iterable[Any],
        sampler: Sampler | None,
        start: Cursor | None,
        reads_on: bool,
    ) -> _Ahead:
        """New threads, which begin at `start`; `reads_on`: past the end of the epoch, too."""
        native = self._stream(loader, sampler, start)
        if native is not None:
            self._all.add(native)
            return native
        if sampler is None or start is None:
            plans: Iterator[_Plan] = ((None, partial(_same, indices)) for indices in steps)
        else:
            plans = (sampler.plans if reads_on else sampler.plans_of_epoch)(start)
        loads = _Loads(loader)
        ahead = Prefetcher(
            loads,
            _timed(plans, loads.stages),
            self._limits(loader),
            weigh=size_of,
            load_together=loads.together if loads.can_cut else None,
            note_queued=partial(loads.stages.count, "queue"),
        )
        self._all.add(ahead)
        return ahead

    def _stream(
        self,
        loader: Any,  # noqa: ANN401 - a loader
        sampler: Sampler | None,
        start: Cursor | None,
    ) -> Stream | None:
        """Native threads, if the loader's batches are theirs to make."""
        if sampler is None or start is None or not _collates_plainly(loader):
            return None
        source = source_of(loader.dataset) if self._may_be_native else None
        if source is None or not Stream.fits(source, sampler, start):
            return None
        return Stream(source, sampler, start, loader.stages, self._limits(loader))

    def _limits(self, loader: Any) -> ReadAhead:  # noqa: ANN401 - a loader
        count: int = loader.num_workers
        depth = count + (loader.prefetch_factor or 2)
        return ReadAhead(count, depth, self._memory_limit_bytes, loader.timeout)


def _settings(dataset: Any, *others: Any) -> list[Any]:  # noqa: ANN401 - any dataset
    """Parts of a batch that a user may replace between epochs, to compare by identity."""
    found = [*others, dataset]
    if type(dataset) is data.Subset:
        found.append(as_ours(dataset, slice(None)))  # Another one if its indices have changed.
    if isinstance(dataset, Subset | data.Subset):
        return _settings(dataset.dataset, *found)
    if isinstance(dataset, ConcatDataset | data.ConcatDataset):
        return [*found, *chain.from_iterable(map(_settings, dataset.datasets))]
    if isinstance(dataset, Dataset):
        names = ("transform", "pass_generator", "columns", "on_corrupt")
        found += [vars(dataset).get(name) for name in names]
        found += decoders_of(dataset)
    return found


class _Loads:
    """Loads one batch. Holds no reference to the loader, which would never be freed then."""

    def __init__(self, loader: Any) -> None:  # noqa: ANN401 - a `DataLoader`, which imports this
        self._fetch = getattr(loader.dataset, "__getitems__", None)
        self._dataset: Any = loader.dataset
        self._collate_fn = staying(loader.collate_fn)
        self.stages = loader.stages
        self._pinned = _pins(loader)
        plain = isinstance(self._dataset, Dataset) and self._dataset.is_plain
        self.can_cut = plain and _collates_plainly(loader)
        """Whether several batches may be loaded as one and then cut."""

    def __call__(self, plan: _Plan) -> Any:  # noqa: ANN401 - collate_fn's
        with self.stages.timed("submit"):
            indices = plan[1]()
        with self.stages.timed("fetch"):
            if self._fetch is None:
                samples = one_by_one(self._dataset, indices)
            else:
                samples = self._fetch(indices)
        batch = self._collate_fn(samples)
        return pin(batch) if self._pinned else batch  # type: ignore[no-untyped-call]

    def together(self, plans: list[_Plan]) -> list[Any] | None:
        """Load several batches in one submission; None if each must be loaded alone."""
        if not self._dataset.is_plain:  # It cannot load several any more.
            return None
        with self.stages.timed("submit"):
            indices = [plan[1]() for plan in plans]
        if not all(isinstance(each, IndexBatch) for each in indices):
            return None
        if sum(map(len, indices)) > _TOGETHER_RECORDS_MAX:
            return None
        with self.stages.timed("fetch"):
            try:
                samples = self._dataset[np.concatenate([each.array for each in indices])]
            except CorruptionError:
                return None  # The batches before the damaged one are good.
        batch = self._collate_fn(samples)
        ends = accumulate(map(len, indices), initial=0)
        return [_rows(batch, begin, end) for begin, end in pairwise(ends)]


def _pins(loader: Any) -> bool:  # noqa: ANN401 - a `DataLoader`
    return bool(loader.pin_memory) and current_accelerator() is not None


def _collates_plainly(loader: Any) -> bool:  # noqa: ANN401 - a loader
    """Whether a batch is what `collate` makes."""
    collates = loader.collate_fn
    ours = isinstance(collates, CrossingCollate) and collates.collate_fn is collate
    return ours and not _pins(loader)


def _end(ahead: _Ahead) -> None:
    if isinstance(ahead, Stream):
        ahead.note_times()
    ahead.close()


def _with_cursors(ahead: _Ahead) -> Iterator[tuple[Cursor | None, Any]]:
    return ahead if isinstance(ahead, Stream) else ((plan[0], item) for plan, item in ahead)


def _rows(batch: Any, begin: int, end: int) -> Any:  # noqa: ANN401 - as collate makes it
    if isinstance(batch, dict):
        return {name: _rows(values, begin, end) for name, values in batch.items()}
    return batch[begin:end]


def _same(indices: Any) -> Any:  # noqa: ANN401 - as torch's sampler yields them
    return indices


def _timed(plans: Iterator[_Plan], stages: Stages) -> Iterator[_Plan]:
    while True:
        with stages.timed("submit"):
            plan = next(plans, None)
        if plan is None:
            return
        yield plan
