"""One rank of benchmarks/run collective: reads orders, a JSON object a line, and answers each.

Usage: rank.py HOST ARM..., with the variables of torch.distributed; HOST is this rank's own
address. Only the groups of the arms that are named are made.
"""

import dataclasses
import hashlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from training import Trained

from ffrecord.distributed import CommHook, Group, Tuner

Start = Callable[[torch.Tensor], Any]
STREAMS = 4
# For arms that are tuned or slowed the chunk is small enough to be carried by a slow stream.
OPTIONS: dict[str, dict[str, Any]] = {
    "ours": {},
    "ours f16": {"wire": torch.float16},
    "ours streams": {"streams": STREAMS, "chunk_size_bytes": 128 << 10},
    "ours tuned": {"streams": STREAMS, "chunk_size_bytes": 1 << 20},
}


def once(start: Start, tensors: list[torch.Tensor], computing_s: list[float]) -> None:
    """Arrays that come one after another, and travel while the next is awaited.

    A test of the link: nothing is computed, and the processor is free. `training` computes.
    """
    pending = []
    for tensor, compute_s in zip(tensors, computing_s, strict=True):
        if compute_s:
            time.sleep(compute_s)
        pending.append(start(tensor))
    for each in pending:
        each.wait()


def tuned(group: Group, start: Start, tensors: list[torch.Tensor]) -> dict[str, Any]:
    """Train until a tuner has settled; what it has come to, and in how many steps."""
    tuner, steps = Tuner(group), 0
    tuner.step()
    while not tuner.is_settled:
        once(start, tensors, [0.0] * len(tensors))
        tuner.step()
        steps += 1
    setting = dataclasses.asdict(tuner.setting)
    setting.pop("bucket_cap_mb")
    return {"steps": steps, "setting": setting, "decisions": len(tuner.decisions)}


def reduced(start: Start, tensors: list[torch.Tensor], order: dict[str, Any]) -> dict[str, Any]:
    """Reduce arrays as often as ordered; the seconds of each time."""
    for tensor in tensors:
        tensor.fill_(dist.get_rank() + 1)
    # Memory is touched and buffers are there from here on.
    once(start, tensors, [0.0] * len(tensors))
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.numpy().tobytes())
    seconds = []
    cpu_before = time.process_time()
    for _ in range(order["repeats"]):
        for tensor in tensors:
            tensor.fill_(1)
        dist.barrier()
        before = time.perf_counter()
        once(start, tensors, order["computing_s"])
        seconds.append(time.perf_counter() - before)
    return {
        "seconds": seconds,
        "cpu_seconds": time.process_time() - cpu_before,
        "digest": digest.hexdigest(),
    }


def main() -> None:
    """Join the groups; reduce until the orders end."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    groups = {
        arm: CommHook(listen_host=sys.argv[1], **OPTIONS[arm])
        for arm in sys.argv[2:]
        if arm in OPTIONS
    }
    arms: dict[str, Start] = {
        arm: lambda tensor, group=group: group.all_reduce(tensor, "sum")  # type: ignore[misc]
        for arm, group in groups.items()
    }
    arms["gloo"] = lambda tensor: dist.all_reduce(tensor, async_op=True)
    arrays: dict[tuple[int, ...], list[torch.Tensor]] = {}
    models: dict[tuple[str, str], Trained] = {}
    for line in sys.stdin:
        order = json.loads(line)
        if model := order.get("trains"):
            key = (model, order["arm"])
            if key not in models:
                models[key] = Trained(model, groups.get(order["arm"]))
            print(json.dumps(models[key].measured(order["repeats"])), flush=True)
            continue
        sizes, arm = tuple(order["sizes_bytes"]), order["arm"]
        tensors = arrays.setdefault(sizes, [torch.empty(size // 4) for size in sizes])
        if order.get("setting") is not None:
            groups[arm].tune(**order["setting"])
        if order.get("tunes"):
            answer = tuned(groups[arm], arms[arm], tensors)
        else:
            answer = reduced(arms[arm], tensors, order)
        print(json.dumps(answer), flush=True)
    for group in groups.values():
        group.close()


if __name__ == "__main__":
    main()
