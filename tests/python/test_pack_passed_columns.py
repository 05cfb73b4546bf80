"""Goal: what a function returns as it got it stays what it was; what it changes is what it says.

Method: functions over record files and tables of many types, with and without changes; the result
is compared with the input by value and type.
"""

import datetime as dt
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ffrecord
from ffrecord.pack import TableSource, pack

pytestmark = pytest.mark.wrong_data

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

COUNT = 100
NOON = dt.datetime(2020, 1, 1, 12)
# Values of columns, of which functions get what readers or pyarrow make.
COLUMNS: dict[str, Any] = {
    "i32": pa.array(range(COUNT), pa.int32()),
    "u64": pa.array([2**64 - 1, None] * 50, pa.uint64()),
    "f32": pa.array([0.1, float("nan")] * 50, pa.float32()),
    "late null": pa.array([*range(COUNT - 1), None]),
    "all null": pa.nulls(COUNT, pa.int8()),
    "text": pa.array(["a", None] * 50).dictionary_encode(),
    "time": pa.array([NOON, None] * 50, pa.timestamp("us", "Europe/Berlin")),
    "date": pa.array([NOON.date()] * COUNT),
    "list": pa.array([[1, None], []] * 50, pa.list_(pa.int16())),
    "late null in a list": pa.array([[1]] * (COUNT - 1) + [[None]], pa.list_(pa.int16())),
    "times": pa.array([[1, None], []] * 50, pa.large_list(pa.duration("s"))),
    "times in lists": pa.array([[[1, None]], []] * 50, pa.list_(pa.list_(pa.duration("s")))),
    "times in structs": pa.array(
        [{"a": [1, None]}, None] * 50, pa.struct([("a", pa.list_(pa.duration("s")))])
    ),
    "lists": pa.array([[[1], [], None], []] * 50),
    "struct": pa.array([{"a": 1, "b": ["x"]}, None] * 50),
    "fixed": pa.array([[1, 2]] * COUNT, pa.list_(pa.int8(), 2)),
    "fixed in lists": pa.array([[[1, 2], None], []] * 50, pa.list_(pa.list_(pa.int8(), 2))),
    "fixed null": pa.array([[1, 2]] * (COUNT - 1) + [[None, 3]], pa.list_(pa.int8(), 2)),
    "fixed in fixed": pa.array(
        [[[1, 2], [3, 4]]] * (COUNT - 2) + [[None, [5, None]], None],
        pa.list_(pa.list_(pa.int8(), 2), 2),
    ),
    "tensor": pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(COUNT * 4.0).reshape(-1, 2, 2)),
}
TABLES: dict[str, Any] = {
    "map": pa.array([[("a", 1)], None] * 50, pa.map_(pa.string(), pa.int8())),
    "decimal": pa.array([Decimal("1.5"), None] * 50, pa.decimal128(9, 3)),
    "decimals": pa.array([[Decimal("1.5"), None], []] * 50, pa.list_(pa.decimal128(9, 3))),
    "uuid": pa.array([b"0" * 16] * COUNT, pa.uuid()),
    "bytes": pa.array([b"ab"] * COUNT, pa.binary(2)),
}


def same(sample: dict[str, Any]) -> dict[str, Any]:
    return sample


def years(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "time": 2020}


def halves(sample: dict[str, Any]) -> dict[str, Any]:
    return {"x": float(sample["y"]), "y": sample["y"]}


def packed(source: object, path: Path, function: Callable[..., Any]) -> Any:  # noqa: ANN401
    pack(source, path, map=function)
    return ffrecord.read_table(path)


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_of_record_files_keeps_its_type(tmp_path: Path, name: str) -> None:
    table = pa.table({name: COLUMNS[name]})
    ffrecord.write_table(table, tmp_path / "a.ffr")
    found = packed(str(tmp_path / "a.ffr"), tmp_path / "b.ffr", same)
    assert repr(found.to_pylist()) == repr(ffrecord.read_table(tmp_path / "a.ffr").to_pylist())
    assert found.schema.types == table.schema.types


@pytest.mark.parametrize("name", [*COLUMNS, *TABLES])
def test_a_column_of_tables_keeps_its_type(tmp_path: Path, name: str) -> None:
    table = pa.table({name: {**COLUMNS, **TABLES}[name]})
    found = packed(TableSource(table), tmp_path / "b.ffr", same)
    assert repr(found.to_pylist()) == repr(table.to_pylist())
    assert found.schema.types == table.schema.types


