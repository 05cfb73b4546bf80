"""Figures that are not rates: memory, bytes that are read or written, and odd shapes of states."""

# ruff: noqa: ANN401 - tensors of torch, and arms of the page that imports this one

import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import harness
from incremental import incremental_cost
from states import ROOT, drop_cache, thread_ranks


def peak_growth(work: Callable[[], object]) -> int:
    """By how much the process's memory grows at most, in bytes."""

    def status(field: str) -> int:
        for line in pathlib.Path("/proc/self/status").read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) << 10
        raise harness.Unable(f"/proc/self/status has no {field}")

    pathlib.Path("/proc/self/clear_refs").write_text("5")  # The peak is now what is in use.
    before = status("VmRSS")
    work()
    return status("VmHWM") - before


def read_bytes() -> int:
    """Bytes that this process has had read from disks."""
    for line in pathlib.Path("/proc/self/io").read_text().splitlines():
        if line.startswith("read_bytes"):
            return int(line.split()[1])
    raise harness.Unable("/proc/self/io has no read_bytes")


def reshard_read_cost(arms: Any) -> float:
    """Bytes read by three ranks of what four saved, over those that they need."""
    import torch

    rows = 48_000
    whole = torch.rand(rows, 4096)
    run = arms.fresh("reshard")

    def save(rank: Any) -> None:
        begin, end = rows * rank.rank // 4, rows * (rank.rank + 1) // 4
        shard = arms.ckpt.Shard(whole[begin:end], (rows, 4096), (begin, 0))
        arms.ckpt.save(run, 1, {"w": shard}, group=rank)

    thread_ranks(4).must(save)
    drop_cache(run)
    before = read_bytes()
    for rank in range(3):
        begin, end = rows * rank // 3, rows * (rank + 1) // 3
        mine = torch.empty(end - begin, 4096)
        arms.ckpt.load(run, {"w": arms.ckpt.Shard(mine, (rows, 4096), (begin, 0))})
        if not torch.equal(mine, whole[begin:end]):
            raise harness.Unable("a reshard gave other bytes")
    cost = (read_bytes() - before) / whole.nbytes
    shutil.rmtree(run)
    return cost


def small_tensors(arms: Any) -> dict[str, float]:
    """100,000 tensors of 1,000 floats against the same bytes in 100."""
    import torch

    from ffrecord.checkpoint._saving import Order, flatten

    block = torch.rand(100, 1_000_000)
    few = {str(i): block[i] for i in range(100)}
    many = {str(i): row for i, row in enumerate(block.view(100_000, 1000))}
    seconds = {}
    for name, state in (("few", few), ("many", many)):
        run = arms.fresh("small")
        began = time.perf_counter()
        arms.ckpt.save(run, 1, state)
        seconds[name] = time.perf_counter() - began
    shutil.rmtree(arms.folder / "small")
    began = time.perf_counter()
    flatten(Order("x", 1, "rank0", True, 30.0), many, 0, 1)
    return {
        "small_tensors_plan_ms": (time.perf_counter() - began) * 1000,
        "small_tensors_cost": seconds["many"] / seconds["few"],
    }


def plan_1024(arms: Any) -> dict[str, float]:
    """The work of 1,024 ranks around their writing; see plan_1024.py."""
    run = arms.fresh("plan")
    places = [str(ROOT / "tests" / "python"), str(pathlib.Path(__file__).parent), *sys.path]
    done = subprocess.run(
        [sys.executable, pathlib.Path(__file__).parent / "plan_1024.py", run],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
        stdout=subprocess.PIPE,
        check=True,
    )
    shutil.rmtree(run)
    return {key: float(value) for key, value in json.loads(done.stdout).items()}


def odd_shapes(arms: Any) -> dict[str, float]:
    """Figures that are not rates."""
    run = arms.fresh("memory")
    ckpt, state = arms.ckpt, arms.state
    peaks = {
        "peak_over_state_bytes": lambda: ckpt.save(run, 1, state),
        "async_peak_over_state_bytes": lambda: ckpt.async_save(run, 2, state).result(),
    }
    grown = {key: float(peak_growth(work)) for key, work in peaks.items()}
    shutil.rmtree(run)
    return {
        **grown,
        "reshard_read_cost": reshard_read_cost(arms),
        **small_tensors(arms),
        **incremental_cost(arms),
        **plan_1024(arms),
    }
