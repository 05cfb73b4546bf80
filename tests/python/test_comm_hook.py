"""Goal: gradients of DDP through the hook equal those of default DDP, bit for bit on all ranks.

Method: ranks train a small model with both and write what they saw to files; ranks that
are killed, stopped or refuse, and what the others then raise, and when.
"""

import copy
import io
import os
import signal
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ffrecord.distributed
from ffrecord import errors
from ffrecord.distributed import CommHook, comm_hook
from ffrecord.distributed._group import Algorithm, timeout_of
from ranks import Ranks, run_ranks

TIMEOUT_S = 8.0


def make_model(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(5)
    layers = [nn.Linear(64, 300), nn.ReLU(), nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 10)]
    return nn.Sequential(*layers).to(dtype)


def gradients_of(
    rank: int, dtype: torch.dtype, hook: CommHook | None, view: bool
) -> list[torch.Tensor]:
    """The gradients of three steps, one after another; buckets are small, so there are several."""
    model = DistributedDataParallel(
        make_model(dtype), bucket_cap_mb=0.1, gradient_as_bucket_view=view
    )
    if hook is not None:
        model.register_comm_hook(hook, comm_hook)
    gradients = []
    for step in range(3):
        torch.manual_seed(100 * step + rank)
        model.zero_grad()
        model(torch.randn(16, 64).to(dtype)).square().mean().backward()
        gradients += [p.grad.detach().clone() for p in model.parameters() if p.grad is not None]
    return gradients


def compare(
    rank: int, world: int, folder: str, algorithm: Algorithm | None, cases: list[tuple[str, bool]]
) -> object:
    del world
    found = []
    for dtype_name, view in cases:
        dtype = getattr(torch, dtype_name)
        with CommHook(timeout_s=TIMEOUT_S, chunk_size_bytes=4096, algorithm=algorithm) as hook:
            sums_overflow = torch.full((5,), 6e4, dtype=torch.float16)
            hook.all_reduce(sums_overflow, "average").wait()
            assert torch.allclose(sums_overflow.float(), torch.tensor(6e4), rtol=2e-3)
            joined = hook.stats()
            ours = gradients_of(rank, dtype, hook, view)
            stats = hook.stats()
        theirs = gradients_of(rank, dtype, None, view)
        bits = torch.cat([g.flatten() for g in ours]).view(torch.uint8).numpy().tobytes()
        Path(folder, f"{dtype_name}{rank}").write_bytes(bits)
        scale = max(float(g.double().abs().max()) for g in theirs)
        error = max(
            float((a.double() - b.double()).abs().max()) for a, b in zip(ours, theirs, strict=True)
        )
        found.append(
            {
                "error": error / scale,
                "buckets": max(t.bucket for t in stats.transfers) + 1,
                "transfers": len(stats.transfers) - len(joined.transfers),
                "ok": all(t.ok for t in stats.transfers),
                "in_order": all(
                    t.submitted_ns <= t.ended_ns and t.began_ns <= t.ended_ns
                    for t in stats.transfers
                ),
                "size_bytes": sum(t.size_bytes for t in stats.transfers[len(joined.transfers) :]),
                "gradient_bytes": sum(g.numel() * g.element_size() for g in ours),
                "operations": stats.operations - joined.operations,
                "bytes_moved": stats.bytes_sent
                + stats.bytes_shared
                - joined.bytes_sent
                - joined.bytes_shared,
            }
        )
    return found


