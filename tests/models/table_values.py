"""Schemas and values of tables as plain values: the truth of the model of files.

A row is a dict of the values that `pyarrow.Table.to_pylist` gives; a record without columns is its
bytes. `same` compares what any reader gave with it: equal in value and in type.
"""

import base64
import datetime as dt
import decimal
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

D = decimal.Decimal
UTC = dt.UTC
MISSING = None


class Odd(NamedTuple):
    """A value that a writer may refuse."""

    written: Any
    read: Any = ...
    """What readers may give for it, if it is not refused; `...`: it must be refused."""


@dataclass(frozen=True)
class Kind:
    """A type of columns, and values of it."""

    arrow: Any
    values: tuple[Any, ...]
    native: str | None = None
    """As a schema of `Writer` spells it; None: it is in tables only."""
    odd: tuple[Odd, ...] = ()

    @property
    def is_bf16(self) -> bool:
        """Arrow has no such type."""
        return self.native == "bf16"

    @property
    def as_row(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        """The type that Arrow is given of a column of a file that is no table."""
        if self.native == "bytes":
            return pa.large_binary()
        if pa.types.is_fixed_size_list(self.arrow):
            return pa.fixed_shape_tensor(self.arrow.value_type, [self.arrow.list_size])
        return self.arrow


def _int(bits: int, signed: bool) -> Kind:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    name = f"{'' if signed else 'u'}int{bits}"
    odd = (Odd(low - 1), Odd(high + 1), Odd(1.5), Odd("7"), Odd(np.float64(2.5)), Odd(True, 1))
    odd += (Odd(np.int8(5), 5), Odd(2.0, 2), Odd(float("nan")), Odd(np.ma.masked, MISSING))
    if bits < 64:
        odd += (Odd(np.int64(high + 1)),)
    return Kind(getattr(pa, name)(), (0, 1, 3, 100, low, high), f"{name[0]}{bits}", odd)


def _float(bits: int, most: float, tiny: float) -> Kind:
    values = (0.0, -0.0, 1.0, 1.5, -2.25, most, tiny, math.inf, -math.inf, math.nan)
    odd = (Odd("x"), Odd(7, 7.0), Odd(np.ma.masked, MISSING), Odd(1 + 1j))
    odd += (Odd(np.float16(0.5), 0.5), Odd(np.float64(1.25), 1.25))
    if bits < 64:
        odd += (Odd(1e300), Odd(most * 1.1), Odd(np.float64(-1e300)))
    arrow = {16: pa.float16(), 32: pa.float32(), 64: pa.float64()}[bits]
    return Kind(arrow, values, f"f{bits}", odd)


_BF16 = Kind(
    pa.float32(),
    (0.0, -0.0, 1.0, 1.5, -2.25, 3.3895313892515355e38, math.inf, math.nan),
    "bf16",
    (
        *(Odd(2, 2.0), Odd(True, 1.0), Odd(np.int64(3), 3.0), Odd(np.uint32(2), 2.0)),
        *(Odd(3.4e38), Odd(1e300), Odd("x"), Odd(np.float32(0.5), 0.5), Odd(np.float16(3), 3.0)),
    ),
)


def _list(item: Any, *values: Any, odd: tuple[Odd, ...] = ()) -> Kind:  # noqa: ANN401
    return Kind(pa.list_(item), values, None, (*odd, Odd(5), Odd("ab")))


_ROLE = pa.struct([("role", pa.string()), ("content", pa.string())])
_SIZE = pa.struct([("w", pa.int64()), ("name", pa.string())])
_LINES = ({"role": "user", "content": "hi"}, {"role": None, "content": ""})
_NOON = dt.datetime(2020, 2, 29, 12, 0, 0)
# 2 by 2 pixels of one colour.
_PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAIAAAD91JpzAAAAEElEQVR4nGPg5GAH"
    "IgYIBQACtgBhFs9H2AAAAABJRU5ErkJggg=="
)
_SPLIT = dt.datetime(2020, 1, 1, 0, 0, 0, 500)

