"""Goal: what torch's own code and its users do with a backend goes with ours.

Method: two ranks with the backend as their default group: every integer dtype at its limits,
waiting within callbacks, hooks of torch, DDP's join, inference mode, torch's overloads, arguments
that are refused, the profiler, and an end without destroy_process_group().
"""

import atexit
import faulthandler
import threading
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import ffrecord.distributed.backend
from ranks import run_ranks

SUM, MIN, MAX, AVG = (getattr(dist.ReduceOp, name) for name in ("SUM", "MIN", "MAX", "AVG"))


def reduced(values: list[Any], op: Any, dtype: torch.dtype) -> list[Any]:  # noqa: ANN401
    tensor = torch.tensor(values, dtype=dtype)
    dist.all_reduce(tensor, op)
    found: list[Any] = tensor.tolist()
    return found


def integers(rank: int) -> None:
    """Sums wrap, extremes are those of the type."""
    for dtype in (torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16):
        least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
        values = [most, 1, most - 5] if rank == 0 else [least, most, most - 3]
        others = [least, most, most - 3] if rank == 0 else [most, 1, most - 5]
        pairs = list(zip(values, others, strict=True))
        assert reduced(values, MIN, dtype) == [min(pair) for pair in pairs], dtype
        assert reduced(values, MAX, dtype) == [max(pair) for pair in pairs], dtype
        span = most - least + 1
        wrapped = [(a + b - least) % span + least for a, b in pairs]
        assert reduced(values, SUM, dtype) == wrapped, dtype
        with pytest.raises(TypeError, match=r"all_reduce: .* has no average"):
            reduced(values, AVG, dtype)
    assert reduced([True, rank == 0, False], SUM, torch.bool) == [True, True, False]
    assert reduced([True, rank == 0, False], MIN, torch.bool) == [True, False, False]
    assert reduced([6e4, 1.0], AVG, torch.float16) == [pytest.approx(6e4, rel=1e-3), 1.0]


def nested(rank: int) -> None:
    """Callbacks wait for operations of their own, and those for theirs."""

    def again(ended: torch.futures.Future[Any]) -> list[torch.Tensor]:
        (tensor,) = ended.value()
        dist.all_reduce(tensor)  # Waits.

        def deeper(inner: torch.futures.Future[Any]) -> torch.Tensor:
            dist.all_reduce(inner.value()[0])
            return tensor

        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        work.get_future().then(deeper).wait()
        return [tensor]

    for size in range(1, 9):
        work = dist.all_reduce(torch.full((size,), float(rank + size)), async_op=True)
        assert work is not None
        found = work.get_future().then(again).wait()[0]
        assert torch.equal(found, torch.full((size,), 8.0 * (2 * size + 1)))


def small_model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(30, 60), nn.ReLU(), nn.Linear(60, 60), nn.ReLU(), nn.Linear(60, 5)
    )


def hooked(rank: int) -> None:
    """PowerSGD waits within its callbacks; several buckets."""
    ddp = DistributedDataParallel(small_model(), bucket_cap_mb=0.005)
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=1, start_powerSGD_iter=2, warm_start=True
    )
    ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    for step in range(6):
        torch.manual_seed(10 * step + rank)
        ddp(torch.randn(4, 30)).square().mean().backward()
    ours = torch.cat([p.grad.flatten() for p in ddp.parameters() if p.grad is not None])
    theirs = ours.clone()
    dist.broadcast(theirs, 0)
    assert torch.equal(ours, theirs)


def joined(rank: int) -> None:
    for divides_by_all in (True, False):
        ddp = DistributedDataParallel(small_model())
        # With False, C++ asks a Work that Python has dropped how many ranks are left.
        with ddp.join(divide_by_initial_world_size=divides_by_all):
            for _ in range(3 + 2 * rank):
                ddp(torch.randn(4, 30)).square().mean().backward()


def inferring(rank: int) -> None:
    for _ in range(20):  # The callback runs here or in the thread of the engine.
        with torch.inference_mode():
            strided = torch.full((4, 4), float(rank)).t()[::2]
            parts = [torch.empty(3) for _ in range(2)]
            dist.all_reduce(strided)
            dist.all_gather(parts, torch.full((3,), float(rank)))
            assert strided.sum() == 8 and torch.cat(parts).sum() == 3
        dist.all_reduce(strided)  # Inference tensors, outside.
        dist.all_gather(parts, parts[rank])
        assert strided.sum() == 16 and torch.cat(parts).sum() == 3


