"""Goal: a table of Arrow comes back from a record file as it was, whatever is in it.

Method: tables of random types and values, with nulls, slices and several chunks, are written and
read back whole, by random indices, by views, workers and other processes, and compared by
pyarrow's equality; the forms of NumPy and torch are compared with the table's own Python values.
"""

import pickle
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ffrecord
from daemon import Daemon
from ffrecord.pack import TableSource, pack

pytestmark = pytest.mark.wrong_data

pa = pytest.importorskip("pyarrow")

NUMBERS = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32()),
    *(pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.bool_()),
]
LEAVES = [
    *NUMBERS,
    *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.binary(3)),
    *(pa.date32(), pa.date64(), pa.time32("ms"), pa.time64("ns"), pa.duration("s")),
    *(pa.timestamp("us"), pa.timestamp("ns", tz="Europe/Berlin"), pa.decimal128(12, 3)),
    pa.dictionary(pa.int8(), pa.string()),
    # Not in the oldest pyarrow that is allowed.
    *(getattr(pa, name)() for name in ("string_view", "binary_view") if hasattr(pa, name)),
]


def random_type(chance: random.Random, depth: int) -> Any:  # noqa: ANN401 - pyarrow has no types
    if depth == 0 or chance.random() < 0.4:
        return chance.choice(LEAVES)

    def below(name: str) -> Any:  # noqa: ANN401
        return pa.field(name, random_type(chance, depth - 1), chance.random() < 0.6)

    match chance.randrange(6):
        case 0:
            return pa.list_(below("item"))
        case 1:
            return pa.large_list(below("element"))
        case 2:
            return pa.list_(below("item"), chance.randint(1, 3))
        case 3:
            return pa.struct([below(name) for name in "xyz"[: chance.randint(1, 3)]])
        case 4:
            return pa.map_(pa.string(), chance.choice(NUMBERS))
        case _:
            return pa.list_(pa.field("item", chance.choice(NUMBERS), False), chance.randint(1, 4))


def random_value(chance: random.Random, kind: Any, nullable: bool) -> Any:  # noqa: ANN401
    types = pa.types
    if nullable and chance.random() < 0.25:
        return None
    if types.is_fixed_size_list(kind):
        field = kind.value_field
        return [random_value(chance, field.type, field.nullable) for _ in range(kind.list_size)]
    if types.is_map(kind):
        return [
            (f"k{i}", random_value(chance, kind.item_type, True))
            for i in range(chance.randint(0, 3))
        ]
    if types.is_list(kind) or types.is_large_list(kind):
        field = kind.value_field
        count = chance.choice([0, 1, 3, 7])
        return [random_value(chance, field.type, field.nullable) for _ in range(count)]
    if types.is_struct(kind):
        return {f.name: random_value(chance, f.type, f.nullable) for f in kind}
    if types.is_boolean(kind):
        return chance.random() < 0.5
    if types.is_floating(kind):
        value = np.float16(chance.uniform(-9, 9))
        return value if types.is_float16(kind) else float(value)
    if types.is_integer(kind):
        return chance.randint(0, 127)
    if types.is_decimal(kind):
        return chance.randint(-999, 999)
    if types.is_fixed_size_binary(kind):
        return chance.randbytes(kind.byte_width)
    if types.is_binary(kind) or types.is_large_binary(kind) or str(kind) == "binary_view":
        return chance.randbytes(chance.randint(0, 9))
    if types.is_date64(kind):
        return chance.randint(0, 9) * 86_400_000
    if types.is_temporal(kind):  # Python has no nanoseconds.
        return chance.randint(0, 86_000) // 1000 * (1000 if "ns" in str(kind) else 1)
    return "ü" * chance.randint(0, 4) + str(chance.randint(0, 5))


