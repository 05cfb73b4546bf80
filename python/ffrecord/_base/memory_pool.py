"""Memory that one process lends to another with its results, and reuses afterwards.

A block is a memfd: a byte that is set while the block is lent, then the contents. The lender writes
it and passes its descriptor; the borrower maps it, and changes the byte when the last array over
it is gone. Neither waits for the other, and either may die at any time: nameless memory goes with
its last user. Fresh memory would cost more than copying the contents.
"""

import fcntl
import mmap
import os
import weakref
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ffrecord._base.shared_memory import Bytes, Descriptor, write_all

# The values of the byte; after `_GONE` the lender wants no more news of the block.
_LENT, _BACK, _GONE = b"\0", b"\1", b"\2"
# The contents begin there, aligned for any type.
_HEADER_BYTES = 64
# Blocks that are used again. If borrowers keep more, the others are gone as soon as they are lent.
_COUNT_MAX = 16
# A block that was not needed for so many others is freed.
_TURNS = 16


class _Block(NamedTuple):
    descriptor: Descriptor
    size: int
    turn: int


class Lender:
    """The blocks that this process lends; in a forked child there are none. For one thread."""

    def __init__(self) -> None:
        """Start with no blocks."""
        self._blocks: list[_Block] = []  # Those that are used again, the last one lent last.
        self._turn = 0
        self._pid = os.getpid()

    def lend(self, parts: list[npt.NDArray[np.uint8]]) -> Descriptor:
        """A block with the bytes of `parts` back to back, for one borrower."""
        if self._pid != os.getpid():
            self._blocks, self._pid = [], os.getpid()
        self._turn += 1
        size = sum(part.size for part in parts)
        descriptor, size_before = self._taken_back(size) or (_made(), 0)
        kept = len(self._blocks) < _COUNT_MAX
        header = np.zeros(_HEADER_BYTES, np.uint8)
        header[:1] = np.frombuffer(_LENT if kept else _GONE, np.uint8)
        os.lseek(descriptor.fd, 0, os.SEEK_SET)
        write_all(descriptor.fd, [header, *parts])
        if kept:
            self._blocks.append(_Block(descriptor, max(size, size_before), self._turn))
        return descriptor

    def _taken_back(self, size: int) -> tuple[Descriptor, int] | None:
        """The block lent last among those that were returned and are at most twice as large."""
        left: list[_Block] = []
        found = None
        for block in self._blocks:
            state = os.pread(block.descriptor.fd, 1, 0)
            if state == _GONE or (state == _BACK and self._turn - block.turn > _TURNS):
                continue
            left.append(block)
            if state == _BACK and block.size <= 2 * size:
                found = block
        self._blocks = [block for block in left if block is not found]
        return found and (found.descriptor, found.size)


def _made() -> Descriptor:
    descriptor = Descriptor(os.memfd_create("ffrecord", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    # Pages that a borrower has mapped stay there.
    fcntl.fcntl(descriptor.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
    return descriptor


def borrow(fd: int, size: int) -> Bytes:
    """The bytes of a block; takes over its descriptor. A writer gets private pages."""
    try:
        block = mmap.mmap(
            fd, _HEADER_BYTES + size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE
        )
    except BaseException:
        _give_back(fd, os.getpid(), _forks)
        raise
    if os.pread(fd, 1, 0) == _LENT:
        weakref.finalize(block, _give_back, fd, os.getpid(), _forks).atexit = False
    else:
        os.close(fd)
    return np.frombuffer(block, np.uint8, offset=_HEADER_BYTES)


def _give_back(fd: int, pid: int, forks: int) -> None:
    """Requires that this process no longer reads the block. A child forked since then may."""
    if os.getpid() == pid:
        os.pwrite(fd, _BACK if forks == _forks else _GONE, 0)
    os.close(fd)


# Counts the forks of this process. On both sides of a fork, so that it differs for whatever it may
# have copied.
_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(before=_count_fork, after_in_parent=_count_fork)
