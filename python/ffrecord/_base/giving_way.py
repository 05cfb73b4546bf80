"""Threads that run when training leaves processors idle."""

import contextlib
import os
import threading

# Beside a step, a thread that is nicer by 15 gets a thirtieth of a processor (sched(7)).
_NICER = 15


def give_way() -> None:
    """Let this thread, and those that it starts, run only when training leaves processors idle."""
    thread = threading.get_native_id()
    with contextlib.suppress(OSError):  # Where that is forbidden a save costs more, and is one.
        nice = os.getpriority(os.PRIO_PROCESS, thread) + _NICER
        os.setpriority(os.PRIO_PROCESS, thread, min(nice, 19))
