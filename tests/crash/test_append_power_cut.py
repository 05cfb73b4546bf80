"""Goal: a power cut at any moment of an append leaves the file at a commit, at all promised ones.

Method: an append of two commits is recorded, to a file that is whole and to one that an earlier
append left unfinished, and the states that cuts may leave are made and read (power_cut.py). The
harness must also catch planted bugs: the same trace without a sync, or with the footer too early.
"""

import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from power_cut import Change, Event, Node, Sync, made_before, materialise, record, states
from saved_state import BUILD
from test_checkpoint_kill import can_trace

pytestmark = pytest.mark.skipif(not can_trace(), reason="needs strace and the right to trace")

SAVER = BUILD / "tests" / "crash" / "record-saver"
NAME = "records.ffr"
BEFORE, PER_COMMIT, COMMITS = 5, 30, 2
Trace = tuple[Node, list[Event]]


def records_of(path: Path) -> tuple[int, str]:
    """How many records the file has, all of them right; or -1 and what is wrong."""
    run = subprocess.run([SAVER, "check", path], capture_output=True, text=True, check=False)
    return (int(run.stdout.split()[1]), "") if run.returncode == 0 else (-1, run.stderr)


@pytest.fixture(scope="module", params=["whole", "unfinished"])
def trace(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """What appending does; to an unfinished file, after cutting off what is left of another."""
    folder = tmp_path_factory.mktemp("trace")
    run = folder / "run"
    run.mkdir()
    file = run / NAME
    subprocess.run([SAVER, "create", file, str(BEFORE)], check=True)
    if request.param == "unfinished":
        whole = file.stat().st_size
        subprocess.run([SAVER, "append", file, "1"], check=True, stdout=subprocess.DEVNULL)
        with file.open("r+b") as stream:  # Footer and tail never came, nor did some of the body.
            stream.truncate(file.stat().st_size - 4096)
            stream.seek(whole)
            stream.write(bytes(1 << 20))
    assert records_of(file) == (BEFORE, "")
    return record([str(SAVER), "append", str(file), str(COMMITS)], run, folder / "strace", (NAME,))


def find_violation(trace: Trace, scratch: Path, seed: int, randoms: int) -> tuple[str, int]:
    """The first state that breaks the promise, and how many were tried."""
    root, events = trace
    count = 0
    chance = random.Random(seed)
    for count, state in enumerate(states(events, chance, randoms, made_before((NAME,))), start=1):
        run = scratch / "run"
        shutil.rmtree(run, ignore_errors=True)
        materialise(root, state, run)
        found, wrong = records_of(run / NAME)
        allowed = {BEFORE + PER_COMMIT * n for n in range(state.promise_count, COMMITS + 1)}
        if found not in allowed:
            return f"{state.description}: {found} records, allowed {allowed}: {wrong}", count
    return "", count


def test_every_power_cut_leaves_a_commit(trace: Trace, tmp_path: Path, seed: int) -> None:
    assert len(trace[1]) >= 14

    wrong, count = find_violation(trace, tmp_path, seed, randoms=12)

    assert wrong == ""
    assert count >= 150


def without_sync(nth: int) -> Callable[[list[Event]], list[Event]]:
    """The bug: of the syncs of the append, this one is not there; they come two by two."""

    def plant(events: list[Event]) -> list[Event]:
        begin = made_before((NAME,))
        syncs = [i for i, e in enumerate(events) if i >= begin and isinstance(e, Sync)]
        return [e for i, e in enumerate(events) if i != syncs[nth]]

    return plant


def footer_early(events: list[Event]) -> list[Event]:
    """The bug: the last footer is written before what it stands for is durable."""
    syncs = [i for i, e in enumerate(events) if isinstance(e, Sync)]
    body, footer = syncs[-2], syncs[-2] + 1
    assert isinstance(events[footer], Change)
    return [*events[:body], events[footer], events[body], *events[footer + 1 :]]


@pytest.mark.parametrize(
    "bug",
    [
        pytest.param(without_sync(-4), id="body not synced"),
        pytest.param(without_sync(-3), id="footer not synced"),
        pytest.param(without_sync(-2), id="body of the last commit not synced"),
        pytest.param(without_sync(-1), id="last footer not synced"),
        pytest.param(footer_early, id="footer early"),
    ],
)
def test_a_planted_bug_is_caught(
    trace: Trace, tmp_path: Path, bug: Callable[[list[Event]], list[Event]]
) -> None:
    root, events = trace
    broken = bug(events)
    assert broken != events

    wrong, _ = find_violation((root, broken), tmp_path, seed=1, randoms=4)

    assert wrong != ""
