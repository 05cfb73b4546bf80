"""Saves that go on while training does."""

import concurrent.futures
import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Literal

from ffrecord.checkpoint import saving
from ffrecord.checkpoint.ranks import Group
from ffrecord.checkpoint.saving import Commit, Flat, Order
from ffrecord.checkpoint.staging import Arena, Staged
from ffrecord.checkpoint.watching import Save, ledger

OnBusy = Literal["wait", "raise"]


class BusyError(RuntimeError):
    """The save before has not ended, and the caller did not want to wait for it."""


class PendingSave:
    """A save under way. Every rank's ends alike.

    Attributes:
        step: what is being saved.
        staged_bytes: of this rank's tensors, how much was copied.
        stall_s: how long `async_save` kept its caller, in seconds.
    """

    def __init__(self, step: int) -> None:
        """Made by `async_save`."""
        self.step = step
        self.staged_bytes = 0
        self.stall_s = 0.0
        self._pid = os.getpid()
        self._future: concurrent.futures.Future[Commit] = concurrent.futures.Future()

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        self._check()
        return self._future.done()

    def result(self, timeout_s: float | None = None) -> Commit:
        """Wait until it is committed.

        Raises:
            TimeoutError: it still goes on.
            Exception: why it failed, as `save` raises it.
        """
        self._check()
        try:
            return self._future.result(timeout_s)
        except concurrent.futures.TimeoutError:
            if self._future.done():
                raise
            raise TimeoutError(f"the save of step {self.step} has not ended yet") from None

    def exception(self, timeout_s: float | None = None) -> BaseException | None:
        """Wait until it has ended; why it failed, or None. Raises TimeoutError."""
        self._check()
        return self._future.exception(timeout_s)

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError("this save belongs to the parent process, which alone can wait")


# Of a processor that a step wants too, a thread that is nicer by 15 gets a thirtieth (sched(7)).
_NICER = 15


def _give_way() -> None:
    """Have this thread, and those that it starts, take what training leaves of the processors."""
    thread = threading.get_native_id()
    with contextlib.suppress(OSError):  # Where that is forbidden a save costs more, and is one.
        nice = os.getpriority(os.PRIO_PROCESS, thread) + _NICER
        os.setpriority(os.PRIO_PROCESS, thread, min(nice, 19))


class Background:
    """The one thread of a process that saves, and the memory that it saves from."""

    def __init__(self) -> None:
        """Starts nothing yet."""
        self._threads = concurrent.futures.ThreadPoolExecutor(1, "ffrecord-save", _give_way)
        self._arena: Arena | None = None
        self._last: PendingSave | None = None

    def start(
        self,
        order: Order,
        flatten: Callable[[], Flat],
        group: Group | None,
        stage_bytes_max: int,
        on_busy: OnBusy,
    ) -> PendingSave:
        """Stage on this thread, then hand over; see `async_save`."""
        with ledger().stall():
            began = time.monotonic()
            pending = self._start(order, flatten, group, stage_bytes_max, on_busy)
            pending.stall_s = time.monotonic() - began
        return pending

    def _start(
        self,
        order: Order,
        flatten: Callable[[], Flat],
        group: Group | None,
        stage_bytes_max: int,
        on_busy: OnBusy,
    ) -> PendingSave:
        pending = PendingSave(order.step)
        seen = Save(order.step)
        prepare = flatten
        if self._last is not None and not self._last.done():
            if on_busy == "raise":
                prepare = _busy(self._last.step)
            else:
                # Its copies are in the arena, and its failure is for its own caller.
                _ended(self._last)
        released = threading.Event()
        failure: Exception | None = None
        words: dict[str, object] = {}
        staged = Staged([], [], 0, 0)
        try:
            flat = prepare()
            words = flat.words
            staged = self._arena_of(stage_bytes_max).stage(flat.shares)
        except Exception as error:
            failure = error

        def say() -> dict[str, object]:
            if failure is not None:
                raise failure
            return words

        once = threading.Lock()

        def work() -> None:
            if not once.acquire(blocking=False):
                return  # Handed over twice, for nobody knew whether the first time was one.
            try:
                with ledger().save(seen):
                    made = saving.commit(
                        order,
                        group,
                        say,
                        staged.boxes,
                        released=released.set,
                        progress=seen.bytes,
                        taken=staged.boxes.clear,
                    )
            except BaseException as error:
                pending._future.set_exception(error)
            else:
                pending._future.set_result(made)
            finally:
                released.set()

        def hand_over() -> None:
            self._threads.submit(work)
            if not isinstance(failure, BusyError):
                self._last = pending

        pending.staged_bytes = staged.staged_bytes
        _hand_over(hand_over, released if staged.left_bytes else None)
        return pending

    def _arena_of(self, size_bytes: int) -> Arena:
        if self._arena is None or self._arena.size_bytes != size_bytes:
            self._arena = Arena(size_bytes)
        return self._arena


def _busy(step: int) -> Callable[[], Flat]:
    def refuse() -> Flat:
        raise BusyError(f"the save of step {step} has not ended yet")

    return refuse


def _ended(pending: PendingSave) -> None:
    concurrent.futures.wait([pending._future])


def _hand_over(hand_over: Callable[[], None], released: threading.Event | None) -> None:
    """An interrupt has to wait as well: the caller may change tensors that are still being read."""
    interrupt: KeyboardInterrupt | None = None
    handed_over = False
    while not handed_over or (released is not None and not released.is_set()):
        try:
            if not handed_over:
                hand_over()
                handed_over = True
            if released is not None:
                released.wait()
        except KeyboardInterrupt as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt


_current: Background | None = None


def process_background() -> Background:
    """This process's. A forked child gets its own: the parent's thread is not in it."""
    global _current
    if _current is None:
        _current = Background()
    return _current


def _forget() -> None:
    global _current
    _current = None


os.register_at_fork(after_in_child=_forget)
