"""Slices of the tensors of a state, and which of several ranks that hold one writes it."""

import heapq
from typing import NamedTuple

# Smaller slices that several ranks hold are not cut into rows but go whole to one rank.
SPLIT_SIZE_MIN_BYTES = 1 << 20


class Leaf(NamedTuple):
    """A slice of a tensor of a state, or all of it.

    The extension takes its first eight elements as a slice: states have leaves by the 100,000, so
    nothing is made of them a second time.

    Attributes:
        key: path in the state.
        dtype: of its elements.
        shape: of the whole tensor.
        offset: of the slice in it.
        extent: of the slice.
        address: of the slice; None if its bytes are not on the CPU, contiguous and as they are.
        size_bytes: of the slice.
        is_stable: nobody changes the bytes until the save has ended.
        data: an array or tensor.
        is_own: this rank's alone; otherwise all ranks have the same.
        skip_bytes: where the slice begins in the data.
    """

    key: str
    dtype: str
    shape: tuple[int, ...]
    offset: tuple[int, ...]
    extent: tuple[int, ...]
    address: int | None
    size_bytes: int
    is_stable: bool
    data: object
    is_own: bool
    skip_bytes: int = 0

    def rows(self, begin: int, end: int) -> "Leaf":
        """Rows of the slice, counted from its first one."""
        row_size = self.size_bytes // self.extent[0]
        skip = begin * row_size
        return self._replace(
            offset=(self.offset[0] + begin, *self.offset[1:]),
            extent=(end - begin, *self.extent[1:]),
            address=None if self.address is None else self.address + skip,
            size_bytes=(end - begin) * row_size,
            skip_bytes=self.skip_bytes + skip,
        )


class Sharing:
    """Shares slices out among the ranks that hold the same ones; each of them computes the same.

    Large slices are cut into rows, one share for each rank. A small one goes whole to the rank that
    has least of what these ranks hold together.
    """

    def __init__(self) -> None:
        """Nothing is shared out yet."""
        self._crews: dict[tuple[int, ...], _Crew] = {}
        self._by_address: dict[int, _Crew] = {}  # Tuples of 1,000 ranks are slow to compare.

    def part_of(self, leaf: Leaf, holders: tuple[int, ...], mine: int) -> Leaf | None:
        """The part that rank `mine` writes of a slice of `holders`, in their order; or None."""
        if len(holders) == 1:
            return leaf
        crew = self._by_address.get(id(holders))
        if crew is None or crew.named is not holders:
            crew = self._crews.setdefault(holders, _Crew(holders, mine))
            if crew.named is holders:
                self._by_address[id(holders)] = crew
        count = crew.count
        if leaf.size_bytes >= SPLIT_SIZE_MIN_BYTES and leaf.extent[0] >= count:
            rows = leaf.extent[0]
            return leaf.rows(rows * crew.place // count, rows * (crew.place + 1) // count)
        return leaf if crew.next_owner(leaf.size_bytes) == crew.place else None


class _Crew:
    """Ranks that hold the same, and how much of it each has to write: the least comes first."""

    def __init__(self, named: tuple[int, ...], mine: int) -> None:
        self.named, self.count, self.place = named, len(named), named.index(mine)
        self._loads = [(0, place) for place in range(self.count)]

    def next_owner(self, size_bytes: int) -> int:
        """The place of the one that writes as much more."""
        load, owner = self._loads[0]
        heapq.heapreplace(self._loads, (load + size_bytes, owner))
        return owner
