"""Goal: a value is stored exactly or refused by row and column, whichever way it is written.

Method: a table of values, right and wrong, for each type, is crossed with each way to write: rows
of a schema, rows of Arrow's types, in lists, structs and maps of these, appends, packing. What is
accepted is read back and compared; what is refused names row and column, and changes nothing.
"""

import datetime
import decimal
import itertools
import math
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import ffrecord
import ffrecord.compat
from ffrecord.pack import Source, TableSource, pack

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


class One(Source):
    """A source of such samples."""

    def __init__(self, schema: dict[str, str], samples: list[dict[str, Any]]) -> None:
        self.schema, self.size_bytes, self.skipped = schema, 1, Counter()
        self._samples = samples

    def samples(self) -> Iterator[Any]:
        """Yield them."""
        return ((sample, 1) for sample in self._samples)


# Writes two good values, and then one that may be wrong, in row 2.
Way = Callable[[Path, Any, Any, Any], None]


def rows(path: Path, schema: Any, first: Any, value: Any) -> None:  # noqa: ANN401
    with ffrecord.Writer(path, schema) as writer:
        writer.write({"x": first})
        writer.write({"x": first})
        writer.write({"x": value})


def append(path: Path, schema: Any, first: Any, value: Any) -> None:  # noqa: ANN401
    with ffrecord.Writer(path, schema) as writer:
        writer.write({"x": first})
    own = schema if isinstance(schema, pa.Schema) else None
    with ffrecord.Writer(path, own, append=True) as writer:
        writer.write({"x": first})
        writer.write({"x": value})


def packed(path: Path, schema: Any, first: Any, value: Any) -> None:  # noqa: ANN401
    pack(One(schema, [{"x": first}, {"x": first}, {"x": value}]), path)


class Place(NamedTuple):
    """Where a value stands in a column of Arrow."""

    type: Callable[[Any], Any]
    put: Callable[[Any], Any]
    take: Callable[[Any], Any]
    name: str


PLACES = {
    "a column": Place(lambda y: y.type, lambda v: v, lambda v: v, "'x'"),
    "a list": Place(lambda y: pa.list_(y), lambda v: [v], lambda v: v[0], "'x[]'"),
    "a struct": Place(lambda y: pa.struct([y]), lambda v: {"y": v}, lambda v: v["y"], "'x{y}'"),
    "a map": Place(
        lambda y: pa.map_(pa.string(), y),
        lambda v: {"key": v},
        lambda v: v[0][1],
        "'x[]{value}'",
    ),
    "structs in lists": Place(
        lambda y: pa.large_list(pa.struct([y])),
        lambda v: ({"y": v},),
        lambda v: v[0]["y"],
        "'x[]{y}'",
    ),
}


def failure(path: Path, write: Callable[[], None], wanted: object, column: str) -> str | None:
    """What is wrong with how a value was refused, or with the refusal of one that is right."""
    try:
        write()
    except (TypeError, ValueError) as error:
        if wanted is not REFUSED:
            return f"was refused: {error}"
        if path.exists() and len(ffrecord.open(path)) > 1:
            return "was refused and is there"
        said = str(error)
        is_named = said.startswith("row 2: ") and column in said
        return None if is_named else f"was refused without row and column: {said}"
    return "was stored" if wanted is REFUSED else None


def same(found: Any, wanted: Any) -> bool:  # noqa: ANN401
    """Equal, with the sign of zero; and both no number."""
    if isinstance(wanted, bytes | str):
        return bool((found if isinstance(wanted, str) else bytes(found)) == wanted)
    ours, theirs = np.asarray(found), np.asarray(wanted)
    if ours.dtype.kind != "f":
        return bool(np.array_equal(ours, theirs))
    signs = np.array_equal(np.signbit(ours), np.signbit(theirs)) or np.isnan(theirs).any()
    return bool(np.array_equal(ours, theirs, equal_nan=True) and signs)


