"""Goal: a model in stages, on FSDP2, in tensor-parallel layers and on one rank is one model.

Each loads what any other has saved, with its optimizer.

Method: two real ranks of Gloo; every pair, natively and by torch's planner; then both take the same
step of the optimizer.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import ffrecord.checkpoint as ckpt
from ffrecord.torch import CheckpointReader, CheckpointWriter
from ranks import run_ranks

pytestmark = pytest.mark.wrong_data

KINDS = ("plain", "fsdp", "tp", "stages")
COUNT = 4
_FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


class Model(nn.Module):
    """Layers by number; a stage has some of them."""

    def __init__(self, numbers: range) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({str(number): nn.Linear(6, 6) for number in numbers})
        with torch.no_grad():
            for number, layer in self.layers.items():
                torch.manual_seed(int(number))
                for each in layer.parameters():
                    each.copy_(torch.randn(each.shape))


class Trainee:
    """A model of one kind, and its optimizer, on this rank."""

    def __init__(self, kind: str, rank: int, world: int, value: float) -> None:
        self.kind, self.rank = kind, rank
        per_stage = COUNT // world
        numbers = range(COUNT)
        if kind == "stages":
            numbers = range(per_stage * rank, per_stage * (rank + 1))
        self.model = Model(numbers)
        mesh = init_device_mesh("cpu", (world,))
        if kind == "fsdp":
            for layer in self.model.layers.values():
                fully_shard(layer, mesh=mesh)
            fully_shard(self.model, mesh=mesh)
        elif kind == "tp":
            ways = (ColwiseParallel, RowwiseParallel)
            plan = {f"layers.{n}": ways[n % 2]() for n in numbers}
            parallelize_module(self.model, mesh, plan)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01 * value)
        if value == 1:  # A new one has no state, and other weights.
            self.step(1)
        else:
            with torch.no_grad():
                for each in self.model.parameters():
                    each.mul_(value)

    def step(self, by: float) -> None:
        """One step, along gradients that do not depend on the kind."""
        for name, each in self.model.named_parameters():
            whole = torch.arange(each.numel(), dtype=torch.float32).reshape(each.shape)
            grad = whole * by + len(name)
            if isinstance(each, DTensor):
                from torch.distributed.tensor import distribute_tensor

                each.grad = distribute_tensor(grad, each.device_mesh, each.placements)
            else:
                each.grad = grad
        self.optimizer.step()

    def state(self) -> dict[str, Any]:
        """By names of parameters, as torchtitan has it."""
        return {
            "model": get_model_state_dict(self.model),
            "optim": get_optimizer_state_dict(self.model, self.optimizer, options=_FLAT),
        }

    def shared(self) -> dict[str, Any]:
        """What a stage has is on its rank."""
        if self.kind != "stages":
            return self.state()
        return {
            part: {key: ckpt.OnRanks(each, [self.rank]) for key, each in items.items()}
            for part, items in self.state().items()
        }

    def take(self, state: dict[str, Any]) -> None:
        """Take over a state by names."""
        set_model_state_dict(self.model, state["model"])
        set_optimizer_state_dict(self.model, self.optimizer, state["optim"], options=_FLAT)

    def whole(self) -> dict[str, torch.Tensor]:
        """All weights that this rank has a part of."""
        return {
            name: (each.full_tensor() if isinstance(each, DTensor) else each).detach().clone()
            for name, each in self.model.named_parameters()
        }


def expected(rank: int, world: int) -> dict[str, torch.Tensor]:
    trainee = Trainee("plain", rank, world, 1)
    trainee.step(2)
    return trainee.whole()


def each_loads_each(rank: int, world: int, folder: str, way: str) -> object:
    wanted = expected(rank, world)
    for kind in KINDS:
        saver = Trainee(kind, rank, world, 1)
        if way == "native":
            ckpt.save(f"{folder}/{kind}", 1, saver.shared())
        else:
            dcp.save(saver.state(), storage_writer=CheckpointWriter(f"{folder}/{kind}", step=1))
        for other in KINDS:
            loader = Trainee(other, rank, world, 3)
            state = loader.state()
            if way == "native":
                ckpt.load(f"{folder}/{kind}", state, resume=False)
            else:
                reader = CheckpointReader(f"{folder}/{kind}", step=1, resume=False)
                dcp.load(state, storage_reader=reader)
            loader.take(state)
            loader.step(2)
            for name, each in loader.whole().items():
                assert torch.allclose(each, wanted[name], atol=1e-6), (kind, other, name)
    if rank == 0:
        for kind in KINDS:
            assert ckpt.verify(f"{folder}/{kind}") == []
            found = ckpt.verify(f"{folder}/{kind}", against=(f"{folder}/plain", 1))
            assert found == [], (kind, found)
    return True


@pytest.mark.parametrize("way", ["native", "dcp"])
def test_each_kind_of_model_loads_what_each_has_saved(tmp_path: Path, way: str) -> None:
    assert run_ranks(each_loads_each, 2, str(tmp_path), way) == [True] * 2
