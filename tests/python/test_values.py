"""Goal: a value is stored exactly or refused by row and column, whichever way it is written.

Method: a table of values, right and wrong, for each type, is crossed with each way to write: rows
of a schema, rows of Arrow's types, in lists, structs and maps of these, appends, packing. What is
accepted is read back and compared; what is refused names row and column, and changes nothing.
"""

import decimal
import math
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import ffrecord
from ffrecord.pack import Source, pack

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

    type: Callable[[Any, Any], Any]
    put: Callable[[Any], Any]
    take: Callable[[Any], Any]
    name: str


def needed(kind: Any, mark: Any) -> Any:  # noqa: ANN401
    return pa.field("y", kind, False, mark)


PLACES = {
    "a column": Place(lambda k, _: k, lambda v: v, lambda v: v, "'x'"),
    "a list": Place(
        lambda k, mark: pa.list_(needed(k, mark)), lambda v: [v], lambda v: v[0], "'x[]'"
    ),
    "a struct": Place(
        lambda k, mark: pa.struct([needed(k, mark)]), lambda v: {"y": v}, lambda v: v["y"], "'x{y}'"
    ),
    "a map": Place(
        lambda k, mark: pa.map_(pa.string(), needed(k, mark)),
        lambda v: {"key": v},
        lambda v: v[0][1],
        "'x[]{value}'",
    ),
    "structs in lists": Place(
        lambda k, mark: pa.large_list(pa.struct([needed(k, mark)])),
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
    schema = pa.schema([pa.field("x", where.type(own, mark), False, mark)])
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