def numbers_of_bits(bits: Any) -> Any:  # noqa: ANN401
    """What bf16 means."""
    return (np.asarray(bits, np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize("way", [rows, append, packed])
@pytest.mark.parametrize("kind", TYPES)
def test_a_value_of_a_schema_is_stored_exactly_or_refused(
    kind: str, way: Way, tmp_path: Path
) -> None:
    failures = []
    for number, (_, value, wanted) in enumerate(case for case in CASES if case.type == kind):
        path = tmp_path / f"{number}.ffr"
        said = failure(path, partial(way, path, {"x": kind}, good(kind), value), wanted, "'x'")
        if said is None and wanted is not REFUSED:
            found: Any = ffrecord.open(path)[2]["x"]
            found = numbers_of_bits(found) if kind.startswith("bf16") else found
            said = None if same(found, wanted) else f"is read as {found!r}, not {wanted!r}"
        if said is not None:
            failures.append(f"{value!r} {said}")

    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("way", [rows, append])
@pytest.mark.parametrize("kind", TYPES)
def test_a_row_of_types_of_arrow_is_stored_exactly_or_refused(
    kind: str, way: Way, place: str, tmp_path: Path
) -> None:
    where, own = PLACES[place], arrow(kind)
    mark = BF16 if kind.startswith("bf16") else None
    schema = pa.schema([pa.field("x", where.type(pa.field("y", own, False, mark)), False, mark)])
    first, failures = where.put(good(kind)), []
    for number, (_, value, wanted) in enumerate(case for case in CASES if case.type == kind):
        path = tmp_path / f"{number}.ffr"
        write = partial(way, path, schema, first, where.put(value))
        said = failure(path, write, wanted, where.name[:-1])
        if said is None and wanted is not REFUSED:
            found = where.take(ffrecord.read_table(path)["x"].to_pylist()[2])
            said = None if same(found, wanted) else f"is read as {found!r}, not {wanted!r}"
        if said is not None:
            failures.append(f"{value!r} {said}")

    assert not failures, "\n".join(failures)


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
    (STAMP_NS, np.datetime64(5000, "ps"), 5),
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
    (pa.list_(pa.int64()), masked(1, 2), REFUSED),
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


@pytest.mark.parametrize("way", [rows, append])
@pytest.mark.parametrize("place", PLACES)
def test_a_row_of_types_that_only_arrow_has_is_stored_exactly_or_refused(
    place: str, way: Way, tmp_path: Path
) -> None:
    where, failures = PLACES[place], []
    for number, (kind, value, wanted) in enumerate(ARROWS):
        path = tmp_path / f"{number}.ffr"
        schema = pa.schema([pa.field("x", where.type(pa.field("y", kind)))])
        write = partial(way, path, schema, where.put(None), where.put(value))
        said = failure(path, write, wanted, where.name[:-1])
        if said is None and wanted is not REFUSED:
            found = where.take(ffrecord.read_table(path)["x"].to_pylist()[2])
            found = found if not isinstance(wanted, int) or isinstance(found, int) else found.value
            found = found.tolist() if isinstance(found, np.ndarray) else found
            said = None if found == wanted else f"is read as {found!r}, not {wanted!r}"
        if said is not None:
            failures.append(f"{kind}: {value!r} {said}")

    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("kind", TYPES)
def test_a_row_that_was_read_is_written_as_it_was(kind: str, tmp_path: Path) -> None:
    """bf16 is read as its bits, and those bits are what is written."""
    value = 1.5 if kind == "bf16" else good(kind)
    with ffrecord.Writer(tmp_path / "a.ffr", {"x": kind}) as writer:
        writer.write({"x": value})
    for form in ("numpy", "bytes", "torch"):
        with ffrecord.Writer(tmp_path / f"{form}.ffr", {"x": kind}) as writer:
            writer.write(ffrecord.open(tmp_path / "a.ffr").with_format(form)[0])

        found = ffrecord.open(tmp_path / f"{form}.ffr")
        assert (
            found.read([0]).data.tobytes()
            == ffrecord.open(tmp_path / "a.ffr").read([0]).data.tobytes()
        )


@pytest.mark.parametrize(
    "value", [masked(1, 2), np.array([None]), "text", 5, [1], pa.array([1, None])]
)
def test_a_record_without_columns_is_its_bytes_or_refused(value: object, tmp_path: Path) -> None:
    with ffrecord.Writer(tmp_path / "a.ffr") as writer:
        writer.write(b"first")
        with pytest.raises((TypeError, ValueError), match=r"row 1: the record"):
            writer.write(value)  # type: ignore[arg-type]
        writer.write(torch.tensor([1.0], dtype=torch.bfloat16))  # type: ignore[arg-type]
    with (
        pytest.raises((TypeError, ValueError), match="the record"),
        ffrecord.compat.FileWriter(tmp_path / "b.ffr", 1) as old,
    ):
        old.write_one(value)  # type: ignore[arg-type]

    assert [bytes(each) for each in ffrecord.open(tmp_path / "a.ffr")] == [b"first", b"\x80\x3f"]


@pytest.mark.parametrize(
    "key", [5, np.int64(5), 0, True, 1.5, ["a"], np.array([1]), "", b"", "\ud800"]
)
def test_a_key_is_text_or_bytes(key: Any, tmp_path: Path) -> None:  # noqa: ANN401
    with ffrecord.Writer(tmp_path / "a.ffr", key=True) as writer:
        writer.write(b"zero", key="0")
        with pytest.raises((TypeError, ValueError), match="row 1: the key"):
            writer.write(b"one", key=key)
        for right in (memoryview(b"m"), bytearray(b"b"), np.str_("s"), "ü", None):
            writer.write(b"right", key=right)  # type: ignore[arg-type]
    reader = ffrecord.open(tmp_path / "a.ffr")

    assert reader.find_all(["0", "m", "b", "s", "ü"]) == [0, 1, 2, 3, 4]
    assert len(reader) == 6


def test_a_column_of_keys_has_the_bytes_of_its_values(tmp_path: Path) -> None:
    with ffrecord.Writer(tmp_path / "a.ffr", {"k": "bytes"}, key="k") as writer:
        for value in (np.int64(5), np.array([6], np.uint8), torch.tensor([7], dtype=torch.int8)):
            writer.write({"k": value})
    reader = ffrecord.open(tmp_path / "a.ffr")

    assert reader.find_all([b"\5" + bytes(7), b"\6", b"\7"]) == [0, 1, 2]


# Columns of tables in which row 5,001 has what may not be there, and how it is called.
NOT_THERE = {
    "a null": (pa.int64(), 1, None, "'x'"),
    "an item": (pa.list_(pa.field("item", pa.int8(), False)), [1, 2], [3, None], "'x[]'"),
    "a field": (POINT, {"x": 1}, {"x": None}, "'x{x}'"),
    "a number of a tensor": (TENSOR, [1.0] * 4, [1.0, None, 1.0, 1.0], "'x'"),
    "a pair": (
        pa.map_(pa.string(), pa.field("value", pa.int8(), False)),
        {"a": 1},
        {"a": None},
        "'x",
    ),
}


@pytest.mark.parametrize("name", NOT_THERE)
@pytest.mark.parametrize("way", ["table", "stream", "append"])
def test_a_null_in_a_table_is_refused_by_row_and_column(
    name: str, way: str, tmp_path: Path
) -> None:
    kind, right, wrong, column = NOT_THERE[name]
    schema = pa.schema([pa.field("x", kind, False)])
    storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    values = pa.array([right] * 5001 + [wrong] + [right] * 5, storage)
    if storage is not kind:
        values = pa.ExtensionArray.from_storage(kind, values)
    table = pa.Table.from_arrays([values], schema=schema)
    path = tmp_path / "a.ffr"
    with ffrecord.Writer(path, schema) as writer:
        writer.write_table(table.slice(0, 3))

    with (
        pytest.raises(ValueError, match="row 5001: column") as caught,
        ffrecord.Writer(path, schema, append=way == "append", replace=way != "append") as writer,
    ):
        writer.write_table(table.to_reader(700) if way == "stream" else table)

    assert column in str(caught.value)


BF16_SCHEMA = {"x": "bf16", "y": "bf16[2]", "z": "f32"}


def bf16_file(path: Path) -> Path:
    with ffrecord.Writer(path, BF16_SCHEMA) as writer:
        for value in (1.5, NAN, -0.0, INF, 2.0**-133):
            writer.write({"x": value, "y": [value, 2.0], "z": 0.1})
    return path


@pytest.mark.parametrize("way", ["table", "stream", "rows", "append", "packed"])
def test_bf16_is_numbers_in_a_table_and_stays_bf16(way: str, tmp_path: Path) -> None:
    first, path = bf16_file(tmp_path / "a.ffr"), tmp_path / "b.ffr"
    table = ffrecord.read_table(first)
    assert table["x"].to_pylist()[2:] == [-0.0, INF, 2.0**-133]
    assert table["x"].to_pylist()[0] == 1.5

    if way in ("table", "stream"):
        ffrecord.write_table(table.to_reader() if way == "stream" else table, path)
    elif way == "packed":
        pack(TableSource(table), path)
    else:
        with ffrecord.Writer(path, table.schema) as writer:
            for row in table.to_pylist()[: 2 if way == "append" else 5]:
                writer.write(row)
        if way == "append":
            ffrecord.write_table(table.slice(2), path, append=True)

    reader = ffrecord.open(path)
    assert reader.schema == BF16_SCHEMA
    assert (
        reader.read(range(5)).data.tobytes() == ffrecord.open(first).read(range(5)).data.tobytes()
    )
    assert ffrecord.read_table(path).schema.equals(table.schema, check_metadata=True)


def test_bf16_in_lists_and_structs_keeps_its_type(tmp_path: Path) -> None:
    mark = {"ffrecord.type": "bf16"}
    pair = pa.struct([pa.field("a", pa.float32(), True, mark), ("b", pa.float32())])
    schema = pa.schema([pa.field("x", pa.list_(pa.float32()), True, mark), ("s", pair)])
    data = {"x": [[1.0, 2.5], None], "s": [{"a": 257.0, "b": 257.0}, {"a": None, "b": 0.1}]}
    table = pa.table(data, schema=schema)

    ffrecord.write_table(table, tmp_path / "a.ffr")
    with ffrecord.Writer(tmp_path / "b.ffr", schema) as writer:
        for row in table.to_pylist():
            writer.write(row)

    for name in ("a.ffr", "b.ffr"):
        found = ffrecord.read_table(tmp_path / name)
        assert found.schema.equals(schema, check_metadata=True)
        assert found["x"].to_pylist() == data["x"]
        assert [each["a"] for each in found["s"].to_pylist()] == [256.0, None]
        assert found["s"].to_pylist()[0]["b"] == 257.0
        tensors = ffrecord.open(tmp_path / name).with_format("torch")[0]["x"]
        assert tensors.dtype == torch.bfloat16


@pytest.mark.parametrize("place", ["column", "list", "tensor"])
def test_a_number_of_a_table_that_bf16_cannot_hold_is_refused_by_row(
    place: str, tmp_path: Path
) -> None:
    kinds = {
        "column": pa.float32(),
        "list": pa.list_(pa.float64()),
        "tensor": pa.list_(pa.float32(), 2),
    }
    values = {
        "column": [1.0, 3.4e38],
        "list": [[], [1.0, 1e300]],
        "tensor": [[1.0, 2.0], [3.4e38, 1.0]],
    }
    table = pa.table(
        {"x": values[place]}, schema=pa.schema([pa.field("x", kinds[place], True, BF16)])
    )

    with pytest.raises(ValueError, match=r"row 1: column 'x.*does not fit bf16"):
        ffrecord.write_table(table, tmp_path / "a.ffr")

    assert not (tmp_path / "a.ffr").exists()


def test_lists_of_other_numbers_are_not_packed_as_one(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    from ffrecord.pack import open_source

    kinds = {"a": pa.int64(), "b": pa.int32(), "c": pa.float32(), "d": pa.uint32(), "e": pa.int64()}
    for name, kind in kinds.items():
        lists = pa.large_list if name == "e" else pa.list_
        table = pa.table({"x": pa.array([[1, 2], [3]], lists(kind))})
        pq.write_table(table, tmp_path / f"{name}.parquet")
    for one, two in itertools.permutations("abcd", 2):
        source = open_source([tmp_path / f"{one}.parquet", tmp_path / f"{two}.parquet"])
        with pytest.raises(
            ValueError, match=rf"{two}\.parquet has other types .*list of .*list of"
        ):
            pack(source, tmp_path / "x.ffr")
    assert not (tmp_path / "x.ffr").exists()

    pack(open_source([tmp_path / "a.parquet", tmp_path / "e.parquet"]), tmp_path / "x.ffr")

    found = [np.frombuffer(each["x"], "<i8").tolist() for each in ffrecord.open(tmp_path / "x.ffr")]
    assert found == [[1, 2], [3]] * 2
