"""A clock for tests of what waits in this process: nothing waits for a time, and none is late."""

# ruff: noqa: D102 - those of the package's clock

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ffrecord._base import clock as product_clock

_TASKS = "/proc/self/task"


class _Waiting:
    """A thread that waits: until a time, for an answer of its own, or until all wait."""

    def __init__(self, until_ns: float, *, awaits_idle: bool = False) -> None:
        self.until_ns = until_ns
        self.awaits_idle = awaits_idle
        self.asked = threading.Event()


class VirtualClock:
    """The package's clock while it is in force: see `virtual_time`.

    Time stands still while any thread of this process runs, and jumps to the next time that one
    waits for once all of them wait. A thread that has not been scheduled has not waited, so a busy
    machine makes nothing late. Waits inside the extension are real, and count as waits. Other
    processes are not seen: tests of those use the machine's clock.
    """

    def __init__(self) -> None:
        self._start_ns = time.monotonic_ns()
        self._calendar_start = time.time()
        self._passed_ns = 0.0
        self._lock = threading.Lock()
        self._waiting: list[_Waiting] = []
        self._changes = 0  # Of the list, and of time.
        self._asked_at = -1  # So many changes.
        self._is_ending = False
        self._driver = threading.Thread(target=self._drive, name="virtual-clock", daemon=True)

    def now_ns(self) -> int:
        return self._start_ns + round(self._passed_ns)

    def now(self) -> float:
        return self.now_ns() / 1e9

    def calendar_now(self) -> float:
        return self._calendar_start + self._passed_ns / 1e9

    def sleep(self, seconds: float) -> None:
        self.wait(lambda _: False, seconds)

    def wait(self, comes: Callable[[float], bool], timeout_s: float) -> bool:
        mine = self._enter(_Waiting(self._passed_ns + max(timeout_s, 0) * 1e9))
        try:
            while True:
                is_over = self._is_ending or self._passed_ns >= mine.until_ns
                mine.asked.clear()
                if comes(0.0):
                    return True
                if is_over:
                    return False
                mine.asked.wait()
        finally:
            self._leave(mine)

    def run_for(self, seconds: float) -> None:
        """Return once all other threads have done what there is to do in so many seconds."""
        self.sleep(seconds)
        self.run_until_idle()

    def run_until_idle(self) -> None:
        """Return once all other threads wait: for each other, or for a time to come."""
        mine = self._enter(_Waiting(float("inf"), awaits_idle=True))
        try:
            mine.asked.wait()
        finally:
            self._leave(mine)

    def _enter(self, waiting: _Waiting) -> _Waiting:
        with self._lock:
            self._waiting.append(waiting)
            self._changes += 1
        return waiting

    def _leave(self, waiting: _Waiting) -> None:
        with self._lock:
            self._waiting.remove(waiting)
            self._changes += 1

    # --- The driver ------------------------------------------------------------------------------

    def start(self) -> None:
        self._driver.start()

    def stop(self) -> None:
        """All waits end."""
        self._is_ending = True
        with self._lock:
            for one in self._waiting:
                one.asked.set()
        self._driver.join()

    def _drive(self) -> None:
        while not self._is_ending:
            changes = self._changes
            if do_all_threads_wait():
                with self._lock:
                    if changes == self._changes:
                        self._go_on()
            time.sleep(0.0002)

    def _go_on(self) -> None:
        """All wait. What they wait for may have come: they look first, then time passes."""
        if self._asked_at != self._changes:
            self._asked_at = self._changes
            asked = [one for one in self._waiting if not one.awaits_idle]
        elif asked := [one for one in self._waiting if one.awaits_idle]:
            pass
        elif times := [one.until_ns for one in self._waiting]:
            self._passed_ns = max(self._passed_ns, min(times))
            self._changes += 1
            return
        for one in asked:
            one.asked.set()


def do_all_threads_wait() -> bool:
    """Whether there was a moment since the call in which all other threads waited.

    A thread that waits in both of two looks, and has not gone to wait anew, has waited from the one
    to the other; so all of them waited at the end of the first look. One that waits for the
    interpreter's lock is no such thread: each look lets go of the lock, and wakes one of those.
    """
    first = _threads()
    return all(state in "SZ" for state, _ in first.values()) and _threads() == first


def _threads() -> dict[str, tuple[str, str]]:
    """State and number of voluntary switches of each other thread of this process."""
    found = {}
    for task in os.listdir(_TASKS):
        if task == str(threading.get_native_id()):
            continue
        try:
            with open(f"{_TASKS}/{task}/status") as file:
                status = dict(line.split(":", 1) for line in file.read().splitlines())
        except (FileNotFoundError, ProcessLookupError):  # It has ended.
            continue
        found[task] = (status["State"].split()[0], status["voluntary_ctxt_switches"])
    return found


@contextmanager
def virtual_time() -> Iterator[VirtualClock]:
    """Put a `VirtualClock` in the place of the package's clock for the block.

    No thread is in a wait of the package when the block begins; waits that are left at its end end.
    """
    names = ("now", "now_ns", "calendar_now", "sleep", "wait")
    before = {name: getattr(product_clock, name) for name in names}
    mine = VirtualClock()
    for name in names:
        setattr(product_clock, name, getattr(mine, name))
    mine.start()
    try:
        yield mine
    finally:
        for name, function in before.items():
            setattr(product_clock, name, function)
        mine.stop()
