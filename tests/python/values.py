"""Values for each type, right and wrong, with what is read back; for test_values."""

import datetime
import decimal
import math
import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

pa = pytest.importorskip("pyarrow")
ml_dtypes: Any
try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None

REFUSED = object()
INF, NAN = math.inf, math.nan
ARROW = {
    **{"bool": pa.bool_(), "f16": pa.float16(), "f32": pa.float32(), "f64": pa.float64()},
    **{f"i{bits}": getattr(pa, f"int{bits}")() for bits in (8, 16, 32, 64)},
    **{f"u{bits}": getattr(pa, f"uint{bits}")() for bits in (8, 16, 32, 64)},
    **{"utf8": pa.string(), "bytes": pa.binary(), "bf16": pa.float32()},
}
BF16 = {b"ffrecord.type": b"bf16"}


class Case(NamedTuple):
    """A value for a column, and what is read back."""

    type: str
    value: Any
    read: Any


def masked(*values: object) -> Any:  # noqa: ANN401
    """An array of which the last value is masked."""
    return np.ma.MaskedArray(values, [False] * (len(values) - 1) + [True])


def integers() -> Iterator[Case]:
    for bits in (8, 16, 32, 64):
        for name, least, most in (
            (f"i{bits}", -(1 << bits - 1), (1 << bits - 1) - 1),
            (f"u{bits}", 0, (1 << bits) - 1),
        ):
            for right in (least, most, np.int8(5), np.array(5, np.int64), torch.tensor(5)):
                yield Case(name, right, int(right))
            yield Case(
                name, np.array(most, np.dtype(f"{name[0]}{bits // 8}").newbyteorder(">")), most
            )
            yield Case(name, torch.nn.Parameter(torch.tensor(1), requires_grad=False), 1)
            yield Case(name, True, 1)
            for wrong in (least - 1, most + 1, 1 << 70, -(1 << 70)):
                yield Case(name, wrong, REFUSED)
            for wrong in (1.5, 3.0, NAN, INF, np.float32(2), torch.tensor(2.0), 1j, "5", b"5"):
                yield Case(name, wrong, REFUSED)
            for wrong in (torch.tensor(2.0, dtype=torch.bfloat16), np.ma.masked, [5], {"a": 5}):
                yield Case(name, wrong, REFUSED)
            for wrong in (np.datetime64(5, "s"), np.timedelta64(5, "s"), decimal.Decimal(5)):
                yield Case(name, wrong, REFUSED)
    yield Case("i16", np.int64(40_000), REFUSED)
    yield Case("u64", torch.tensor(-1), REFUSED)


def floats() -> Iterator[Case]:
    for name, least, most, exact, rounded in (
        ("f16", 2.0**-24, 65504.0, 2048, 2049),
        ("f32", 2.0**-149, float(np.finfo(np.float32).max), 1 << 24, (1 << 24) + 1),
        ("f64", 5e-324, 1.7976931348623157e308, 1 << 53, (1 << 53) + 1),
        ("bf16", 2.0**-133, float(torch.finfo(torch.bfloat16).max), 256, 257),
    ):
        for right in (0.0, -0.0, 1.5, INF, -INF, NAN, least, most, -most):
            yield Case(name, right, right)
            yield Case(name, np.float64(right), right)
            yield Case(name, torch.tensor(right, dtype=torch.float64), right)
        for right in (
            exact,
            -exact,
            np.int16(3),
            torch.tensor(3),
            torch.tensor(3, dtype=torch.int8),
        ):
            yield Case(name, right, float(right))
        for tensor in (
            torch.tensor(1.5, dtype=torch.bfloat16),
            torch.tensor(1.5, requires_grad=True),
        ):
            yield Case(name, tensor, 1.5)
        yield Case(name, torch.tensor(1.5, dtype=torch.float8_e4m3fn), 1.5)
        yield Case(name, True, 1.0)
        for wrong in (rounded, -rounded, np.int64(rounded), torch.tensor(rounded), 1 << 2000):
            yield Case(name, wrong, REFUSED)
        for wrong in (1j, "1.5", b"1.5", np.ma.masked, [1.5], np.datetime64(1, "s"), object()):
            yield Case(name, wrong, REFUSED)
        yield Case(name, decimal.Decimal("1.5"), REFUSED)
        if ml_dtypes is not None:
            yield Case(name, ml_dtypes.bfloat16(1.5), 1.5)
            yield Case(name, ml_dtypes.float8_e5m2(1.5), 1.5)
    for name, wrong in (("f16", 65520.0), ("f16", 7e4), ("f32", 1e300), ("bf16", 3.4e38)):
        for value in (wrong, -wrong, np.float64(wrong), torch.tensor(wrong, dtype=torch.float64)):
            yield Case(name, value, REFUSED)
    yield Case("f16", np.float32(1e5), REFUSED)
    yield Case("bf16", 1e300, REFUSED)
    yield Case("bf16", 1.0 + 2.0**-9, 1.0)  # A tie, to the even one.


