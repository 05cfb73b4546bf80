"""Goal: memory that is handed on is whole, cannot be changed, and is private to who writes into it.

Method: blocks of all sizes go through a memfd; the kernel is asked to break its seals.
"""

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffrecord._base import shared_memory
from ffrecord._base.shared_memory import map_copy_on_write, sealed_copy


def through(blocks: list[np.ndarray]) -> bytes:
    fd = sealed_copy(blocks)
    try:
        return map_copy_on_write(fd, sum(block.nbytes for block in blocks)).tobytes()
    finally:
        os.close(fd)


@given(st.lists(st.binary(max_size=50), max_size=40))
def test_blocks_come_back_back_to_back(blocks: list[bytes]) -> None:
    arrays = [np.frombuffer(block, np.uint8) for block in blocks]

    assert through(arrays) == b"".join(blocks)


def test_more_blocks_than_one_call_takes_and_other_types() -> None:
    arrays = [np.arange(i % 7, dtype=np.int32) for i in range(5000)]

    assert through(arrays) == b"".join(array.tobytes() for array in arrays)


@given(cut=st.integers(1, 9))
def test_a_short_write_is_continued(cut: int) -> None:
    writev = os.writev

    def short(fd: int, blocks: list[memoryview]) -> int:
        return writev(fd, [blocks[0][:cut]])

    arrays = [np.arange(size, dtype=np.uint8) for size in (3, 0, 20, 1)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_memory.os, "writev", short)
        found = through(arrays)

    assert found == b"".join(array.tobytes() for array in arrays)


def test_the_seals_hold_and_a_writer_gets_its_own_pages() -> None:
    fd = sealed_copy([np.arange(10_000)])
    mine, other = map_copy_on_write(fd, 80_000), map_copy_on_write(fd, 80_000)

    mine[:] = 7

    assert np.array_equal(other.view(np.int64), np.arange(10_000))
    with pytest.raises(PermissionError):
        os.pwrite(fd, b"x", 0)
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 1)
    assert not os.get_inheritable(fd)
    os.close(fd)
    assert map_copy_on_write(-1, 0).size == 0
