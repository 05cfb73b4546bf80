"""Packing documents into bins of one length, so that batches need almost no padding."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ffrecord._tables.schema import DTYPES
from ffrecord._tables.values import array_of, exact
from ffrecord.pack.maps._base import Map, Sample, column_in, value_of

_KINDS = {np.dtype(code): name for name, code in DTYPES.items() if name != "bf16"}
_COLUMNS = ("tokens", "input_ids")
# Documents that are put into bins together.
_WINDOW_BYTES, _WINDOW_COUNT = 64 << 20, 1 << 16


class bins(Map):
    """Puts lists of numbers into bins with room for `length` numbers, by their lengths alone.

    A record is a bin: the column has the documents, one behind the other, and `lengths` how long
    each of them is. The longest document comes first, and each goes to the fullest bin that has
    room for it. A longer document than `length` is cut. Bins never have documents of several parts
    of the result.

    Args:
        length: of a bin, in numbers.
        column: with the lists; by default the one called tokens or input_ids.
    """

    gathers = True

    def __init__(self, length: int, column: str = "") -> None:
        """Keep the arguments."""
        if length < 1:
            raise ValueError(f"bins: length is {length}, at least 1")
        self.length, self.column = length, column
        self.begin()

    def begin(self) -> None:
        """Forget what is gathered."""
        self._documents: list[npt.NDArray[Any]] = []
        self._bytes = 0

    def columns(self, source: Any) -> Any:  # noqa: ANN401 - see `Map`
        """Return the list, whose type stays, and the lengths."""
        from ffrecord._tables.formats import pyarrow

        pa = pyarrow()
        if source is None or not hasattr(source, "field"):
            raise ValueError("bins takes tables with lists: pack the tokens first")
        self.column = self.column or column_in(source, _COLUMNS, "bins", "column")
        kind = source.field(column_in(source, (self.column,), "bins", "column")).type
        number = getattr(kind, "value_type", None)
        is_flat = len(getattr(kind, "shape", (0,))) == 1
        types = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
        if number is None or not is_flat or not any(is_such(number) for is_such in types):
            raise ValueError(f"bins: the column '{self.column}' is {kind}, no list of numbers")
        self.type = _KINDS[np.dtype(number.to_pandas_dtype())]
        fields = [(self.column, number), ("lengths", pa.int32())]
        return pa.schema(
            pa.field(name, pa.list_(pa.field("item", t, nullable=False)), nullable=False)
            for name, t in fields
        )

    def __call__(self, sample: Any) -> Any:  # noqa: ANN401
        """Take a document; return bins when there are many."""
        value = value_of(sample, self.column, "bins")
        if value is None or len(value) == 0:
            return None
        where = f"bins: the list in '{self.column}'"
        has_null = np.ma.is_masked(value) if isinstance(value, np.ndarray) else None in value
        if has_null:
            raise ValueError(f"{where} has a null, which is no number")
        document = exact(array_of(value, where), self.type, where)
        if document.ndim != 1:
            raise ValueError(f"{where} has shape {document.shape}, and must be flat")
        for at in range(0, len(document), self.length):
            self._documents.append(document[at : at + self.length])
        self._bytes += document.nbytes
        is_full = self._bytes >= _WINDOW_BYTES or len(self._documents) >= _WINDOW_COUNT
        return list(self.rest()) if is_full else []

    def rest(self) -> Iterator[Sample]:
        """Return the bins of what is gathered."""
        documents = self._documents
        self.begin()
        for inside in _fitted([len(each) for each in documents], self.length):
            some = [documents[number] for number in inside]
            lengths = np.array([len(each) for each in some], "i4")
            yield {self.column: np.concatenate(some), "lengths": lengths}


def _fitted(lengths: list[int], room: int) -> list[list[int]]:
    """The numbers of what is in each bin: the longest first, into the fullest that has room."""
    found: list[list[int]] = []
    left: list[tuple[int, int]] = []  # Room, and the number of the bin; sorted.
    for number in sorted(range(len(lengths)), key=lambda n: (-lengths[n], n)):
        at = bisect_left(left, (lengths[number], -1))
        if at == len(left):
            found.append([number])
            insort(left, (room - lengths[number], len(found) - 1))
            continue
        has, bin_ = left.pop(at)
        found[bin_].append(number)
        insort(left, (has - lengths[number], bin_))
    return found