KINDS: dict[str, Kind] = {
    **{f"i{bits}": _int(bits, True) for bits in (8, 16, 32, 64)},
    **{f"u{bits}": _int(bits, False) for bits in (8, 16, 32, 64)},
    "f16": _float(16, 65504.0, 2.0**-24),
    "f32": _float(32, 3.4028234663852886e38, 2.0**-149),
    "f64": _float(64, 1.7976931348623157e308, 5e-324),
    "bf16": _BF16,
    "bool": Kind(pa.bool_(), (True, False), "bool", (Odd(2), Odd(0.5), Odd("x"), Odd(1, True))),
    "bytes": Kind(
        pa.binary(),
        (b"", b"x", b"null", bytes(range(256)), b"\xff\xd8\xff-", b"0" * 700),
        "bytes",
        (Odd(5), Odd(np.int64(3)), Odd("text", b"text"), Odd([1, 2]), Odd(bytearray(b"b"), b"b")),
    ),
    "png": Kind(pa.binary(), (_PNG,)),
    "blob": Kind(pa.binary(), (bytes(300_000), b"7" * 90_000), "bytes"),
    "utf8": Kind(
        pa.string(),
        ("", "x", "null", "0", "ü\n\x00", "long " * 90, "nan"),
        "utf8",
        (Odd(5), Odd(b"x", "x"), Odd(b"\xff"), Odd("\ud800"), Odd(["x"]), Odd(1.5)),
    ),
    "large utf8": Kind(pa.large_string(), ("", "x", "long " * 90)),
    "f32[3]": Kind(
        pa.list_(pa.float32(), 3),
        ([0.0, 1.5, -2.25], [math.inf, -0.0, 1.0]),
        "f32[3]",
        (Odd([1.0, 2.0]), Odd([1.0, 2.0, 1e300]), Odd(["a", "b", "c"]), Odd([1, 2, 3], [1, 2, 3])),
    ),
    "i64[2]": Kind(
        pa.list_(pa.int64(), 2), ([1, 2], [-(2**63), 2**63 - 1]), "i64[2]", (Odd([1.5, 2]),)
    ),
    "binary(4)": Kind(pa.binary(4), (b"\0\0\0\0", b"abcd"), None, (Odd(b"abc"), Odd(4))),
    "date": Kind(
        pa.date32(), (dt.date(1970, 1, 1), dt.date(2020, 2, 29)), None, (Odd(_NOON), Odd("x"))
    ),
    "time(us)": Kind(pa.time64("us"), (dt.time(0), dt.time(1, 2, 3, 4))),
    "duration(s)": Kind(
        pa.duration("s"),
        (dt.timedelta(0), dt.timedelta(days=-2, seconds=5)),
        None,
        (Odd(dt.timedelta(microseconds=1500)),),
    ),
    "timestamp(s)": Kind(pa.timestamp("s"), (dt.datetime(1970, 1, 1), _NOON), None, (Odd(_SPLIT),)),
    "timestamp(ms)": Kind(pa.timestamp("ms"), (_NOON,), None, (Odd(_SPLIT),)),
    "timestamp(us)": Kind(pa.timestamp("us"), (_NOON, _SPLIT), None, (Odd("x"),)),
    "timestamp(us, UTC)": Kind(
        pa.timestamp("us", "UTC"), (_NOON.replace(tzinfo=UTC), _SPLIT.replace(tzinfo=UTC))
    ),
    "decimal(10, 2)": Kind(
        pa.decimal128(10, 2),
        (D("0.00"), D("1.50"), D("-12345678.90")),
        None,
        (Odd(D("1.234")), Odd(D("123456789.00")), Odd("x")),
    ),
    "decimal(10, 3)": Kind(pa.decimal128(10, 3), (D("0.000"), D("1.500"))),
    "list<i64>": _list(
        pa.int64(),
        *([], [1], [1, 2, 3], [None], [2**63 - 1, None, -(2**63)]),
        odd=(
            *(Odd(np.array([1.5])), Odd([1.5]), Odd([2**63]), Odd([1, "x"])),
            *(Odd(np.array([1, 2], np.int8), [1, 2]), Odd((1, 2), [1, 2])),
            Odd(np.ma.MaskedArray([1, 2], [False, True]), [1, None]),
            Odd(np.zeros((2, 2), np.int64)),
        ),
    ),
    "list<i32>": _list(pa.int32(), [], [3], [4, 5], odd=(Odd([2**31]), Odd(np.array([2**31])))),
    "list<u32>": _list(pa.uint32(), [], [3], [4, 5], odd=(Odd([-1]), Odd(np.array([-1])))),
    "list<f32>": _list(pa.float32(), [], [1.5], [0.0, None], odd=(Odd([1e300]), Odd(["x"]))),
    "list<bool>": _list(pa.bool_(), [], [True, False], [None, True], odd=(Odd([2]),)),
    "list<utf8>": _list(pa.string(), [], ["a"], ["", None, "bb"], odd=(Odd([5]), Odd(["a", 1]))),
    "list<timestamp(ms)>": _list(pa.timestamp("ms"), [], [_NOON], [None, _NOON]),
    "list<list<i64>>": _list(pa.list_(pa.int64()), [], [[]], [[1], [], [2, 3]], [None, [4]]),
    "struct": Kind(
        _SIZE,
        ({"w": 3, "name": "x"}, {"w": None, "name": ""}, {"w": 0, "name": None}),
        None,
        (
            *(Odd({"w": 1, "name": "x", "other": 3}), Odd({"w": 1.5, "name": "x"}), Odd(5)),
            *(Odd({"w": 1}, {"w": 1, "name": None}), Odd({"w": 2**63, "name": ""})),
        ),
    ),
    "list<struct>": Kind(
        pa.list_(_ROLE),
        ([], [_LINES[0]], list(_LINES), [None, _LINES[0]]),
        None,
        (Odd([{"role": "a", "content": "b", "more": 1}]), Odd([5])),
    ),
    "map": Kind(
        pa.map_(pa.string(), pa.int64()),
        ([], [("a", 1)], [("b", None), ("", 2)]),
        None,
        (Odd({"a": 1}, [("a", 1)]), Odd([("a", 1.5)]), Odd([("a", 2**63)])),
    ),
    "dictionary": Kind(pa.dictionary(pa.int32(), pa.string()), ("a", "b", ""), None, (Odd(5),)),
}
NATIVE = tuple(name for name, kind in KINDS.items() if kind.native)
TABLE = tuple(name for name, kind in KINDS.items() if not kind.is_bf16 and name != "blob")
_RELATIVES = (
    ("i64", "timestamp(s)", "timestamp(ms)", "timestamp(us)", "timestamp(us, UTC)", "duration(s)"),
    ("decimal(10, 2)", "decimal(10, 3)", "decimal(10, 2)"),
    ("list<i64>", "list<i32>", "list<u32>", "list<f32>", "bytes", "list<bool>"),
    ("i32", "date", "u32", "f32"),
    ("utf8", "dictionary", "bytes", "large utf8"),
    ("f32[3]", "i64[2]", "list<f32>"),
    ("list<struct>", "list<utf8>", "map"),
)


