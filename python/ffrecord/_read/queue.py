"""Reading several batches of one reader at a time."""

import itertools
import os
import sys
import threading
from collections.abc import Callable, Hashable
from concurrent import futures
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy.typing as npt

from ffrecord import _ffrecord
from ffrecord._base import clock
from ffrecord._base.closeable import Closing
from ffrecord._read.batch import Batch
from ffrecord._read.records import OnCorrupt, as_indices

if TYPE_CHECKING:
    import asyncio

_DAY_S = 86_400.0
# How often those who wait look for what no descriptor tells: futures that were cancelled, batches
# whose time is over, and descriptors that files want and other threads have.
_LOOK_S = 0.05
# How long a program that has ended waits for the futures of its reads.
_LEAVING_S = 2.0
_THREAD_NAME = "ffrecord-reads"

# Makes a batch of what was read for some indices.
Settle = Callable[[_ffrecord.Batch, npt.ArrayLike, OnCorrupt], Batch]


@dataclass(frozen=True)
class Completion:
    """A batch that is complete; made by `BatchQueue.poll`."""

    token: Hashable
    _result: Callable[[], Batch]

    def result(self) -> Batch:
        """Return the batch, or raise what `Reader.read` raises.

        Also raises `DeadlineExceeded` if the batch's `timeout_s` was over.
        """
        return self._result()


@dataclass
class _Asked:
    token: Hashable
    indices: npt.ArrayLike


class BatchQueue(Closing):
    """Reads several batches at a time; made by `Reader.open_queue`.

    The device reads further batches while the program uses one. Not thread-safe: a call that
    overlaps another raises. A forked child must open its own queue.
    """

    def __init__(self, inner: _ffrecord.BatchQueue, settle: Settle, on_corrupt: OnCorrupt) -> None:
        """For `Reader.open_queue`."""
        self._inner: _ffrecord.BatchQueue | None = inner
        self._settle = settle
        self._on_corrupt = on_corrupt
        self._numbers = itertools.count()
        self._asked: dict[int, _Asked] = {}
        # By number, with a batch or an error: complete, and not returned.
        self._found: list[tuple[int, _ffrecord.Batch | None, Exception | None]] = []

    def submit(
        self,
        indices: npt.ArrayLike,
        *,
        token: Hashable = None,
        timeout_s: float | None = None,
    ) -> Hashable:
        """Begin to read a batch, and do not wait for its records.

        Args:
            indices: as for `Reader.read`.
            token: identifies the batch; a number by default. It need not be unique.
            timeout_s: after that time the batch is complete with `DeadlineExceeded`.

        Returns:
            The token.

        Raises:
            IndexError: an index is out of range; nothing was begun.
            ValueError: the queue is closed, or belongs to the parent of this process.
        """
        number = next(self._numbers)
        token = number if token is None else token
        try:  # A signal handler may raise as soon as the batch has begun, and before it is noted.
            self._asked[number] = _Asked(token, indices)
            self._open().submit(as_indices(indices), number, timeout_s)
        except BaseException:
            self._drop(number)
            raise
        return token

    def poll(self, timeout_s: float | None = None) -> Completion | None:
        """Return the next batch that is complete.

        Waits at most `timeout_s`; by default without a limit. Returns None after that time, or if
        there is no batch to wait for.
        """
        inner = self._open()
        if not self._found:
            inner.poll(_DAY_S if timeout_s is None else timeout_s, self._found)
        if not self._found:
            return None
        number, batch, error = self._found[0]
        asked = self._asked[number]

        def result() -> Batch:
            if error is not None:
                raise error
            assert batch is not None
            return self._settle(batch, asked.indices, self._on_corrupt)

        completion = Completion(asked.token, result)
        # No calls from here on: a signal handler that raises would cost the batch.
        del self._found[0], self._asked[number]
        return completion

    def cancel(self, token: Hashable) -> bool:
        """Drop the oldest batch with `token`; False if `poll` has returned it, or there is none."""
        for number, asked in self._asked.items():
            if asked.token == token:
                self._open()
                self._drop(number)
                return True
        return False

    def _drop(self, number: int) -> None:
        self._asked.pop(number, None)
        self._found = [one for one in self._found if one[0] != number]
        if self._inner is not None:
            self._inner.cancel(number)

    def _advance(self) -> bool:
        """Do what `poll(0)` does, but leave batches to `poll`; return whether there is one."""
        if not self._found:
            self._open().poll(0, self._found)
        return bool(self._found)

    def fileno(self) -> int:
        """Return a descriptor for event loops: readable while `poll(0)` has something to do.

        Call `poll(0)` until it returns None, after each `submit` and whenever the descriptor is
        readable, and when the `timeout_s` of a batch is over.
        """
        return self._open().fileno()

    def __len__(self) -> int:
        """Batches that were submitted, and neither returned nor cancelled."""
        return len(self._asked)

    def close(self) -> None:
        """Cancel incomplete batches. Batches that were returned stay valid."""
        self._inner = None
        self._asked = {}
        self._found = []

    def _open(self) -> _ffrecord.BatchQueue:
        if self._inner is None:
            raise ValueError("read batches: the queue is closed")
        return self._inner


