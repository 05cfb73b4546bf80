"""Records with room for nulls, of records of the same columns without it; format.md, "Schemas"."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from ffrecord import _ffrecord
from ffrecord._order.epoch_order import Indices
from ffrecord._tables.schema import Bytes, Column

# The block of a stored column, and where its values begin in it and how large they are.
Span = tuple[Bytes, Indices, Indices]


class _Field:
    """The values of a stored column, as the library copies them."""

    def __init__(self, span: Span, status: npt.NDArray[np.uint8]) -> None:
        """Those of records with these statuses."""
        self.slab, self.starts, self.sizes = span
        self.status = status


def widened(
    stored: Sequence[Column],
    known: frozenset[str],
    span_of: Callable[[str], Span],
    status: npt.NDArray[np.uint8],
) -> _ffrecord.Batch:
    """Copy records into a block of records with more columns, which say that all values are there.

    Args:
        stored: the columns, those of the records among them in the same order.
        known: the names of the records' columns; the others are `P:valid`.
        span_of: where the values of a known column are.
        status: of each record.
    """
    good = status == 0
    fields = {name: _Field(span_of(name), status) for name in known}
    fixed = [column for column in stored if column.dtype is not None]
    variable = [column for column in stored if column.dtype is None]
    none = np.zeros(status.size, np.int64)
    parts = [fields[each.name].sizes if each.name in fields else none for each in variable]
    head = sum(map(_width, fixed)) + 4 * max(0, len(variable) - 1)
    sizes = np.where(good, sum(parts, np.full(status.size, head, np.int64)), 0)
    starts = np.cumsum(sizes) - sizes
    block = np.zeros(int(sizes.sum()), np.uint8)
    places = starts
    for column in fixed:
        if column.name in fields:
            _ffrecord.gather_spans(fields[column.name], places, block)
        else:
            block[places[good]] = 1
        places = places + _width(column)
    for part in parts[:-1]:
        bytes_of_size = part[good].astype("<u4").view(np.uint8).reshape(-1, 4)
        block[places[good][:, None] + np.arange(4)] = bytes_of_size
        places = places + 4
    for column, part in zip(variable, parts, strict=True):
        if column.name in fields:
            _ffrecord.gather_spans(fields[column.name], places, block)
        places = places + part
    schema = _ffrecord.Schema([column[:3] for column in stored])
    return _ffrecord.Batch.over(block, starts, sizes, status, schema)


def _width(column: Column) -> int:
    assert column.dtype is not None
    return column.dtype.itemsize * math.prod(column.shape)