def others() -> Iterator[Case]:
    for right in (True, False, np.True_, torch.tensor(True), np.array(False)):
        yield Case("bool", right, bool(right))
    for wrong in (1, 0, 1.0, "yes", np.int8(1), torch.tensor(1), np.ma.masked, b"\1"):
        yield Case("bool", wrong, REFUSED)
    for right in ("", "ü", np.str_("abc"), "a\0b"):
        yield Case("utf8", right, str(right))
    for wrong in (b"abc", 5, "\ud800", np.bytes_(b"a"), ["a"], np.array("a"), np.ma.masked, 1.5):
        yield Case("utf8", wrong, REFUSED)
    for right in (b"", b"a\0", bytearray(b"ab"), memoryview(b"abcd")[::2], np.bytes_(b"x")):
        yield Case("bytes", right, bytes(right))
    yield Case("bytes", np.arange(3, dtype=np.int16), b"\0\0\1\0\2\0")
    yield Case("bytes", torch.tensor([1.0, 2.0], dtype=torch.bfloat16), b"\x80\x3f\0\x40")
    yield Case("bytes", torch.tensor([1.0], requires_grad=True), b"\0\0\x80\x3f")
    yield Case("bytes", np.array([1], "M8[s]"), b"\1" + bytes(7))
    for wrong in ("abc", 5, 1.5, [1, 2], np.str_("a"), np.array(["a"]), masked(1, 2)):
        yield Case("bytes", wrong, REFUSED)
    yield Case("bytes", np.array([None]), REFUSED)
    yield Case("bytes", pa.array([1, None]), REFUSED)


def shaped() -> Iterator[Case]:
    for right in (
        *([1, 2], (1, 2), np.array([1, 2], np.int32), torch.tensor([1, 2]), range(1, 3)),
        *([np.int8(1), 2], [torch.tensor(1), 2], np.arange(4)[1:3], np.array([1, 9, 2])[::2]),
        *(pa.array([1, 2]), masked(1, 2, 3)[:2], np.array([1, 2], object)),
    ):
        yield Case("i64[2]", right, [1, 2])
    for wrong in (
        *([1], [1, 2, 3], 5, [[1, 2]], [1, None], [1, 1.5], [1, "2"], masked(1, 2), None),
        *([1, np.ma.masked], [1, 1 << 63], np.array([1.0, 2.0]), pa.array([1, None]), "12", b"12"),
        *([1, [2]], np.array(["1", "2"]), torch.tensor([1.0, 2.0])),
    ):
        yield Case("i64[2]", wrong, REFUSED)
    yield Case("u64[2]", [1, (1 << 64) - 1], [1, (1 << 64) - 1])
    yield Case("u64[2]", [np.int64(1), np.uint64((1 << 64) - 1)], [1, (1 << 64) - 1])
    yield Case("u64[2]", [-1, (1 << 64) - 1], REFUSED)
    yield Case("f64[2]", [(1 << 53) + 1, 0.5], REFUSED)
    yield Case("f64[2]", [1 << 60, 0.5], [float(1 << 60), 0.5])
    yield Case("f64[2]", [1, 0.5], [1.0, 0.5])
    yield Case("f64[2]", pa.array([1.0, None]), REFUSED)
    yield Case("f64[2]", [1.0, np.ma.masked], REFUSED)
    yield Case("f64[2]", masked(1.0, 2.0), REFUSED)
    for name in ("f16[2]", "f32[2]", "bf16[2]"):
        yield Case(name, [1.5, 2], [1.5, 2.0])
        yield Case(name, [1.5, -0.0], [1.5, -0.0])
        yield Case(name, np.array([NAN, -INF]), [NAN, -INF])
    yield Case("f32[2]", np.array([1, 1e300]), REFUSED)
    yield Case("f32[2]", [1.0, 1e300], REFUSED)
    yield Case("f16[2]", np.array([1, 1e5], np.float32), REFUSED)
    yield Case("bf16[2]", [1, 2], [1.0, 2.0])
    yield Case("bf16[2]", torch.tensor([1.0, 2.0], dtype=torch.bfloat16), [1.0, 2.0])
    yield Case("bf16[2]", np.array([1, 3.4e38]), REFUSED)
    yield Case("bool[2]", [True, np.False_], [True, False])
    yield Case("bool[2]", [1, 0], REFUSED)
    yield Case("i8[2,2]", [[1, 2], (3, 4)], [[1, 2], [3, 4]])
    yield Case("i8[2,2]", [np.array([1, 2]), torch.tensor([3, 4])], [[1, 2], [3, 4]])
    yield Case("i8[2,2]", [[1, 2], masked(3, 4)], REFUSED)
    yield Case("i8[2,2]", [[1, 2], [3]], REFUSED)
    yield Case("i8[2,2]", [[1, 2], [3, 400]], REFUSED)