def random_table(seed: int, rows: int = 40) -> Any:  # noqa: ANN401
    """Columns of random types, in two chunks with a slice cut off at both ends."""
    chance = random.Random(seed)
    fields, columns = [], []
    for number in range(chance.randint(1, 5)):
        kind, nullable = random_type(chance, 3), chance.random() < 0.6
        field = pa.field(f"column {number}", kind, nullable, {"of": str(number)})
        values = [random_value(chance, kind, nullable) for _ in range(rows + 2)]
        fields.append(field)
        columns.append(pa.array(values, kind))
    schema = pa.schema(fields, metadata={"made": "here"})
    table = pa.Table.from_arrays(columns, schema=schema).slice(1, rows)
    cut = chance.randint(0, rows)
    return pa.concat_tables([table.slice(0, cut), table.slice(cut)])


def comparable(table: Any) -> Any:  # noqa: ANN401
    """Without the columns in which there are dictionaries, which may have another order."""
    return table.select([field.name for field in table.schema if "dict" not in str(field.type)])


@pytest.mark.parametrize("seed", range(60))
def test_a_table_comes_back_as_it_was(seed: int, tmp_path: Path) -> None:
    table = random_table(seed)
    table.validate(full=True)

    summary = ffrecord.write_table(table, tmp_path / "t.ffr")

    assert summary.record_count == len(table)
    found = ffrecord.read_table(tmp_path / "t.ffr")
    found.validate(full=True)
    assert found.schema.equals(table.schema, check_metadata=True)
    assert found.to_pylist() == table.to_pylist()
    assert comparable(found).equals(comparable(table), check_metadata=True)
    rows = random.Random(seed).choices(range(len(table)), k=17)
    whole = table.to_pylist()
    some = ffrecord.open(tmp_path / "t.ffr").read(rows).to_arrow()
    assert some.to_pylist() == [whole[row] for row in rows]


@pytest.mark.parametrize("seed", range(100, 115))
def test_a_stream_is_written_without_knowing_its_rows(seed: int, tmp_path: Path) -> None:
    table = random_table(seed)

    try:
        ffrecord.write_table(table.to_reader(max_chunksize=7), tmp_path / "t.ffr", compress="zstd")
    except ValueError as error:  # Whether items are null decides how such lists are stored.
        assert "has a null in a list or tensor of a fixed size" in str(error)
        return

    assert ffrecord.read_table(tmp_path / "t.ffr").to_pylist() == table.to_pylist()


NESTED = pa.table(
    {
        "id": pa.array([1, 2, 3, 4]),
        "age": pa.array([7, None, 9, None], pa.int32()),
        "name": pa.array(["a", None, "", "ü"]),
        "tokens": pa.array([[1, 2, 3], [], [4], [5, 6]], pa.list_(pa.int64())),
        "words": pa.array([["x", "yy"], None, [], [None, "z"]]),
        "point": pa.array(
            [{"x": 1.5, "label": "p"}, None, {"x": None, "label": "q"}, {"x": 2.0, "label": "r"}]
        ),
        "boxes": pa.array(
            [[{"at": [1, 2], "n": 1}], [], [{"at": [3, 4], "n": 2}, {"at": [5, 6], "n": 3}], []],
            pa.list_(pa.struct([("at", pa.list_(pa.int16(), 2)), ("n", pa.uint8())])),
        ),
    }
)


@pytest.fixture
def nested(tmp_path: Path) -> Path:
    ffrecord.write_table(NESTED, tmp_path / "nested.ffr")
    return tmp_path / "nested.ffr"


def test_the_schema_of_the_file_says_what_is_stored(nested: Path) -> None:
    reader = ffrecord.open(nested)

    assert reader.schema == {
        **{"id": "i64", "age": "i32?", "name": "utf8?", "tokens": "list<i64>"},
        **{"words": "list<utf8?>?", "point": "struct<x: f64?, label: utf8>?"},
        "boxes": "list<struct<at: i16[2], n: u8>>",
    }
    batch = reader.read([0, 2])
    assert batch.columns == tuple(NESTED.column_names)
    assert bytes(batch.stored()["tokens[]:i64"][0]) == np.array([1, 2, 3], "<i8").tobytes()
    assert reader.column("age").tolist() == [7, None, 9, None]
    for name in ("age:valid", "tokens[]:i64", "point{x}"):
        with pytest.raises(KeyError, match="columns: id, age, name, tokens"):
            reader.column(name)
    with pytest.raises(KeyError, match="columns: id, age, name, tokens"):
        batch["token"]