@pytest.mark.parametrize(
    ("world", "algorithm", "cases", "tolerances"),
    [
        (2, None, [("float32", False), ("float64", True), ("float16", True)], [0, 0, 0]),
        (3, "ring", [("float32", True), ("bfloat16", False)], [1e-6, 2e-2]),
        (3, "double_tree", [("float32", False)], [1e-6]),
    ],
)
def test_gradients_are_those_of_default_ddp_and_equal_in_bits_on_all_ranks(
    tmp_path: Path,
    world: int,
    algorithm: Algorithm | None,
    cases: list[tuple[str, bool]],
    tolerances: list[float],
) -> None:
    found = run_ranks(compare, world, str(tmp_path), algorithm, cases)

    for case, ((dtype_name, _), tolerance) in enumerate(zip(cases, tolerances, strict=True)):
        bits = {(tmp_path / f"{dtype_name}{rank}").read_bytes() for rank in range(world)}
        assert len(bits) == 1
        for rank in (found[rank][case] for rank in range(world)):
            assert rank["error"] <= tolerance
            assert rank["ok"] and rank["in_order"]
            assert rank["buckets"] > 1
            assert rank["size_bytes"] == rank["gradient_bytes"]
            assert rank["operations"] == rank["transfers"]
            if algorithm == "ring":
                bound = rank["gradient_bytes"] * 2 * (world - 1) / world
                assert bound * 0.99 <= rank["bytes_moved"] <= bound * 1.1


def killed(rank: int, world: int, how: int) -> object:
    del world
    # At once where the connection ends; else when nothing has moved for two seconds.
    hook = CommHook(timeout_s=600.0 if how == signal.SIGKILL else 2.0)
    ddp = DistributedDataParallel(make_model(torch.float32))
    assert hook.register(ddp) is hook
    for step in range(1000):
        if rank == 1 and step == 3:
            os.kill(os.getpid(), how)
        try:
            ddp(torch.randn(16, 64)).square().mean().backward()
        except RuntimeError as error:
            later = ""
            try:
                hook.all_reduce(torch.zeros(3))
            except (errors.UnavailableError, errors.DeadlineExceeded) as closed:
                later = str(closed)
            return {"error": str(error), "later": later}
    return {"error": "none"}


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_is_killed_or_stopped_raises_on_the_others_and_nobody_hangs(how: int) -> None:
    ranks = Ranks(killed, 3, how)
    try:
        for rank in (0, 2):
            ranks.context.processes[rank].join(100)
            assert ranks.context.processes[rank].exitcode == 0
    finally:
        for process in ranks.context.processes:
            process.kill()
            process.join(10)

    for rank in (0, 2):
        found = ranks.found(rank)
        assert "rank 1" in found["error"]
        assert "rank 1" in found["later"]


def bereaved(rank: int, world: int, autotune: bool) -> object:
    """Backward in a group that was already given up when the first gradient was ready."""
    del world
    hook = CommHook(timeout_s=TIMEOUT_S, autotune=autotune)
    ddp = DistributedDataParallel(make_model(torch.float32))
    hook.register(ddp)
    for _ in range(2):  # At the second, DDP itself asks the others for the order of its buckets.
        ddp(torch.randn(16, 64)).square().mean().backward()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(errors.UnavailableError, match="rank 1"):
        while True:
            hook.all_reduce(torch.zeros(3)).wait()
    with pytest.raises(RuntimeError, match="rank 1"):
        ddp(torch.randn(16, 64)).square().mean().backward()
    return True


@pytest.mark.parametrize("autotune", [False, True])
def test_backward_in_a_group_that_was_given_up_before_raises_as_in_one_that_is_given_up(
    autotune: bool,
) -> None:
    ranks = Ranks(bereaved, 2, autotune)
    ranks.context.processes[0].join(100)
    assert ranks.found(0)
    ranks.context.processes[1].join(10)


