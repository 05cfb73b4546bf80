"""The holder of a lease: a process, whose death others on the same machine can see."""

import os
from functools import cache
from pathlib import Path

_UNKNOWN = "-"
# Behind the name of the program in /proc/PID/stat, which may have spaces and brackets in it.
_STATE, _START = 0, 19
_ENDED = ("Z", "X")


def this_process() -> str:
    """Return the name of this process, which no other one of any machine has; without spaces."""
    pid = os.getpid()
    return f"{_machine()}.{pid}.{_started(pid) or _UNKNOWN}"


def has_ended(holder: str) -> bool:
    """Whether a process that `this_process` named was of this machine, and is no more."""
    machine, _, rest = holder.partition(".")
    pid, _, started = rest.partition(".")
    if machine != _machine() or _UNKNOWN in (machine, started) or not pid.isdecimal():
        return False
    return _started(int(pid)) != started


@cache
def _machine() -> str:
    """The boot of this kernel, and the namespace whose processes are seen here."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
        return f"{boot}-{os.stat('/proc/self/ns/pid').st_ino:x}"
    except OSError:
        return _UNKNOWN


def _started(pid: int) -> str:
    """When a process began, in ticks since the boot; empty if there is none."""
    try:
        found = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if found[_STATE] in _ENDED else found[_START]