@pytest.mark.parametrize("kind", ["bf16", "bf16[2]"])
@pytest.mark.parametrize("destination", ["b.ffr", "b"])
def test_bf16_stays_bf16(tmp_path: Path, kind: str, destination: str) -> None:
    values = [1.5, 2.5] if "[" in kind else 1.5
    with ffrecord.Writer(tmp_path / "a.ffr", {"x": kind, "y": "i64"}) as writer:
        for number in range(COUNT):
            writer.write({"x": values, "y": number})
    found = packed(str(tmp_path / "a.ffr"), tmp_path / destination, same)
    assert found["x"].to_pylist() == [values] * COUNT
    changed = packed(str(tmp_path / "a.ffr"), tmp_path / f"c{destination}", halves)
    assert changed["x"].to_pylist() == list(map(float, range(COUNT)))


def test_a_column_that_a_function_changed_does_not_have_the_type_of_before(tmp_path: Path) -> None:
    table = pa.table({"time": pa.array([NOON] * COUNT, pa.timestamp("us")), "n": range(COUNT)})
    ffrecord.write_table(table, tmp_path / "a.ffr")
    for source in (str(tmp_path / "a.ffr"), TableSource(table)):
        found = packed(source, tmp_path / "b.ffr", years)
        assert found["time"].to_pylist() == [2020] * COUNT
        assert found["n"].to_pylist() == list(range(COUNT))
        (tmp_path / "b.ffr").unlink()


@pytest.mark.skipif("pandas" in sys.modules, reason="pandas has values of nanoseconds")
@pytest.mark.parametrize(("kind", "value"), [(pa.timestamp("us"), 1 << 60), (pa.date32(), 1 << 30)])
def test_values_that_python_has_not_are_refused_with_their_column(
    tmp_path: Path, kind: object, value: int
) -> None:
    pq.write_table(pa.table({"when": pa.array([value], kind)}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"a\.parquet: the column 'when' is .*--cast when=TYPE"):
        pack(str(tmp_path / "a.parquet"), tmp_path / "b.ffr", map=same)


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.large_binary(), pa.dictionary(pa.int8(), pa.string())],
    ids=str,
)
def test_a_key_that_is_passed_on_stays_the_key(tmp_path: Path, kind: object) -> None:
    """Also beside a column that only a schema of Arrow has a type for."""
    table = pa.table({"key": pa.array(["a", "b"], kind), "n": pa.array([1, None])})
    ffrecord.write_table(table, tmp_path / "a.ffr", key="key")
    pack(str(tmp_path / "a.ffr"), tmp_path / "b.ffr", map=same)
    with ffrecord.open(tmp_path / "b.ffr") as reader:
        assert reader.find("b") == 1


@pytest.mark.parametrize("name", sorted({*COLUMNS, *TABLES} - {"fixed null", "fixed in fixed"}))
def test_a_writer_takes_the_samples_of_a_reader(tmp_path: Path, name: str) -> None:
    """Without those with a null in a list of a fixed size, for which a new file has no room."""
    table = pa.table({name: {**COLUMNS, **TABLES}[name]})
    ffrecord.write_table(table, tmp_path / "a.ffr")
    with (
        ffrecord.open(tmp_path / "a.ffr") as reader,
        ffrecord.Writer(tmp_path / "b.ffr", table.schema) as writer,
    ):
        for sample in reader:
            writer.write(sample)
    found = ffrecord.read_table(tmp_path / "b.ffr")
    assert repr(found.to_pylist()) == repr(table.to_pylist())


@pytest.mark.parametrize(
    "kind",
    [
        pa.time64("ns"),
        pa.list_(pa.time64("ns")),
        pa.large_list(pa.time64("ns")),
        pa.struct([("a", pa.time64("ns"))]),
        pa.map_(pa.string(), pa.time64("ns")),
    ],
    ids=str,
)
def test_nanoseconds_of_a_time_are_refused_and_not_left_out(kind: Any) -> None:  # noqa: ANN401
    """As pyarrow leaves them out where pandas is installed."""
    from ffrecord.pack import _passed

    def values(nanoseconds: int) -> list[Any]:
        if pa.types.is_struct(kind):
            return [{"a": nanoseconds}, None]
        if pa.types.is_map(kind):
            return [[("a", nanoseconds)], None]
        return [[nanoseconds] if pa.types.is_nested(kind) else nanoseconds, None]

    whole, cut = (pa.table({"t": pa.array(values(each), kind)}) for each in (5000, 5001))
    assert list(_passed.rows_of_table(whole, "whole"))[1] == {"t": None}
    _passed.check_times(whole["t"])
    with pytest.raises(ValueError, match="nanoseconds"):
        _passed.check_times(cut["t"])
    with pytest.raises(ValueError, match=r"cut: the column 't' is .*--cast t=TYPE"):
        list(_passed.rows_of_table(cut, "cut"))
