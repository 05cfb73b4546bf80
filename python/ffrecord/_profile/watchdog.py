"""Noticing that a rank makes no progress, and saying where all ranks are.

Progress is an event in the profile: a batch, a read, a phase of a step, a collective, a save. The
watchdog only reports; it ends nothing.
"""

import dataclasses
import faulthandler
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from ffrecord._base import clock, recording
from ffrecord._profile.exports import KINDS
from ffrecord._profile.files import Process, read, read_run
from ffrecord._profile.ranks import others_of
from ffrecord._profile.verdict import seconds
from ffrecord.errors import CorruptionError

_LOOKS = 4  # Within a limit.
_RANKS_MAX = 8
_PY_SPY_S = 10.0


class Watchdog:
    """Watches the events of one process."""

    def __init__(
        self, path: str, limit_s: float, tell: Callable[[str], object] | None = None
    ) -> None:
        """Watch the profile at `path`; `tell` gets each report, by default stderr with stacks."""
        self._path, self.limit_s = path, limit_s
        self._tell = tell or self._print
        self._last: tuple[int, int] | None = None
        self._since = clock.now()
        self._has_told = False

    def look(self) -> None:
        """Compare with the last look; report once if nothing has happened for the limit."""
        now, seen = clock.now(), self._seen()
        if seen is None:
            return
        if seen != self._last:
            self._last, self._since, self._has_told = seen, now, False
        elif now - self._since >= self.limit_s and not self._has_told:
            self._has_told = True
            self._tell(self._report(now - self._since))

    def run(self) -> None:
        """Look until the process ends; for a thread of its own."""
        ended = threading.Event()
        while recording.on:
            clock.wait(ended.wait, self.limit_s / _LOOKS)
            with suppress(OSError, ValueError, CorruptionError):
                self.look()

    def _seen(self) -> tuple[int, int] | None:
        with open(self._path, "rb") as file:
            header = file.read(256)
        if len(header) < 200:
            return None
        counts = (int.from_bytes(header[at : at + 8], "little") for at in (128, 192))
        coarse, fine = counts
        return coarse, fine

    def _report(self, silent_s: float) -> str:
        own = _of_the_living(read(self._path))
        try:
            all_ranks = read_run(Path(self._path).parent)
        except (OSError, ValueError, CorruptionError):
            all_ranks = [own]
        return stuck(own, all_ranks, silent_s, clock.now_ns())

    def _print(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)
        with suppress(OSError, ValueError, AttributeError):
            faulthandler.dump_traceback(sys.stderr, all_threads=True)
        for pid in _workers():
            _dump(pid)


def stuck(own: Process, others: Sequence[Process], silent_s: float, now_ns: int) -> str:
    """The message about a process that has made no progress for so long.

    Args:
        own: the process.
        others: all of the run; those of other machines are named without times.
        silent_s: how long nothing has happened.
        now_ns: by the clock of this machine.
    """
    lines = [
        f"ffrecord: rank {own.rank} on {own.host} has made no progress for "
        f"{seconds(silent_s)}: it {_doing(own, own.boot, now_ns)}"
    ]
    peers = others_of(own, others)
    if _is_in(own, recording.COLLECTIVE):
        missing = [each for each in peers if not _is_in(each, recording.COLLECTIVE)]
        if missing:
            names = ", ".join(str(each.rank) for each in missing[:_RANKS_MAX])
            lines.append(f"ffrecord: ranks that have not come to the collective: {names}")
        peers = missing or peers
    lines += [
        f"ffrecord: rank {each.rank} on {each.host} {_doing(each, own.boot, now_ns)}"
        for each in peers[:_RANKS_MAX]
    ]
    return "\n".join(lines)


def _of_the_living(process: Process) -> Process:
    """A profile of this machine without what threads had begun that are no more.

    A worker that was killed leaves what it was in.
    """
    lives = [os.path.exists(f"/proc/{thread}") for thread in process.unfinished["thread"].tolist()]
    return dataclasses.replace(process, unfinished=process.unfinished[np.asarray(lives, bool)])


def _is_in(process: Process, kind: int) -> bool:
    return bool((process.unfinished["kind"] == kind).any())


def _doing(process: Process, boot: str, now_ns: int) -> str:
    """The event that has begun and not ended, or the one that has ended last."""
    if process.has_ended:
        return "has ended"

    def ago(time_ns: int) -> str:
        if process.boot != boot:
            return ""
        return f" {seconds(max(now_ns - time_ns, 0) / 1e9)}"

    parts = []
    for event in process.unfinished[:_RANKS_MAX]:
        named = f" {name}" if (name := process.name(event)) else ""
        about = f" {int(event['detail'])}" if event["detail"] else ""
        kind = KINDS.get(int(event["kind"]), "something")
        since = ago(int(event["begin_ns"]))
        parts.append(f"{kind}{named}{about}" + (f" for{since}" if since else ""))
    if parts:
        return "is in: " + "; ".join(parts)
    if not len(process.events):
        return "has not begun to train"
    last = process.events[np.argmax(process.events["end_ns"])]
    since = ago(int(last["end_ns"]))
    kind = KINDS.get(int(last["kind"]), "something")
    return f"is in code of the program; the last that ended was: {kind}" + (
        f",{since} ago" if since else ""
    )


def _workers() -> list[int]:
    """The child processes of this one."""
    with suppress(OSError, ValueError):
        text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
        return [int(pid) for pid in text.split()]
    return []


def _dump(pid: int) -> None:
    """The stacks of another process, by py-spy, if that is installed and may."""
    py_spy = shutil.which("py-spy")
    if py_spy is None:
        return
    with suppress(OSError, subprocess.SubprocessError):
        subprocess.run(
            [py_spy, "dump", "--pid", str(pid)],
            stdout=sys.stderr,
            timeout=_PY_SPY_S,
            check=False,
        )


def start(path: str) -> None:
    """Watch this process in a thread, if the environment gives a limit."""
    text = os.environ.get(recording.WATCHDOG_VARIABLE, "")
    try:
        limit_s = float(text)
    except ValueError:
        return
    if limit_s > 0:
        watching = Watchdog(path, limit_s).run
        threading.Thread(target=watching, name="ffrecord-watchdog", daemon=True).start()
