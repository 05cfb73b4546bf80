"""Saves in the background of training."""

import atexit
import concurrent.futures
import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import Literal

from ffrecord._base import clock, recording
from ffrecord._base.giving_way import give_way
from ffrecord.checkpoint import _saving
from ffrecord.checkpoint._commit import Commit
from ffrecord.checkpoint._monitoring import Save, ledger
from ffrecord.checkpoint._peer_error import PeerError
from ffrecord.checkpoint._ranks import Group
from ffrecord.checkpoint._saving import Flat, Said
from ffrecord.checkpoint._sharing import Leaf
from ffrecord.checkpoint._staging import Arena, Staged, room_for_copies, size_of_copies

OnBusy = Literal["wait", "raise"]

_log = logging.getLogger("ffrecord.checkpoint")


class BusyError(RuntimeError):
    """An earlier save is in progress, and the caller did not want to wait for it."""


class FailedSaveError(RuntimeError):
    """An earlier save of `async_save` has failed, and the program did not ask for its result.

    Its cause is the error of that save.
    """


class PendingSave:
    """A save in progress. It ends alike on every rank.

    Attributes:
        step: the step that is being saved.
        staged_bytes: bytes of this rank's tensors that were copied.
        stall_s: how long `async_save` blocked its caller, in seconds.
    """

    def __init__(self, step: int) -> None:
        """Made by `async_save`."""
        self.step = step
        self.staged_bytes = 0
        self.stall_s = 0.0
        self.is_seen = False  # Whether somebody has seen how it ended.
        self._pid = os.getpid()
        self._future: concurrent.futures.Future[Commit] = concurrent.futures.Future()

    def done(self) -> bool:
        """Whether it has ended, successfully or not."""
        self._check()
        return self._future.done()

    def result(self, timeout_s: float | None = None) -> Commit:
        """Wait until it is committed.

        Raises:
            TimeoutError: it has not ended yet.
            Exception: its error, as `save` raises it.
        """
        self._wait(timeout_s)
        return self._future.result()

    def exception(self, timeout_s: float | None = None) -> BaseException | None:
        """Wait until it has ended; return its error, or None. Raises TimeoutError."""
        self._wait(timeout_s)
        return self._future.exception()

    def _wait(self, timeout_s: float | None) -> None:
        self._check()
        if not clock.is_done(self._future, timeout_s):
            raise TimeoutError(f"the save of step {self.step} has not ended yet")
        self.is_seen = True

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError(
                "this save belongs to the parent process, and only that can wait for it"
            )


