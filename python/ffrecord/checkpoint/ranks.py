"""What ranks say to each other around a save or a load, and who saves what."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ffrecord.checkpoint.state import Leaf
from ffrecord.checkpoint.values import decode, encode

# Smaller replicated tensors are not cut into rows but go whole to one rank.
SPLIT_SIZE_MIN_BYTES = 1 << 20

# Box of a tensor for the extension: key, dtype, shape, offset, extent, address, size in bytes, and
# whether nobody changes its bytes until the save has ended. A Leaf with an address is one.
Box = tuple[Any, ...]


def box_of(leaf: Leaf, address: int, is_stable: bool) -> Box:
    """A leaf for the extension whose bytes are elsewhere: the first one at `address`."""
    return (*leaf[:5], address, leaf.size_bytes, is_stable)


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


def shares_of_rank(leaves: Sequence[Leaf], rank: int, size: int, split: bool) -> list[Leaf]:
    """What this rank saves: its own leaves, and its share of what all ranks have.

    Every rank computes the same shares. Without `split`, rank 0 has all of what is shared.
    """
    if not split:
        return [leaf for leaf in leaves if leaf.is_own or rank == 0]
    shares = []
    load = [0] * size
    for leaf in leaves:
        shape, size_bytes = leaf.shape, leaf.size_bytes
        if leaf.is_own:
            shares.append(leaf)
        elif size_bytes >= SPLIT_SIZE_MIN_BYTES and shape[0] >= size:
            begin, end = shape[0] * rank // size, shape[0] * (rank + 1) // size
            row_size = size_bytes // shape[0]
            skip = begin * row_size
            rows = leaf._replace(
                offset=(begin, *leaf.offset[1:]),
                extent=(end - begin, *shape[1:]),
                address=None if leaf.address is None else leaf.address + skip,
                size_bytes=(end - begin) * row_size,
                skip_bytes=skip,
            )
            shares.append(rows)
        else:
            owner = min(range(size), key=lambda each: (load[each], each))
            load[owner] += size_bytes
            if owner == rank:
                shares.append(leaf)
    return shares
