"""Results of a function that was tried on the first samples: it need not be called again."""

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np

from ffrecord.pack._mapping import Function, Row
from ffrecord.pack._passed import is_same
from ffrecord.pack._source import OneSample

# The limit of samples and rows that are kept until they are packed.
_KEPT_BYTES_MAX = 16 << 20
_PLAIN = (bytes, str, int, float, bool, type(None), np.ndarray, np.generic)


class Seen:
    """Results of a function for samples that it was tried on; can be sent to another process."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._rows: dict[int, tuple[OneSample, list[Row] | None]] = {}
        self._size_bytes = 0

    def note(
        self, function: Function, number: int, sample: OneSample, rows: list[Row] | None
    ) -> None:
        """Keep what was made of the sample of that number, unless that may be another next time."""
        depends = getattr(function, "gathers", False) or getattr(function, "numbered", False)
        parts = [sample, *(rows or ())]
        if depends or not all(map(_is_plain, parts)):
            return
        self._size_bytes += sum(_size_bytes(part) for part in parts)
        if self._size_bytes <= _KEPT_BYTES_MAX:
            # The function may change what it returned when it is called again.
            self._rows[number] = sample, copy.deepcopy(rows)

    def take(self, number: int, sample: OneSample) -> tuple[list[Row] | None] | None:
        """Return the rows that the function made of this sample, once; None if not known."""
        found = self._rows.pop(number, None)
        if found is None or not is_same(found[0], sample):
            return None
        return (found[1],)


def _is_plain(part: Any) -> bool:  # noqa: ANN401 - a sample or a row
    values = part.values() if isinstance(part, Mapping) else (part,)
    return all(isinstance(value, _PLAIN) for value in values)


def _size_bytes(part: Any) -> int:  # noqa: ANN401 - a sample or a row
    values = part.values() if isinstance(part, Mapping) else (part,)
    return sum(
        v.nbytes if hasattr(v, "nbytes") else len(v) if hasattr(v, "__len__") else 8 for v in values
    )
