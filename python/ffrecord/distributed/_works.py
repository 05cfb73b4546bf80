"""The objects that torch waits on while an operation of a group runs."""

import collections
import contextlib
import math
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import FrameType
from typing import Any, Protocol

import torch
from torch.distributed.distributed_c10d import Work

from ffrecord._base import clock

# Works that Python has freed and nobody has waited for. C++ may: DDP's join() keeps one for a step,
# and that of torch is but half of it; without the other it would wait for ever. A work that torch
# makes from a future alone (_create_work_from_future) is whole, but its wait() tells no error. Join
# reads a number; larger tensors are not kept.
_LET_GO_MAX = 1000
_KEPT_BYTES_MAX = 1024
_let_go: "collections.deque[Started]" = collections.deque(maxlen=_LET_GO_MAX)


class Started(Work):
    """An operation of a `Group`, in torch.distributed's form. Any thread may wait for it.

    Fails, as its future does, with the group's RuntimeError: a rank is gone, late, or differs.
    """

    def __init__(self, future: torch.futures.Future[Any]) -> None:
        """`future` ends with the operation; its value is a list of tensors, or one."""
        super().__init__()
        self._future = future
        self._is_waited_for = False

    def __del__(self) -> None:
        """Stay alive, without large tensors."""
        if not self._is_waited_for:
            _let_go.append(self)
            self._future.add_done_callback(self._drop_tensors)

    def _drop_tensors(self, _ended: object) -> None:
        if self.exception() is not None:
            return
        value = self._future.value()
        tensors = [value] if isinstance(value, torch.Tensor) else value
        if sum(tensor.numel() * tensor.element_size() for tensor in tensors) > _KEPT_BYTES_MAX:
            self._future = torch.futures.Future()
            self._future.set_result([])

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until it has ended.

        Raises:
            RuntimeError: it failed, or has not ended within `timeout`, if that is above zero.
        """
        return self._await_future(timeout)

    def _await_future(self, timeout: timedelta | None) -> bool:
        is_limited = timeout is not None and timeout > timedelta()
        limit_s = timeout.total_seconds() if timeout is not None and is_limited else math.inf
        if not self._future.done() and not self._ends_within(limit_s):
            raise RuntimeError(f"timed out: the operation has not ended within {timeout}")
        self._future.wait()
        self._is_waited_for = True
        return True

    def _ends_within(self, limit_s: float) -> bool:
        """Whether it does; True at once without a limit."""
        return math.isinf(limit_s) or clock.wait(_end_of(self._future).wait, limit_s)

    def synchronize(self) -> None:
        """Wait, for callers that use streams of a GPU."""
        self.wait()

    def get_future(self) -> torch.futures.Future[Any]:
        """The future itself."""
        return self._future

    def is_completed(self) -> bool:
        """Whether it has ended, successfully or not."""
        return self._future.done()

    def is_success(self) -> bool:
        """Whether it has ended successfully."""
        return self._future.done() and self.exception() is None

    def exception(self) -> BaseException | None:
        """Its error; only once it has ended."""
        try:
            self._future.value()
        except Exception as error:
            return error
        return None

    def result(self) -> list[torch.Tensor]:
        """Wait, and return the tensors."""
        self.wait()
        found: list[torch.Tensor] = self._future.value()
        return found


class OfMessage(Protocol):
    """A message between two ranks."""

    def wait(self) -> None:
        """Wait until it has ended; raises RuntimeError if it has failed."""

    def await_event(self, event: threading.Event, limit_s: float) -> bool:
        """Wait for an event that this message brings about; whether it comes within the limit."""

    def future(self) -> torch.futures.Future[Any]:
        """A future that ends with it."""


class Transferred(Started):
    """A message between two ranks. A thread that waits for it is woken by the engine itself."""

    def __init__(
        self,
        message: OfMessage,
        tensors: list[torch.Tensor],
        finish: Callable[[], Any] | None,
    ) -> None:
        """`finish` is called once, after the message has ended well."""
        Work.__init__(self)
        self._message, self._tensors, self._finish = message, tensors, finish
        self._lock = threading.Lock()
        self._finishing = threading.Lock()
        self._made: torch.futures.Future[Any] | None = None
        self._is_waited_for = False

    def __del__(self) -> None:
        """Keep the memory of a message that nobody has waited for until it has ended."""
        if not self._is_waited_for:
            with contextlib.suppress(Exception):  # The interpreter may be about to end.
                self._message.future()

    @property
    def _future(self) -> torch.futures.Future[Any]:  # type: ignore[override]
        with self._lock:
            if self._made is None:
                self._made = ended([self._message.future()], self._tensors, self._finish_once)
            return self._made

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until it has ended.

        Raises:
            RuntimeError: it failed, or has not ended within `timeout`, if that is above zero.
        """
        if self._made is not None or (timeout is not None and timeout > timedelta()):
            return self._await_future(timeout)
        self._message.wait()
        with torch.inference_mode():  # As in ended().
            self._finish_once()
        self._is_waited_for = True
        return True

    def _ends_within(self, limit_s: float) -> bool:
        return self._message.await_event(_end_of(self._future), limit_s)

    def _finish_once(self) -> None:
        with self._finishing:
            finish, self._finish = self._finish, None
            if finish is not None:
                finish()


