"""The records that all arms load: random bytes, of which the first eight are the record's index."""

import dataclasses
import zlib
from collections.abc import Iterable, Iterator

import numpy as np

SEED = 7
_INDEX_BYTES = 8


@dataclasses.dataclass(frozen=True)
class Workload:
    """The records of one kind."""

    batch: int
    count: int
    quick_count: int
    size: int  # Size of each record in bytes; the mean, if sigma is not 0.
    sigma: float = 0.0  # Deviation of the logarithm of the size.

    @property
    def fixed(self) -> bool:
        """Whether all records are of one size, so that a batch is one tensor."""
        return self.sigma == 0


WORKLOADS = {
    "images": Workload(batch=256, count=10_000, quick_count=2_000, size=110_000, sigma=0.5),
    "tokens": Workload(batch=64, count=200_000, quick_count=20_000, size=4096),
    "tabular": Workload(batch=4096, count=1_000_000, quick_count=100_000, size=80),
}


def payloads(name: str, count: int) -> Iterator[bytes]:
    """Every record in the order of its index."""
    workload = WORKLOADS[name]
    generator = np.random.default_rng(SEED)
    sizes = np.full(count, workload.size)
    if not workload.fixed:
        mean = np.log(workload.size) - workload.sigma**2 / 2
        sizes = generator.lognormal(mean, workload.sigma, count).astype(int) + _INDEX_BYTES
    for index, size in enumerate(sizes.tolist()):
        yield index.to_bytes(_INDEX_BYTES, "little") + generator.bytes(size - _INDEX_BYTES)


def digest(records: Iterable[memoryview | bytes]) -> int:
    """The same for the same indices and bytes in any order: the index is part of the bytes."""
    return sum(zlib.crc32(record) for record in records)