def strided(rank: int) -> None:
    """A column of one row, or of none, is contiguous with a stride of several elements."""
    for count in (1, 0):
        for dtype in (torch.float16, torch.float32, torch.int64):
            column = torch.full((count, 3), rank + 1).to(dtype)[:, 1]
            place = torch.zeros(count, 2).to(dtype)[:, 0]
            assert column.is_contiguous() and column.stride() == (3,)
            if rank == 0:
                dist.send(column, 1)
                dist.recv(place, 1)
            else:
                dist.recv(place, 0)
                dist.send(column, 0)
            assert place.tolist() == [2 - rank] * count
            parts = [torch.zeros(count, 2).to(dtype)[:, 0] for _ in range(2)]
            dist.all_gather(parts, column)
            assert [each.tolist() for each in parts] == [[1] * count, [2] * count]
            dist.broadcast(column, 1)
            assert column.tolist() == [2] * count
            dist.all_reduce(column)
            assert column.tolist() == [4] * count


def uneven(rank: int) -> None:
    mine = torch.full((rank + 1, 2), float(rank))
    parts = [torch.empty(1, 2), torch.empty(2, 2)]
    dist.all_gather(parts, mine)
    assert [part.sum().item() for part in parts] == [0.0, 4.0]
    output = torch.empty(rank + 1)
    dist.reduce_scatter(output, [torch.full((1,), 5.0), torch.full((2,), 7.0)])
    assert output.tolist() == [[10.0], [14.0, 14.0]][rank]
    lists = [[torch.empty(2), torch.empty(1)] for _ in range(2)]
    group = dist.group.WORLD
    group.allgather_coalesced(lists, [torch.full((2,), rank + 1.0), torch.zeros(1)]).wait()
    assert [each[0].tolist() for each in lists] == [[1.0, 1.0], [2.0, 2.0]]


def overloaded(rank: int) -> None:
    """As C++ and code for process groups call them."""
    group = dist.group.WORLD
    tensor = torch.full((2,), float(rank))
    group.broadcast(tensor, root=1).wait()
    group.broadcast(tensor, 1, timedelta(seconds=5)).wait()
    assert tensor.tolist() == [1.0, 1.0]
    group.allreduce(tensor, dist.ReduceOp.MAX).wait()
    group.allreduce([tensor], op=dist.ReduceOp.SUM).wait()
    group.allreduce(tensor).wait()
    assert tensor.tolist() == [4.0, 4.0]
    group.reduce(tensor, root=0, op=dist.ReduceOp.SUM).wait()
    assert tensor.tolist() == [[8.0, 8.0], [4.0, 4.0]][rank]
    own, places = torch.full((2,), float(rank)), [torch.empty(2), torch.empty(2)]
    group.allgather(places, own).wait()
    assert torch.stack(places).tolist() == [[0, 0], [1, 1]]
    group.gather(places if rank == 0 else [], own, root=0).wait()
    group.scatter(own, places if rank == 0 else [], root=0).wait()
    assert own.tolist() == [float(rank)] * 2
    group.reduce_scatter(own, places, dist.ReduceOp.SUM).wait()
    assert own.tolist() == [2.0 * rank] * 2
    work = group.alltoall_base(torch.empty(2), own, [], [])
    work.wait()
    assert work.is_completed() and work.is_success()
    group.barrier(timeout=timedelta(seconds=5)).wait()


