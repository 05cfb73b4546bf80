"""How fast a reader reads here, whatever the training program does with it."""

import os
import time
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ffrecord._reader import Reader

_BATCH = 128


def read_rate(reader: "Reader", seconds: float) -> float:
    """Bytes/s of random batches, read by as many threads as there are processors."""
    from concurrent import futures  # Slow to import.

    begin = time.monotonic()

    def work(seed: int) -> int:
        chance = np.random.default_rng(seed)
        size_bytes = 0
        while time.monotonic() - begin < seconds:
            wanted = chance.integers(0, len(reader), _BATCH)
            size_bytes += int(reader.read(wanted, on_corrupt="skip").sizes.sum())
        return size_bytes

    threads = len(os.sched_getaffinity(0))
    with futures.ThreadPoolExecutor(threads) as pool:
        total_bytes = sum(pool.map(work, range(threads)))
    return total_bytes / (time.monotonic() - begin)