def relative(name: str, step: int) -> str:
    """Another kind: of those that are stored alike, if there are any."""
    for group in _RELATIVES:
        if name in group:
            return group[(group.index(name) + step) % len(group)]
    return TABLE[(TABLE.index(name) + step) % len(TABLE)]


def are_laid_out_otherwise(name: str, other: str) -> bool:
    """Whether two kinds have the same values, and differ at most in how Arrow lays them out."""
    texts = ("utf8", "large utf8", "dictionary")
    same_type = KINDS[name].arrow == KINDS[other].arrow
    return same_type or (name in texts and other in texts)


ODDS: dict[str, tuple[str, Odd]] = {
    f"{name} <- {odd.written!r}": (name, odd) for name, kind in KINDS.items() for odd in kind.odd
}
NULLS = ("no", "some", "first", "all")


class Columns(NamedTuple):
    """The columns of a file; "?" behind a type: nulls may come. None at all: plain bytes."""

    spelled: tuple[str, ...]
    is_table: bool
    key: str = ""  # The column whose values are keys: an empty one is refused.

    @property
    def names(self) -> tuple[str, ...]:
        """The names are letters."""
        return tuple("abcdefgh"[: len(self.spelled)])

    @property
    def kinds(self) -> dict[str, Kind]:
        """The kind of each column."""
        each = (KINDS[one.rstrip("?")] for one in self.spelled)
        return dict(zip(self.names, each, strict=True))

    @property
    def nullable(self) -> dict[str, bool]:
        """Whether nulls may come."""
        return {n: one.endswith("?") for n, one in zip(self.names, self.spelled, strict=True)}

    def arrow(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        """The schema of Arrow."""
        nullable = self.nullable
        return pa.schema([pa.field(n, k.arrow, nullable[n]) for n, k in self.kinds.items()])

    def native(self) -> dict[str, str] | None:
        """The schema as `Writer` takes it."""
        return {n: k.native or "" for n, k in self.kinds.items()} or None

    def rows(self, count: int, seed: int, nulls: str = "no") -> list[Any]:
        """Values of a seed."""
        chance = random.Random(f"{self.spelled} {seed}")
        if not self.spelled:
            return [b"%d:" % i + chance.randbytes(chance.randrange(90)) for i in range(count)]
        return [
            {
                name: MISSING
                if self.nullable[name] and is_null(nulls, chance, number)
                else chance.choice(
                    [v for v in kind.values if v] if name == self.key else kind.values
                )
                for name, kind in self.kinds.items()
            }
            for number in range(count)
        ]

    def table(self, rows: Sequence[Any]) -> Any:  # noqa: ANN401 - pyarrow has no types
        """The rows as a table."""
        kinds = self.kinds
        arrays = [pa.array([_given(row[n], k) for row in rows], k.arrow) for n, k in kinds.items()]
        return pa.Table.from_arrays(arrays, schema=self.arrow())


def _given(value: Any, kind: Kind) -> Any:  # noqa: ANN401
    return np.float16(value) if kind.native == "f16" and value is not None else value


def is_null(nulls: str, chance: random.Random, number: int) -> bool:
    """Whether the value of that row is missing."""
    return {
        "no": False,
        "some": chance.random() < 0.3,
        "first": number == 0,
        "all": True,
    }[nulls]


def as_given(row: Any, columns: Columns) -> Any:  # noqa: ANN401
    """A row as users give it to a writer."""
    if not columns.spelled:
        return row
    return {name: _given(row[name], kind) for name, kind in columns.kinds.items()}


# What readers give, compared with the truth.


def same(kind: Any, seen: Any, truth: Any) -> bool:  # noqa: ANN401 - of any type
    """Whether a value of a reader is the value of that type of Arrow, or of that Kind."""
    if isinstance(kind, Kind):
        if kind.is_bf16:
            return _same_bf16(seen, truth)
        kind = kind.arrow
    seen = _value_of(kind, seen)
    if is_missing(seen) or truth is None:
        return truth is None and _is_nothing(kind, seen)
    types = pa.types
    if types.is_map(kind):
        return _same_map(kind, seen, truth)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        items = list(_items(seen))
        inner = kind.value_type
        return len(items) == len(truth) and all(
            same(inner, each, other) for each, other in zip(items, truth, strict=True)
        )
    if types.is_struct(kind):
        return (
            isinstance(seen, Mapping)
            and set(seen) == {field.name for field in kind}
            and all(same(field.type, seen[field.name], truth[field.name]) for field in kind)
        )
    return _same_leaf(kind, seen, truth)


def is_missing(seen: Any) -> bool:  # noqa: ANN401
    """Whether a reader says that there is no value."""
    if seen is None or seen is np.ma.masked:
        return True
    if isinstance(seen, np.ma.MaskedArray):
        return bool(seen.ndim == 0 and np.ma.getmaskarray(seen).all())
    return False


def _is_nothing(kind: Any, seen: Any) -> bool:  # noqa: ANN401
    """None; or, for a struct, fields that are all missing; for numbers of a shape, all masked."""
    if is_missing(seen):
        return True
    if isinstance(seen, Mapping) and pa.types.is_struct(kind):
        kinds = {field.name: field.type for field in kind}
        return set(kinds) == set(seen) and all(
            _is_nothing(kinds[name], _value_of(kinds[name], each)) for name, each in seen.items()
        )
    return isinstance(seen, np.ma.MaskedArray) and bool(np.ma.getmaskarray(seen).all())


def _value_of(kind: Any, seen: Any) -> Any:  # noqa: ANN401
    """Arrays for tensors; the value for one that is told apart from whether it is there."""
    if isinstance(seen, Mapping) and set(seen) == {"values", "valid"} and _is_leaf(kind):
        there = _array_of(seen["valid"])
        return _array_of(seen["values"]) if np.ndim(there) == 0 and bool(there) else None
    return _array_of(seen)


def _is_leaf(kind: Any) -> bool:  # noqa: ANN401
    return not pa.types.is_nested(kind) or pa.types.is_fixed_size_list(kind)


def _array_of(seen: Any) -> Any:  # noqa: ANN401
    """Tensors as arrays."""
    if type(seen).__module__.partition(".")[0] == "torch":
        return seen.detach().numpy()
    return seen


def _items(seen: Any) -> Iterator[Any]:  # noqa: ANN401
    """The items of a list, which may be given by columns."""
    if isinstance(seen, Mapping):
        if set(seen) == {"values", "valid"}:
            for value, valid in zip(_array_of(seen["values"]), seen["valid"], strict=True):
                yield value if bool(valid) else None
            return
        parts = {name: list(_items(each)) for name, each in seen.items()}
        for row in zip(*parts.values(), strict=True):
            yield None if all(map(is_missing, row)) else dict(zip(parts, row, strict=True))
        return
    if isinstance(seen, str | bytes) or not hasattr(seen, "__iter__"):
        raise Differs(f"{seen!r:.80} is no list")
    yield from seen


def _same_map(kind: Any, seen: Any, truth: Any) -> bool:  # noqa: ANN401
    pairs: list[Any] = []
    if isinstance(seen, Mapping) and set(seen) != {"key", "value"}:
        pairs = list(seen.items())
    else:
        for each in _items(seen):
            pairs.append((each["key"], each["value"]) if isinstance(each, Mapping) else each)
    return len(pairs) == len(truth) and all(
        same(kind.key_type, key, known) and same(kind.item_type, value, other)
        for (key, value), (known, other) in zip(pairs, truth, strict=True)
    )


def _same_bf16(seen: Any, truth: Any) -> bool:  # noqa: ANN401
    if is_missing(seen) or truth is None:
        return is_missing(seen) and truth is None
    if type(seen).__module__.partition(".")[0] == "torch":
        if str(seen.dtype) != "torch.bfloat16":
            return False
        seen = seen.float().numpy()
    if getattr(seen, "dtype", None) == np.uint16:  # NumPy has no bf16: these are its bits.
        seen = np.asarray(np.uint32(seen) << np.uint32(16)).view(np.float32)
    return _same_float(float(seen), truth)


def _same_float(seen: float, truth: float) -> bool:
    if math.isnan(truth):
        return math.isnan(seen)
    return seen == truth and math.copysign(1, seen) == math.copysign(1, truth)


def _same_leaf(kind: Any, seen: Any, truth: Any) -> bool:  # noqa: ANN401
    types = pa.types
    if types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        dtype = getattr(seen, "dtype", None)
        if dtype is not None and dtype != np.dtype(kind.to_pandas_dtype()):
            raise Differs(f"{seen!r:.80} is {dtype}, and the column is {kind}")
        if isinstance(seen, str | bytes) or np.ndim(seen) or seen is None:
            return False
        if types.is_floating(kind):
            return not isinstance(seen, bool | np.bool_) and _same_float(float(seen), float(truth))
        if types.is_boolean(kind):
            return isinstance(seen, bool | np.bool_ | np.ndarray) and bool(seen) == truth
        is_int = isinstance(seen, int | np.integer | np.ndarray) and not isinstance(seen, bool)
        return is_int and int(seen) == truth
    if types.is_string(kind) or types.is_large_string(kind):
        return isinstance(seen, str) and seen == truth
    if types.is_binary(kind) or types.is_large_binary(kind):
        return as_bytes(seen) == truth
    if isinstance(seen, type(truth)) and seen == truth:
        return True
    return stored_form(kind, truth) == (as_bytes(seen) if np.ndim(seen) else _whole(seen))


def _whole(seen: Any) -> Any:  # noqa: ANN401
    return seen if isinstance(seen, bytes | str) else int(np.asarray(seen).astype(np.int64))


def stored_form(kind: Any, truth: Any) -> int | bytes:  # noqa: ANN401
    """The integer or the bytes that Arrow stores of a time, a decimal, or binary of one size."""
    if isinstance(truth, bytes):
        return truth
    array = pa.array([truth], kind)
    width = kind.bit_width // 8
    data = array.buffers()[1].to_pybytes()[:width]
    if pa.types.is_decimal(kind):
        return data
    return int.from_bytes(data, "little", signed=True)


def as_bytes(seen: Any) -> bytes | None:  # noqa: ANN401
    """Bytes in any form; None if it is none."""
    seen = _array_of(seen)
    if isinstance(seen, np.ndarray):
        return seen.tobytes() if seen.dtype == np.uint8 else None
    return bytes(seen) if isinstance(seen, bytes | bytearray | memoryview) else None


class Differs(AssertionError):
    """What a path gives is not the truth."""


# JSON, which has no types: null is null, numbers are exact, the rest is told apart.


def same_json(kind: Any, seen: Any, truth: Any) -> bool:  # noqa: ANN401
    """Whether a value in JSON stands for that value."""
    if isinstance(kind, Kind):
        kind = kind.arrow
    if seen is None or truth is None:
        return seen is None and truth is None
    types = pa.types
    if types.is_map(kind):
        if isinstance(seen, dict) and set(seen) != {"key", "value"}:
            seen = [list(pair) for pair in seen.items()]
        pairs = [list(each.values()) if isinstance(each, dict) else each for each in seen]
        return len(pairs) == len(truth) and all(
            pair[0] == key and same_json(kind.item_type, pair[1], value)
            for pair, (key, value) in zip(pairs, truth, strict=True)
        )
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return (
            isinstance(seen, list)
            and len(seen) == len(truth)
            and all(same_json(kind.value_type, *pair) for pair in zip(seen, truth, strict=True))
        )
    if types.is_struct(kind):
        return (
            isinstance(seen, dict)
            and set(seen) == {field.name for field in kind}
            and all(same_json(field.type, seen[field.name], truth[field.name]) for field in kind)
        )
    return _same_json_leaf(kind, seen, truth)


def _same_json_leaf(kind: Any, seen: Any, truth: Any) -> bool:  # noqa: ANN401
    if isinstance(truth, bool):
        return seen is truth
    if isinstance(truth, int):
        return seen == truth and type(seen) is int
    if isinstance(truth, float):
        if math.isfinite(truth):
            return type(seen) in (int, float) and _same_float(float(seen), truth)
        return seen == str(truth)
    if isinstance(truth, str):
        return bool(seen == truth)
    if isinstance(truth, bytes):
        data = seen.encode() if isinstance(seen, str) else None
        if isinstance(seen, dict) and set(seen) == {"base64"}:
            data = base64.b64decode(seen["base64"])
        if isinstance(seen, list):
            data = bytes(seen)
        return data == truth
    return _is_told(kind, seen, truth)


def _is_told(kind: Any, seen: Any, truth: Any) -> bool:  # noqa: ANN401
    """A time or a decimal, as text in one of the usual forms, or as it is stored."""
    stored = stored_form(kind, truth)
    if isinstance(stored, bytes) and _same_json_leaf(kind, seen, stored):
        return True
    if isinstance(truth, dt.timedelta) and seen in (str(truth), truth.total_seconds()):
        return True
    if isinstance(seen, str):
        is_said = seen in (str(truth), str(stored))
        return is_said or truth in (_as_text(seen, kind), _as_iso(seen, truth))
    return seen in (stored, list(stored) if isinstance(stored, bytes) else stored)


def _as_iso(seen: str, truth: Any) -> Any:  # noqa: ANN401
    try:
        return type(truth).fromisoformat(seen)
    except (AttributeError, ValueError):
        return None


def _as_text(seen: str, kind: Any) -> Any:  # noqa: ANN401
    """What Arrow takes that text for."""
    try:
        return pa.array([seen]).cast(kind)[0].as_py()
    except pa.ArrowException:
        return None
