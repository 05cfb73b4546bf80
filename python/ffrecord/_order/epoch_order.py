"""The order of an epoch as a function of position; format.md, "Order 1"."""

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from ffrecord._ffrecord import BlockedPermutation, EpochPlan, Permutation
from ffrecord._order.mixture import BY_SOURCE, Mixture, permuted

if TYPE_CHECKING:
    from ffrecord._order.weights import Weights

Indices = npt.NDArray[np.int64]

_U64 = (1 << 64) - 1


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


def plain_number(value: Any) -> Any:  # noqa: ANN401
    """A whole number as Python's; anything else as it is."""
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    return int(value) if is_whole else value


def plain_numbers(state: Mapping[str, Any], *names: str) -> dict[str, int | None]:
    """The whole numbers of these names as Python's, with None.

    Raises:
        ValueError: one is something else.
    """
    found: dict[str, Any] = {}
    for name in names:
        value = state[name]
        try:  # Checkpoints may return tensors.
            found[name] = None if value is None else operator.index(value)
        except TypeError:
            found[name] = value
        if isinstance(value, bool) or type(found[name]) not in (int, type(None)):
            raise ValueError(f"the state's {name} is {value!r}, not a whole number: it is damaged")
    return found


@dataclass(frozen=True)
class EpochOrder:
    """The order of one epoch of `count` records.

    Permutes all records; or, with `block` and `window`, blocks of records and then records inside
    windows of blocks; or takes one stretch of a mixture; or draws records by weight; or, without
    `shuffle`, the records as they lie. Every sampler, loader and adapter of ours asks it.

    Readers get these numbers as they are: those of a mixture are `BY_SOURCE` and more, for its
    epochs go on where the last one ended, while `mix[i]` is record i of the first.
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

    @staticmethod
    def of(records: object, seed: int, epoch: int, *, shuffle: bool = True) -> "EpochOrder":
        """The order in which an epoch of `records` is trained on; raises as the class does."""
        mixture = mixture_of(records) if shuffle else None
        return EpochOrder(seed, epoch, len(records), mixture=mixture, shuffle=shuffle)  # type: ignore[arg-type]

    @property
    def may_repeat(self) -> bool:
        """Whether an epoch may have a record several times."""
        return self.mixture is not None or self.weights is not None

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
        """Indices at any positions; as `range`, after the end of the epoch it begins again."""
        if positions.size and positions.min() < 0:
            raise IndexError(f"position {positions.min()} of an epoch of {self.count} records")
        return self._at(positions % self.count)

    def __reduce__(self) -> tuple[Any, ...]:
        place = self.seed, self.epoch, self.count
        if self.weights is not None:  # Which may be large, while orders travel with each batch.
            return _drawing, (*place, self.weights.token)
        return EpochOrder, (*place, self.block, self.window, self.mixture, self.shuffle)

    def _range(self, begin: int, end: int) -> Indices:
        if self.shuffle and self.weights is None and self.mixture is None:
            return self._function.range(begin, end)
        return self._at(np.arange(begin, end, dtype=np.int64))

    def _at(self, positions: Indices) -> Indices:
        if not self.shuffle or not positions.size:
            return positions
        if self.weights is not None:
            return self.weights.draw(self.seed, self.epoch, positions)
        if self.mixture is not None:
            return BY_SOURCE + self.mixture.at(self.seed, self.epoch * self.count + positions)
        return permuted(self._function, positions)

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
    from ffrecord._order.weights import Weights  # Slow to import, for it shares memory.

    return EpochOrder(seed, epoch, count, weights=Weights.known(token))


def mixture_of(records: object) -> Mixture | None:
    """The mixture whose stream is the order of these records; None if they have another."""
    found = getattr(records, "mixture", None)
    return found if isinstance(found, Mixture) else None  # A dataset may mean something else.


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

    def plan(self) -> EpochPlan:
        """The same for the library, whose orders know neither mixtures nor weights."""
        order = self.order
        return EpochPlan(
            seed=order.seed,
            epoch=order.epoch,
            first=self.first,
            end=self.end,
            block=order.block or 0,
            window=order.window or 0,
            step_size=self.step_size,
            world_size=self.world_size,
            rank=self.rank,
            in_file_order=not order.shuffle,
        )


class SeededIndices(list[int]):
    """Indices, with the seed, epoch and places for randomness about their records."""

    __slots__ = ("_turns", "ahead", "epoch", "places", "seed")

    ahead: list[int] | None
    """The first indices after these in their order, if it has a choice of all records; else None:
    any record may be read in place of another."""
    seed: int
    epoch: int
    _turns: Counter[int]
    places: Indices | None
    """In the order that they come from, shape (n,), if it may have an index several times; None:
    the indices themselves tell the draws apart."""

    @property
    def turns(self) -> Counter[int]:
        """How often each was asked for alone, by who asks for one after the other."""
        return _turns_of(self)

    @classmethod
    def like(
        cls, indices: Iterable[int], origin: object, rows: Indices | slice = slice(None)
    ) -> "SeededIndices":
        """`indices` with the seed and epoch of `origin`, and its places in `rows`; 0 without."""
        made = cls.at(0, 0)
        made.extend(indices)
        if isinstance(origin, SeededIndices | SeededIndex | IndexBatch):
            made.seed, made.epoch = origin.seed, origin.epoch
            if (places := origin.places) is not None:
                made.places = places[rows]
            made.ahead = None if isinstance(origin, IndexBatch) else origin.ahead
        return made

    @classmethod
    def at(cls, seed: int, epoch: int) -> "SeededIndices":
        """No indices yet, of this seed and epoch."""
        made = SeededIndices()
        made.seed, made.epoch, made.places, made.ahead = seed, epoch, None, None
        return made

    def one(self, row: int) -> "SeededIndex":
        """The index in that row, with what belongs to it."""
        made = SeededIndex(self[row])
        made.seed, made.epoch = self.seed, self.epoch
        made.places = None if self.places is None else self.places[row : row + 1]
        made.ahead = self.ahead
        return made


class SeededIndex(int):
    """An index that is asked for alone, with what `SeededIndices` has of it."""

    ahead: list[int] | None
    seed: int
    epoch: int
    places: Indices | None


def successors(
    indices: object, first: Indices, count: int
) -> tuple[Callable[[Indices, int], Indices], int]:
    """The records that take the place of damaged ones.

    Args:
        indices: those that are read, as they were given.
        first: the same, from 0 on.
        count: of all records.

    Returns:
        A function of rows and a distance to the indices that come so far after those in the rows:
        in the order of `indices`, if they know it, else by index. And the largest distance.
    """
    if isinstance(indices, IndexBatch):
        return indices.following, count
    if isinstance(indices, SeededIndices) and indices.ahead is not None:
        order = np.concatenate([first, np.array(indices.ahead, np.int64) % count])
        return lambda rows, distance: order[(rows + distance) % order.size], order.size
    return lambda rows, distance: (first[rows] + distance) % count, count


def step_of(asked: Any) -> tuple[list[int], bool] | None:  # noqa: ANN401 - as samplers yield it
    """The indices of one step of any sampler, and whether it asks for one sample alone.

    None for what knows its order itself, or is no index.
    """
    if isinstance(asked, Integral) and not isinstance(asked, bool):
        return [int(asked)], True
    if type(asked) in (list, tuple, range):
        return list(asked), False
    # An array or tensor; a mask is none of indices.
    listed = asked.tolist() if getattr(asked, "ndim", None) in (0, 1) else None
    if type(listed) is int:
        return [listed], True
    if isinstance(listed, list) and all(type(index) is int for index in listed):
        return listed, False
    return None


class IndexBatch(Sequence[int]):
    """Indices of one batch, and their positions in the stream. Immutable.

    They know their order. So a reader of them knows seed and epoch, even in a worker that outlives
    its epoch, and knows which index comes next in place of a damaged record. A pickle holds the
    order and the positions, not the indices: these are computed at the first use. Only of an order
    by weights it has the indices, since the weights do not travel with each batch.
    """

    __slots__ = (
        *("_array", "_may_repeat", "_size", "_turns", "_views"),
        *("epoch", "order", "position", "seed"),
    )

    _turns: Counter[int]
    order: EpochOrder
    position: int
    """The place of the first index; the others follow it."""
    seed: int
    epoch: int

    def __init__(self, order: EpochOrder, position: int, size: int) -> None:
        """The `size` indices from `position` on."""
        self.order = order
        self.position = position
        self.seed, self.epoch = order.seed, order.epoch
        self._size = size
        self._views: tuple[Callable[[Indices], Indices], ...] = ()  # From the stream outwards.
        self._may_repeat = False
        self._array: Indices | None = None

    @property
    def array(self) -> Indices:
        """The same indices, shape (n,); read-only."""
        if self._array is None:
            indices = self.order.range(self.position, self.position + self._size)
            self._array = _fixed(self._seen(indices))
        return self._array

    @property
    def places(self) -> Indices | None:
        """As of `SeededIndices`."""
        return self.positions if self._may_repeat or self.order.may_repeat else None

    @property
    def turns(self) -> Counter[int]:
        """As of `SeededIndices`."""
        return _turns_of(self)

    @property
    def positions(self) -> Indices:
        """In the stream, shape (n,)."""
        return np.arange(self.position, self.position + self._size)

    def through(
        self, view: Callable[[Indices], Indices], *, may_repeat: bool = True
    ) -> "IndexBatch":
        """The same positions of the stream, with the indices that `view` maps these to.

        `may_repeat`: whether the view may map two indices to one.
        """
        seen = IndexBatch(self.order, self.position, self._size)
        seen._views = (*self._views, view)
        seen._may_repeat = self._may_repeat or may_repeat
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
        part._views, part._may_repeat = self._views, self._may_repeat
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
        seen = self._views, self._may_repeat
        if self.order.weights is not None:
            return _seen_again, (*place, *seen, np.array(self.array))
        return (_seen_again, (*place, *seen)) if self._views else (IndexBatch, place)


def _turns_of(batch: "SeededIndices | IndexBatch") -> Counter[int]:
    try:
        return batch._turns
    except AttributeError:
        batch._turns = Counter()
        return batch._turns


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
    may_repeat: bool,
    array: Indices | None = None,
) -> IndexBatch:
    made = IndexBatch(order, position, size)
    made._views, made._may_repeat = views, may_repeat
    made._array = None if array is None else _fixed(array)
    return made
