"""The end of a program waits for threads of Gloo that are still at work.

Threads of Python bear the name of Gloo's; what they do stands for the tensors that are dropped.
"""

import subprocess
import sys
import threading
import time
from pathlib import Path

from ffrecord import _ffrecord

NAME = "pt_gloo_runloop"


def take_name() -> None:
    """Give the thread that calls this the name of Gloo's."""
    Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(NAME)


def test_a_thread_at_work_is_waited_for_until_the_time_is_over() -> None:
    named, ends = threading.Event(), threading.Event()

    def work() -> None:
        take_name()
        named.set()
        while not ends.is_set():
            pass

    thread = threading.Thread(target=work)
    thread.start()
    named.wait()
    begun = time.monotonic()
    was_idle = _ffrecord.wait_for_idle_threads(NAME, 0.2)
    took_s = time.monotonic() - begun
    ends.set()
    thread.join()

    assert not was_idle
    assert took_s >= 0.2


def test_a_thread_that_waits_is_not_waited_for() -> None:
    named, ends = threading.Event(), threading.Event()

    def wait() -> None:
        take_name()
        named.set()
        ends.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    named.wait()
    is_idle = _ffrecord.wait_for_idle_threads(NAME, 30.0)
    ends.set()
    thread.join()

    assert is_idle


PROGRAM = f"""
import threading, time
from pathlib import Path
import ffrecord.distributed

begun = threading.Event()

def drop():
    Path(f"/proc/self/task/{{threading.get_native_id()}}/comm").write_text("{NAME}")
    begun.set()
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        pass
    print("dropped", flush=True)

threading.Thread(target=drop, daemon=True).start()
begun.wait()
"""


def test_a_program_ends_after_them() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=60
    )

    assert (done.returncode, done.stdout) == (0, "dropped\n"), done.stderr
