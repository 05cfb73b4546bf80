"""Goal: what is in a table is in the records that are packed from it, whatever the types.

Method: a column of each type of Arrow, with and without nulls, in Parquet and in Arrow's own files
and streams, is packed and read by each reader and command, exported, and packed again. Files that
do not fit together, or that records cannot hold, are refused before anything is visible.
"""

import datetime
import decimal
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ffrecord
from cli import ok
from ffrecord.errors import CorruptionError
from ffrecord.pack import SourceOptions, TableSource, open_source, pack
from packing import refused

pytestmark = pytest.mark.wrong_data

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

DAY = datetime.date(2021, 3, 4)
AT = datetime.datetime(2021, 3, 4, 5, 6, 7)
# Three values of each type.
COLUMNS: dict[str, tuple[Any, list[Any]]] = {
    **{f"i{n}": (getattr(pa, f"int{n}")(), [-(1 << n - 1), 0, 7]) for n in (8, 16, 32, 64)},
    **{f"u{n}": (getattr(pa, f"uint{n}")(), [(1 << n) - 1, 0, 7]) for n in (8, 16, 32, 64)},
    "f16": (pa.float16(), [1.5, -0.5, 2.0]),
    "f32": (pa.float32(), [1.5, -0.5, 1e30]),
    "f64": (pa.float64(), [1.1, -0.5, 1e300]),
    "bool": (pa.bool_(), [True, False, True]),
    "string": (pa.string(), ["grün", "", "x"]),
    "large_string": (pa.large_string(), ["grün", "", "x"]),
    "binary": (pa.binary(), [b"\xff\0", b"", b"x"]),
    "large_binary": (pa.large_binary(), [b"\xff\0", b"", b"x"]),
    "fixed_binary": (pa.binary(3), [b"abc", b"\0\0\0", b"\xff\xfe\xfd"]),
    "date32": (pa.date32(), [DAY, datetime.date(1969, 1, 1), DAY]),
    "time32": (pa.time32("ms"), [datetime.time(1, 2, 3), datetime.time(0), datetime.time(4)]),
    "time64": (pa.time64("us"), [datetime.time(1, 2, 3, 4), datetime.time(0), datetime.time(4)]),
    "timestamp_ms": (pa.timestamp("ms"), [AT, datetime.datetime(1900, 1, 1), AT]),
    "timestamp_us": (pa.timestamp("us", tz="Europe/Berlin"), [1, -5, 7]),
    "timestamp_ns": (pa.timestamp("ns"), [1000, -5000, 7000]),
    "duration": (pa.duration("ms"), [1, -5, 7]),
    "decimal128": (pa.decimal128(12, 3), [decimal.Decimal("1.234"), decimal.Decimal(-5), 0]),
    "decimal256": (pa.decimal256(50, 3), [decimal.Decimal("1.234"), decimal.Decimal(-5), 0]),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), ["a", "b", "a"]),
    "list": (pa.list_(pa.int32()), [[1, 2], [], [3]]),
    "list_of_nulls": (pa.list_(pa.int32()), [[1, None], [], [None]]),
    "large_list": (pa.large_list(pa.string()), [["a", ""], [], ["c"]]),
    "list_of_lists": (pa.list_(pa.list_(pa.float32())), [[[1.5], []], [], [[2.5, 3.5]]]),
    "fixed_list": (pa.list_(pa.float32(), 2), [[1, 2], [3, 4], [5, 6]]),
    "fixed_list_of_nulls": (pa.list_(pa.float32(), 2), [[1, None], [3, 4], [None, None]]),
    "struct": (
        pa.struct([("a", pa.int64()), ("b", pa.struct([("c", pa.string())]))]),
        [{"a": 1, "b": {"c": "x"}}, {"a": None, "b": None}, {"a": 3, "b": {"c": None}}],
    ),
    "list_of_structs": (
        pa.list_(pa.struct([("role", pa.string()), ("n", pa.int8())])),
        [[{"role": "a", "n": 1}, {"role": "b", "n": None}], [], [None]],
    ),
    "map": (pa.map_(pa.string(), pa.int32()), [[("a", 1), ("b", None)], [], [("c", 3)]]),
    **{
        f"{name}_view": (getattr(pa, f"{name}_view")(), values)
        for name, values in (("string", ["a", "", "b"]), ("binary", [b"\xff", b"", b"b"]))
        if hasattr(pa, f"{name}_view")
    },
}


