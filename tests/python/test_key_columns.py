"""Goal: the column that is the key of a file stays the key, and a key is never empty by accident.

Method: each command that makes files of files, on files with a key column, with keys given apart,
and with records that have none; an append to the result shows what the file remembers. Rows and
tables with an empty value, and with null, in the key column.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ffrecord
from cli import ok, run
from ffrecord._read.key_origin import key_origin

pa = pytest.importorskip("pyarrow")

SCHEMA = {"id": "utf8", "x": "i64"}
NULLABLE = pa.schema([("id", pa.string()), ("x", pa.int64())])
Rewrite = Callable[[Path, Path], Path]


def merged(source: Path, folder: Path) -> Path:
    ok("ffrecord", "merge", source, folder / "out.ffr")
    return folder / "out.ffr"


def shuffled(source: Path, folder: Path) -> Path:
    ok("ffrecord", "shuffle", source, folder / "out.ffr", "--seed", "3")
    return folder / "out.ffr"


def a_part(source: Path, folder: Path) -> Path:
    ok("ffrecord", "split", source, folder / "parts", "--parts", "2")
    return folder / "parts" / "PART_00000.ffr"


def packed(source: Path, folder: Path) -> Path:
    ok("ffrecord-pack", source, folder / "out.ffr")
    return folder / "out.ffr"


def repaired(source: Path, folder: Path) -> Path:
    run("ffrecord", "repair", source, folder / "out.ffr")
    return folder / "out.ffr"


REWRITES = [merged, shuffled, a_part, packed, repaired]


def write(path: Path, ids: list[str | None], schema: Any, key: Any) -> Path:  # noqa: ANN401
    with ffrecord.Writer(path, schema, key=key) as writer:
        for x, value in enumerate(ids):
            given = value if key is True else None
            writer.write({"id": value or ("" if key is True else None), "x": x}, key=given)
    return path


@pytest.mark.parametrize("rewrite", REWRITES)
@pytest.mark.parametrize("ids", [["a", "b"], [None, "b"], [None, None]], ids=str)
def test_files_of_files_remember_the_key_column(
    tmp_path: Path, rewrite: Rewrite, ids: list[str | None]
) -> None:
    schema = NULLABLE if None in ids else SCHEMA
    path = rewrite(write(tmp_path / "a.ffr", ids, schema, "id"), tmp_path)

    with ffrecord.Writer(path, append=True) as writer:
        writer.write({"id": "new", "x": 9})

    with ffrecord.open(path) as reader:
        assert reader.find("new") == len(reader) - 1
        assert key_origin(reader).key == "id"
        for sample in reader:
            if sample["id"] is not None:
                assert int(reader[reader.find(sample["id"])]["x"]) == int(sample["x"])


@pytest.mark.parametrize("rewrite", REWRITES)
@pytest.mark.parametrize("ids", [["a", "b"], [None, "b"], [None, None]], ids=str)
def test_files_of_files_with_keys_given_apart_are_given_keys(
    tmp_path: Path, rewrite: Rewrite, ids: list[str | None]
) -> None:
    path = rewrite(write(tmp_path / "a.ffr", ids, SCHEMA, True), tmp_path)

    with ffrecord.Writer(path, append=True) as writer:
        writer.write({"id": "id", "x": 9}, key="new")

    with ffrecord.open(path) as reader:
        assert reader.find_all(["new", "id"]) == [len(reader) - 1, None]
        for key in filter(None, ids[: len(reader) - 1] if rewrite is a_part else ids):
            assert reader.find(key) is not None


@pytest.mark.parametrize(("schema", "key"), [(NULLABLE, "id"), (SCHEMA, True)])
def test_parts_of_which_one_has_no_key_are_merged(
    tmp_path: Path,
    schema: Any,  # noqa: ANN401
    key: Any,  # noqa: ANN401
) -> None:
    source = write(tmp_path / "a.ffr", ["a", "b", None, None, "c"], schema, key)
    ok("ffrecord", "split", source, tmp_path / "parts", "--part-records", "2")

    ok("ffrecord", "merge", tmp_path / "parts", tmp_path / "merged.ffr")
    ok("ffrecord-pack", tmp_path / "parts", tmp_path / "packed.ffr")
    ok("ffrecord-pack", *sorted((tmp_path / "parts").glob("*.ffr")), tmp_path / "several.ffr")

    for name in ("merged", "packed", "several"):
        with ffrecord.open(tmp_path / f"{name}.ffr") as reader:
            assert reader.find_all(["a", "b", "c", "d"]) == [0, 1, 4, None]
            assert key_origin(reader).key == key


def test_files_whose_keys_were_given_in_two_ways_keep_all_of_them(tmp_path: Path) -> None:
    one = write(tmp_path / "1.ffr", ["a"], SCHEMA, "id")
    two = write(tmp_path / "2.ffr", ["b"], SCHEMA, True)

    ok("ffrecord", "merge", one, two, tmp_path / "out.ffr")

    with ffrecord.open(tmp_path / "out.ffr") as reader:
        assert reader.find_all(["a", "b"]) == [0, 1]
        assert key_origin(reader).key is True


def test_a_pack_without_the_key_column_keeps_its_values_as_keys(tmp_path: Path) -> None:
    source = write(tmp_path / "a.ffr", ["a", "b"], SCHEMA, "id")

    ok("ffrecord-pack", source, tmp_path / "out.ffr", "--column", "x")

    with ffrecord.open(tmp_path / "out.ffr") as reader:
        assert [name for name in reader.logical.names] == ["x"]
        assert reader.find_all(["a", "b"]) == [0, 1]


@pytest.mark.parametrize("kind", [pa.string(), pa.binary(), pa.large_string()], ids=str)
@pytest.mark.parametrize("nullable", [True, False])
def test_an_empty_key_is_refused_by_row_and_column(
    tmp_path: Path,
    kind: Any,  # noqa: ANN401
    nullable: bool,
) -> None:
    schema = pa.schema([pa.field("id", kind, nullable=nullable), ("x", pa.int64())])
    empty: str | bytes = b"" if kind == pa.binary() else ""
    first: str | bytes = b"a" if kind == pa.binary() else "a"
    table = pa.table({"id": pa.array([first, empty], kind), "x": [1, 2]}, schema)
    message = "row 1: column 'id': the value is empty, and the column is the key"

    with ffrecord.Writer(tmp_path / "rows.ffr", schema, key="id") as writer:
        writer.write({"id": first, "x": 1})
        with pytest.raises(ValueError, match=message):
            writer.write({"id": empty, "x": 2})
    with ffrecord.Writer(tmp_path / "table.ffr", schema, key="id") as writer:
        with pytest.raises(ValueError, match=message):
            writer.write_table(table)
        writer.write({"id": first, "x": 1})

    for name in ("rows.ffr", "table.ffr"):
        with ffrecord.open(tmp_path / name) as reader:
            assert len(reader) == 1
            assert reader.find(first) == 0


@pytest.mark.parametrize("kind", ["utf8", "bytes"])
def test_an_empty_key_of_a_plain_schema_is_refused(tmp_path: Path, kind: str) -> None:
    message = "row 0: column 'id': the value is empty"
    with (
        pytest.raises(ValueError, match=message),
        ffrecord.Writer(tmp_path / "a.ffr", {"id": kind}, key="id") as writer,
    ):
        writer.write({"id": "" if kind == "utf8" else b""})
    assert not (tmp_path / "a.ffr").exists()


def test_null_in_the_key_column_is_no_key(tmp_path: Path) -> None:
    table = pa.table({"id": [None, "a"], "x": [1, 2]}, NULLABLE)
    with ffrecord.Writer(tmp_path / "a.ffr", NULLABLE, key="id") as writer:
        writer.write_table(table)
        writer.write({"id": None, "x": 3})

    with ffrecord.open(tmp_path / "a.ffr") as reader:
        assert [sample["id"] for sample in reader] == [None, "a", None]
        assert reader.find("a") == 1


@pytest.mark.parametrize("rewrite", REWRITES)
def test_files_of_earlier_versions_with_empty_keys_are_taken_as_they_are(
    tmp_path: Path, rewrite: Rewrite
) -> None:
    with ffrecord.Writer(tmp_path / "a.ffr", SCHEMA, key="id") as writer:
        writer._allow_empty_keys()  # They wrote no key then.
        writer.write({"id": "", "x": 0})
        writer.write({"id": "a", "x": 1})

    with ffrecord.open(rewrite(tmp_path / "a.ffr", tmp_path)) as reader:
        assert key_origin(reader).key == "id"
        assert sorted(sample["id"] for sample in reader) in (["", "a"], [""])
