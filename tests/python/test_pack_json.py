"""Goal: JSON lines become typed columns with each value as it was, or are refused by line.

Method: columns of every shape that JSON has, compared with what Python's parser reads; values that
pyarrow's parser would change without a word; lines that differ late, or are no objects.
"""

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest

import ffrecord
from cli import ok, run
from ffrecord.pack import SourceOptions, _jsonl, open_source, pack
from packing import refused

pytestmark = pytest.mark.wrong_data

pytest.importorskip("pyarrow")

# Rows of a column, and how readers show its type.
COLUMNS: dict[str, tuple[list[Any], str]] = {
    "integers": ([1, -(1 << 63), (1 << 63) - 1], "i64"),
    "large": ([(1 << 64) - 1, 0, 1 << 63], "u64"),
    "floats": ([1.5, 1e300, -0.0], "f64"),
    "mixed": ([1, 2.5, 1 << 53], "f64"),
    "bools": ([True, False, True], "bool"),
    "texts": (["grün", "", "\0 \u2028"], "utf8"),
    "dates": (["2020-01-01", "2020-01-01 00:00:01", "1e5"], "utf8"),
    "lists": ([[1, 2], [], [3]], "list<i64?>"),
    "empty": ([[], [], []], "list<utf8?>"),
    "nested": ([[[1], []], [], [[2, 3]]], "list<list<i64?>?>"),
    "objects": ([{"a": 1, "b": {"c": "x"}}] * 3, "struct<a: i64?, b: struct<c: utf8?>?>"),
    "chats": ([[{"role": "a", "text": "x"}], [], [{"role": "b", "text": "y"}]], ""),
    "missing": ([None, 5, None], "i64?"),
    "nothing": ([None, None, None], "utf8?"),
}


def write(path: Path, rows: list[Any]) -> Path:
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


@pytest.mark.parametrize("suffix", [".jsonl", ".ndjson.gz"])
@pytest.mark.parametrize("name", COLUMNS)
def test_each_value_comes_back(name: str, suffix: str, tmp_path: Path) -> None:
    values, spelling = COLUMNS[name]
    rows = [{"id": i, name: value} for i, value in enumerate(values)]
    source = write(tmp_path / f"a{suffix}", rows)

    ok("ffrecord-pack", source, tmp_path / "x.ffr")
    ok("ffrecord", "export", tmp_path / "x.ffr", tmp_path / "o.jsonl", "--plain")

    assert ffrecord.read_table(tmp_path / "x.ffr").to_pylist() == rows
    lines = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    assert lines == rows
    ok("ffrecord-pack", tmp_path / "o.jsonl", tmp_path / "again.ffr")
    again = ffrecord.read_table(tmp_path / "again.ffr")
    assert again.equals(ffrecord.read_table(tmp_path / "x.ffr"))
    (column,) = (c for c in ffrecord.open(tmp_path / "x.ffr").columns if c.name == name)
    if spelling:
        assert column.spelling.replace("?", "") == spelling.replace("?", "")


