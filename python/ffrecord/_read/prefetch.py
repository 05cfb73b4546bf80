"""Loading ahead with threads, in order, under a memory cap."""

import itertools
import os
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any, Generic, TypeVar

from ffrecord._base import clock
from ffrecord._read.read_ahead import ReadAhead
from ffrecord.errors import ClosedError, DeadlineExceeded

Plan = TypeVar("Plan")
Item = TypeVar("Item")
# Items of the first plans of a share, why there are no more of them, seconds for one, and when they
# were ready.
_Loaded = tuple[list[Item], BaseException | None, float, float]

_JOIN_S = 2.0
_DEPTH_MAX = 256
# A wait this long is felt.
_FELT_S = 0.001
_SMOOTH_BEFORE_SHRINKING = 100
# A queue that was not full while it was emptied that often is not what the consumer waits for.
_QUEUES_BEFORE_GIVING_UP = 4
_WEIGH_EVERY = 16
# A thread loads no more items together than it can load in so much time. A hand-over between
# threads costs some 100 us, as much as loading a small item does.
_SHARE_S = 0.002
_SHARE_MAX = 16


def _ignore(_: float) -> None:
    pass


class Prefetcher(Generic[Plan, Item]):
    """Turns plans into items with threads, and returns the items in the order of the plans.

    It reads `depth` items ahead. The depth grows when the consumer has to wait although the queue
    was full before, which a longer queue evens out. It shrinks when the consumer has not waited for
    a long time. It never exceeds `memory_limit_bytes`, except that one item always fits. A consumer
    that is faster than the threads waits with any queue: for it the depth returns to its start
    value, so that the memory of the last items is reused while it is in the caches. Small items are
    loaded in shares of several, if `load_together` is given. The threads run from the first item to
    `close`. For one consumer thread; in a forked child it is empty and closed.
    """

    def __init__(
        self,
        load: Callable[[Plan], Item],
        plans: Iterator[Plan],
        ahead: ReadAhead,
        *,
        weigh: Callable[[Item], int],
        load_together: Callable[[list[Plan]], list[Item] | None] | None = None,
        share_s: float = _SHARE_S,
        note_queued: Callable[[float], object] = _ignore,
    ) -> None:
        """Start the threads.

        Args:
            load: called in a thread.
            plans: iterated in the consumer's thread.
            ahead: how many threads, and how far; its time limit is for one share, from the request
                for its first item.
            weigh: size of an item in bytes.
            load_together: loads several items at once, for less than one by one; None if they
                must be loaded one by one. Called in a thread.
            share_s: target time for loading a share of more than one item, in seconds.
            note_queued: told for each item how long it was ready before it was requested, in
                seconds.
        """
        self._load = load
        self._plans = plans
        self._threads = ahead.threads
        self._depth_least = self._depth = max(ahead.depth, ahead.threads)
        self._memory_limit_bytes = ahead.memory_limit_bytes
        self._weigh = weigh
        self._timeout_s = ahead.timeout_s
        self._load_together = load_together
        self._share_s = share_s
        self._note_queued = note_queued
        self._share = 1  # Items that a thread takes at a time.
        self._ahead: deque[tuple[list[Plan], Future[_Loaded[Item]]]] = deque()
        self._ready: deque[tuple[Plan, Item, float]] = deque()
        self._error: BaseException | None = None  # Raised behind all items that are ready.
        self._pending = 0
        self._item_bytes = 0  # Bytes of a typical one.
        self._handed_out = 0
        self._smooth = 0  # Shares in a row that were there when they were asked for.
        self._was_full = False  # All were there at once since it was last made deeper.
        self._since_full = 0  # Items handed out since all were there.
        self._pid = os.getpid()
        self._tasks: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]
        self._tasks = queue.SimpleQueue()
        workers = [
            threading.Thread(target=_work, args=(self._tasks,), name="ffrecord-loader", daemon=True)
            for _ in range(ahead.threads)
        ]
        for worker in workers:
            worker.start()
        # Also at exit: a thread that comes back from a read into a dying interpreter would crash.
        held = (self._ahead, self._ready)
        self.close = weakref.finalize(self, _stop, self._tasks, workers, *held, self._pid)

    @property
    def depth(self) -> int:
        """Items that are read ahead now."""
        wanted = self._depth
        if self._share > 1:  # One for each thread, and one to hand out.
            wanted = max(wanted, (self._threads + 1) * self._share)
        if not self._item_bytes:
            return wanted
        return max(1, min(wanted, self._memory_limit_bytes // self._item_bytes))

    @property
    def pending(self) -> int:
        """Items that are being loaded, or wait to be handed out."""
        return self._pending if self.close.alive else 0

    @property
    def held_bytes(self) -> int:
        """Memory of these items, if all are as large as one that was weighed."""
        return self.pending * self._item_bytes

    @property
    def alive(self) -> bool:
        """Whether it can continue, in this process."""
        return self.close.alive and self._pid == os.getpid()

    def __iter__(self) -> "Prefetcher[Plan, Item]":
        return self

    def __next__(self) -> tuple[Plan, Item]:
        """Return the next plan and its item.

        Raises:
            DeadlineExceeded: the item did not come in time.
            StopIteration: there are no more plans.
            ClosedError: it was closed, or its threads belong to the process that this one was
                forked from: the rest would be missing.
            Exception: the error that `load` raised for the item.
        """
        self._require_alive()
        try:
            plan, item, ready_at = self._take()
        except (IndexError, CancelledError):
            self._require_alive()  # Another thread has closed it, and emptied its queues.
            raise
        self._note_queued(clock.now() - ready_at)
        self._pending -= 1
        if self._handed_out % _WEIGH_EVERY == 0 or not self._item_bytes:
            self._item_bytes = max(1, self._weigh(item))
        self._handed_out += 1
        if not self._ready:  # Before the consumer goes to work; the next share is asked for then.
            self._top_up()
        return plan, item

    def _require_alive(self) -> None:
        if not self.alive:
            raise ClosedError(
                "the batches that threads had read ahead are lost: the loader was closed, or the "
                "process forked, while this iterator was in use; start a new iteration"
            )

    def _take(self) -> tuple[Plan, Item, float]:
        while not self._ready:
            if self._error is not None:
                raise self._error
            self._top_up()
            self._take_share()
        return self._ready.popleft()

    def _take_share(self) -> None:
        if not self._ahead:
            self._require_alive()
            raise StopIteration
        plans, future = self._ahead[0]
        if self._ahead[-1][1].done():
            self._was_full, self._since_full = True, 0
        else:
            self._since_full += len(plans)
        begin = clock.now()
        items, self._error, seconds, ready_at = self._await(future)
        self._ahead.popleft()
        self._ready.extend(zip(plans, items, itertools.repeat(ready_at), strict=False))
        self._adapt(clock.now() - begin)
        if self._load_together is not None:
            self._share = max(1, min(_SHARE_MAX, int(self._share_s / max(seconds, 1e-9))))

    def _top_up(self) -> None:
        # By whole shares, so that a thread is woken for each share and not for each item.
        depth = self.depth
        share = max(1, min(self._share, depth // (self._threads + 1)))
        while self._error is None and self._pending + share <= depth:
            plans = list(itertools.islice(self._plans, share))
            if not plans:
                return
            future: Future[_Loaded[Item]] = Future()
            self._ahead.append((plans, future))
            self._pending += len(plans)
            # Queued tasks must not keep this object alive, or it would never be closed.
            self._tasks.put((future, partial(_loaded, self._load, self._load_together, plans)))
            self._require_alive()  # If it is closed by now, no thread is left to load them.

    def _await(self, future: "Future[_Loaded[Item]]") -> "_Loaded[Item]":
        if clock.is_done(future, self._timeout_s):
            return future.result()
        started = "it is being loaded" if future.running() else "no thread has started it yet"
        raise DeadlineExceeded(
            f"no batch from {self._threads} loader threads within {self._timeout_s} s: "
            f"{started}; raise timeout, or run `ffrecord doctor` to see what reads wait for"
        )

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


def _loaded(
    load: Callable[[Plan], Item],
    load_together: Callable[[list[Plan]], list[Item] | None] | None,
    plans: list[Plan],
) -> "_Loaded[Item]":
    """Load a share, up to the first item that fails."""
    begin = clock.now()
    items: list[Item] = []
    error: BaseException | None = None
    try:
        whole = load_together(plans) if load_together is not None and len(plans) > 1 else None
        if whole is not None:
            items = whole
        else:
            for plan in plans:
                items.append(load(plan))
    except StopIteration as caught:  # It would pass for the end of the plans.
        error = RuntimeError("StopIteration was raised while an item was loaded")
        error.__cause__ = caught
    except BaseException as caught:
        error = caught
    end = clock.now()
    return items, error, (end - begin) / len(plans), end


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
    ready: "deque[tuple[Any, Any, float]]",
    pid: int,
) -> None:
    if os.getpid() != pid:
        return  # The threads are the parent's.
    for _, future in list(ahead):  # Its consumer may be another thread.
        future.cancel()
    ahead.clear()
    ready.clear()
    for _ in workers:
        tasks.put(None)
    deadline = clock.now() + _JOIN_S
    for worker in workers:
        clock.join(worker, max(0.0, deadline - clock.now()))
