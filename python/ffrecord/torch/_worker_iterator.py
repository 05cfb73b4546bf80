"""torch's iterator over worker processes, with waits that notice a worker that was killed.

torch asks whether its workers live each time a wait for a batch ends. With `timeout=` it waits
once, for the whole time. A signal reports the death earlier, but only to the main thread, and only
the death of a child of this process, which a worker of a forkserver is not.
"""

import io
import multiprocessing
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from multiprocessing.connection import wait
from traceback import clear_frames
from typing import Any

from torch.utils.data import dataloader
from torch.utils.data._utils import signal_handling

from ffrecord._base import clock
from ffrecord.errors import ClosedError

# Between two looks at the workers.
_LOOK_S = 1.0
# From the end of a connection to a worker until the system reports the death of the worker.
_DEATH_S = 2.0


class WorkersIterator(dataloader._MultiProcessingDataLoaderIter):
    """An iterator whose waits end in torch's RuntimeError within seconds of a worker's death.

    A forked child leaves the workers to their parent: it takes no batch from them, and does not end
    them.
    """

    is_broken = False
    """Whether the workers are of no use any more: one has died, or a handler of a signal has raised
    while their answers were read, and left the rest of one behind."""
    _pid = 0  # None, until there may be workers.
    # Set by torch, which declares no types.
    _workers: list[Any]
    _workers_status: list[bool]
    _timeout: float
    _worker_result_queue: Any
    _init: "_WorkerInit"
    _done: "_Flag"

    def __init__(self, loader: Any) -> None:  # noqa: ANN401 - a `DataLoader`, which imports this
        """Start the workers of `loader`."""
        self._pid = os.getpid()
        self._context = loader.multiprocessing_context or multiprocessing
        try:
            super().__init__(loader)
        except BaseException:
            self._end_started()
            raise
        received = self._worker_result_queue._reader
        received._recv = partial(_received, received.fileno(), weakref.ref(self))

    @property
    def _worker_init_fn(self) -> "_WorkerInit":
        return self._init

    @_worker_init_fn.setter
    def _worker_init_fn(self, given: Callable[[int], object] | None) -> None:
        self._init = _WorkerInit(given)

    @property  # type: ignore[override]
    def _workers_done_event(self) -> "_Flag":
        return self._done

    @_workers_done_event.setter
    def _workers_done_event(self, _: object) -> None:
        self._done = _Flag(self._context)

    @property
    def is_usable(self) -> bool:
        """Whether another iteration may take its workers."""
        if self.is_broken or self._pid != os.getpid():
            return False
        return not self.is_ended_by_interrupt

    @property
    def is_ended_by_interrupt(self) -> bool:
        """Whether Ctrl-C has ended workers, as a terminal sends it to all of its processes.

        They end when they have handled it, which may be after the next iteration has begun.
        """
        ended = [each.exitcode for each in self._workers if each.exitcode is not None]
        return bool(ended) and not any(ended)

    def __next__(self) -> Any:  # noqa: ANN401 - collate_fn's
        if self._pid != os.getpid():
            raise ClosedError(
                "the workers of this iterator are those of the parent process: start a new "
                "iteration after a fork"
            )
        return super().__next__()

    def _reset(self, loader: Any, first_iter: bool = False) -> None:  # noqa: ANN401 - as above
        self.is_broken = True  # Until it is done.
        super()._reset(loader, first_iter)
        self.is_broken = False

    def _end_started(self) -> None:
        """End workers of an iterator that is not made whole; torch fails at that."""
        with suppress(ValueError):  # They are not registered yet.
            signal_handling._remove_worker_pids(id(self))  # type: ignore[attr-defined]
        for each in getattr(self, "_workers", ()):
            each.terminate()
        self._shutdown = True

    def _shutdown_workers(self) -> None:
        if self._pid == os.getpid():
            super()._shutdown_workers()

    def _try_get_data(self, timeout: float = _LOOK_S) -> tuple[bool, Any]:
        """As torch's: `(False, None)` after `timeout` seconds without a batch.

        Raises:
            RuntimeError: a worker, or the thread that pins memory, has ended.
        """
        end = clock.now() + timeout
        while True:
            left = end - clock.now()
            found: tuple[bool, Any] = self._look(min(_LOOK_S, max(left, 0.0)))
            if found[0] or left <= _LOOK_S:
                return found
            if self._pin_memory and not self._pin_memory_thread.is_alive():
                raise RuntimeError("Pin memory thread exited unexpectedly")

    def _look(self, timeout: float) -> tuple[bool, Any]:
        try:
            return super()._try_get_data(timeout)  # type: ignore[no-any-return, no-untyped-call]
        except BaseException as error:
            self.is_broken = True
            if not isinstance(error, OSError | EOFError):
                raise
            # The connection on which a worker passes a descriptor ends before its process has.
            if not (ended := wait([each.sentinel for each in self._workers], _DEATH_S)):
                raise
            killed = [str(each.pid) for each in self._workers if each.sentinel in ended]
            raise RuntimeError(
                f"DataLoader worker (pid(s) {', '.join(killed)}) exited unexpectedly"
            ) from error

    def require_sender(self, since: float) -> None:
        """Check that the rest of a batch may still come, after no byte came for a while.

        Raises:
            RuntimeError: a worker has ended, perhaps the one that was sending; or it is late.
        """
        used = zip(self._workers, self._workers_status, strict=False)
        if not all(each.is_alive() for each, is_used in used if is_used):
            raise RuntimeError("a worker ended in the middle of a batch")  # torch names it.
        if clock.now() - since > self._timeout:
            raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds")


