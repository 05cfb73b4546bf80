"""Goal: what single ranks of a group of ours send to each other arrives as it does over Gloo.

Method: ranks send in every order of calls, with tags, sizes and layouts, and some of them do not
take part.
"""

import contextlib
import tempfile
import weakref
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import ffrecord.distributed.backend
from ranks import run_ranks


def ours(timeout_s: float = 60.0) -> dist.ProcessGroup:
    group = dist.new_group(backend="ffrecord", timeout=timedelta(seconds=timeout_s))
    assert isinstance(group, ffrecord.distributed.backend.ProcessGroup)
    return group


# --- Messages ------------------------------------------------------------------------------------


def ring(rank: int, world: int) -> object:
    """Each rank sends to the next: all send first, and then receive."""
    group, found = ours(), []
    for size in (0, 1, 1000, 300_000):
        for dtype in (torch.float32, torch.bool, torch.int64, torch.bfloat16):
            sent = (torch.arange(size) % 7 * (rank + 1)).to(dtype)
            received = torch.empty(size, dtype=dtype)
            last = (rank - 1) % world
            work = dist.isend(sent, (rank + 1) % world, group=group)
            dist.recv(received, last, group=group)
            assert work is not None
            work.wait()
            found.append(torch.equal(received, (torch.arange(size) % 7 * (last + 1)).to(dtype)))
    return found


def test_all_ranks_may_send_before_they_receive() -> None:
    for found in run_ranks(ring, 3):
        assert found == [True] * 16


def sends_first(rank: int, world: int, is_profiled: bool) -> object:
    group, found = ours(), []
    profiler = torch.profiler.profile() if is_profiled else contextlib.nullcontext()
    with profiler:  # It makes torch wait for futures, in place of the works.
        for size in (10, 5_000_000, 0, 5_000_000):
            for count in (1, 3):
                for number in range(count):
                    sent = torch.full((size,), float(10 * rank + number))
                    dist.send(sent, (rank + 1) % world, group=group)
                last = (rank - 1) % world
                for number in range(count):
                    received = torch.empty(size)
                    dist.recv(received, last, group=group)
                    found.append(bool((received == 10 * last + number).all()))
    return found


@pytest.mark.parametrize("is_profiled", [False, True])
@pytest.mark.parametrize("world", [2, 3])
def test_all_ranks_may_wait_in_a_send_before_they_receive(world: int, is_profiled: bool) -> None:
    for found in run_ranks(sends_first, world, is_profiled):
        assert found == [True] * 16


def receives_elsewhere(rank: int, world: int) -> object:
    del world
    group = ours()
    place = torch.empty(3)
    # Rank 1 waits for rank 0, which waits for rank 2, whose first message is for rank 1.
    if rank == 2:
        dist.send(torch.full((3,), 21.0), 1, group=group)
        dist.send(torch.full((3,), 20.0), 0, group=group)
        return []
    found = []
    for source in (2,) if rank == 0 else (0, 2):
        dist.recv(place, source, group=group)
        found.append(place.tolist())
    if rank == 0:
        dist.send(torch.full((3,), 1.0), 1, group=group)
    return found


def test_a_rank_that_waits_for_one_rank_holds_up_no_other() -> None:
    assert run_ranks(receives_elsewhere, 3) == [[[20.0] * 3], [[1.0] * 3, [21.0] * 3], []]


def tags(rank: int, world: int) -> object:
    del world
    group = ours()
    if rank == 0:
        for value in range(6):
            dist.send(torch.full((value + 1,), value), 1, group=group, tag=value % 3)
        return None
    # In another order than they come; with one tag, in the order in which they were sent.
    found = []
    for value in (2, 1, 5, 0, 3, 4):
        place = torch.empty(value + 1, dtype=torch.int64)
        dist.recv(place, 0, group=group, tag=value % 3)
        found.append(place.tolist() == [value] * (value + 1))
    return found


def test_messages_are_matched_by_their_tags() -> None:
    assert run_ranks(tags, 2)[1] == [True] * 6


