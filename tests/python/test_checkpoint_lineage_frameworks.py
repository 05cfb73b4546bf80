"""Goal: frameworks that go back to an earlier step do so at every kind of target.

Method: torch.distributed.checkpoint and a TrainingState load an older step, and save its successors
again.
"""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import StorageMeta

from ffrecord.torch import CheckpointReader, CheckpointWriter, Stager, TrainingState
from going_back import every_kind, seen


@every_kind
@pytest.mark.wrong_data
def test_torchs_checkpoints_go_back(run: str) -> None:
    def tensors(number: int) -> dict[str, Any]:
        return {"w": torch.full((3000,), number)}

    def load(step: int | None = None) -> int:
        into = tensors(-1)
        dcp.load(into, storage_reader=CheckpointReader(run, step=step, resume=True), no_dist=True)
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


@pytest.mark.wrong_data
@pytest.mark.parametrize("stages", ["writer", "Stager"])
def test_a_save_of_torchs_on_its_way_is_none_to_go_on_from_after_a_load(
    tmp_path: Path, stages: str
) -> None:
    """Step 4 was copied, and is planned after step 1 is loaded."""
    run, held = str(tmp_path / "run"), threading.Event()

    class Held(CheckpointWriter):
        def storage_meta(self) -> StorageMeta | None:
            held.wait()  # Its save begins with this.
            return super().storage_meta()

    def writer(step: int) -> CheckpointWriter:
        return CheckpointWriter(run, step=step)

    def load(step: int | None) -> int:
        into = {"w": torch.zeros(3000)}
        dcp.load(into, storage_reader=CheckpointReader(run, step=step, resume=True), no_dist=True)
        return int(into["w"][7])

    for step in (1, 2, 3):
        dcp.save({"w": torch.full((3000,), float(step))}, storage_writer=writer(step), no_dist=True)
    assert load(None) == 3
    options: dict[str, Any] = {"async_stager": Stager()} if stages == "Stager" else {}
    pending = dcp.async_save(
        {"w": torch.full((3000,), 4.0)},
        storage_writer=Held(run, step=4),
        no_dist=True,
        **options,
    )
    assert load(1) == 1
    held.set()
    pending.result()
    dcp.save({"w": torch.full((3000,), 20.0)}, storage_writer=writer(2), no_dist=True)
    assert seen(run) == [1, 2]
    assert load(None) == 20


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
