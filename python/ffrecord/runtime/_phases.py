"""Phases of operations that end at a time of their own: begun by the program, ended by one thread.

A hook in the program's thread begins a phase and passes the operation on. The thread here waits
for the operation, and ends the phase. Neither waits for the other.
"""

import collections
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Protocol

from ffrecord import _ffrecord
from ffrecord._base import clock

_SLICE_S = 0.05  # How long the thread waits in one call, and with it `stop`.
_POLL_S = 0.001  # Between two looks at operations that cannot be waited for.
_JOIN_S = 10.0
_NO_KIND = ""  # Stands beside None, which is no operation.


class Signals(Protocol):
    """The receiver of phases and steps. By default the pacer of this process.

    Called by the threads of training: methods return at once. Thread-safe.
    """

    def phase_begin(self, kind: str, size_bytes: int) -> None:
        """This process needs the network from now on."""

    def phase_end(self, kind: str) -> None:
        """One phase of that kind has ended."""

    def step_end(self) -> None:
        """A step of the training has ended."""


class PacerSignals:
    """The pacer of this process."""

    phase_begin = staticmethod(_ffrecord.phase_begin)
    phase_end = staticmethod(_ffrecord.phase_end)
    step_end = staticmethod(_ffrecord.step_end)


class Operation(Protocol):
    """A collective that was started: a `Work` of torch."""

    def is_completed(self) -> bool:
        """Whether it has ended, also by an error. Does not wait."""

    def wait(self, timeout: timedelta) -> bool:
        """Wait; raises an error if it has failed, or does not end within `timeout`."""

    def get_future(self) -> object:
        """Raises an error if only the program's own `wait` completes the operation.

        Another thread must not wait for such an operation: it would do a part of it again.
        """


# An operation: itself, the kind of its phase, and whether it is one of Gloo on the CPU.
_Phase = tuple[Operation, str, bool]
_OpenPhases = collections.deque[_Phase]


class Phases:
    """Ends the phase of each operation when the operation has ended.

    An operation of Gloo that only the program completes ends its phase when the next operation was
    started, or with the step. Thread-safe. A forked child has no thread: it makes a new one, or
    none.
    """

    def __init__(self, phase_end: Callable[[str], None]) -> None:
        """Start the thread."""
        self._phase_end = phase_end
        self._started = _ffrecord.PhaseHandover()
        self._unseen: list[str] = []  # Kinds of phases whose end cannot be seen.
        self._is_stopped = False
        # Does not hold up the end of a program that does not detach.
        self._thread = threading.Thread(target=self._run, name="ffrecord-phases", daemon=True)
        self._thread.start()
        self.add = self._started.add
        """`add(operation, kind, is_gloo)`: end the phase of that kind when the operation ends.

        Allocates nothing and never waits. Returns False if too many operations are on their way:
        the caller then ends the phase. The thread waits for Gloo's operations; it asks others, as
        waiting would make a device wait and not the thread. They ask the events of the device.
        """

    def step(self) -> None:
        """A step has ended, and with it the operations that were waited for."""
        if self._unseen or not self._started.is_empty():
            self.add(None, _NO_KIND, False)

    def stop(self) -> None:
        """End all phases that are open."""
        self._is_stopped = True
        self.add(None, _NO_KIND, False)
        if self._thread is not threading.current_thread():
            clock.join(self._thread, _JOIN_S)

    def _run(self) -> None:
        open_phases: _OpenPhases = collections.deque()
        while not self._is_stopped:
            self._take_started(open_phases)
            if open_phases:
                self._await_one(open_phases[0])
                self._end_completed(open_phases)
        # Take phases that a hook has begun while this stopped.
        while not self._started.is_empty():
            if (phase := self._started.take())[0] is not None:
                open_phases.append(phase)
        self._end_unseen()
        for _, kind, _ in open_phases:
            self._phase_end(kind)

    def _take_started(self, open_phases: _OpenPhases) -> None:
        """Wait for the first, and take others that are there."""
        while not self._is_stopped and not (open_phases and self._started.is_empty()):
            phase = self._started.take()
            self._end_unseen()
            operation, kind, is_gloo = phase
            if operation is None:
                continue
            if is_gloo and not _can_be_seen(operation):
                self._unseen.append(kind)
            else:
                open_phases.append(phase)

    def _end_unseen(self) -> None:
        kinds, self._unseen = self._unseen, []
        for kind in kinds:
            self._phase_end(kind)

    def _await_one(self, phase: _Phase) -> None:
        """Operations of one group end in order; others are looked at after each slice."""
        operation, _, is_gloo = phase
        if is_gloo:
            try:
                operation.wait(timedelta(seconds=_SLICE_S))
                return
            except Exception:  # It failed, which the program sees, or goes on.
                pass
        if not is_completed(operation):
            clock.sleep(_POLL_S)

    def _end_completed(self, open_phases: _OpenPhases) -> None:
        for _ in range(len(open_phases)):
            phase = open_phases.popleft()
            if is_completed(phase[0]):
                self._phase_end(phase[1])
            else:
                open_phases.append(phase)


def _can_be_seen(operation: Operation) -> bool:
    try:
        operation.get_future()
    except Exception:  # Not implemented.
        return False
    return True


def is_completed(operation: Operation) -> bool:
    """Whether an operation has ended; one that cannot tell has."""
    try:
        return operation.is_completed()
    except Exception:  # An error of the operation, which the program sees.
        return True
