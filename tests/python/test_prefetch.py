"""Goal: what is loaded ahead comes in order, within its memory, and every wait ends.

Method: loads are held back by events, so that what the threads have done is known, not guessed.
"""

import gc
import itertools
import os
import threading
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventually import eventually
from ffrecord import DeadlineExceeded
from ffrecord._base import clock
from ffrecord._read.prefetch import Prefetcher
from ffrecord._read.read_ahead import ReadAhead
from ffrecord.errors import ClosedError
from virtual_clock import virtual_time


def prefetcher(
    load: Callable[[int], int],
    plans: Iterator[int],
    *,
    threads: int = 2,
    depth: int = 4,
    memory: int = 1 << 30,
    timeout_s: float = 60.0,
    weigh: Callable[[int], int] = lambda item: 1,
    load_together: Callable[[list[int]], list[int] | None] | None = None,
    share_s: float = 1e9,
) -> "Prefetcher[int, int]":
    return Prefetcher(
        load,
        plans,
        ReadAhead(threads, depth, memory, timeout_s),
        weigh=weigh,
        load_together=load_together,
        share_s=share_s,
    )


def loader_threads() -> int:
    return sum(thread.name == "ffrecord-loader" for thread in threading.enumerate())


@given(
    count=st.integers(0, 60),
    threads=st.integers(1, 4),
    depth=st.integers(1, 9),
    share_s=st.sampled_from([0.0, 1e-5, 1e9]),
    memory=st.sampled_from([1, 7, 1 << 30]),
    refused=st.sets(st.integers(0, 60), max_size=3),
)
def test_items_come_in_the_order_of_the_plans(
    count: int, threads: int, depth: int, share_s: float, memory: int, refused: set[int]
) -> None:
    def together(plans: list[int]) -> list[int] | None:
        return None if refused & set(plans) else [plan * 2 for plan in plans]

    ahead = prefetcher(
        lambda plan: plan * 2,
        iter(range(count)),
        threads=threads,
        depth=depth,
        memory=memory,
        load_together=together,
        share_s=share_s,
    )

    assert list(ahead) == [(plan, plan * 2) for plan in range(count)]
    ahead.close()


def test_it_reads_ahead_no_further_than_its_depth() -> None:
    gate, asked = threading.Event(), itertools.count()
    started = threading.Semaphore(0)

    def load(plan: int) -> int:
        started.release()
        gate.wait()
        return plan

    plans = (next(asked) for _ in range(100))
    ahead = prefetcher(load, plans, threads=2, depth=5)
    reader = threading.Thread(target=lambda: next(ahead))
    reader.start()
    for _ in range(2):
        started.acquire()

    assert next(asked) == 5
    gate.set()
    reader.join()
    ahead.close()


def permitted(permits: threading.Semaphore) -> "Prefetcher[int, int]":
    """Loads an item for each permit, in one thread."""
    return prefetcher(
        lambda plan: permits.acquire() and plan, itertools.count(1), threads=1, depth=3
    )


def take_one_late(ahead: "Prefetcher[int, int]", permits: threading.Semaphore) -> None:
    """Wait for an item that is there a second later."""

    def permit() -> None:
        clock.sleep(1)
        permits.release()

    late = threading.Thread(target=permit)
    late.start()
    next(ahead)
    late.join()


def fill(ahead: "Prefetcher[int, int]", permits: threading.Semaphore) -> None:
    """Let all be loaded that is asked for, as in a pause of the consumer."""
    missing = [future for _, future in ahead._ahead if not future.done()]
    permits.release(len(missing))
    for future in missing:
        future.result()


def test_a_consumer_that_waits_after_all_was_there_makes_it_read_further_ahead() -> None:
    permits = threading.Semaphore(0)
    with virtual_time():
        ahead = permitted(permits)
        take_one_late(ahead, permits)
        assert ahead.depth == 3
        fill(ahead, permits)
        for _ in range(ahead.pending):
            next(ahead)
        take_one_late(ahead, permits)
        assert ahead.depth > 3
        permits.release(10)
        ahead.close()


def test_a_consumer_that_is_always_faster_makes_it_no_deeper() -> None:
    permits = threading.Semaphore(0)
    with virtual_time():
        ahead = permitted(permits)
        for _ in range(10):  # The others that are ahead are never there.
            take_one_late(ahead, permits)
        assert ahead.depth == 3
        permits.release(10)
        ahead.close()


def test_a_queue_that_a_pause_made_deeper_does_not_stay_so_for_a_fast_consumer() -> None:
    """Goal: pauses, as for a validation, add up to no memory. Method: permits for each item."""
    permits = threading.Semaphore(0)
    with virtual_time():
        ahead = permitted(permits)
        take_one_late(ahead, permits)
        for _ in range(5):
            fill(ahead, permits)
            for _ in range(ahead.pending):
                next(ahead)
            take_one_late(ahead, permits)
            assert ahead.depth > 3
            for _ in range(100):
                if ahead.depth == 3:
                    break
                take_one_late(ahead, permits)
            assert ahead.depth == 3
        permits.release(10)
        ahead.close()


