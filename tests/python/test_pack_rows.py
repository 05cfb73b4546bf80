"""Goal: rows that a program has or makes become records, with the columns that they have.

Method: lists, generators, functions and other iterables of dicts and of bytes, compared with what
they hold; and iterables that are no rows, whose errors say what is wrong and in which row.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

import ffrecord
from ffrecord.pack import pack
from packing import records

pytestmark = pytest.mark.wrong_data

pa = pytest.importorskip("pyarrow")

ROWS = [
    {"id": number, "text": f"grün {number}", "box": np.arange(3, dtype="f4") + number}
    for number in range(200)
]
WANTED = [{**row, "box": row["box"].tolist()} for row in ROWS]


class MapStyle:
    """A dataset as torch's: it has a length and items, and no iterator."""

    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, number: int) -> Any:  # noqa: ANN401
        return ROWS[number]


def generator() -> Iterator[Any]:
    yield from ROWS


SOURCES: dict[str, Callable[[], Any]] = {
    "a list": lambda: ROWS,
    "a tuple": lambda: tuple(ROWS),
    "a generator": generator,
    "a function": lambda: generator,
    "a dataset": MapStyle,
}


@pytest.mark.parametrize("name", ["all.ffr", "parts"])
@pytest.mark.parametrize("source", SOURCES)
def test_rows_become_records(source: str, name: str, tmp_path: Path) -> None:
    summary = pack(SOURCES[source](), tmp_path / name, part_size_bytes=1000)

    assert records(tmp_path / name) == WANTED
    assert ffrecord.open(tmp_path / name).schema == {"id": "i64", "text": "utf8", "box": "f32[3]"}
    assert summary.record_count == 200
    assert (summary.file_count > 3) == (name == "parts")


class Reused:
    """A source that yields one object again and again, with other values in it."""

    schema = MappingProxyType({"id": "i64", "box": "i32[2]", "data": "bytes"})

    def samples(self) -> Iterator[Any]:
        """Yield the rows."""
        yield from ((row, 0) for row in self.rows())

    @staticmethod
    def rows() -> Iterator[Any]:
        """Yield one dict with one array and one bytearray."""
        box, data = np.zeros(2, "i4"), bytearray(2)
        row: dict[str, Any] = {}
        for number in range(200):
            box[:] = number
            data[0] = number
            row.update(id=number, box=box, data=data)
            yield row


@pytest.mark.parametrize("has_map", [False, True])
@pytest.mark.parametrize("source", [Reused.rows, Reused()])
def test_a_program_may_use_a_row_and_its_arrays_again(
    source: Any,  # noqa: ANN401
    has_map: bool,
    tmp_path: Path,
) -> None:
    pack(source, tmp_path / "x.ffr", map=same if has_map else None)

    found = records(tmp_path / "x.ffr")
    assert [row["id"] for row in found] == list(range(200))
    assert [row["box"] for row in found] == [[number, number] for number in range(200)]
    assert [bytes(row["data"]) for row in found] == [bytes([n, 0]) for n in range(200)]


class OnlyAnArray:
    """A value that shows numbers, and cannot be copied."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:  # noqa: ANN401
        return np.arange(2)

    def __deepcopy__(self, memo: Any) -> Any:  # noqa: ANN401
        raise TypeError("it cannot be copied")


def test_a_value_need_not_be_one_that_can_be_copied(tmp_path: Path) -> None:
    pack([{"x": OnlyAnArray()}], tmp_path / "x.ffr", schema={"x": "i64[2]"})
    assert records(tmp_path / "x.ffr") == [{"x": [0, 1]}]


def same(sample: Any) -> Any:  # noqa: ANN401
    return sample


def test_a_table_of_arrow_is_a_source(tmp_path: Path) -> None:
    table = pa.table({"x": [1, None], "tags": [["a"], []]})
    for number, form in enumerate((table, table.to_batches()[0], table.to_reader())):
        pack(form, tmp_path / f"{number}.ffr")
        assert ffrecord.read_table(tmp_path / f"{number}.ffr").to_pylist() == table.to_pylist()


def test_bytes_are_records_without_columns(tmp_path: Path) -> None:
    pack([b"one", bytearray(b"two"), b""], tmp_path / "x.ffr")
    assert records(tmp_path / "x.ffr") == [b"one", b"two", b""]


def test_given_columns_are_those_of_the_rows(tmp_path: Path) -> None:
    rows = [{"n": 1, "t": None}, {"n": 2, "t": None}]
    schema = pa.schema([pa.field("n", pa.uint8(), nullable=False), pa.field("t", pa.string())])
    pack(iter(rows), tmp_path / "x.ffr", schema=schema)
    assert ffrecord.read_table(tmp_path / "x.ffr").schema.equals(schema)
    assert records(tmp_path / "x.ffr") == rows


def twice(sample: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for copy in range(2):
        yield {"id": sample["id"], "copy": copy}


def test_a_function_takes_rows_of_a_program_too(tmp_path: Path) -> None:
    pack(generator, tmp_path / "x.ffr", map=twice, schema={"id": "i64", "copy": "u8"})
    wanted = [{"id": row["id"], "copy": copy} for row in ROWS for copy in range(2)]
    assert records(tmp_path / "x.ffr") == wanted
    assert ffrecord.open(tmp_path / "x.ffr").schema == {"id": "i64", "copy": "u8"}


def fails() -> Iterator[Any]:
    yield from ROWS
    raise KeyError("the end")


@pytest.mark.parametrize(
    ("source", "error", "said"),
    [
        ([1, 2], TypeError, "the iterable 'list': row 0 is int, not a dict or bytes"),
        ([*ROWS, "x"], TypeError, "row 200 is str"),
        (iter([]), ValueError, "has no rows: there is nothing to pack"),
        ([{"a": 1}, b"x"], ValueError, "has dicts and bytes"),
        ([{"a": 1}, {"a": "x"}], ValueError, "values of several kinds in the column 'a'"),
        ([{"a": None}], ValueError, "None in the column 'a' of all .* with schema="),
        ([{"a": 1}, {"b": 1}], ValueError, "rows with the columns a and rows with b"),
        ([{"a": 1}] * 100 + [{"a": "x"}], TypeError, "row 100: column 'a' is i64"),
        ([{"a": 1}] * 100 + [{"b": 1}], ValueError, "row 100: .* missing: a; unknown: b"),
        ([{1: 2}], ValueError, "the column 1, whose name is no text"),
        (lambda: 5, TypeError, "is int, not an iterable of dicts or bytes"),
        (5, TypeError, "5 is no source"),
        (fails, KeyError, "the end"),
    ],
)
def test_what_are_no_rows_is_refused_and_leaves_nothing(
    source: Any,  # noqa: ANN401
    error: type[Exception],
    said: str,
    tmp_path: Path,
) -> None:
    for name in ("x.ffr", "parts"):
        with pytest.raises(error, match=said):
            pack(source() if callable(source) and source is fails else source, tmp_path / name)
    assert list(tmp_path.iterdir()) == []
