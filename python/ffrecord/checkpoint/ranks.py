"""What ranks say to each other around a save or a load, and who saves what."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ffrecord.checkpoint.state import Leaf
from ffrecord.checkpoint.tensors import ITEM_SIZES, describe
from ffrecord.checkpoint.values import decode, encode

# Smaller replicated tensors are not cut into rows but go whole to one rank.
SPLIT_SIZE_MIN_BYTES = 1 << 20

# Box of a tensor for the extension: key, dtype, shape, offset, extent, address, size in bytes, and
# whether nobody changes its bytes until the save has ended.
Box = tuple[str, str, list[int], list[int], list[int], int, int, bool]


@dataclasses.dataclass(frozen=True)
class Share:
    """What one rank saves of a leaf: all of it, or some of its rows.

    Attributes:
        leaf: whose bytes they are.
        dtype: of its elements.
        offset: of the box in the whole tensor.
        extent: of the box.
        skip_bytes: where the box begins in the leaf's own bytes.
        size_bytes: of the box.
    """

    leaf: Leaf
    dtype: str
    offset: list[int]
    extent: list[int]
    skip_bytes: int
    size_bytes: int

    def box(self, address: int, is_stable: bool) -> Box:
        """For the extension; its first byte is at `address`."""
        shape = list(self.leaf.shape)
        size = self.size_bytes
        return self.leaf.key, self.dtype, shape, self.offset, self.extent, address, size, is_stable


class Group(Protocol):
    """Ranks that save and load together, such as `ffrecord.torch.checkpoint.Group`."""

    @property
    def rank(self) -> int:
        """From 0."""

    @property
    def size(self) -> int:
        """How many there are."""

    def all_gather(self, mine: bytes) -> list[bytes]:
        """The bytes of every rank, in rank order; sizes may differ. Raises on every rank alike."""


class PeerError(RuntimeError):
    """Another rank failed; the message says which and why. This rank did what it was asked."""


def together(group: Group | None, work: Callable[[], object]) -> list[object]:
    """Runs `work` on every rank; returns what it gave on each, small values only.

    Raises:
        Exception: what it raised here, or PeerError for what it raised on another rank.
    """
    if group is None:
        return [work()]
    failure: Exception | None = None
    try:
        mine = encode([True, work()])
    except Exception as error:
        failure = error
        mine = encode([False, f"{type(error).__name__}: {error}"])
    answers: list[Any] = [decode(answer) for answer in group.all_gather(mine)]
    if failure is not None:
        raise failure
    for rank, (succeeded, answer) in enumerate(answers):
        if not succeeded:
            raise PeerError(f"rank {rank}: {answer}")
    return [answer for _, answer in answers]


def shares_of_rank(leaves: Sequence[Leaf], rank: int, size: int, split: bool) -> list[Share]:
    """What this rank saves: its own leaves, and its share of what all ranks have.

    Every rank computes the same shares. Without `split`, rank 0 has all of what is shared.
    """
    shares = []
    load = [0] * size
    for leaf in leaves:
        dtype, own_shape = describe(leaf.data)
        shape = list(leaf.shape)
        zeros = [0] * len(shape)
        size_bytes = math.prod(own_shape) * ITEM_SIZES[dtype]
        if leaf.is_own:
            offset = list(leaf.offset)
            shares.append(Share(leaf, dtype, offset, list(own_shape), 0, size_bytes))
        elif not split:
            if rank == 0:
                shares.append(Share(leaf, dtype, zeros, shape, 0, size_bytes))
        elif size_bytes >= SPLIT_SIZE_MIN_BYTES and shape[0] >= size:
            begin, end = shape[0] * rank // size, shape[0] * (rank + 1) // size
            row_size = size_bytes // shape[0]
            offset, extent = [begin, *zeros[1:]], [end - begin, *shape[1:]]
            rows_size = (end - begin) * row_size
            shares.append(Share(leaf, dtype, offset, extent, begin * row_size, rows_size))
        else:
            owner = min(range(size), key=lambda each: (load[each], each))
            load[owner] += size_bytes
            if owner == rank:
                shares.append(Share(leaf, dtype, zeros, shape, 0, size_bytes))
    return shares
