"""The ways to load an epoch: ours and those of peers, by the name of the arm.

Each is a function of a `Task` that returns a function, which begins an epoch and yields batches.
Peers read as their documentation shows, `_default`, and as it advises for speed. Processes stay
between epochs wherever the library lets them.
"""

import os
import pathlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import standins
import torch
from batches import Batch, Join, Joined, Tensors, of_arrow, opened
from torch.utils import data
from workloads import SEED, WORKLOADS, Workload

Epoch = Callable[[], Iterator[Batch]]


@dataclass(frozen=True)
class Task:
    """The data to load."""

    name: str
    folder: pathlib.Path  # Holds a folder for each form.
    workers: int

    @property
    def workload(self) -> Workload:
        """The kind of records."""
        return WORKLOADS[self.name]

    @property
    def batch(self) -> int:
        """Records of a batch."""
        return self.workload.batch

    @property
    def context(self) -> str | None:
        """For libraries whose threads do not survive a fork."""
        return "spawn" if self.workers else None

    def form(self, name: str) -> pathlib.Path:
        """Where the records are in that form."""
        return self.folder / name


def _torch(task: Task, dataset: Any, **options: Any) -> Epoch:  # noqa: ANN401
    """A loader of torch, whose processes stay."""
    stay = {"persistent_workers": True} if task.workers else {}
    if "sampler" not in options:
        options.setdefault("batch_size", task.batch)
    loader: Any = data.DataLoader(dataset, num_workers=task.workers, **stay, **options)
    return lambda: opened(loader)


def _shuffled(task: Task, dataset: Any, best: bool, **options: Any) -> Epoch:  # noqa: ANN401
    """A map-style dataset in random order."""
    collate = (Join if best else Tensors)(task.workload.fixed)
    if best and task.workers:
        options["prefetch_factor"] = 4
    return _torch(task, dataset, shuffle=True, collate_fn=collate, **options)


# Ours.


def _ours(task: Task, **options: Any) -> Epoch:  # noqa: ANN401
    from ffrecord.torch import DataLoader, Dataset, Sampler

    dataset = Dataset(task.form("ffr") / "data.ffr")
    sampler = Sampler(dataset, task.batch, SEED, last="short")
    loader = DataLoader(dataset, batch_sampler=sampler, num_workers=task.workers, **options)

    def epoch() -> Iterator[Batch]:
        for batch in loader:
            yield batch["row"] if isinstance(batch, dict) else batch

    return epoch


# torch and NumPy.


class Files(data.Dataset[bytes]):
    """A folder of files, as ImageFolder reads them, without decoding."""

    def __init__(self, folder: pathlib.Path) -> None:
        """List the folder."""
        self.paths = sorted(os.fspath(path) for path in folder.iterdir())

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> bytes:
        with open(self.paths[index], "rb") as file:
            return file.read()


class Mapped(data.Dataset[Any]):
    """Rows of one size in a file that NumPy maps; no check of anything."""

    def __init__(self, path: pathlib.Path, size: int) -> None:
        """Map the file."""
        self.rows = np.memmap(path, np.uint8, "r").reshape(-1, size)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitems__(self, indices: list[int]) -> Joined:
        """The rows of a batch."""
        rows = torch.from_numpy(self.rows[indices])
        return Joined(rows.view(-1), [rows.shape[1]] * len(indices), True)


def _same(batch: Any) -> Any:  # noqa: ANN401 - as it is
    return batch


def _memmap(task: Task) -> Epoch:
    dataset = Mapped(task.form("flat") / "data.bin", task.workload.size)
    return _torch(task, dataset, shuffle=True, collate_fn=_same)


# Peers that shuffle globally.


class ArrayRecords(data.Dataset[bytes]):
    """array-record, one read for each batch."""

    def __init__(self, path: pathlib.Path, options: str) -> None:
        """Look how many records there are."""
        self.path = os.fspath(path)
        self.options = options
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