def test_numpy_has_masked_arrays_lists_of_arrays_and_dicts(nested: Path) -> None:
    batch = ffrecord.open(nested).read([0, 1, 2, 3])

    age = batch["age"]
    assert isinstance(age, np.ma.MaskedArray)
    assert age.tolist() == [7, None, 9, None]
    assert age.dtype == np.int32
    assert batch["name"] == ["a", None, "", "ü"]
    assert [each.tolist() for each in batch["tokens"]] == NESTED["tokens"].to_pylist()
    assert batch["tokens"][0].dtype == np.int64
    assert np.shares_memory(batch["tokens"][0], batch["tokens"][3].base)
    assert batch["words"] == NESTED["words"].to_pylist()
    assert batch["point"]["x"].tolist() == [1.5, None, None, 2.0]
    assert batch["point"]["label"] == ["p", None, "q", "r"]
    at = [[box["at"].tolist() for box in boxes] for boxes in batch["boxes"]]
    assert at == [[[1, 2]], [], [[3, 4], [5, 6]], []]

    assert batch[1]["age"] is None
    assert batch[0]["age"] == 7
    assert batch[-1]["point"] == {"x": 2.0, "label": "r"}
    samples = list(batch)
    assert [sample["age"] for sample in samples] == [7, None, 9, None]
    assert [box["n"] for box in samples[2]["boxes"]] == [2, 3]
    assert [sample["id"] for sample in ffrecord.open(nested)] == [1, 2, 3, 4]


def test_slices_selections_and_pickles_keep_what_is_nested(nested: Path) -> None:
    batch = ffrecord.open(nested).read([3, 2, 1, 0])

    for made in (batch[1:3], batch.select([1, 2]), pickle.loads(pickle.dumps(batch))[1:3]):
        assert made.to_arrow().equals(NESTED.take([2, 1]))
        assert made["age"].tolist() == [9, None]
        assert made.only(["tokens", "id"]).to_arrow().column_names == ["tokens", "id"]


def test_the_format_bytes_has_bytes_at_every_depth(tmp_path: Path) -> None:
    table = pa.table({"b": pa.array([[b"x", None], [], None]), "n": pa.array([b"1", None, b""])})
    ffrecord.write_table(table, tmp_path / "b.ffr")
    batch = ffrecord.open(tmp_path / "b.ffr").with_format("bytes").read([0, 1, 2])

    assert batch["b"] == [[b"x", None], [], None]
    assert [sample["n"] for sample in batch] == [b"1", None, b""]
    assert type(batch["b"][0][0]) is bytes


