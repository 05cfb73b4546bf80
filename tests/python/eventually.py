"""How tests wait for what another thread or process does. No test says how soon it does so."""

import subprocess
import time
from collections.abc import Callable
from typing import Any, TypeVar

from ffrecord._base import clock
from virtual_clock import do_all_threads_wait

_Found = TypeVar("_Found")
# What has not come by then never will.
_PATIENCE_S = 300.0


def eventually(
    look: Callable[[], _Found],
    process: "subprocess.Popen[Any] | None" = None,
    why: Callable[[], object] = lambda: "it never was so",
) -> _Found:
    """Return what `look` returns, once that is true.

    By the package's clock: with a `VirtualClock`, it looks once all other threads wait.

    Args:
        look: called again and again.
        process: what it waits for comes from that process; fails if it ends before.
        why: called for the message of a failure.
    """
    found: list[_Found] = []

    def holds(limit_s: float) -> bool:
        end = time.monotonic() + limit_s
        while True:
            is_running = process is None or process.poll() is None
            seen = look()
            if seen:
                found.append(seen)
                return True
            assert is_running, why()
            if time.monotonic() >= end:
                return False
            time.sleep(0.005)

    assert clock.wait(holds, _PATIENCE_S), why()
    return found[0]


def until_idle() -> None:
    """Return once all other threads of this process wait for each other, or for time to pass.

    What they had to do is done. Sees neither other processes nor a disk that has yet to answer.
    """
    eventually(do_all_threads_wait)
