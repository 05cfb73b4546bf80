"""Goal: where training goes back to an earlier step, everything follows the run, not the number.

Method: at each kind of target a run goes back, and saves numbers that are there and others; what is
the latest, what a list shows, what retention counts, what a mirror and a copy have. Other processes
are fresh tables of where this process is: what it has loaded or saved.
"""

import itertools
import logging
import multiprocessing
import os
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp

import copying
import ffrecord.checkpoint as ckpt
from daemon import Daemon
from ffrecord.checkpoint import _saving
from ffrecord.errors import ConflictError, CorruptionError
from ffrecord.torch import CheckpointReader, CheckpointWriter, TrainingState
from object_store import Store, serve

KINDS = ["folder", "replicated", "daemon", "store"]
Runs = Callable[[str], str]


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    yield from serve()


@pytest.fixture
def runs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Runs]:
    """Addresses of runs at a kind of target, by name."""
    kind = request.param
    if kind == "store":
        request.getfixturevalue("store")
        place = f"s3://bucket/{tmp_path.name}"
        yield lambda name: f"{place}/{name}"
    elif kind == "daemon":
        with Daemon(tmp_path / "served") as daemon:
            yield lambda name: daemon.address(f"runs/{name}")
    elif kind == "replicated":
        yield lambda name: ckpt.replicated_target([tmp_path / f"{name}-{i}" for i in "abc"])
    else:
        yield lambda name: str(tmp_path / name)


@pytest.fixture
def run(runs: Runs) -> str:
    return runs("run")


every_kind = pytest.mark.parametrize("runs", KINDS, indirect=True)
far_kinds = pytest.mark.parametrize("runs", ["folder", "daemon", "store"], indirect=True)


def state(value: int) -> dict[str, Any]:
    """A state that says which one it is."""
    return {"w": np.full(5000, value, np.int32), "frozen": np.arange(100_000), "step": value}


def save(run: str, step: int, value: int | None = None, **options: Any) -> ckpt.Commit:  # noqa: ANN401
    return ckpt.save(run, step, state(step if value is None else value), **options)


def value(run: str, step: Any = "latest") -> int:  # noqa: ANN401
    """Load it, and so go on from there; what it says it is."""
    loaded: Any = ckpt.load(run, step=step)
    assert (loaded["w"] == loaded["step"]).all()
    return int(loaded["step"])


def seen(run: str) -> list[int]:
    """What a run has, as those who go on with it see it."""
    listed = [commit.step for commit in ckpt.list(run)]
    latest = ckpt.latest(run)
    assert (latest and latest.step) == max(listed, default=None)
    return listed


def given_up(run: str) -> list[int]:
    return [commit.step for commit in ckpt.list(run, given_up=True) if commit.given_up]


def go_back(run: str) -> None:
    """Steps 1 to 4; then back to 1, and on with 2, which is there."""
    for step in (1, 2, 3, 4):
        save(run, step)
    assert value(run, 1) == 1
    save(run, 2, 20)


@every_kind
@pytest.mark.wrong_data
def test_a_run_that_goes_back_saves_the_same_numbers_again(run: str) -> None:
    go_back(run)
    assert seen(run) == [1, 2]
    assert given_up(run) == [3, 4]
    assert ckpt.verify(run) == []
    assert value(run) == 20
    assert value(run, 4) == 4  # Until its number comes.
    assert value(run) == 20
    save(run, 4, 40)
    assert seen(run) == [1, 2, 4]
    assert given_up(run) == [3]
    assert value(run) == 40


@every_kind
def test_a_number_between_two_is_the_latest_after_going_back(runs: Runs) -> None:
    run = runs("run")
    for step in (10, 20, 30):
        save(run, step)
    value(run, 10)
    save(run, 15)
    assert seen(run) == [10, 15]
    value(run, 10)  # Once more.
    save(run, 12)
    assert seen(run) == [10, 12]
    save(run, 15, 150)
    assert seen(run) == [10, 12, 15]
    assert value(run) == 150
    assert given_up(run) == [20, 30]


@every_kind
@pytest.mark.wrong_data
def test_the_old_step_stays_until_the_new_one_is_whole(run: str) -> None:
    for step in (1, 2, 3):
        save(run, step)
    value(run, 1)
    pending = {"w": np.zeros(3), "bad": object()}
    with pytest.raises(TypeError):
        ckpt.save(run, 2, pending)
    assert seen(run) == [1, 2, 3]
    assert value(run, 2) == 2
    value(run, 1)
    ckpt.async_save(run, 2, state(20)).result()
    assert seen(run) == [1, 2]
    assert value(run) == 20


