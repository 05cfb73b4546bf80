"""The cost of checkpoints for a training process: the time blocked, the progress of saves."""

import contextlib
import dataclasses
import os
import threading
from collections.abc import Callable, Iterator

from ffrecord import _ffrecord
from ffrecord._base import clock, recording


@dataclasses.dataclass(frozen=True)
class Progress:
    """A save in progress.

    Attributes:
        step: the step that is being saved.
        running_s: time since the call that started it, in seconds.
        done_bytes: bytes of this rank's tensors that were passed to the target.
        total_bytes: all bytes of this rank's tensors; 0 until that is known.
    """

    step: int
    running_s: float
    done_bytes: int
    total_bytes: int


@dataclasses.dataclass(frozen=True)
class Report:
    """The counts that a `Monitor` has seen in this process since it was made.

    Attributes:
        elapsed_s: time since then, in seconds.
        stall_s: the part of it in which `save` and `async_save` blocked their callers, and a
            `CheckpointWriter` the main thread.
        saves: how many saves have been committed.
        failures: how many have failed.
        running: the saves that have not ended.
        flushes: how many steps were copied to a later place of a staged target.
        flush_failures: how many attempts at that have failed.
        flush_skips: how many steps were not copied to a place, since newer ones were waiting.
    """

    elapsed_s: float
    stall_s: float
    saves: int
    failures: int
    running: tuple[Progress, ...]
    flushes: int = 0
    flush_failures: int = 0
    flush_skips: int = 0

    @property
    def stalled_fraction(self) -> float:
        """The share of the time that training spent in saves: 0 is best."""
        return self.stall_s / self.elapsed_s if self.elapsed_s > 0 else 0.0

    def figures(self, prefix: str = "checkpoint/") -> dict[str, float]:
        """Return all of it in one flat dict of numbers, for MLflow, W&B, TensorBoard.

        The names are stable; metrics.md lists them.

        Args:
            prefix: what all names begin with.
        """
        numbers = {
            "elapsed_s": self.elapsed_s,
            "stall_s": self.stall_s,
            "stalled_fraction": self.stalled_fraction,
            "saves": self.saves,
            "failures": self.failures,
            "running": len(self.running),
            "done_bytes": sum(save.done_bytes for save in self.running),
            "total_bytes": sum(save.total_bytes for save in self.running),
            "flushes": self.flushes,
            "flush_failures": self.flush_failures,
            "flush_skips": self.flush_skips,
        }
        return {f"{prefix}{name}": float(value) for name, value in numbers.items()}


class Save:
    """One save in progress."""

    def __init__(self, step: int) -> None:
        """Start the clock."""
        self.step, self.began = step, clock.now()
        self.bytes = _ffrecord.SaveProgress()

    def progress(self) -> Progress:
        """Its progress."""
        total = self.bytes.total_bytes
        done = min(self.bytes.done_bytes, total)
        return Progress(self.step, clock.now() - self.began, done, total)


class Ledger:
    """All saves of a process; thread-safe."""

    def __init__(self) -> None:
        """Start with no saves."""
        self._lock = threading.Lock()
        self._stall_s = 0.0
        self._saves = self._failures = 0
        self._flushes = self._flush_failures = self._flush_skips = 0
        self._stalled_since: dict[int, float] = {}  # By thread: a call that has not returned.
        self._running: dict[int, Save] = {}

    @contextlib.contextmanager
    def stall(self) -> Iterator[None]:
        """Wraps the time in which a caller is blocked."""
        thread, began = threading.get_ident(), clock.now()
        with self._lock:
            self._stalled_since[thread] = began
        try:
            with recording.Span(recording.SAVE):
                yield
        finally:
            with self._lock:
                del self._stalled_since[thread]
                self._stall_s += clock.now() - began

    @contextlib.contextmanager
    def save(self, save: Save) -> Iterator[None]:
        """Wraps a save; the save has failed if an exception leaves the block."""
        self.begin(save)
        committed = False
        try:
            with recording.Span(recording.COMMIT, detail=save.step):
                yield
            committed = True
        finally:
            self.end(save, committed)

    def begin(self, save: Save) -> None:
        """Count it as running from now on."""
        with self._lock:
            self._running[id(save)] = save

    def end(self, save: Save, committed: bool) -> None:
        """Count it as committed or failed; not if it began in the parent process."""
        with self._lock:
            if self._running.pop(id(save), None) is None:
                return
            self._saves += committed
            self._failures += not committed

    def flushed(self, *, copied: int = 0, failed: int = 0, skipped: int = 0) -> None:
        """Count steps on their way to a later place."""
        with self._lock:
            self._flushes += copied
            self._flush_failures += failed
            self._flush_skips += skipped

    def report(self) -> Report:
        """Since the process began; elapsed_s is the time by the clock."""
        with self._lock:
            now = clock.now()
            stall_s = self._stall_s + sum(now - since for since in self._stalled_since.values())
            running = tuple(save.progress() for save in self._running.values())
            return Report(
                now,
                stall_s,
                self._saves,
                self._failures,
                running,
                self._flushes,
                self._flush_failures,
                self._flush_skips,
            )


class Monitor:
    """Sees the saves of this process; made by `monitor`."""

    def __init__(self) -> None:
        """Start now."""
        self._begin = ledger().report()

    def report(self) -> Report:
        """The figures since the start."""
        begin, now = self._begin, ledger().report()
        return Report(
            now.elapsed_s - begin.elapsed_s,
            now.stall_s - begin.stall_s,
            now.saves - begin.saves,
            now.failures - begin.failures,
            now.running,
            now.flushes - begin.flushes,
            now.flush_failures - begin.flush_failures,
            now.flush_skips - begin.flush_skips,
        )


@contextlib.contextmanager
def monitor(
    callback: Callable[[Report], object] | None = None, *, every_s: float = 10.0
) -> Iterator[Monitor]:
    """Measure what checkpoints cost while training goes on.

        with ckpt.monitor(lambda seen: print(f"{seen.stalled_fraction:.2%}"), every_s=60) as saves:
            train()
        print(saves.report())

    Args:
        callback: called every `every_s` seconds on a thread of its own, and once at the end.
        every_s: the interval, in seconds.
    """
    if every_s <= 0:
        raise ValueError(f"every_s is {every_s}, must be positive")
    seen = Monitor()
    ended = threading.Event()

    def call_back() -> None:
        while callback is not None:
            is_last = clock.wait(ended.wait, every_s)
            callback(seen.report())
            if is_last:
                return

    thread = threading.Thread(target=call_back, name="ffrecord-monitor", daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


_current = Ledger()


def ledger() -> Ledger:
    """The saves of this process. A forked child starts with none."""
    return _current


def _begin_anew() -> None:
    global _current
    _current = Ledger()


os.register_at_fork(after_in_child=_begin_anew)
