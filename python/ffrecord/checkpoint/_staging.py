"""Copies of tensors in memory that is kept from save to save."""

import dataclasses
import logging
import os
from typing import Any

from ffrecord import _ffrecord
from ffrecord.checkpoint._collector import without_collector
from ffrecord.checkpoint._pieces import Fetcher, memory_at
from ffrecord.checkpoint._ranks import TensorSlice, slice_of
from ffrecord.checkpoint._sharing import Leaf
from ffrecord.checkpoint._tensors import torch_if_imported

# As the writer places tensors in segments.
_PAGE = 4096
_SMALL = 64
_CONGRUENT_SIZE_MIN = 512 << 10
# How many processes a launcher has started on this machine: torchrun, Open MPI, Intel MPI, Slurm.
_LOCAL_SIZES = (
    "LOCAL_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "SLURM_NTASKS_PER_NODE",
)

_log = logging.getLogger("ffrecord.checkpoint")


class TornStageError(RuntimeError):
    """Another thread changed a tensor while it was being copied; nothing was saved."""


@dataclasses.dataclass(frozen=True)
class Staged:
    """Slices for the extension, and what keeps their memory."""

    slices: list[TensorSlice]
    owners: list[object]
    staged_bytes: int
    left_bytes: int  # Not copied for lack of room: to be written before anybody changes them.


def room_for_copies(ranks: int) -> int:
    """The memory that copies of this process may take, in bytes, where the caller sets no limit.

    Half of the free memory, divided by the processes of this machine: as the launcher says, else
    `ranks`, but not more than there are processors.
    """
    free, _ = _ffrecord.memory_room()
    said = (os.environ.get(name, "") for name in _LOCAL_SIZES)
    here = next((int(each) for each in said if each.isdecimal() and int(each) > 0), None)
    if here is None:
        here = max(1, min(ranks, os.cpu_count() or 1))
    room = free // 2 // here
    _log.info(
        "copies of tensors take at most %.1f GiB of this process: half of the %.1f GiB that are"
        " free, by %s processes; stage_bytes_max= sets another limit",
        room / 2**30,
        free / 2**30,
        here,
    )
    return room


def size_of_copies(shares: list[Leaf]) -> int:
    """The memory that holds the copies of all of them, wherever their pages begin."""
    return sum(share.size_bytes + _PAGE for share in shares)


class Arena:
    """Memory for the copies of one save at a time, `size_bytes` at most."""

    def __init__(self, size_bytes: int) -> None:
        """Pages are taken from the system as they are first used, and kept."""
        self.size_bytes = size_bytes
        self._arena = _ffrecord.StagingArena(size_bytes)

    @without_collector()
    def stage(self, shares: list[Leaf]) -> Staged:
        """Copy as many shares as there is room for, the smallest first.

        Raises:
            TornStageError: a tensor was changed during the copy.
        """
        used = left_bytes = 0
        jobs: list[tuple[int, int, int]] = []
        # Share -> address, or what gives its bytes, and whether it is a copy.
        places: dict[int, tuple[int | Fetcher, bool]] = {}
        owners: list[object] = [self]
        moves: list[tuple[Leaf, int]] = []
        versions = _versions_of(shares)
        for index in sorted(range(len(shares)), key=lambda i: shares[i].size_bytes):
            share = shares[index]
            data = share.data
            own = share.address
            address = 0 if own is None else own
            # As far from a page's beginning as its original, so that it is stored, and later read
            # into its original, without another copy.
            alignment = _PAGE if share.size_bytes >= _CONGRUENT_SIZE_MIN else _SMALL
            begin = used + (address - used) % alignment
            if begin + share.size_bytes <= self.size_bytes:
                used = begin + share.size_bytes
                if own is not None:
                    jobs.append((address, share.size_bytes, begin))
                else:
                    moves.append((share, begin))
                places[index] = (self._arena.address + begin, True)
            else:
                left_bytes += share.size_bytes
                owners.append(data)
                fetched = Fetcher(data, share.skip_bytes) if own is None else address
                places[index] = (fetched, False)
        self._arena.copy(jobs)
        for share, begin in moves:
            room = memory_at(self._arena.address + begin, share.size_bytes)
            Fetcher(share.data, share.skip_bytes).copy_to(room)
        for share, before, now in zip(shares, versions, _versions_of(shares), strict=True):
            if before != now:
                raise TornStageError(f"{share.key} was changed while it was being copied")
        slices = [slice_of(share, *places[index]) for index, share in enumerate(shares)]
        return Staged(slices, owners, used, left_bytes)


def _versions_of(shares: list[Leaf]) -> list[int]:
    """The count of changes of torch tensors; 0 where nothing counts them."""
    torch = torch_if_imported()
    if torch is None:
        return [0] * len(shares)
    tensors: list[Any] = [share.data for share in shares]
    return [
        int(tensor._version)
        if isinstance(tensor, torch.Tensor) and not tensor.is_inference()
        else 0
        for tensor in tensors
    ]
