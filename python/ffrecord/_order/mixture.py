"""The stream of a mixture: which source, and which of its records, is at a position."""

import itertools
import math
import operator
from collections.abc import Iterable
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
# A record has so many units of the distance of a source from its share.
_UNIT = 1 << 16
_BEHIND_MAX = _UNIT << 10  # In states. It stays below four records for a few sources.
# In a state. Weights that apply from position 0 on have the first three alone.
_NAMES = ("weights", "since", "taken", "slot", "behind")


class Stretch(NamedTuple):
    """Weights, the position from which they apply, and what the sources had given by then.

    They begin inside of a round, at the slot before which the sources are behind their shares as
    they are by now. A round that began anew would leave out the sources of little weight if weights
    change after every few records, and so can a round that follows the position.
    """

    weights: tuple[int, ...]
    since: int
    taken: tuple[int, ...]
    """How many records each source had given."""
    slot: int
    """The slot of position `since`."""
    behind: tuple[int, ...]
    """How far each source was behind its shares of all positions so far, in 65536ths of a record.
    """

    def before(self, position: int) -> tuple[int, ...]:
        """How many records of each source are before `position`, which is `since` or later."""
        dealt = _dealt(self.weights, position - self.since + self.slot)
        return tuple(map(operator.add, self.first(), dealt))

    def first(self) -> tuple[int, ...]:
        """The record of each source that would be at slot 0; negative if it gave fewer."""
        return tuple(map(operator.sub, self.taken, _dealt(self.weights, self.slot)))

    def then(self, weights: tuple[int, ...], at: int) -> "Stretch":
        """The stretch of other weights, from `at` on."""
        taken, total = self.before(at), sum(self.weights)
        dealt = map(operator.sub, taken, self.taken)
        behind = tuple(
            late + (2 * _UNIT * (at - self.since) * weight + total) // (2 * total) - _UNIT * gave
            for late, weight, gave in zip(self.behind, self.weights, dealt, strict=True)
        )
        return Stretch(weights, at, taken, _slot_like(weights, behind), behind)


