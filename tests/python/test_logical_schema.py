"""A file has the columns that its user gave it, on every path, and a null is none everywhere.

Method: one table has a column of every kind, once with nulls and once without. Each path that gives
out values, readers, formats, loaders, commands, exports and views, is compared with what the table
holds, column by column; a path that has no form for a kind must refuse it by the column's name.
"""

import datetime
import decimal
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ffrecord
from cli import ok, run

pytestmark = pytest.mark.wrong_data

pa = pytest.importorskip("pyarrow")

UTC = datetime.UTC
TIMES = [datetime.datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2, 3)]
DECIMALS = [decimal.Decimal("1.50"), decimal.Decimal("-0.25"), decimal.Decimal("7.00")]
CHATS = [
    [{"role": "user", "content": "hi"}, {"role": "bot", "content": None}],
    [],
    [{"role": "user", "content": "x"}],
]
PAIR = pa.struct([("w", pa.int64()), ("s", pa.string())])
# Three values of each kind, none of them null as a whole.
KINDS: dict[str, tuple[Any, list[Any]]] = {
    "number": (pa.int64(), [0, 5, -1]),
    "half": (pa.float16(), [0.5, 1.0, 2.0]),
    "flag": (pa.bool_(), [True, False, True]),
    "text": (pa.string(), ["a", "", "ü"]),
    "data": (pa.binary(), [b"\xff\x00", b"", b"x"]),
    "numbers": (pa.list_(pa.int32()), [[1, 2], [], [3]]),
    "words": (pa.list_(pa.string()), [["x", "yy"], [], ["z"]]),
    "pair": (PAIR, [{"w": 1, "s": "a"}, {"w": 2, "s": "b"}, {"w": 3, "s": ""}]),
    "chat": (pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())])), CHATS),
    "map": (pa.map_(pa.string(), pa.int64()), [[("a", 1)], [], [("b", 2), ("c", 3)]]),
    "time": (pa.timestamp("us", "UTC"), TIMES),
    "price": (pa.decimal128(10, 2), DECIMALS),
    "vector": (pa.list_(pa.float32(), 2), [[0.5, 1.0], [0.0, 0.0], [2.0, 3.0]]),
    "coded": (pa.dictionary(pa.int32(), pa.string()), ["u", "v", "u"]),
}
SCHEMA = pa.schema([(name, kind) for name, (kind, _) in KINDS.items()])
NUMBERS = ("number", "half", "flag", "time", "price", "vector")


def table_of(nulls: bool) -> Any:  # noqa: ANN401
    """Six rows; with nulls, every other row is null in every column, the first one too."""
    columns = {}
    for name, (kind, values) in KINDS.items():
        rows = [None, values[0], None, values[1], values[2], None] if nulls else [*values, *values]
        columns[name] = pa.array(rows, kind)
    return pa.table(columns, schema=SCHEMA)


@pytest.fixture(params=[True, False], ids=["nulls", "full"])
def table(request: pytest.FixtureRequest) -> Any:  # noqa: ANN401
    return table_of(request.param)


@pytest.fixture
def path(table: Any, tmp_path: Path) -> Path:  # noqa: ANN401
    ffrecord.write_table(table, tmp_path / "t.ffr")
    return tmp_path / "t.ffr"


def numeric(name: str, value: Any) -> Any:  # noqa: ANN401
    """A value as NumPy has it: dates and decimals as they are stored, maps as their pairs."""
    if value is None:
        return None
    if name == "time":
        return int(value.timestamp()) * 1_000_000
    if name == "price":
        return list(int(value.scaleb(2)).to_bytes(16, "little", signed=True))
    if name == "map":
        return [{"key": key, "value": number} for key, number in value]
    return list(value) if name == "data" else value


def worded(name: str, value: Any) -> Any:  # noqa: ANN401
    """A value in JSON."""
    if value is None:
        return None
    if name == "time":
        return value.strftime("%Y-%m-%d %H:%M:%S.%fZ")
    if name == "price":
        return str(value)
    if name == "data":
        return {"base64": "/wA="} if value[:1] == b"\xff" else value.decode()
    return numeric(name, value)


