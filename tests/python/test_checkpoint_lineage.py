"""Goal: where training goes back to an earlier step, everything follows the run, not the number.

Method: at each kind of target a run goes back, and saves numbers that are there and others; what is
the latest, what a list shows, what retention counts. Other processes are real ones.
"""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ffrecord.checkpoint as ckpt
from ffrecord.checkpoint import _saving
from ffrecord.errors import ConflictError, CorruptionError
from going_back import (
    Runs,
    every_kind,
    given_up,
    go_back,
    save,
    saves_in_another_process,
    seen,
    state,
    value,
)


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
    value(run, 1, resume=None)  # Whatever it is for, a later number gives nothing up.
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


def test_only_who_has_gone_back_gives_up_steps(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    for step in (1, 2, 3):
        save(run, step)
    assert saves_in_another_process(run, None, 2) == 3
    assert saves_in_another_process(run, 3, 2) == 3
    assert seen(run) == [1, 2, 3]
    assert saves_in_another_process(run, 1, 2) == 0
    assert seen(run) == [1, 2]
    assert value(run) == 1002
    # Nor is another process stopped from replacing what was given up.
    assert saves_in_another_process(run, None, 3) == 0
    assert seen(run) == [1, 2, 3]


def test_a_process_that_goes_on_beside_one_that_went_back_is_stopped(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    for step in (1, 2, 3):
        save(run, step)
    assert saves_in_another_process(run, 1, 2) == 0
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
    assert saves_in_another_process(run, None, 1) == 0
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
    assert saves_in_another_process(run, 1, 2) == 0
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
        loaded: Any = ckpt.load(run, on_corrupt="previous", resume=True)
    assert loaded["step"] == 2
    ckpt.save(run, 3, state(30))
    assert value(run) == 30
    assert seen(run) == [1, 2, 3]


def test_a_damaged_record_of_the_line_is_named(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    go_back(run)
    (record,) = (tmp_path / "run").glob("line-*-*")
    record.write_text("0:9")
    assert seen(run) == [1, 2], "its claim has the same content"
    (tmp_path / "run/line-1").write_text("0:9")
    for ask in (ckpt.latest, ckpt.load, ckpt.list):
        with pytest.raises(CorruptionError, match=record.name):
            ask(run)
    assert value(run, 4) == 4


@pytest.mark.wrong_data
def test_a_run_goes_back_also_if_its_line_could_not_be_read_then(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    go_back(run)
    save(run, 3, 30)
    (record,) = (tmp_path / "run").glob("line-*-*")
    claim = tmp_path / "run/line-1"
    contents = {file: file.read_bytes() for file in (record, claim)}
    for file in contents:
        file.write_bytes(b"damaged")
    assert value(run, 1) == 1
    for file, content in contents.items():
        file.write_bytes(content)
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
