"""How fast records can be read here, whatever the training program does with it."""

import os

import numpy as np

from ffrecord._base import clock
from ffrecord._read.records import Records

_BATCH = 128


def read_rate(records: Records, seconds: float) -> float:
    """Bytes/s of random batches, read by as many threads as there are processors."""
    from concurrent import futures  # Slow to import.

    begin = clock.now()

    def work(seed: int) -> int:
        chance = np.random.default_rng(seed)
        size_bytes, is_over = 0, False
        while not is_over:  # A busy machine may begin this late: there is a rate after one batch.
            wanted = chance.integers(0, len(records), _BATCH)
            size_bytes += int(records.read(wanted, on_corrupt="skip").sizes.sum())
            is_over = clock.now() - begin >= seconds
        return size_bytes

    threads = len(os.sched_getaffinity(0))
    with futures.ThreadPoolExecutor(threads) as pool:
        total_bytes = sum(pool.map(work, range(threads)))
    return total_bytes / (clock.now() - begin)