class Background:
    """The one thread of a process that saves, and the memory that it saves from."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._threads = concurrent.futures.ThreadPoolExecutor(1, "ffrecord-save", give_way)
        self._arena: Arena | None = None
        self._room: int | None = None  # The limit of saves that set none; chosen at the first.
        self._last: PendingSave | None = None
        self._failed: list[PendingSave] = []

    def raise_unseen(self) -> None:
        """Raise the first failure that was not reported yet, which reports it."""
        while self._failed:
            failed = self._failed.pop(0)
            if not failed.is_seen:
                failed.is_seen = True
                why = failed._future.exception()
                raise FailedSaveError(
                    f"the save of step {failed.step} has failed, and nobody asked for its result: "
                    f"{type(why).__name__}: {why}"
                ) from why

    def close(self) -> None:
        """Wait for saves in progress; raises like `raise_unseen`."""
        if self._last is not None:
            _ended(self._last)
        self.raise_unseen()

    def _fail(self, pending: PendingSave, error: BaseException) -> None:
        try:
            why = "; ".join([str(error), *getattr(error, "__notes__", ())])
            _log.error(
                "the save of step %s has failed: %s: %s", pending.step, type(error).__name__, why
            )
        finally:  # Waiting callers get the error, also if the message or a log handler fails.
            # A save that was never accepted is not lost; others were, and the next save tells of
            # them.
            kind = error.kind if isinstance(error, PeerError) else type(error).__name__
            if kind not in (BusyError.__name__, FailedSaveError.__name__):
                self._failed.append(pending)
            pending._future.set_exception(error)

    def start(
        self,
        step: int,
        take: Callable[[], Flat],
        group: Group | None,
        stage_bytes_max: int | None,
        on_busy: OnBusy,
    ) -> PendingSave:
        """Stage on this thread, then pass the save to the other; see `async_save`."""
        with ledger().stall():
            began = clock.now()
            pending = self._start(step, take, group, stage_bytes_max, on_busy)
            pending.stall_s = clock.now() - began
        return pending

    def _start(
        self,
        step: int,
        take: Callable[[], Flat],
        group: Group | None,
        stage_bytes_max: int | None,
        on_busy: OnBusy,
    ) -> PendingSave:
        pending = PendingSave(step)
        seen = Save(step)
        busy: BusyError | None = None
        if self._last is not None and not self._last.done():
            if on_busy == "raise":
                busy = BusyError(f"the save of step {self._last.step} has not ended yet")
            else:
                _ended(self._last)  # Its copies are in the arena.
        released = threading.Event()
        failure: Exception | None = None
        is_refused = True  # Its caller gets the error at once.
        said: Said
        staged = Staged([], [], 0, 0)
        try:
            _check(stage_bytes_max, on_busy)
            self.raise_unseen()
            is_refused = False
            if busy is not None:
                raise busy
            flat = take()
            said = flat.said
            with recording.Span(recording.STAGE):
                room = self._room_of(group) if stage_bytes_max is None else stage_bytes_max
                staged = self._arena_of(flat.shares, room).stage(flat.shares)
        except Exception as error:
            failure = error

        def say() -> Said:
            if failure is not None:
                raise failure
            return said

        once = threading.Lock()

        def work() -> None:
            if not once.acquire(blocking=False):
                return  # Handed over twice, for nobody knew whether the first time was one.
            try:
                with ledger().save(seen):
                    made = _saving.commit(
                        group,
                        say,
                        staged.slices,
                        released=released.set,
                        progress=seen.bytes,
                        taken=staged.slices.clear,
                    )
            except BaseException as error:
                self._fail(pending, error)
            else:
                pending._future.set_result(made)
            finally:
                released.set()

        def hand_over() -> None:
            self._threads.submit(work)
            if not isinstance(failure, BusyError):
                self._last = pending

        pending.staged_bytes = staged.staged_bytes
        pending.is_seen = is_refused  # It is raised here.
        _hand_over(hand_over, released if staged.left_bytes else None)
        if is_refused and failure is not None:
            raise failure  # The other ranks hear of it from the save that was handed over.
        return pending

    def _room_of(self, group: Group | None) -> int:
        if self._room is None:
            self._room = room_for_copies(1 if group is None else group.size)
        return self._room

    def _arena_of(self, shares: list[Leaf], size_max: int) -> Arena:
        size = min(size_of_copies(shares), size_max)
        if self._arena is None or not size <= self._arena.size_bytes <= size_max:
            self._arena = None  # Its memory first.
            self._arena = Arena(size)
        return self._arena


def _check(stage_bytes_max: int | None, on_busy: str) -> None:
    if on_busy not in ("wait", "raise"):
        raise ValueError(f'on_busy is {on_busy!r}, must be "wait" or "raise"')
    if stage_bytes_max is not None and stage_bytes_max < 0:
        raise ValueError(f"stage_bytes_max is {stage_bytes_max}, must not be negative")


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
    """The saver of this process. A forked child gets its own: the parent's thread is not in it."""
    global _current
    if _current is None:
        _current = Background()
    return _current


def _forget() -> None:
    global _current
    _current = None


def _tell_at_exit() -> None:
    """An unreported failure fails the program: a job whose last save is lost has not succeeded."""
    if _current is None:
        return
    try:
        _current.close()  # Its thread has ended: the interpreter waits for threads first.
    except FailedSaveError:
        sys.excepthook(*sys.exc_info())
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(1)  # Python has no other way to fail from here.


atexit.register(_tell_at_exit)
os.register_at_fork(after_in_child=_forget)