@every_kind
def test_who_goes_on_from_the_latest_does_not_replace_steps(run: str) -> None:
    for step in (1, 2, 3):
        save(run, step)
    value(run)
    with pytest.raises(FileExistsError):
        save(run, 3, 30)
    with pytest.raises(FileExistsError):
        save(run, 2, 20)
    value(run, 1)  # A look at an old one, in the midst of training.
    save(run, 4)
    assert seen(run) == [1, 2, 3, 4]


@every_kind
def test_a_run_can_go_back_to_what_it_gave_up(run: str) -> None:
    go_back(run)
    assert value(run, 4) == 4
    save(run, 5)
    assert seen(run) == [1, 3, 4, 5]  # Number 2 is another one by now.
    assert given_up(run) == [2]
    assert value(run, 1) == 1
    save(run, 3, 30)
    assert seen(run) == [1, 3]
    assert value(run) == 30


@every_kind
def test_retention_counts_what_is_not_given_up(run: str) -> None:
    go_back(run)
    assert ckpt.prune(run, keep_last=3) == []  # There are two.
    removed = ckpt.prune(run, keep_last=2, dry_run=True)
    assert [commit.step for commit in removed] == [3, 4]
    assert ckpt.prune(run, keep_last=2) == removed
    assert ckpt.list(run, given_up=True) == ckpt.list(run)
    assert seen(run) == [1, 2]
    assert value(run) == 20
    save(run, 3, 30)
    assert [commit.step for commit in ckpt.prune(run, keep_last=1, keep_every=2)] == [1]
    assert seen(run) == [2, 3]


def _saves_in_another_process(run: str, loads: int | None, step: int) -> int:
    """Load and save as a process that has not been there yet; returns an exit status."""
    context = multiprocessing.get_context("forkserver")
    saver = context.Process(target=_load_and_save, args=(run, loads, step))
    saver.start()
    saver.join()
    return int(saver.exitcode or 0)


def _load_and_save(run: str, loads: int | None, step: int) -> None:
    if loads is not None:
        value(run, loads)
    try:
        save(run, step, 1000 + step)
    except FileExistsError:
        raise SystemExit(3) from None


