"""Goal: a lent block holds what it held until the borrower is done with it, and is then used again.

Method: lenders and borrowers in one process and in forked ones; kept blocks are compared with what
was lent, inodes tell blocks apart, descriptors are counted.
"""

import errno
import gc
import os
import random

import numpy as np
import pytest

from ffrecord._base import shared_memory
from ffrecord._base.memory_pool import Lender, borrow
from ffrecord._base.shared_memory import Bytes

SIZE = 100_000


def lent(lender: Lender, value: int, size: int = SIZE) -> tuple[Bytes, int]:
    """Contents of that value, as a borrower has them, and the inode."""
    half = np.full(size // 2, value, np.uint8)
    descriptor = lender.lend([half, np.full(size - size // 2, value, np.uint8)])
    inode = os.fstat(descriptor.fd).st_ino
    return borrow(os.dup(descriptor.fd), size), inode


def descriptors() -> int:
    gc.collect()  # What other tests left in cycles is not let go in the middle of one of these.
    return len(os.listdir("/proc/self/fd"))


def test_a_block_is_used_again_when_its_last_array_is_gone() -> None:
    lender = Lender()
    first, inode = lent(lender, 1)
    part = first[10:20]
    del first
    second, other = lent(lender, 2)
    assert other != inode
    assert part.tolist() == [1] * 10
    second[:] = 9  # In pages of its own.

    del part
    third, again = lent(lender, 3, size=SIZE + 70_000)

    assert again == inode
    assert third.tolist() == [3] * (SIZE + 70_000)
    assert second.tolist() == [9] * SIZE


def test_whatever_is_kept_stays_as_it_was() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    before = descriptors()
    lender = Lender()
    kept: list[tuple[int, Bytes]] = []

    for turn in range(300):
        size = chance.choice([1, 5000, 9000, 40_000])
        kept.append((turn % 251, lent(lender, turn % 251, size)[0]))
        # Now hardly any are kept, now many more than are used again.
        while len(kept) > (turn % 40) or (chance.random() < 0.3 and kept):
            kept.pop(chance.randrange(len(kept)))
        for value, contents in kept:
            assert (contents == value).all()
    del kept, contents, lender

    assert descriptors() == before


def test_blocks_that_are_not_needed_are_let_go() -> None:
    before = descriptors()
    lender = Lender()
    many = [lent(lender, value)[0] for value in range(10)]
    assert descriptors() == before + 10 * 3  # The lender's, the borrower's, and the map's.
    del many
    assert descriptors() == before + 10

    inodes = {lent(lender, value)[1] for value in range(20)}

    assert len(inodes) == 1
    assert descriptors() == before + 1
    huge = lent(lender, 1, size=50 * SIZE)[0]
    assert lent(lender, 2)[0].size == SIZE
    assert huge.all()


def test_a_forked_child_keeps_what_it_has_copied() -> None:
    lender = Lender()
    array, inode = lent(lender, 1)
    done = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(done[1])
        os.read(done[0], 1)
        os._exit(0 if (array == 1).all() else 1)

    del array
    other, fresh = lent(lender, 2)
    os.close(done[1])
    _, status = os.waitpid(child, 0)

    assert fresh != inode
    assert os.waitstatus_to_exitcode(status) == 0
    del other
    assert lent(lender, 3)[1] == fresh  # What came later than the fork comes back.
    os.close(done[0])


def test_a_forked_child_gives_nothing_back_and_lends_blocks_of_its_own() -> None:
    lender = Lender()
    array, inode = lent(lender, 1)
    child = os.fork()
    if child == 0:
        del array
        os._exit(0 if lent(lender, 2)[1] != inode else 1)
    _, status = os.waitpid(child, 0)

    other, fresh = lent(lender, 3)

    assert os.waitstatus_to_exitcode(status) == 0
    assert fresh != inode
    assert (array == 1).all()
    assert (other == 3).all()


def test_a_block_outlives_its_lender() -> None:
    before = descriptors()
    array, _ = lent(Lender(), 7)

    assert (array == 7).all()
    del array
    assert descriptors() == before


def test_a_block_that_cannot_be_written_is_let_go() -> None:
    def full(fd: int, blocks: list[memoryview]) -> int:
        raise OSError(errno.ENOSPC, "no room")

    before = descriptors()
    lender = Lender()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_memory.os, "writev", full)
        with pytest.raises(OSError, match="no room"):
            lender.lend([np.ones(SIZE, np.uint8)])

    assert descriptors() == before
    assert (lent(lender, 5)[0] == 5).all()


def test_a_borrower_that_finds_no_room_gives_the_block_back() -> None:
    lender = Lender()
    descriptor = lender.lend([np.ones(SIZE, np.uint8)])
    inode = os.fstat(descriptor.fd).st_ino
    fd = os.dup(descriptor.fd)

    with pytest.raises((OSError, ValueError, OverflowError)):
        borrow(fd, 1 << 62)

    with pytest.raises(OSError):
        os.fstat(fd)
    assert lent(lender, 1)[1] == inode
