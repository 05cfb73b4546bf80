"""Goal: mirrors and copies of a run go back with it.

Method: a run in a folder goes back; what a mirror or a copy at each kind of target has then, also
where steps, disks or records are gone.
"""

import logging
import shutil
from pathlib import Path

import pytest

import ffrecord.checkpoint as ckpt
from going_back import Runs, every_kind, given_up, go_back, save, seen, value

far_kinds = pytest.mark.parametrize("runs", ["folder", "daemon", "store"], indirect=True)


@far_kinds
@pytest.mark.wrong_data
@pytest.mark.parametrize("knows", [True, False])
def test_a_mirror_goes_back_with_the_run(
    runs: Runs, tmp_path: Path, knows: bool, caplog: pytest.LogCaptureFixture
) -> None:
    local, remote = str(tmp_path / "local"), runs("remote")
    for step in (1, 2, 3):
        save(local, step)
    mirror = ckpt.Mirror(local, remote)
    assert [commit.step for commit in mirror.sync()] == [1, 2, 3]
    if not knows:
        (tmp_path / "local/MIRROR").unlink()
    value(local, 1)
    new = save(local, 2, 20)
    assert [commit.step for commit in ckpt.Mirror(local, remote).lacking()] == [2]
    with caplog.at_level(logging.WARNING, "ffrecord.checkpoint"):
        assert ckpt.Mirror(local, remote).sync() == [new]
    assert caplog.messages == []
    assert seen(remote) == [1, 2]
    assert given_up(remote) == [3]
    assert value(remote) == 20
    assert ckpt.Mirror(local, remote).sync() == []
    ckpt.prune(remote, keep_last=1)
    assert ckpt.list(remote, given_up=True) == [new]


@far_kinds
def test_a_mirror_that_is_behind_catches_up(runs: Runs, tmp_path: Path) -> None:
    local, remote = str(tmp_path / "local"), runs("remote")
    go_back(local)
    value(local, 1)
    save(local, 2, 21)
    save(local, 3, 30)
    assert [commit.step for commit in ckpt.Mirror(local, remote).sync()] == [1, 2, 3]
    assert seen(remote) == [1, 2, 3]
    assert value(remote, 2) == 21
    save(local, 4, 40)
    assert [commit.step for commit in ckpt.Mirror(local, remote).sync()] == [4]
    assert seen(remote) == [1, 2, 3, 4]


@pytest.mark.wrong_data
@pytest.mark.parametrize("runs", ["store"], indirect=True)
def test_what_the_mirror_alone_has_follows_too(runs: Runs, tmp_path: Path) -> None:
    local, remote = str(tmp_path / "local"), runs("remote")
    for step in (1, 2, 3):
        save(local, step)
    ckpt.Mirror(local, remote, keep_local=1).sync()
    assert seen(local) == [3]
    assert value(local, 1) == 1
    save(local, 2, 20)
    mirror = ckpt.Mirror(local, remote, keep_local=1)
    assert [commit.step for commit in mirror.sync()] == [2]
    assert seen(local) == [2]
    assert ckpt.list(local, given_up=True) == ckpt.list(local)  # Number 3 is at the mirror.
    assert value(local) == 20
    shutil.rmtree(local)
    Path(local).mkdir()
    (Path(local) / "MIRROR").write_text(f"{remote}\n")
    assert seen(local) == [1, 2]
    assert value(local) == 20


@pytest.mark.parametrize("runs", ["daemon", "store"], indirect=True)
def test_a_run_whose_disk_was_lost_goes_on_with_its_line(runs: Runs, tmp_path: Path) -> None:
    local, remote = str(tmp_path / "local"), runs("remote")
    go_back(local)
    ckpt.Mirror(local, remote).sync()
    shutil.rmtree(local)
    assert value(remote) == 20
    save(local, 3, 30)
    ckpt.Mirror(local, remote).sync()
    assert seen(remote) == [1, 2, 3]
    assert value(remote) == 30


@pytest.mark.wrong_data
@pytest.mark.parametrize("runs", ["store"], indirect=True)
def test_a_folder_that_was_lost_has_the_line_of_its_mirror_again(
    runs: Runs, tmp_path: Path
) -> None:
    local, remote = str(tmp_path / "local"), runs("remote")
    go_back(local)
    ckpt.Mirror(local, remote).sync()
    shutil.rmtree(local)
    mirror = ckpt.Mirror(local, remote)
    mirror.sync()
    assert value(local) == 20  # At the mirror.
    for step in (3, 4, 5):
        save(local, step, 10 * step)
        mirror.sync()
    assert seen(local) == [3, 4, 5]
    assert seen(remote) == [1, 2, 3, 4, 5]
    assert value(remote) == 50


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
def test_a_mirror_without_a_common_step_goes_back(runs: Runs, tmp_path: Path) -> None:
    local, remote = str(tmp_path / "local"), runs("remote")
    for step in (1, 2, 3):
        save(local, step)
    ckpt.Mirror(local, remote).sync()
    value(local, 1)
    ckpt.remove(local, 1)
    save(local, 2, 20)
    ckpt.prune(local, keep_last=1)
    assert [commit.step for commit in ckpt.list(local, given_up=True)] == [2]
    ckpt.Mirror(local, remote).sync()
    assert value(remote) == 20
    assert given_up(remote) == [3]


def test_a_copy_never_replaces_a_step_of_the_same_line(tmp_path: Path) -> None:
    run, other = str(tmp_path / "run"), str(tmp_path / "other")
    save(run, 1)
    save(other, 1, 10)
    with pytest.raises(FileExistsError):
        ckpt.copy(run, other)
    assert value(other) == 10
