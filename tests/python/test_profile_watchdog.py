"""Goal: a rank without progress is reported once, with what all ranks are in, and nothing else is.

Method: a clock of the test's own; profiles in states that a run can be in; one real process that
waits for what never comes.
"""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from eventually import eventually
from ffrecord._base import recording
from ffrecord._profile import watchdog
from ffrecord._profile.files import EVENT, Process
from profiled_runs import profiles
from virtual_clock import virtual_time

_S = 1_000_000_000


def unfinished(process: Process, kind: int, begin_ns: int, detail: int = 0) -> Process:
    """The same, in the middle of something."""
    row = np.zeros(1, EVENT)
    row["kind"], row["begin_ns"], row["detail"], row["name"] = kind, begin_ns, detail, 3
    return dataclasses.replace(process, unfinished=row, has_ended=False)


def test_a_report_comes_once_for_each_silence(tmp_path: Path) -> None:
    told: list[str] = []
    with virtual_time() as time:
        path = recording.begin(str(tmp_path))
        try:
            watching = watchdog.Watchdog(path, 60.0, told.append)
            for seconds, reports in ((0, 0), (59, 0), (2, 1), (100, 1)):
                time.sleep(seconds)
                watching.look()
                assert len(told) == reports
            recording.record(recording.READ, 1, 2)
            for seconds, reports in ((1, 1), (59, 1), (61, 2)):
                time.sleep(seconds)
                watching.look()
                assert len(told) == reports
        finally:
            recording.end()
    assert "has made no progress for" in told[0]
    assert "has not begun to train" in told[0]


def test_what_a_killed_worker_was_in_is_not_what_its_rank_is_in(tmp_path: Path) -> None:
    told: list[str] = []
    path = recording.begin(str(tmp_path))
    dying = (
        "import os, signal\n"
        "from ffrecord._base import recording\n"
        "recording.attach()\n"
        "recording.Span(recording.DECODE).start()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    try:
        for _ in range(9):  # More than a report has room for.
            assert subprocess.run([sys.executable, "-c", dying], check=False).returncode == -9
        with virtual_time() as time, recording.Span(recording.READ):
            watching = watchdog.Watchdog(path, 60.0, told.append)
            watching.look()
            time.sleep(61)
            watching.look()
    finally:
        recording.end()
    assert "is in: read" in told[0]
    assert "decode" not in told[0]


def test_ranks_that_have_not_come_to_a_collective_are_named() -> None:
    made = [dataclasses.replace(each, has_ended=False) for each in profiles(ranks=4)]
    now = int(max(each.events["end_ns"].max() for each in made)) + 300 * _S
    waiting = [unfinished(made[n], recording.COLLECTIVE, now - 300 * _S, 41) for n in (0, 1, 3)]
    text = watchdog.stuck(waiting[0], [*waiting, made[2]], 300.0, now)
    assert "rank 0 on host0 has made no progress for 300 s: it is in: collective" in text
    assert "ranks that have not come to the collective: 2" in text
    assert "rank 2 on host2 is in code of the program; the last that ended was: optimizer" in text
    assert "rank 1" not in text


def test_attempts_that_are_over_are_not_named() -> None:
    made = [dataclasses.replace(each, has_ended=False) for each in profiles(ranks=4)]
    now = int(max(each.events["end_ns"].max() for each in made)) + 300 * _S
    later = [
        dataclasses.replace(
            unfinished(each, recording.COLLECTIVE, now - 300 * _S, 41),
            path=f"later-{each.path}",
            calendar_ns=each.calendar_ns + _S,
            world_size=2,
        )
        for each in made[:2]
    ]
    text = watchdog.stuck(later[0], [*later, *made], 300.0, now)
    assert "have not come" not in text
    assert "rank 1 on host1 is in: collective" in text
    assert text.count("rank 0") == 1
    assert "rank 2" not in text


def test_a_rank_tells_the_folder_or_daemon_that_it_waits_for() -> None:
    (made,) = profiles(ranks=1)
    text = watchdog.stuck(unfinished(made, recording.LOAD, 0), [], 30.0, 40 * _S)
    assert "load a checkpoint /data/train for 40 s" in text


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_process_that_only_starts_ranks_is_not_watched_and_they_are(
    method: str, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import multiprocessing, threading\n"
        "import ffrecord\n"
        "from ffrecord._base import recording\n"
        "def is_watched():\n"
        "    return any('watchdog' in each.name for each in threading.enumerate())\n"
        "def rank():\n"
        "    assert not is_watched()\n"
        "    recording.trains()\n"
        "    recording.trains()\n"
        "    assert is_watched()\n"
        "if __name__ == '__main__':\n"
        f"    context = multiprocessing.get_context({method!r})\n"
        "    child = context.Process(target=rank)\n"
        "    child.start()\n"
        "    child.join()\n"
        "    assert child.exitcode == 0\n"
        "    assert not is_watched()\n"
    )
    subprocess.run(
        [sys.executable, program],
        env={
            **{name: value for name, value in os.environ.items() if name != "RANK"},
            recording.FOLDER_VARIABLE: str(tmp_path / "run"),
            "FFRECORD_WATCHDOG_S": "600",
        },
        check=True,
    )


def test_a_process_that_hangs_is_reported_with_its_stacks(tmp_path: Path) -> None:
    text = (
        "import threading\n"
        "import ffrecord\n"
        "from ffrecord._base import recording\n"
        "def hangs_here():\n"
        "    with recording.Span(recording.LOAD, 'runs/x', 7):\n"
        "        threading.Event().wait()\n"
        "hangs_here()\n"
    )
    errors = tmp_path / "errors"
    with errors.open("w") as out:
        hanging = subprocess.Popen(
            [sys.executable, "-c", text],
            stderr=out,
            env={
                **os.environ,
                recording.FOLDER_VARIABLE: str(tmp_path / "run"),
                "FFRECORD_WATCHDOG_S": "1",
                "RANK": "5",
            },
        )
    try:
        eventually(lambda: "hangs_here" in errors.read_text(), hanging)
    finally:
        hanging.kill()
        hanging.wait()
    told = errors.read_text()
    assert "ffrecord: rank 5 on " in told
    assert "load a checkpoint runs/x 7 for " in told