@pytest.mark.parametrize("seed", range(12))
def test_random_lines_are_what_python_reads(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In blocks of any size, with fields that begin late, in any order."""
    chance = random.Random(seed)
    monkeypatch.setattr(_jsonl, "_BLOCK_BYTES", chance.choice([1, 64, 4096]))
    rows = []
    for number in range(300):
        row = {name: chance.choice(COLUMNS[name][0]) for name in COLUMNS if chance.random() < 0.7}
        items = [*row.items(), ("id", number)]
        chance.shuffle(items)
        rows.append(dict(items))

    pack(write(tmp_path / "a.jsonl", rows), tmp_path / "x.ffr")

    table = ffrecord.read_table(tmp_path / "x.ffr")
    whole = [{name: row.get(name) for name in table.column_names} for row in rows]
    assert table.to_pylist() == whole


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"a": "x"}', "the column 'a' was int before, and is text"),
        ('{"a": 1.5, "b": 9007199254740993}', "which no float is exactly"),
        ('{"a": [1]}', "the column 'a' was int before, and is list"),
        ('{"a": 1, "n": [1, "x"]}', "'n[]' was int before, and is text"),
        ('{"a": 1, "n": {"m": 1}}', "'n' was list before, and is object"),
        ('{"a": 18446744073709551616}', "the integer 18446744073709551616"),
        ('{"a": 1, "a": 2}', "the key 'a' is there twice"),
        ('{"a": 1, "o": {"k": 1, "k": 1}}', "the key 'k' is there twice"),
        ('{"a": "\\ud800"}', "half of a character"),
        ("[1]", "[1] is no object"),
        ("null", "None is no object"),
        ("{} {}", "not JSON"),
        ('{"a": 1}}', "not JSON"),
        ("{'a': 1}", "not JSON"),
        ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "JSON is nested more deeply"),
        ('{"a": 1, "d": ' + "[" * 40 + "]" * 40 + "}", "is nested more than 30 deep"),
    ],
)
def test_a_late_line_of_another_kind_is_refused_by_its_number(
    line: str, said: str, tmp_path: Path
) -> None:
    lines = ['{"a": 1, "b": 1.5, "n": [1]}'] * 3000
    lines[2000] = line
    (tmp_path / "a.jsonl").write_text("\n".join(lines))

    message = refused(2, tmp_path / "a.jsonl", tmp_path / "x.ffr")

    assert "a.jsonl, line 2001: " in message
    assert said in message


def test_what_is_refused_is_packed_as_the_message_says(tmp_path: Path) -> None:
    rows: list[Any] = [{"a": 1, "b": "x", "e": {}}, {"a": "y", "b": "z", "e": {}}]
    source = write(tmp_path / "a.jsonl", rows)
    message = refused(2, source, tmp_path / "x.ffr")
    assert "--drop" in message and "--raw" in message

    assert "'e' has empty objects only" in refused(2, source, tmp_path / "x.ffr", "--drop", "a")
    ok("ffrecord-pack", source, tmp_path / "x.ffr", "--drop", "a", "--drop", "e")
    ok("ffrecord-pack", source, tmp_path / "y.ffr", "--column", "b")
    ok("ffrecord-pack", source, tmp_path / "z.ffr", "--raw")

    for name in ("x", "y"):
        assert [dict(s) for s in ffrecord.open(tmp_path / f"{name}.ffr")] == [
            {"b": "x"},
            {"b": "z"},
        ]
    lines = [json.loads(bytes(each["payload"])) for each in ffrecord.open(tmp_path / "z.ffr")]
    assert lines == rows


def test_columns_are_those_of_all_files(tmp_path: Path) -> None:
    rows: list[list[Any]] = [[{"a": 1}, {"a": 2}], [{"a": 2.5, "b": "x"}], [{"c": [1], "b": None}]]
    paths = [write(tmp_path / f"{i}.jsonl", each) for i, each in enumerate(rows)]

    pack(paths, tmp_path / "x.ffr")
    pack(paths, tmp_path / "parts", workers=2, part_size_bytes=1)

    whole = [{"a": None, "b": None, "c": None} | row for each in rows for row in each]
    for place in ("x.ffr", "parts"):
        assert ffrecord.read_table(tmp_path / place).to_pylist() == whole
    write(tmp_path / "2.jsonl", [{"a": "text"}])
    message = refused(2, *paths, tmp_path / "y.ffr")
    assert "2.jsonl, line 1: the column 'a' was float before, and is text" in message


def test_a_cast_decides_the_type(tmp_path: Path) -> None:
    rows = [{"n": 1, "at": "2020-01-01 00:00:00"}, {"n": 2, "at": None}]
    source = write(tmp_path / "a.jsonl", rows)

    options = SourceOptions(cast=(("n", "i8"), ("at", "timestamp[s]")))
    pack(open_source(source, options), tmp_path / "x.ffr")
    pack(open_source(source, options), tmp_path / "parts", workers=2)

    for place in ("x.ffr", "parts"):
        table = ffrecord.read_table(tmp_path / place)
        assert [str(field.type) for field in table.schema] == ["int8", "timestamp[s]"]
        assert table["at"].to_pylist()[1] is None


def test_blank_lines_are_counted_and_windows_ends_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"a": "x"}\r\n\r\n \t\n {"a": "y\\r"} \r\n')

    line = ok("ffrecord-pack", tmp_path / "a.jsonl", tmp_path / "x.ffr")

    assert "skipped 2 blank lines" in line
    assert ffrecord.read_table(tmp_path / "x.ffr").to_pylist() == [{"a": "x"}, {"a": "y\r"}]


def test_text_that_is_not_utf8_is_refused_by_line(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"a": "x"}\n{"a": "\xff"}\n')

    assert "a.jsonl, line 2: not JSON" in refused(2, tmp_path / "a.jsonl", tmp_path / "x.ffr")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"a": 1e400}', "1e400 is too large"),
        ('{"a": [0.5, -1e999]}', "-1e999 is too large"),
        ('{"\\ud800": 1}', "half of a character"),
    ],
)
def test_what_no_column_holds_is_refused_by_line(line: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(f'{{"b": 1}}\n{line}\n')

    message = refused(2, tmp_path / "a.jsonl", tmp_path / "x.ffr")

    assert "a.jsonl, line 2: " in message and said in message


def test_names_that_are_values_are_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", [{"o": {f"user {i}": i}} for i in range(5000)])

    message = refused(2, source, tmp_path / "x.ffr")

    assert f"{source}: schema: 10001 columns; at most 1024 are allowed" in message
    assert "--drop" in message


def test_plain_lines_lose_no_key(tmp_path: Path) -> None:
    with ffrecord.Writer(tmp_path / "k.ffr", {"a": "i64"}, key=True) as writer:
        writer.write({"a": 1}, key=b"one")
    with ffrecord.Writer(tmp_path / "b.ffr") as writer:
        writer.write(b"no columns")

    for name, said in (("k", "the keys of the records are no column"), ("b", "no columns")):
        done = run("ffrecord", "export", tmp_path / f"{name}.ffr", tmp_path / "o.jsonl", "--plain")
        assert done.returncode == 2
        assert said in done.stderr
    assert not (tmp_path / "o.jsonl").exists()
