"""From samples to tensors."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from ffrecord.batch import Batch
from ffrecord.schema import Column


def collate(samples: Batch | Sequence[Any]) -> Any:  # noqa: ANN401 - as the samples are
    """Make one batch of tensors of many samples.

    A `Batch` is collated by column, without a Python object for each number: a tensor of shape
    (n, *shape) for numbers (bf16 is `torch.bfloat16`), a list of uint8 tensors for bytes, a list of
    str for utf8; records without columns become a list of uint8 tensors. Tensors of bytes are views
    of the batch: nothing is copied, and a record that was asked for twice is there once.

    Samples that a transform made are collated as `torch.utils.data.default_collate` does, but
    arrays of unequal shapes become a list of tensors where that one gives up.
    """
    if isinstance(samples, Batch):
        return _batch(samples)
    first: Any = samples[0]
    rows: Sequence[Any] = samples
    if isinstance(first, Mapping):
        return {key: collate([sample[key] for sample in rows]) for key in first}
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*map(collate, zip(*rows, strict=True)))
    if isinstance(first, tuple | list):
        return [collate(column) for column in zip(*rows, strict=True)]
    if isinstance(first, torch.Tensor | np.ndarray):
        tensors = [torch.as_tensor(sample) for sample in rows]
        same = all(tensor.shape == tensors[0].shape for tensor in tensors)
        return torch.stack(tensors) if same else tensors
    return default_collate(list(rows))


def _batch(batch: Batch) -> dict[str, Any] | list[torch.Tensor]:
    if not batch.columns:
        return list(map(torch.from_numpy, batch.records()))
    types = {column.name: column for column in batch.column_types}
    return {name: _column(batch, types[name]) for name in batch.columns}


def _column(batch: Batch, column: Column) -> torch.Tensor | list[Any]:
    values = batch[column.name]
    if isinstance(values, np.ndarray):
        tensor = torch.from_numpy(values)
        return tensor.view(torch.bfloat16) if column.type == "bf16" else tensor
    if column.type == "utf8":
        return list(values)
    return [torch.from_numpy(value) for value in values]
