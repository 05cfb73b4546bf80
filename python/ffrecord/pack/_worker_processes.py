"""Worker processes of one host: started, watched, and started again if they are killed."""

import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from ffrecord._base import clock
from ffrecord.pack._work import Task, Worker

# A unit whose worker was killed so often is not tried again.
_DEATHS_MAX = 3
LOOK_S = 0.5
# For a process to end when it is asked to.
END_S = 5.0
NO_UNIT = -1


class WorkerDiedError(RuntimeError):
    """Processes that worked on the same input were killed several times."""


class Deaths:
    """The workers that were killed, by the units that they worked on."""

    def __init__(self, task: Task, hint: str) -> None:
        """Count none; `hint` says what may be wrong if workers die before they have a unit."""
        self._task = task
        self._hint = hint
        self._counts: Counter[int] = Counter()

    def add(self, units: list[int], ending: str) -> None:
        """Count one that had these units; raise a WorkerDiedError if there are too many."""
        for unit in units:
            self._counts[unit] += 1
            if self._counts[unit] >= _DEATHS_MAX:
                raise WorkerDiedError(self._why(unit, ending))

    def _why(self, unit: int, ending: str) -> str:
        count = self._counts[unit]
        if unit == NO_UNIT:
            return (
                f"{count} worker processes ended with {ending} before they began to work: "
                f"{self._hint}"
            )
        return (
            f"{count} processes that packed {_input_of(self._task, unit)} ended with {ending}: is "
            "there too little memory for a sample, or does the function crash?"
        )


@dataclass
class _Running:
    process: BaseProcess
    pipe: Connection
    tokens: set[str] = field(default_factory=set)
    """Those of the leases that it has taken."""
    unit: int = NO_UNIT
    """The last one that it has begun."""


@dataclass
class _Waiting:
    """A process that waits for a task."""

    running: _Running
    inbox: Connection


# Taken by the next job of this process.
_ahead: list[_Waiting] = []


@contextmanager
def workers_ahead(count: int) -> Iterator[None]:
    """Fork `count` workers, which have all that this process has imported, and wait for a task.

    Only for a program that has no threads yet, and none of a user's code: in a fork there would be
    pieces of both. The end of the block ends the workers that no packing took.
    """
    context = multiprocessing.get_context("fork")
    for _ in range(count):
        inbox, ours = context.Pipe(duplex=False)
        pipe, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_work_when_told, args=(inbox, theirs, os.getpid()))
        process.start()
        inbox.close()
        theirs.close()
        _ahead.append(_Waiting(_Running(process, pipe), ours))
    try:
        yield
    finally:
        _end([each.running for each in _ahead])
        _ahead.clear()


def _taken(task: Task) -> _Running | None:
    """A process that was forked ahead, with its task; None if there is none."""
    while _ahead:
        waiting = _ahead.pop(0)
        try:
            waiting.inbox.send((sys.path, pickle.dumps(task)))
        except OSError:  # It was killed, or the pipe was closed here; else it would wait for ever.
            _end([waiting.running])
            continue
        return waiting.running
    return None


def _work_when_told(inbox: Connection, pipe: Connection, parent: int) -> None:
    """Run in a process that was forked ahead."""
    if "numpy.random" in sys.modules:  # Its state is the parent's, and that of all others.
        sys.modules["numpy.random"].seed()
    _do(lambda: _told(inbox), pipe, parent)


def _told(inbox: Connection) -> Task:
    """The task, whose function is found by the path of modules that comes with it."""
    sys.path[:], pickled = inbox.recv()
    task: Task = pickle.loads(pickled)
    return task


def run_workers(task: Task, count: int, progress: Callable[[int], None] | None) -> None:
    """Do a job with `count` processes; return when all of it is done.

    Raises:
        WorkerDiedError: an input kills the process that reads it.
        Exception: what a worker raised.
    """
    job = task.job
    context = multiprocessing.get_context("spawn")  # A program with threads cannot fork.
    running: list[_Running] = []
    deaths = Deaths(
        task,
        "a script must call pack below `if __name__ == '__main__':`, since workers import it",
    )

    def start() -> None:
        if (one := _taken(task)) is not None:
            running.append(one)
            return
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(task, theirs), name="ffrecord-pack")
        process.start()
        theirs.close()
        running.append(_Running(process, ours))

    try:
        for _ in range(min(count, len(job.pending()))):
            start()
        finished: float | None = None
        while running:
            wait([one.pipe for one in running], timeout=LOOK_S)
            if finished is None and not job.pending():
                finished = clock.now()
            if finished is not None and clock.now() - finished > END_S:
                break  # Others did what these held: they are stopped, or threads keep them.
            for one in list(running):
                if _has_ended(one):
                    running.remove(one)
                    _check_end(task, one, deaths)
                    if job.pending():
                        start()
            if progress is not None:
                progress(job.done_bytes())
    finally:
        _end(running)
        for one in running:
            job.release_all_of(one.tokens)


def _end(running: list[_Running]) -> None:
    for one in running:
        one.process.terminate()
    deadline = clock.now() + END_S
    for one in running:
        one.process.join(max(0, deadline - clock.now()))
        one.process.kill()  # It is stopped, or a library has taken the signal.
        one.process.join()


def _has_ended(one: _Running) -> bool:
    """Take what a worker says; whether it will say no more."""
    has_exited = not one.process.is_alive()  # A child of its own may keep the pipe open.
    while one.pipe.poll():
        try:
            said = one.pipe.recv()
        except (EOFError, OSError):
            one.process.join()
            return True
        if isinstance(said, BaseException):
            raise said
        token, one.unit = said
        one.tokens.add(token)
    return has_exited


def _check_end(task: Task, one: _Running, deaths: Deaths) -> None:
    """Release what a worker that was killed held; raise if that happens too often."""
    code = one.process.exitcode
    if code == 0 and not task.job.pending():
        return
    # None is held by a process that could not tell of its error: its pipe was closed in it.
    deaths.add(task.job.release_all_of(one.tokens) or [one.unit], _ending(code))


def _input_of(task: Task, unit: int) -> str:
    paths = [task.plan.inputs[cut.input].path for cut in task.plan.units[unit]]
    return paths[0] if len(set(paths)) == 1 else f"{paths[0]} to {paths[-1]}"


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        return signal.Signals(-code).name
    return f"exit code {code}"


def _work(task: Task, pipe: Connection) -> None:
    """Run in a process of its own."""
    _do(lambda: task, pipe, os.getppid())


def _do(told: Callable[[], Task], pipe: Connection, parent: int) -> None:
    """Do a task; the pipe takes tokens and units of leases, and the error that ends it."""
    _end_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent ends this process.
    try:
        Worker(told(), leases=lambda lease: pipe.send((lease.token, lease.unit))).run()
    except BaseException as error:
        pipe.send(sendable(error))
        raise SystemExit(1) from None


def sendable(error: BaseException) -> BaseException:
    """The error, or one like it that another process can be sent."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _end_with(parent: int) -> None:
    """Let the kernel end this process when its parent ends."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(1)
