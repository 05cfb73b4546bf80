"""Goal: each call of a writer writes all of its records or none, and an append is of one file.

Method: tables and streams that fail at their end, in new files and in appends, small and larger
than what is written between commits, with other records before and after them; appends with and
without the options that the file remembers; appends that are given up.
"""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ffrecord
import ffrecord._write.writer as writing
from eventually import until_idle
from ffrecord.errors import ConflictError

pytestmark = pytest.mark.wrong_data

pa = pytest.importorskip("pyarrow")

SCHEMA = pa.schema([pa.field("name", pa.binary(), nullable=False)])
KEYED = {"name": "utf8", "v": "i64"}
Table = Any  # pyarrow has no types.
Make = Callable[..., Table]


def _rows(count: int, size: int = 8) -> Table:
    return pa.table({"name": [b"%06d" % i + b"x" * size for i in range(count)]}, schema=SCHEMA)


def _bad(count: int, size: int = 8) -> Table:
    """So many rows, and one that the schema does not allow."""
    last = pa.chunked_array([pa.array([None], pa.binary())])
    chunks = [*_rows(count, size).column("name").chunks, *last.chunks]
    return pa.Table.from_arrays([pa.chunked_array(chunks)], schema=SCHEMA)


def _failing_stream(count: int, size: int = 8) -> Table:
    def batches() -> Iterator[Table]:
        yield from _rows(count, size).to_batches()
        raise RuntimeError("the source ended early")

    return pa.RecordBatchReader.from_batches(SCHEMA, batches())


FAILING = [
    pytest.param(_bad, ValueError, id="null at the end"),
    pytest.param(_failing_stream, RuntimeError, id="stream that fails"),
]


@pytest.mark.parametrize(("make", "error"), FAILING)
@pytest.mark.parametrize("count", [1, 5000, 50_000])
@pytest.mark.parametrize("append", [False, True])
def test_a_table_that_fails_leaves_nothing(
    tmp_path: Path, append: bool, count: int, make: Make, error: type[Exception]
) -> None:
    path, before = tmp_path / "a.ffr", 0
    if append:
        ffrecord.write_table(_rows(7), path)
        before = 7
    with ffrecord.Writer(path, SCHEMA, append=append) as writer:
        writer.write({"name": b"first"})
        with pytest.raises(error):
            writer.write_table(make(count))
        writer.write_table(_rows(3))

    names = ffrecord.read_table(path).column("name").to_pylist()
    assert names[before:] == [b"first", *_rows(3).column("name").to_pylist()]


@pytest.mark.parametrize(("make", "error"), FAILING)
def test_an_append_larger_than_a_commit_fails_as_a_whole(
    tmp_path: Path, make: Make, error: type[Exception]
) -> None:
    path = tmp_path / "a.ffr"
    ffrecord.write_table(_rows(1), path)
    before = path.read_bytes()

    with pytest.raises(error):
        ffrecord.write_table(make(900, 100_000), path, append=True)

    assert path.read_bytes() == before
    ffrecord.write_table(_rows(900, 100_000), path, append=True)
    assert len(ffrecord.open(path)) == 901
    assert ffrecord.verify(path)[0].problem_count == 0


def test_no_other_thread_writes_into_a_table(tmp_path: Path) -> None:
    path = tmp_path / "a.ffr"
    writing, wrote = threading.Event(), threading.Event()

    def batches() -> Iterator[Table]:
        yield from _rows(10).to_batches()
        writing.set()
        until_idle()
        assert not wrote.is_set()
        raise RuntimeError("the source ended early")

    with ffrecord.Writer(path, SCHEMA) as writer:

        def other() -> None:
            writing.wait()
            writer.write({"name": b"other"})
            wrote.set()

        thread = threading.Thread(target=other)
        thread.start()
        with pytest.raises(RuntimeError):
            writer.write_table(pa.RecordBatchReader.from_batches(SCHEMA, batches()))
        thread.join()
    assert ffrecord.read_table(path).column("name").to_pylist() == [b"other"]


def test_an_exception_in_an_append_leaves_the_file_as_of_its_last_commit(tmp_path: Path) -> None:
    path = tmp_path / "a.ffr"
    with ffrecord.Writer(path) as writer:
        writer.write(b"1")
    before = path.read_bytes()

    def fail(commit: bool) -> None:
        with ffrecord.Writer(path, append=True) as writer:
            for _ in range(20):
                writer.write(bytes(1 << 20))
            if commit:
                writer.commit()
                writer.write(bytes(3 << 20))
            raise KeyError("the source ended early")

    with pytest.raises(KeyError):
        fail(commit=False)
    assert path.read_bytes() == before
    with pytest.raises(KeyError):
        fail(commit=True)
    assert len(ffrecord.open(path)) == 21
    assert ffrecord.verify(path)[0].problem_count == 0


def test_an_append_notices_that_its_file_was_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.ffr"
    for content in (b"1", b"other"):
        with ffrecord.Writer(tmp_path / f"{content.decode()}.ffr") as writer:
            writer.write(content)
    (tmp_path / "1.ffr").rename(path)
    appender = ffrecord.Writer(path, append=True)
    appender.write(b"2")
    (tmp_path / "other.ffr").rename(path)
    with pytest.raises(ConflictError, match="another program"):
        appender.close()
    appender.discard()
    assert [bytes(record) for record in ffrecord.open(path)] == [b"other"]