class FutureReads:
    """A queue whose batches end as futures. A thread waits for them while there are any."""

    def __init__(self, queue: BatchQueue) -> None:
        """Use `queue`, which nobody else uses."""
        self._queue = queue
        self._descriptor = queue.fileno()
        self._wake = os.fdopen(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK), "r+b", buffering=0)
        self._tokens = itertools.count()
        self._lock = threading.Lock()  # Guards all that follows, and the queue.
        self._futures: dict[Hashable, futures.Future[Batch]] = {}
        self._is_waited_for = False

    def submit(self, indices: npt.ArrayLike, timeout_s: float | None) -> "futures.Future[Batch]":
        """A future of the batch. Thread-safe."""
        future: futures.Future[Batch] = futures.Future()
        token = next(self._tokens)
        with self._lock:
            try:  # A signal handler may raise anywhere: no batch may be left without its future.
                self._futures[token] = future
                self._queue.submit(indices, token=token, timeout_s=timeout_s)
                if not self._is_waited_for:
                    self._start_waiting()
                elif self._queue._advance():
                    os.eventfd_write(self._wake.fileno(), 1)
            except BaseException:
                self._futures.pop(token, None)
                self._queue.cancel(token)
                raise
        return future

    def _start_waiting(self) -> None:
        """Start the thread, which looks once the lock is free. Without it nobody would wait."""
        threading.Thread(target=self._wait, name=_THREAD_NAME).start()
        self._is_waited_for = True

    def _wait(self) -> None:
        ended_at: float | None = None  # The program.
        while True:
            self._take()
            if ended_at is None and _has_program_ended():
                ended_at = clock.now()
            if ended_at is not None and clock.now() > ended_at + _LEAVING_S:
                self._leave()
            with self._lock:
                # Here alone: while this thread goes on, nobody starts another.
                self._is_waited_for = bool(self._futures)
                if not self._is_waited_for:
                    return
            clock.is_readable([self._descriptor, self._wake.fileno()], _LOOK_S)
            with suppress(BlockingIOError):
                os.eventfd_read(self._wake.fileno())

    def _leave(self) -> None:
        """Cancel what is not complete: a daemon may be silent, and nobody waits for it."""
        with self._lock:
            left = list(self._futures.values())
        for future in left:
            future.cancel()
        self._take()

    def _take(self) -> None:
        """Settle what is complete; for the thread that waits, where no signal handler raises."""
        while True:
            with self._lock:
                for token in [t for t, future in self._futures.items() if future.cancelled()]:
                    del self._futures[token]
                    self._queue.cancel(token)
                done = self._queue.poll(0)
                if done is None:
                    return
                future = self._futures.pop(done.token)
            if future.set_running_or_notify_cancel():
                try:
                    _settle_future(future, done)
                except BaseException:  # A callback calls sys.exit(): others wait for this thread.
                    _report()


class LoopReads:
    """A queue whose batches end as futures of one asyncio loop. Belongs to the loop's thread."""

    def __init__(self, queue: BatchQueue) -> None:
        """Use `queue`, which nobody else uses."""
        self._queue = queue
        self._descriptor = queue.fileno()
        self._tokens = itertools.count()
        self._futures: dict[Hashable, asyncio.Future[Batch]] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def read(self, indices: npt.ArrayLike, timeout_s: float | None) -> Batch:
        """The batch; a task that is cancelled gives it up."""
        import asyncio  # By now it is imported.

        loop = asyncio.get_running_loop()
        token = next(self._tokens)
        future: asyncio.Future[Batch] = loop.create_future()
        try:  # As in FutureReads.
            self._futures[token] = future
            self._queue.submit(indices, token=token, timeout_s=timeout_s)
            if len(self._futures) == 1:
                loop.add_reader(self._descriptor, self._take)
                self._look(loop)
            self._take()
            return await future
        finally:
            is_dropped = self._futures.pop(token, None) is not None and self._queue.cancel(token)
            if not loop.is_closed():  # Else nobody waits, and the loop takes no call.
                if is_dropped:
                    self._take()  # Ends what can be ended: perhaps nobody looks again.
                if not self._futures:
                    loop.remove_reader(self._descriptor)

    def _look(self, loop: "asyncio.AbstractEventLoop") -> None:
        """Take what is complete now, and again later while there is something to wait for."""
        self._take()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_later(_LOOK_S, self._look, loop) if self._futures else None

    def _take(self) -> None:
        while (done := self._queue.poll(0)) is not None:
            future = self._futures.pop(done.token, None)
            if future is not None and not future.done():
                _settle_future(future, done)


def _has_program_ended() -> bool:
    """Whether no thread of the program is left; Python waits for those of its reads alone."""
    main = threading.main_thread()
    return not main.is_alive() and all(
        thread is main or thread.daemon or thread.name == _THREAD_NAME
        for thread in threading.enumerate()
    )


def _report() -> None:
    """Tell of the current exception as of one that ends the current thread."""
    threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))


def _settle_future(
    future: "futures.Future[Batch] | asyncio.Future[Batch]", done: Completion
) -> None:
    try:
        batch = done.result()
    except Exception as error:
        future.set_exception(error)
    else:
        future.set_result(batch)
