"""The stream of a mixture: which source, and which of its records, is at a position."""

import itertools
import math
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ffrecord._ffrecord import Permutation

Indices = npt.NDArray[np.int64]

# An index of a mixture from here on names a record of its sources laid end to end, wherever the
# mixture has it: 2^48 is more than any order has records.
BY_SOURCE = 1 << 48

_WEIGHTS_SUM_MAX = 1 << 16
# Lanes 0 and up belong to the orders of format.md; source i of a mixture has this plus i.
_MIXTURE_LANE = 1 << 32
_U64 = (1 << 64) - 1
# So many earlier weights are remembered, so that states stay small: for an epoch that starts again.
_EARLIER_MAX = 16


class Stretch(NamedTuple):
    """Weights, the position from which they apply, and how many records each source had given."""

    weights: tuple[int, ...]
    since: int
    taken: tuple[int, ...]

    def before(self, position: int) -> tuple[int, ...]:
        """How many records of each source are before `position`, which is `since` or later."""
        rounds, slot = divmod(position - self.since, sum(self.weights))
        more = _deal(self.weights)[1][slot].tolist()
        return tuple(
            taken + rounds * weight + dealt
            for taken, weight, dealt in zip(self.taken, self.weights, more, strict=True)
        )


class Mixture:
    """Which source, and which of its records, is at a position of a mixed stream. Immutable.

    In any `sum(weights)` positions in a row, source i has about `weights[i]`, spread as evenly as
    possible; in an aligned run, exactly that many. Each source comes in its own order, as a whole,
    again and again. The stream is endless. It begins at the first position whose weights are
    remembered: at 0, unless they changed very often.
    """

    def __init__(
        self,
        counts: Iterable[int],
        weights: Iterable[int],
        seed: int = 0,
        *,
        since: int = 0,
        taken: Iterable[int] | None = None,
        earlier: Iterable[Stretch] = (),
    ) -> None:
        """Define the stream.

        Args:
            counts: records of each source.
            weights: integers, 0 to 65536 in sum; only their proportions matter.
            seed: added to the seed of each request for the order.
            since: the position from which these weights apply.
            taken: how many records each source had given by then; none by default.
            earlier: what applied before, in the order of their positions.

        Raises:
            ValueError: a source is empty, or the weights do not fit the sources.
        """
        self.counts = tuple(counts)
        self.weights = proportions(weights, len(self.counts))
        for number, (weight, count) in enumerate(zip(self.weights, self.counts, strict=True)):
            if weight and count < 1:
                raise ValueError(
                    f"source {number} of the mixture has no records but the weight {weight}: leave "
                    "it out, or give it the weight 0"
                )
        self.seed = seed
        now = Stretch(self.weights, since, tuple(taken or (0,) * len(self.counts)))
        self._stretches = (*earlier, now)

    @property
    def since(self) -> int:
        """The position from which `weights` apply."""
        return self._stretches[-1].since

    @property
    def taken(self) -> tuple[int, ...]:
        """How many records each source had given by then."""
        return self._stretches[-1].taken

    def change(self, weights: Iterable[int], at: int, *, known_from: int = 0) -> "Mixture":
        """The stream that continues from position `at` with other weights; nothing is lost.

        Positions before `known_from` may be forgotten.

        Raises:
            ValueError: the weights do not fit the sources.
            IndexError: it is not known what lies before `at`.
        """
        taken = self.taken_before(at)
        held = [each for each in self._stretches if each.since < at]
        ends = [*(each.since for each in held), at][1:]
        earlier = [each for each, end in zip(held, ends, strict=True) if end > known_from]
        return Mixture(
            *(self.counts, weights, self.seed),
            since=at,
            taken=taken,
            earlier=earlier[-_EARLIER_MAX:],
        )

    def taken_before(self, position: int) -> tuple[int, ...]:
        """How many records of each source are before `position`.

        Raises:
            IndexError: the stream begins later.
        """
        self._check(position)
        return next(s for s in reversed(self._stretches) if s.since <= position).before(position)

    def range(self, seed: int, begin: int, end: int) -> Indices:
        """Indices at the positions [begin, end), of the sources laid end to end.

        Raises:
            IndexError: the stream begins later.
        """
        return self.at(seed, np.arange(begin, end, dtype=np.int64))

    def at(self, seed: int, positions: Indices) -> Indices:
        """Indices at any positions; otherwise as `range`."""
        if not positions.size:
            return np.empty(0, np.int64)
        self._check(earliest := int(positions.min()))
        last = self._stretches[-1]
        if earliest >= last.since:
            return self._during(last, seed, positions)
        starts = np.array([stretch.since for stretch in self._stretches])
        owners = np.searchsorted(starts, positions, "right") - 1
        indices = np.empty(positions.size, np.int64)
        for number in np.unique(owners).tolist():
            rows = owners == number
            indices[rows] = self._during(self._stretches[number], seed, positions[rows])
        return indices

    def state(self) -> dict[str, Any]:
        """The state for `restored`, as JSON scalars and lists."""
        *earlier, now = ([list(s.weights), s.since, list(s.taken)] for s in self._stretches)
        state = dict(zip(("weights", "since", "taken"), now, strict=True))
        return {**state, "earlier": earlier} if earlier else state

    def restored(self, state: dict[str, Any]) -> "Mixture":
        """These sources, mixed as `state` defines.

        Raises:
            ValueError: it is no state of as many sources.
        """
        try:
            now = [state["weights"], state["since"], state["taken"]]
            stretches = [self._stretch(*each) for each in (*state.get("earlier", ()), now)]
            if any(a.since >= b.since for a, b in itertools.pairwise(stretches)):
                raise ValueError("its positions do not grow")
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"the state's mixture, {state}, is damaged: {error}") from None
        *earlier, last = stretches
        return Mixture(
            *(self.counts, last.weights, self.seed),
            since=last.since,
            taken=last.taken,
            earlier=earlier,
        )

    def __repr__(self) -> str:
        return f"<ffrecord.Mixture {':'.join(map(str, self.weights))} of {self.counts}>"

    def __reduce__(self) -> tuple[Any, ...]:
        *earlier, now = map(tuple, self._stretches)
        return _restored, (self.counts, self.seed, *now, *([earlier] if earlier else []))

    def _check(self, position: int) -> None:
        if position < self._stretches[0].since:
            raise IndexError(
                f"position {position} of a mixture whose weights are remembered from position "
                f"{self._stretches[0].since} on: they were changed too often to start this epoch "
                "again; continue from a state, or go to another epoch with set_epoch"
            )

    def _during(self, stretch: Stretch, seed: int, positions: Indices) -> Indices:
        rounds, slots = np.divmod(positions - stretch.since, sum(stretch.weights))
        source_by_slot, taken_by_slot = _deal(stretch.weights)
        sources = source_by_slot[slots]
        indices = np.empty(positions.size, np.int64)
        first = 0
        for number, (count, weight) in enumerate(zip(self.counts, stretch.weights, strict=True)):
            rows = np.flatnonzero(sources == number)
            if rows.size:
                before = taken_by_slot[slots[rows], number]
                ordinals = stretch.taken[number] + rounds[rows] * weight + before
                indices[rows] = first + self._in_source(seed, number, ordinals)
            first += count
        return indices

    def _in_source(self, seed: int, number: int, ordinals: Indices) -> Indices:
        """Cut ordinals into the passes over the source that they belong to."""
        passes, positions = np.divmod(ordinals, self.counts[number])
        first, last = int(passes.min()), int(passes.max())
        if first == last:  # As nearly always, for a batch is small.
            return self._in_pass(seed, number, first, positions)
        found = np.empty(ordinals.size, np.int64)
        for turn in np.unique(passes).tolist():
            rows = passes == turn
            found[rows] = self._in_pass(seed, number, turn, positions[rows])
        return found

    def _in_pass(self, seed: int, number: int, turn: int, positions: Indices) -> Indices:
        order = Permutation(
            seed=(seed + self.seed) & _U64,
            epoch=turn,
            lane=_MIXTURE_LANE + number,
            count=self.counts[number],
        )
        return permuted(order, positions)

    def _stretch(self, weights: Iterable[int], since: int, taken: Iterable[int]) -> Stretch:
        stretch = Stretch(proportions(weights, len(self.counts)), since, tuple(taken))
        numbers = (stretch.since, *stretch.taken)
        if len(stretch.taken) != len(self.counts) or any(
            type(number) is not int or number < 0 for number in numbers
        ):
            raise ValueError(f"{list(numbers)} are no counts of {len(self.counts)} sources")
        return stretch


