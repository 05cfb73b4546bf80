"""What tests and benchmarks of checkpoints share: ranks that are threads, and what is the same."""

import struct
import threading
from collections.abc import Callable

import numpy as np

from ffrecord.checkpoint._values import EachRank, Named


class ThreadRanks:
    """Ranks that are threads."""

    def __init__(self, size: int, *, daemon: bool = False) -> None:
        self.size, self.daemon = size, daemon
        self.slots: list[bytes] = [b""] * size
        self.barrier = threading.Barrier(size, timeout=60)

    def run(
        self, work: Callable[["ThreadRank"], object], limit_s: float | None = None
    ) -> list[object]:
        """What `work` returned or raised on each rank; an error for one that has not ended."""
        results: list[object] = [None] * self.size
        if limit_s is not None:
            results = [AssertionError(f"not ended within {limit_s:g} s")] * self.size

        def one(rank: int) -> None:
            try:
                results[rank] = work(ThreadRank(self, rank))
            except Exception as error:
                results[rank] = error

        threads = [
            threading.Thread(target=one, args=(rank,), daemon=self.daemon)
            for rank in range(self.size)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(limit_s)
        return results

    def must(self, work: Callable[["ThreadRank"], object]) -> list[object]:
        """What `work` returned on each rank; raises what the first one raised."""
        results = self.run(work)
        for result in results:
            if isinstance(result, Exception):
                raise result
        return results


class ThreadRank:
    """One of them."""

    def __init__(self, ranks: ThreadRanks, rank: int) -> None:
        self.ranks, self.rank, self.size = ranks, rank, ranks.size

    def all_gather(self, mine: bytes) -> list[bytes]:
        """The bytes of all threads."""
        self.ranks.slots[self.rank] = mine
        self.ranks.barrier.wait()
        gathered = list(self.ranks.slots)
        self.ranks.barrier.wait()
        return gathered


class AfterARound(ThreadRank):
    """A rank for which something happens between one round and the next: on rank 1, once."""

    def __init__(self, rank: ThreadRank, number: int, event: Callable[[], object]) -> None:
        super().__init__(rank.ranks, rank.rank)
        self.rounds_left, self.event = number, event

    def all_gather(self, mine: bytes) -> list[bytes]:
        """The bytes of all threads, and then the event."""
        gathered = super().all_gather(mine)
        self.rounds_left -= 1
        if self.rounds_left == 0 and self.rank == 1:
            self.event()
        return gathered


def same(a: object, b: object) -> bool:
    """Equal in type, structure and value."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if type(a) is not type(b):
        return False
    if isinstance(a, EachRank) and isinstance(b, EachRank):
        return same(a.values, b.values)
    if isinstance(a, Named) and isinstance(b, Named):
        return (a.kind, a.name) == (b.kind, b.name) and same(a.value, b.value)
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, float) and isinstance(b, float):
        return struct.pack("<d", a) == struct.pack("<d", b)
    return bool(a == b)
