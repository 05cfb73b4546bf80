"""A daemon for a test: at a port that the system chose, in a folder of its own."""

import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import pytest

from conftest import BUILD
from eventually import eventually


def program() -> str:
    """The built daemon, or the installed one; skips the test if there is none."""
    built = BUILD / "server" / "ffrecordd"
    installed = not built.exists() or os.environ.get("FFRECORD_TEST_INSTALLED")
    found = shutil.which("ffrecordd") if installed else str(built)
    if found is None:
        pytest.skip("no ffrecordd here: the server's dependencies are not installed")
    return found


def _state(task: Path) -> str:
    """Of a thread, as the kernel calls it; T: stopped, also if it has ended meanwhile."""
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "T"


class Daemon:
    """Runs until the block is left. After `kill`, `start` begins again at the same port.

    `prefix` is what runs a command where the daemon shall live, `host` what it listens on there.
    """

    def __init__(
        self, data: Path, *flags: str, host: str = "127.0.0.1", prefix: Sequence[str] = ()
    ) -> None:
        self.data = data
        self.flags = flags
        self.prefix = prefix
        self.listen = f"{host}:0"
        self.log: list[str] = []

    def start(self) -> Self:
        """Return when it answers."""
        command = [program(), "--data", str(self.data), "--listen", self.listen, *self.flags]
        self.process = subprocess.Popen([*self.prefix, *command], stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            if match := re.search(r"event=ready listen=(\S+)", line):
                self.listen = match[1]
                break
        else:
            raise AssertionError("the daemon did not start: " + "".join(self.log))
        # Else it would stop at a full pipe.
        # A program that ends without stop() does not wait for it.
        self.drain = threading.Thread(
            target=self.log.extend, args=(self.process.stderr,), daemon=True
        )
        self.drain.start()
        return self

    def address(self, name: str = "") -> str:
        """ffrecord://host:port/name."""
        return f"ffrecord://{self.listen}/{name}"

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, wait, return the exit code."""
        self.process.send_signal(number)
        code = self.process.wait()
        self.drain.join()
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code

    def kill(self) -> None:
        """As a power cut would, but for the disk."""
        assert self.stop(signal.SIGKILL) == -signal.SIGKILL, "it had ended before it was killed"

    def freeze(self) -> None:
        """It does nothing any more. A thread may go on for a moment after the signal was sent."""
        self.process.send_signal(signal.SIGSTOP)
        tasks = Path(f"/proc/{self.process.pid}/task")
        eventually(lambda: all(_state(task) == "T" for task in tasks.iterdir()))

    def thaw(self) -> None:
        """It goes on."""
        self.process.send_signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.thaw()
            self.stop()
