"""Makes tensors from samples."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import default_collate, default_convert

from ffrecord._batch import Batch, Values
from ffrecord._nested import Kind
from ffrecord._schema import Column


def collate(samples: Batch | Sequence[Any]) -> Any:  # noqa: ANN401 - as the samples are
    """Make one batch of tensors from many samples.

    A `Batch` is collated by column, without a Python object per number: a tensor of shape
    (n, *shape) for numbers (bf16 is `torch.bfloat16`), a list of uint8 tensors for bytes, a list of
    str for utf8; records without columns become a list of uint8 tensors. Tensors of bytes are views
    of the batch: nothing is copied, and a record that was requested twice is in memory once. In the
    format "bytes", bytes are a list of `bytes`; in "arrow" the batch is a `pyarrow.Table`.

    Samples that a transform made are collated as by `torch.utils.data.default_collate`, except that
    arrays of unequal shapes become a list of tensors instead of an error.

    Raises:
        TypeError: there is one sample, a mapping, instead of many.
    """
    if isinstance(samples, Batch):
        return _batch(samples)
    if isinstance(samples, Mapping):
        names = ", ".join(map(str, samples))
        raise TypeError(
            f"collate takes the samples of a batch, and got one with {names}: the loader has no "
            "batch sampler, or a framework has dropped it, as Ray does with torch's own. Use "
            "ffrecord.torch.DataLoader(dataset, batch_sampler=sampler); for a dataset that makes "
            "whole batches, collate_fn=torch.utils.data.default_convert"
        )
    first: Any = samples[0]
    rows: Sequence[Any] = samples
    if isinstance(first, Mapping):
        return {key: collate([sample[key] for sample in rows]) for key in first}
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*map(collate, zip(*rows, strict=True)))
    if isinstance(first, tuple | list):
        return [collate(column) for column in zip(*rows, strict=True)]
    if isinstance(first, torch.Tensor | np.ndarray):
        each = [torch.as_tensor(sample) for sample in rows]
        same = all(tensor.shape == each[0].shape for tensor in each)
        return torch.stack(each) if same else each
    return default_collate(list(rows))


def convert(sample: Any) -> Any:  # noqa: ANN401 - as the dataset makes it
    """Make tensors of one sample, for a loader with `batch_size=None`; adds no batch dimension.

    A `Batch`, which a dataset returns if its sampler asks for several records, is collated.
    """
    if isinstance(sample, Batch):
        return _batch(sample)
    return default_convert(sample)  # type: ignore[no-untyped-call]


def _batch(batch: Batch) -> Any:  # noqa: ANN401 - as decoders make it
    if batch.format == "arrow":
        return batch.to_arrow()
    if not batch.columns:
        return list(batch) if batch.format == "bytes" else tensors(batch.whole)
    types = {column.name: column for column in batch.column_types}
    nested = batch.with_format("torch") if batch.format == "numpy" else batch
    return {
        name: _column(batch, types[name])
        if batch.nested(name) is None or name in batch.decoded
        else nested[name]
        for name in batch.columns
    }


def _column(batch: Batch, column: Column) -> Any:  # noqa: ANN401 - as decoders make it
    if batch.format == "torch":  # They are already.
        return batch[column.name]
    values = batch[column.name]
    if column.name in batch.decoded:
        return tensors(values)
    return tensor_of(values, column) if isinstance(values, np.ndarray) else tensors(values)


def tensor_of(values: npt.NDArray[Any], column: Column) -> torch.Tensor:
    """The numbers of a column as a tensor over the same memory."""
    tensor = torch.from_numpy(values)
    return tensor.view(torch.bfloat16) if column.type == "bf16" else tensor


def tensors(values: Values) -> Any:  # noqa: ANN401 - as the values are
    """Arrays as tensors over the same memory; text as it is; containers by their items."""
    if isinstance(values, np.ndarray):
        return torch.from_numpy(values)
    if all(isinstance(value, np.ndarray) for value in values):
        return [torch.from_numpy(value) for value in values]
    if values and isinstance(values[0], dict):
        return {key: tensors([value[key] for value in values]) for key in values[0]}
    return list(values)


def tensors_of_leaf(values: Any, kind: Kind) -> Any:  # noqa: ANN401 - as the values are
    """Numbers as a tensor, with a tensor of what is there if some may be missing; bytes as tensors.

    Missing bytes and missing text stay None.
    """
    if isinstance(values, np.ma.MaskedArray):
        mask = np.ma.getmaskarray(values).reshape(len(values), -1)
        there = ~mask[:, 0] if mask.shape[1] else np.ones(len(values), np.bool_)
        numbers = tensor_of(values.data, kind.column(""))
        return {"values": numbers, "valid": torch.from_numpy(there)}
    if isinstance(values, np.ndarray):
        return tensor_of(values, kind.column(""))
    return [torch.from_numpy(one) if isinstance(one, np.ndarray) else one for one in values]
