"""Small values as a tagged tree of bytes: format.md, "Values". Makes no other objects."""

import dataclasses
import struct
from enum import IntEnum

from ffrecord import _ffrecord
from ffrecord.errors import CorruptionError

DEPTH_MAX = 64
SIZE_MAX = 64 << 20
INT_SIZE_MAX = 1024
KEY_SIZE_MAX = 4096  # Of a tensor.


class Tag(IntEnum):
    """The bytes that follow a tag."""

    NONE = 0
    FALSE = 1
    TRUE = 2
    INT = 3
    FLOAT = 4
    STR = 5
    BYTES = 6
    LIST = 7
    TUPLE = 8
    DICT = 9
    TENSOR = 10
    RANKS = 11


class Kind(IntEnum):
    """The kind of tensor in the program that saved it."""

    ARRAY = 0
    SCALAR = 1
    TORCH = 2


@dataclasses.dataclass(slots=True)  # Not frozen: made by the 100,000, in a third of the time.
class TensorRef:
    """A leaf whose bytes are in the segments; never changed."""

    kind: Kind
    key: str


@dataclasses.dataclass(frozen=True)
class EachRank:
    """One value from each rank that saved."""

    values: list[object]


def encode(value: object) -> bytes:
    """Encode None, bool, int, float, str, bytes, list, tuple, dict, TensorRef and EachRank.

    Raises:
        TypeError: it contains another type.
        ValueError: it is nested deeper than 64, an integer, a path or the whole is too large, or a
            string has half of a surrogate pair.
    """
    out: list[bytes] = []
    try:
        _put(out, value, 0)
    except UnicodeEncodeError as error:
        text = ascii(error.object[:100])
        raise ValueError(f"{text} in the state is not Unicode text: save it as bytes") from None
    encoded = b"".join(out)
    if len(encoded) > SIZE_MAX:
        raise ValueError(
            f"the small values take {len(encoded)} bytes, more than 64 MiB: use arrays"
        )
    return encoded


# What the most frequent values begin with, by their size: states have them by the 100,000.
_SHORT = 256
_STR_HEADS = tuple(struct.pack("<BI", Tag.STR, size) for size in range(_SHORT))
_TENSOR_HEADS = {
    kind: tuple(struct.pack("<BBH", Tag.TENSOR, kind, size) for size in range(_SHORT))
    for kind in Kind
}


def _put(out: list[bytes], value: object, depth: int) -> None:
    if depth > DEPTH_MAX:
        raise ValueError("the state is nested deeper than 64")
    if type(value) is TensorRef:
        _put_tensor(out, value)
    elif value is None:
        out.append(bytes((Tag.NONE,)))
    elif isinstance(value, bool):
        out.append(bytes((Tag.TRUE if value else Tag.FALSE,)))
    elif isinstance(value, int):
        _put_int(out, value)
    elif isinstance(value, float):
        out.append(struct.pack("<Bd", Tag.FLOAT, value))
    elif isinstance(value, str):
        _put_str(out, value)
    elif isinstance(value, bytes):
        _put_sized(out, Tag.BYTES, value)
    elif isinstance(value, dict):
        out.append(struct.pack("<BI", Tag.DICT, len(value)))
        if (references := _ffrecord.encode_references(value, TensorRef)) is not None:
            out.append(references)
            return
        for key_value, item in value.items():
            if type(key_value) is str:
                _put_str(out, key_value)
            else:
                _put(out, key_value, DEPTH_MAX)
            if type(item) is TensorRef:
                _put_tensor(out, item)
            else:
                _put(out, item, depth + 1)
    else:
        _put_elements(out, value, depth)


def _put_tensor(out: list[bytes], tensor: TensorRef) -> None:
    key = tensor.key.encode()
    size = len(key)
    if size < _SHORT:
        out += (_TENSOR_HEADS[tensor.kind][size], key)
    elif size > KEY_SIZE_MAX:
        raise ValueError(
            f"the path of a tensor takes {size} bytes, more than {KEY_SIZE_MAX}: "
            f"{tensor.key[:200]}..."
        )
    else:
        out += (struct.pack("<BBH", Tag.TENSOR, tensor.kind, size), key)


