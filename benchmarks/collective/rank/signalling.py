"""The cost of one collective's signals, for benchmarks/run overlap: prints a JSON object.

A group of one rank, so that a collective itself takes little: it is timed in blocks of calls, with
and without an attachment by turns. The blocks without their own collective time the signals alone.
"""

import gc
import json
import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from ffrecord import runtime

CALLS, BLOCKS = 200, 15


def per_call_us(call: Callable[[], object]) -> tuple[float, float]:
    """Microseconds of one of a block of calls: of this thread's processor, and in all."""
    began, began_cpu = time.perf_counter(), time.thread_time()
    for _ in range(CALLS):
        call()
    cpu, passed = time.thread_time() - began_cpu, time.perf_counter() - began
    return cpu / CALLS * 1e6, passed / CALLS * 1e6


def signal() -> None:
    """One phase."""
    runtime.phase_begin("collective", 4096)
    runtime.phase_end("collective")


def main() -> None:
    """Measure."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    tensor = torch.zeros(1024)

    def reduce() -> None:
        dist.all_reduce(tensor)

    runtime.start_pacing()
    plain, attached = [], []
    per_call_us(reduce)
    for _ in range(BLOCKS):
        plain.append(per_call_us(reduce))
        with runtime.attach(dist.group.WORLD):
            attached.append(per_call_us(reduce))
    with runtime.attach(dist.group.WORLD):
        per_call_us(reduce)
        gc.collect()
        before = sys.getallocatedblocks()
        per_call_us(reduce)
        gc.collect()
        left = sys.getallocatedblocks() - before
    found = {
        "hook_us": statistics.median(b[0] - a[0] for a, b in zip(plain, attached, strict=True)),
        # With all that the thread of the attachment takes from this one.
        "hook_wall_us": statistics.median(
            b[1] - a[1] for a, b in zip(plain, attached, strict=True)
        ),
        "signal_us": statistics.median(per_call_us(signal)[0] for _ in range(BLOCKS)),
        "hook_objects_left": max(0, left) // CALLS,
    }
    runtime.stop_pacing()
    dist.destroy_process_group()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
