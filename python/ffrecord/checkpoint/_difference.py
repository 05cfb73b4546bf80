"""The difference between two checkpoints."""

import dataclasses
import math
from collections.abc import Iterator

import numpy as np

from ffrecord import _ffrecord
from ffrecord._base.addresses import Target
from ffrecord.checkpoint._named import inside
from ffrecord.checkpoint._state import join
from ffrecord.checkpoint._steps import step_number
from ffrecord.checkpoint._tensors import ITEM_SIZES
from ffrecord.checkpoint._values import EachRank, Named, TensorRef, decode, encode

_READ_SIZE = 16 << 20


@dataclasses.dataclass(frozen=True)
class Difference:
    """Paths, each list ascending.

    Attributes:
        only_first: tensors and values that only the first has.
        only_second: tensors and values that only the second has.
        different: in both, but with another type, shape or value.
    """

    only_first: list[str]
    only_second: list[str]
    different: list[str]

    def __bool__(self) -> bool:
        """Whether there is any difference."""
        return bool(self.only_first or self.only_second or self.different)


def diff(
    first: tuple[Target, int], second: tuple[Target, int], *, timeout_s: float = 30.0
) -> Difference:
    """Compare two checkpoints, each a target and a step, byte by byte.

    Raises:
        FileNotFoundError: there is no such step.
        CorruptionError: stored bytes fail a check.
    """
    readers = [
        _ffrecord.CheckpointReader(target, step_number(step), timeout_s)
        for target, step in (first, second)
    ]
    a, b = (_facts(reader) for reader in readers)
    different = []
    for path in sorted(a.keys() & b.keys()):
        if not _same(readers, a[path], b[path]):
            different.append(path)
    return Difference(sorted(a.keys() - b.keys()), sorted(b.keys() - a.keys()), different)


def _facts(reader: _ffrecord.CheckpointReader) -> dict[str, object]:
    """By path: (key, dtype, shape) of a tensor, or the encoded value."""
    stored = {key: (key, dtype, tuple(shape)) for key, dtype, shape in reader.tensors}
    return {
        path: stored[leaf.key] if isinstance(leaf, TensorRef) else encode(leaf)
        for path, leaf in leaves(decode(reader.structure))
    }


def leaves(tree: object, path: str = "") -> Iterator[tuple[str, object]]:
    """The tensors and values of a stored tree, with their paths."""
    if isinstance(tree, EachRank):
        tree = dict(enumerate(tree.values))
    if isinstance(tree, Named) and isinstance(tree.value, dict):
        tree = inside(tree)
    if isinstance(tree, dict | list | tuple) and tree:
        for key, child in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from leaves(child, join(path, key))
    else:
        yield path or "#", tree


def _same(readers: list[_ffrecord.CheckpointReader], a: object, b: object) -> bool:
    """Whether two facts are the same; the keys of a tensor may differ, as of one with two names."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        return a[1:] == b[1:] and _same_bytes(readers, (a[0], b[0]), *a[1:])
    return a == b


def _same_bytes(
    readers: list[_ffrecord.CheckpointReader],
    keys: tuple[str, str],
    dtype: str,
    shape: tuple[int, ...],
) -> bool:
    row_size = math.prod(shape[1:]) * ITEM_SIZES[dtype]
    rows_at_once = max(1, _READ_SIZE // max(1, row_size))
    count = shape[0] if shape else 1
    for begin in range(0, count, rows_at_once):
        rows = min(rows_at_once, count - begin)
        offset = [begin, *[0] * (len(shape) - 1)] if shape else []
        extent = [rows, *shape[1:]] if shape else []
        buffers = [np.empty(rows * row_size, np.uint8) for _ in readers]
        for reader, key, buffer in zip(readers, keys, buffers, strict=True):
            reader.read([(key, offset, extent, buffer.ctypes.data, buffer.nbytes)])
        if not np.array_equal(buffers[0], buffers[1]):
            return False
    return True
