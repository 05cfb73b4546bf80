"""Workers that are tasks of a Ray cluster: started, watched, and started again if they are killed.

They do what worker processes do (`Worker`), and this process waits for them. A folder in that of
the job, `ray.TOKEN`, is the probe: a worker that does not find it is on a node that does not share
the destination. In it each worker says who it is and what it does, so that others get at once what
it held when it is killed.
"""

import logging
import os
import secrets
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from ffrecord._base import clock
from ffrecord._ffrecord import __version__
from ffrecord.pack._holder import this_process
from ffrecord.pack._source import needed
from ffrecord.pack._work import Task, Worker
from ffrecord.pack._worker_processes import END_S, LOOK_S, NO_UNIT, Deaths, sendable

# For something to take a connection at the address of a cluster.
_ANSWER_S = 10.0
# Where Ray looks how often it may try to connect.
_TRIES = "RAY_gcs_server_port_wait_time_s"


def _ray() -> ModuleType:
    return needed("ray", "packing on a Ray cluster", "ray")


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Connect this process to a cluster, unless it is connected to one.

    Raises:
        ImportError: Ray is not installed.
        ConnectionError: there is no cluster, or it refuses this process.
    """
    ray = _ray()
    if ray.is_initialized():
        yield
        return
    refused = OSError, RuntimeError, ValueError, AssertionError, ray.exceptions.RayError
    try:
        _check_answers(address)
        with _tries_of_ray(address):
            ray.init(address, logging_level=logging.WARNING)
    except refused as error:
        raise ConnectionError(f"cannot connect to a Ray cluster at {address}: {error}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _check_answers(address: str) -> None:
    """Raise an OSError if nothing takes connections at an address of a host and a port.

    Ray would go on to try for a quarter of an hour.
    """
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS") or address
    found = urlsplit(address if "://" in address else f"ray://{address}")
    if found.scheme == "ray" and found.hostname and found.port:
        socket.create_connection((found.hostname, found.port), _ANSWER_S).close()


@contextmanager
def _tries_of_ray(address: str) -> Iterator[None]:
    """Let Ray try once to reach a cluster that does not answer, unless the user has said how often.

    That takes most of a minute. It happens with an address of something else, and with `auto` after
    the cluster of this host was killed.
    """
    if address == "local" or _TRIES in os.environ:
        yield
        return
    os.environ[_TRIES] = "1"
    try:
        yield
    finally:
        del os.environ[_TRIES]


class _Told(NamedTuple):
    """All that a task must know: the same for each."""

    version: str
    modules: list[str]
    """Where this process finds modules."""
    folder: str
    """The one that paths in a user's function are relative to."""
    code: dict[str, str]
    """See `UserMap.code`."""
    task: bytes
    """Pickled as Ray does it, so a function of a script is sent with its code."""


def run_on_ray(task: Task, count: int | None, progress: Callable[[int], None] | None) -> None:
    """Do a job with `count` tasks of Ray, or one for each CPU; return when all of it is done.

    Raises:
        OSError: a node does not share the folder.
        WorkerDiedError: an input kills the process that reads it.
        RuntimeError: Ray could not run a task.
        Exception: what a worker raised.
    """
    ray, job = _ray(), task.job
    meeting = job.own / f"ray.{secrets.token_hex(8)}"
    try:
        meeting.mkdir()
    except FileNotFoundError:
        return  # Another process has published the result.
    count = count or max(1, int(ray.cluster_resources().get("CPU", 1)))
    tasks = _Tasks(ray, task, meeting)
    try:
        for _ in range(min(count, len(job.pending()))):
            tasks.start()
        finished: float | None = None
        while tasks.running:
            tasks.look()
            if progress is not None:
                progress(job.done_bytes())
            if finished is None and not job.pending():
                finished = clock.now()
            if finished is not None and (clock.now() - finished > END_S or not tasks.have_begun()):
                break  # Others did what these held, and the rest found no CPU.
    finally:
        tasks.end()
        shutil.rmtree(meeting, ignore_errors=True)


