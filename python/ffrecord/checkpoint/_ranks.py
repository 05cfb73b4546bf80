"""The messages of ranks around a save or a load, and which rank saves what."""

import sys
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

from ffrecord import _ffrecord
from ffrecord.checkpoint._peer_error import PeerError
from ffrecord.checkpoint._sharing import Leaf, Sharing
from ffrecord.checkpoint._values import decode, encode

# The longest message for other ranks, in characters.
_TOLD_MAX = 1 << 16

# Tensor slice for the extension: key, dtype, shape, offset, extent, address (or a Fetcher), size in
# bytes, and whether nobody changes its bytes until the save has ended. A Leaf with an address is
# one.
TensorSlice = tuple[Any, ...]


def slice_of(leaf: Leaf, address: object, is_stable: bool) -> TensorSlice:
    """A leaf for the extension whose bytes are elsewhere: at `address`, or given by a Fetcher."""
    return (*leaf[:5], address, leaf.size_bytes, is_stable)


class Group(Protocol):
    """Ranks that save and load together, such as `ffrecord.torch.checkpoint.Group`.

    It may have `members`, the ranks of the job that they are: of the replicas of a DTensor, only
    those in the group write. Without it, all of them count.
    """

    @property
    def rank(self) -> int:
        """The rank of this process, from 0."""

    @property
    def size(self) -> int:
        """How many ranks there are."""

    def all_gather(self, mine: bytes) -> list[bytes]:
        """The bytes of every rank, in rank order; sizes may differ. Raises on every rank alike."""


# The ranks that save or load together: None means all ranks of the default process group, if there
# is one.
Ranks = Group | Literal["alone"] | None


def group_of(ranks: Ranks) -> Group | None:
    """The ranks that a caller means; None if this process is alone."""
    if ranks == "alone":
        return None
    if ranks is not None:
        return ranks
    dist: Any = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    if dist.get_world_size() == 1:
        return None
    from ffrecord.checkpoint._torch_group import Group as TorchGroup  # torch is imported already.

    return TorchGroup()


def members_of(group: Group | None) -> Sequence[int] | None:
    """The ranks of the job that a group of torch's consists of; None if it does not say so."""
    members: Sequence[int] | None = getattr(group, "members", None)
    return members


def together(group: Group | None, work: Callable[[], object]) -> list[object]:
    """Run `work` on every rank; return its result on each, small values only.

    One round of the agreement that saves and loads are made of (`AllGatherResults` in C++).

    Raises:
        Exception: the error here, or PeerError for an error on another rank.
    """
    if group is None:
        return [work()]
    known: dict[bytes, object] = {}  # Ranks mostly say the same.
    results = gather_encoded(group, lambda: encode(work()))
    for result in results:
        if result not in known:
            known[result] = decode(result)
    return [known[result] for result in results]


def gather_encoded(group: Group, work: Callable[[], bytes]) -> list[bytes]:
    """A round of bytes, such as encoded values that not every rank has to decode. Raises alike."""
    failure: Exception | None = None
    mine, told = b"", None
    try:
        mine = work()
    except Exception as error:
        failure = error
        told = _sayable(type(error).__name__), _sayable(error)
    results, failed = _ffrecord.all_gather_results(group, mine, told)
    if failure is not None:
        raise failure
    if failed is not None:
        raise PeerError(*failed)
    return list(results)


def _sayable(what: object) -> str:
    """The message about a failure for the other ranks, which wait for one in any case."""
    try:
        text = str(what)
    except Exception as error:
        text = f"(its message is not available: {type(error).__name__})"
    # A path that is not UTF-8 has lone surrogates.
    return text[:_TOLD_MAX].encode(errors="backslashreplace").decode()


def shares_of_rank(leaves: Sequence[Leaf], rank: int, size: int, split: bool) -> list[Leaf]:
    """The leaves that this rank saves: its own, and its share of data that all ranks have.

    Every rank computes the same shares. Without `split`, rank 0 saves all shared data.
    """
    if not split:
        return [leaf for leaf in leaves if leaf.is_own or rank == 0]
    sharing, everyone = Sharing(), tuple(range(size))
    parts = (
        leaf if leaf.is_own else sharing.part_of(leaf, everyone, rank)
        for leaf in sorted(leaves, key=lambda leaf: leaf.key)  # Dicts of ranks have other orders.
    )
    return [part for part in parts if part is not None]
