"""Memory that goes from process to process as a descriptor: sealed, nameless, gone with its users.

Unlike a file in /dev/shm, a memfd cannot be left behind by a process that is killed.
"""

import fcntl
import mmap
import os
from multiprocessing import context, reduction
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

# Below this a pickle is cheaper than a descriptor.
_SHARE_FROM_BYTES = 1024
# The blocks of one writev.
_BLOCKS_MAX = os.sysconf("SC_IOV_MAX")


class Descriptor:
    """Closes its descriptor when the last reference goes."""

    def __init__(self, fd: int) -> None:
        """Take over `fd`."""
        self.fd = fd

    def __del__(self) -> None:
        os.close(self.fd)


class SharedArray:
    """A constant int64 array; a process that is being started gets its memory, not its bytes."""

    def __init__(self, values: npt.ArrayLike) -> None:
        """Copy `values`, of shape (n,)."""
        self.values = np.array(values, np.int64)
        self.values.setflags(write=False)
        self._descriptor: Descriptor | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        if context.get_spawning_popen() is None or self.values.nbytes < _SHARE_FROM_BYTES:
            return SharedArray, (np.array(self.values),)
        if self._descriptor is None:
            self._descriptor = Descriptor(sealed_copy([self.values]))
            self._map(self._descriptor.fd, self.values.size)
        return _attach, (reduction.DupFd(self._descriptor.fd), self.values.size)

    def _map(self, fd: int, count: int) -> None:
        self.values = map_copy_on_write(fd, count * 8).view(np.int64)
        self.values.setflags(write=False)


def sealed_copy(blocks: list[npt.NDArray[Any]]) -> int:
    """A memfd with the bytes of contiguous `blocks` back to back, which nobody can change."""
    fd = os.memfd_create("ffrecord", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        write_all(fd, blocks)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    except BaseException:
        os.close(fd)
        raise
    return fd


def write_all(fd: int, blocks: list[npt.NDArray[Any]]) -> None:
    """Write many contiguous blocks with few calls, whatever each call accepts of them."""
    left = [block.reshape(-1).view(np.uint8).data for block in blocks if block.size]
    first = 0
    while first < len(left):
        written = os.writev(fd, left[first : first + _BLOCKS_MAX])
        while first < len(left) and written >= len(left[first]):
            written -= len(left[first])
            first += 1
        if written:
            left[first] = left[first][written:]


def map_copy_on_write(fd: int, size_bytes: int) -> Bytes:
    """The bytes of a sealed memfd; a writer gets private pages."""
    if size_bytes == 0:
        return np.empty(0, np.uint8)
    block = mmap.mmap(fd, size_bytes, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    return np.frombuffer(block, np.uint8)


def _attach(descriptor: Any, count: int) -> SharedArray:  # noqa: ANN401 - multiprocessing's own
    array = SharedArray(())
    array._descriptor = Descriptor(descriptor.detach())
    array._map(array._descriptor.fd, count)
    return array
