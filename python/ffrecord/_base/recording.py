"""The events of this process for a profile: off, unless `ffrecord prof` or `ffrecord.profile` runs.

Events go to rings in a mapped file (`ffrecord/profile.h`). A process that the program starts writes
to the file of its parent, as the workers of a loader do, until it trains itself.
"""

import atexit
import os
import sys
from collections.abc import Callable
from types import TracebackType

from ffrecord import _ffrecord
from ffrecord._base import clock

FOLDER_VARIABLE = "FFRECORD_PROFILE"
"""The folder of the run; set for all processes of the run."""
WATCHDOG_VARIABLE = "FFRECORD_WATCHDOG_S"
"""Seconds without progress after which a rank is reported."""
_FILE_VARIABLE = "FFRECORD_PROFILE_FILE"
"""The file of the process that started this one, which writes to it until it trains."""
SUFFIX = ".ffrprof"

# As in ffrecord/profile.h, which says what each is.
WAIT, BACKWARD, OPTIMIZER, SAVE, COMMIT, LOAD, COLLECTIVE, SOURCE = range(1, 9)
READ, DAEMON_READ, DECODE, COLLATE, FETCH, TRANSFER, STAGE, SUBMIT, UPLOAD = range(32, 41)

on = False
"""Whether events are recorded. Everything else here costs nothing while it is False."""

_U32_MAX = (1 << 32) - 1

_names: dict[str, int] = {}
_opened_by: int | None = None  # The process that has opened the file it writes to.
_trainer: int | None = None  # The process that is known to train.
when_it_trains: Callable[[], object] | None = None
"""Called once in each process that trains, a forked one too."""


def path_in(folder: str) -> str:
    """A name for the file of this process."""
    host = os.uname().nodename or "host"
    return os.path.join(folder, f"{host}-{os.getpid()}-{clock.now_ns():x}{SUFFIX}")


def begin(folder: str) -> str:
    """Record from now on, in a new file in `folder`; return its path.

    Raises:
        OSError: the file cannot be made, or the disk is full.
    """
    global on, _opened_by
    os.makedirs(folder, exist_ok=True)
    path = path_in(folder)
    rank, world_size = _of_environment("RANK"), _of_environment("WORLD_SIZE")
    _ffrecord.profile_open(path, _command(), rank, _of_environment("LOCAL_RANK"), world_size)
    _names.clear()
    _opened_by = os.getpid()
    os.environ[_FILE_VARIABLE] = path
    atexit.unregister(end)
    atexit.register(end)
    on = True
    return path


def end() -> None:
    """Record no more."""
    global on
    on = False
    os.environ.pop(_FILE_VARIABLE, None)
    _ffrecord.profile_close()


def attach() -> None:
    """Record from now on, in the file of the process that has started this one, if that records.

    Raises:
        OSError, CorruptionError: there is no such file, or no profile in it.
    """
    global on
    if path := os.environ.get(_FILE_VARIABLE):
        _ffrecord.profile_attach(path)
        on = True


def trains() -> None:
    """Note that this process trains: it gets a file of its own, which says its rank."""
    global _opened_by
    if _opened_by != os.getpid() and (folder := os.environ.get(FOLDER_VARIABLE)):
        try:
            begin(folder)
        except OSError:
            _opened_by = os.getpid()  # It goes on in the file of its parent.
            return
    note_trainer()
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        _ffrecord.profile_set_rank(distributed.get_rank(), distributed.get_world_size())


def note_trainer() -> None:
    """Have this process watched, if anybody wants to; once."""
    global _trainer
    if _trainer != os.getpid():
        _trainer = os.getpid()
        if when_it_trains is not None:
            when_it_trains()


def current_path() -> str | None:
    """The file that this process writes to."""
    return os.environ.get(_FILE_VARIABLE)


def name_of(name: str) -> int:
    """The number of a name in the file."""
    number = _names.get(name)
    if number is None:
        number = _names[name] = _ffrecord.profile_name(name) if name else 0
    return number


def record(
    kind: int,
    begin_ns: int,
    end_ns: int,
    name: str = "",
    *,
    size_bytes: int = 0,
    detail: int = 0,
    first: int = 0,
    second: int = 0,
) -> None:
    """Record what has ended, if a profile is on."""
    if on:
        _ffrecord.profile_record(
            kind, name_of(name), begin_ns, end_ns, size_bytes, detail, first, second
        )


class Span:
    """A block that is recorded: as unfinished from its beginning on, and with its end."""

    __slots__ = ("_begin_ns", "_detail", "_kind", "_name", "_token")

    def __init__(self, kind: int, name: str = "", detail: object = 0) -> None:
        """A block of this kind; `name` and `detail` as ffrecord/profile.h says.

        A `detail` that is no such number, as a program may pass it on, is taken for 0.
        """
        self._kind, self._name, self._detail = kind, name, 0
        if isinstance(detail, int) and 0 <= detail < 1 << 64:
            self._detail = detail
        self._token = 0

    def __enter__(self) -> None:
        self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Begin it."""
        self._begin_ns = clock.now_ns()
        if on:
            self._token = _ffrecord.profile_begin(
                self._kind, name_of(self._name), self._begin_ns, self._detail
            )

    def stop(self, size_bytes: int = 0, first: int = 0) -> None:
        """End it."""
        if on:
            _ffrecord.profile_end(
                self._token,
                self._kind,
                name_of(self._name),
                self._begin_ns,
                clock.now_ns(),
                size_bytes,
                self._detail,
                min(max(first, 0), _U32_MAX),
            )

    def drop(self) -> None:
        """Give it up: it is recorded no more."""
        _ffrecord.profile_drop(self._token)


def _of_environment(name: str) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else -1


def _command() -> str:
    return " ".join(getattr(sys, "orig_argv", sys.argv))