@pytest.mark.parametrize(
    "options", [{}, {"mode": "workers", "num_workers": 1}, {"mode": "threads", "num_workers": 2}]
)
def test_a_loader_makes_tensors_of_nested_columns(nested: Path, options: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    from ffrecord.torch import DataLoader, Dataset, Sampler

    dataset = Dataset(nested)
    sampler = Sampler(dataset, 4, shuffle=False)
    (batch,) = DataLoader(dataset, batch_sampler=sampler, **options)

    assert batch["id"].tolist() == [1, 2, 3, 4]
    assert batch["age"]["valid"].tolist() == [True, False, True, False]
    assert batch["age"]["values"].tolist() == [7, 0, 9, 0]
    assert batch["age"]["values"].dtype == torch.int32
    assert [each.tolist() for each in batch["tokens"]] == NESTED["tokens"].to_pylist()
    ragged = torch.nested.as_nested_tensor(batch["tokens"], layout=torch.jagged)
    assert ragged.values().tolist() == [1, 2, 3, 4, 5, 6]
    assert batch["words"] == NESTED["words"].to_pylist()
    assert batch["point"]["x"]["valid"].tolist() == [True, False, False, True]
    assert [box["at"].tolist() for box in batch["boxes"][2]] == [[3, 4], [5, 6]]
    (table,) = DataLoader(
        dataset.with_format("arrow"), batch_sampler=Sampler(dataset, 4, shuffle=False), **options
    )
    assert table.equals(NESTED)


def test_numbers_alone_still_have_native_threads_and_nested_ones_do_not(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from ffrecord.torch import Dataset
    from ffrecord.torch._native_batches import source_of

    ffrecord.write_table(pa.table({"x": [1, 2]}), tmp_path / "plain.ffr")
    ffrecord.write_table(pa.table({"x": [1, None]}), tmp_path / "nulls.ffr")

    assert source_of(Dataset(tmp_path / "plain.ffr")) is not None
    assert source_of(Dataset(tmp_path / "nulls.ffr")) is None


def test_what_lies_under_a_null_is_not_stored(tmp_path: Path) -> None:
    numbers = pa.array([1, 2, 3, 4, 5, 6])
    mask = pa.array([False, True, False])
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 4, 6], pa.int32()), numbers, mask=mask)
    whole = pa.array([b"aa", b"secret", b"cc"])
    valid = pa.py_buffer(b"\x05")
    some = pa.Array.from_buffers(pa.binary(), 3, [valid, *whole.buffers()[1:]])
    inner = pa.ListArray.from_arrays(pa.array([0, 3], pa.int32()), some)
    table = pa.table({"lists": lists, "some": some, "inner": pa.concat_arrays([inner] * 3)})
    ffrecord.write_table(table, tmp_path / "t.ffr")

    assert ffrecord.read_table(tmp_path / "t.ffr").to_pylist() == table.to_pylist()
    assert b"secret" not in (tmp_path / "t.ffr").read_bytes()
    stored = ffrecord.open(tmp_path / "t.ffr").read([1]).stored()
    assert (stored["lists[]:i64"][0].size, stored["some"][0].size) == (0, 0)


def test_a_null_in_a_tensor_of_a_stream_is_refused_by_name(tmp_path: Path) -> None:
    storage = pa.array([[1.0, None]], pa.list_(pa.float32(), 2))
    kind = pa.fixed_shape_tensor(pa.float32(), (2,))
    stream = pa.table({"t": pa.ExtensionArray.from_storage(kind, storage)}).to_reader()

    with pytest.raises(ValueError, match="column 't' has a null in a list or tensor"):
        ffrecord.write_table(stream, tmp_path / "t.ffr")
    assert not (tmp_path / "t.ffr").exists()


def test_beside_a_file_of_no_table_numbers_are_themselves_and_dates_are_refused(
    tmp_path: Path,
) -> None:
    for name, kind in (("i", pa.int64()), ("t", pa.timestamp("ms"))):
        schema = pa.schema([pa.field(name, kind, nullable=False)])
        ffrecord.write_table(
            pa.table({name: pa.array([1], kind)}, schema=schema), tmp_path / f"{name}1.ffr"
        )
        with ffrecord.Writer(tmp_path / f"{name}2.ffr", {name: "i64"}) as writer:
            writer.write({name: 2})

    assert ffrecord.read_table(tmp_path / "i*.ffr")["i"].to_pylist() == [1, 2]
    said = r"column 't' is timestamp\[ms\] in .*, and without a type of Arrow in .*t2\.ffr"
    with pytest.raises(ValueError, match=said):
        ffrecord.read_table(tmp_path / "t*.ffr")


def test_views_and_several_files_keep_the_types(tmp_path: Path) -> None:
    kind = pa.timestamp("ms")
    first = pa.table({"t": pa.array([1, 2], kind), "l": [[1], [2, 3]]})
    second = pa.table({"t": pa.array([3], kind), "l": [[4]]})
    ffrecord.write_table(first, tmp_path / "a.ffr")
    ffrecord.write_table(second, tmp_path / "b.ffr")
    whole = pa.concat_tables([first, second])

    assert ffrecord.read_table(tmp_path).equals(whole)
    readers = [ffrecord.open(tmp_path / name) for name in ("a.ffr", "b.ffr")]
    joined = ffrecord.concat([readers[0].subset([1, 0]), readers[1]])
    assert joined.read([0, 2, 1]).to_arrow().equals(whole.take([1, 2, 0]))
    assert joined.with_format("arrow")[2].equals(second)
    with ffrecord.open(tmp_path / "a.ffr") as reader:
        batch = reader.read([1])
    assert batch.to_arrow().equals(first.slice(1))  # After the reader is closed.


