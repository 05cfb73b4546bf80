"""Goal: what is replaced, given up or removed is so at every place, and nobody else's save ever is.

Method: a run that goes back or moves to another node, and saves of two runs at one place.
"""

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import ffrecord.checkpoint as ckpt
from eventually import eventually
from object_store import Store
from saved_at_a_store import state
from staged_runs import GONE_S, far_run, gone, steps_at
from thread_ranks import same


@pytest.fixture
def run(request: pytest.FixtureRequest, store: Store) -> Iterator[str]:
    """A run at the store."""
    yield from far_run(request, store)


@pytest.mark.parametrize("near_is_lost", [False, True])
def test_a_run_that_goes_back_goes_back_everywhere(
    run: str, tmp_path: Path, near_is_lost: bool
) -> None:
    target = ckpt.stage(tmp_path / "near", run)
    for step in (1, 2, 3):
        ckpt.save(target, step, state(step))
    target.flush()
    if near_is_lost:
        shutil.rmtree(tmp_path / "near")
    ckpt.load(target, step=1, resume=True)
    commit = ckpt.save(target, 2, state(12))
    target.flush()
    for place in (tmp_path / "near", run, target):
        assert ckpt.latest(place) == commit
        assert same(ckpt.load(place, resume=False), state(12))
    assert steps_at(target) == [1, 2]


def test_an_old_node_s_save_of_a_step_gives_way_to_the_one_on_the_line(
    run: str, tmp_path: Path
) -> None:
    """The run went back while it was on another node, and came back to this one."""
    here, there = tmp_path / "here", tmp_path / "there"
    ckpt.stage(here, run)
    for step in (1, 2):
        ckpt.save(here, step, state(step))
    ckpt.stage(here, run).flush()
    ckpt.load(ckpt.stage(there, run), step=1, resume=True)
    commit = ckpt.save(ckpt.stage(there, run), 2, state(12))
    ckpt.stage(there, run).flush()
    target = ckpt.stage(here, run)
    assert ckpt.latest(target) == commit
    assert same(ckpt.load(target, resume=False), state(12))
    target.flush()
    assert ckpt.latest(run) == commit


def test_a_step_that_a_farther_place_has_is_committed(run: str, tmp_path: Path) -> None:
    target = ckpt.stage(tmp_path, run)
    ckpt.save(target, 1, state(1))
    target.flush()
    shutil.rmtree(tmp_path / "step-000000001")
    with pytest.raises(FileExistsError):
        ckpt.save(target, 1, state(11))
    commit = ckpt.save(target, 1, state(11), overwrite=True)
    assert same(ckpt.load(run, resume=False), state(1))
    target.flush()
    assert ckpt.list(run) == [commit]
    assert same(ckpt.load(run, resume=False), state(11))


def test_a_removed_step_is_gone_at_every_place(run: str, tmp_path: Path) -> None:
    target = ckpt.stage(tmp_path, run)
    for step in (1, 2, 3):
        ckpt.save(target, step, state(step))
    target.flush()
    ckpt.remove(target, 2)
    target.flush()
    assert steps_at(run) == steps_at(tmp_path) == [1, 3]
    ckpt.prune(target, keep_last=1)
    assert steps_at(run) == steps_at(tmp_path) == [3]
    with pytest.raises(FileNotFoundError):
        ckpt.remove(target, 2)


def test_another_run_s_save_is_not_replaced(tmp_path: Path) -> None:
    ckpt.save(tmp_path / "far", 1, state(11))
    for step in (1, 2):
        ckpt.save(tmp_path / "near", step, state(step))
    with pytest.raises(ckpt.FlushError) as failed:
        ckpt.stage(tmp_path / "near", tmp_path / "far").flush()
    assert isinstance(failed.value.__cause__, FileExistsError)
    assert same(ckpt.load(tmp_path / "far", step=1), state(11))
    assert steps_at(tmp_path / "far") == [1, 2]


def test_a_late_save_of_an_old_node_does_not_replace_a_newer_one(
    run: str, store: Store, tmp_path: Path
) -> None:
    """The run went on at another node while the first one could not reach the far place."""
    old = ckpt.stage(tmp_path / "old", run, on_failure="warn", timeout_s=GONE_S)
    ckpt.save(old, 1, state(1))
    old.flush()
    store.set_door(gone)
    ckpt.save(old, 2, state(2))
    eventually(lambda: old.stats()[0].failures > 0)
    store.serve_all()
    new = ckpt.stage(tmp_path / "new", run)
    ckpt.load(new, resume=True)
    commit = ckpt.save(new, 2, state(12))
    new.flush()
    with pytest.raises(ckpt.FlushError, match="another save of step 2"):
        old.flush()
    assert ckpt.latest(run) == commit
    assert same(ckpt.load(run, resume=False), state(12))


def test_a_save_that_replaces_one_replaces_its_copy(run: str, store: Store, tmp_path: Path) -> None:
    target = ckpt.stage(tmp_path, run)
    ckpt.save(target, 1, state(1))
    target.flush()
    commit = ckpt.save(target, 1, state(2), overwrite=True)
    target.flush()
    assert ckpt.latest(run) == commit


def test_going_back_replaces_nothing_of_another_run(tmp_path: Path) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    others = [ckpt.save(far, step, state(10 + step)) for step in (1, 2, 3, 4)]
    for step in (1, 2, 3):
        ckpt.save(near, step, state(step))
    ckpt.load(near, step=2, resume=True)
    ckpt.save(near, 3, state(23))
    with pytest.raises(ckpt.FlushError):
        ckpt.stage(near, far, on_failure="warn").flush()
    assert ckpt.list(far, given_up=True) == others


def test_a_run_that_has_gone_back_twice_is_flushed_at_once(tmp_path: Path) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    for step in (1, 2, 3, 4):
        ckpt.save(near, step, state(step))
    target = ckpt.stage(near, far, on_failure="warn")
    target.flush()
    for origin in (1, 2):
        ckpt.load(near, step=origin, resume=True)
        for step in (origin + 1, origin + 2):
            ckpt.save(near, step, state(10 * origin + step))
    target.flush()
    assert ckpt.list(far) == ckpt.list(near)
    assert same(ckpt.load(far, resume=False), state(24))


@pytest.fixture(autouse=True)
def _told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "ffrecord.checkpoint")
