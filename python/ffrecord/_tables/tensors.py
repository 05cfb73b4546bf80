"""Values as tensors of torch over the same memory; torch is imported when there are some."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ffrecord._tables.nested import Maybe
from ffrecord._tables.schema import Column, Kind, Values

if TYPE_CHECKING:
    import torch


def tensor_of(values: npt.NDArray[Any], column: Column) -> "torch.Tensor":
    """The numbers of a column as a tensor over the same memory."""
    import torch

    tensor = torch.from_numpy(values)
    return tensor.view(torch.bfloat16) if column.type == "bf16" else tensor


def tensors(values: Values) -> Any:  # noqa: ANN401 - as the values are
    """Arrays as tensors over the same memory; text as it is; containers by their items."""
    import torch

    if isinstance(values, np.ndarray):
        return torch.from_numpy(values)
    if all(isinstance(value, np.ndarray) for value in values):
        return [torch.from_numpy(value) for value in values]
    if any(value is None for value in values):
        return [None if value is None else _tensor_of_one(value) for value in values]
    if values and isinstance(values[0], dict):
        return {key: tensors([value[key] for value in values]) for key in values[0]}
    return list(values)


def _tensor_of_one(value: Any) -> Any:  # noqa: ANN401 - as a decoder made it
    if isinstance(value, dict):
        return {key: _tensor_of_one(each) for key, each in value.items()}
    import torch

    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


def tensors_of_leaf(values: Any, kind: Kind) -> Any:  # noqa: ANN401 - as the values are
    """Numbers as a tensor, with a tensor of what is there if some may be missing; bytes as tensors.

    Missing bytes and missing text stay None.
    """
    import torch

    if isinstance(values, np.ma.MaskedArray):
        mask = np.ma.getmaskarray(values).reshape(len(values), math.prod(values.shape[1:]))
        there = ~mask[:, 0] if mask.shape[1] else np.ones(len(values), np.bool_)
        numbers = tensor_of(values.data, kind.column(""))
        return Maybe(values=numbers, valid=torch.from_numpy(there))
    if isinstance(values, np.ndarray):
        return tensor_of(values, kind.column(""))
    return [torch.from_numpy(one) if isinstance(one, np.ndarray) else one for one in values]
