"""An engine of a group, and the threads that complete its operations."""

import collections
import dataclasses
import itertools
import os
import threading
from collections.abc import Callable

import torch

from ffrecord._base import clock, recording
from ffrecord._ffrecord import CollectiveEngine
from ffrecord.errors import UnavailableError

# The engine's name of a dtype that it reduces.
REDUCED = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.int32: "int32",
    torch.int64: "int64",
}
# And what it only moves.
_NAMES = REDUCED | {torch.uint8: "bytes"}
# Enough for the timeline of some hundred steps; older ones are dropped.
_TRANSFERS_MAX = 10_000
# In each rank groups are made in the same order: so a profile finds those of other ranks.
_numbers = itertools.count()
# At exit, for a callback of the user that does not return.
_JOIN_S = 10.0

Future = torch.futures.Future[torch.Tensor]
# Gives a buffer's address, count and dtype to an engine.
Start = Callable[[CollectiveEngine, int, int, str], int]


@dataclasses.dataclass(frozen=True, slots=True)
class Transfer:
    """One bucket's way through the group. Times are `time.monotonic_ns()`."""

    bucket: int
    size_bytes: int
    submitted_ns: int
    """Backward had filled the bucket."""
    began_ns: int
    """Its turn came: buckets go one after another."""
    ended_ns: int
    ok: bool


@dataclasses.dataclass(slots=True)
class _Pending:
    future: Future
    buffer: torch.Tensor  # Kept alive: the engine writes to its memory.
    result: torch.Tensor
    bucket: int
    submitted_ns: int
    span: recording.Span | None

    @property
    def size_bytes(self) -> int:
        return self.buffer.numel() * self.buffer.element_size()


class Pump:
    """An engine, and threads that complete the futures of its operations.

    One thread waits for the next end while others run the callbacks of earlier ones, which may
    start operations and wait for them. There are as many threads as callbacks that wait, and two
    more. Holds no reference to its owner, so that an owner without other references is collected,
    and stopped. Thread-safe.
    """

    def __init__(
        self,
        engine: CollectiveEngine,
        *,
        is_recorded: bool = True,
        told: Callable[[Exception], Exception] = lambda error: error,
    ) -> None:
        """Start to wait for operations of `engine` to end.

        Args:
            engine: of a group, which has been connected.
            is_recorded: in profiles, as collectives of all ranks.
            told: an error of the engine as the caller is to see it, from a call or from a future.
        """
        self.engine = engine
        self._told = told
        self._name = f"ffrecord group {next(_numbers)}" if is_recorded else None
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._turn = threading.Lock()  # Held by the thread that waits for the next end.
        self._idle = 0  # Threads that wait for an end, or for their turn to.
        self._is_stopped = False
        self._submitted = 0
        self._threads: list[threading.Thread] = []
        self._pending: dict[int, _Pending] = {}
        self._transfers: collections.deque[Transfer] = collections.deque(maxlen=_TRANSFERS_MAX)
        with self._lock:
            self._add_thread()

    @property
    def threads(self) -> list[threading.Thread]:
        """The threads that complete futures."""
        with self._lock:
            return list(self._threads)

    def submit(
        self,
        buffer: torch.Tensor,
        bucket: int,
        start: Start,
        *,
        result: torch.Tensor | None = None,
        future: Future | None = None,
    ) -> Future:
        """Start an operation over a contiguous buffer, which the future keeps alive.

        Args:
            buffer: contiguous, in CPU memory.
            bucket: a number for the transfers.
            start: passes the buffer to an engine.
            result: the future's value, by default the buffer.
            future: the future that ends with the operation; a new one if None.
        """
        if os.getpid() != self._owner:
            raise RuntimeError(
                f"this process was forked from process {self._owner}, which owns the group:"
                " make a new one here"
            )
        future = torch.futures.Future() if future is None else future
        result = buffer if result is None else result
        now = clock.now_ns()
        # The lock, for a thread may see the end before we have noted the beginning.
        with self._lock:
            token = self._start(start, buffer)
            self._submitted += 1
            span = None
            if self._name is not None:
                span = recording.Span(recording.COLLECTIVE, self._name, self._submitted)
                span.start()
            self._pending[token] = _Pending(future, buffer, result, bucket, now, span)
        return future

    def transfers(self) -> list[Transfer]:
        """The newest transfers, in the order of their ends."""
        with self._lock:
            return list(self._transfers)

    def transfers_since(self, ended_ns: int) -> list[Transfer]:
        """The transfers that ended later, in that order."""
        newer: list[Transfer] = []
        with self._lock:
            for transfer in reversed(self._transfers):
                if transfer.ended_ns <= ended_ns:
                    break
                newer.append(transfer)
        return newer[::-1]

    def stop(self) -> None:
        """Leave the group; pending operations fail."""
        if os.getpid() != self._owner:
            return  # A forked child has neither the threads nor the connections.
        with self._lock:
            self._is_stopped = True
        self.engine.shutdown()
        for thread in self.threads:
            if thread is not threading.current_thread():  # A callback may call this.
                clock.join(thread, _JOIN_S)

    def _start(self, start: Start, buffer: torch.Tensor) -> int:
        try:
            return start(self.engine, buffer.data_ptr(), buffer.numel(), _NAMES[buffer.dtype])
        except Exception as error:
            raise self._told(error) from None

    def _add_thread(self) -> None:
        """Requires the lock."""
        self._idle += 1
        thread = threading.Thread(target=self._run, name="ffrecord-pump", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self) -> None:
        while self._complete_next():
            with self._lock:
                if self._idle == 2 and not self._is_stopped:
                    self._threads.remove(threading.current_thread())
                    return  # Others do.
                self._idle += 1

    def _complete_next(self) -> bool:
        """False if nothing will end any more."""
        with self._turn:
            try:
                ended = None
                while ended is None:
                    ended = self.engine.wait_any(3600.0)  # Without the GIL.
            except UnavailableError:
                return False  # Shut down, and every end was seen.
            token, error, began_ns, ended_ns = ended
            with self._lock:
                pending = self._pending.pop(token)
                if pending.span is not None:
                    waited_us = (began_ns - pending.submitted_ns) // 1000
                    pending.span.stop(pending.size_bytes, waited_us)
                self._transfers.append(
                    Transfer(
                        bucket=pending.bucket,
                        size_bytes=pending.size_bytes,
                        submitted_ns=pending.submitted_ns,
                        began_ns=began_ns,
                        ended_ns=ended_ns,
                        ok=error is None,
                    )
                )
                self._idle -= 1
                if self._idle == 0:
                    self._add_thread()
        if error is None:
            pending.future.set_result(pending.result)
        else:
            pending.future.set_exception(self._told(error))  # type: ignore[arg-type]
        return True
