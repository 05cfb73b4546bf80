"""Goal: torch.distributed over the library's own collectives does what it does over Gloo.

Method: ranks form a group of each, and compare every collective, and training by
DistributedDataParallel and FSDP2.
"""

import tempfile

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import ffrecord.distributed.backend
from ranks import run_ranks


def default_group(rank: int, world: int, folder: str) -> None:
    """Leave Gloo's, and make ours the default."""
    dist.destroy_process_group()
    dist.init_process_group(
        "ffrecord", store=dist.FileStore(f"{folder}/store", world), rank=rank, world_size=world
    )


def collectives(rank: int, world: int) -> object:
    ours = dist.new_group(backend="ffrecord")
    theirs = dist.new_group(backend="gloo")
    assert isinstance(ours, ffrecord.distributed.backend.ProcessGroup)

    def found(group: dist.ProcessGroup, dtype: torch.dtype, size: int) -> list[torch.Tensor]:
        tensors = []
        start = (torch.arange(size * 2) % 50 + rank).to(dtype)
        bits = (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR)
        all_ = (dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT)
        for op in all_ if dtype.is_floating_point else all_ + bits:
            for tensor in (start[:size].clone(), start[::2].clone().view(1, -1)):
                dist.all_reduce(tensor, op, group=group)
                tensors.append(tensor)
        root = start[:size].clone()
        dist.reduce(root, 1, group=group)
        if rank == 1:
            tensors.append(root)
        sent = start[:size].clone()
        dist.broadcast(sent, 1, group=group)
        parts = [torch.empty(size, dtype=dtype) for _ in range(world)]
        dist.all_gather(parts, start[:size].clone(), group=group)
        whole = torch.empty(world * size, dtype=dtype)
        dist.all_gather_into_tensor(whole, start[:size].clone(), group=group)
        part = torch.empty(size, dtype=dtype)
        dist.reduce_scatter_tensor(part, torch.cat([start[:size]] * world), group=group)
        dist.barrier(group=group)
        return [*tensors, sent, *parts, whole, part, *moved(group, start[:size])]

    def moved(group: dist.ProcessGroup, start: torch.Tensor) -> list[torch.Tensor]:
        at_root = rank == 1
        places = [torch.empty_like(start) for _ in range(world)]
        dist.gather(start, places if at_root else None, dst=1, group=group)
        part = torch.empty_like(start)
        parts = [start + each for each in range(world)]
        dist.scatter(part, parts if at_root else None, src=1, group=group)
        equal = torch.empty_like(torch.cat(parts))
        dist.all_to_all_single(equal, torch.cat(parts), group=group)
        # This rank sends rank + to rows to another, none to itself.
        counts = [[0 if a == b else a + b for b in range(world)] for a in range(world)]
        rows = torch.arange(sum(counts[rank]) * 2).view(-1, 2).to(start.dtype)
        received = [counts[each][rank] for each in range(world)]
        unequal = torch.empty(sum(received), 2, dtype=start.dtype)
        dist.all_to_all_single(unequal, rows, received, counts[rank], group=group)
        return [*(places if at_root else []), part, equal, unequal]

    for dtype in (torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8):
        for size in (1, 7, 1000):
            for mine, gloo in zip(
                found(ours, dtype, size), found(theirs, dtype, size), strict=True
            ):
                assert torch.equal(mine, gloo), (dtype, size)
    average = torch.full((5,), float(rank))
    work = dist.all_reduce(average, dist.ReduceOp.AVG, group=ours, async_op=True)
    assert work is not None and work.wait() and work.is_completed()
    assert torch.all(average == (world - 1) / 2)
    parts = [torch.full((size,), float(rank)) for size in (1, 5)]  # Two at once.
    wholes = [torch.empty(world * len(part)) for part in parts]
    ours.all_gather_single_coalesced(wholes, parts).wait()
    for whole, part in zip(wholes, parts, strict=True):
        assert torch.equal(whole, torch.arange(float(world)).repeat_interleave(len(part)))
    ours.reduce_scatter_single_coalesced(parts, wholes, dist.ReduceScatterOptions()).wait()
    for part in parts:
        assert torch.equal(part, torch.full_like(part, float(world * rank)))
    names: list[object] = [None] * world
    dist.all_gather_object(names, {"rank": rank}, group=ours)
    assert names == [{"rank": each} for each in range(world)]
    with pytest.raises(TypeError, match="float32 is not reduced bit by bit"):
        dist.all_reduce(average, dist.ReduceOp.BXOR, group=ours)
    three = [torch.full((each + 1,), float(rank)) for each in range(world)]
    places = [torch.empty(rank + 1) for _ in range(world)]
    dist.all_to_all(places, three, group=ours)
    assert places[1].tolist() == [1.0] * (rank + 1)
    with pytest.raises(ValueError, match="has places for"):
        dist.all_to_all(three, three, group=ours)
    with pytest.raises(TypeError, match=r"all_reduce: torch\.complex64 is not reduced"):
        ours.allreduce([torch.zeros(2, dtype=torch.complex64)])
    return True


def test_every_collective_gives_what_gloo_gives() -> None:
    assert all(run_ranks(collectives, 3))


def losses(rank: int, model: nn.Module) -> list[float]:
    """Of a few steps of training."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    found = []
    for step in range(4):
        torch.manual_seed(100 * step + rank)
        optimizer.zero_grad()
        loss = model(torch.randn(8, 32)).square().mean()
        loss.backward()
        optimizer.step()
        found.append(float(loss.detach()))
    return found


def make_model() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 3))


def sharded() -> nn.Module:
    model = make_model()
    for layer in (model[0], model[2]):  # type: ignore[index]
        fully_shard(layer)
    return fully_shard(model)


def train(rank: int, world: int, folder: str) -> object:
    by_gloo = [losses(rank, DistributedDataParallel(make_model())), losses(rank, sharded())]
    default_group(rank, world, folder)
    by_ours = [losses(rank, DistributedDataParallel(make_model())), losses(rank, sharded())]
    dist.destroy_process_group()
    return [by_gloo, by_ours]


def test_ddp_and_fsdp_train_as_over_gloo() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for by_gloo, by_ours in run_ranks(train, 2, folder):
            for gloo, ours in zip(by_gloo, by_ours, strict=True):
                assert ours == pytest.approx(gloo, rel=1e-5)