CASES = [*integers(), *floats(), *others(), *shaped()]
TYPES = list(dict.fromkeys(case.type for case in CASES))


def good(kind: str) -> Any:  # noqa: ANN401
    """A value that each type takes."""
    name, _, shape = kind.rstrip("]").partition("[")
    if not shape:
        return {"utf8": "good", "bytes": b"good", "bool": True}.get(name, 1)
    return np.ones(list(map(int, shape.split(","))), "?" if name == "bool" else "i1")


def arrow(kind: str) -> Any:  # noqa: ANN401
    """The type of Arrow for one of a schema."""
    name, _, shape = kind.rstrip("]").partition("[")
    made = ARROW[name]
    for size in reversed(shape.split(",") if shape else ()):
        made = pa.list_(pa.field("item", made, nullable=False), int(size))
    return made


UTC = datetime.UTC
MOMENT = datetime.datetime(2020, 1, 2, 3, 4, 5, 600_000)
ZONE = datetime.timezone(datetime.timedelta(hours=2))
MIDNIGHT = datetime.datetime(2020, 1, 2)
STAMP_S, STAMP_NS = pa.timestamp("s"), pa.timestamp("ns")
BERLIN = pa.timestamp("us", tz="Europe/Berlin")
POINT = pa.struct([pa.field("x", pa.int64(), False), ("y", pa.int8())])
KEY = pa.map_(pa.string(), pa.int8())
TENSOR = pa.fixed_shape_tensor(pa.float32(), (2, 2))