def refused(rank: int) -> None:
    """Mistakes are named, and the group goes on."""
    group = dist.group.WORLD
    with pytest.raises(ValueError, match=r"all_gather: 3 elements"):
        group._allgather_base(torch.empty(7), torch.empty(3))
    with pytest.raises(ValueError, match=r"all_gather: places for \[3, 3\]"):
        group.allgather([[torch.empty(3), torch.empty(3)]], [torch.empty(4)])
    with pytest.raises(ValueError, match="broadcast: there is no rank 7"):
        group.broadcast(torch.empty(1), 7)
    with pytest.raises(TypeError, match="broadcast: expected a dense tensor in CPU memory"):
        group.broadcast(torch.empty(1, device="meta"), 0)
    with pytest.raises(TypeError, match="unknown"):
        group.broadcast(torch.empty(1), 0, unknown=3)
    with pytest.raises(NotImplementedError, match="reduce: PREMUL_SUM is not supported"):
        group.reduce(torch.empty(1), 0, dist.ReduceOp.PREMUL_SUM)
    with pytest.raises(TypeError, match=r"all_reduce: .*float32 is not reduced bit by bit"):
        dist.all_reduce(torch.ones(1), dist.ReduceOp.BAND)
    # Nothing is rounded to another dtype unsaid.
    with pytest.raises(ValueError, match=r"reduce_scatter: .*float32, and a shard is .*64"):
        group.reduce_scatter(torch.empty(2), [torch.ones(2, dtype=torch.float64)] * 2)
    for whole in (torch.ones(8), torch.ones(7), torch.ones(4)):  # The output has 3 elements.
        with pytest.raises(ValueError, match=rf"reduce_scatter: {len(whole)} elements"):
            dist.reduce_scatter_tensor(torch.empty(3), whole)
    # Only one rank knows: both raise.
    parts = [torch.zeros(2), torch.zeros(3)] if rank == 0 else []
    if rank == 0:
        with pytest.raises(ValueError, match="scatter: the root has a part"):
            group.scatter(torch.empty(2), parts, 0)
    else:
        with pytest.raises(RuntimeError, match="rank 0 had no parts that fit"):
            group.scatter(torch.empty(2), parts, 0).wait()
    with pytest.raises(ValueError, match=r"all_to_all: rank 1 is sent \[1, 1\]"):
        dist.all_to_all([torch.empty(1), torch.empty(1 + rank)], [torch.empty(1), torch.empty(1)])
    for place in (torch.empty(9), torch.empty(2, dtype=torch.int32)):
        if rank == 0:
            with pytest.raises(ValueError, match="gather: the root has places"):
                group.gather([place] * 2, torch.zeros(2), 0)
        else:
            group.gather([], torch.zeros(2), 0).wait()
    one = torch.ones(1)
    dist.all_reduce(one)
    assert one.item() == 2


def profiled(rank: int) -> None:
    del rank
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        work = dist.all_reduce(torch.ones(1000), async_op=True)
        dist.barrier()
        assert work is not None
        work.wait()
    names = {event.key for event in profile.key_averages()}
    assert {"ffrecord:all_reduce", "ffrecord:barrier"} <= names


def functional(rank: int) -> None:
    """As compiled models and DTensor call them, whose Works C++ alone holds."""
    group = dist.group.WORLD
    summed = funcol.all_reduce(torch.full((3,), float(rank)), "sum", group)
    whole = funcol.all_gather_tensor(torch.full((2,), float(rank)), 0, group)
    part = funcol.reduce_scatter_tensor(torch.arange(4.0), "sum", 0, group)
    assert funcol.wait_tensor(summed).tolist() == [1.0] * 3
    assert funcol.wait_tensor(whole).tolist() == [0.0, 0.0, 1.0, 1.0]
    assert funcol.wait_tensor(part).tolist() == [[0.0, 2.0], [4.0, 6.0]][rank]


def late(rank: int) -> None:
    """One rank does not come in time: the error says that, and that it lives."""
    group = dist.new_group(backend="ffrecord", timeout=timedelta(seconds=1))
    if rank == 0:
        work = dist.all_reduce(torch.ones(3), group=group, async_op=True)
        assert work is not None
        with pytest.raises(RuntimeError, match=r"timed out.*rank 1 answers but has not joined"):
            work.wait()
    dist.barrier()
    group.shutdown()  # type: ignore[union-attr]


CASES = (
    integers,
    nested,
    hooked,
    joined,
    inferring,
    strided,
    uneven,
    overloaded,
    refused,
    profiled,
    functional,
    late,
)


def all_cases(rank: int, world: int, folder: str) -> list[str]:
    """What went wrong, one line for each case."""
    faulthandler.dump_traceback_later(90, exit=True)  # Some of it waited for ever once.
    dist.destroy_process_group()
    dist.init_process_group(
        "ffrecord",
        store=dist.FileStore(f"{folder}/store", world),
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=30),
    )
    assert isinstance(dist.group.WORLD, ffrecord.distributed.backend.ProcessGroup)
    wrong = []
    for case in CASES:
        try:
            case(rank)
        except BaseException as error:  # pytest's own are no Exception.
            wrong.append(f"{case.__name__}: {error!r}")
            break  # The ranks may be out of step.
    # As the interpreter's end would: no thread may be left that asks for the GIL then.
    pumps = [each for each in threading.enumerate() if each.name == "ffrecord-pump"]
    atexit._run_exitfuncs()
    return wrong + [f"{pump} runs on" for pump in pumps if pump.is_alive()]


def test_what_torch_and_its_users_do_goes_with_ours(tmp_path: Any) -> None:  # noqa: ANN401
    assert run_ranks(all_cases, 2, str(tmp_path)) == [[], []]
