"""Goal: a language model trains over our collectives as it does over Gloo.

Method: a small GPT trains on two ranks, from the same beginning over each backend: replicated
(DDP), sharded (FSDP2), and as a pipeline of two stages. Losses and parameters are compared.
"""

# ruff: noqa: D102 - those of modules

import tempfile
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel

import ffrecord.distributed.backend  # noqa: F401 - registers it
from ranks import run_ranks

VOCABULARY, CONTEXT, WIDTH, STEPS = 40, 12, 32, 5
# The order of the sums of a step is the backend's.
TOLERANCE = 1e-5


class Block(nn.Module):
    """A block of a transformer: attention to what came before, and a perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.heads = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.perceptron = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = x.shape[0]
        parts = self.heads(self.norms[0](x)).view(size, -1, 4, 3, WIDTH // 4).transpose(1, 2)
        seen = nn.functional.scaled_dot_product_attention(*parts.unbind(3), is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(size, -1, WIDTH))
        return x + self.perceptron(self.norms[1](x))


class First(nn.Module):
    """Tokens to vectors, and the first blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.blocks(self.tokens(tokens) + self.places(torch.arange(tokens.shape[1])))


def stages() -> list[nn.Module]:
    torch.manual_seed(11)
    last = nn.Sequential(Block(), Block(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY))
    return [First(), last]


def loss_of(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


def tokens_of(step: int, rank: int) -> torch.Tensor:
    """Each token is the one before plus one, so there is something to learn."""
    torch.manual_seed(1000 * step + rank)
    return (torch.randint(VOCABULARY, (8, 1)) + torch.arange(CONTEXT + 1)) % VOCABULARY


def train_whole(model: nn.Module, rank: int) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    found = []
    for step in range(STEPS):
        tokens = tokens_of(step, rank)
        optimizer.zero_grad()
        loss = loss_of(model(tokens[:, :-1]), tokens[:, 1:])
        loss.backward()
        optimizer.step()
        found.append(float(loss.detach()))
    return found


def replicated(rank: int) -> list[float]:
    return train_whole(DistributedDataParallel(nn.Sequential(*stages())), rank)


def sharded(rank: int) -> list[float]:
    model = nn.Sequential(*stages())
    for module in model.modules():
        if isinstance(module, Block):
            fully_shard(module)
    return train_whole(fully_shard(model), rank)


def pipelined(schedule_class: type[ScheduleGPipe | Schedule1F1B]) -> Callable[[int], list[float]]:
    def train(rank: int) -> list[float]:
        module = stages()[rank]
        stage = PipelineStage(module, rank, 2, torch.device("cpu"))
        schedule = schedule_class(stage, n_microbatches=4, loss_fn=loss_of)
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
        found = []
        for step in range(STEPS):
            tokens = tokens_of(step, 0)
            optimizer.zero_grad()
            losses: list[torch.Tensor] = []
            if rank == 0:
                schedule.step(tokens[:, :-1])
            else:
                schedule.step(target=tokens[:, 1:], losses=losses)
                found.append(float(torch.stack(losses).mean().detach()))
            optimizer.step()
        return [*found, *(float(p.detach().double().sum()) for p in module.parameters())]

    return train


WAYS = {
    "DDP": replicated,
    "FSDP2": sharded,
    "GPipe": pipelined(ScheduleGPipe),
    "1F1B": pipelined(Schedule1F1B),
}


def over_both(rank: int, world: int, folder: str) -> object:
    found = {way: [train(rank)] for way, train in WAYS.items()}
    dist.destroy_process_group()
    dist.init_process_group(
        "ffrecord", store=dist.FileStore(f"{folder}/store", world), rank=rank, world_size=world
    )
    for way, train in WAYS.items():
        found[way].append(train(rank))
    dist.destroy_process_group()
    return found


def test_a_gpt_trains_as_over_gloo() -> None:
    with tempfile.TemporaryDirectory() as folder:
        ranks = run_ranks(over_both, 2, folder)
    for found in ranks:
        for way in ("DDP", "FSDP2"):
            gloo, ours = found[way]
            assert ours == pytest.approx(gloo, rel=TOLERANCE), way
            assert len(ours) == STEPS
        for way in ("GPipe", "1F1B"):  # Nothing is summed between ranks.
            gloo, ours = found[way]
            assert ours == gloo, way
    losses = ranks[1]["1F1B"][1][:STEPS]
    assert losses[-1] < losses[0]  # It learns.
