"""Calling a user's code, which may fork, and end the process, in a process that packs."""

import atexit
import ctypes
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn, TypeVar

T = TypeVar("T")

_exit = os._exit
_FORKED = (
    b"a process that the function given as map forked came back from it, and ends here: else it "
    b"would pack the same samples\n"
)
_ENDED = "ffrecord: the function given as map ended the process with {}, and nothing is packed\n"


class ClosedFilesError(Exception):
    """A user's code closed descriptors that are not its own: nothing here can go on."""


class _Calls(threading.local):
    process = 0
    """The process in which this thread is in a user's code; 0 if it is not."""


class _Process:
    """The process in which some thread is in a user's code, which may have begun others."""

    number = 0


class _Witness:
    """A descriptor that nobody closes but who closes all there are."""

    def __init__(self) -> None:
        self._descriptor = -1
        self._file = (0, 0)

    def open(self) -> None:
        """Open it, if it is not open yet."""
        if self._descriptor < 0:
            self._descriptor = os.memfd_create("ffrecord-pack", os.MFD_CLOEXEC)
            found = os.fstat(self._descriptor)
            self._file = (found.st_dev, found.st_ino)

    def check(self, what: str) -> None:
        """Raise a ClosedFilesError if it was closed by `what`."""
        with suppress(OSError):
            found = os.fstat(self._descriptor)
            if (found.st_dev, found.st_ino) == self._file:
                return
        self._descriptor = -1
        raise ClosedFilesError(
            f"{what} closed descriptors of the process that it did not open, such as those of the "
            "file that is written (os.closerange): close only your own"
        )


class _Exit:
    """Makes `exit` and `quick_exit` of C in a user's code end the process as an error.

    Python does not learn of it, and a library may call it with the status of success.
    """

    def __init__(self) -> None:
        self._is_watched = False

    def watch(self) -> None:
        """Be called at the end of this process, unless Python ends before."""
        if self._is_watched:
            return
        self._is_watched = True
        libc = ctypes.CDLL(None)
        if not hasattr(libc, "gnu_get_libc_version"):  # Others cannot call it off.
            return
        kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        self._call = kind(lambda _: self._end("exit"))
        self._quick_call = kind(lambda _: self._end("quick_exit"))
        self._own = ctypes.create_string_buffer(1)  # Its address names this registration.
        libc["__cxa_atexit"](self._call, None, self._own)
        libc["__cxa_at_quick_exit"](self._quick_call, self._own)
        # Called at the end of Python, which calls it once more and then no more: from then on no
        # code of Python may run.
        atexit.register(libc["__cxa_finalize"], self._own)

    def _end(self, how: str) -> None:
        if os.getpid() == _process.number:
            _fail(f"{how}() of C")


_calls = _Calls()
_process = _Process()
_witness = _Witness()
_at_exit = _Exit()


def called(call: Callable[[], T], what: str = "it") -> T:
    """Return what a user's code returns; `what` is its name in errors.

    A child that the code forks, and that comes back from it, ends here: it has all that this
    process has begun, and would write and publish it, too. If the code calls `exit` or
    `quick_exit` of C, or `os._exit(0)` in a thread, the process ends with status 1.

    Raises:
        RuntimeError: the code was about to end this process, by `sys.exit` or `os._exit`: with the
            status of success, nobody would know that nothing was packed.
        ClosedFilesError: it closed descriptors that are not its own.
        BaseException: whatever else it raises.
    """
    _witness.open()
    _at_exit.watch()
    before = os._exit, _calls.process, _process.number
    process = _calls.process = _process.number = os.getpid()
    os._exit = _raised_exit
    try:
        made = call()
        _witness.check(what)
        return made
    except SystemExit as error:
        ended = RuntimeError(f"{what} ended the process, with status {error.code}")
        raise ended.with_traceback(error.__traceback__) from error
    except GeneratorExit as error:  # No Exception, either.
        raise RuntimeError(f"{what} raised GeneratorExit") from error
    finally:
        os._exit, _calls.process, _process.number = before
        if os.getpid() != process:
            try:
                os.write(2, _FORKED)
            finally:
                _exit(1)


def _raised_exit(status: int) -> NoReturn:
    """In a user's code raise; in another thread end the process, but not as a success."""
    if os.getpid() == _calls.process:
        raise SystemExit(status)
    if os.getpid() == _process.number and status == 0:
        _fail("os._exit in a thread")
    _exit(status)


def _fail(how: str) -> NoReturn:
    """End the process, which a user's code is ending in some way."""
    try:
        os.write(2, _ENDED.format(how).encode())
    finally:
        _exit(1)
