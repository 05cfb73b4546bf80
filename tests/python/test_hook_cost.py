"""Goal: what a training thread calls at each collective allocates nothing.

Method: Python counts the memory that it gives out: the highest count during a thousand calls is
that of a thousand empty rounds, in the best of several tries, for other threads allocate as well.
What C++ does below is counted in tests/unit/pace.
"""

import gc
import itertools
import sys
import tracemalloc
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist

from eventually import until_idle
from ffrecord import _ffrecord, runtime

ROUNDS = 1000
TRIES = 3  # With the round before them, as many operations as a handover has room for.
SIZE = 1 << 20  # An int that Python does not keep ready.


@pytest.fixture(autouse=True)
def _paced() -> Iterator[None]:
    _ffrecord.start_pacing()
    yield
    _ffrecord.stop_pacing()


def peak_of(round_: Callable[[], object]) -> int:
    """How much memory of Python's is out at most, beyond that at the begin, in bytes."""
    for _ in itertools.repeat(None, ROUNDS):
        round_()  # What is made once is made now.
    gc.collect()
    return min(_peak_of_a_try(round_) for _ in range(TRIES))


def _peak_of_a_try(round_: Callable[[], object]) -> int:
    gc.disable()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        for _ in itertools.repeat(None, ROUNDS):
            round_()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
        gc.enable()


def test_a_signal_allocates_nothing() -> None:
    begin, end, step = _ffrecord.phase_begin, _ffrecord.phase_end, _ffrecord.step_end

    def signal() -> None:
        begin("collective", SIZE)
        end("collective")
        step()

    nothing = peak_of(lambda: None)
    assert peak_of(signal) == nothing
    assert peak_of(lambda: [SIZE]) > nothing  # One list would be seen.
    assert _ffrecord.pacing_counters()["phases"] == (1 + TRIES) * ROUNDS


def test_an_operation_is_handed_over_without_an_allocation() -> None:
    operation = object()
    references = sys.getrefcount(operation)

    def fill() -> None:
        handover = _ffrecord.PhaseHandover()
        add = handover.add
        assert peak_of(lambda: add(operation, "collective", True)) == peak_of(lambda: None)
        assert sys.getrefcount(operation) == references + (1 + TRIES) * ROUNDS
        assert handover.take() == (operation, "collective", True)
        while add(operation, "other", False):
            pass  # Until it is full.

    fill()
    gc.collect()
    assert sys.getrefcount(operation) == references


def test_a_watched_collective_leaves_nothing_behind() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    group, tensor = dist.group.WORLD, torch.ones(SIZE // 4)
    assert group is not None

    def blocks_after_rounds() -> int:
        for _ in itertools.repeat(None, ROUNDS):
            group.allreduce([tensor]).wait()
        until_idle()  # Each operation whose phase has not ended yet is a block.
        return sys.getallocatedblocks()

    try:
        with runtime.attach(group) as attachment:
            before = blocks_after_rounds()
            left = blocks_after_rounds() - before
            assert left < ROUNDS / 10  # A round that leaves a block is seen.
            assert attachment.errors == []
    finally:
        dist.destroy_process_group()
