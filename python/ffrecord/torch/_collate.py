"""Makes tensors from samples."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate, default_convert

from ffrecord._read.batch import Batch
from ffrecord._tables.formats import bytes_of_leaf, pyarrow
from ffrecord._tables.nested import mapped
from ffrecord._tables.schema import Column, Kind
from ffrecord._tables.tensors import tensor_of, tensors, tensors_of_leaf
from ffrecord.torch._samples import Samples, by_one


def collate(samples: Batch | Sequence[Any]) -> Any:  # noqa: ANN401 - as the samples are
    """Make one batch of tensors from many samples.

    A `Batch` is collated by column, without a Python object per number: a tensor of shape
    (n, *shape) for numbers (bf16 is `torch.bfloat16`), a list of uint8 tensors for bytes, a list of
    str for utf8; records without columns become a list of uint8 tensors. Tensors of bytes are views
    of the batch: nothing is copied, but a record that was requested twice is there twice. In the
    format "bytes", bytes are a list of `bytes`; in "arrow" the batch is a `pyarrow.Table`.

    Samples that a transform made are collated as by `torch.utils.data.default_collate`, with these
    exceptions. Values that the transform left as they were are collated as without it. Arrays of
    unequal shapes become a list of tensors, lists of unequal lengths stay lists, masked arrays a
    list of `{"values": ..., "valid": ...}`. Numbers of which some are None become such a dict, and
    so do all numbers of a column that has nulls, also where the transform has filled them: to get
    one tensor, return tensors, or another name. In a batch of anything else None stays.

    Raises:
        TypeError: there is one sample, a mapping, instead of many.
        ValueError: samples have other keys than the first, as datasets of other columns give them.
    """
    if isinstance(samples, Batch):
        return _batch(samples)
    if type(samples) is list and (whole := by_one.whole(samples)) is not None:
        samples = whole
    if isinstance(samples, Samples):
        return _transformed(samples)
    if isinstance(samples, Mapping):
        names = ", ".join(map(str, samples))
        raise TypeError(
            f"collate takes the samples of a batch, and got one with {names}: the loader has no "
            "batch sampler, or a framework has dropped it, as Ray does with torch's own. Use "
            "ffrecord.torch.DataLoader(dataset, batch_sampler=sampler); for a dataset that makes "
            "whole batches, collate_fn=torch.utils.data.default_convert"
        )
    return _stacked(samples)


def _transformed(samples: Samples) -> Any:  # noqa: ANN401 - as the samples are
    if samples.is_untouched:
        return _batch(samples.batch)
    first = samples[0]
    if not isinstance(first, Mapping):
        return _stacked(samples)
    _check_columns(samples, first)
    same = samples.untouched()
    kept = _batch(samples.batch.only(same)) if same else {}
    return {
        key: kept[key]
        if key in kept
        else _changed(samples.batch, key, [sample[key] for sample in samples])
        for key in first
    }


def _changed(batch: Batch, key: Any, values: list[Any]) -> Any:  # noqa: ANN401 - as the values are
    """Values of which a transform has made at least one.

    Numbers of a column that may lack some stay such: whether there is one to fill in a batch must
    not decide what the batch is.
    """
    kind = None if key in batch.decoded else batch.nested(key)
    numbers = kind is not None and kind.nullable and not kind.fields and not kind.is_text
    if numbers and all(value is None or _is_number(value) for value in values):
        return _with_marks(values)
    return _stacked(values)


def _check_columns(rows: Sequence[Any], first: Mapping[Any, Any]) -> None:
    """Check that mappings have the keys of the first one: a batch has no place for others."""
    for row in rows:
        if isinstance(row, Mapping) and row.keys() != first.keys():
            one, other = (", ".join(map(str, each)) or "none" for each in (first, row))
            raise ValueError(
                f"some samples of a batch have the columns {one}, and others {other}: choose the "
                "same columns in all datasets with columns=, give each sample all of them with "
                "transform=, or collate them with a collate_fn of your own"
            )


def _stacked(rows: Sequence[Any]) -> Any:  # noqa: ANN401 - as the samples are
    """The values as one of many; None stands where there is none."""
    there = [row for row in rows if row is not None]
    if not there:
        return list(rows)
    first: Any = there[0]
    if isinstance(first, Mapping):
        _check_columns(there, first)
        return {key: _stacked([None if row is None else row[key] for row in rows]) for key in first}
    is_full = len(there) == len(rows)
    if isinstance(first, tuple) and hasattr(first, "_fields") and is_full:
        return type(first)(*map(_stacked, zip(*rows, strict=True)))
    if isinstance(first, tuple | list):
        if is_full and all(len(row) == len(first) for row in rows):
            return [_stacked(column) for column in zip(*rows, strict=True)]
        return list(rows)
    if any(isinstance(row, np.ma.MaskedArray) for row in there):
        return [None if row is None else _with_mask(row) for row in rows]
    if isinstance(first, torch.Tensor | np.ndarray):
        each = [None if row is None else torch.as_tensor(row) for row in rows]
        same = is_full and all(row.shape == first.shape for row in there)
        return torch.stack(each) if same else each  # type: ignore[arg-type]
    if is_full:
        if type(first).__module__.partition(".")[0] == "pyarrow":
            return _table_of(there)
        return _numbers(there)
    return _with_marks(rows) if _is_number(first) else list(rows)


def _is_number(value: Any) -> bool:  # noqa: ANN401 - as the samples are
    return isinstance(value, bool | int | float | np.number | np.bool_)


def _with_marks(rows: Sequence[Any]) -> dict[str, Any]:
    """Numbers, and which of them are there."""
    there = [row for row in rows if row is not None]
    zero = type(there[0])(0) if there else 0
    values = _numbers([zero if row is None else row for row in rows])
    return {"values": values, "valid": torch.tensor([row is not None for row in rows])}


def _with_mask(values: Any) -> dict[str, Any]:  # noqa: ANN401 - an array, masked or not, or a tensor
    """The numbers of one list, and which of them are there: a number under a mask is none."""
    valid = ~np.ma.getmaskarray(np.ma.asarray(values))
    return {"values": torch.as_tensor(np.ma.filled(values, 0)), "valid": torch.from_numpy(valid)}


def _numbers(rows: list[Any]) -> Any:  # noqa: ANN401 - or what else torch collates
    if all(type(row) is np.uint64 for row in rows):  # Torch takes none above an i64's largest.
        return torch.from_numpy(np.array(rows))
    return default_collate(rows)


def _table_of(rows: list[Any]) -> Any:  # noqa: ANN401 - pyarrow has no types
    pa = pyarrow()
    return pa.concat_tables(rows) if isinstance(rows[0], pa.Table) else rows


def convert(sample: Any) -> Any:  # noqa: ANN401 - as the dataset makes it
    """Make tensors of one sample, for a loader with `batch_size=None`; adds no batch dimension.

    The samples that a dataset returns if its sampler asks for several records are collated.
    """
    if isinstance(sample, Batch | Samples):
        return collate(sample)
    return default_convert(sample)  # type: ignore[no-untyped-call]


def _batch(batch: Batch) -> Any:  # noqa: ANN401 - as decoders make it
    if batch.format == "arrow":
        return batch.to_arrow()
    if not batch.columns:
        return list(batch) if batch.format == "bytes" else tensors(batch.whole)
    return {
        name: _column(batch, batch.logical.column(name))
        if batch.nested(name) is None or name in batch.decoded
        else _nested(batch, name)
        for name in batch.columns
    }


def _nested(batch: Batch, name: str) -> Any:  # noqa: ANN401 - as the column has it
    leaf = _leaf_with_bytes if batch.format == "bytes" else tensors_of_leaf
    return _as_dicts(mapped(batch.plain(name), batch.kind(name), leaf))


def _leaf_with_bytes(values: Any, kind: Kind) -> Any:  # noqa: ANN401 - as the values are
    return bytes_of_leaf(values, kind) if kind.is_text else tensors_of_leaf(values, kind)


def _as_dicts(form: Any) -> Any:  # noqa: ANN401 - as the column has it
    """Without types of ours, which code that walks batches by exact types would not enter."""
    if isinstance(form, dict):
        return {name: _as_dicts(each) for name, each in form.items()}
    if isinstance(form, list) and any(isinstance(each, dict | list) for each in form):
        return [_as_dicts(each) for each in form]
    return form


def _column(batch: Batch, column: Column) -> Any:  # noqa: ANN401 - as decoders make it
    if batch.format == "torch":  # They are already.
        return batch[column.name]
    values = batch[column.name]
    if column.name in batch.decoded:
        return tensors(values)
    return tensor_of(values, column) if isinstance(values, np.ndarray) else tensors(values)