class _Tasks:
    """The tasks of one job."""

    def __init__(self, ray: ModuleType, task: Task, meeting: Path) -> None:
        self._ray = ray
        self._task, self._job, self._meeting = task, task.job, meeting
        self._deaths = Deaths(task, "Ray's logs may say why")
        # One process for each task: a user's code may leave anything in it. None is started again
        # by Ray, which does not know what others have done meanwhile.
        self._remote = ray.remote(
            max_calls=1, max_retries=0, num_cpus=1, scheduling_strategy="SPREAD"
        )(_work)
        code = {} if task.user_map is None else task.user_map.code
        pickled = ray.cloudpickle.dumps(task)
        modules = [os.path.abspath(path) for path in sys.path]
        self._told = ray.put(_Told(__version__, modules, os.getcwd(), code, pickled))
        self._started = 0
        self.running: dict[Any, str] = {}
        """The names of those that run, or wait for a CPU, by Ray's reference."""

    def start(self) -> None:
        """Start one."""
        name = str(self._started)
        self._started += 1
        asked = self._remote.options(name="ffrecord-pack")
        self.running[asked.remote(str(self._meeting / name), self._told)] = name

    def look(self) -> None:
        """Wait a moment for tasks that end; raise what they raised, and replace the killed."""
        for each in self._ended():
            name = self.running.pop(each)
            self._check_end(each, name)
            if self._job.pending():
                self.start()

    def _ended(self) -> list[Any]:
        """Those that end within a moment."""
        found: list[Any] = []

        def have_some(limit: float) -> bool:
            found[:], _ = self._ray.wait(list(self.running), timeout=limit)
            return bool(found)

        clock.wait(have_some, LOOK_S)
        return found

    def have_begun(self) -> bool:
        """Whether any of those that run has a CPU, as far as is known."""
        return any((self._meeting / name).exists() for name in self.running.values())

    def end(self) -> None:
        """End them, and let others take at once what they held."""
        for force in (False, True):
            for each in self.running:
                self._ray.cancel(each, force=force)
            deadline = clock.now() + END_S
            while self.running and clock.now() < deadline:
                for each in self._ended():
                    self._release(self.running.pop(each))
        for name in self.running.values():
            self._release(name)

    def _check_end(self, each: Any, name: str) -> None:  # noqa: ANN401 - Ray's
        known = self._ray.exceptions
        try:
            error = self._ray.get(each)
        except (known.WorkerCrashedError, known.OutOfMemoryError) as killed:
            units = self._release(name)
            if self._job.pending():
                self._deaths.add(units, f"{type(killed).__name__} of Ray")
            return
        except known.NodeDiedError:
            self._release(name)  # That is no fault of an input.
            return
        except known.TaskCancelledError as cancelled:
            raise RuntimeError(
                "a worker was cancelled, by ray.cancel or by a KeyboardInterrupt in the function "
                "given as map"
            ) from cancelled
        except known.RayError as failed:
            what = (str(failed).splitlines() or [type(failed).__name__])[-1]
            raise RuntimeError(
                f"Ray could not run a worker on {getattr(failed, 'ip', 'a node')}: {what}; each "
                f"node needs ffrecord {__version__}, as this process has it"
            ) from failed
        if error is not None and self._job.pending():
            raise error

    def _release(self, name: str) -> list[int]:
        """Let others take what a worker held; return those units, or else the last one it had."""
        with suppress(OSError, ValueError):
            holder, unit = (self._meeting / name).read_text().split()
            return self._job.release_all_by(holder) or [int(unit)]
        return [NO_UNIT]


def _work(name: str, told: _Told) -> BaseException | None:
    """Run in a process of a node; return the error that ends it."""
    node = _this_node()
    try:
        _begin(Path(name), node)
        Worker(_task_of(told), leases=lambda lease: _say(Path(name), lease.unit)).run()
    except KeyboardInterrupt:
        raise  # Ray ends the task.
    except BaseException as error:
        found = sendable(error)
        found.add_note(f"it was on the node {node} of Ray")
        return found
    return None


def _begin(name: Path, node: str) -> None:
    """Say who this is.

    Raises:
        OSError: the folder is not the one that the caller has made.
    """
    try:
        _say(name, NO_UNIT)
    except OSError as error:
        shared = name.parents[3]
        raise OSError(
            f"the node {node} of Ray does not see the files of this packing in {shared}, or may "
            f"not write there ({error.strerror}): pack to a folder that all nodes share under the "
            "same path"
        ) from None


def _say(name: Path, unit: int) -> None:
    """Write it at once: a reader finds all of it."""
    new = name.with_suffix(".new")
    new.write_text(f"{this_process()} {unit}\n")
    os.replace(new, name)


def _task_of(told: _Told) -> Task:
    """The task, once all that decides the bytes is as it is where it came from.

    Raises:
        ImportError: the function's module is not found here.
        ValueError: this node has other code.
    """
    if told.version != __version__:
        raise ValueError(
            f"ffrecord is {__version__} here, and {told.version} where packing was begun: install "
            "the same on each node"
        )
    sys.path += [path for path in told.modules if path not in sys.path]
    with suppress(OSError):
        os.chdir(told.folder)
    task: Task = _ray().cloudpickle.loads(told.task)
    if task.user_map is not None:
        here = task.user_map.code
        for module, code in told.code.items():
            if here.get(module) != code:
                raise ValueError(
                    f"the module {module} of the function given as map is another one here than "
                    "where packing was begun: have the same file on each node"
                )
    return task


def _this_node() -> str:
    return f"{socket.gethostname()} ({_ray().util.get_node_ip_address()})"
