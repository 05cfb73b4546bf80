"""How fast a reader reads here, whatever the training program does with it."""

import os
import time
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ffrecord._read.reader import Reader

_BATCH = 128


def read_rate(reader: "Reader", seconds: float) -> float:
    """Bytes/s of random batches, read by as many threads as there are processors."""
    from concurrent import futures  # Slow to import.

    begin = time.monotonic()

    def work(seed: int) -> int:
        chance = np.random.default_rng(seed)
        size_bytes, is_over = 0, False
        while not is_over:  # A busy machine may begin this late: there is a rate after one batch.
            wanted = chance.integers(0, len(reader), _BATCH)
            size_bytes += int(reader.read(wanted, on_corrupt="skip").sizes.sum())
            is_over = time.monotonic() - begin >= seconds
        return size_bytes

    threads = len(os.sched_getaffinity(0))
    with futures.ThreadPoolExecutor(threads) as pool:
        total_bytes = sum(pool.map(work, range(threads)))
    return total_bytes / (time.monotonic() - begin)