def _array_record(task: Task, best: bool) -> Epoch:
    # Its documentation: for random access group_size 1, no reading ahead, no threads.
    form, options = ("array_record_1", "readahead_buffer_size:0,max_parallelism:0")
    if not best:
        form, options = "array_record", ""
    dataset = ArrayRecords(task.form(form) / "data.array_record", options)
    return _shuffled(task, dataset, best, multiprocessing_context=task.context)


def _grain_default(task: Task) -> Epoch:
    import grain
    from absl import flags

    flags.FLAGS.mark_as_parsed()
    source = grain.sources.ArrayRecordDataSource(
        os.fspath(task.form("array_record_1") / "data.array_record")
    )
    loader = grain.load(
        source,
        num_epochs=1,
        shuffle=True,
        seed=SEED,
        transformations=[grain.transforms.Batch(task.batch, batch_fn=Tensors(task.workload.fixed))],
        worker_count=task.workers,
    )
    return lambda: opened(loader)


def _grain(task: Task) -> Epoch:
    import grain

    source = grain.sources.ArrayRecordDataSource(
        os.fspath(task.form("array_record_1") / "data.array_record")
    )
    shuffled = grain.MapDataset.source(source).shuffle(SEED)
    batches = shuffled.batch(task.batch, batch_fn=Join(task.workload.fixed))
    options = grain.ReadOptions(num_threads=task.workers, prefetch_buffer_size=4 * task.workers)
    return lambda: opened(batches.to_iter_dataset(options))


class Lance(data.Dataset[Any]):
    """Lance, a batch in one `take`, its column as it lies in memory."""

    def __init__(self, path: pathlib.Path, fixed: bool) -> None:
        """Look how many records there are."""
        import lance

        self.path = os.fspath(path)
        self.fixed = fixed
        self.opened: Any = None
        self.count = lance.dataset(self.path).count_rows()

    def __len__(self) -> int:
        return int(self.count)

    def __getitems__(self, indices: list[int]) -> Joined:
        """The records of a batch."""
        if self.opened is None:
            import lance

            self.opened = lance.dataset(self.path)
        return Joined(*of_arrow(self.opened.take(indices, columns=["data"])["data"]), self.fixed)


def _lance(task: Task) -> Epoch:
    dataset = Lance(task.form("lance") / "data.lance", task.workload.fixed)
    return _torch(
        task, dataset, shuffle=True, collate_fn=_same, multiprocessing_context=task.context
    )


def _lance_default(task: Task) -> Epoch:
    from lance.torch.data import SafeLanceDataset

    dataset = SafeLanceDataset(os.fspath(task.form("lance") / "data.lance"))
    return _shuffled(task, dataset, False, multiprocessing_context=task.context)


class Rows(data.Dataset[Any]):
    """A Hugging Face dataset, a batch as an Arrow table."""

    def __init__(self, dataset: Any, fixed: bool) -> None:  # noqa: ANN401 - datasets' own
        """Read that dataset."""
        self.dataset = dataset.with_format("arrow")
        self.fixed = fixed

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, indices: list[int]) -> Joined:
        """The records of a batch."""
        return Joined(*of_arrow(self.dataset[indices]["data"]), self.fixed)


def _datasets(task: Task, best: bool) -> Epoch:
    import datasets

    dataset = datasets.Dataset.from_file(os.fspath(task.form("arrow") / "data.arrow"))
    if not best:
        return _shuffled(task, dataset, False)
    return _torch(task, Rows(dataset, task.workload.fixed), shuffle=True, collate_fn=_same)


def _streaming(task: Task, best: bool) -> Epoch:
    standins.install()
    from streaming import StreamingDataset

    dataset = StreamingDataset(
        local=os.fspath(task.form("mds") / "mds"),
        shuffle=True,
        shuffle_algo="naive" if best else "py1e",
        shuffle_seed=SEED,
        num_canonical_nodes=1,
        batch_size=task.batch,
    )
    collate = (Join if best else Tensors)(task.workload.fixed)
    return _torch(task, dataset, collate_fn=collate)


