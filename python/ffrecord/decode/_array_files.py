"""Arrays that records hold as .npy or safetensors files."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from ffrecord import _ffrecord
from ffrecord.decode._decoder import Decoder, Field, Native


class Npy(Decoder):
    """Arrays of numbers, as `np.save` writes them: views of the batch's memory, without a copy.

    If type and shape are given, a batch is one array, which takes a copy, and a record with another
    type or shape counts as corrupt. Type and shape are checked against the available bytes before
    anything is allocated; pickled objects are rejected.
    """

    def __init__(
        self, dtype: npt.DTypeLike | None = None, shape: Iterable[int] | None = None
    ) -> None:
        """Set the expected type and shape; both or neither.

        Raises:
            ValueError: only one is given, or it is not a numeric type.
        """
        if (dtype is None) != (shape is None):
            raise ValueError("npy: give dtype and shape, for one array a batch, or neither")
        self.dtype = None if dtype is None else np.dtype(dtype)
        self.shape = None if shape is None else tuple(shape)
        if self.dtype is not None and self.dtype.kind not in "biufc":
            raise ValueError(f"npy: {self.dtype} is not a numeric type")

    def decode(self, field: Field) -> tuple[npt.NDArray[Any] | list[Any], dict[int, str]]:
        """See `Decoder`."""
        if self.dtype is None or self.shape is None:
            views, wrong = _ffrecord.npy_views(field)
            return views, dict(wrong)
        values = np.empty((len(field.starts), *self.shape), self.dtype)
        flat = values.reshape(-1).view(np.uint8)
        return values, dict(_ffrecord.npy_stack(field, self.dtype.str, self.shape, flat))

    def native(self) -> Native | None:
        """See `Decoder`. Views are made with Python's lock, wherever they are made."""
        dtype, shape = self.dtype, self.shape
        if dtype is None or shape is None or type(self).decode is not Npy.decode:
            return None
        nbytes = dtype.itemsize * math.prod(shape)
        if not nbytes:  # The number of values does not follow from their bytes.
            return None
        inner = _ffrecord.npy_decoder(dtype.str, shape, nbytes)
        return Native(inner, lambda block, _: block.view(dtype).reshape(-1, *shape))


class Safetensors(Decoder):
    """Tensors by name, as views of the batch's memory: a slice of one is `value["name"][2:5]`.

    bfloat16 is uint16 and 8-bit floats are uint8, the bits as they are.
    """

    def __init__(self, *names: str) -> None:
        """Take all tensors, or those of these names; a record without one of them is corrupt."""
        self.names = names

    def decode(self, field: Field) -> tuple[list[Any], dict[int, str]]:
        """See `Decoder`."""
        views, wrong = _ffrecord.safetensors_views(field, self.names)
        return views, dict(wrong)
