"""`tf.train.Example`, the message that most TFRecords hold, read without TensorFlow.

Fields and numbers are those of tensorflow/core/example/{example,feature}.proto; the wire format is
that of Protocol Buffers (protobuf.dev/programming-guides/encoding).
"""

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

# A feature's values: byte strings, or a vector of float32 or int64.
Values = list[bytes] | npt.NDArray[Any]

_VARINT, _FIXED64, _SIZED, _FIXED32 = 0, 1, 2, 5
_VARINT_BYTES_MAX = 10


def parse_example(data: bytes) -> dict[str, Values]:
    """Read features by name, merged as Protocol Buffers define it, also for repeated fields.

    Raises:
        ValueError: `data` is not such a message, or has an unknown field.
    """
    features: dict[str, Values] = {}
    try:
        for body in _bodies(memoryview(data), "Example", {1}):
            for entry in _bodies(body, "Features", {1}):
                name, feature = _entry(entry)
                features[name] = _feature(feature)
    except (IndexError, TypeError, UnicodeDecodeError, struct.error) as error:
        raise ValueError(f"no tf.train.Example: {error}") from error
    return features


class Sequence(NamedTuple):
    """A `tf.train.SequenceExample`."""

    context: dict[str, Values]
    lists: dict[str, list[Values]]
    """For each name, the values of each step."""


def parse_sequence(data: bytes) -> Sequence:
    """Read a `SequenceExample`, as `parse_example`.

    Raises:
        ValueError: `data` is not such a message, or has an unknown field.
    """
    found = Sequence({}, {})
    try:
        for number, kind, body in _fields(memoryview(data)):
            _check(number, kind, "SequenceExample", {1, 2}, {_SIZED})
            for entry in _bodies(body, "Features" if number == 1 else "FeatureLists", {1}):
                name, feature = _entry(entry)
                if number == 1:
                    found.context[name] = _feature(feature)
                else:
                    steps = _bodies(feature, "FeatureList", {1})
                    found.lists[name] = [_feature(step) for step in steps]
    except (IndexError, TypeError, UnicodeDecodeError, struct.error) as error:
        raise ValueError(f"no tf.train.SequenceExample: {error}") from error
    return found


def has_field(data: bytes, wanted: int) -> bool:
    """Whether a message has a field of that number; False if it is no message."""
    try:
        return any(number == wanted for number, _, _ in _fields(memoryview(data)))
    except (IndexError, TypeError):
        return False


def _entry(data: memoryview) -> tuple[str, memoryview]:
    """An entry of the map: of several names the last, of several features all, one behind."""
    name, features = b"", []
    for number, kind, value in _fields(data):
        _check(number, kind, "a feature's entry", {1, 2}, {_SIZED})
        if number == 1:
            name = bytes(value)
        else:
            features.append(value)
    feature = features[0] if len(features) == 1 else memoryview(b"".join(features))
    return name.decode(), feature


def _feature(data: memoryview) -> Values:
    """One of three lists: the last one that is there, joined with those before of its kind."""
    found: int = 0
    lists: list[memoryview] = []
    for number, kind, value in _fields(data):
        _check(number, kind, "Feature", {1, 2, 3}, {_SIZED})
        if number != found:
            found, lists = number, []
        lists.append(value)
    body = lists[0] if len(lists) == 1 else memoryview(b"".join(lists))
    if found == 2:
        return _floats(body)
    if found == 3:
        return _integers(body)
    return [bytes(value) for value in _bodies(body, "BytesList", {1})]


def _floats(body: memoryview) -> npt.NDArray[np.float32]:
    """Packed into one field, or each in a field of its own."""
    parts = []
    for number, kind, value in _fields(body):
        _check(number, kind, "FloatList", {1}, {_SIZED, _FIXED32})
        if len(value) % 4:
            raise IndexError("a number is truncated")
        parts.append(np.frombuffer(value, "<f4"))
    return np.concatenate(parts) if parts else np.empty(0, "<f4")


def _integers(body: memoryview) -> npt.NDArray[np.int64]:
    """Packed into one field, or each in a field of its own."""
    parts = []
    for number, kind, value in _fields(body):
        _check(number, kind, "Int64List", {1}, {_SIZED, _VARINT})
        is_one = kind == _VARINT
        parts.append(np.array([value], np.uint64).view(np.int64) if is_one else _varints(value))
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _varints(data: memoryview) -> npt.NDArray[np.int64]:
    """Many variable-length integers at once."""
    raw = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(raw < 0x80)
    if not raw.size:
        return np.empty(0, np.int64)
    if not ends.size or ends[-1] != raw.size - 1:
        raise IndexError("a number is truncated")
    begins = np.concatenate(([0], ends[:-1] + 1))
    place = np.arange(raw.size) - np.repeat(begins, ends - begins + 1)
    if place.max() >= _VARINT_BYTES_MAX:
        raise IndexError("a number of more than ten bytes")
    digits = (raw & 0x7F).astype(np.uint64) << (7 * place).astype(np.uint64)
    return np.bitwise_or.reduceat(digits, begins).view(np.int64)


def _bodies(data: memoryview, what: str, known: set[int]) -> Iterator[memoryview]:
    """The fields of a message in which all fields have a length."""
    for number, kind, value in _fields(data):
        _check(number, kind, what, known, {_SIZED})
        yield value


def _check(number: int, kind: int, what: str, known: set[int], kinds: set[int]) -> None:
    """Reject unknown fields: TensorFlow itself writes no others."""
    if number not in known or kind not in kinds:
        hint = "; is it a SequenceExample?" if (what, number) == ("Example", 2) else ""
        raise TypeError(f"{what} has a field {number} of wire type {kind}{hint}")


def _fields(data: memoryview) -> Iterator[tuple[int, int, Any]]:
    """Number, wire type and value: an int, or the bytes."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield tag >> 3, kind, value
            continue
        if kind == _SIZED:
            size, at = _varint(data, at)
        elif kind in (_FIXED32, _FIXED64):
            size = 4 if kind == _FIXED32 else 8
        else:
            raise TypeError(f"a field of wire type {kind}")
        if size > len(data) - at:
            raise IndexError("a field reaches beyond its message")
        yield tag >> 3, kind, data[at : at + size]
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for place in range(_VARINT_BYTES_MAX):
        byte = data[at + place]
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at + place + 1
    raise IndexError("a number of more than ten bytes")