def _keyed(path: Path, key: str | bool | None) -> None:
    with ffrecord.Writer(path, KEYED, key=key) as writer:  # type: ignore[arg-type]
        given = {"key": "a"} if key is True else {}
        writer.write({"name": "a", "v": 1}, **given)


@pytest.mark.parametrize("key", ["name", True, None])
@pytest.mark.parametrize("given", ["name", "other", True, None])
def test_an_append_uses_the_key_that_the_file_remembers(
    tmp_path: Path, key: str | bool | None, given: str | bool | None
) -> None:
    path = tmp_path / "a.ffr"
    _keyed(path, key)
    if given not in (None, key):
        with pytest.raises(ValueError, match="leave key out"):
            ffrecord.Writer(path, append=True, key=given)  # type: ignore[arg-type]
        _keyed(tmp_path / "still.ffr", key)
        return
    with ffrecord.Writer(path, append=True, key=given) as writer:  # type: ignore[arg-type]
        writer.write({"name": "b", "v": 2}, **({"key": "b"} if key is True else {}))
    with ffrecord.Writer(path, append=True) as writer:
        writer.write({"name": "c", "v": 3}, **({"key": "c"} if key is True else {}))
    with ffrecord.open(path) as reader:
        assert len(reader) == 3
        if key is not None:
            assert [reader.find(name) for name in "abc"] == [0, 1, 2]
    repaired = tmp_path / "repaired.ffr"
    ffrecord.repair(path, repaired)
    with ffrecord.Writer(repaired, append=True) as writer:
        writer.write({"name": "d", "v": 4}, **({"key": "d"} if key is True else {}))
    if key is not None:
        assert ffrecord.open(repaired).find("d") == 3


def test_tables_are_appended_with_the_key_column(tmp_path: Path) -> None:
    path = tmp_path / "a.ffr"
    table = pa.table({"name": ["a", "b"], "v": [1, 2]})
    ffrecord.write_table(table, path, key="name")
    ffrecord.write_table(pa.table({"name": ["c"], "v": [3]}), path, append=True)
    assert [ffrecord.open(path).find(name) for name in "abc"] == [0, 1, 2]


def test_nobody_else_appends_once_an_append_knows_which_columns_hold_nulls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.ffr"
    schema = pa.schema({"x": pa.int64(), "y": pa.int64()})
    first, other, own = (
        pa.Table.from_pylist([row], schema)
        for row in ({"x": 1, "y": 1}, {"x": None, "y": 2}, {"x": 3, "y": None})
    )
    ffrecord.write_table(first, path)

    class Late(ffrecord.Reader):
        """Another append comes when the metadata of the file are known."""

        def close(self) -> None:
            super().close()
            monkeypatch.undo()
            with pytest.raises(ConflictError):
                ffrecord.write_table(other, path, append=True)

    monkeypatch.setattr(writing, "Reader", Late)
    ffrecord.write_table(own, path, append=True)
    ffrecord.write_table(other, path, append=True)

    rows = [{"x": 1, "y": 1}, {"x": 3, "y": None}, {"x": None, "y": 2}]
    assert ffrecord.read_table(path).to_pylist() == rows


@pytest.mark.parametrize(
    ("schema", "full", "lacking", "shown"),
    [
        ({"x:valid": "bool", "x": "i64"}, (True, 7), (False, 0), [7, None]),
        ({"x:valid": "bool", "x": "utf8"}, (True, "a"), (False, ""), ["a", None]),
        (
            {"x[]:valid": "bytes", "x[]:i64": "bytes"},
            (b"\1", bytes(8)),
            (b"\0", bytes(8)),
            [[0], [None]],
        ),
    ],
)
def test_an_append_of_stored_values_tells_of_nulls(
    schema: dict[str, str],
    full: tuple[Any, Any],
    lacking: tuple[Any, Any],
    shown: list[Any],
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.ffr"
    with ffrecord.Writer(path, schema, metadata={"ffrecord.nulls": b"[]"}) as writer:
        writer.write(dict(zip(schema, full, strict=True)))

    with ffrecord.Writer(path, append=True) as writer:
        writer.write(dict(zip(schema, lacking, strict=True)))

    assert ffrecord.read_table(path)["x"].to_pylist() == shown


@pytest.mark.parametrize("damage", [(0, 4096), (20, 21), (130, 200)])
def test_a_damaged_front_costs_the_file_nothing_but_a_warning(
    tmp_path: Path, damage: tuple[int, int]
) -> None:
    path = tmp_path / "a.ffr"
    with ffrecord.Writer(path, KEYED, key="name") as writer:
        for i in range(300):
            writer.write({"name": f"n{i}" + "x" * 100, "v": i})
    content = bytearray(path.read_bytes())
    content[slice(*damage)] = b"\xaa" * (damage[1] - damage[0])
    path.write_bytes(content)

    with pytest.warns(UserWarning, match="ffrecord repair"):
        reader = ffrecord.open(path)
        assert len(reader) == 300
    assert reader[299]["v"] == 299
    assert [column.name for column in reader.columns] == list(KEYED)
    assert ffrecord.verify(path)[0].problem_count > 0
    with pytest.raises(ffrecord.errors.CorruptionError, match="ffrecord repair"):
        ffrecord.Writer(path, append=True)
    report = ffrecord.repair(path, tmp_path / "b.ffr")  # The page has up to 40 records, too.
    assert report.kept_count >= 300 - 40
    columns = ffrecord.open(tmp_path / "b.ffr").columns
    assert [column.name for column in columns] == list(KEYED)
