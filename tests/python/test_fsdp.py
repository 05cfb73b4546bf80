"""Goal: FSDP2 through our collectives trains as FSDP2 does through Gloo.

Method: the same model and batches with both; parameters after some steps, and what crossed.
"""

import os
import signal

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from ffrecord.distributed import Group, use_for_fsdp
from ranks import Ranks, run_ranks


def sharded() -> nn.Module:
    torch.manual_seed(3)
    layers = [nn.Linear(33, 50), nn.ReLU(), nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 7)]
    model = nn.Sequential(*layers)
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    return fully_shard(model)


def trained(rank: int, model: nn.Module) -> list[torch.Tensor]:
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    for step in range(4):
        torch.manual_seed(100 * step + rank)
        optimizer.zero_grad()
        model(torch.randn(16, 33)).square().mean().backward()
        optimizer.step()
    return [p.detach().full_tensor() for p in model.parameters()]


def both(rank: int, world: int) -> object:
    del world
    theirs = trained(rank, sharded())
    model = sharded()
    with use_for_fsdp(model, Group(timeout_s=20)) as group:
        ours = trained(rank, model)
        stats = group.stats()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)
    with pytest.raises(ValueError, match="nothing in the model is sharded"):
        use_for_fsdp(nn.Linear(2, 2))
    return len(stats.transfers)


def test_a_sharded_model_trains_as_through_gloo() -> None:
    transfers = run_ranks(both, 3)
    # Three layers, four steps, gathered for both directions but the last, and reduced.
    assert all(count >= 3 * 4 * 2 for count in transfers)


class Frozen(nn.Module):
    """A frozen layer of another dtype beside one that is trained, as with LoRA."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.base = nn.Linear(33, 50).bfloat16().requires_grad_(False)
        self.head = nn.Linear(50, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Through both."""
        out: torch.Tensor = self.head(torch.relu(self.base(x.bfloat16())).float())
        return out


def kinds(rank: int, world: int) -> object:
    """Several dtypes in one module, replicas of shards, and a divide factor of one's own."""
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
    whole = init_device_mesh("cpu", (world,))

    def make(replicates: bool, factor: float | None) -> nn.Module:
        model = fully_shard(Frozen(), mesh=mesh if replicates else whole)
        # Gloo has no other way to divide.
        model.set_force_sum_reduction_for_comms(factor is not None)
        if factor is not None:
            model.set_gradient_divide_factor(factor)
        return model

    for replicates in (False, True):
        for factor in (None, 3.0):
            theirs = trained(rank, make(replicates, factor))
            model = make(replicates, factor)
            with use_for_fsdp(model, Group(timeout_s=20) if not replicates else None) as group:
                ours = trained(rank, model)
                assert group.stats().transfers
                assert group.world_size == (world // 2 if replicates else world)
            for a, b in zip(ours, theirs, strict=True):
                torch.testing.assert_close(a, b)
    return True


def test_dtypes_replicas_and_divide_factors_are_those_of_torch() -> None:
    assert run_ranks(kinds, 4) == [True] * 4


def left_alone(rank: int, world: int) -> object:
    model = sharded()
    use_for_fsdp(model, Group(timeout_s=8))
    if rank == world - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises((ConnectionError, RuntimeError), match=f"rank {world - 1}"):
        trained(rank, model)
    return True


def test_a_rank_that_dies_is_named_to_the_others() -> None:
    ranks = Ranks(left_alone, 3)
    try:
        for process in ranks.context.processes:
            process.join(60)
        assert [process.exitcode for process in ranks.context.processes] == [0, 0, -signal.SIGKILL]
    finally:
        for process in ranks.context.processes:
            process.kill()
            process.join(10)
