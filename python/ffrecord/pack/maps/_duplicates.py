"""Leaving out samples whose values another sample before them has."""

import datetime
import hashlib
import struct
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np

from ffrecord._tables.values import array_of
from ffrecord.pack.maps._base import Map, value_of

_HASH = np.dtype([("high", "<u8"), ("low", "<u8")])
_PIECE = 1 << 16


class deduplicate(Map):
    """Keeps the first of all samples that are equal in some columns.

    Samples are compared by hashes of 128 bits. A folder that is packed from paths is read twice,
    the first time by one process, which needs 40 bytes of memory for each sample.

    Args:
        columns: that are compared; by default all.
    """

    numbered = True

    def __init__(self, *columns: str) -> None:
        """Keep the arguments."""
        self.compared = columns
        self.left_out: dict[int, bytes] | None = None
        self.begin()

    def begin(self) -> None:
        """Forget nothing: samples of all parts are compared."""
        if "_seen" not in vars(self):
            self._seen: set[bytes] = set()
            self._numbers: dict[int, Any] = {}

    @property
    def looks(self) -> bool:
        """Yes."""
        return True

    def look(self, samples: Iterator[tuple[int, int, Any]]) -> None:
        """Find the samples to leave out."""
        inputs: list[int] = []
        begins: list[int] = []
        pieces, some, count = [], [], 0
        for input_, number, sample in samples:
            if not inputs or inputs[-1] != input_:
                inputs.append(input_)
                begins.append(count - number)
            some.append(self._hash(sample))
            count += 1
            if len(some) == _PIECE:
                pieces.append(np.frombuffer(b"".join(some), _HASH))
                some = []
        pieces.append(np.frombuffer(b"".join(some), _HASH))
        hashes = np.concatenate(pieces)
        del pieces
        order = np.lexsort((hashes["low"], hashes["high"]))  # Stable: the first one comes first.
        is_again = hashes[order][1:] == hashes[order][:-1]
        again = np.sort(order[1:][is_again])
        bounds = [*begins, count]
        self.left_out = {}
        for input_, begin, end in zip(inputs, bounds[:-1], bounds[1:], strict=True):
            own = again[np.searchsorted(again, begin) : np.searchsorted(again, end)] - begin
            self.left_out[input_] = own.astype("<i8").tobytes()

    def __call__(self, sample: Any, input_: int = 0, number: int = 0) -> Any:  # noqa: ANN401
        """Return the sample, or None."""
        if self.left_out is None:  # The source is read once, in order, by this process.
            found = self._hash(sample)
            is_new = found not in self._seen
            self._seen.add(found)
            return sample if is_new else None
        if input_ not in self._numbers:
            self._numbers[input_] = np.frombuffer(self.left_out.get(input_, b""), "<i8")
        numbers = self._numbers[input_]
        at = int(np.searchsorted(numbers, number))
        return None if at < len(numbers) and numbers[at] == number else sample

    def _hash(self, sample: Any) -> bytes:  # noqa: ANN401
        found = hashlib.blake2b(digest_size=_HASH.itemsize)
        names = self.compared or (sorted(sample) if isinstance(sample, Mapping) else ())
        if not names:
            _feed(found, bytes(sample))
        for name in names:
            _feed(found, name)
            _feed(found, value_of(sample, name, "deduplicate"))
        return found.digest()


def _feed(found: Any, value: Any) -> None:  # noqa: ANN401 - of any column
    """Add a value, with its kind and size, so that no two values are alike.

    Raises:
        TypeError: it is of a kind whose content is not known here.
    """
    if isinstance(value, np.ndarray):
        value = _parts_of(value)
    elif isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bytes | bytearray | memoryview):
        kind, data = b"b", bytes(value)
    elif isinstance(value, str):
        kind, data = b"s", value.encode("utf-8", "surrogatepass")
    elif isinstance(value, float):
        kind, data = b"f", struct.pack("<d", value)
    elif isinstance(value, list | tuple):
        found.update(b"l%d:" % len(value))
        for each in value:
            _feed(found, each)
        return
    elif isinstance(value, Mapping):
        _feed(found, [part for pair in value.items() for part in pair])
        return
    elif value is None or isinstance(value, bool | int):
        kind, data = b"v", repr(value).encode()
    elif isinstance(value, datetime.date | datetime.time | datetime.timedelta):
        kind, data = b"d", repr(value).encode()
    elif isinstance(value, Decimal | UUID):
        kind, data = type(value).__name__.encode(), repr(value).encode()
    else:
        _feed(found, _of_array(value))
        return
    found.update(b"%b%d:" % (kind, len(data)))
    found.update(data)


def _parts_of(array: "np.ndarray[Any, Any]") -> Any:  # noqa: ANN401 - see `_feed`
    """The type, shape, mask and values of an array; values under the mask count for nothing."""
    mask = np.ma.getmaskarray(array) if isinstance(array, np.ma.MaskedArray) else np.ma.nomask
    if array.dtype.hasobject:  # The array has addresses, which other objects have later.
        return array.dtype.str, array.shape, mask.tobytes(), array.tolist()
    plain = np.ma.getdata(array)
    if mask.any():
        plain = plain.copy()
        plain[mask] = np.zeros((), plain.dtype)
    return array.dtype.str, array.shape, mask.tobytes(), plain.tobytes()


def _of_array(value: Any) -> Any:  # noqa: ANN401 - see `_feed`
    """The parts of a tensor, or of what else is an array."""
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    array = array_of(value, "deduplicate", as_bits=True)
    if array.dtype.hasobject:
        raise TypeError(
            f"deduplicate does not know how to compare values of {name}: name the columns to "
            "compare, such as deduplicate('id')"
        )
    return name, str(getattr(value, "dtype", "")), _parts_of(array)