def truth(table: Any, form: Callable[[str, Any], Any]) -> dict[str, list[Any]]:  # noqa: ANN401
    return {name: [form(name, v) for v in table[name].to_pylist()] for name in table.column_names}


def told(value: Any) -> Any:  # noqa: ANN401
    """A value without the types of arrays and tensors."""
    if isinstance(value, np.ma.MaskedArray):
        assert not np.ma.getmaskarray(value).any()
        return value.data.tolist()
    if isinstance(value, bytes):
        return list(value)
    if isinstance(value, dict):
        return {name: told(each) for name, each in value.items()}
    if isinstance(value, list):
        return [told(each) for each in value]
    return value.tolist() if hasattr(value, "tolist") else value


def rows(column: Any) -> list[Any]:  # noqa: ANN401
    """The values of a column; a struct that is missing is one whose fields are all missing."""
    if isinstance(column, np.ma.MaskedArray):
        return [
            None if mask.any() else told(value)
            for value, mask in zip(column.data, np.ma.getmaskarray(column), strict=True)
        ]
    if isinstance(column, dict) and set(column) == {"values", "valid"}:
        values, valid = told(column["values"]), column["valid"].tolist()
        return [value if there else None for value, there in zip(values, valid, strict=True)]
    if isinstance(column, dict):
        parts = {name: rows(each) for name, each in column.items()}
        return [dict(zip(parts, row, strict=True)) for row in zip(*parts.values(), strict=True)]
    if hasattr(column, "to_pylist"):
        return [None if value is None else value for value in column.to_pylist()]
    return [told(value) for value in column]


def structs_as_columns(name: str, value: Any) -> Any:  # noqa: ANN401
    return {"w": None, "s": None} if name == "pair" and value is None else numeric(name, value)


def check(found: dict[str, list[Any]], wanted: dict[str, list[Any]]) -> None:
    assert list(found) == list(wanted)
    for name in wanted:
        assert found[name] == wanted[name], name


def by_column(samples: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [told(sample[name]) for sample in samples] for name in samples[0]}


