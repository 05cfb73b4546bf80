"""The clock of the package: what time it is, and waits that end at a time.

Modules call `clock.now()`, never a name that they imported from here, so that a test can replace
the functions by those of a clock of its own. `tools/dev/check_time.py` refuses other clocks.

Waits inside of libraries, such as the time limit of a socket or of torch, go by the machine's
clock.
"""

import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from concurrent.futures import Future

now: Callable[[], float] = time.monotonic
"""Seconds since a beginning that all processes of the machine share."""
now_ns: Callable[[], int] = time.monotonic_ns
"""The same in nanoseconds."""
calendar_now: Callable[[], float] = time.time
"""Seconds since 1970, for what other machines or people read."""
sleep: Callable[[float], None] = time.sleep
"""Let so many seconds pass."""


def _waited(comes: Callable[[float], bool], timeout_s: float) -> bool:
    return comes(timeout_s)


wait: Callable[[Callable[[float], bool], float], bool] = _waited
"""Call `comes(timeout_s)`, which waits for at most so many seconds and returns whether what it
waits for has come: `clock.wait(event.wait, 5.0)`.

A test's clock calls `comes(0.0)`, several times: what it waits for stays, once it has come.
"""


def join(thread: threading.Thread, timeout_s: float) -> bool:
    """Whether a thread ends within `timeout_s`."""

    def ends(limit_s: float) -> bool:
        thread.join(limit_s)
        return not thread.is_alive()

    return wait(ends, timeout_s)


def is_done(future: "Future[Any]", timeout_s: float | None) -> bool:
    """Whether a future has a result or an error, or is cancelled, within `timeout_s`, if given."""

    def ends(limit_s: float | None) -> bool:
        from concurrent.futures import CancelledError  # Slow to import; here it has been.

        with suppress(TimeoutError, CancelledError):
            future.exception(limit_s)
        return future.done()

    if timeout_s is None:
        return ends(None)
    return future.done() or wait(ends, timeout_s)


def is_readable(descriptors: list[int], timeout_s: float) -> bool:
    """Whether one of some descriptors is readable within `timeout_s`.

    Needs no descriptor of its own: there may be none to be had.
    """
    events = select.poll()
    for descriptor in descriptors:
        events.register(descriptor, select.POLLIN)
    return wait(lambda limit_s: bool(events.poll(limit_s * 1000)), timeout_s)