# Types that only Arrow has: what a row gives, and what a table of it has.
ARROWS: list[tuple[Any, Any, Any]] = [
    (STAMP_S, MOMENT.replace(microsecond=0), MOMENT.replace(microsecond=0)),
    (STAMP_S, MOMENT, REFUSED),
    (STAMP_S, np.datetime64("2020-01-02T03:04:05.600"), REFUSED),
    (STAMP_S, np.datetime64("2020-01-02"), MIDNIGHT),
    (STAMP_S, np.datetime64("2020-01"), datetime.datetime(2020, 1, 1)),
    (STAMP_S, np.datetime64("NaT"), None),
    (STAMP_S, None, None),
    (STAMP_S, 86_400, datetime.datetime(1970, 1, 2)),
    (STAMP_S, np.int64(86_400), datetime.datetime(1970, 1, 2)),
    (STAMP_S, 1.0, REFUSED),
    (STAMP_S, True, REFUSED),
    (STAMP_S, 1 << 63, REFUSED),
    (STAMP_S, "2020-01-02", REFUSED),
    (STAMP_S, MIDNIGHT.date(), REFUSED),
    (STAMP_S, MIDNIGHT.replace(tzinfo=UTC), REFUSED),
    (STAMP_S, datetime.timedelta(1), REFUSED),
    (STAMP_S, pa.scalar(MIDNIGHT, pa.timestamp("us")), MIDNIGHT),
    (STAMP_NS, np.datetime64(5, "ps"), REFUSED),
    # In whole microseconds, for which `to_pylist` needs no pandas.
    (STAMP_NS, np.datetime64(5_000_000, "ps"), datetime.datetime(1970, 1, 1, microsecond=5)),
    (STAMP_NS, datetime.datetime(3000, 1, 1), REFUSED),
    (BERLIN, MOMENT.replace(tzinfo=ZONE), MOMENT.replace(tzinfo=ZONE)),
    (BERLIN, MOMENT.replace(tzinfo=UTC), MOMENT.replace(tzinfo=UTC)),
    (BERLIN, MOMENT, REFUSED),
    (BERLIN, np.datetime64("2020-01-02"), REFUSED),
    (pa.date32(), MIDNIGHT.date(), MIDNIGHT.date()),
    (pa.date32(), MIDNIGHT, MIDNIGHT.date()),
    (pa.date32(), MOMENT, REFUSED),
    (pa.date32(), MIDNIGHT.replace(tzinfo=UTC), REFUSED),
    (pa.date32(), np.datetime64("2020-01-02T01"), REFUSED),
    (pa.date32(), np.datetime64("2020-01-02"), MIDNIGHT.date()),
    (pa.date64(), MIDNIGHT.date(), MIDNIGHT.date()),
    (pa.date64(), MOMENT, REFUSED),
    (pa.time32("s"), datetime.time(1, 2, 3), datetime.time(1, 2, 3)),
    (pa.time32("s"), datetime.time(1, 2, 3, 4), REFUSED),
    (pa.time64("us"), datetime.time(1, 2, 3, 4), datetime.time(1, 2, 3, 4)),
    (pa.time64("us"), datetime.time(1, tzinfo=UTC), REFUSED),
    (pa.time64("us"), MOMENT, REFUSED),
    (pa.duration("ms"), datetime.timedelta(milliseconds=5), datetime.timedelta(milliseconds=5)),
    (pa.duration("ms"), datetime.timedelta(microseconds=5), REFUSED),
    (pa.duration("ms"), np.timedelta64(5, "s"), datetime.timedelta(seconds=5)),
    (pa.duration("ms"), np.timedelta64(5, "us"), REFUSED),
    (pa.duration("ms"), np.timedelta64(5, "M"), REFUSED),
    (pa.duration("ms"), np.timedelta64("NaT"), None),
    (pa.duration("ms"), 1.5, REFUSED),
    (pa.decimal128(5, 2), decimal.Decimal("1.50"), decimal.Decimal("1.50")),
    (pa.decimal128(5, 2), decimal.Decimal("1.5"), decimal.Decimal("1.50")),
    (pa.decimal128(5, 2), np.int8(2), decimal.Decimal("2.00")),
    (pa.decimal128(5, 2), decimal.Decimal("1.505"), REFUSED),
    (pa.decimal128(5, 2), decimal.Decimal("1000"), REFUSED),
    (pa.decimal128(5, 2), 100_000, REFUSED),
    (pa.decimal128(5, 2), decimal.Decimal("NaN"), REFUSED),
    (pa.decimal128(5, 2), 1.5, REFUSED),
    (pa.decimal128(5, 2), "1.5", REFUSED),
    (pa.binary(4), b"abcd", b"abcd"),
    (pa.binary(4), np.array([1], np.int32), b"\1\0\0\0"),
    (pa.binary(4), b"abc", REFUSED),
    (pa.binary(4), "abcd", REFUSED),
    (POINT, {"x": 1, "y": 2}, {"x": 1, "y": 2}),
    (POINT, {"x": 1}, {"x": 1, "y": None}),
    (POINT, None, None),
    (POINT, {"y": 1}, REFUSED),
    (POINT, {"x": 1, "width": 3}, REFUSED),
    (POINT, {"x": 1, 5: 3}, REFUSED),
    (POINT, {"x": 1, "y": 128}, REFUSED),
    (POINT, {"x": None, "y": 1}, REFUSED),
    (POINT, (1, 2), REFUSED),
    (POINT, [("x", 1), ("y", 2)], REFUSED),
    (KEY, {"a": 1}, [("a", 1)]),
    (KEY, [("a", 1), ["b", None]], [("a", 1), ("b", None)]),
    (KEY, [], []),
    (KEY, {5: 1}, REFUSED),
    (KEY, {None: 1}, REFUSED),
    (KEY, {"a": 300}, REFUSED),
    (KEY, ["ab"], REFUSED),
    (KEY, [("a", 1, 2)], REFUSED),
    (pa.list_(pa.int64()), np.array([1.5]), REFUSED),
    (pa.list_(pa.int64()), masked(1, 2), [1, None]),
    (pa.list_(pa.int64()), np.array([1, 2], np.int8), [1, 2]),
    (pa.list_(pa.int64()), torch.tensor([1, 2]), [1, 2]),
    (pa.list_(pa.int64()), [1, None], [1, None]),
    (pa.list_(pa.int64()), np.array([1, None]), [1, None]),
    (pa.list_(pa.int64()), pa.array([1, None]), [1, None]),
    (pa.list_(pa.int64()), pa.scalar([1, 2]), [1, 2]),
    (pa.list_(pa.int64()), [], []),
    (pa.list_(pa.int64()), np.array([]), []),
    (pa.list_(pa.int64()), {1, 2}, REFUSED),
    (pa.list_(pa.int64()), {1: 2}, REFUSED),
    (pa.list_(pa.int64()), b"12", REFUSED),
    (pa.list_(pa.int64()), "12", REFUSED),
    (pa.list_(pa.int64()), 5, REFUSED),
    (pa.list_(pa.int64()), [[1]], REFUSED),
    (pa.list_(pa.int64()), np.ones((1, 1), np.int64), REFUSED),
    (pa.list_(pa.uint8()), b"12", REFUSED),
    (pa.list_(pa.float32()), np.array([1e300]), REFUSED),
    (pa.list_(pa.float32()), torch.tensor([1.5], dtype=torch.bfloat16), [1.5]),
    (pa.list_(pa.float32()), [0.5, None], [0.5, None]),
    (pa.list_(pa.string()), ["a", None], ["a", None]),
    (pa.list_(pa.string()), np.array(["a", "ü"]), ["a", "ü"]),
    (pa.list_(pa.string()), "ab", REFUSED),
    (pa.list_(pa.string()), [b"a"], REFUSED),
    (pa.list_(pa.list_(pa.int8())), np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
    (pa.list_(pa.list_(pa.int8())), [[1], None, np.array([2, 300])], REFUSED),
    (pa.list_(pa.list_(pa.int8())), [[1], None, np.array([2, 3])], [[1], None, [2, 3]]),
    (pa.list_(STAMP_S), np.array(["2020-01-02"], "M8[D]"), [MIDNIGHT]),
    (pa.list_(pa.int64(), 2), [1, 2], [1, 2]),
    (pa.list_(pa.int64(), 2), [1, 2, 3], REFUSED),
    (pa.list_(pa.int64(), 2), [1], REFUSED),
    (pa.list_(pa.int64(), 2), None, None),
    (TENSOR, np.ones((2, 2)), [1.0] * 4),
    (TENSOR, [[1, 1], [1, 1]], [1.0] * 4),
    (TENSOR, np.ones(4, np.float32), [1.0] * 4),
    (TENSOR, np.ones((4, 1)), REFUSED),
    (TENSOR, np.ones((2, 3)), REFUSED),
    (TENSOR, np.full((2, 2), 1e300), REFUSED),
    (pa.dictionary(pa.int8(), pa.string()), "a", "a"),
    (pa.dictionary(pa.int8(), pa.string()), b"a", REFUSED),
    (pa.dictionary(pa.int8(), pa.int16()), 40_000, REFUSED),
    (pa.month_day_nano_interval(), (1, 2, 3), pa.MonthDayNano([1, 2, 3])),
    (pa.month_day_nano_interval(), (1.5, 2, 3), REFUSED),
    (pa.int64(), pa.scalar(5, pa.int8()), 5),
    (pa.int64(), pa.scalar(None, pa.int8()), None),
    (pa.int8(), pa.scalar(300), REFUSED),
    (pa.int64(), np.ma.masked, REFUSED),
]
if hasattr(pa, "uuid"):
    ARROWS.append((pa.uuid(), uuid.UUID(int=5), uuid.UUID(int=5)))
    ARROWS.append((pa.uuid(), b"short", REFUSED))
