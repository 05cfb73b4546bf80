"""The batches that every arm makes: one uint8 tensor of rows, or a list of uint8 tensors."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

Batch = Any  # A tensor of shape (n, size), or a list of tensors.


class Joined:
    """Records back to back: one tensor to hand over from a process instead of one for each."""

    def __init__(self, data: torch.Tensor, sizes: list[int], fixed: bool) -> None:
        """`sizes` are those of the records in `data`."""
        self.data = data
        self.sizes = sizes
        self.fixed = fixed

    def batch(self) -> Batch:
        """Views of the records."""
        if self.fixed:
            return self.data.view(len(self.sizes), -1)
        return list(self.data.split(self.sizes))


class Tensors:
    """A collate function: a tensor for each record, stacked if they are of one size."""

    def __init__(self, fixed: bool) -> None:
        """Stack if `fixed`."""
        self.fixed = fixed

    def __call__(self, records: Sequence[Any]) -> Batch:
        """Make tensors of bytes."""
        tensors = [torch.from_numpy(np.frombuffer(plain(record), np.uint8)) for record in records]
        return torch.stack(tensors) if self.fixed else tensors


class Join(Tensors):
    """The best collate function for bytes: one copy, one tensor to hand over."""

    def __call__(self, records: Sequence[Any]) -> Joined:
        """Put the records together."""
        rows = [plain(record) for record in records]
        data = torch.frombuffer(bytearray().join(rows), dtype=torch.uint8)
        return Joined(data, [len(row) for row in rows], self.fixed)


def plain(record: Any) -> Any:  # noqa: ANN401 - each library has its own
    """The bytes of what a library gives for a record."""
    if isinstance(record, dict):
        record = record["data"]
    return record[0] if isinstance(record, tuple) else record


def of_arrow(column: Any) -> tuple[torch.Tensor, list[int]]:  # noqa: ANN401 - pyarrow's
    """The bytes of a column of binaries, without copying if it is one chunk, and their sizes."""
    array = column.combine_chunks() if hasattr(column, "combine_chunks") else column
    if hasattr(array, "chunks"):
        array = array.chunk(0)
    _, offsets, data = array.buffers()
    kind = np.int64 if "large" in str(array.type) else np.int32
    places = np.frombuffer(offsets, kind)[array.offset : array.offset + len(array) + 1]
    bytes_ = torch.from_numpy(np.frombuffer(data, np.uint8)[places[0] : places[-1]])
    return bytes_, np.diff(places).tolist()


def records_of(batch: Batch) -> Iterable[memoryview]:
    """The bytes of each record."""
    if isinstance(batch, torch.Tensor):
        batch = batch.numpy()
        return (memoryview(row) for row in batch)
    return (memoryview(record.numpy()) for record in batch)


def size_of(batch: Batch) -> int:
    """Bytes of all records."""
    if isinstance(batch, torch.Tensor):
        return batch.numel()
    return sum(record.numel() for record in batch)


def opened(loader: Iterable[Any]) -> Iterator[Batch]:
    """The output of a loader, as batches."""
    for batch in loader:
        yield batch.batch() if isinstance(batch, Joined) else batch
