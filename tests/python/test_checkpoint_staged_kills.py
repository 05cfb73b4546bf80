"""Goal: a process that is killed while it flushes leaves whole steps, and the next copies the rest.

Method: it is killed at each request to a store, before or after the store has served it, or the
answer is lost; and by strace at each call that changes a folder. Then another process
flushes what is lacking.
"""

import itertools
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import ffrecord.checkpoint as ckpt
import staging
from killed_at_requests import names_of_store, run_and_kill
from object_store import Store
from saved_at_a_store import keys_of, state
from thread_ranks import same

_STEPS = (1, 2)
# Python makes none of them when it starts.
_CALLS = ("mkdir", "mkdirat", "renameat2", "link", "linkat", "fsync", "fdatasync", "ftruncate")


def _check(far: str, commits: list[ckpt.Commit]) -> int:
    """Whole steps or none, and a `latest` that is one of them; returns how many there are."""
    there = ckpt.list(far)
    assert there == [each for each in commits if each in there]
    for commit in there:
        assert ckpt.verify(far, commit.step) == []
    assert ckpt.latest(far) == (there[-1] if there else None)
    return len(there)


def _state(step: int, incremental: bool) -> dict[str, Any]:
    """If that is wanted, with a large part that does not change."""
    made = state(step)
    return {**made, "w": state(0)["w"]} if incremental else made


def _save(near: Path, incremental: bool) -> list[ckpt.Commit]:
    states = {step: _state(step, incremental) for step in _STEPS}
    return [ckpt.save(near, step, states[step], incremental=incremental) for step in _STEPS]


def _finish(target: ckpt.Staged, far: str, commits: list[ckpt.Commit], incremental: bool) -> None:
    target.flush()
    assert _check(far, commits) == len(commits)
    for step in _STEPS:
        assert same(ckpt.load(far, step=step, resume=False), _state(step, incremental))


@pytest.mark.parametrize("incremental", [False, True])
@pytest.mark.parametrize("when", ["before", "after", "lost"])
def test_killed_at_any_request(store: Store, tmp_path: Path, when: str, incremental: bool) -> None:
    store.serve_all()
    names = names_of_store()
    commits = _save(tmp_path, incremental)
    outcomes: Counter[int] = Counter()
    for at in itertools.count(1):
        far = f"s3://bucket/staged{incremental:d}/{when}-{at}"
        target = ckpt.stage(tmp_path, far)
        was_reached = run_and_kill(store, when, at, staging.flush, names, target.address)
        count = _check(far, commits)
        outcomes[count] += was_reached
        assert when != "lost" or count == len(_STEPS)
        _finish(target, far, commits, incremental)
        attempts = {key.split("/")[2] for key in keys_of(far)}
        assert len(attempts) == 2 * len(_STEPS), attempts  # A root and a folder of each.
        if not was_reached:
            break
    # Else it made its requests in another way, and nothing was tried.
    assert when == "lost" or len(outcomes) == len(_STEPS) + 1, outcomes
    assert outcomes.total() >= 8


def _can_trace() -> bool:
    try:
        traced = subprocess.run(["strace", "-o", os.devnull, "true"], check=False)
    except FileNotFoundError:
        return False
    return traced.returncode == 0


@pytest.mark.skipif(not _can_trace(), reason="needs strace and the right to trace")
@pytest.mark.parametrize("incremental", [False, True])
def test_killed_at_any_change_of_a_folder(tmp_path: Path, incremental: bool) -> None:
    near = tmp_path / "near"
    commits = _save(near, incremental)
    outcomes: Counter[int] = Counter()
    for call in _CALLS:
        for at in itertools.count(1):
            far = str(tmp_path / f"{call}-{at}")
            target = ckpt.stage(near, far)
            code = f"import ffrecord.checkpoint as ckpt; ckpt.flush({target.address!r})"
            kill = f"inject={call}:signal=SIGKILL:when={at}"
            done = subprocess.run(
                ["strace", "-f", "-qq", "-o", os.devnull, "-e", kill, sys.executable, "-c", code],
                env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
                timeout=60,
                check=False,
            )
            count = _check(far, commits)
            if done.returncode == 0:
                assert count == len(_STEPS)
                break
            outcomes[count] += 1
            _finish(target, far, commits, incremental)
            assert [path.name for path in Path(far).glob(".*")] == []
    assert set(outcomes) == {0, 1, 2}, outcomes
    assert outcomes.total() >= 10