def test_files_of_different_types_are_not_taken_for_one(tmp_path: Path) -> None:
    ffrecord.write_table(pa.table({"t": pa.array([1], pa.timestamp("ms"))}), tmp_path / "a.ffr")
    ffrecord.write_table(pa.table({"t": pa.array([1], pa.timestamp("ns"))}), tmp_path / "b.ffr")

    said = r"column 't' is timestamp\[ms\] in .*a\.ffr, and timestamp\[ns\] in .*b\.ffr"
    with pytest.raises(ValueError, match=said):
        ffrecord.read_table(tmp_path)
    joined = ffrecord.concat(
        [ffrecord.open(tmp_path / name).subset([0]) for name in ("a.ffr", "b.ffr")]
    )
    with pytest.raises(ValueError, match=r"column 't' is timestamp\[ms\] in .*Subset"):
        len(joined)


def test_a_writer_takes_tables_and_rows_of_one_schema(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("name", pa.string(), False), ("x", pa.list_(pa.float32()))])
    table = pa.table({"name": ["a", "b"], "x": [[1.0], None]}, schema=schema)
    with ffrecord.Writer(tmp_path / "t.ffr", schema, key="name") as writer:
        writer.write_table(table)
        writer.write({"name": "c", "x": [2.0, 3.0]})
        for batch in table.slice(0, 0).to_batches():
            writer.write_table(batch)
        with pytest.raises(ValueError, match="unknown: y"):
            writer.write({"name": "d", "y": 1})
        with pytest.raises(ValueError, match=r"use table\.cast"):
            writer.write_table(table.select(["name"]))
        with pytest.raises(TypeError, match="no table"):
            writer.write_table([1])
    reader = ffrecord.open(tmp_path / "t.ffr")

    assert reader.find("c") == 2
    assert ffrecord.read_table(tmp_path / "t.ffr").to_pylist() == [
        {"name": "a", "x": [1.0]},
        {"name": "b", "x": None},
        {"name": "c", "x": [2.0, 3.0]},
    ]
    with (
        pytest.raises(TypeError, match=r"Writer\(path, table\.schema\)"),
        ffrecord.Writer(tmp_path / "other.ffr", {"x": "i64"}) as writer,
    ):
        writer.write_table(table)
    assert not (tmp_path / "other.ffr").exists()


