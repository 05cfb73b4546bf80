"""Goal: backups and copies of a run go back with it.

Method: a run in a folder goes back; what a later place or a copy at each kind of target has then,
also where steps, disks or records are gone.
"""

import logging
import shutil
from pathlib import Path

import pytest

import ffrecord.checkpoint as ckpt
from going_back import Runs, every_kind, given_up, go_back, save, seen, value

far_kinds = pytest.mark.parametrize("runs", ["folder", "daemon", "store"], indirect=True)


def flush(near: str, far: str, keep: int | None = None) -> str:
    """Brings the run at `far` to where it is; returns the address of both."""
    target = ckpt.stage(near, far, keep=(keep, None))
    target.flush()
    return target.address


@far_kinds
@pytest.mark.wrong_data
def test_a_backup_goes_back_with_the_run(
    runs: Runs, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    near, far = str(tmp_path / "near"), runs("far")
    for step in (1, 2, 3):
        save(near, step)
    flush(near, far)
    assert seen(far) == [1, 2, 3]
    value(near, 1)
    new = save(near, 2, 20)
    with caplog.at_level(logging.WARNING, "ffrecord.checkpoint"):
        flush(near, far)
    assert caplog.messages == []
    assert seen(far) == [1, 2]
    assert given_up(far) == [3]
    assert value(far) == 20
    ckpt.prune(far, keep_last=1)
    assert ckpt.list(far, given_up=True) == [new]


@far_kinds
def test_a_backup_that_is_behind_catches_up(runs: Runs, tmp_path: Path) -> None:
    near, far = str(tmp_path / "near"), runs("far")
    go_back(near)
    value(near, 1)
    save(near, 2, 21)
    save(near, 3, 30)
    flush(near, far)
    assert seen(far) == [1, 2, 3]
    assert value(far, 2) == 21
    save(near, 4, 40)
    flush(near, far)
    assert seen(far) == [1, 2, 3, 4]


@pytest.mark.wrong_data
@pytest.mark.parametrize("runs", ["store"], indirect=True)
def test_what_the_far_place_alone_has_follows_too(runs: Runs, tmp_path: Path) -> None:
    near, far = str(tmp_path / "near"), runs("far")
    for step in (1, 2, 3):
        save(near, step)
    target = flush(near, far, keep=1)
    assert seen(near) == [3]
    assert value(target, 1) == 1
    save(target, 2, 20)
    flush(near, far, keep=1)
    assert seen(near) == [2]
    assert given_up(target) == [3]
    assert value(target) == 20
    shutil.rmtree(near)
    assert seen(target) == [1, 2]
    assert value(target) == 20


@pytest.mark.parametrize("runs", ["daemon", "store"], indirect=True)
def test_a_run_whose_disk_was_lost_goes_on_with_its_line(runs: Runs, tmp_path: Path) -> None:
    near, far = str(tmp_path / "near"), runs("far")
    go_back(near)
    target = flush(near, far)
    shutil.rmtree(near)
    assert value(target) == 20
    for step in (3, 4, 5):
        save(target, step, 10 * step)
        flush(near, far)
    assert seen(near) == [3, 4, 5]
    assert seen(far) == [1, 2, 3, 4, 5]
    assert value(far) == 50


@every_kind
def test_a_copy_takes_the_line_along(runs: Runs) -> None:
    run, backup = runs("run"), runs("backup")
    for step in (1, 2, 3):
        save(run, step)
    for step in (1, 2, 3):
        ckpt.copy(run, backup, step)
    value(run, 1)
    new = save(run, 2, 20)
    assert ckpt.copy(run, backup) == new
    assert seen(backup) == [1, 2]
    assert given_up(backup) == [3]
    assert value(backup) == 20
    with pytest.raises(FileExistsError):
        save(backup, 2, 200)


@pytest.mark.wrong_data
@far_kinds
def test_a_copy_gives_up_no_steps_of_another_run(runs: Runs) -> None:
    run, other = runs("run"), runs("other")
    go_back(run)
    for step in (5, 6):
        save(other, step)
    ckpt.copy(run, other)
    assert seen(other) == [2, 5, 6]
    assert value(other) == 6


@pytest.mark.wrong_data
@pytest.mark.parametrize("runs", ["daemon", "store"], indirect=True)
def test_a_backup_without_a_common_step_goes_back(runs: Runs, tmp_path: Path) -> None:
    near, far = str(tmp_path / "near"), runs("far")
    for step in (1, 2, 3):
        save(near, step)
    flush(near, far)
    value(near, 1)
    ckpt.remove(near, 1)
    save(near, 2, 20)
    ckpt.prune(near, keep_last=1)
    assert [commit.step for commit in ckpt.list(near, given_up=True)] == [2]
    flush(near, far)
    assert value(far) == 20
    assert given_up(far) == [3]


def test_a_copy_never_replaces_a_step_of_the_same_line(tmp_path: Path) -> None:
    run, other = str(tmp_path / "run"), str(tmp_path / "other")
    save(run, 1)
    save(other, 1, 10)
    with pytest.raises(FileExistsError):
        ckpt.copy(run, other)
    assert value(other) == 10