def parquet(table: Any, path: Path) -> Path:  # noqa: ANN401
    pq.write_table(table, path)
    return path


def ipc_file(table: Any, path: Path) -> Path:  # noqa: ANN401
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return path


def ipc_stream(table: Any, path: Path) -> Path:  # noqa: ANN401
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return path


def feather(table: Any, path: Path) -> Path:  # noqa: ANN401
    import pyarrow.feather

    pyarrow.feather.write_feather(table, path)
    return path


FORMS: dict[str, Callable[[Any, Path], Path]] = {
    "parquet": parquet,
    "ipc file": ipc_file,
    "ipc stream": ipc_stream,
    "feather": feather,
}


def table_of(name: str, nulls: bool) -> Any:  # noqa: ANN401
    kind, values = COLUMNS[name]
    rows = [values[0], None, *values[1:]] if nulls else values
    return pa.table({"id": range(len(rows)), name: pa.array(rows, kind)})


@pytest.mark.parametrize("nulls", [False, True])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", COLUMNS)
def test_each_type_comes_back(name: str, form: str, nulls: bool, tmp_path: Path) -> None:
    try:
        source = FORMS[form](table_of(name, nulls), tmp_path / "source")
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError):
        pytest.skip("the format has no such type")
    table = pq.read_table(source) if form == "parquet" else table_of(name, nulls)

    summary = pack(source, tmp_path / "x.ffr")
    pack(source, tmp_path / "parts", part_size_bytes=1)
    pack(tmp_path / "x.ffr", tmp_path / "again.ffr")

    assert summary.record_count == len(table)
    for place in ("x.ffr", "parts", "again.ffr"):
        found = ffrecord.read_table(tmp_path / place)
        assert found.to_pylist() == table.to_pylist(), place
        assert found.schema.field(name).type == table.schema.field(name).type, place
        if "dictionary" not in name:
            assert found.combine_chunks().equals(table.combine_chunks()), place
    reader = ffrecord.open(tmp_path / "x.ffr")
    assert [sample[name] is None for sample in reader] == [
        value is None for value in table[name].to_pylist()
    ]


@pytest.mark.parametrize("name", COLUMNS)
def test_each_type_is_shown_exported_and_packed_again(name: str, tmp_path: Path) -> None:
    table = table_of(name, True)
    try:
        source = parquet(table, tmp_path / "a.parquet")
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError):
        source = ipc_file(table, tmp_path / "a.arrow")
    ok("ffrecord-pack", source, tmp_path / "x.ffr")

    for command in ("head", "stats", "inspect"):
        ok("ffrecord", command, tmp_path / "x.ffr", "--json")
    ok("ffrecord", "export", tmp_path / "x.ffr", tmp_path / "o.jsonl")
    lines = [json.loads(line)["record"] for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    assert [line["id"] for line in lines] == [0, 1, 2, 3]
    assert [line[name] is None for line in lines] == [False, True, False, False]
    if source.suffix == ".arrow":
        return
    ok("ffrecord", "export", tmp_path / "x.ffr", tmp_path / "o.parquet")
    assert pq.read_table(tmp_path / "o.parquet").to_pylist() == pq.read_table(source).to_pylist()
    ok("ffrecord-pack", tmp_path / "o.parquet", tmp_path / "y.ffr")
    found, first = (ffrecord.read_table(tmp_path / each) for each in ("y.ffr", "x.ffr"))
    assert found.to_pylist() == first.to_pylist()
    assert found.schema.field(name).type == first.schema.field(name).type


def test_dictionaries_in_lists_come_back_from_several_row_groups(tmp_path: Path) -> None:
    kind = pa.list_(pa.dictionary(pa.int32(), pa.string()))
    table = pa.table({"a": pa.array([["x", None], [], None, ["y"], ["x"]], kind)})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=2)
    pack(tmp_path / "x.parquet", tmp_path / "x.ffr")
    assert ffrecord.read_table(tmp_path / "x.ffr")["a"].to_pylist() == table["a"].to_pylist()


