"""One rank of benchmarks/run collective: reads orders, a JSON object a line, and answers each.

Usage: rank.py HOST, with the variables of torch.distributed; HOST is this rank's own address.
"""

import hashlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from ffrecord.torch import Group

Start = Callable[[torch.Tensor], Any]


def once(start: Start, tensors: list[torch.Tensor], computing_s: list[float]) -> None:
    """A backward pass: gradients come one after another, and travel while the next is computed.

    Computing is sleeping: what an accelerator does does not take the processor.
    """
    pending = []
    for tensor, compute_s in zip(tensors, computing_s, strict=True):
        if compute_s:
            time.sleep(compute_s)
        pending.append(start(tensor))
    for each in pending:
        each.wait()


def main() -> None:
    """Join all groups; reduce until the orders end."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    exact = Group(listen_host=sys.argv[1])
    halves = Group(listen_host=sys.argv[1], wire=torch.float16)
    arms: dict[str, Start] = {
        "ours": lambda tensor: exact.all_reduce(tensor, "sum"),
        "ours f16": lambda tensor: halves.all_reduce(tensor, "sum"),
        "gloo": lambda tensor: dist.all_reduce(tensor, async_op=True),
    }
    arrays: dict[tuple[int, ...], list[torch.Tensor]] = {}
    for line in sys.stdin:
        order = json.loads(line)
        sizes, start = tuple(order["sizes_bytes"]), arms[order["arm"]]
        tensors = arrays.setdefault(sizes, [torch.empty(size // 4) for size in sizes])
        for tensor in tensors:
            tensor.fill_(dist.get_rank() + 1)
        once(
            start, tensors, [0.0] * len(sizes)
        )  # Memory is touched and buffers are there from here on.
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
        answer = {
            "seconds": seconds,
            "cpu_seconds": time.process_time() - cpu_before,
            "digest": digest.hexdigest(),
        }
        print(json.dumps(answer), flush=True)
    exact.close()
    halves.close()


if __name__ == "__main__":
    main()
