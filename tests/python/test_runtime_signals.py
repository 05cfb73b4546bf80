"""Goal: the collectives of a training signal when they need the network, and never disturb it.

Method: ranks over Gloo on loopback, with recorded signals in the place of the pacer. A phase has
ended when its end is recorded; what was not recorded when `detach` returns never will be.
"""

import os
import signal
import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from eventually import eventually
from ffrecord import runtime
from ranks import Ranks, run_ranks
from recorded_signals import Recorded


def model() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 30), nn.Linear(30, 3))


def train(model: nn.Module, rank: int, steps: int = 3) -> list[list[float]]:
    """Returns all parameters, exactly."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        torch.manual_seed(100 * step + rank)
        optimizer.zero_grad()
        model(torch.randn(8, 20)).square().mean().backward()
        optimizer.step()
    return [p.detach().flatten().tolist() for p in whole(model)]


def whole(model: nn.Module) -> list[Any]:
    return [getattr(p, "full_tensor", lambda p=p: p)() for p in model.parameters()]


# --- Plain collectives ---------------------------------------------------------------------------


def every_collective(rank: int, world: int) -> object:
    del rank
    told, mine = Recorded(), torch.ones(1000)
    all_, parts = torch.ones(1000 * world), [torch.ones(1000) for _ in range(world)]
    before = dist.all_reduce(mine, async_op=True)
    assert before is not None
    before.wait()
    with runtime.attach(dist.group.WORLD, signals=told) as attachment:
        # Only the program's own wait completes this one: its phase ends with the next.
        dist.reduce_scatter_tensor(mine, all_)
        for collective in (
            lambda: dist.all_reduce(mine),
            lambda: dist.broadcast(mine, 0),
            lambda: dist.all_gather(parts, mine),
            lambda: dist.all_gather_into_tensor(all_, mine),
            lambda: dist.reduce(mine, 0),
            lambda: dist.all_to_all_single(all_, all_.clone()),
        ):
            count = told.count("begin collective")
            collective()
            assert told.count("begin collective") == count + 1
            # Its end comes by itself, not by the next one or by detach.
            eventually(lambda: told.depths()[-1] == 0)
        dist.barrier()  # Moves no data.
        errors = attachment.errors
    dist.all_reduce(mine)
    return {"sizes": told.sizes(), "names": told.names(), "depths": told.depths(), "errors": errors}


def test_each_collective_is_one_phase_of_its_size() -> None:
    for found in run_ranks(every_collective, 2):
        assert found["errors"] == []
        assert found["names"].count("end collective") == 7
        assert max(found["depths"]) <= 2
        assert found["names"][3:] == ["end collective", *["begin collective", "end collective"] * 5]
        one, all_ = 4000, 8000
        assert found["sizes"] == [all_, one, one, all_, all_, one, all_]


def many_threads(rank: int, world: int) -> object:
    del world
    groups = [dist.new_group() for _ in range(3)]
    told = Recorded()

    def reduce(group: dist.ProcessGroup) -> None:
        for _ in range(20):
            tensor = torch.full((500,), float(rank))
            dist.all_reduce(tensor, group=group)
            assert tensor[0] == 1

    with runtime.attach(signals=told) as attachment:
        threads = [threading.Thread(target=reduce, args=(group,)) for group in groups]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        eventually(lambda: told.depths()[-1] == 0)
        errors = attachment.errors
    return {"depths": told.depths(), "begins": told.count("begin collective"), "errors": errors}


def test_phases_of_many_threads_overlap_and_all_end() -> None:
    for found in run_ranks(many_threads, 2):
        assert found["errors"] == []
        assert found["begins"] == 60
        assert min(found["depths"]) == 0


def nested(rank: int, world: int) -> object:
    del rank, world
    told = Recorded()
    with runtime.attach(dist.group.WORLD, signals=told):
        works = [dist.all_reduce(torch.ones(100_000), async_op=True) for _ in range(4)]
        for work in works:
            assert work is not None
            work.wait()
        eventually(lambda: told.depths()[-1] == 0)
    return told.names()


def test_collectives_that_run_at_one_time_are_phases_that_overlap() -> None:
    for names in run_ranks(nested, 2):
        assert sorted(names) == ["begin collective"] * 4 + ["end collective"] * 4


# --- Models --------------------------------------------------------------------------------------


def data_parallel(rank: int, world: int) -> object:
    del world
    plain = train(DistributedDataParallel(model()), rank)
    told, wrapped = Recorded(), DistributedDataParallel(model())
    with runtime.attach(wrapped, signals=told) as attachment:
        signalling = train(wrapped, rank)
        found = {"source": attachment.source, "errors": attachment.errors}
    assert signalling == plain
    return found | {"names": told.names(), "sizes": told.sizes()}


def test_ddp_signals_its_gradients_and_trains_to_the_same_bits() -> None:
    gradients = sum(p.nbytes for p in model().parameters())
    for found in run_ranks(data_parallel, 2):
        assert found["errors"] == []
        assert found["source"] in ("hooks", "gradients")
        names = found["names"]
        assert names.count("step") == 3
        assert names.count("begin collective") == names.count("end collective")
        assert sum(found["sizes"]) >= 3 * gradients
        assert all("begin" in step for step in " ".join(names).split("step")[:3])


def sharded(rank: int, world: int) -> object:
    def shards() -> nn.Module:
        made = model()
        for layer in made:
            if isinstance(layer, nn.Linear):
                fully_shard(layer)
        return fully_shard(made)

    del world
    plain = train(shards(), rank)
    told, wrapped = Recorded(), shards()
    with runtime.attach(wrapped, signals=told) as attachment:
        signalling = train(wrapped, rank)
        errors = attachment.errors
    assert signalling == plain
    return {"names": told.names(), "errors": errors}


def test_fsdp2_signals_its_gathers_and_reductions_and_trains_to_the_same_bits() -> None:
    for found in run_ranks(sharded, 2):
        assert found["errors"] == []
        assert found["names"].count("step") == 3
        # Three layers, gathered forward and reduced backward, in three steps.
        assert found["names"].count("begin collective") >= 3 * 3 * 2
        assert found["names"].count("begin collective") == found["names"].count("end collective")


# --- What goes wrong -----------------------------------------------------------------------------


def dies(rank: int, world: int) -> object:
    del world
    told = Recorded()
    with runtime.attach(dist.group.WORLD, signals=told) as attachment:
        dist.all_reduce(torch.ones(10))
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(RuntimeError):
            while True:
                dist.all_reduce(torch.ones(1_000_000))
        eventually(lambda: told.depths()[-1] == 0)
        assert attachment.errors == []
    return told.depths()[-1]


def test_when_a_rank_dies_the_others_get_their_error_and_no_phase_stays_open() -> None:
    ranks = Ranks(dies, 2)
    with pytest.raises(Exception, match="SIGKILL"):
        while not ranks.context.join():
            pass
    eventually(lambda: all(not each.is_alive() for each in ranks.context.processes))


def destroyed(rank: int, world: int) -> object:
    del rank, world
    told = Recorded()
    attachment = runtime.attach(signals=told)
    dist.all_reduce(torch.ones(10))
    dist.destroy_process_group()
    attachment.detach()
    attachment.detach()
    return told.names()


def test_a_group_may_be_destroyed_while_it_is_attached() -> None:
    for names in run_ranks(destroyed, 2):
        assert names == ["begin collective", "end collective"]


def twice(rank: int, world: int) -> object:
    del rank, world
    told = Recorded()
    wrapped = DistributedDataParallel(model())
    first = runtime.attach(wrapped, signals=told)
    assert runtime.attach(wrapped, signals=told) is first
    dist.all_reduce(torch.ones(10))
    first.detach()
    second = runtime.attach(wrapped, signals=told)
    assert second is not first
    dist.all_reduce(torch.ones(10))
    runtime.detach()
    dist.all_reduce(torch.ones(10))
    return told.names()


def test_what_is_attached_twice_signals_once_and_can_be_attached_again() -> None:
    for names in run_ranks(twice, 2):
        assert names == ["begin collective", "end collective"] * 2


class Failing(Recorded):
    """A pacer that is broken."""

    def phase_begin(self, kind: str, size_bytes: int) -> None:  # noqa: D102
        raise ValueError(f"no {kind} of {size_bytes}")


def broken(rank: int, world: int) -> object:
    told = Failing()
    with runtime.attach(dist.group.WORLD, signals=told) as attachment:
        tensor = torch.full((10,), float(rank))
        dist.all_reduce(tensor)
        assert tensor[0] == sum(range(world))
        return attachment.errors


def test_an_error_in_a_hook_is_kept_and_never_reaches_the_training() -> None:
    for errors in run_ranks(broken, 2):
        assert errors == ["ValueError: no collective of 40"]


def forked(rank: int, world: int) -> object:
    del rank, world
    told = Recorded()
    wrapped = model()
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    with runtime.attach(wrapped, signals=told) as attachment:
        optimizer.step()
        child = os.fork()
        if child == 0:
            optimizer.step()
            attachment.detach()
            runtime.detach()
            os._exit(len(told.events))
        _, status = os.waitpid(child, 0)
        optimizer.step()
    return [os.waitstatus_to_exitcode(status), *told.names()]


def test_a_forked_child_signals_nothing() -> None:
    for found in run_ranks(forked, 2):
        assert found == [1, "step", "step"]