def test_a_packed_table_is_what_write_table_writes(tmp_path: Path) -> None:
    table = pa.table({name: table_of(name, True)[name] for name in COLUMNS})
    ffrecord.write_table(table, tmp_path / "written.ffr")

    pack(TableSource(table), tmp_path / "packed.ffr")

    one, other = (ffrecord.open(tmp_path / f"{name}.ffr") for name in ("written", "packed"))
    assert one.schema == other.schema
    assert one.metadata() == other.metadata()
    assert one.files[0].fingerprint == other.files[0].fingerprint


@pytest.mark.parametrize("form", FORMS)
def test_files_of_one_schema_fit_whatever_nulls_and_layout(form: str, tmp_path: Path) -> None:
    """Nulls in lists of a fixed size are found in a later file before the first is written."""
    box = pa.list_(pa.float32(), 2)
    tables = [
        pa.table({"x": [1, 2], "s": ["a", "b"], "box": pa.array([[1, 2], [3, 4]], box)}),
        pa.table({"x": [None, 4], "s": ["c", None], "box": pa.array([[1, None], None], box)}),
    ]
    columns = [tables[1].column(name) for name in ("box", "s", "x")]
    tables.append(pa.table(columns, names=["box", "s", "x"]))
    paths = [FORMS[form](each, tmp_path / str(number)) for number, each in enumerate(tables)]

    pack(paths, tmp_path / "x.ffr")
    pack(paths, tmp_path / "parts", workers=2)

    rows = [row for table in tables for row in table.select(["x", "s", "box"]).to_pylist()]
    assert ffrecord.read_table(tmp_path / "x.ffr").to_pylist() == rows
    assert ffrecord.read_table(tmp_path / "parts").to_pylist() == rows


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (pa.table({"x": pa.array([1], pa.int32())}), "'x' is int32, and int64 in the first file"),
        (pa.table({"x": pa.array([1]), "y": [1]}), "'y' is int64, and not there"),
        (pa.table({"z": [1]}), "'x' is not there, and int64"),
        (pa.table({"x": pa.array([[1]])}), "'x' is list<"),
    ],
)
def test_files_of_other_columns_are_refused_by_name(
    other: Any,  # noqa: ANN401
    said: str,
    tmp_path: Path,
) -> None:
    parquet(pa.table({"x": [1]}), tmp_path / "1.parquet")
    parquet(other, tmp_path / "2.parquet")

    message = refused(2, tmp_path / "1.parquet", tmp_path / "2.parquet", tmp_path / "x.ffr")

    assert f"{tmp_path}/2.parquet: the column " in message
    assert said in message
    assert "--cast" in message and "--drop" in message


def test_a_cast_makes_files_fit_or_is_refused_where_it_loses(tmp_path: Path) -> None:
    one = parquet(pa.table({"x": [1], "y": [1]}), tmp_path / "1.parquet")
    two = parquet(pa.table({"x": pa.array([2], pa.int32()), "y": ["a"]}), tmp_path / "2.parquet")
    ok("ffrecord-pack", one, two, tmp_path / "x.ffr", "--cast", "x=i64", "--drop", "y")
    assert ffrecord.read_table(tmp_path / "x.ffr").to_pylist() == [{"x": 1}, {"x": 2}]
    assert "there is no such type" in refused(2, one, "--cast", "x=i65", tmp_path / "y.ffr")
    assert "no column 'z'" in refused(2, one, "--cast", "z=i64", tmp_path / "y.ffr")
    assert "is not NAME=TYPE" in _usage(one, "--cast", "x", tmp_path / "y.ffr")

    large = {"x": [1 << 40], "half": [1.5], "huge": [1e300], "text": ["no"]}
    source = parquet(pa.table(large), tmp_path / "3.parquet")
    for cast in ("x=i32", "half=i64", "huge=f32", "text=i64", "text=timestamp[s]"):
        message = refused(2, source, "--cast", cast, tmp_path / "y.ffr")
        assert f"{source}: the column '{cast.partition('=')[0]}' is" in message