def _put_str(out: list[bytes], text: str) -> None:
    content = text.encode()
    size = len(content)
    if size < _SHORT:
        out += (_STR_HEADS[size], content)
    else:
        _put_sized(out, Tag.STR, content)


def _put_int(out: list[bytes], value: int) -> None:
    size = (value if value >= 0 else ~value).bit_length() // 8 + 1
    if size > INT_SIZE_MAX:
        raise ValueError(f"an integer takes {size} bytes, more than {INT_SIZE_MAX}")
    out += (struct.pack("<BH", Tag.INT, size), value.to_bytes(size, "little", signed=True))


def _put_sized(out: list[bytes], tag: int, content: bytes) -> None:
    if len(content) > SIZE_MAX:
        raise ValueError(f"a value takes {len(content)} bytes, more than 64 MiB: use an array")
    out += (struct.pack("<BI", tag, len(content)), content)


def _put_elements(out: list[bytes], value: object, depth: int) -> None:
    if isinstance(value, EachRank):
        tag, elements = Tag.RANKS, value.values
    elif isinstance(value, list):
        tag, elements = Tag.LIST, value
    elif isinstance(value, tuple):
        tag, elements = Tag.TUPLE, list(value)
    else:
        raise TypeError(f"{type(value).__name__} is not a type that a checkpoint can store")
    out.append(struct.pack("<BI", tag, len(elements)))
    for element in elements:
        _put(out, element, depth + 1)


def decode(tree: bytes) -> object:
    """Decode the result of `encode`.

    Raises:
        CorruptionError: the bytes are not exactly one tree.
    """
    reader = _Reader(tree)
    value = reader.value(0)
    if reader.position != len(tree):
        raise CorruptionError("checkpoint values: bytes follow the state-dict structure")
    return value


class _Reader:
    def __init__(self, tree: bytes) -> None:
        self.tree = tree
        self.position = 0

    def take(self, size: int) -> bytes:
        if size > len(self.tree) - self.position:
            raise CorruptionError("checkpoint values: the state-dict structure ends early")
        self.position += size
        return self.tree[self.position - size : self.position]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def text(self, size: int) -> str:
        try:
            return self.take(size).decode()
        except UnicodeDecodeError as error:
            raise CorruptionError(f"checkpoint values: a string is not UTF-8: {error}") from None

    def value(self, depth: int) -> object:
        if depth > DEPTH_MAX:
            raise CorruptionError("checkpoint values: nested deeper than 64")
        tag = self.number(1)
        match tag:
            case Tag.NONE:
                return None
            case Tag.FALSE | Tag.TRUE:
                return tag == Tag.TRUE
            case Tag.INT:
                return int.from_bytes(self.take(self.number(2)), "little", signed=True)
            case Tag.FLOAT:
                return float(struct.unpack("<d", self.take(8))[0])
            case Tag.STR:
                return self.text(self.number(4))
            case Tag.BYTES:
                return self.take(self.number(4))
            case Tag.LIST:
                return self.elements(depth)
            case Tag.TUPLE:
                return tuple(self.elements(depth))
            case Tag.RANKS:
                return EachRank(self.elements(depth))
            case Tag.DICT:
                return {self.key(): self.value(depth + 1) for _ in range(self.count(2))}
            case Tag.TENSOR:
                kind = self.number(1)
                if kind not in list(Kind):
                    raise CorruptionError(f"checkpoint values: unknown kind of tensor {kind}")
                return TensorRef(Kind(kind), self.text(self.number(2)))
        raise CorruptionError(f"checkpoint values: unknown tag {tag}")

    def key(self) -> object:
        if self.position < len(self.tree) and self.tree[self.position] > Tag.BYTES:
            raise CorruptionError("checkpoint values: a key is a container or a tensor")
        return self.value(DEPTH_MAX)

    def count(self, size_min: int) -> int:
        count = self.number(4)
        if count > (len(self.tree) - self.position) // size_min:
            raise CorruptionError("checkpoint values: a count passes the end")
        return count

    def elements(self, depth: int) -> list[object]:
        return [self.value(depth + 1) for _ in range(self.count(1))]
