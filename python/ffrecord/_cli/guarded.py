"""A command that runs a user's code: its success is what it says, not its exit status alone."""

import ctypes
import os
import resource
import signal
from collections.abc import Callable
from contextlib import suppress

_PASSED_ON = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}
# The code of a signal that a terminal sends to all processes of a command.
_FROM_TERMINAL = 0x80
_PR_SET_PDEATHSIG = 1
_EXIT_ENDED = 1
_ENDED = (
    b"ffrecord: the function given as map ended the process, as _exit of C and exec do, and "
    b"nothing is packed\n"
)


def guarded(run: Callable[[], int]) -> int:
    """Run a command in a child of this process; return its exit code.

    `_exit` of C ends a process, and exec replaces it, without a word to Python, perhaps with the
    status of success. So the child tells that it came to its end, and the parent, which does
    nothing else, waits for that. Signals reach the child, which ends with the parent.
    """
    told, tell = os.pipe()
    parent, waited = os.getpid(), _PASSED_ON | {signal.SIGCHLD}
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # Where it is ignored, nobody learns the status.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    child = os.fork()
    if child:
        os.close(tell)
        os.set_blocking(told, False)  # A process that the child leaves may keep the other end.
        status = _waited_for(child, waited)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return _code_of(status, told)
    os.close(told)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(_EXIT_ENDED)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    pipe = os.fstat(tell).st_ino
    code = run()
    with suppress(OSError):  # A user's code may have closed it, and opened another of its number.
        if os.fstat(tell).st_ino == pipe:
            os.write(tell, b"\n")
    return code


def _waited_for(child: int, signals: set[signal.Signals]) -> int:
    """The status with which the child ends; it gets the signals that this process gets."""
    while True:
        found = signal.sigwaitinfo(signals)
        if found.si_signo == signal.SIGCHLD:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return status
        elif found.si_code != _FROM_TERMINAL:
            with suppress(ProcessLookupError):
                os.kill(child, found.si_signo)


def _code_of(status: int, told: int) -> int:
    """The exit code for a status; a signal that ended the child ends this process."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # The child has left its own.
        with suppress(OSError):  # SIGKILL has no handler.
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    said = b""
    with suppress(BlockingIOError):
        said = os.read(told, 1)
    if code == 0 and not said:
        with suppress(OSError):
            os.write(2, _ENDED)
        return _EXIT_ENDED
    return code