def _usage(*arguments: str | Path) -> str:
    from cli import run

    done = run("ffrecord-pack", *arguments)
    assert done.returncode == 2
    return done.stderr


@pytest.mark.parametrize("form", ["ipc file", "ipc stream", "feather", "parquet"])
def test_a_file_that_is_cut_anywhere_is_refused_or_whole(form: str, tmp_path: Path) -> None:
    table = pa.table({"x": range(500), "s": [str(i) for i in range(500)]})
    path = FORMS[form](table, tmp_path / "source")
    whole = path.read_bytes()
    for size in {*range(8, len(whole), max(len(whole) // 60, 1)), len(whole) - 1, len(whole) - 8}:
        path.write_bytes(whole[:size])
        with pytest.raises((CorruptionError, ValueError), match="source"):
            pack(path, tmp_path / "x.ffr")
        assert not (tmp_path / "x.ffr").exists()


def test_bf16_stays_bf16(tmp_path: Path) -> None:
    with ffrecord.Writer(tmp_path / "a.ffr", {"v": "bf16[2]"}) as writer:
        writer.write({"v": [1.5, -2.0]})
    ok("ffrecord", "export", tmp_path / "a.ffr", tmp_path / "a.parquet")
    table = ffrecord.read_table(tmp_path / "a.ffr")
    parquet(table, tmp_path / "b.parquet")

    pack(tmp_path / "b.parquet", tmp_path / "b.ffr")

    assert ffrecord.open(tmp_path / "b.ffr").schema == ffrecord.open(tmp_path / "a.ffr").schema
    assert ffrecord.read_table(tmp_path / "b.ffr").to_pylist() == table.to_pylist()


def test_a_function_gets_plain_values(tmp_path: Path) -> None:
    table = pa.table({"x": [1, None], "words": [["a"], ["b", "c"]]})
    parquet(table, tmp_path / "a.parquet")
    schema = {"count": "i64", "x": "utf8"}

    pack(tmp_path / "a.parquet", tmp_path / "x", map=counted, schema=schema, workers=2)

    assert [dict(each) for each in ffrecord.open(tmp_path / "x")] == [
        {"count": 1, "x": "1"},
        {"count": 2, "x": "None"},
    ]


def counted(sample: Any) -> Any:  # noqa: ANN401
    return {"count": len(sample["words"]), "x": str(sample["x"])}


def test_columns_are_chosen_in_the_order_that_was_asked_for(tmp_path: Path) -> None:
    parquet(pa.table({"a": [1], "b": [2], "c": [3]}), tmp_path / "a.parquet")

    options = SourceOptions(columns=("c", "a", "b"), drop=("b",))
    pack(open_source(tmp_path / "a.parquet", options), tmp_path / "x.ffr", key=None)

    assert list(ffrecord.open(tmp_path / "x.ffr").schema) == ["c", "a"]


@pytest.mark.parametrize("form", FORMS)
def test_a_table_without_rows_is_nothing_to_pack(form: str, tmp_path: Path) -> None:
    path = FORMS[form](pa.table({"x": pa.array([], pa.int64())}), tmp_path / "source")

    with pytest.raises(ValueError, match="nothing to pack"):
        pack(path, tmp_path / "x.ffr")


def test_the_key_may_be_a_column_of_a_table(tmp_path: Path) -> None:
    parquet(pa.table({"k": ["a", "b", None], "x": [1, 2, 3]}), tmp_path / "a.parquet")

    ok("ffrecord-pack", tmp_path / "a.parquet", tmp_path / "x.ffr", "--key", "k")

    assert ffrecord.open(tmp_path / "x.ffr").find("b") == 1
    parquet(pa.table({"k": ["a", ""], "x": [1, 2]}), tmp_path / "b.parquet")
    message = refused(2, tmp_path / "b.parquet", "--key", "k", tmp_path / "y.ffr")
    assert "row 1: column 'k': the value is empty" in message
