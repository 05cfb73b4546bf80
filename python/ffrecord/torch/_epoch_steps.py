"""The steps of an epoch, as torch's own iterators ask for them."""

import copy
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ffrecord._order.epoch_order import IndexBatch, SeededIndices, step_of
from ffrecord.torch._batch_transfer import PlacedIndices
from ffrecord.torch._loader_order import is_inside
from ffrecord.torch._plain_state import PlainPlace, listed, may_leave_out, may_repeat
from ffrecord.torch._sampler import Cursor, Sampler
from ffrecord.torch._world import rank_in_job

# So many indices that follow those of a step go with it, of an order that chooses from the records:
# they take the places of damaged ones.
_AHEAD = 16
# Ranks have orders of their own, whose draws have places of their own: with one seed on all ranks,
# their steps would else have the same chance.
_PLACES_OF_A_RANK = 1 << 40


class Steps:
    """The iterable for torch: the batches of the coming epoch, from `step` on.

    It leaves the sampler where it is, because batches that were read ahead are not delivered yet.
    It outlives an epoch if workers do, and so looks at the sampler again each time.
    """

    def __init__(
        self,
        inner: Any,  # noqa: ANN401 - torch's own
        dataset: Any,  # noqa: ANN401 - one of ours, or a view of torch's
    ) -> None:
        """`dataset`: its chance needs seed and epoch with the indices; None: there is no such."""
        self._inner = inner
        self._cross = False
        self._dataset = dataset
        self.step = 0
        self.epoch = -1
        """The iteration that began last, where no `Sampler` says."""
        self.place = PlainPlace(0, 0)
        """Where the next iteration begins, where no `Sampler` says."""
        self._start: Cursor | None = None  # With a `Sampler`; None: where that is.
        self.begun: Walk | None = None
        """The walk for the iterator of torch's that began last."""

    @property
    def inner(self) -> Any:  # noqa: ANN401 - torch's own
        """The source of the steps."""
        return self._inner

    def at(self, place: PlainPlace) -> "Steps":
        """The steps of the iteration at `place`, whichever begins next here."""
        made = copy.copy(self)
        made.place = place
        return made

    @contextmanager
    def beginning(self, start: Cursor | None, *, cross: bool) -> Iterator[None]:
        """Requests in the block are of an iteration that begins at `start`.

        Args:
            start: with a `Sampler`; None: where that is.
            cross: its steps go to processes, which may deliver in another order.
        """
        self._start, self._cross = start, cross
        try:
            yield
        finally:
            self._start, self._cross = None, False

    def first(self, sampler: Sampler) -> Cursor:
        """Where an iteration that begins now begins: at `step`, or inside of a resumed epoch."""
        start = sampler.begin()
        return start if is_inside(start) else sampler.skipped(start, self.step)

    def __len__(self) -> int:
        return len(self._inner) - self.step

    def __iter__(self) -> Iterator[Any]:
        self.begun = Walk(self._begin())
        return self.begun

    def _begin(self) -> Iterator[Any]:
        if isinstance(self._inner, Sampler):
            start = self._start  # Iterators of torch's with workers ask twice.
            if start is None:
                start = self.first(self._inner)
            return self._placed(self._inner, start) if self._cross else self._plain(start)
        return self._skipping(self.place)

    def _plain(self, start: Cursor) -> Iterator[IndexBatch]:
        return (batch for _, batch in self._inner.epoch_from(start))

    def _placed(self, sampler: Sampler, start: Cursor) -> Iterator[IndexBatch]:
        at = start
        for cursor, batch in sampler.epoch_from(start):
            yield PlacedIndices(batch, at.position)
            at = cursor

    def _skipping(self, place: PlainPlace) -> Iterator[Any]:
        # Only when the first batch is requested: torch draws from its generator in that order.
        origin, first = SeededIndices.at(place.seed, place.epoch), place.batches
        draws, repeats, steps = 0, may_repeat(self._inner), place.walk(self._inner)
        own = rank_in_job() * _PLACES_OF_A_RANK
        chosen = place.chosen() or listed(self._inner)
        # An order that is not known in advance may leave out records, which must not come then.
        before = deque[int](maxlen=_AHEAD) if self._may_leave_out(chosen) else None
        for number, asked in enumerate(steps):
            step = step_of(asked) if self._dataset is not None else None
            if step is None:
                if number >= first:
                    yield asked
                continue
            indices, is_one = step
            if number >= first:
                made = SeededIndices.like(indices, origin)
                made.places = own + np.arange(draws, draws + len(made)) if repeats else None
                if chosen is not None:
                    after = draws + len(made)
                    made.ahead = [*chosen[after : after + _AHEAD], *chosen[: min(_AHEAD, draws)]]
                elif before is not None:
                    made.ahead = list(before)
                yield made.one(0) if is_one else made
            if before is not None:
                before.extend(indices)
            draws += len(indices)

    def _may_leave_out(self, chosen: Sequence[int] | None) -> bool:
        """Whether the order may leave out records, and which it `chosen` is not known."""
        if chosen is not None or self._dataset is None:
            return False
        return may_leave_out(self._inner, len(self._dataset))


class Walk:
    """The steps of one iteration; knows how many were asked for, and whether there are more."""

    def __init__(self, steps: Iterator[Any]) -> None:
        """Walk over `steps`."""
        self._steps = steps
        self.taken = 0
        self.ended = False

    def __iter__(self) -> "Walk":
        return self

    def __next__(self) -> Any:  # noqa: ANN401 - torch's own
        try:
            step = next(self._steps)
        except StopIteration:
            self.ended = True
            raise
        self.taken += 1
        return step