def batch(rank: int, world: int) -> object:
    group = ours()
    places = [torch.empty(100, 3).T for _ in range(world)]  # Not contiguous.
    operations = []
    for other in range(world):
        if other != rank:
            operations.append(dist.P2POp(dist.irecv, places[other], other, group=group))
            mine = torch.full((3, 100), float(10 * rank + other))
            operations.append(dist.P2POp(dist.isend, mine, other, group=group))
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    dist.all_reduce(torch.ones(10), group=group)  # Collectives go on beside them.
    return [float(place.mean()) for other, place in enumerate(places) if other != rank]


def test_a_batch_of_sends_and_receives() -> None:
    for rank, found in enumerate(run_ranks(batch, 3)):
        assert found == [10.0 * other + rank for other in range(3) if other != rank]


def objects(rank: int, world: int) -> object:
    del world
    group = ours()
    if rank == 0:
        dist.send_object_list([{"a": 1}, "two"], 1, group=group)
        return None
    found: list[object] = [None, None]
    dist.recv_object_list(found, 0, group=group)
    return found


def test_objects_are_sent_as_pickles() -> None:
    assert run_ranks(objects, 2)[1] == [{"a": 1}, "two"]


# --- Mistakes and ranks that do not take part ----------------------------------------------------


def mistakes(rank: int, world: int) -> object:
    group = ours()
    if rank == 0:
        dist.send(torch.ones(5), 1, group=group)
        dist.send(torch.ones(6), 1, group=group)
        with pytest.raises(ValueError, match=f"rank 0 of {world} has no line to rank 0"):
            group.send([torch.ones(1)], 0, 0)
        return True
    place = torch.empty(6)
    with pytest.raises(RuntimeError, match="20 bytes were sent with tag 0, and the tensor has 24"):
        dist.recv(place, 0, group=group)
    dist.recv(place, 0, group=group)  # The next is not touched by it.
    assert place.tolist() == [1.0] * 6
    return True


def test_a_message_of_another_size_is_refused_and_the_next_one_comes() -> None:
    assert all(run_ranks(mistakes, 2))


def alone(rank: int, world: int) -> object:
    del world
    group = ours(timeout_s=0.5)
    if rank == 1:
        return None  # It sends nothing.
    work = dist.irecv(torch.empty(1), 1, group=group)
    assert work is not None
    with pytest.raises(RuntimeError, match=r"line 1 to 0: the other rank does not take part"):
        work.wait()
    return True


def test_a_rank_that_never_sends_is_named() -> None:
    assert run_ranks(alone, 2)[0]


def gone(rank: int, world: int) -> object:
    """Rank 2 leaves after it has exchanged messages with rank 1."""
    del world
    group = ours(timeout_s=20)
    if rank == 0:
        return None
    one = torch.ones(1)
    for receiver in (1, 2):
        if rank == receiver:
            dist.recv(one, 3 - rank, group=group)
        else:
            dist.send(one, 3 - rank, group=group)
    if rank == 2:
        group.shutdown()
        return None
    found = []
    large = torch.empty(10_000_000)  # More than is under way when the receiver is gone.
    for call in (dist.recv, dist.send) * 2:  # Later ones are refused when they begin.
        with pytest.raises(RuntimeError) as failure:
            call(large, 2, group=group)
        found.append(str(failure.value))
    return found


def test_errors_have_the_ranks_of_the_group() -> None:
    found = run_ranks(gone, 3)[1]
    for text, line in zip(found, ("line 2 to 1: rank 2 ", "line 1 to 2: ") * 2, strict=True):
        assert line in text
        assert "rank 2 at" in text
        assert "rank 0" not in text


def left(rank: int, world: int) -> object:
    del rank, world
    group = ours()
    work = dist.irecv(torch.empty(1), 1 - dist.get_rank(), group=group)
    group.shutdown()
    assert work is not None
    with pytest.raises(RuntimeError, match="has left the group"):
        work.wait()
    return True


def test_what_is_pending_fails_when_a_rank_leaves() -> None:
    assert all(run_ranks(left, 2))


# --- The monitored barrier -----------------------------------------------------------------------


def monitored(rank: int, world: int) -> object:
    group, found = ours(), []
    group.monitored_barrier()  # type: ignore[attr-defined]
    for wait_all_ranks in (False, True):
        if rank in (0, 3):
            with pytest.raises(RuntimeError) as raised:
                group.monitored_barrier(  # type: ignore[attr-defined]
                    timedelta(seconds=0.5), wait_all_ranks=wait_all_ranks
                )
            found.append(str(raised.value))
        dist.barrier()
    dist.all_reduce(torch.ones(1), group=group)  # The group is as it was.
    assert world == 4
    return found


