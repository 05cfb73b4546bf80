"""Goal: each wait of the package ends at its time, or when what it waits for comes.

By the machine's clock and by a test's, and a test's clock goes on only while all threads wait.

Method: each wait under both clocks; threads that wait for each other, or compute.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import nullcontext
from typing import Any

import pytest

from ffrecord._base import clock
from virtual_clock import VirtualClock, virtual_time

# By a test's clock: a real wait would be noticed.
HOURS_S = 36_000.0


@pytest.fixture
def virtual() -> Iterator[VirtualClock]:
    with virtual_time() as mine:
        yield mine


@pytest.fixture(params=["machine", "test"])
def time_s(request: pytest.FixtureRequest) -> Iterator[float]:
    """How long waits are."""
    is_virtual = request.param == "test"
    with virtual_time() if is_virtual else nullcontext():
        yield HOURS_S if is_virtual else 0.01


Wait = Callable[[float], Any]
Comes = Callable[[], Any]


def _event() -> tuple[Comes, Wait]:
    event = threading.Event()
    return event.set, lambda time_s: clock.wait(event.wait, time_s)


def _thread() -> tuple[Comes, Wait]:
    ends = threading.Event()
    thread = threading.Thread(target=ends.wait, daemon=True)
    thread.start()
    return ends.set, lambda time_s: clock.join(thread, time_s)


def _future(end: Callable[["Future[int]"], Any]) -> tuple[Comes, Wait]:
    future: Future[int] = Future()
    return lambda: end(future), lambda time_s: clock.is_done(future, time_s)


def _descriptor() -> tuple[Comes, Wait]:
    event = os.eventfd(0)
    return lambda: os.eventfd_write(event, 1), lambda time_s: clock.is_readable([event], time_s)


# What waits, and what makes come what it waits for.
WAITS: dict[str, Callable[[], tuple[Comes, Wait]]] = {
    "event": _event,
    "thread": _thread,
    "result": lambda: _future(lambda future: future.set_result(1)),
    "error": lambda: _future(lambda future: future.set_exception(TimeoutError())),
    "cancel": lambda: _future(lambda future: future.cancel()),
    "descriptor": _descriptor,
}


@pytest.mark.parametrize("what", WAITS)
def test_a_wait_for_what_does_not_come_ends_at_its_time(what: str, time_s: float) -> None:
    _, wait = WAITS[what]()
    begin, begin_ns, date = clock.now(), clock.now_ns(), clock.calendar_now()
    assert wait(time_s) is False
    assert clock.now() - begin >= time_s * 0.999
    assert clock.now_ns() - begin_ns >= time_s * 0.999e9
    if time_s == HOURS_S:
        assert clock.now() - begin < time_s + 1
        assert time_s * 0.999 < clock.calendar_now() - date < time_s + 1


def test_a_sleep_ends_at_its_time(time_s: float) -> None:
    begin = clock.now()
    clock.sleep(time_s)
    assert clock.now() - begin >= time_s * 0.999


@pytest.mark.parametrize("what", WAITS)
@pytest.mark.parametrize("is_first", [True, False], ids=["before", "meanwhile"])
def test_a_wait_ends_when_what_it_waits_for_comes(what: str, is_first: bool, time_s: float) -> None:
    come, wait = WAITS[what]()
    begin = clock.now()
    if is_first:
        come()
        assert wait(HOURS_S) is True
    else:
        found: list[bool] = []
        waiting = threading.Thread(target=lambda: found.append(wait(HOURS_S)))
        waiting.start()
        clock.sleep(time_s / 10)
        assert found == []
        come()
        waiting.join()
        assert found == [True]
    assert clock.now() - begin < HOURS_S / 5


def test_a_future_is_waited_for_without_a_limit(time_s: float) -> None:
    future: Future[int] = Future()
    found: list[bool] = []
    waiting = threading.Thread(target=lambda: found.append(clock.is_done(future, None)))
    waiting.start()
    clock.sleep(time_s)
    assert found == []
    future.set_result(1)
    waiting.join()
    assert found == [True]


def test_a_thread_that_computes_holds_time_back(virtual: VirtualClock) -> None:
    began, is_at_work = threading.Event(), [True]
    seen: list[tuple[bool, float]] = []
    begin = clock.now()

    def sleep() -> None:
        began.wait()
        clock.sleep(1)
        seen.append((is_at_work[0], clock.now()))

    sleeping = threading.Thread(target=sleep)
    sleeping.start()
    end = time.monotonic() + 0.3
    began.set()
    while time.monotonic() < end:  # It has the interpreter's lock, or waits for it.
        pass
    is_at_work[0] = False
    sleeping.join()
    ((was_at_work, now),) = seen
    assert not was_at_work
    assert 1 <= now - begin < 1.1


def test_threads_wait_in_the_order_of_their_times(virtual: VirtualClock) -> None:
    order: list[int] = []

    def run(number: int) -> None:
        clock.sleep(number * 3600)
        order.append(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in (3, 1, 4, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert order == [1, 2, 3, 4]


def test_what_others_do_at_a_time_is_done_before_time_goes_on(virtual: VirtualClock) -> None:
    """A token goes around ten threads, each of which waits for it with a limit of a second."""
    tokens = [threading.Event() for _ in range(11)]
    late: list[int] = []

    def run(number: int) -> None:
        if not clock.wait(tokens[number].wait, 1.0):
            late.append(number)
        tokens[number + 1].set()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(10)]
    for thread in reversed(threads):
        thread.start()
    tokens[0].set()
    for thread in threads:
        thread.join()
    assert late == []


def test_a_test_sees_that_something_does_not_happen(virtual: VirtualClock) -> None:
    ticks: list[float] = []
    stop = threading.Event()
    begin = clock.now()

    def tick() -> None:
        while not clock.wait(stop.wait, 60.0):
            ticks.append(clock.now() - begin)

    thread = threading.Thread(target=tick)
    thread.start()
    virtual.run_for(59)
    assert ticks == []
    virtual.run_for(122)
    assert [round(one) for one in ticks] == [60, 120, 180]
    stop.set()
    thread.join()
    virtual.run_until_idle()
    assert len(ticks) == 3


def test_an_error_of_what_is_waited_for_is_raised(time_s: float) -> None:
    def fails(limit_s: float) -> bool:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        clock.wait(fails, time_s)
