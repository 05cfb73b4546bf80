"""Goal: a value is stored exactly or refused by row and column, whichever way it is written.

Method: a table of values, right and wrong, for each type, is crossed with each way to write: rows
of a schema, rows of Arrow's types, in lists, structs and maps of these, appends, packing. What is
accepted is read back and compared; what is refused names row and column, and changes nothing.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import ffrecord
import ffrecord.compat
from ffrecord.pack import Source, TableSource, pack
from values import ARROWS, BF16, CASES, INF, NAN, POINT, REFUSED, TENSOR, TYPES, arrow, good, masked

pytestmark = pytest.mark.wrong_data

pa = pytest.importorskip("pyarrow")


class One(Source):
    """A source of such samples."""

    def __init__(self, schema: dict[str, str], samples: list[dict[str, Any]]) -> None:
        self.schema, self.size_bytes, self.skipped = schema, 1, Counter()
        self._samples = samples

    def samples(self) -> Iterator[Any]:
        """Yield them."""
        return ((sample, 1) for sample in self._samples)


# Writes a good value twice, and then the others; gives the error of each, or None.
Way = Callable[[Path, Any, Any, list[Any]], list[Exception | None]]


def rows(path: Path, schema: Any, first: Any, values: list[Any]) -> list[Exception | None]:  # noqa: ANN401
    with ffrecord.Writer(path, schema) as writer:
        return added(writer, [first, first, *values])[2:]


def append(path: Path, schema: Any, first: Any, values: list[Any]) -> list[Exception | None]:  # noqa: ANN401
    with ffrecord.Writer(path, schema) as writer:
        writer.write({"x": first})
    own = schema if isinstance(schema, pa.Schema) else None
    with ffrecord.Writer(path, own, append=True) as writer:
        return added(writer, [first, *values])[1:]


def added(writer: ffrecord.Writer, values: list[Any]) -> list[Exception | None]:
    errors: list[Exception | None] = []
    for value in values:
        try:
            writer.write({"x": value})
            errors.append(None)
        except (TypeError, ValueError) as error:
            errors.append(error)
    return errors


def packed(path: Path, schema: Any, first: Any, values: list[Any]) -> list[Exception | None]:  # noqa: ANN401
    kept, errors = [first, first], list[Exception | None]()
    for value in values:
        try:
            pack(One(schema, [{"x": each} for each in (*kept, value)]), path, replace=True)
            kept.append(value)
            errors.append(None)
        except (TypeError, ValueError) as error:
            errors.append(error)
    return errors


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


def check(
    cases: list[tuple[Any, Any]],
    errors: list[Exception | None],
    found: list[Any],
    column: str,
) -> None:
    """Check what became of values.

    Args:
        cases: the values, and what they are when they are read, or REFUSED.
        errors: of each value.
        found: what is in the file behind the first two rows.
        column: its name, as far as an error has it.
    """
    failures, stored = [], iter(found)
    row = 2
    for (value, wanted), error in zip(cases, errors, strict=True):
        said = "" if error is None else str(error)
        if error is None:
            row += 1
            read = next(stored, None)
            if wanted is REFUSED:
                failures.append(f"{value!r} was stored as {read!r}")
            elif not same(read, wanted):
                failures.append(f"{value!r} is read as {read!r}, not {wanted!r}")
        elif wanted is not REFUSED:
            failures.append(f"{value!r} was refused: {said}")
        elif not said.startswith(f"row {row}: ") or column not in said:
            failures.append(f"{value!r} was refused without row {row} and column: {said}")
    assert not failures, "\n".join(failures)
    assert list(stored) == []


def same(found: Any, wanted: Any) -> bool:  # noqa: ANN401
    """Equal, with the sign of zero; and both no number."""
    if isinstance(wanted, bytes):
        return bytes(found) == wanted
    parts = wanted if isinstance(wanted, list) else [wanted]
    if parts and all(isinstance(each, float) for each in parts):
        ours, theirs = np.asarray(found), np.asarray(wanted)
        signs = np.array_equal(np.signbit(ours), np.signbit(theirs)) or bool(np.isnan(theirs).any())
        return np.array_equal(ours, theirs, equal_nan=True) and signs
    found = found.tolist() if isinstance(found, np.ndarray | np.generic) else found
    return bool(getattr(found, "value", found) == wanted or found == wanted)


def numbers_of_bits(bits: Any) -> Any:  # noqa: ANN401
    """What bf16 means."""
    return (np.asarray(bits, np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize("way", [rows, append, packed])
@pytest.mark.parametrize("kind", TYPES)
def test_a_value_of_a_schema_is_stored_exactly_or_refused(
    kind: str, way: Way, tmp_path: Path
) -> None:
    cases = [(case.value, case.read) for case in CASES if case.type == kind]

    errors = way(tmp_path / "a.ffr", {"x": kind}, good(kind), [value for value, _ in cases])

    found = [sample["x"] for sample in ffrecord.open(tmp_path / "a.ffr")][2:]
    if kind.startswith("bf16"):
        found = [numbers_of_bits(bits) for bits in found]
    check(cases, errors, found, "'x'")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("way", [rows, append])
@pytest.mark.parametrize("kind", TYPES)
def test_a_row_of_types_of_arrow_is_stored_exactly_or_refused(
    kind: str, way: Way, place: str, tmp_path: Path
) -> None:
    where, own = PLACES[place], arrow(kind)
    mark = BF16 if kind.startswith("bf16") else None
    schema = pa.schema([pa.field("x", where.type(pa.field("y", own, False, mark)), False, mark)])
    cases = [(case.value, case.read) for case in CASES if case.type == kind]
    values = [where.put(value) for value, _ in cases]

    errors = way(tmp_path / "a.ffr", schema, where.put(good(kind)), values)

    found = ffrecord.read_table(tmp_path / "a.ffr")["x"].to_pylist()[2:]
    check(cases, errors, list(map(where.take, found)), where.name[:-1])


@pytest.mark.parametrize("way", [rows, append])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", dict.fromkeys(kind for kind, _, _ in ARROWS), ids=str)
def test_a_row_of_types_that_only_arrow_has_is_stored_exactly_or_refused(
    kind: Any,  # noqa: ANN401
    place: str,
    way: Way,
    tmp_path: Path,
) -> None:
    where = PLACES[place]
    schema = pa.schema([pa.field("x", where.type(pa.field("y", kind)))])
    cases = [(value, read) for own, value, read in ARROWS if own == kind]
    values = [where.put(value) for value, _ in cases]

    errors = way(tmp_path / "a.ffr", schema, where.put(None), values)

    found = ffrecord.read_table(tmp_path / "a.ffr")["x"].to_pylist()[2:]
    check(cases, errors, list(map(where.take, found)), where.name[:-1])


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
    "value",
    [
        *(masked(1, 2), np.array([None]), "text", [1], pa.array([1, None])),
        *(5, np.int64(5), np.float32(1.5), np.True_, np.datetime64(1, "s")),
    ],
)
def test_a_record_without_columns_is_its_bytes_or_refused(value: object, tmp_path: Path) -> None:
    with ffrecord.Writer(tmp_path / "a.ffr") as writer:
        writer.write(b"first")
        with pytest.raises((TypeError, ValueError), match=r"row 1: the record"):
            writer.write(value)  # type: ignore[arg-type]
        writer.write(torch.tensor([1.0], dtype=torch.bfloat16))  # type: ignore[arg-type]
    if isinstance(value, np.generic):  # A buffer, which upstream's writer takes.
        with ffrecord.compat.FileWriter(tmp_path / "b.ffr", 1) as old:
            old.write_one(value)  # type: ignore[arg-type]
        assert bytes(ffrecord.open(tmp_path / "b.ffr")[0]) == value.tobytes()
    else:
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
        for value in (np.array(5), np.array([6], np.uint8), torch.tensor([7], dtype=torch.int8)):
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
        assert ffrecord.open(tmp_path / name).read([0])["x"][0].tolist() == [0x3F80, 0x4020]


def test_bits_of_bf16_beside_a_null_are_bits(tmp_path: Path) -> None:
    mark = {"ffrecord.type": "bf16"}
    schema = pa.schema([pa.field("x", pa.list_(pa.float32()), True, mark)])
    bits = np.uint16(0x3FC0)
    with ffrecord.Writer(tmp_path / "a.ffr", schema) as writer:
        for items in ([bits, None], [None, bits, bits], [bits], [1.5, None], [None]):
            writer.write({"x": items})

    found = ffrecord.read_table(tmp_path / "a.ffr")["x"].to_pylist()
    assert found == [[1.5, None], [None, 1.5, 1.5], [1.5], [1.5, None], [None]]


@pytest.mark.parametrize(
    "values",
    [
        pa.array([Decimal("-1.25"), None, Decimal(10) ** 35], pa.decimal128(38, 2)),
        pa.array([Decimal(-(10**70)), None], pa.decimal256(76, 0)),
        pa.array([(-1, 2, -(10**15)), None], pa.month_day_nano_interval()),
        pa.array([[("a", 1), ("a", None)], [], None], pa.map_(pa.string(), pa.int8())),
        pa.array([b"ab", None], pa.binary(2)),
        pa.array([b"0" * 16, None], pa.uuid()),
        pa.array([1, None], pa.timestamp("ns", "Europe/Berlin")),
    ],
    ids=lambda values: str(values.type),
)
def test_a_row_of_a_table_that_was_read_is_written_as_it_was(
    values: pa.Array, tmp_path: Path
) -> None:
    known = values.drop_null()
    ends = np.cumsum([0, *(each.is_valid for each in values)])
    lists = pa.LargeListArray.from_arrays(pa.array(ends), known)
    table = pa.table({"x": values, "l": lists})
    ffrecord.write_table(table, tmp_path / "a.ffr")
    with ffrecord.Writer(tmp_path / "b.ffr", table.schema) as writer:
        for row in ffrecord.open(tmp_path / "a.ffr"):
            writer.write({"x": row["x"], "l": row["l"]})
    assert ffrecord.read_table(tmp_path / "b.ffr").equals(table)


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
        paths = [tmp_path / f"{one}.parquet", tmp_path / f"{two}.parquet"]
        with pytest.raises(
            ValueError, match=rf"{two}\.parquet: the column 'x' is list<.*list<.*--cast"
        ):
            pack(paths, tmp_path / "x.ffr")
    assert not (tmp_path / "x.ffr").exists()

    pack(open_source([tmp_path / "a.parquet", tmp_path / "e.parquet"]), tmp_path / "x.ffr")

    found = [each["x"].tolist() for each in ffrecord.open(tmp_path / "x.ffr")]
    assert found == [[1, 2], [3]] * 2