READS: dict[str, Callable[[Any], list[Any]]] = {
    "index": lambda records: [records[index] for index in range(len(records))],
    "negative index": lambda records: [records[index - 6] for index in range(len(records))],
    "slice": lambda records: list(records[0:6]),
    "iteration": lambda records: list(records),
    "read": lambda records: [records.read(range(6))[row] for row in range(6)],
    "batches": lambda records: [one for batch in records.batches(2) for one in batch],
}
VIEWS: dict[str, Callable[[Any], Any]] = {
    "reader": lambda reader: reader,
    "subset": lambda reader: reader.subset(range(6)),
    "filter": lambda reader: reader.filter(np.ones(6, np.bool_)),
    "concat": lambda reader: ffrecord.concat([reader.subset([0, 1]), reader.subset([2, 3, 4, 5])]),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("how", READS)
def test_samples_are_the_rows(how: str, view: str, path: Path, table: Any) -> None:  # noqa: ANN401
    records = VIEWS[view](ffrecord.open(path))

    for form in ("numpy", "bytes", "torch"):
        if form == "torch":
            pytest.importorskip("torch")
        check(by_column(READS[how](records.with_format(form))), truth(table, numeric))
    arrow = [each for sample in READS[how](records.with_format("arrow")) for each in [sample]]
    assert pa.concat_tables(arrow).to_pylist() == table.to_pylist()


@pytest.mark.parametrize("view", VIEWS)
def test_columns_are_those_of_the_user(view: str, path: Path, table: Any) -> None:  # noqa: ANN401
    records = VIEWS[view](ffrecord.open(path))

    assert [column.name for column in records.columns] == list(KINDS)
    assert list(records.schema) == list(KINDS)
    batch = records.read(range(6))
    assert batch.columns == tuple(KINDS)
    check({name: rows(batch[name]) for name in KINDS}, truth(table, structs_as_columns))
    assert batch.to_arrow().equals(table)


def test_a_column_is_masked_where_it_has_no_value_or_refused_by_name(
    path: Path,
    table: Any,  # noqa: ANN401
) -> None:
    reader, wanted = ffrecord.open(path), truth(table, numeric)

    for name in KINDS:
        if name in NUMBERS:
            assert rows(reader.column(name)) == wanted[name]
            assert rows(reader.column(name, 2, 3)) == wanted[name][2:5]
        else:
            with pytest.raises(ValueError, match=f"column '{name}' is "):
                reader.column(name)


MODES = {
    "in the process": {},
    "a worker": {"mode": "workers", "num_workers": 1},
    "threads": {"mode": "threads", "num_workers": 2},
}
TRANSFORMS: dict[str, Callable[[Any], Any] | None] = {
    "none": None,
    "identity": lambda sample: sample,
    "copy": lambda sample: {**sample},
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("mode", MODES)
def test_loaders_make_the_same_of_rows_that_no_transform_has_touched(
    mode: str,
    transform: str,
    path: Path,
    table: Any,  # noqa: ANN401
) -> None:
    torch = pytest.importorskip("torch")
    from ffrecord.torch import DataLoader, Dataset, Sampler

    for form in ("numpy", "bytes", "torch", "arrow"):
        if form == "arrow" and transform == "copy":
            continue  # A table is no dict.
        change = TRANSFORMS[transform]
        source = ffrecord.open(path)
        dataset = Dataset(source) if change is None else Dataset(source, transform=change)
        dataset = dataset.with_format(form)
        sampler = Sampler(dataset, 6, shuffle=False)
        (batch,) = DataLoader(dataset, batch_sampler=sampler, **MODES[mode])
        if form == "arrow":
            assert batch.equals(table)
        else:
            check({n: rows(v) for n, v in batch.items()}, truth(table, structs_as_columns))
            assert form == "torch" or isinstance(batch["numbers"], list)
            assert type(batch["pair"]) is dict and type(batch["pair"]["w"]) in (dict, torch.Tensor)


def test_filling_nulls_makes_batches_of_one_form_whether_there_are_any_to_fill(
    tmp_path: Path,
) -> None:
    torch = pytest.importorskip("torch")
    from ffrecord.torch import DataLoader, Dataset, Sampler

    ffrecord.write_table(pa.table({"label": [1, None, 2, 3]}), tmp_path / "t.ffr")

    def filled(sample: dict[str, Any]) -> dict[str, Any]:
        return {"label": -1 if sample["label"] is None else sample["label"]}

    def made_tensor(sample: dict[str, Any]) -> dict[str, Any]:
        return {"label": torch.tensor(filled(sample)["label"])}

    dataset = Dataset(tmp_path / "t.ffr", transform=filled)
    batches = list(DataLoader(dataset, batch_sampler=Sampler(dataset, 2, shuffle=False)))
    assert [batch["label"]["values"].tolist() for batch in batches] == [[1, -1], [2, 3]]
    assert all(batch["label"]["valid"].all() for batch in batches)
    dataset = Dataset(tmp_path / "t.ffr", transform=made_tensor)
    batches = list(DataLoader(dataset, batch_sampler=Sampler(dataset, 2, shuffle=False)))
    assert [batch["label"].tolist() for batch in batches] == [[1, -1], [2, 3]]


def test_what_a_transform_changes_is_taken_from_it(path: Path, table: Any) -> None:  # noqa: ANN401
    pytest.importorskip("torch")
    from ffrecord.torch import DataLoader, Dataset, Sampler

    def change(sample: dict[str, Any]) -> dict[str, Any]:
        sample["words"] = ["n"]
        sample["number"] = -7
        if sample["pair"] is not None:
            sample["pair"]["w"] = 100
        if sample["numbers"] is not None:
            sample["numbers"] = np.zeros(2, np.int32)
        return sample | {"new": None}

    dataset = Dataset(path, transform=change)
    sampler = Sampler(dataset, 6, shuffle=False)
    (batch,) = DataLoader(dataset, batch_sampler=sampler)

    assert batch["words"] == [["n"] * 6]
    has_nulls = None in table["number"].to_pylist()
    numbers = batch["number"]["values"] if has_nulls else batch["number"]
    assert numbers.tolist() == [-7] * 6
    assert {row["w"] for row in rows(batch["pair"])} <= {100, None}
    assert {str(told(one)) for one in batch["numbers"]} <= {"[0, 0]", "None"}
    assert batch["new"] == [None] * 6


def test_commands_show_the_rows(path: Path, table: Any, tmp_path: Path) -> None:  # noqa: ANN401
    wanted = truth(table, worded)

    for command in ("head", "cat"):
        lines = [json.loads(line) for line in ok("ffrecord", command, path, "--json").splitlines()]
        check(by_column([line["record"] for line in lines]), wanted)
    columns = json.loads(ok("ffrecord", "stats", path, "--json"))["columns"]
    assert [column["name"] for column in columns] == list(KINDS)
    is_null = wanted["number"].count(None)
    assert all(column.get("null_count", 0) == is_null for column in columns)
    numbers = [value for value in wanted["number"] if value is not None]
    assert columns[0]["mean"] == pytest.approx(sum(numbers) / len(numbers))
    assert ":valid" not in ok("ffrecord", "inspect", path)
    assert "number:valid" in ok("ffrecord", "inspect", path, "--stored")
    ok("ffrecord", "view", path, "--output", tmp_path / "page.html")
    assert ":valid" not in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    "condition",
    ["number=0", "flag=false", "text=", "data=x", "price=-0.25", "coded=u", "half=1"],
)
def test_a_search_finds_values_and_no_nulls(condition: str, path: Path, table: Any) -> None:  # noqa: ANN401
    name, _, value = condition.partition("=")
    texts = {"flag": str(value != "false"), "half": "1.0"}

    found = run("ffrecord", "find", path, "--where", condition, "--json").stdout.splitlines()

    same = [
        row
        for row, each in enumerate(table[name].to_pylist())
        if each is not None
        and (each.decode() if name == "data" and each[:1] != b"\xff" else str(each))
        == texts.get(name, value)
    ]
    assert [json.loads(line)["index"] for line in found] == same
    assert same


def test_exports_hold_the_rows(path: Path, table: Any, tmp_path: Path) -> None:  # noqa: ANN401
    parquet = pytest.importorskip("pyarrow.parquet")
    wanted = truth(table, worded)

    ok("ffrecord", "export", path, tmp_path / "o.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    check(by_column([line["record"] for line in lines]), wanted)
    ok("ffrecord", "export", path, tmp_path / "some.jsonl", "--column", "chat", "--column", "time")
    lines = [json.loads(line) for line in (tmp_path / "some.jsonl").read_text().splitlines()]
    check(by_column([one["record"] for one in lines]), {n: wanted[n] for n in ("chat", "time")})
    ok("ffrecord", "export", path, tmp_path / "o.parquet")
    assert parquet.read_table(tmp_path / "o.parquet").to_pylist() == table.to_pylist()
    ok("ffrecord", "export", path, tmp_path / "folder")
    index = (tmp_path / "folder/records.jsonl").read_text().splitlines()
    for row, line in enumerate(map(json.loads, index)):
        record = line["record"]
        for name in ("text", "data"):
            file = record["files"].pop(name)
            value = table[name][row].as_py()
            content = None if file is None else (tmp_path / "folder" / file).read_bytes()
            assert content == (value.encode() if isinstance(value, str) else value)
        assert not record["files"].keys() - {"coded"}
        for name, value in record["values"].items():
            assert value == wanted[name][row], name


def test_rewriting_and_packing_again_keep_the_table(
    path: Path,
    table: Any,  # noqa: ANN401
    tmp_path: Path,
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    ok("ffrecord", "split", path, tmp_path / "parts", "--part-records", "4")
    ok("ffrecord", "merge", tmp_path / "parts", tmp_path / "merged.ffr")
    ok("ffrecord-pack", path, tmp_path / "packed.ffr")
    ok("ffrecord", "export", path, tmp_path / "o.parquet")
    ffrecord.write_table(parquet.read_table(tmp_path / "o.parquet"), tmp_path / "again.ffr")
    ok("ffrecord-pack", tmp_path / "o.parquet", tmp_path / "o.ffr")

    for name in ("parts", "merged.ffr", "packed.ffr", "again.ffr", "o.ffr"):
        assert ffrecord.read_table(tmp_path / name).to_pylist() == table.to_pylist(), name
    assert ffrecord.open(tmp_path / "merged.ffr").schema == ffrecord.open(path).schema
    names = ["chat", "number"]
    ok("ffrecord-pack", path, tmp_path / "two.ffr", "--column", names[0], "--column", names[1])
    assert ffrecord.read_table(tmp_path / "two.ffr").to_pylist() == table.select(names).to_pylist()
    refused = run("ffrecord-pack", path, tmp_path / "x.ffr", "--column", "number:valid")
    assert refused.returncode == 2 and "no column 'number:valid'" in refused.stderr


def test_files_of_one_schema_belong_together_whatever_nulls_they_hold(tmp_path: Path) -> None:
    some, full = table_of(True), table_of(False)
    whole = pa.concat_tables([full, some])
    (tmp_path / "parts").mkdir()
    ffrecord.write_table(full, tmp_path / "parts/0.ffr")
    ffrecord.write_table(some.to_reader(), tmp_path / "parts/1.ffr")
    ffrecord.write_table(full, tmp_path / "grown.ffr")
    ffrecord.write_table(some, tmp_path / "grown.ffr", append=True)
    with ffrecord.Writer(tmp_path / "rows.ffr", SCHEMA) as writer:
        for row in full.to_pylist():
            writer.write(row)
    with ffrecord.Writer(tmp_path / "rows.ffr", append=True) as writer:
        for row in some.to_pylist():
            writer.write(row)
    ok("ffrecord", "merge", tmp_path / "parts", tmp_path / "merged.ffr")
    readers = [ffrecord.open(tmp_path / "parts" / name) for name in ("0.ffr", "1.ffr")]
    joined = [
        ffrecord.open(tmp_path / "parts"),
        ffrecord.concat(readers),
        ffrecord.concat([reader.subset(range(6)) for reader in readers]),
        *(ffrecord.open(tmp_path / name) for name in ("grown.ffr", "rows.ffr", "merged.ffr")),
    ]

    for records in joined:
        assert records.read(range(12)).to_arrow().to_pylist() == whole.to_pylist()
        # Also of a batch without nulls: the type of a column is that of the whole.
        assert isinstance(records.read([0, 1])["number"], np.ma.MaskedArray)
        assert records[6]["number"] is None
    assert not isinstance(readers[0].read([0, 1])["number"], np.ma.MaskedArray)


OTHERS = {
    "units": (pa.timestamp("ms"), pa.timestamp("us")),
    "zones": (pa.timestamp("us", "UTC"), pa.timestamp("us", "Europe/Berlin")),
    "scales": (pa.decimal128(10, 2), pa.decimal128(10, 3)),
    "dates and numbers": (pa.date32(), pa.int32()),
    "widths of items": (pa.list_(pa.timestamp("ms")), pa.list_(pa.timestamp("us"))),
    "fields": (pa.struct([("t", pa.duration("ms"))]), pa.struct([("t", pa.duration("us"))])),
}


@pytest.mark.parametrize("what", OTHERS)
def test_files_of_other_meanings_are_refused_by_name(what: str, tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.ffr", "b.ffr")]
    for path, kind in zip(paths, OTHERS[what], strict=True):
        ffrecord.write_table(pa.table({"x": pa.array([None], kind)}), path)
    readers = [ffrecord.open(path) for path in paths]
    joined: list[Callable[[], Any]] = [
        lambda: ffrecord.open(paths),
        lambda: ffrecord.open(tmp_path),
        lambda: ffrecord.concat(readers),
        lambda: ffrecord.concat(reader.subset([0]) for reader in readers),
        lambda: ffrecord.mix(readers, [1, 1]),
    ]

    for made in joined:
        with pytest.raises(ValueError, match=r"column 'x' is .* in .*, and .* in "):
            len(made())
    refused = run("ffrecord", "merge", *paths, tmp_path / "m.ffr")
    assert refused.returncode == 2 and "column 'x' is" in refused.stderr
    with pytest.raises(ValueError, match="not written from a table of these types"):
        ffrecord.write_table(ffrecord.read_table(paths[1]), paths[0], append=True)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.string(), pa.large_string()),
        (pa.string(), pa.dictionary(pa.int8(), pa.string())),
        (pa.list_(pa.int64()), pa.large_list(pa.int64())),
    ],
)
def test_types_that_lay_out_the_same_values_belong_together(
    one: Any,  # noqa: ANN401
    other: Any,  # noqa: ANN401
    tmp_path: Path,
) -> None:
    value = [1] if pa.types.is_list(one) else "a"
    for name, kind in (("a.ffr", one), ("b.ffr", other)):
        ffrecord.write_table(pa.table({"x": pa.array([value], kind)}), tmp_path / name)

    assert [told(sample["x"]) for sample in ffrecord.open(tmp_path)] == [value, value]


def test_a_missing_picture_is_none_and_no_damage(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    pytest.importorskip("torch")
    import io

    from ffrecord.decode import Image
    from ffrecord.torch import DataLoader, Dataset, Sampler

    out = io.BytesIO()
    pillow.new("RGB", (8, 6)).save(out, "PNG")
    pictures = pa.array([None, out.getvalue(), None, out.getvalue()], pa.binary())
    ffrecord.write_table(pa.table({"image": pictures, "n": [[1]] * 4}), tmp_path / "t.ffr")

    for on_corrupt in ("raise", "skip", "replace"):
        dataset = Dataset(tmp_path / "t.ffr", decode={"image": Image(4)}, on_corrupt=on_corrupt)
        sampler = Sampler(dataset, 4, shuffle=False)
        (batch,) = DataLoader(dataset, batch_sampler=sampler)
        shapes = [None if one is None else tuple(one.shape) for one in batch["image"]]
        assert shapes == [None, (4, 4, 3), None, (4, 4, 3)]
        assert dataset.stats()["damaged_records"] == 0
    with pytest.raises(KeyError, match=r"column 'n' is list<i64>"):
        ffrecord.open(tmp_path / "t.ffr").read([0], decode={"n": Image(4)})


def test_bf16_means_the_same_with_a_transform_and_without(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from ffrecord.torch import DataLoader, Dataset, Sampler

    with ffrecord.Writer(tmp_path / "t.ffr", {"w": "bf16[2]", "b": "bf16"}) as writer:
        for number in range(4):
            writer.write({"w": np.array([number, 0.5], "f4"), "b": np.float32(number)})
    for options in MODES.values():
        for transform in TRANSFORMS.values():
            dataset = Dataset(tmp_path / "t.ffr", transform=transform)
            sampler = Sampler(dataset, 4, shuffle=False)
            (batch,) = DataLoader(dataset, batch_sampler=sampler, **options)
            assert batch["w"].dtype == batch["b"].dtype == torch.bfloat16
            assert batch["b"].tolist() == [0.0, 1.0, 2.0, 3.0]


def test_nulls_that_the_metadata_deny_are_not_taken_for_numbers(tmp_path: Path) -> None:
    source = ffrecord.write_table(pa.table({"a": [1, None]}), tmp_path / "t.ffr")
    assert source.record_count == 2
    reader = ffrecord.open(tmp_path / "t.ffr")
    metadata = reader.metadata() | {"ffrecord.nulls": b"[]"}
    with ffrecord.Writer(
        tmp_path / "u.ffr", {"a:valid": "bool", "a": "i64"}, metadata=metadata
    ) as writer:
        for sample in reader.read([0, 1]).stored():
            writer.write(sample)

    earlier = {name: value for name, value in metadata.items() if name != "ffrecord.nulls"}
    with ffrecord.Writer(tmp_path / "v.ffr", {"a": "i64"}, metadata=earlier) as writer:
        writer.write({"a": 3})

    # As earlier versions wrote tables without nulls: they are read, and take no nulls.
    assert ffrecord.open(tmp_path / "v.ffr")[0] == {"a": 3}
    with pytest.raises(ValueError, match="column 'a' has a null"):
        ffrecord.write_table(pa.table({"a": [4, None]}), tmp_path / "v.ffr", append=True)
    ffrecord.write_table(pa.table({"a": [4]}), tmp_path / "v.ffr", append=True)
    assert ffrecord.read_table(tmp_path / "v.ffr")["a"].to_pylist() == [3, 4]
    denied = ffrecord.open(tmp_path / "u.ffr")
    with pytest.raises(ffrecord.errors.CorruptionError, match="column 'a' has nulls"):
        denied.read([0, 1])["a"]
    assert denied.column("a").tolist() == [1, None]


def test_a_filter_leaves_out_what_has_no_value(tmp_path: Path) -> None:
    ffrecord.write_table(pa.table({"label": [None, 3, 0, None, 3]}), tmp_path / "t.ffr")
    reader = ffrecord.open(tmp_path / "t.ffr")
    labels = reader.column("label")

    assert [sample["label"] for sample in reader.filter(labels == 3)] == [3, 3]
    assert [sample["label"] for sample in reader.filter(labels != 3)] == [0]
    assert [sample["label"] for sample in reader.filter(labels == 0)] == [0]


@pytest.mark.parametrize("nullable", [True, False])
def test_blocks_of_tokens_come_from_columns_of_lists_and_of_bytes(
    nullable: bool,
    tmp_path: Path,
) -> None:
    documents = [[1, 2, 3], [], [4, 5, 6, 7], [8]]
    fields = [
        pa.field("id", pa.int64(), nullable),
        pa.field("tokens", pa.list_(pa.field("item", pa.int32(), nullable)), nullable),
    ]
    rows = pa.table({"id": range(4), "tokens": documents}, schema=pa.schema(fields))
    ffrecord.write_table(rows, tmp_path / "lists.ffr")
    data = pa.array([np.array(each, "<i4").tobytes() for each in documents], pa.binary())
    schema = pa.schema([pa.field("tokens", pa.binary(), nullable)])
    ffrecord.write_table(pa.table({"tokens": data}, schema=schema), tmp_path / "bytes.ffr")

    for name, dtype in (("lists.ffr", None), ("bytes.ffr", "i32")):
        reader = ffrecord.open(tmp_path / name)
        blocks = ffrecord.TokenBlocks(reader, 4, dtype=dtype, column="tokens")
        assert blocks.read(range(2))["tokens"].tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]


def test_names_of_stored_columns_are_no_addresses(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from ffrecord.torch import Dataset

    table = pa.table({"a": [1, None], "l": [[1], []], "p": [{"w": 1}, None]})
    ffrecord.write_table(table, tmp_path / "t.ffr")
    reader = ffrecord.open(tmp_path / "t.ffr")

    for name in ("a:valid", "l[]:i64", "l[]", "p{w}"):
        for ask in (
            lambda name=name: reader.column(name),
            lambda name=name: reader.read([0])[name],
            lambda name=name: reader.read([0]).only([name]),
            lambda name=name: Dataset(tmp_path / "t.ffr", columns=[name])[[0]],
            lambda name=name: ffrecord.read_table(tmp_path / "t.ffr", columns=[name]),
        ):
            with pytest.raises(KeyError, match="columns: a, l, p"):
                ask()
        for arguments in (["head", "--column", name], ["cat", "--column", name]):
            refused = run("ffrecord", arguments[0], tmp_path / "t.ffr", *arguments[1:])
            assert refused.returncode == 2 and "columns: a, l, p" in refused.stderr
