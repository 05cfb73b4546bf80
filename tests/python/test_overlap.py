"""Goal: a model without DDP gets the averages that DDP would give it, whatever its ranks leave out.

Method: ranks train a small model and compare each gradient with the mean of all ranks' own
gradients, gathered by torch.distributed; unused parameters, accumulation, ranks that die.
"""

import os
import signal
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from ffrecord.distributed import Group, overlap
from ranks import Ranks, run_ranks

TIMEOUT_S = 8.0


class Branches(nn.Module):
    """A trunk, and branches that an input may leave out."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.trunk = nn.Linear(20, 50)
        self.branches = nn.ModuleList(nn.Linear(50, 7) for _ in range(3))
        self.register_buffer("seen", torch.tensor([seed], dtype=torch.int64))

    def forward(self, x: torch.Tensor, branches: list[int]) -> torch.Tensor:
        """The sum of the branches' losses."""
        hidden = torch.relu(self.trunk(x))
        return sum((self.branches[i](hidden).square().mean() for i in branches), torch.zeros(()))


def own_gradients(model: nn.Module, loss: torch.Tensor) -> list[torch.Tensor | None]:
    return list(torch.autograd.grad(loss, list(model.parameters()), allow_unused=True))


def mean_over_ranks(own: list[torch.Tensor | None], like: nn.Module) -> list[torch.Tensor | None]:
    """What each gradient has to be; None where no rank has one."""
    means: list[torch.Tensor | None] = []
    for gradient, parameter in zip(own, like.parameters(), strict=True):
        total = torch.zeros_like(parameter) if gradient is None else gradient.clone()
        count = torch.tensor([gradient is not None], dtype=torch.int64)
        dist.all_reduce(total)
        dist.all_reduce(count)
        means.append(total / dist.get_world_size() if count.item() else None)
    return means


def assert_equal(model: nn.Module, expected: list[torch.Tensor | None]) -> None:
    for parameter, mean in zip(model.parameters(), expected, strict=True):
        assert (parameter.grad is None) == (mean is None)
        if mean is not None:
            torch.testing.assert_close(parameter.grad, mean)


def train(rank: int, world: int, folder: str) -> object:
    model = Branches(seed=rank)  # Different until the first rank's is everyone's.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with overlap(model, optimizer, group=Group(timeout_s=TIMEOUT_S), bucket_cap_mb=0.001) as mean:
        assert model.seen.item() == 0
        for step in range(4):
            torch.manual_seed(10 * step + rank)
            # Branch 2 is used by nobody, branch 1 by the last rank alone.
            used = [0, 1] if rank == world - 1 else [0]
            x = torch.randn(8, 20)
            expected = mean_over_ranks(own_gradients(model, model(x, used)), model)
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            model(x, used).backward()
            optimizer.step()
            assert_equal(model, expected)
        buckets = {transfer.bucket for transfer in mean.stats().transfers}
        assert len(buckets) > 2
    state = torch.cat([p.detach().flatten() for p in model.parameters()])
    Path(folder, f"{rank}").write_bytes(state.numpy().tobytes())
    return True


@pytest.mark.parametrize("world", [1, 2, 3])
def test_gradients_are_the_mean_though_ranks_leave_parameters_out(
    tmp_path: Path, world: int
) -> None:
    assert run_ranks(train, world, str(tmp_path)) == [True] * world
    assert len({(tmp_path / f"{rank}").read_bytes() for rank in range(world)}) == 1


def accumulate(rank: int, world: int) -> object:
    del world
    model = Branches(seed=5)
    with overlap(model) as mean:
        torch.manual_seed(rank)
        first, second = torch.randn(8, 20), torch.randn(8, 20)
        # Branch 1 has a gradient from the first part only.
        loss = model(first, [0, 1]) + model(second, [0])
        expected = mean_over_ranks(own_gradients(model, loss), model)
        with mean.no_sync():
            model(first, [0, 1]).backward()
        assert mean.stats().transfers == []
        model(second, [0]).backward()
        assert_equal(model, expected)
        mean.wait()  # Nothing has come since.
        assert_equal(model, expected)
    return True


def test_accumulated_gradients_are_sent_once_and_whole() -> None:
    assert run_ranks(accumulate, 2) == [True, True]


def left_alone(rank: int, world: int) -> object:
    model = Branches(seed=5)
    mean = overlap(model, group=Group(timeout_s=TIMEOUT_S))
    if rank == world - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(ConnectionError, match=f"rank {world - 1}"):
        model(torch.randn(8, 20), [0, 1, 2]).backward()
    # None at all where another rank's word of it came before the first gradient was sent.
    assert not any(transfer.ok for transfer in mean.stats().transfers)
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


def different(rank: int, world: int) -> object:
    del world
    with pytest.raises(ValueError, match=r"tensor 0: rank 0 has .*'0.weight'.*\[3, 4\].* rank 2"):
        overlap(nn.Sequential(nn.Linear(4, 4 if rank == 2 else 3)))
    with pytest.raises(ValueError, match=r"rank 1 has .*'0.bias'.*frozen"):
        model = nn.Sequential(nn.Linear(4, 3))
        model[0].bias.requires_grad_(rank != 1)
        overlap(model)
    return True


def test_models_that_differ_between_ranks_are_named_on_every_rank() -> None:
    assert run_ranks(different, 3) == [True] * 3


def refused(rank: int, world: int) -> object:
    del rank, world
    with pytest.raises(ValueError, match="no parameter"):
        overlap(nn.ReLU())
    with pytest.raises(TypeError, match="complex"):
        model = nn.Linear(2, 2).to(torch.complex64)
        overlap(model)
    return True


def test_what_cannot_be_averaged_is_refused() -> None:
    assert run_ranks(refused, 1) == [True]