def test_a_monitored_barrier_names_the_ranks_that_are_missing() -> None:
    found = run_ranks(monitored, 4)
    assert found[0] == found[3]
    assert found[0] == [
        "monitored_barrier: rank 1 did not arrive within 0.5 s",
        "monitored_barrier: ranks 1, 2 did not arrive within 0.5 s",
    ]


# --- Several at once, and sparse tensors ---------------------------------------------------------


def coalesced(rank: int, world: int) -> object:
    group = ours()
    cpu, tensors = torch.device("cpu"), [torch.full((3,), float(rank)), torch.ones(5)]
    with dist._coalescing_manager(group, async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor, group=group)
    manager.wait()
    with dist._coalescing_manager(group, cpu, async_ops=True) as manager:
        sent = dist.isend(tensors[1][:3], (rank + 1) % world, group=group)
        dist.irecv(tensors[0], (rank - 1) % world, group=group)
    manager.wait()
    assert sent is not None and sent.is_completed()
    return [tensor.tolist() for tensor in tensors]


def test_coalesced_operations_end_together() -> None:
    for first, second in run_ranks(coalesced, 2):
        assert second == [2.0] * 5
        assert first == [2.0] * 3


def left_by_an_error(rank: int, _world: int) -> object:
    group, cpu = ours(), torch.device("cpu")
    with pytest.raises(KeyError), dist._coalescing_manager(group, cpu):
        raise KeyError
    tensors = [torch.ones(8) for _ in range(20)]
    held = [weakref.ref(tensor) for tensor in tensors]
    while tensors:
        group.broadcast(tensors.pop(), root=0).wait()
    is_held = [each() is not None for each in held]
    # And the next block is whole.
    array = torch.full((2,), 1.0 + rank)
    with dist._coalescing_manager(group, cpu):
        dist.broadcast(array, src=0, group=group, async_op=True)
    return sum(is_held), array.tolist()


def test_an_error_between_coalesced_operations_keeps_no_later_tensors() -> None:
    for held, array in run_ranks(left_by_an_error, 2):
        assert held <= 2
        assert array == [1.0, 1.0]


def sparse(rank: int, world: int) -> object:
    group, gloo = ours(), dist.new_group(backend="gloo")
    for nnz in (0, 1, rank, 5):
        for dense in ((), (4,)):
            indices = torch.arange(nnz).view(1, -1) * (rank + 1) % 7
            tensor = torch.sparse_coo_tensor(indices, torch.randn(nnz, *dense), (7, *dense))
            mine, theirs = tensor.clone(), tensor.clone()
            dist.all_reduce(mine, group=group)
            dist.all_reduce(theirs, group=gloo)
            torch.testing.assert_close(mine.to_dense(), theirs.to_dense())
    with pytest.raises(ValueError, match="sparse tensors differ in kind"):
        group.allreduce([torch.zeros(3 + rank).to_sparse()])
    with pytest.raises(TypeError, match="sparse tensors have a sum here, and no max"):
        dist.all_reduce(torch.zeros(3).to_sparse(), dist.ReduceOp.MAX, group=group)
    return world


def test_sparse_tensors_are_summed_as_over_gloo() -> None:
    assert run_ranks(sparse, 3) == [3] * 3


def embedding(rank: int, world: int, folder: str) -> object:
    def train() -> list[float]:
        torch.manual_seed(3)
        table = torch.nn.Embedding(50, 8, sparse=True)
        model = torch.nn.parallel.DistributedDataParallel(
            torch.nn.Sequential(table, torch.nn.Linear(8, 1))
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for step in range(4):
            torch.manual_seed(10 * step + rank)
            optimizer.zero_grad()
            loss = model(torch.randint(50, (16,))).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        return losses

    by_gloo = train()
    dist.destroy_process_group()
    dist.init_process_group(
        "ffrecord", store=dist.FileStore(f"{folder}/store", world), rank=rank, world_size=world
    )
    return [by_gloo, train()]


def test_ddp_trains_a_sparse_embedding_as_over_gloo() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for by_gloo, by_ours in run_ranks(embedding, 2, folder):
            assert by_ours == pytest.approx(by_gloo, rel=1e-5)
