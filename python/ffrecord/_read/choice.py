"""Which records of a sequence: a range or indices, and what identifies them."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ffrecord._order.epoch_order import Indices

if TYPE_CHECKING:
    from ffrecord._base.shared_memory import SharedArray


class Choice:
    """Which records of a sequence, in which order: a range if it is one, else indices.

    A pickle is small: it holds a range as such, and shares the memory of other indices with a
    process that is being started.
    """

    def __init__(self, indices: npt.ArrayLike | range | slice, count: int) -> None:
        """Choose from `count` records; see `Records.subset`."""
        self._chosen = _compact(indices, count)

    def __len__(self) -> int:
        chosen = self._chosen
        return len(chosen) if isinstance(chosen, range) else chosen.values.size

    def at(self, wanted: Indices) -> Indices:
        """The chosen indices at these positions, in [-n, n)."""
        places = positive(wanted, len(self))
        if isinstance(self._chosen, range):
            return self._chosen.start + places * self._chosen.step
        return self._chosen.values[places]

    @property
    def may_repeat(self) -> bool:
        """Whether an index may be chosen more than once; looks at none."""
        return not isinstance(self._chosen, range)

    def tobytes(self) -> bytes:
        """Bytes that differ if and only if the choices do."""
        chosen = self._chosen
        return repr(chosen).encode() if isinstance(chosen, range) else chosen.values.tobytes()


def positive(wanted: Indices, count: int) -> Indices:
    """Convert indices in [-count, count) to indices in [0, count)."""
    if wanted.size and not (-count <= wanted.min() and wanted.max() < count):
        bad = wanted[(wanted < -count) | (wanted >= count)][0]
        raise IndexError(f"record index {bad} is out of range: there are {count} records")
    return np.where(wanted < 0, wanted + count, wanted)


def _compact(indices: npt.ArrayLike | range | slice, count: int) -> "range | SharedArray":
    """The same range if the indices are one, however they were given; else these."""
    if isinstance(indices, slice):
        indices = range(count)[indices]
    if isinstance(indices, range):
        if not indices:
            return range(0)
        positive(np.array([indices[0], indices[-1]]), count)
        if min(indices[0], indices[-1]) >= 0:
            return _range_of(indices, indices.step)
    array = np.asarray(indices)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise TypeError(f"indices are {array.dtype} of shape {array.shape}; expected integers (n,)")
    places = positive(array.astype(np.int64), count)
    if places.size == 0:
        return range(0)
    step = int(places[1] - places[0]) if places.size > 1 else 1
    if step and (np.diff(places) == step).all():
        return _range_of(places, step)
    from ffrecord._base.shared_memory import SharedArray  # Brings multiprocessing.

    return SharedArray(places)


def _range_of(indices: range | Indices, step: int) -> range:
    """The range of these indices, which does not tell how they were given.

    Ranges of the same indices can have different ends, and different steps if they have one index.
    """
    first, last = int(indices[0]), int(indices[-1])
    step = step if first != last else 1
    return range(first, last + (1 if step > 0 else -1), step)


def digest(parts: Iterable[bytes]) -> str:
    """32 hex digits of the parts and of where each ends."""
    import hashlib  # Slow to import.

    made = hashlib.blake2b(digest_size=16)
    for part in parts:
        made.update(len(part).to_bytes(8, "little") + part)
    return made.hexdigest()
