"""Digests of the tensors of a checkpoint, which say whether two of them have the same elements.

They were made of the tensors as they were when they were saved, and do not depend on the mesh that
saved.
"""

import math
from collections.abc import Container
from typing import NamedTuple

import numpy as np

from ffrecord import _ffrecord
from ffrecord.checkpoint._tensors import ITEM_SIZES

_READ_SIZE = 16 << 20


class Digested(NamedTuple):
    """A tensor; equal if the other has the same elements."""

    dtype: str
    shape: tuple[int, ...]
    digest: int


def digested(
    reader: _ffrecord.CheckpointReader, keys: Container[str] | None = None
) -> dict[str, Digested]:
    """The tensors by key: all, or those `keys`. Reads what was saved without digests."""
    found = {}
    for (key, dtype, shape), digest in zip(reader.tensors, reader.digests, strict=True):
        if keys is not None and key not in keys:
            continue
        made = _read(reader, key, dtype, shape) if digest is None else digest
        found[key] = Digested(dtype, tuple(shape), made)
    return found


def _read(reader: _ffrecord.CheckpointReader, key: str, dtype: str, shape: list[int]) -> int:
    row_size = math.prod(shape[1:]) * ITEM_SIZES[dtype]
    rows_at_once = max(1, _READ_SIZE // max(1, row_size))
    count = shape[0] if shape else 1
    digest = 0
    for begin in range(0, count if row_size else 0, rows_at_once):
        rows = min(rows_at_once, count - begin)
        offset = [begin, *[0] * (len(shape) - 1)] if shape else []
        extent = [rows, *shape[1:]] if shape else []
        room = np.empty(rows * row_size, np.uint8)
        reader.read([(key, offset, extent, room.ctypes.data, room.nbytes)])
        digest ^= _ffrecord.tensor_digest(room.ctypes.data, room.nbytes, begin * row_size)
    return digest
