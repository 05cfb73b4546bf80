"""Goal: a process that is killed while its run goes back leaves the old line or the new one.

Method: it is killed at each request to a store, before or after the store has served it, or the
answer is lost. In folders: tests/crash/test_checkpoint_kill.py.
"""

import itertools
from collections import Counter

import pytest

import copying
import ffrecord.checkpoint as ckpt
from going_back import Runs, save, value
from killed_at_requests import names_of_store, run_and_kill
from object_store import Store


def _line_of(run: str, old: dict[int, str]) -> str:
    """Which line a run is on: the one of before, up to step 1, or with another save of step 2."""
    latest = ckpt.latest(run)
    assert latest is not None
    assert ckpt.verify(run, latest.step) == []
    listed = {commit.step: commit.attempt for commit in ckpt.list(run)}
    if latest.step == 3:
        assert listed == old
        assert ckpt.verify(run, 2) == []
        return "old"
    assert listed == {1: old[1]} | ({2: latest.attempt} if latest.step == 2 else {})
    if latest.step == 1:
        assert ckpt.verify(run, 2) == []  # The old one has its number.
        return "between"
    assert latest.attempt != old[2]
    return "new"


@pytest.mark.parametrize("runs", ["store"], indirect=True)
@pytest.mark.parametrize("when", ["before", "after", "lost"])
def test_going_back_and_killed_at_any_request_leaves_the_old_line_or_the_new(
    runs: Runs, store: Store, when: str
) -> None:
    names = names_of_store()
    outcomes: Counter[str] = Counter()
    for at in itertools.count(1):
        run = runs(f"run-{at}")
        old = {step: save(run, step).attempt for step in (1, 2, 3)}
        was_reached = run_and_kill(store, when, at, copying.go_back, names, run)
        outcomes[_line_of(run, old)] += was_reached
        assert when != "lost" or _line_of(run, old) == "new"
        assert value(run, 1) == 1
        save(run, 2, 21)
        assert _line_of(run, old) == "new"
        assert value(run) == 21
        if not was_reached:
            break
    expected = {"new"} if when == "lost" else {"old", "between", "new"}
    assert {name for name, count in outcomes.items() if count} == expected, outcomes