def test_an_append_adds_rows_of_the_same_types_only(tmp_path: Path) -> None:
    path = tmp_path / "t.ffr"
    first = pa.table({"t": pa.array([1, None], pa.timestamp("us")), "l": [[1], []]})
    ffrecord.write_table(first, path)
    more = pa.table({"t": pa.array([3], pa.timestamp("us")), "l": [[7, 8]]})

    ffrecord.write_table(more, path, append=True)
    with ffrecord.Writer(path, append=True, metadata={"note": b"x"}):
        pass  # Other metadata do not take the types away.

    assert ffrecord.read_table(path).equals(pa.concat_tables([first, more]))
    with pytest.raises(ValueError, match="not written from a table of these types"):
        ffrecord.write_table(
            more.cast(pa.schema({"t": pa.int64(), "l": pa.list_(pa.int64())})), path, append=True
        )
    nulls = pa.table({"t": pa.array([3], pa.timestamp("us")), "l": [None]}, schema=more.schema)
    ffrecord.write_table(nulls, path, append=True)
    assert ffrecord.read_table(path).equals(pa.concat_tables([first, more, nulls]))


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (lambda: pa.nulls(1), "column 'c' is null, which records cannot hold"),
        (lambda: pa.array([[None]]), r"column 'c\[\]' is null"),
        (lambda: pa.array([{"a": {}}]), r"column 'c\{a\}' is struct<>"),
        (lambda: pa.array([{"a}": 1}]), "column 'c' cannot be stored under its name"),
        (lambda: pa.array([{"": 1}]), "column 'c' cannot be stored under its name"),
    ],
)
def test_what_records_cannot_hold_is_refused_by_name(
    column: Callable[[], Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=said):
        ffrecord.write_table(pa.table({"c": column()}), tmp_path / "t.ffr")
    assert not (tmp_path / "t.ffr").exists()


@pytest.mark.parametrize(
    "table",
    [
        {"x": [1, None], "x:valid": [True, False]},
        {"s{a}": [1], "t": [[1]]},
        {"x[]:i64": [b"12345678"]},
        {"x{": [None, 1]},
    ],
)
def test_names_that_mean_something_else_are_refused(table: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"column|rename"):
        ffrecord.write_table(pa.table(table), tmp_path / "t.ffr")


def test_names_with_marks_that_mean_nothing_are_kept(tmp_path: Path) -> None:
    table = pa.table({"a:b": [1, None], "c[]": [1, 2], "d:i64": ["x", "y"], "e.f": [[1], [2]]})
    ffrecord.write_table(table, tmp_path / "t.ffr")

    assert ffrecord.read_table(tmp_path / "t.ffr").equals(table)
    with ffrecord.Writer(tmp_path / "own.ffr", {"l[]:i64": "utf8", "m:valid": "bool"}) as writer:
        writer.write({"l[]:i64": "text", "m:valid": True})
    assert ffrecord.open(tmp_path / "own.ffr")[0] == {"l[]:i64": "text", "m:valid": True}


def test_parts_that_do_not_fit_are_damage(tmp_path: Path) -> None:
    schema = {"w[]:lengths": "bytes", "w[]:utf8": "bytes", "n[]:i32": "bytes"}
    good = {"w[]:lengths": b"\x02\0\0\0", "w[]:utf8": b"ab", "n[]:i32": b"1234"}
    bad: list[dict[str, bytes]] = [
        {**good, "w[]:lengths": b"\x03\0\0\0"},
        {**good, "w[]:lengths": b"\x02\0\0"},
        {**good, "n[]:i32": b"12345"},
        {**good, "w[]:lengths": b"\xff\xff\xff\xff"},
    ]
    with ffrecord.Writer(tmp_path / "t.ffr", schema) as writer:
        for record in (good, *bad, {**good, "w[]:utf8": b"\xff\xff"}):
            writer.write(record)
    reader = ffrecord.open(tmp_path / "t.ffr")

    assert reader[0]["w"] == ["ab"]
    for index in range(1, 1 + len(bad)):
        with pytest.raises(ffrecord.CorruptionError, match="does not fit"):
            reader[index]
    for made in (lambda: reader[5], lambda: reader.read([5]).to_arrow()):
        with pytest.raises(ffrecord.CorruptionError, match="column 'w'"):
            made()


def test_a_schema_of_arrow_that_is_none_is_damage_of_tables_alone(tmp_path: Path) -> None:
    metadata = {"ARROW:schema": b"nonsense"}
    with ffrecord.Writer(tmp_path / "t.ffr", {"x": "i64"}, metadata=metadata) as writer:
        writer.write({"x": 1})
    reader = ffrecord.open(tmp_path / "t.ffr")

    assert reader[0]["x"] == 1
    with pytest.raises(ffrecord.CorruptionError, match="ARROW:schema"):
        reader.read([0]).to_arrow()


def test_a_schema_of_arrow_of_other_columns_is_not_believed(tmp_path: Path) -> None:
    stored = pa.schema({"x": pa.string(), "y": pa.list_(pa.int8())}).serialize().to_pybytes()
    with ffrecord.Writer(
        tmp_path / "t.ffr", {"x": "i64", "y": "f32[2]"}, metadata={"ARROW:schema": stored}
    ) as writer:
        writer.write({"x": 1, "y": [1, 2]})

    table = ffrecord.read_table(tmp_path / "t.ffr")
    assert table["x"].type == pa.int64()
    assert table["y"].type == pa.fixed_shape_tensor(pa.float32(), (2,))


def test_tables_are_packed_into_parts_and_repacked(tmp_path: Path) -> None:
    table = random_table(7, rows=60)

    summary = pack(TableSource(table), tmp_path / "parts", part_size_bytes=500)
    pack(ffrecord.pack.open_source(tmp_path / "parts"), tmp_path / "again.ffr")

    assert summary.file_count > 1
    large = pa.table({"b": [b"x" * 1000] * 4})
    assert pack(TableSource(large), tmp_path / "large", part_size_bytes=1000).file_count == 4
    assert ffrecord.read_table(tmp_path / "parts").to_pylist() == table.to_pylist()
    assert ffrecord.read_table(tmp_path / "again.ffr").to_pylist() == table.to_pylist()


def test_tensors_of_arrow_are_arrays_of_their_shape(tmp_path: Path) -> None:
    values = np.arange(24, dtype="f4").reshape(4, 2, 3)
    table = pa.table({"t": pa.FixedShapeTensorArray.from_numpy_ndarray(values)})
    ffrecord.write_table(table.to_reader(), tmp_path / "t.ffr")

    reader = ffrecord.open(tmp_path / "t.ffr")
    assert reader.schema == {"t": "f32[2,3]"}
    np.testing.assert_array_equal(reader.read(range(4))["t"], values)
    assert reader.read(range(4)).to_arrow().equals(table)


class Celsius(pa.ExtensionType):  # type: ignore[misc, name-defined]
    """As the documentation of pyarrow says to write one; it has no hash."""

    def __init__(self) -> None:
        super().__init__(pa.float32(), "test.celsius")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: Any, serialized: bytes) -> "Celsius":  # noqa: ANN401
        return cls()


