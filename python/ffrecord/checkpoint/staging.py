"""Copies of tensors in memory that stays from save to save."""

import ctypes
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from ffrecord import _ffrecord
from ffrecord.checkpoint.collector import without_collector
from ffrecord.checkpoint.ranks import Box, box_of
from ffrecord.checkpoint.state import Leaf
from ffrecord.checkpoint.tensors import (
    as_array,
    describe,
    kind_of,
    memory_of,
    torch_if_imported,
)
from ffrecord.checkpoint.values import Kind

# As the writer places tensors in segments.
_PAGE = 4096
_SMALL = 64
_CONGRUENT_SIZE_MIN = 512 << 10


class TornStageError(RuntimeError):
    """A tensor was changed by another thread while it was being copied; nothing was saved."""


@dataclasses.dataclass(frozen=True)
class Staged:
    """Boxes for the extension, and what keeps their memory."""

    boxes: list[Box]
    owners: list[object]
    staged_bytes: int
    left_bytes: int  # Not copied for lack of room: to be written before anybody changes them.


class Arena:
    """Room for the copies of one save at a time, `size_bytes` at most."""

    def __init__(self, size_bytes: int) -> None:
        """Pages are taken from the system as they are first used, and kept."""
        self.size_bytes = size_bytes
        self._arena = _ffrecord.StagingArena(size_bytes)

    @without_collector()
    def stage(self, shares: list[Leaf]) -> Staged:
        """Copies as many shares as there is room for, the smallest first.

        What is not on the CPU or not contiguous is always copied, beyond the arena if it is full.

        Raises:
            TornStageError: a tensor was changed meanwhile.
        """
        used = left_bytes = 0
        jobs: list[tuple[int, int, int]] = []
        places: dict[int, tuple[int, bool]] = {}  # Share -> address, and whether it is a copy.
        owners: list[object] = [self]
        moves: list[Callable[[], None]] = []
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
                    moves.append(self._mover(share, begin))
                places[index] = (self._arena.address + begin, True)
            elif own is not None:
                left_bytes += share.size_bytes
                owners.append(data)
                places[index] = (address, False)
            else:
                memory = memory_of(data)  # A copy already.
                owners.append(memory)
                places[index] = (memory.address + share.skip_bytes, True)
        self._arena.copy(jobs)
        for move in moves:
            move()
        for share, before, now in zip(shares, versions, _versions_of(shares), strict=True):
            if before != now:
                raise TornStageError(f"{share.key} was changed while it was being copied")
        boxes = [box_of(share, *places[index]) for index, share in enumerate(shares)]
        return Staged(boxes, owners, used, left_bytes)

    def _mover(self, share: Leaf, begin: int) -> Callable[[], None]:
        """Copies a tensor that is strided or on a device to its place."""
        data: Any = share.data
        dtype, shape = describe(data)
        rows = slice(None)
        if shape and share.extent[0] != shape[0]:
            first = share.skip_bytes // (share.size_bytes // share.extent[0])
            rows = slice(first, first + share.extent[0])
        source = data if rows == slice(None) else data[rows]
        room = self._view(begin, share.size_bytes)

        def move() -> None:
            if kind_of(data) is Kind.TORCH:
                torch = torch_if_imported()
                to = torch.from_numpy(room).view(getattr(torch, dtype)).view(share.extent)
                to.copy_(source.detach())
            else:
                array = as_array(source)
                to = room.view(array.dtype.newbyteorder("=")).reshape(share.extent)
                to[...] = array

        return move if share.size_bytes else lambda: None

    def _view(self, begin: int, size_bytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        memory = (ctypes.c_uint8 * size_bytes).from_address(self._arena.address + begin)
        return np.frombuffer(memoryview(memory).cast("B"), dtype=np.uint8)


def _versions_of(shares: list[Leaf]) -> list[int]:
    """Counts the changes of torch tensors; 0 where nobody counts."""
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
