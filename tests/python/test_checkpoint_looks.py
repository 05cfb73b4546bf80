"""Goal: a load that is only a look changes nothing for the saves of its process.

Method: a process in the midst of training, or a fresh one, loads an older step in each of the ways:
to go on from it, to look at it, and without a word; then it saves what depends on that. Whatever in
the package reads checkpoints to look at them must leave no trace.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

import ffrecord.checkpoint as ckpt
from ffrecord import weights
from ffrecord.errors import ConflictError
from ffrecord.torch import CheckpointReader, CheckpointWriter, TrainingState
from ffrecord.torch.lightning import CheckpointIO
from going_back import (
    KINDS,
    Runs,
    every_kind,
    given_up,
    save,
    saves_in_another_process,
    seen,
    state,
    value,
)

near_kinds = pytest.mark.parametrize(
    "runs", [each for each in KINDS if each != "store"], indirect=True
)


@pytest.fixture
def run(runs: Runs) -> str:
    run = runs("run")
    for step in (1, 2, 3):
        save(run, step)
    return run


@every_kind
@pytest.mark.wrong_data
def test_a_look_before_an_overwrite_gives_nothing_up(run: str) -> None:
    assert value(run, 1, resume=False) == 1
    save(run, 3, 30, overwrite=True)
    assert seen(run) == [1, 2, 3]
    assert value(run, resume=False) == 30


@near_kinds
@pytest.mark.wrong_data
def test_a_look_does_not_let_a_save_in_beside_a_run_that_went_back(run: str) -> None:
    assert saves_in_another_process(run, 1, 2) == 0
    assert value(run, 1, resume=False) == 1
    assert value(run, resume=False) == 1002
    with pytest.raises(ConflictError, match="another process has gone back"):
        save(run, 4)
    assert seen(run) == [1, 2]


@every_kind
@pytest.mark.wrong_data
@pytest.mark.parametrize("way", ["save", "async", "overwrite"])
def test_without_a_word_a_save_that_depends_on_it_asks(run: str, way: str) -> None:
    assert value(run, 1, resume=None) == 1
    with pytest.raises(ConflictError, match=r"loaded step 1 .*nobody has said.*resume=True"):
        if way == "async":
            ckpt.async_save(run, 2, state(20)).result()
        else:
            save(run, 2 if way == "save" else 3, 20, overwrite=way == "overwrite")
    assert seen(run) == [1, 2, 3]
    assert value(run, 1, resume=True) == 1  # Said afterwards.
    save(run, 2, 20)
    assert seen(run) == [1, 2]
    assert given_up(run) == [3]


@near_kinds
@pytest.mark.wrong_data
def test_without_a_word_a_run_that_went_back_elsewhere_is_not_joined(run: str) -> None:
    assert saves_in_another_process(run, 1, 2) == 0
    value(run, resume=None)  # Training does not go on from that.
    with pytest.raises(ConflictError, match="nobody has said"):
        save(run, 4)
    assert seen(run) == [1, 2]
    assert value(run, resume=True) == 1002
    save(run, 4)
    assert seen(run) == [1, 2, 4]


def test_what_a_process_loads_first_is_what_its_run_goes_on_from(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    for step in (1, 2, 3):
        save(run, step)
    assert saves_in_another_process(run, 1, 2) == 0
    assert seen(run) == [1, 2]


@pytest.mark.wrong_data
def test_an_overwrite_alone_does_not_say_that_a_run_goes_back(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    for step in (1, 2, 3):
        save(run, step)
    assert saves_in_another_process(run, 1, 3, overwrite=True) == 4
    assert seen(run) == [1, 2, 3]
    assert saves_in_another_process(run, 3, 3, overwrite=True) == 0
    assert seen(run) == [1, 2, 3]
    assert value(run, resume=False) == 1003


@pytest.mark.wrong_data
def test_an_overwritten_look_is_nothing_to_go_on_from(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    for step in (1, 2, 3):
        save(run, step)
    value(run, 1, resume=None)
    save(run, 1, 10, overwrite=True)  # The same by both.
    with pytest.raises(ConflictError, match="nobody has said"):
        save(run, 3, 30, overwrite=True)
    assert seen(run) == [1, 2, 3]


def test_many_looks_do_not_push_out_where_the_run_is(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    for step in range(1, 25):
        save(run, step)
    for step in range(1, 24):
        value(run, step, resume=None)
    with pytest.raises(ConflictError, match="nobody has said"):
        save(run, 24, overwrite=True)
    save(run, 25)
    assert seen(run) == list(range(1, 26))


@pytest.mark.wrong_data
def test_many_looks_do_not_push_out_a_load_that_may_be_a_return(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    for step in range(10, 400, 10):
        save(run, step)
    value(run, 10, resume=None)
    for step in range(200, 380, 10):
        value(run, step, resume=None)
    with pytest.raises(ConflictError, match="nobody has said"):
        save(run, 15)
    value(run, 10, resume=True)
    save(run, 15)
    assert seen(run) == [10, 15]


@pytest.mark.wrong_data
def test_many_looks_at_other_runs_do_not_push_out_a_return_to_a_copy(tmp_path: Path) -> None:
    run, backup, other = (str(tmp_path / name) for name in ("run", "backup", "other"))
    save(other, 1)
    for step in (10, 20, 30):
        save(run, step)
        ckpt.copy(run, backup, step)
    value(backup, 10, resume=True)
    for _ in range(20):
        value(other, resume=None)
    save(run, 15)
    assert seen(run) == [10, 15]


@pytest.mark.wrong_data
@pytest.mark.parametrize("runs", ["folder", "store"], indirect=True)
def test_a_look_at_a_copy_elsewhere_gives_nothing_up(runs: Runs) -> None:
    run, backup = runs("run"), runs("backup")
    for step in (1, 2, 3):
        save(run, step)
        ckpt.copy(run, backup, step)
    value(backup, 1, resume=False)
    save(run, 3, 30, overwrite=True)
    value(backup, 1, resume=None)
    with pytest.raises(ConflictError, match="nobody has said"):
        save(run, 3, 31, overwrite=True)
    assert seen(run) == [1, 2, 3]
    value(backup, 1, resume=True)
    save(run, 3, 32)
    assert seen(run) == [1, 3]


def _looks(run: str, folder: Path) -> dict[str, Callable[[], object]]:
    """Everything that reads step 1 only to look."""
    training = TrainingState(torch.nn.Linear(2, 2))

    return {
        "load": lambda: ckpt.load(run, step=1, resume=False),
        "training": lambda: training.load(run, step=1, strict=False, resume=False),
        "verify": lambda: ckpt.verify(run, 1),
        "list": lambda: ckpt.list(run),
        "latest": lambda: ckpt.latest(run),
        "diff": lambda: ckpt.diff((run, 1), (run, 3)),
        "copy": lambda: ckpt.copy(run, folder / "copy", 1),
        "flush": lambda: ckpt.stage(run, folder / "far").flush(),
        "prune": lambda: ckpt.prune(run, keep_last=3),
        "export": lambda: ckpt.export_safetensors(run, folder / "a.safetensors", step=1),
        "weights": lambda: weights.open(run, step=1)["w"].read(),
    }


@pytest.mark.wrong_data
@pytest.mark.parametrize("name", _looks("", Path()))
def test_what_only_looks_leaves_no_trace(tmp_path: Path, name: str) -> None:
    run = str(tmp_path / "run")
    for step in (1, 2, 3):
        save(run, step)
    _looks(run, tmp_path)[name]()
    save(run, 3, 30, overwrite=True)  # Would give up 2, or ask.
    assert seen(run) == [1, 2, 3]


@pytest.mark.wrong_data
@pytest.mark.parametrize("resume", [False, None])
def test_a_look_by_torchs_planner_gives_nothing_up(tmp_path: Path, resume: bool | None) -> None:
    run = str(tmp_path / "run")

    def save_flat(step: int, *, overwrite: bool = False) -> None:
        writer = CheckpointWriter(run, step=step, overwrite=overwrite)
        dcp.save({"w": torch.full((3000,), step)}, storage_writer=writer, no_dist=True)

    for step in (1, 2, 3):
        save_flat(step)
    into = {"w": torch.zeros(3000, dtype=torch.int64)}
    reader = CheckpointReader(run, step=1, resume=resume)
    dcp.load(into, storage_reader=reader, no_dist=True)
    assert int(into["w"][7]) == 1
    if resume is False:
        save_flat(3, overwrite=True)
    else:
        with pytest.raises(CheckpointException, match="nobody has said"):
            save_flat(3, overwrite=True)
    assert seen(run) == [1, 2, 3]


@pytest.mark.wrong_data
def test_lightnings_checkpoints_leave_no_trace(tmp_path: Path) -> None:
    """Its saves take the next free number at their path, and nothing goes back."""
    path = tmp_path / "last.ckpt"
    plugin = CheckpointIO()
    plugin.save_checkpoint({"state_dict": {"w": torch.ones(3)}}, path)
    save(str(path), 5)
    assert plugin.load_checkpoint(path)["step"] == 5
    ckpt.remove(path, 5)
    plugin.load_checkpoint(path)
    save(str(path), 7)
    save(str(path), 7, 70, overwrite=True)
    assert value(str(path), resume=False) == 70
