"""Loading ahead with threads, in order, under a memory cap."""

import os
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any, Generic, TypeVar

from ffrecord.errors import DeadlineExceeded

Plan = TypeVar("Plan")
Item = TypeVar("Item")

_JOIN_S = 2.0
_DEPTH_MAX = 256
# A wait this long is felt.
_FELT_S = 0.001
_SMOOTH_BEFORE_SHRINKING = 100
# A queue that was not full while it was emptied that often is not what the consumer waits for.
_QUEUES_BEFORE_GIVING_UP = 4
_WEIGH_EVERY = 16


class Prefetcher(Generic[Plan, Item]):
    """Turns plans into items with threads, and hands them out in the order of the plans.

    It reads `depth` items ahead: more when its consumer has to wait although all of them had been
    there before, which a longer queue evens out; fewer when it has not had to for long; and never
    more than fit in `memory_limit_bytes`, of which one always fits. A consumer that is faster than
    the threads waits with any queue: for it the queue goes back to where it began, and the memory
    of the last items is used again while it is in the caches. The threads are the consumer's own
    from the first item to `close`. For one consumer thread; in a forked child it is empty and
    closed.
    """

    def __init__(
        self,
        load: Callable[[Plan], Item],
        plans: Iterator[Plan],
        *,
        threads: int,
        depth: int,
        memory_limit_bytes: int,
        weigh: Callable[[Item], int],
        timeout_s: float,
    ) -> None:
        """Start the threads.

        Args:
            load: called in a thread.
            plans: asked in the consumer's thread.
            threads: how many.
            depth: items read ahead at the beginning.
            memory_limit_bytes: for items that wait to be handed out.
            weigh: size of an item in bytes.
            timeout_s: for one item, from when it is asked for.
        """
        self._load = load
        self._plans = plans
        self._threads = threads
        self._depth_least = self._depth = max(depth, threads)
        self._memory_limit_bytes = memory_limit_bytes
        self._weigh = weigh
        self._timeout_s = timeout_s
        self._ahead: deque[tuple[Plan, Future[Item]]] = deque()
        self._item_bytes = 0  # Of a typical one.
        self._handed_out = 0
        self._smooth = 0  # Items in a row that were there when they were asked for.
        self._was_full = False  # All were there at once since it was last made deeper.
        self._since_full = 0  # Items handed out since all were there.
        self._pid = os.getpid()
        self._tasks: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]
        self._tasks = queue.SimpleQueue()
        workers = [
            threading.Thread(target=_work, args=(self._tasks,), name="ffrecord-loader", daemon=True)
            for _ in range(threads)
        ]
        for worker in workers:
            worker.start()
        # Also at exit: a thread that comes back from a read into a dying interpreter would crash.
        self.close = weakref.finalize(self, _stop, self._tasks, workers, self._ahead, self._pid)

    @property
    def depth(self) -> int:
        """Items that are read ahead now."""
        if not self._item_bytes:
            return self._depth
        return max(1, min(self._depth, self._memory_limit_bytes // self._item_bytes))

    @property
    def pending(self) -> int:
        """Items that are being loaded, or wait to be handed out."""
        return len(self._ahead)

    @property
    def alive(self) -> bool:
        """Whether it can go on, in this process."""
        return self.close.alive and self._pid == os.getpid()

    def __iter__(self) -> "Prefetcher[Plan, Item]":
        return self

    def __next__(self) -> tuple[Plan, Item]:
        """The next plan and its item.

        Raises:
            DeadlineExceeded: it did not come in time.
            StopIteration: there are no more plans.
            Exception: whatever `load` raised for it.
        """
        self._top_up()
        if not self._ahead:
            raise StopIteration
        plan, future = self._ahead[0]
        if self._ahead[-1][1].done():
            self._was_full, self._since_full = True, 0
        else:
            self._since_full += 1
        begin = time.monotonic()
        item = self._await(future)
        self._ahead.popleft()
        self._adapt(time.monotonic() - begin)
        if self._handed_out % _WEIGH_EVERY == 0 or not self._item_bytes:
            self._item_bytes = max(1, self._weigh(item))
        self._handed_out += 1
        self._top_up()
        return plan, item

    def _top_up(self) -> None:
        while len(self._ahead) < self.depth:
            try:
                plan = next(self._plans)
            except StopIteration:
                return
            future: Future[Item] = Future()
            self._ahead.append((plan, future))
            # What is queued must not keep this object alive, or it would never be closed.
            self._tasks.put((future, partial(self._load, plan)))

    def _await(self, future: "Future[Item]") -> Item:
        try:
            return future.result(self._timeout_s)
        except TimeoutError:
            if future.done():
                raise  # The load's own, such as a daemon's deadline.
            started = "it is being loaded" if future.running() else "no thread has come to it yet"
            raise DeadlineExceeded(
                f"no batch from {self._threads} loader threads within {self._timeout_s} s: "
                f"{started}; raise timeout, or look at `ffrecord doctor` for what reads wait for"
            ) from None

    def _adapt(self, waited_s: float) -> None:
        if waited_s > _FELT_S:
            self._smooth = 0
            if self._was_full:
                self._was_full = False
                self._depth = min(_DEPTH_MAX, self._depth + self._threads)
            elif self._since_full > _QUEUES_BEFORE_GIVING_UP * self._depth:
                self._depth = self._depth_least
        else:
            self._smooth += 1
            if self._smooth >= _SMOOTH_BEFORE_SHRINKING and self._depth > self._depth_least:
                self._smooth = 0
                self._depth -= 1


def _work(tasks: "queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]") -> None:
    while (task := tasks.get()) is not None:
        future, call = task
        if not future.set_running_or_notify_cancel():
            continue
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)
        del task, future, call  # Nothing is held while it waits.


def _stop(
    tasks: "queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]",
    workers: list[threading.Thread],
    ahead: "deque[tuple[Any, Future[Any]]]",
    pid: int,
) -> None:
    if os.getpid() != pid:
        return  # The threads are the parent's.
    for _, future in ahead:
        future.cancel()
    ahead.clear()
    for _ in workers:
        tasks.put(None)
    deadline = time.monotonic() + _JOIN_S
    for worker in workers:
        worker.join(max(0.0, deadline - time.monotonic()))
