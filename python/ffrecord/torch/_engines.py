"""The engines that load for a `DataLoader`, behind one interface; here, torch's own.

An engine yields the batches of one iteration, each with the position after it. It makes the same
batches in the same order as the others, from the same state, so each iteration may take another.
"""

import threading
import weakref
from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext
from inspect import GEN_CLOSED, getgeneratorstate
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch.utils import data
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from ffrecord.errors import DeadlineExceeded
from ffrecord.torch._batch_transfer import CrossingCollate, Placed, staying
from ffrecord.torch._loader_order import is_inside, order_of
from ffrecord.torch._plain_state import PlainPlace
from ffrecord.torch._sampler import Cursor, Sampler
from ffrecord.torch._subsets import as_ours
from ffrecord.torch._worker_iterator import WorkersIterator, taken

Name = Literal["caller", "threads", "processes"]
# torch's message when a worker is late; the error has no type of its own.
_TORCH_IS_LATE = "DataLoader timed out after"


class Beginning(NamedTuple):
    """Where an iteration begins."""

    sampler: Sampler | None
    start: Cursor | None
    """A position of `sampler`."""
    place: PlainPlace | None
    """Without a `Sampler`: the place in the order of torch's."""

    @property
    def goes_on(self) -> bool:
        """With a `Sampler`: whether it begins inside of an epoch, which has drawn its seed."""
        return self.sampler is not None and is_inside(self.sampler.place)


class Engine:
    """Loads the batches of one loader.

    Holds no reference to the loader, which would never be freed then.
    """

    name: ClassVar[Name]

    def batches(
        self,
        loader: Any,  # noqa: ANN401 - a `DataLoader`, which imports this
        beginning: Beginning,
    ) -> Iterator[tuple[Cursor | None, Any]]:
        """The batches of the epoch from there on, each with the position after it; a generator.

        Draws one number from `loader.generator`, as torch's iterators do for the seeds of workers,
        and then releases the place of `beginning`. Threads with a `Sampler` draw none, and neither
        does an epoch that goes on: a resumed run has the random numbers of one that never stopped.
        """
        raise NotImplementedError

    @property
    def depth(self) -> int:
        """Batches that it reads ahead now, as far as that is known."""
        return 0

    @property
    def held_bytes(self) -> int:
        """Memory of these batches."""
        return 0

    def pending(self, loader: Any, sampler: Sampler, start: Cursor) -> int:  # noqa: ANN401
        """Batches that were read ahead for an iteration that begins at `start`."""
        return 0

    def note_times(self) -> None:
        """Bring the stages of the loader up to date."""

    def rest(self) -> None:
        """Drop what was read ahead for a next iteration: that one takes another engine."""

    def close(self) -> None:
        """End threads, and drop the batches that were read ahead."""


def draw_seed(loader: Any, place: PlainPlace) -> None:  # noqa: ANN401 - a `DataLoader`
    """Draw what torch's iterators draw."""
    _draw(loader)
    place.release()


def _draw(loader: Any) -> None:  # noqa: ANN401 - a `DataLoader`
    torch.empty((), dtype=torch.int64).random_(generator=loader.generator)


@contextmanager
def _put_back(generator: torch.Generator | None) -> Iterator[None]:
    """Take back what the block draws from `generator`, or from torch's default one."""
    used = generator or torch.default_generator
    before = used.get_state()
    try:
        yield
    finally:
        used.set_state(before)