# Peers that shuffle files or a window of records.


def _webdataset(task: Task, best: bool) -> Epoch:
    import webdataset as wds

    shards = sorted(os.fspath(path) for path in task.form("tar").glob("*.tar"))
    dataset = wds.WebDataset(shards, shardshuffle=len(shards), seed=SEED, empty_check=False)
    if not best:
        dataset = dataset.shuffle(1000)
    collate = (Join if best else Tensors)(task.workload.fixed)
    dataset = dataset.to_tuple("bin").batched(task.batch, collation_fn=collate)
    return _torch(task, dataset, batch_size=None)


def _litdata(task: Task) -> Epoch:
    import litdata

    dataset = litdata.StreamingDataset(
        os.fspath(task.form("litdata")), shuffle=True, drop_last=False, seed=SEED
    )
    stay = {"persistent_workers": True} if task.workers else {}
    loader = litdata.StreamingDataLoader(
        dataset,
        batch_size=task.batch,
        num_workers=task.workers,
        collate_fn=Join(task.workload.fixed),
        **stay,
    )
    return lambda: opened(loader)


def _tfrecord(task: Task) -> Epoch:
    from tfrecord.torch.dataset import TFRecordDataset

    form = task.form("tfrecord")
    dataset = TFRecordDataset(
        os.fspath(form / "data.tfrecord"), os.fspath(form / "data.tfindex"), {"data": "byte"}
    )
    return _torch(task, dataset, collate_fn=Join(task.workload.fixed))


def _ffcv(task: Task) -> Epoch:
    """Rows as long as the longest record: a field of its own says how long each is."""
    from ffcv.fields.decoders import BytesDecoder, IntDecoder
    from ffcv.loader import Loader, OrderOption

    loader = Loader(
        os.fspath(task.form("beton") / "data.beton"),
        batch_size=task.batch,
        num_workers=max(task.workers, 1),  # Threads; it has no other way.
        os_cache=True,
        order=OrderOption.RANDOM,
        seed=SEED,
        drop_last=False,
        pipelines={"data": [BytesDecoder()], "size": [IntDecoder()]},
    )

    def epoch() -> Iterator[Batch]:
        for rows, sizes in loader:
            tensor = torch.from_numpy(rows)
            if task.workload.fixed:
                yield tensor
            else:
                yield [tensor[i, :size] for i, size in enumerate(sizes[:, 0].tolist())]

    return epoch


WAYS: dict[str, Callable[[Task], Epoch]] = {
    "ours_threads": lambda task: _ours(task, **({"mode": "threads"} if task.workers else {})),
    "ours_workers": lambda task: _ours(
        task, **({"persistent_workers": True} if task.workers else {})
    ),
    "ours_default": _ours,
    "folder": lambda task: _shuffled(task, Files(task.form("files")), best=True),
    "folder_default": lambda task: _shuffled(task, Files(task.form("files")), best=False),
    "memmap": _memmap,
    "array_record": lambda task: _array_record(task, best=True),
    "array_record_default": lambda task: _array_record(task, best=False),
    "grain": _grain,
    "grain_default": _grain_default,
    "lance": _lance,
    "lance_default": _lance_default,
    "datasets": lambda task: _datasets(task, best=True),
    "datasets_default": lambda task: _datasets(task, best=False),
    "streaming": lambda task: _streaming(task, best=True),
    "streaming_default": lambda task: _streaming(task, best=False),
    "webdataset": lambda task: _webdataset(task, best=True),
    "webdataset_default": lambda task: _webdataset(task, best=False),
    "litdata": _litdata,
    "tfrecord": _tfrecord,
    "ffcv": _ffcv,
}