@pytest.mark.parametrize(("share_s", "largest"), [(1e9, 16), (0.0, 1)], ids=["small", "large"])
def test_small_items_are_loaded_several_at_a_time(share_s: float, largest: int) -> None:
    shares: list[int] = []

    def together(plans: list[int]) -> list[int]:
        shares.append(len(plans))
        return plans

    ahead = prefetcher(
        lambda plan: plan, itertools.count(), load_together=together, share_s=share_s
    )
    for _ in range(100):
        next(ahead)
        assert ahead.pending <= ahead.depth

    assert max(shares, default=1) == largest
    ahead.close()


def test_the_memory_cap_bounds_what_is_loaded_together() -> None:
    ahead = prefetcher(
        lambda plan: plan,
        itertools.count(),
        memory=90,
        weigh=lambda _: 10,
        load_together=lambda plans: plans,
    )

    for _ in range(50):
        next(ahead)

    assert ahead.depth == 9
    assert ahead.pending <= 9
    assert {len(plans) for plans, _ in ahead._ahead} == {3}  # One each, and one to hand out.
    ahead.close()


def test_the_memory_cap_bounds_the_depth_and_one_item_always_fits() -> None:
    small = prefetcher(lambda plan: plan, itertools.count(), depth=8, memory=30, weigh=lambda _: 10)
    large = prefetcher(lambda plan: plan, itertools.count(), depth=8, memory=3, weigh=lambda _: 10)

    for _ in range(50):
        next(small)
        next(large)

    assert small.depth == 3
    assert large.depth == 1
    small.close()
    large.close()


@pytest.mark.parametrize("together", [None, lambda plans: None if 9 in plans else plans])
def test_an_error_is_raised_where_its_item_would_have_been(
    together: Callable[[list[int]], list[int] | None] | None,
) -> None:
    def load(plan: int) -> int:
        if plan == 9:
            raise KeyError("nine")
        return plan

    ahead = prefetcher(load, iter(range(40)), load_together=together)

    assert [next(ahead)[1] for _ in range(9)] == list(range(9))
    for _ in range(2):
        with pytest.raises(KeyError, match="nine"):
            next(ahead)
    ahead.close()


@pytest.mark.parametrize("what", ["being loaded", "within 60.0 s"])
def test_a_wait_ends_and_says_what_it_waited_for(what: str) -> None:
    gate = threading.Event()
    with virtual_time():
        ahead = prefetcher(lambda plan: gate.wait() and plan, itertools.count(), timeout_s=60.0)
        with pytest.raises(DeadlineExceeded, match=what):
            next(ahead)
        gate.set()
        ahead.close()


def test_closing_ends_the_threads_and_twice_does_no_harm() -> None:
    before = loader_threads()
    ahead = prefetcher(lambda plan: plan, itertools.count(), threads=3)
    next(ahead)
    assert loader_threads() == before + 3

    ahead.close()
    ahead.close()

    assert loader_threads() == before
    assert not ahead.alive


def test_who_drops_it_closes_it() -> None:
    before = loader_threads()
    ahead = prefetcher(lambda plan: plan, itertools.count(), threads=3)
    next(ahead)

    del ahead
    gc.collect()

    assert loader_threads() == before


def test_a_forked_child_knows_that_the_threads_are_not_its_own() -> None:
    ahead = prefetcher(lambda plan: plan, itertools.count())
    next(ahead)

    if (pid := os.fork()) == 0:
        good = not ahead.alive
        ahead.close()
        os._exit(0 if good else 1)

    assert os.waitpid(pid, 0)[1] == 0
    assert ahead.alive
    assert next(ahead) == (1, 1)
    ahead.close()


def closing_while_it_waits(threads: int) -> BaseException | None:
    """Close it while its consumer, another thread, waits for an item; return what that raises."""
    gate, started = threading.Event(), threading.Semaphore(0)

    def load(plan: int) -> int:
        started.release()
        gate.wait(60)
        return plan

    ahead = prefetcher(load, iter(range(100)), threads=threads, depth=8)
    raised: list[BaseException] = []

    def consume() -> None:
        try:
            next(ahead)
            next(ahead)
        except BaseException as error:
            raised.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    for _ in range(threads):
        started.acquire()
    closer = threading.Thread(target=ahead.close)
    closer.start()
    eventually(lambda: not ahead.alive)
    gate.set()
    consumer.join(60)
    closer.join(60)
    return raised[0] if raised else None


@pytest.mark.parametrize("threads", [1, 2])
def test_a_consumer_that_waits_learns_that_another_thread_has_closed_it(threads: int) -> None:
    assert isinstance(closing_while_it_waits(threads), ClosedError)


def test_plans_that_are_asked_for_while_it_is_closed_are_not_waited_for() -> None:
    ahead: Prefetcher[int, int]

    def plans() -> Iterator[int]:
        yield 0
        ahead.close()  # As a handler of a signal does, or another thread.
        yield from range(1, 9)

    ahead = prefetcher(lambda plan: plan, plans(), depth=4, timeout_s=5)

    with pytest.raises(ClosedError):
        list(ahead)
