"""One save of rank 0 of 1,024, whose state is 20,000 DTensors, each sharded over all ranks.

Prints, as JSON, how long the save takes, how many bytes the rank gathers, and by how much its
process grows; and what the coordinator does for a save by DCP of a GPT-2 medium (292 tensors). The
tensors are tiny, so nearly all of the time is what ranks do before they write.

Rank 0 is an ordinary rank, in a process group of torch that knows all ranks and connects none. The
messages of the other ranks were recorded in a save before: rank 1 wrote what rank 0 does not have,
and all others have the same state and write nothing, so that the message of one is that of all.
"""

import json
import os
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from shapes import peak_growth
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor import Shard as ShardPlacement
from torch.testing._internal.distributed.fake_pg import FakeStore

import ffrecord.checkpoint as ckpt
from ffrecord import _ffrecord
from thread_ranks import ThreadRank, ThreadRanks

WORLD = 1024
TENSORS = 20_000


class Recorded:
    """A rank of 1,024, of which three are there; notes what it gathers."""

    size = WORLD
    members = range(WORLD)

    def __init__(self, inner: ThreadRank) -> None:
        """Gather by way of `inner`."""
        self.inner, self.rank = inner, inner.rank
        self.rounds: list[list[bytes]] = []

    def all_gather(self, mine: bytes) -> list[bytes]:
        """The messages of ranks 0 and 1, and that of rank 2 in the place of all others."""
        told = self.inner.all_gather(mine)
        self.rounds.append([*told[:2], *[told[2]] * (WORLD - 2)])
        return self.rounds[-1]


class Replayed:
    """Rank 0, to whom the others say what they said before."""

    rank, size = 0, WORLD
    members = range(WORLD)

    def __init__(self, rounds: list[list[bytes]]) -> None:
        """Gather what was recorded."""
        self.rounds = iter(rounds)
        self.received_bytes = 0

    def all_gather(self, mine: bytes) -> list[bytes]:
        """The bytes of all ranks."""
        told = [mine, *next(self.rounds)[1:]]
        self.received_bytes += sum(map(len, told))
        return told


def names() -> list[str]:
    """Names of the tensors."""
    return [f"layers.{i // 10}.feed_forward.weight_{i % 10}" for i in range(TENSORS)]


def state_of(tensor: Callable[[int], object]) -> dict[str, Any]:
    """The state of every rank: tensors together, and a few values of its own."""
    tensors = {name: tensor(i) for i, name in enumerate(names())}
    own = ckpt.PerRank({"position": 12_345, "seed": os.urandom(64)})
    return {"model": tensors, "loader": own, "step": 7}


def sharded(ranks: range) -> Callable[[int], object]:
    """DTensors of which each of these ranks has one row."""
    mesh = DeviceMesh("cpu", torch.arange(ranks.start, ranks.stop))
    rows = torch.zeros(TENSORS, 1, 2, dtype=torch.uint8)
    shape, placements = torch.Size((WORLD, 2)), [ShardPlacement(0)]
    return lambda i: DTensor.from_local(
        rows[i], mesh, placements, run_check=False, shape=shape, stride=(2, 1)
    )


def save_natively(folder: pathlib.Path) -> dict[str, float]:
    """Figures of a save of rank 0."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=WORLD)
    rest = torch.zeros(WORLD - 1, 2, dtype=torch.uint8)
    others = ckpt.Shard(rest, (WORLD, 2), (1, 0))
    mine = state_of(sharded(range(WORLD)))
    # A mesh without this process gives it no part of a tensor.
    states = [mine, state_of(lambda _: others), state_of(sharded(range(1, WORLD)))]
    group = ThreadRanks(3)
    ranks: dict[int, Recorded] = {}

    def record(inner: ThreadRank) -> None:
        rank = ranks[inner.rank] = Recorded(inner)
        ckpt.save(folder / "recorded", 1, states[inner.rank], group=rank, direct=False)

    group.must(record)
    replayed = Replayed(ranks[0].rounds)
    seconds: list[float] = []

    def save() -> None:
        began = time.perf_counter()
        ckpt.save(folder / "replayed", 1, mine, group=replayed, direct=False)
        seconds.append(time.perf_counter() - began)

    peak = peak_growth(save)
    return {
        "plan_1024_ms": seconds[0] * 1000,
        "plan_1024_received_bytes": replayed.received_bytes,
        "plan_1024_peak_bytes": peak,
    }


def commit_by_dcp(run: str) -> dict[str, float]:
    """Figures of the coordinator that has the shards of all ranks."""
    rows, memory = 2048, torch.rand(2048)
    coordinator = _ffrecord.CheckpointShards(run, 1, None, False, 30.0, False)
    parts = []
    for rank in range(WORLD):
        begin, end = rows * rank // WORLD, rows * (rank + 1) // WORLD
        slices = [
            (f"model/transformer.h.{i}.weight", "float32", (rows, 1), (begin, 0), (end - begin, 1),
             memory.data_ptr(), 4 * (end - begin), False)
            for i in range(292)
        ]  # fmt: skip
        writer = coordinator
        if rank:
            writer = _ffrecord.CheckpointShards(run, 1, coordinator.attempt, False, 30.0, False)
        parts.append(writer.write(rank, slices))
    seconds = []

    def commit() -> None:
        began = time.perf_counter()
        coordinator.commit(parts, b"\0")
        seconds.append(time.perf_counter() - began)

    peak = peak_growth(commit) + sum(map(len, parts))
    return {"dcp_commit_1024_ms": seconds[0] * 1000, "dcp_commit_1024_bytes": peak}


folder = pathlib.Path(sys.argv[1])
print(json.dumps({**save_natively(folder), **commit_by_dcp(str(folder / "dcp"))}))