class Mixture:
    """Which source, and which of its records, is at a position of a mixed stream. Immutable.

    In any `sum(weights)` positions in a row, source i has about `weights[i]`, spread as evenly as
    possible; in an aligned run, exactly that many. Each source comes in its own order, as a whole,
    again and again. The stream is endless. It begins at the first position whose weights are
    remembered: at 0, unless `change` was allowed to forget some.
    """

    def __init__(self, counts: Iterable[int], weights: Iterable[int], seed: int = 0) -> None:
        """Define the stream.

        Args:
            counts: records of each source.
            weights: integers, 0 to 65536 in sum; only their proportions matter.
            seed: added to the seed of each request for the order.

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
        none = (0,) * len(self.counts)
        self._stretches: tuple[Stretch, ...] = (Stretch(self.weights, 0, none, 0, none),)

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

        The same proportions change nothing. Positions before `known_from` may be forgotten; each
        change after it is remembered.

        Raises:
            ValueError: the weights do not fit the sources.
            IndexError: it is not known what lies before `at`.
        """
        last = self._during_which(at)
        now = proportions(weights, len(self.counts))
        held = [each for each in self._stretches if each.since <= at]
        if now != last.weights:
            held = [*(each for each in held if each.since < at), last.then(now, at)]
        elif last is self._stretches[-1]:
            return self
        ends = [*(each.since for each in held[1:]), None]
        return self._with(
            [s for s, end in zip(held, ends, strict=True) if end is None or end > known_from]
        )

    def taken_before(self, position: int) -> tuple[int, ...]:
        """How many records of each source are before `position`.

        Raises:
            IndexError: the stream begins later.
        """
        return self._during_which(position).before(position)

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
        *earlier, now = map(_listed, self._stretches)
        state = dict(zip(_NAMES, now, strict=False))
        return {**state, "earlier": earlier} if earlier else state

    def restored(self, state: dict[str, Any]) -> "Mixture":
        """These sources, mixed as `state` defines.

        Raises:
            ValueError: it is no state of as many sources.
        """
        try:
            now = [state[name] for name in _NAMES if name in state or name in _NAMES[:3]]
            stretches = [self._stretch(*each) for each in (*state.get("earlier", ()), now)]
            if any(a.since >= b.since for a, b in itertools.pairwise(stretches)):
                raise ValueError("its positions do not grow")
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"the state's mixture, {state}, is refused: {error}") from None
        return self._with(stretches)

    def __repr__(self) -> str:
        return f"<ffrecord.Mixture {':'.join(map(str, self.weights))} of {self.counts}>"

    def __reduce__(self) -> tuple[Any, ...]:
        known = self.counts, self.weights, self.seed
        return _restored, (*known, *map(tuple, self._stretches if self.since else ()))

    def _with(self, stretches: Iterable[Stretch]) -> "Mixture":
        """The same sources with these weights, in the order of their positions."""
        stretches = tuple(stretches)
        made = Mixture(self.counts, stretches[-1].weights, self.seed)
        made._stretches = stretches
        return made

    def _during_which(self, position: int) -> Stretch:
        self._check(position)
        return next(each for each in reversed(self._stretches) if each.since <= position)

    def _check(self, position: int) -> None:
        if position < self._stretches[0].since:
            raise IndexError(
                f"position {position} of a mixture whose weights are remembered from position "
                f"{self._stretches[0].since} on: they were changed in a later epoch than this "
                "one; continue from a state, or go to another epoch with set_epoch"
            )

    def _during(self, stretch: Stretch, seed: int, positions: Indices) -> Indices:
        rounds, slots = np.divmod(positions - stretch.since + stretch.slot, sum(stretch.weights))
        gave = stretch.first()
        source_by_slot, before_by_slot = _deal(stretch.weights)
        sources = source_by_slot[slots]
        indices = np.empty(positions.size, np.int64)
        first = 0
        for number, (count, weight) in enumerate(zip(self.counts, stretch.weights, strict=True)):
            rows = np.flatnonzero(sources == number)
            if rows.size:
                before = before_by_slot[slots[rows]]
                ordinals = gave[number] + rounds[rows] * weight + before
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

    def _stretch(
        self,
        weights: Iterable[int],
        since: int,
        taken: Iterable[int],
        slot: int = 0,
        behind: Iterable[int] | None = None,
    ) -> Stretch:
        if since and behind is None:
            raise ValueError(
                "it is of an earlier version, which went on in another order after a change of "
                "the weights: resume it with that version, or load a state from before the change"
            )
        sources = len(self.counts)
        late = (0,) * sources if behind is None else tuple(behind)
        stretch = Stretch(proportions(weights, sources), since, tuple(taken), slot, late)
        numbers = (since, slot, *stretch.taken)
        if any(type(number) is not int or number < 0 for number in numbers):
            raise ValueError(f"{list(numbers)} are no counts of {sources} sources")
        if any(type(number) is not int or abs(number) > _BEHIND_MAX for number in late):
            raise ValueError(f"{list(late)} says of no source how far it is behind")
        if not len(stretch.taken) == len(late) == sources or slot >= sum(stretch.weights):
            raise ValueError(f"{list(numbers)} and {list(late)} do not fit {sources} sources")
        if sum(stretch.taken) != since:
            raise ValueError(f"{list(stretch.taken)} records are not those before {since}")
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
    counts: tuple[int, ...], weights: tuple[int, ...], seed: int, *stretches: tuple[Any, ...]
) -> Mixture:
    made = Mixture(counts, weights, seed)
    return made._with(Stretch(*each) for each in stretches) if stretches else made


def _listed(stretch: Stretch) -> list[Any]:
    """Its members as those of JSON."""
    listed = [list(each) if isinstance(each, tuple) else each for each in stretch]
    return listed if stretch.since else listed[:3]


def _slot_like(weights: tuple[int, ...], behind: tuple[int, ...]) -> int:
    """The first slot before which sources of these weights are `behind`, as nearly as there is."""
    total, (sources, _) = sum(weights), _deal(weights)
    slots = np.arange(total, dtype=np.int64)
    apart = np.zeros(total, np.int64)
    for number in itertools.compress(range(len(weights)), weights):  # All slots suit the others.
        late, weight, is_own = behind[number], weights[number], sources == number
        taken = np.cumsum(is_own) - is_own
        there = _UNIT * (slots * weight - taken * total) // total
        # Not the distance itself: sources that no slot can bring nearer would weigh as much as it.
        apart += (late - there) ** 2
    return int(apart.argmin())


@lru_cache(maxsize=16)
def _dealt(weights: tuple[int, ...], position: int) -> tuple[int, ...]:
    """How many records of each source are before a position, dealt by these weights from 0 on."""
    rounds, slot = divmod(position, sum(weights))
    more = np.bincount(_deal(weights)[0][:slot], minlength=len(weights)).tolist()
    return tuple(rounds * weight + dealt for weight, dealt in zip(weights, more, strict=True))


@lru_cache(maxsize=16)
def _deal(weights: tuple[int, ...]) -> tuple[Indices, Indices]:
    """Slot by slot, the source that is furthest behind its share; and how many it had before."""
    shares = np.array(weights, np.int64)
    credit = np.zeros(len(weights), np.int64)
    sources, before = np.empty((2, sum(weights)), np.int64)
    taken = [0] * len(weights)
    for slot in range(sources.size):
        credit += shares
        sources[slot] = chosen = int(credit.argmax())
        credit[chosen] -= sources.size
        before[slot] = taken[chosen]
        taken[chosen] += 1
    return sources, before