class _Flag:
    """An event that workers look at without a lock: one that is killed meanwhile keeps none."""

    def __init__(self, context: Any) -> None:  # noqa: ANN401 - a way to start processes
        """It is not set. `context` makes it for its processes."""
        self._count = context.Semaphore(0)

    def is_set(self) -> bool:
        """Whether it was set."""
        return bool(self._count.get_value())

    def set(self) -> None:
        """Set it."""
        self._count.release()


class _WorkerInit:
    """The first call in a worker, which ends from then on with the process that has started it.

    torch looks at the parent of a worker, which may be the fork server. And it waits at the end of
    a worker until the last batches are sent, to a pipe that nobody reads any more.
    """

    def __init__(self, given: Callable[[int], object] | None) -> None:
        """`given`: the `worker_init_fn` of the loader."""
        self.given = given

    def __call__(self, worker: int) -> None:
        """Watch the process, and call what the loader was given."""
        if (starter := multiprocessing.parent_process()) is not None:
            watch = partial(_leave_with, starter.sentinel, os.getppid())
            threading.Thread(target=watch, name="ffrecord-parent", daemon=True).start()
        if self.given is not None:
            self.given(worker)


def _leave_with(sentinel: int, parent: int) -> None:
    # After a fork, later workers have the other end of an earlier one's sentinel.
    while os.getppid() == parent and not wait([sentinel], _LOOK_S):
        pass
    os._exit(1)


def _received(
    descriptor: int, owner: Callable[[], WorkersIterator | None], size: int
) -> io.BytesIO:
    """The next `size` bytes of a connection, as its own method, which would wait for ever.

    A worker that was killed while it sent leaves a part of a batch, and nobody closes the
    connection: the other workers and this process have it open for writing, too.
    """
    found, since = io.BytesIO(), clock.now()
    while (left := size - found.tell()) > 0:
        if not clock.is_readable([descriptor], _LOOK_S):
            if (iterator := owner()) is None:
                raise EOFError
            iterator.require_sender(since)
            continue
        part = os.read(descriptor, left)
        if not part:
            raise EOFError
        found.write(part)
    return found


def taken(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the batches of torch's iterator over workers; free it as soon as it has failed.

    torch raises a worker's error from frames that hold the error and the iterator in a circle. Left
    to the garbage collector, the iterator ends its workers there, and waits 5 s for each. No frame
    of ours may hold it either, because a kept error keeps its frames.
    """
    while True:
        try:
            found = next(batches)
        except BaseException as error:
            clear_frames(error.__traceback__)
            del batches
            if isinstance(error, StopIteration):
                return
            raise
        yield found
