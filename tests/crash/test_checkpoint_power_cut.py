"""Goal: a power cut at any moment of a save leaves its step whole or absent; once promised, whole.

Method: a save is recorded, and the states that cuts may leave are made and read (power_cut.py).
The harness must also catch planted bugs: the same trace without the syncs of one kind, or with the
rename too early.
"""

import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from power_cut import Change, Event, Node, Promise, Sync, materialise, record, states
from saved_state import SAVER, check
from test_checkpoint_kill import can_trace

pytestmark = pytest.mark.skipif(not can_trace(), reason="needs strace and the right to trace")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with step 1."""
    run = tmp_path_factory.mktemp("base") / "run"
    subprocess.run([SAVER, run, "1", "1", "1"], check=True, stdout=subprocess.DEVNULL)
    return run


@pytest.fixture(scope="module", params=[["1"], ["2"], ["2", "async"]], ids=" ".join)
def trace(
    request: pytest.FixtureRequest, base: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Node, list[Event]]:
    """What saving step 2 does, with one rank and with two, and from another thread."""
    folder = tmp_path_factory.mktemp("trace")
    run = folder / "run"
    shutil.copytree(base, run)
    return record([str(SAVER), str(run), "2", "1", *request.param], run, folder / "strace")


def find_violation(
    base: Path, root: Node, events: list[Event], scratch: Path, seed: int, randoms: int
) -> tuple[str, int]:
    """The first state that breaks the promise, and how many were tried."""
    count = 0
    for count, state in enumerate(states(events, random.Random(seed), randoms), start=1):
        run = scratch / "run"
        shutil.rmtree(run, ignore_errors=True)
        materialise(root, state, run)
        (run / "step-000000001").symlink_to(base / "step-000000001")
        if wrong := check(run, [{1, 2}] if state.is_promised else [{1}, {1, 2}]):
            return f"{state.description}: {wrong}", count
    return "", count


def test_every_power_cut_leaves_whole_steps(
    base: Path, trace: tuple[Node, list[Event]], tmp_path: Path, seed: int
) -> None:
    root, events = trace
    assert sum(isinstance(event, Promise) for event in events) == 1
    assert len(events) >= 25

    wrong, count = find_violation(base, root, events, tmp_path, seed, randoms=12)

    assert wrong == ""
    assert count >= 300


def without_syncs(of: Callable[[Node], bool]) -> Callable[[list[Event]], list[Event]]:
    """The bug: these syncs are not there."""
    return lambda events: [e for e in events if not (isinstance(e, Sync) and of(e.node))]


def rename_early(events: list[Event]) -> list[Event]:
    """The bug: the step is made visible before its root manifest is durable."""
    rename = next(e for e in events if isinstance(e, Change) and e.kind == "rename")
    root = next(e.child for e in events if isinstance(e, Change) and e.name == "root.manifest")
    others = [e for e in events if e is not rename]
    at = next(i for i, e in enumerate(others) if isinstance(e, Sync) and e.node is root)
    return [*others[:at], rename, *others[at:]]


@pytest.mark.parametrize(
    "bug",
    [
        pytest.param(without_syncs(lambda node: node.label == "seg-0000"), id="segment not synced"),
        pytest.param(without_syncs(lambda node: node.label == "part-00000"), id="part folder"),
        pytest.param(
            without_syncs(lambda node: node.label == "part-00000.manifest"), id="part manifest"
        ),
        pytest.param(without_syncs(lambda node: node.label == "root.manifest"), id="root manifest"),
        pytest.param(
            without_syncs(lambda node: node.label.startswith(".attempt")), id="attempt folder"
        ),
        pytest.param(without_syncs(lambda node: node.label == "run"), id="run folder"),
        pytest.param(rename_early, id="renamed early"),
    ],
)
def test_a_planted_bug_is_caught(
    base: Path,
    trace: tuple[Node, list[Event]],
    tmp_path: Path,
    bug: Callable[[list[Event]], list[Event]],
) -> None:
    root, events = trace
    broken = bug(events)
    assert broken != events

    wrong, _ = find_violation(base, root, broken, tmp_path, seed=1, randoms=4)

    assert wrong != ""
