"""Ctrl-C at a time that a test chooses."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """Ctrl-C comes so long after the beginning of the block, if that is still running."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # A shell's & ignores it.
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        signal.signal(signal.SIGINT, before)
