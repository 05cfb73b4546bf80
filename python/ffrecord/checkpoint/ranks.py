"""What ranks say to each other around a save or a load, and who saves what."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ffrecord.checkpoint.state import Leaf
from ffrecord.checkpoint.tensors import ITEM_SIZES, Memory
from ffrecord.checkpoint.values import decode, encode

# Smaller replicated tensors are not cut into rows but go whole to one rank.
SPLIT_SIZE_MIN_BYTES = 1 << 20

# Box of a tensor for the extension: key, dtype, shape, offset, extent, address, size in bytes.
Box = tuple[str, str, list[int], list[int], list[int], int, int]


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


def boxes_of_rank(
    leaves: Sequence[tuple[Leaf, Memory]], rank: int, size: int, split: bool
) -> list[Box]:
    """What this rank saves: its own boxes, and its share of what all ranks have.

    Every rank computes the same shares. Without `split`, rank 0 has all of what is shared.
    """
    boxes = []
    load = [0] * size
    for leaf, memory in leaves:
        shape = list(leaf.shape)
        if leaf.is_own:
            boxes.append(_box(leaf, memory, list(leaf.offset), list(memory.shape), 0))
        elif not split:
            if rank == 0:
                boxes.append(_box(leaf, memory, [0] * len(shape), shape, 0))
        elif memory.size_bytes >= SPLIT_SIZE_MIN_BYTES and shape[0] >= size:
            begin, end = shape[0] * rank // size, shape[0] * (rank + 1) // size
            row_size = memory.size_bytes // shape[0]
            offset, extent = [begin, *[0] * (len(shape) - 1)], [end - begin, *shape[1:]]
            boxes.append(_box(leaf, memory, offset, extent, begin * row_size))
        else:
            owner = min(range(size), key=lambda each: (load[each], each))
            load[owner] += memory.size_bytes
            if owner == rank:
                boxes.append(_box(leaf, memory, [0] * len(shape), shape, 0))
    return boxes


def _box(leaf: Leaf, memory: Memory, offset: list[int], extent: list[int], skip_bytes: int) -> Box:
    size = ITEM_SIZES[memory.dtype]
    for count in extent:
        size *= count
    return (
        leaf.key,
        memory.dtype,
        list(leaf.shape),
        offset,
        extent,
        memory.address + skip_bytes,
        size,
    )
