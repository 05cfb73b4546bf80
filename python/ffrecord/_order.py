"""The order of an epoch as a function of position; format.md, "Order 1"."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from ffrecord._ffrecord import BlockedPermutation, Permutation

if TYPE_CHECKING:
    from ffrecord._weights import Weights

Indices = npt.NDArray[np.int64]

_WEIGHTS_SUM_MAX = 1 << 16
# Lanes 0 and up belong to the orders of format.md; source i of a mixture has this plus i.
_MIXTURE_LANE = 1 << 32
_U64 = (1 << 64) - 1


class Mixture:
    """Which source, and which of its records, is at a position of a mixed stream.

    Of any `sum(weights)` positions in a row, source i has about `weights[i]`, spread as evenly as
    possible; of an aligned run, exactly that many. Each source comes in its own order, as a whole,
    again and again. The stream is endless; position 0 is where the weights last changed.
    """

    def __init__(
        self,
        counts: Iterable[int],
        weights: Iterable[int],
        seed: int = 0,
        *,
        since: int = 0,
        taken: Iterable[int] | None = None,
    ) -> None:
        """Define the stream.

        Args:
            counts: records of each source.
            weights: integers, 0 to 65536 in sum; only their proportions matter.
            seed: added to the seed of each request for the order.
            since: the position from which these weights apply.
            taken: how many records each source had given by then; none by default.

        Raises:
            ValueError: a source is empty, or the weights do not fit the sources.
        """
        self.counts = tuple(counts)
        given = tuple(weights)
        if len(given) != len(self.counts) or not given:
            raise ValueError(f"{len(given)} weights for {len(self.counts)} sources")
        if any(not isinstance(w, int | np.integer) or w < 0 for w in given) or not any(given):
            raise ValueError(f"weights are {given}; they must be integers, one of them above 0")
        if any(w > 0 and count < 1 for w, count in zip(given, self.counts, strict=True)):
            raise ValueError("a source without records has a weight")
        divisor = math.gcd(*given)
        self.weights = tuple(int(w) // divisor for w in given)
        if sum(self.weights) > _WEIGHTS_SUM_MAX:
            raise ValueError(f"weights add up to {sum(self.weights)}; 65536 is the most")
        self.seed = seed
        self.since = since
        self.taken = tuple(taken) if taken is not None else (0,) * len(self.counts)

    def change(self, weights: Iterable[int], at: int) -> "Mixture":
        """The stream that continues from position `at` with other weights; nothing is lost."""
        return Mixture(self.counts, weights, self.seed, since=at, taken=self.taken_before(at))

    def taken_before(self, position: int) -> tuple[int, ...]:
        """How many records of each source are before `position`, which is `since` or later."""
        rounds, slot = divmod(position - self.since, sum(self.weights))
        before = _deal(self.weights)[1][slot]
        return tuple(
            taken + rounds * weight + int(more)
            for taken, weight, more in zip(self.taken, self.weights, before, strict=True)
        )

    def range(self, seed: int, begin: int, end: int) -> Indices:
        """Indices at the positions [begin, end), of the sources laid end to end."""
        offsets = np.arange(begin, end, dtype=np.int64) - self.since
        rounds, slots = np.divmod(offsets, sum(self.weights))
        source_by_slot, taken_by_slot = _deal(self.weights)
        sources = source_by_slot[slots]
        indices = np.empty(end - begin, np.int64)
        first = 0
        for number, (count, weight) in enumerate(zip(self.counts, self.weights, strict=True)):
            rows = np.flatnonzero(sources == number)
            if rows.size:
                before = taken_by_slot[slots[rows], number]
                ordinals = self.taken[number] + rounds[rows] * weight + before
                indices[rows] = first + self._in_source(seed, number, ordinals)
            first += count
        return indices

    def state(self) -> dict[str, Any]:
        """The state for `restored`, as JSON scalars and lists."""
        return {"weights": list(self.weights), "since": self.since, "taken": list(self.taken)}

    def restored(self, state: dict[str, Any]) -> "Mixture":
        """These sources, mixed as `state` defines."""
        return Mixture(
            self.counts, state["weights"], self.seed, since=state["since"], taken=state["taken"]
        )

    def __repr__(self) -> str:
        return f"<ffrecord.Mixture {':'.join(map(str, self.weights))} of {self.counts}>"

    def _in_source(self, seed: int, number: int, ordinals: Indices) -> Indices:
        """Ordinals grow: cut them into the passes over the source that they belong to."""
        count = self.counts[number]
        found = np.empty(ordinals.size, np.int64)
        passes = ordinals // count
        for first in np.flatnonzero(np.diff(passes, prepend=-1)):
            rows = slice(first, np.searchsorted(passes, passes[first], "right"))
            positions = ordinals[rows] - passes[first] * count
            order = Permutation(
                seed=(seed + self.seed) & _U64,
                epoch=int(passes[first]),
                lane=_MIXTURE_LANE + number,
                count=count,
            )
            # A source takes its records in a row, so that its positions have no gaps.
            found[rows] = order.range(int(positions[0]), int(positions[-1]) + 1)
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.counts, self.weights, self.seed, self.since, self.taken)


def _restored(
    counts: tuple[int, ...],
    weights: tuple[int, ...],
    seed: int,
    since: int,
    taken: tuple[int, ...],
) -> Mixture:
    return Mixture(counts, weights, seed, since=since, taken=taken)


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


def check_counts(low: int, **counts: object) -> None:
    """Check that each is a whole number, of Python or NumPy, and `low` or more.

    Raises:
        ValueError: it is less.
        TypeError: it is something else, such as a quotient.
    """
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise TypeError(f"{name} is {value!r}; it must be a whole number, such as 7 // 2")
        if value < low:
            what = "positive" if low else "0 or more"
            raise ValueError(f"{name} is {value}; it must be {what}")


@dataclass(frozen=True)
class EpochOrder:
    """The order of one epoch of `count` records.

    Permutes all records; or, with `block` and `window`, blocks of records and then records inside
    windows of blocks; or takes one stretch of a mixture; or draws records by weight; or, without
    `shuffle`, the records as they lie.
    """

    seed: int
    epoch: int
    count: int
    block: int | None = None
    window: int | None = None
    mixture: Mixture | None = None
    shuffle: bool = True
    weights: "Weights | None" = None

    def __post_init__(self) -> None:
        """Reject invalid arguments.

        Raises:
            ValueError: seed, count, block or window is out of range.
        """
        for name, value in (("seed", self.seed), ("epoch", self.epoch)):
            if not isinstance(value, Integral) or not 0 <= int(value) <= _U64:
                raise ValueError(
                    f"{name} is {value!r}; it must be a whole number from 0 to 2**64 - 1"
                )
        if (self.block is None) != (self.window is None):
            raise ValueError("block and window belong together: give both or neither")
        if self.mixture is not None and self.block is not None:
            raise ValueError("a mixture has an order of its own: leave out block and window")
        if self.weights is not None and (self.mixture or self.block or not self.shuffle):
            raise ValueError("weights draw records anew: no block, no mixture, no shuffle=False")
        if not self.shuffle and (self.mixture or self.block) is not None:
            raise ValueError("shuffle=False leaves records where they are: no block, no mixture")
        _ = self._function

    def range(self, begin: int, end: int) -> Indices:
        """Indices at the positions [begin, end); after the end of the epoch it begins again."""
        if begin < 0 or begin > end:
            raise IndexError(f"positions [{begin}, {end}) of an epoch of {self.count} records")
        pieces = []
        while begin < end:
            first = begin % self.count
            size = min(end - begin, self.count - first)
            pieces.append(self._range(first, first + size))
            begin += size
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate(pieces) if pieces else np.empty(0, np.int64)

    def at(self, positions: Indices) -> Indices:
        """Indices at any positions."""
        return np.array([self.range(p, p + 1)[0] for p in positions.tolist()], np.int64)

    def __reduce__(self) -> tuple[Any, ...]:
        place = self.seed, self.epoch, self.count
        if self.weights is not None:  # Which may be large, while orders travel with each batch.
            return _drawing, (*place, self.weights.token)
        return EpochOrder, (*place, self.block, self.window, self.mixture, self.shuffle)

    def _range(self, begin: int, end: int) -> Indices:
        if not self.shuffle:
            return np.arange(begin, end, dtype=np.int64)
        if self.weights is not None:
            return self.weights.draw(self.seed, self.epoch, begin, end)
        if self.mixture is None:
            return self._function.range(begin, end)
        start = self.epoch * self.count
        return self.mixture.range(self.seed, start + begin, start + end)

    @cached_property
    def _function(self) -> Permutation | BlockedPermutation:
        if self.block is None or self.window is None:
            return Permutation(seed=self.seed, epoch=self.epoch, count=self.count)
        return BlockedPermutation(
            seed=self.seed,
            epoch=self.epoch,
            count=self.count,
            block=self.block,
            window=self.window,
        )


def _drawing(seed: int, epoch: int, count: int, token: str) -> EpochOrder:
    from ffrecord._weights import Weights  # Slow to import, for it shares memory.

    return EpochOrder(seed, epoch, count, weights=Weights.known(token))


class EpochShare(NamedTuple):
    """The part of an epoch that one rank reads: its share of each step from one position on.

    Positions [first, end) are read in steps of `step_size`; the last may be shorter.
    """

    order: EpochOrder
    first: int
    end: int
    step_size: int
    world_size: int
    rank: int


class SeededIndices(list[int]):
    """Indices, with the seed and epoch for randomness about their records."""

    __slots__ = ("epoch", "seed")

    seed: int
    epoch: int

    @classmethod
    def like(cls, indices: Iterable[int], origin: object) -> "SeededIndices":
        """`indices` with the seed and epoch of `origin`; 0 if it has none."""
        made = SeededIndices(indices)
        made.seed = made.epoch = 0
        if isinstance(origin, SeededIndices | IndexBatch):
            made.seed, made.epoch = origin.seed, origin.epoch
        return made

    @classmethod
    def at(cls, seed: int, epoch: int) -> "SeededIndices":
        """No indices yet, of this seed and epoch."""
        made = SeededIndices()
        made.seed, made.epoch = seed, epoch
        return made


class IndexBatch(Sequence[int]):
    """Indices of one batch, and their positions in the stream. Immutable.

    They know their order. So a reader of them knows seed and epoch, even in a worker that outlives
    its epoch, and knows which index comes next in place of a damaged record. A pickle holds the
    order and the positions, not the indices: these are computed at the first use. Only of an order
    by weights it has the indices, since the weights do not travel with each batch.
    """

    __slots__ = ("_array", "_size", "_views", "epoch", "order", "position", "seed")

    order: EpochOrder
    position: int
    """Of the first index; the others follow it."""
    seed: int
    epoch: int

    def __init__(self, order: EpochOrder, position: int, size: int) -> None:
        """The `size` indices from `position` on."""
        self.order = order
        self.position = position
        self.seed, self.epoch = order.seed, order.epoch
        self._size = size
        self._views: tuple[Callable[[Indices], Indices], ...] = ()  # From the stream outwards.
        self._array: Indices | None = None

    @property
    def array(self) -> Indices:
        """The same indices, shape (n,); read-only."""
        if self._array is None:
            indices = self.order.range(self.position, self.position + self._size)
            self._array = _fixed(self._seen(indices))
        return self._array

    def through(self, view: Callable[[Indices], Indices]) -> "IndexBatch":
        """The same positions of the stream, with the indices that `view` maps these to."""
        seen = IndexBatch(self.order, self.position, self._size)
        seen._views = (*self._views, view)
        seen._array = _fixed(view(self.array))  # Now: what it refuses is the caller's mistake.
        return seen

    def part(self, first: int, end: int) -> "IndexBatch":
        """The indices in rows [first, end), at the same positions of the stream.

        Raises:
            IndexError: there are no such rows.
        """
        if not 0 <= first <= end <= self._size:
            raise IndexError(f"rows [{first}, {end}) of {self._size}")
        part = IndexBatch(self.order, self.position + first, end - first)
        part._views = self._views
        return part

    def replaced(self, indices: Indices) -> "IndexBatch":
        """The same positions of the stream, with other records."""
        made = self.part(0, self._size)
        made._array = _fixed(indices)
        return made

    def following(self, rows: Indices, distance: int) -> Indices:
        """The indices `distance` positions after the indices in these rows."""
        return self._seen(self.order.at(self.position + rows + distance))

    def _seen(self, indices: Indices) -> Indices:
        for view in self._views:
            indices = view(indices)
        return indices

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, key: int) -> int: ...
    @overload
    def __getitem__(self, key: slice) -> list[int]: ...
    def __getitem__(self, key: int | slice) -> int | list[int]:
        found: int | list[int] = self.array[key].tolist()
        return found

    def __iter__(self) -> Iterator[int]:
        return iter(self.array.tolist())

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> npt.NDArray[Any]:
        if copy is None:  # NumPy 1 does not know this word of NumPy 2.
            return np.asarray(self.array, dtype)
        return np.array(self.array, dtype, copy=copy)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, list | IndexBatch) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # As lists, for which they stand.

    def __add__(self, other: Iterable[int]) -> list[int]:
        return [*self, *other]

    def __radd__(self, other: Iterable[int]) -> list[int]:
        return [*other, *self]

    def __repr__(self) -> str:
        return repr(list(self))

    def __copy__(self) -> "IndexBatch":
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        place = self.order, self.position, self._size
        if self.order.weights is not None:
            return _seen_again, (*place, self._views, np.array(self.array))
        return (_seen_again, (*place, self._views)) if self._views else (IndexBatch, place)


def _fixed(indices: Indices) -> Indices:
    """The same array, read-only, so that no caller changes it in place for others."""
    fixed = indices.view()
    fixed.flags.writeable = False
    return fixed


def _seen_again(
    order: EpochOrder,
    position: int,
    size: int,
    views: tuple[Callable[[Indices], Indices], ...],
    array: Indices | None = None,
) -> IndexBatch:
    made = IndexBatch(order, position, size)
    made._views = views
    made._array = None if array is None else _fixed(array)
    return made
