"""One arm of the loader's benchmark: `arm.py ARM WORKLOAD FOLDER EPOCHS CHECK`, prints JSON.

Every arm loads whole epochs of the same records in batches, with two workers or threads, and does
with a batch what a training loop does first: nothing. An epoch before those against the clock
warms up; if CHECK is 1, it makes a digest over the records, which does not depend on their order.
"""

import json
import os
import pathlib
import resource
import sys
import time
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils import data

WORKERS = 2
SEED = 7
# Records, and records of one batch.
BATCHES = {"images": 256, "tokens": 64, "tabular": 4096}

# A batch as its records: anything with a buffer.
Batches = Iterator[Iterable[Any]]


def digest_of(records: Iterable[Any]) -> int:
    """The same for the same records in any order."""
    return sum(zlib.crc32(memoryview(np.ascontiguousarray(record))) for record in records)


def tensors(samples: list[bytes]) -> list[torch.Tensor]:
    return [torch.from_numpy(np.frombuffer(sample, np.uint8)) for sample in samples]


def torch_loader(dataset: Any, workload: str, shuffle: bool, **options: Any) -> Any:  # noqa: ANN401
    return data.DataLoader(
        dataset,
        batch_size=BATCHES[workload],
        shuffle=shuffle,
        num_workers=WORKERS,
        collate_fn=tensors,
        persistent_workers=True,
        **options,
    )


def ours(workload: str, folder: pathlib.Path, **options: Any) -> Callable[[], Batches]:  # noqa: ANN401
    from ffrecord.torch import DataLoader, Dataset, Sampler

    dataset = Dataset(folder / f"{workload}.ffr")
    sampler = Sampler(dataset, BATCHES[workload], SEED, last="short")
    loader = DataLoader(dataset, batch_sampler=sampler, num_workers=WORKERS, **options)

    def epoch() -> Batches:
        for batch in loader:
            yield batch["row"].numpy() if isinstance(batch, dict) else batch

    return epoch


class Folder(data.Dataset[bytes]):
    """Small files, as ImageFolder reads them, without decoding."""

    def __init__(self, folder: pathlib.Path) -> None:
        """List the folder."""
        self.paths = sorted(os.fspath(path) for path in folder.iterdir())

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> bytes:
        with open(self.paths[index], "rb") as file:
            return file.read()


class ArrayRecords(data.Dataset[bytes]):
    """array-record, opened as its documentation says for random access; one read for each batch."""

    def __init__(self, path: pathlib.Path, tuned: bool) -> None:
        """Look how many records there are."""
        self.path = os.fspath(path)
        self.options = "readahead_buffer_size:0,max_parallelism:0" if tuned else ""
        self.reader: Any = None
        self.count: int = self._open().num_records()

    def _open(self) -> Any:  # noqa: ANN401 - array-record's own
        from array_record.python import array_record_module

        return array_record_module.ArrayRecordReader(self.path, options=self.options)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> bytes:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[bytes]:
        """The records of one batch."""
        if self.reader is None:
            self.reader = self._open()
        records: list[bytes] = self.reader.read(indices)
        return records

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "reader": None}


def torch_folder(workload: str, folder: pathlib.Path) -> Callable[[], Batches]:
    loader = torch_loader(Folder(folder / f"{workload}-files"), workload, True)
    return lambda: iter(loader)


def array_record(workload: str, folder: pathlib.Path, tuned: bool) -> Callable[[], Batches]:
    name = f"{workload}.array_record" if tuned else f"{workload}-default.array_record"
    # Its threads do not survive a fork.
    dataset = ArrayRecords(folder / name, tuned)
    loader = torch_loader(dataset, workload, True, multiprocessing_context="spawn")
    return lambda: iter(loader)


def webdataset(workload: str, folder: pathlib.Path) -> Callable[[], Batches]:
    import webdataset as wds

    shards = sorted(os.fspath(path) for path in (folder / f"{workload}-tar").glob("*.tar"))
    dataset = wds.WebDataset(shards, shardshuffle=len(shards), seed=SEED).to_tuple("bin")
    dataset = dataset.batched(BATCHES[workload], collation_fn=lambda rows: [r[0] for r in rows])
    loader = wds.WebLoader(
        dataset,
        batch_size=None,
        num_workers=WORKERS,
        collate_fn=tensors,
        multiprocessing_context="fork",
    )
    return lambda: iter(loader)


ARMS: dict[str, Callable[[str, pathlib.Path], Callable[[], Batches]]] = {
    "ours_threads": lambda w, f: ours(w, f, mode="threads"),
    "ours_workers": lambda w, f: ours(w, f, persistent_workers=True),
    "torch_folder": torch_folder,
    "array_record": lambda w, f: array_record(w, f, tuned=True),
    "array_record_default": lambda w, f: array_record(w, f, tuned=False),
    "webdataset": webdataset,
}


def cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def main() -> None:
    """Load one epoch to warm up, then so many against the clock."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
    arm, workload, folder, epochs, check = sys.argv[1:]
    epoch = ARMS[arm](workload, pathlib.Path(folder))
    digest = records = 0
    for batch in epoch():
        digest += digest_of(batch) if check == "1" else 0
    began, cpu = time.perf_counter(), cpu_seconds()
    for _ in range(int(epochs)):
        for batch in epoch():
            records += len(batch)  # type: ignore[arg-type]
    seconds = time.perf_counter() - began
    # Workers count when they have ended: the processor time of children is that of all epochs.
    print(
        json.dumps(
            {
                "records": records,
                "seconds": seconds,
                "digest": digest,
                "cpu_seconds": cpu_seconds() - cpu,
                "rss_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
            }
        )
    )


if __name__ == "__main__":
    main()