class _OfTorch(Engine):
    """Iterators of torch's, in which the loader's steps take the place of the sampler."""

    def __init__(self) -> None:
        """Start nothing."""
        self._under_way: weakref.WeakSet[Generator[Any, None, None]] = weakref.WeakSet()
        self._lock = threading.RLock()  # For iterations that threads of the program begin.

    def batches(
        self,
        loader: Any,  # noqa: ANN401 - as above
        beginning: Beginning,
    ) -> Iterator[tuple[Cursor | None, Any]]:
        """Begin with an iterator of torch's, which asks for the loader's steps at once."""
        place = beginning.place
        with self._lock:  # Requests of torch's iterator must be of this iteration.
            others = any(getgeneratorstate(each) != GEN_CLOSED for each in self._under_way)
            kept = _put_back(loader.generator) if beginning.goes_on else nullcontext()
            cross = self.name == "processes"
            with kept, loader._steps.beginning(beginning.start, cross=cross):
                found = self._iterator(loader, others)
                if place is not None:
                    place.release()
                is_iterable = isinstance(loader.dataset, data.IterableDataset)
                walk = None if is_iterable else loader._steps.begun
            made = self._watched(loader, found, beginning, walk)
            self._under_way.add(made)
        return made

    def _iterator(self, loader: Any, others: bool) -> Iterator[Any]:  # noqa: ANN401 - a loader
        """An iterator of torch's over an epoch; `others`: some are in progress."""
        raise NotImplementedError

    def _watched(
        self,
        loader: Any,  # noqa: ANN401 - a loader
        batches: Iterator[Any],
        beginning: Beginning,
        walk: Any,  # noqa: ANN401 - a `Walk`; None if nothing says how many batches there are
    ) -> Generator[tuple[Cursor | None, Any], None, None]:
        sampler, cursor, count = beginning.sampler, beginning.start, 0
        for batch in batches:
            count += 1
            crossed = isinstance(batch, Placed)
            if sampler is not None and cursor is not None:
                cursor = sampler.reached(cursor, batch.position if crossed else cursor.position)
            yield cursor, batch.value if crossed else batch
        if walk is not None and not (walk.ended and walk.taken == count):
            # If the dataset raises StopIteration, torch's iterators take it for their own end.
            raise RuntimeError(
                f"the epoch ended after {count} batches although steps are left: the dataset, a "
                "transform or collate_fn raised StopIteration, as next() of an empty iterator does"
            )


class Caller(_OfTorch):
    """Loads in the calling thread."""

    name = "caller"

    def _iterator(self, loader: Any, others: bool) -> Iterator[Any]:  # noqa: ANN401
        made = _SingleProcessDataLoaderIter(loader)
        made._dataset_fetcher.collate_fn = staying(loader.collate_fn)
        return made


class Processes(_OfTorch):
    """Loads in torch's worker processes."""

    name = "processes"

    def _iterator(self, loader: Any, others: bool) -> Iterator[Any]:  # noqa: ANN401 - as above
        """An iterator of torch's over workers.

        A loader with persistent workers has one set of them, which a second iteration would take
        from the first: while one is in progress, the next gets workers of its own.
        """
        kept = loader._iterator
        if isinstance(kept, WorkersIterator) and not kept.is_usable:
            # A worker's death was reported, or they are the parent's.
            kept = loader._iterator = None
        if not loader.persistent_workers and not others:
            loader._told.end_workers()
        if isinstance(loader.collate_fn, CrossingCollate):
            loader.collate_fn.remember(loader.dataset)
        if others or not loader.persistent_workers:
            made = self._workers(loader)
        elif kept is None:
            made = loader._iterator = self._workers(loader)
        else:
            made = self._again(loader, kept)
        return self._received(loader, made)

    def _again(self, loader: Any, kept: WorkersIterator) -> WorkersIterator:  # noqa: ANN401 - a loader
        """The workers of the last epoch; others in their place, if an interrupt is ending these."""
        try:
            kept._reset(loader)
        except RuntimeError:
            if not kept.is_ended_by_interrupt:
                raise
            made: WorkersIterator = self._workers(loader)
            loader._iterator = made
            return made
        if order_of(loader) is not None:
            # As when workers start: a run that resumes here draws, for its workers are new.
            _draw(loader)
        return kept

    @staticmethod
    def _workers(loader: Any) -> WorkersIterator:  # noqa: ANN401 - a loader
        data.DataLoader.check_worker_number_rationality(loader)
        return WorkersIterator(loader)

    @staticmethod
    def _received(loader: Any, batches: Iterator[Any]) -> Iterator[Any]:  # noqa: ANN401 - a loader
        found = taken(batches)
        del batches  # See `taken`.
        try:
            for batch in found:
                while loader._told.damaged:  # Summed over all workers, for `max_corrupt`.
                    as_ours(loader.dataset).note_damaged(loader._told.damaged.popleft())
                yield batch
        except RuntimeError as error:
            if not str(error).startswith(_TORCH_IS_LATE):
                raise
            raise DeadlineExceeded(
                f"no batch from {loader.num_workers} loader workers within {loader.timeout} s; "
                "raise timeout, or run `ffrecord doctor` to see what reads wait for"
            ) from None