def alone(rank: int, world: int) -> object:
    """World size one, tensors that are refused, a hook that is closed and one that is dropped."""
    del rank, world
    refused = []
    hook = CommHook(timeout_s=TIMEOUT_S)
    model = DistributedDataParallel(make_model(torch.float32))
    hook.register(model)
    saved = io.BytesIO()
    torch.save(model, saved)
    saved.seek(0)
    loaded = torch.load(saved, weights_only=False)
    with CommHook(timeout_s=TIMEOUT_S) as another:
        another.register(loaded)
        loaded(torch.randn(2, 64)).sum().backward()
        assert another.stats().transfers
    copy.deepcopy(model)(torch.randn(2, 64))
    with CommHook() as default:  # That of torch, or of the process group.
        assert timeout_of(None) == timedelta(minutes=30).total_seconds()
        default.all_reduce(torch.zeros(1)).wait()
    limited = dist.new_group(backend="gloo", timeout=timedelta(seconds=77))
    assert timeout_of(limited) == 77
    tensor = torch.arange(5.0)
    value = hook.all_reduce(tensor).wait()
    for wrong in (torch.zeros(2, dtype=torch.int32), torch.zeros(2, device="meta")):
        try:
            hook.all_reduce(wrong)
        except TypeError as error:
            refused.append(str(error))
    try:
        hook.all_reduce(torch.zeros(4, 4).t()[:2])
    except ValueError as error:
        refused.append(str(error))
    hook.close()
    hook.close()
    try:
        hook.all_reduce(tensor)
    except ConnectionError as error:
        refused.append(str(error))
    (thread,) = CommHook()._pump.threads  # Dropped at once.
    thread.join(10)
    return {
        "same": value is tensor or bool((value == tensor).all()),
        "refused": refused,
        "alive": thread.is_alive(),
    }


def test_misuse_is_refused_and_a_dropped_hook_ends_its_thread() -> None:
    (found,) = run_ranks(alone, 1)
    assert found["same"]
    assert not found["alive"]
    integers, device, strides, closed = found["refused"]
    assert "int32" in integers
    assert "meta" in device and "CPU memory" in device
    assert "contiguous" in strides
    assert "shut down" in closed


def different(rank: int, world: int) -> object:
    del world
    with CommHook(timeout_s=TIMEOUT_S) as hook:
        future = hook.all_reduce(torch.ones(10 + rank))
        try:
            future.wait()
        except ValueError as error:
            return str(error)
    return "nothing"


def test_buckets_that_differ_between_ranks_name_both() -> None:
    for found in run_ranks(different, 2):
        assert "average of 10 f32" in found
        assert "average of 11 f32" in found


def refused_listener(rank: int, world: int) -> object:
    del world
    try:
        CommHook(timeout_s=TIMEOUT_S, listen_host="203.0.113.1" if rank == 1 else "127.0.0.1")
    except OSError as error:
        return str(error)
    return "nothing"


def test_a_rank_that_cannot_listen_is_named_on_the_others() -> None:
    zero, one = run_ranks(refused_listener, 2)
    assert "203.0.113.1" in one
    assert "[1]" in zero


def refused_transport(rank: int, world: int) -> object:
    del world
    try:
        if rank == 1:
            CommHook(timeout_s=TIMEOUT_S, transport="rdma", rdma_devices=["no-such-device"])
        else:
            CommHook(timeout_s=TIMEOUT_S)
    except OSError as error:
        return str(error)
    return "nothing"


def test_a_rank_that_cannot_have_rdma_says_why_and_is_named_on_the_others() -> None:
    zero, one = run_ranks(refused_transport, 2)
    assert "no-such-device" in one or "RDMA" in one
    assert "[1]" in zero


def refused_mark(rank: int, world: int) -> object:
    del rank, world
    with pytest.raises(ValueError, match="rdma_service_level at most 15"):
        CommHook(timeout_s=TIMEOUT_S, transport="rdma", rdma_service_level=16)
    return "refused"


def test_a_mark_that_does_not_fit_is_refused_on_all_ranks() -> None:
    assert run_ranks(refused_mark, 2) == ["refused", "refused"]


def test_without_torch_distributed_the_error_says_what_to_call() -> None:
    with pytest.raises(RuntimeError, match="init_process_group"):
        CommHook()


def test_the_hook_is_what_ddp_asks_for() -> None:
    assert ffrecord.distributed.comm_hook is comm_hook
    annotations = comm_hook.__annotations__
    assert annotations["bucket"] is dist.GradBucket
    assert annotations["return"] == torch.futures.Future[torch.Tensor]