def proportions(weights: Iterable[int], sources: int) -> tuple[int, ...]:
    """The weights without a common divisor.

    Raises:
        ValueError: they do not fit so many sources.
    """
    given = tuple(weights)
    if len(given) != sources or not given:
        raise ValueError(f"{len(given)} weights for {sources} sources")
    if any(not isinstance(w, int | np.integer) or w < 0 for w in given) or not any(given):
        raise ValueError(f"weights are {given}; they must be integers, one of them above 0")
    divisor = math.gcd(*map(int, given))
    reduced = tuple(int(w) // divisor for w in given)
    if sum(reduced) > _WEIGHTS_SUM_MAX:
        raise ValueError(f"weights add up to {sum(reduced)}; 65536 is the most")
    return reduced


def permuted(order: Any, positions: Indices) -> Indices:  # noqa: ANN401 - either permutation
    """The indices at any positions; several times faster where these follow each other."""
    first, size = int(positions[0]), positions.size
    if int(positions[-1]) - first == size - 1 and bool((np.diff(positions) == 1).all()):
        found: Indices = order.range(first, first + size)
        return found
    picked: Indices = order.at(positions)
    return picked


def _restored(
    counts: tuple[int, ...],
    seed: int,
    weights: tuple[int, ...],
    since: int,
    taken: tuple[int, ...],
    earlier: Iterable[tuple[Any, ...]] = (),
) -> Mixture:
    before: Iterator[Stretch] = (Stretch(*each) for each in earlier)
    return Mixture(counts, weights, seed, since=since, taken=taken, earlier=before)


@lru_cache(maxsize=16)
def _deal(weights: tuple[int, ...]) -> tuple[Indices, Indices]:
    """Slot by slot, the source that is furthest behind its share; and how many each had before."""
    shares = np.array(weights, np.int64)
    credit = np.zeros(len(weights), np.int64)
    sources = np.empty(sum(weights), np.int64)
    for slot in range(sources.size):
        credit += shares
        sources[slot] = chosen = int(credit.argmax())
        credit[chosen] -= sources.size
    taken = np.zeros((sources.size + 1, len(weights)), np.int64)
    np.cumsum(sources[:, None] == np.arange(len(weights)), axis=0, out=taken[1:])
    return sources, taken
