"""Goal: commands show and find dates, times and decimals by what they mean, at every depth.

Method: tables with such values, alone and in lists, structs and maps, with ones that Python's own
types cannot hold (nanoseconds, years beyond 9999), are shown, exported and searched.
"""

import json
from pathlib import Path
from typing import Any

import pytest

import ffrecord
from cli import ok, run

pytestmark = pytest.mark.wrong_data

pa = pytest.importorskip("pyarrow")

# A type, a stored integer, and the text that stands for it.
LEAVES = {
    "nanoseconds": (pa.timestamp("ns"), 1, "1970-01-01 00:00:00.000000001"),
    "zone": (pa.timestamp("ns", "UTC"), 1, "1970-01-01 00:00:00.000000001Z"),
    "far": (pa.timestamp("s"), 1 << 39, "19391-01-25 12:18:08"),
    "clock": (pa.time64("ns"), 1, "00:00:00.000000001"),
    "day": (pa.date32(), 10**7, "29349-01-26"),
    "span": (pa.duration("ns"), 1, "1"),
    "coded": (pa.dictionary(pa.int32(), pa.timestamp("ns")), 1, "1970-01-01 00:00:00.000000001"),
}


def nested(leaf: Any, place: str) -> Any:  # noqa: ANN401 - pyarrow has no types
    """Two rows: the value of `leaf` in that place, and null."""
    if place == "column":
        return pa.concat_arrays([leaf, pa.nulls(1, leaf.type)])
    if place == "list":
        return pa.ListArray.from_arrays(pa.array([0, None, 1], pa.int32()), leaf)
    if place == "map":
        return pa.MapArray.from_arrays(pa.array([0, None, 1], pa.int32()), ["k"], leaf)
    both = pa.concat_arrays([leaf, pa.nulls(1, leaf.type)])
    return pa.StructArray.from_arrays([both], ["a"], mask=pa.array([False, True]))


def in_place(text: str, place: str) -> Any:  # noqa: ANN401
    forms = {"list": [text], "map": [{"key": "k", "value": text}], "struct": {"a": text}}
    return forms.get(place, text)


@pytest.mark.parametrize("place", ["column", "list", "struct", "map"])
def test_a_value_that_python_has_none_for_is_shown(place: str, tmp_path: Path) -> None:
    path, columns, expected = tmp_path / "t.ffr", {}, {}
    for name, (kind, number, text) in LEAVES.items():
        is_coded = pa.types.is_dictionary(kind)
        leaf = pa.array([number], kind.value_type if is_coded else kind)
        columns[name] = nested(leaf.dictionary_encode() if is_coded else leaf, place)
        expected[name] = in_place(text, place)
    ffrecord.write_table(pa.table(columns), path)

    shown = ok("ffrecord", "head", path, "--json").splitlines()
    ok("ffrecord", "export", path, tmp_path / "t.jsonl")
    ok("ffrecord", "view", path, "--output", tmp_path / "t.html")

    exported = (tmp_path / "t.jsonl").read_text().splitlines()
    for lines in (shown, exported):
        records = [json.loads(line)["record"] for line in lines]
        assert records == [expected, dict.fromkeys(LEAVES)]


SPELLINGS = [
    (pa.timestamp("us"), 0, ["1970-01-01", "1970-01-01 00:00:00", "1970-01-01T00:00:00.000"]),
    (pa.timestamp("us", "UTC"), 0, ["1970-01-01T00:00:00Z", "1970-01-01 01:00:00+01:00"]),
    (pa.time32("s"), 60, ["00:01", "00:01:00"]),
    (pa.date32(), 0, ["1970-01-01"]),
    (pa.duration("ns"), 7, ["7", "07"]),
    (pa.decimal128(10, 2), 3, ["3", "3.0", "3.00"]),
]


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [(kind, value, text) for kind, value, texts in SPELLINGS for text in texts],
)
def test_a_search_finds_a_value_however_it_is_written(
    kind: Any,  # noqa: ANN401
    value: int,
    text: str,
    tmp_path: Path,
) -> None:
    path = tmp_path / "t.ffr"
    ffrecord.write_table(pa.table({"v": pa.array([value + 1, None, value], kind)}), path)

    found = ok("ffrecord", "find", path, "--where", f"v={text}", "--json").splitlines()

    assert [json.loads(line)["index"] for line in found] == [2]


@pytest.mark.parametrize("kind", [kind for kind, _, _ in SPELLINGS])
def test_what_is_no_value_of_the_type_is_an_error(kind: Any, tmp_path: Path) -> None:  # noqa: ANN401
    path = tmp_path / "t.ffr"
    ffrecord.write_table(pa.table({"v": pa.array([1], kind)}), path)

    done = run("ffrecord", "find", path, "--where", "v=none")

    assert done.returncode == 2
    assert f"--where v=none: the column is {kind}" in done.stderr


def test_lists_of_times_are_no_single_values(tmp_path: Path) -> None:
    path = tmp_path / "t.ffr"
    ffrecord.write_table(pa.table({"v": pa.array([[1]], pa.list_(pa.timestamp("s")))}), path)

    done = run("ffrecord", "find", path, "--where", "v=1970-01-01")

    assert done.returncode == 2
    assert "--where compares single values" in done.stderr
