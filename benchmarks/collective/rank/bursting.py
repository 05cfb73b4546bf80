"""One of many ranks that burst to one daemon: reads orders, a JSON object a line, and answers each.

Usage: bursting.py HOST, with RANK in the environment. An order names the time of the machine's
monotonic clock at which all ranks begin.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import ffrecord
import ffrecord.checkpoint as ckpt

RECORD_BYTES = 64 << 10


def uploads(order: dict[str, Any], rank: int) -> Callable[[], object]:
    """Save a checkpoint of random bytes."""
    state = np.random.default_rng([rank, order["number"]]).bytes(order["size_bytes"])
    target = f"{order['store']}/bursts/{rank}?transport=tcp"
    tensors = {"state": np.frombuffer(state, np.uint8)}
    return lambda: ckpt.save(target, order["number"], tensors, group="alone")


def reads(order: dict[str, Any], rank: int) -> Callable[[], object]:
    """Read records that the daemon has in memory, each rank others."""
    records = ffrecord.open(f"{order['store']}/records?transport=tcp")
    count = order["size_bytes"] // RECORD_BYTES
    numbers = [(rank * count + i) % len(records) for i in range(count)]
    return lambda: records.read(numbers)


def main() -> None:
    """Answer until the orders end."""
    rank = int(os.environ["RANK"])
    for line in sys.stdin:
        order = json.loads(line)
        burst = (uploads if order["what"] == "uploads" else reads)(order, rank)
        time.sleep(max(order["begins_at"] - time.monotonic(), 0))
        late = time.monotonic() - order["begins_at"]
        burst()
        ended = time.monotonic()
        print(json.dumps({"late_s": late, "took_s": ended - order["begins_at"]}), flush=True)


if __name__ == "__main__":
    main()