class FromAny(Started):
    """A receive from any rank."""

    def __init__(self, future: torch.futures.Future[Any], source: Callable[[], int]) -> None:
        """`source` returns the rank that has sent, once the future has ended."""
        super().__init__(future)
        self._source = source

    def _source_rank(self) -> int:
        """The rank in the group that has sent the message."""
        self._future.wait()
        return self._source()


class Coalesced(threading.local):
    """The operations of a thread that end together.

    An error within torch's coalescing manager leaves them open: torch does not say that it is over.
    Those that have succeeded tell nothing at the end, and would keep their tensors until then, so
    they are dropped as others come.
    """

    _futures: list[torch.futures.Future[Any]] | None = None
    _held_max = 0

    @property
    def is_open(self) -> bool:
        """Whether operations of this thread end together."""
        return self._futures is not None

    def begin(self) -> None:
        """Operations end together from now on."""
        self._futures, self._held_max = [], 1

    def add(self, future: torch.futures.Future[Any]) -> None:
        """Take an operation that has begun, if they end together."""
        if self._futures is None:
            return
        if len(self._futures) >= self._held_max:  # Twice as many each time: few looks at each.
            self._futures = [each for each in self._futures if not _has_succeeded(each)]
            self._held_max = max(1, 2 * len(self._futures))
        self._futures.append(future)

    def end(self) -> torch.futures.Future[Any]:
        """Ends when all since `begin` have."""
        futures, self._futures = self._futures or [], None
        return ended(futures, [], None)


def _end_of(future: torch.futures.Future[Any]) -> threading.Event:
    ended = threading.Event()
    future.add_done_callback(lambda _: ended.set())
    return ended


def _has_succeeded(future: torch.futures.Future[Any]) -> bool:
    if not future.done():
        return False
    try:
        future.value()
    except Exception:
        return False
    return True


def ended(
    futures: Sequence[torch.futures.Future[Any]],
    tensors: list[torch.Tensor],
    finish: Callable[[], Any] | None,
) -> torch.futures.Future[Any]:
    """Ends when all have ended and `finish` has returned; its value is `tensors`.

    The thread that ends the last one does it. It may be outside the caller's inference mode, to
    which the tensors may belong: within that mode, all tensors may be written to.
    """

    def finished(ended: torch.futures.Future[Any]) -> list[torch.Tensor]:
        for each in ended.value() if len(futures) != 1 else [ended]:
            each.value()  # Raises what went wrong.
        if finish is not None:
            with torch.inference_mode():
                finish()
        return tensors

    if len(futures) == 1:
        return futures[0].then(finished)
    return torch.futures.collect_all(list(futures)).then(finished)


def profiled(name: str) -> Any:  # noqa: ANN401
    """An event of torch's profiler that has begun; None without the profiler."""
    if not torch.autograd.profiler._is_profiler_enabled:
        return None
    event: Any = torch.profiler.record_function(f"ffrecord:{name}")
    event.__enter__()
    return event


def is_in_hook(caller: FrameType) -> bool:
    """Whether Python code calls within a backward pass. DDP without a hook calls from C++."""
    is_in_backward = torch._C._current_graph_task_id() != -1
    return is_in_backward and not caller.f_globals["__name__"].startswith("torch.autograd")
