"""`tf.train.Example`, the message that most TFRecords hold, read without TensorFlow.

Fields and numbers are those of tensorflow/core/example/{example,feature}.proto; the wire format is
that of Protocol Buffers (protobuf.dev/programming-guides/encoding).
"""

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

# A feature's values: byte strings, or a vector of float32 or int64.
Values = list[bytes] | npt.NDArray[Any]

_VARINT, _FIXED64, _SIZED, _FIXED32 = 0, 1, 2, 5
_VARINT_BYTES_MAX = 10


def parse_example(data: bytes) -> dict[str, Values]:
    """Features by name.

    Raises:
        ValueError: `data` is no such message.
    """
    features: dict[str, Values] = {}
    try:
        for body in _messages(memoryview(data), 1):
            for entry in _messages(body, 1):
                parts = dict(_fields(entry))
                features[bytes(parts[1]).decode()] = _feature(parts.get(2, memoryview(b"")))
    except (IndexError, KeyError, TypeError, UnicodeDecodeError, struct.error) as error:
        raise ValueError(f"no tf.train.Example: {error!r}") from error
    return features


def _feature(data: memoryview) -> Values:
    """A feature is one of three lists; a list without entries may be absent altogether."""
    for number, body in _fields(data):
        if number == 1:
            return [bytes(value) for value in _messages(body, 1)]
        if number == 2:
            parts = [np.frombuffer(value, "<f4") for value in _messages(body, 1)]
            return np.concatenate(parts) if parts else np.empty(0, "<f4")
        if number == 3:
            return _integers(body)
    return []


def _integers(body: memoryview) -> npt.NDArray[np.int64]:
    """Packed into one field, or each a field of its own."""
    parts = [
        np.array([value], np.uint64).view(np.int64) if isinstance(value, int) else _varints(value)
        for number, value in _fields(body)
        if number == 1
    ]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _varints(data: memoryview) -> npt.NDArray[np.int64]:
    """Many variable-length integers at once."""
    raw = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(raw < 0x80)
    if not raw.size:
        return np.empty(0, np.int64)
    if not ends.size or ends[-1] != raw.size - 1:
        raise IndexError("a number is cut short")
    begins = np.concatenate(([0], ends[:-1] + 1))
    place = np.arange(raw.size) - np.repeat(begins, ends - begins + 1)
    if place.max() >= _VARINT_BYTES_MAX:
        raise IndexError("a number of more than ten bytes")
    digits = (raw & 0x7F).astype(np.uint64) << (7 * place).astype(np.uint64)
    return np.bitwise_or.reduceat(digits, begins).view(np.int64)


def _messages(data: memoryview, number: int) -> Iterator[memoryview]:
    """The fields of that number that have a length, or are fixed numbers."""
    for found, value in _fields(data):
        if found == number:
            if isinstance(value, int):
                raise TypeError(f"field {number} is a number")
            yield value


def _fields(data: memoryview) -> Iterator[tuple[int, Any]]:
    """Number and value: an int, or the bytes."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        if kind == _SIZED:
            size, at = _varint(data, at)
        elif kind in (_FIXED32, _FIXED64):
            size = 4 if kind == _FIXED32 else 8
        else:
            raise TypeError(f"a field of wire type {kind}")
        if size > len(data) - at:
            raise IndexError("a field reaches beyond its message")
        yield tag >> 3, data[at : at + size]
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for place in range(_VARINT_BYTES_MAX):
        byte = data[at + place]
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at + place + 1
    raise IndexError("a number of more than ten bytes")
