"""Small values as a tagged tree of bytes: format.md, "Values". Makes no other objects."""

import dataclasses
import struct
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Literal

from ffrecord import _ffrecord
from ffrecord.errors import CorruptionError

DEPTH_MAX = 64
SIZE_MAX = 64 << 20
INT_SIZE_MAX = 1024
KEY_SIZE_MAX = 4096  # Characters of a tensor's key.


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
    COMPLEX = 12
    SET = 13
    FROZENSET = 14
    NAMED = 15


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


@dataclasses.dataclass(frozen=True)
class OwnPlace:
    """Where a value of each rank belongs that is not known yet; in no checkpoint."""

    path: str


NamedKind = Literal["enum", "dataclass", "namedtuple", "dtype", "device", "tensor"]
_NAMED_KINDS: tuple[NamedKind, ...] = (
    "enum", "dataclass", "namedtuple", "dtype", "device", "tensor",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Named:
    """A value of a type of the program, as a checkpoint keeps it and as it is loaded without one.

    Loading imports and calls nothing by its name: an object of the type is made only where the
    state to fill has one.

    Attributes:
        kind: what the value was: "enum", "dataclass", "namedtuple", "dtype", "device", or
            "tensor": one of a subclass that is made of other tensors.
        name: the name of its type, with its module.
        value: the name of the member (the number of combined flags), the fields, the name of the
            dtype or device, or the parts.
    """

    kind: NamedKind
    name: str
    value: object


Parts = list[bytes | OwnPlace]


def encode(value: object) -> bytes:
    """Encode None, bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset, Named.

    And TensorRef and EachRank.

    Raises:
        TypeError: it contains another type.
        ValueError: it is nested deeper than 64, an integer, a path or the whole is too large, or a
            string has half of a surrogate pair.
    """
    return fill_places(encode_around(value), {})


def encode_around(value: object) -> Parts:
    """The output of `encode`, around the places that are not filled yet. Raises as `encode`."""
    out: Parts = []
    try:
        _put(out, value, 0)
    except UnicodeEncodeError as error:
        text = ascii(error.object[:100])
        raise ValueError(f"{text} in the state is not Unicode text: save it as bytes") from None
    joined: Parts = []
    at = 0
    for place in [i for i, part in enumerate(out) if isinstance(part, OwnPlace)]:
        joined += (b"".join(out[at:place]), out[place])  # type: ignore[arg-type]
        at = place + 1
    joined.append(b"".join(out[at:]))  # type: ignore[arg-type]
    return joined


def fill_places(parts: Parts, encoded: Mapping[str, Sequence[bytes]]) -> bytes:
    """Put the encoded values of all ranks into their places. Raises ValueError: it is too large."""
    whole = b"".join(
        _each_rank(encoded[part.path]) if isinstance(part, OwnPlace) else part for part in parts
    )
    if len(whole) > SIZE_MAX:
        raise ValueError(f"the small values take {len(whole)} bytes, more than 64 MiB: use arrays")
    return whole


def _each_rank(values: Sequence[bytes]) -> bytes:
    return b"".join((struct.pack("<BI", Tag.RANKS, len(values)), *values))


# The heads of the most frequent values, by their size: states have them by the 100,000.
_SHORT = 256
_STR_HEADS = tuple(struct.pack("<BI", Tag.STR, size) for size in range(_SHORT))
_TENSOR_HEADS = {
    kind: tuple(struct.pack("<BBH", Tag.TENSOR, kind, size) for size in range(_SHORT))
    for kind in Kind
}


def _put(out: Parts, value: object, depth: int) -> None:
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


def _put_tensor(out: Parts, tensor: TensorRef) -> None:
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


def _put_str(out: Parts, text: str) -> None:
    content = text.encode()
    size = len(content)
    if size < _SHORT:
        out += (_STR_HEADS[size], content)
    else:
        _put_sized(out, Tag.STR, content)


def _put_int(out: Parts, value: int) -> None:
    size = (value if value >= 0 else ~value).bit_length() // 8 + 1
    if size > INT_SIZE_MAX:
        raise ValueError(f"an integer takes {size} bytes, more than {INT_SIZE_MAX}")
    out += (struct.pack("<BH", Tag.INT, size), value.to_bytes(size, "little", signed=True))


def _put_sized(out: Parts, tag: int, content: bytes) -> None:
    if len(content) > SIZE_MAX:
        raise ValueError(f"a value takes {len(content)} bytes, more than 64 MiB: use an array")
    out += (struct.pack("<BI", tag, len(content)), content)


def _put_elements(out: Parts, value: object, depth: int) -> None:
    if isinstance(value, EachRank):
        tag, elements = Tag.RANKS, value.values
    elif isinstance(value, list):
        tag, elements = Tag.LIST, value
    elif isinstance(value, tuple):
        tag, elements = Tag.TUPLE, list(value)
    elif isinstance(value, OwnPlace):
        out.append(value)
        return
    else:
        _put_rare(out, value, depth)
        return
    out.append(struct.pack("<BI", tag, len(elements)))
    for element in elements:
        _put(out, element, depth + 1)


def _put_rare(out: Parts, value: object, depth: int) -> None:
    if isinstance(value, complex):
        out.append(struct.pack("<Bdd", Tag.COMPLEX, value.real, value.imag))
    elif isinstance(value, set | frozenset):
        tag = Tag.SET if isinstance(value, set) else Tag.FROZENSET
        elements = []
        for element in value:
            part: Parts = []
            _put(part, element, depth + 1)
            elements.append(b"".join(part))  # type: ignore[arg-type]
        out += (struct.pack("<BI", tag, len(elements)), *sorted(elements))
    elif isinstance(value, Named):
        name = value.name.encode()
        kind = _NAMED_KINDS.index(value.kind)
        out += (struct.pack("<BBI", Tag.NAMED, kind, len(name)), name)
        _put(out, value.value, depth + 1)
    else:
        raise TypeError(f"{type(value).__name__} is not a type that a checkpoint can store")


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
            case Tag.COMPLEX:
                return complex(*struct.unpack("<dd", self.take(16)))
            case Tag.SET:
                return set(self.elements_of_set(depth))
            case Tag.FROZENSET:
                return frozenset(self.elements_of_set(depth))
            case Tag.NAMED:
                return self.named(depth)
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

    def elements_of_set(self, depth: int) -> list[object]:
        elements = self.elements(depth)
        try:
            set(elements)
        except TypeError:
            raise CorruptionError("checkpoint values: an element of a set is a container") from None
        return elements

    def named(self, depth: int) -> Named:
        kind = self.number(1)
        if kind >= len(_NAMED_KINDS):
            raise CorruptionError(f"checkpoint values: unknown kind of value {kind}")
        name = self.text(self.number(4))
        return Named(_NAMED_KINDS[kind], name, self.value(depth + 1))