def test_only_who_has_gone_back_gives_up_steps(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    for step in (1, 2, 3):
        save(run, step)
    assert _saves_in_another_process(run, None, 2) == 3
    assert _saves_in_another_process(run, 3, 2) == 3
    assert seen(run) == [1, 2, 3]
    assert _saves_in_another_process(run, 1, 2) == 0
    assert seen(run) == [1, 2]
    assert value(run) == 1002
    # Nor is another process stopped from replacing what was given up.
    assert _saves_in_another_process(run, None, 3) == 0
    assert seen(run) == [1, 2, 3]


def test_a_process_that_goes_on_beside_one_that_went_back_is_stopped(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    for step in (1, 2, 3):
        save(run, step)
    assert _saves_in_another_process(run, 1, 2) == 0
    with pytest.raises(ConflictError, match=r"gone back to an earlier step.*step 3"):
        save(run, 4)
    assert seen(run) == [1, 2]
    assert value(run) == 1002
    save(run, 4)
    assert seen(run) == [1, 2, 4]


@every_kind
@pytest.mark.wrong_data
def test_a_run_goes_back_also_if_the_step_is_gone_by_then(run: str) -> None:
    for step in (1, 2, 3, 4):
        save(run, step)
    value(run, 1)
    assert [commit.step for commit in ckpt.prune(run, keep_last=2)] == [1, 2]
    save(run, 2, 20)
    assert seen(run) == [2]
    assert given_up(run) == [3, 4]
    save(run, 3, 30)
    assert seen(run) == [2, 3]
    assert value(run) == 30


@pytest.mark.wrong_data
def test_a_run_goes_back_also_if_the_step_is_damaged_by_then(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    for step in (1, 2, 3):
        save(run, step)
    value(run, 1)
    (tmp_path / "run/step-000000001/root.manifest").write_bytes(b"damaged")
    save(run, 2, 20)
    assert value(run) == 20


@pytest.mark.wrong_data
def test_a_run_may_save_the_step_to_which_it_went_back_again(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    for step in (1, 3, 4):
        save(run, step)
    value(run, 1)
    save(run, 1, 10, overwrite=True)
    assert seen(run) == [1, 3, 4]
    save(run, 2, 20, overwrite=True)
    assert seen(run) == [1, 2]
    assert value(run) == 20


def test_what_was_loaded_and_saved_again_is_no_step_to_go_back_to(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    for step in (1, 2, 3):
        save(run, step)
    value(run, 1)
    ckpt.remove(run, 1)
    assert _saves_in_another_process(run, None, 1) == 0
    with pytest.raises(ConflictError, match=r"step 1 .*saved again since it was loaded"):
        save(run, 2, 20)
    assert seen(run) == [1, 2, 3]


@pytest.mark.wrong_data
def test_of_two_that_loaded_the_same_step_the_second_to_save_gives_nothing_up(
    tmp_path: Path,
) -> None:
    run = str(tmp_path / "run")
    for step in (1, 2, 3):
        save(run, step)
    value(run, 1)  # And then it hangs, and is started again elsewhere.
    assert _saves_in_another_process(run, 1, 2) == 0
    with pytest.raises(ConflictError, match="another process has gone back"):
        save(run, 2, 20)
    assert value(run) == 1002
    assert seen(run) == [1, 2]


@pytest.mark.wrong_data
@pytest.mark.parametrize("step", [3, 5])
@pytest.mark.parametrize("is_begun", [False, True])
def test_a_save_in_the_background_is_none_to_go_on_from_after_a_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, *, is_begun: bool
) -> None:
    """Of step 3, the state that is loaded is the newest of all that are there at the time."""
    run = str(tmp_path / "run")
    for there in range(1, step - 1):
        save(run, there)
    held, begun = threading.Event(), threading.Event()
    with monkeypatch.context() as patch:
        _hold_saves(patch, held, begun, is_begun=is_begun)
        pending = ckpt.async_save(run, step, state(step))
        begun.wait()
        assert value(run, 1) == 1
        held.set()
        pending.result()
    save(run, 2, 20)
    assert seen(run) == [1, 2]
    save(run, step, 10 * step)
    assert value(run) == 10 * step


def _hold_saves(
    patch: pytest.MonkeyPatch, held: threading.Event, begun: threading.Event, *, is_begun: bool
) -> None:
    """Saves set `begun` and wait for `held`, before they begin or after they have written."""
    real = _saving.commit

    def wait() -> None:
        begun.set()
        held.wait()

    def commit(*args: Any, **rest: Any) -> ckpt.Commit:  # noqa: ANN401
        if is_begun:
            rest["released"] = wait
        else:
            wait()
        return real(*args, **rest)

    patch.setattr(_saving, "commit", commit)


@every_kind
@pytest.mark.wrong_data
def test_overwrite_replaces_a_whole_step(run: str) -> None:
    for step in (1, 2, 3):
        save(run, step)
    save(run, 2, 20, overwrite=True)
    assert seen(run) == [1, 2, 3]
    assert value(run, 2) == 20
    ckpt.async_save(run, 3, state(30), overwrite=True).result()
    assert value(run) == 30


# --- Killed on the way ---------------------------------------------------------------------------
# In folders: tests/crash/test_checkpoint_kill.py.


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
    names = {name: os.environ[name] for name in os.environ if name.startswith("AWS_")}
    outcomes: Counter[str] = Counter()
    for at in itertools.count(1):
        run = runs(f"run-{at}")
        old = {step: save(run, step).attempt for step in (1, 2, 3)}
        arguments = (names | {"no_proxy": "*"}, run)
        context = multiprocessing.get_context("forkserver")
        victim = context.Process(target=copying.go_back, args=arguments)
        started = threading.Event()

        def kill(victim: Any = victim, started: threading.Event = started) -> None:  # noqa: ANN401
            assert started.wait(60)
            os.kill(victim.pid, signal.SIGKILL)

        def door(number: int, method: str, path: str, at: int = at, kill: Any = kill) -> str:  # noqa: ANN401
            if when == "lost":
                return "lose" if number == at else "serve"
            if when == "before" and number == at:
                kill()
            return "hang up" if when == "before" and number >= at else "serve"

        def after(number: int, request: str, at: int = at, kill: Any = kill) -> None:  # noqa: ANN401
            if when == "after" and number == at:
                kill()

        store.set_door(door, after)
        victim.start()
        started.set()
        victim.join()
        was_reached = len(store.seen) >= at
        store.serve_all()
        outcomes[_line_of(run, old)] += was_reached
        if when == "lost":
            assert victim.exitcode == 0, f"the answer to request {at} was lost"
            assert _line_of(run, old) == "new"
        assert value(run, 1) == 1
        save(run, 2, 21)
        assert _line_of(run, old) == "new"
        assert value(run) == 21
        if not was_reached:
            break
    expected = {"new"} if when == "lost" else {"old", "between", "new"}
    assert {name for name, count in outcomes.items() if count} == expected, outcomes


# --- Copies --------------------------------------------------------------------------------------


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


# --- Damage --------------------------------------------------------------------------------------


def test_after_damage_the_run_goes_on_from_the_step_before(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    for step in (1, 2, 3):
        save(run, step)
    segment = tmp_path / "run/step-000000003/part-00000/seg-0000"
    content = bytearray(segment.read_bytes())
    content[50] ^= 1
    segment.write_bytes(content)
    with pytest.warns(UserWarning, match="step 2 is loaded"):
        loaded: Any = ckpt.load(run, on_corrupt="previous")
    assert loaded["step"] == 2
    ckpt.save(run, 3, state(30))
    assert value(run) == 30
    assert seen(run) == [1, 2, 3]


def test_a_damaged_record_of_the_line_is_named(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    go_back(run)
    (record,) = (tmp_path / "run").glob("line-*")
    record.write_text("0:9")
    for ask in (ckpt.latest, ckpt.load, ckpt.list):
        with pytest.raises(CorruptionError, match=record.name):
            ask(run)
    assert value(run, 4) == 4


@pytest.mark.wrong_data
def test_a_run_goes_back_also_if_its_line_could_not_be_read_then(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    go_back(run)
    save(run, 3, 30)
    (record,) = (tmp_path / "run").glob("line-*")
    content = record.read_bytes()
    record.write_bytes(b"damaged")
    assert value(run, 1) == 1
    record.write_bytes(content)
    save(run, 2, 200)
    assert seen(run) == [1, 2]
    assert value(run) == 200


def test_a_run_whose_line_is_gone_does_not_begin_anew(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    go_back(run)
    ckpt.remove(run, 1)
    ckpt.remove(run, 2)
    assert seen_or_error(run) == "2 committed steps"
    assert value(run, 4) == 4


def seen_or_error(run: str) -> str:
    with pytest.raises(CorruptionError, match="all of them were given up") as error:
        ckpt.latest(run)
    return "2 committed steps" if "2 committed steps" in str(error.value) else str(error.value)


# --- In frameworks -------------------------------------------------------------------------------


def test_incremental_saves_go_on_from_the_line(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    for step in (1, 2, 3):
        save(run, step, incremental=True)
    value(run, 1)
    save(run, 2, 20, incremental=True)
    save(run, 3, 30, incremental=True)
    assert seen(run) == [1, 2, 3]
    assert value(run) == 30
    assert all(ckpt.verify(run, step) == [] for step in (1, 2, 3))
    shared = (tmp_path / "run").glob("step-*/part-*/seg-*")
    assert any(path.stat().st_nlink == 3 for path in shared)


@every_kind
@pytest.mark.wrong_data
def test_torchs_checkpoints_go_back(run: str) -> None:
    def tensors(number: int) -> dict[str, Any]:
        return {"w": torch.full((3000,), number)}

    def load(step: int | None = None) -> int:
        into = tensors(-1)
        dcp.load(into, storage_reader=CheckpointReader(run, step=step), no_dist=True)
        return int(into["w"][7])

    for step in (1, 2, 3):
        writer = CheckpointWriter(run, step=step)
        dcp.save(tensors(step), storage_writer=writer, no_dist=True)
    assert load(1) == 1
    dcp.save(tensors(20), storage_writer=CheckpointWriter(run, step=2), no_dist=True)
    assert seen(run) == [1, 2]
    assert load() == 20
    dcp.save(tensors(30), storage_writer=CheckpointWriter(run), no_dist=True)
    assert seen(run) == [1, 2, 3]
    assert load() == 30


def test_a_training_state_goes_back(tmp_path: Path) -> None:
    run = tmp_path / "run"
    model = torch.nn.Linear(3, 3)
    training = TrainingState(model)

    def train(step: int, weight: float) -> None:
        torch.nn.init.constant_(model.weight, weight)
        training.async_save(run, step).result()

    for step in (1, 2, 3):
        train(step, step)
    assert training.load(run, step=1) == 1
    train(2, 20.0)
    torch.nn.init.zeros_(model.weight)
    assert training.load(run) == 2
    assert float(model.weight.detach()[0, 0]) == 20.0
    assert seen(str(run)) == [1, 2]