@pytest.fixture
def celsius() -> Iterator[Celsius]:
    pa.register_extension_type(Celsius())
    yield Celsius()
    pa.unregister_extension_type("test.celsius")


@pytest.mark.parametrize("streams", [False, True])
def test_extension_types_of_users_are_kept_at_every_depth(
    celsius: Celsius, streams: bool, tmp_path: Path
) -> None:
    values = pa.ExtensionArray.from_storage(celsius, pa.array([1.5, None, -2.0], pa.float32()))
    table = pa.table(
        {
            "plain": values,
            "list": pa.ListArray.from_arrays(pa.array([0, 1, None, 3], pa.int32()), values),
            "none": pa.nulls(3, pa.list_(celsius)),
            "deep": pa.nulls(3, pa.large_list(pa.list_(celsius, 2))),
            "struct": pa.StructArray.from_arrays([values], ["x"]),
            "code": pa.DictionaryArray.from_arrays(pa.array([2, 0, None], pa.int8()), values),
        }
    )
    columns = table.drop_columns(["code"])
    path = tmp_path / "t.ffr"

    ffrecord.write_table(columns.to_reader() if streams else columns, path)

    found = ffrecord.read_table(path)
    assert found.schema == columns.schema
    assert found.equals(columns)
    assert ffrecord.open(path).read([2, 0]).to_arrow().equals(columns.take([2, 0]))
    with pytest.raises(ValueError, match=r"column 'code' is .*no dictionaries of such values"):
        ffrecord.write_table(table, tmp_path / "code.ffr")


def test_whole_numbers_are_read_without_a_copy(tmp_path: Path) -> None:
    table = pa.table({"t": pa.array(range(50), pa.timestamp("us"))})
    ffrecord.write_table(table, tmp_path / "t.ffr")
    batch = ffrecord.open(tmp_path / "t.ffr").read(range(50))

    found = batch.to_arrow()["t"].chunk(0).buffers()[1]
    assert found.address == batch["t"].ctypes.data


def test_a_daemon_serves_tables_and_draws_by_weight(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from ffrecord.torch import DataLoader, Dataset, Sampler

    ffrecord.write_table(NESTED, tmp_path / "nested.ffr")
    (tmp_path / "daemon").mkdir()
    with Daemon(tmp_path / "daemon") as daemon:
        ffrecord.publish(tmp_path / "nested.ffr", daemon.address("nested"))
        found = ffrecord.read_table(daemon.address("nested"))
        dataset = Dataset(daemon.address("nested"))
        sampler = Sampler(dataset, 2, weights=[0, 1, 1, 0])
        names = [
            name for batch in DataLoader(dataset, batch_sampler=sampler) for name in batch["name"]
        ]

    assert found.equals(NESTED)
    assert len(names) == 4
    assert set(names) <= {None, ""}
