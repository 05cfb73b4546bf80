"""Goal: tasks that write a dataset of Ray Data learn early that their rows do not go together.

Method: the calls that Ray makes, in this process, one task after the other.
"""

import itertools
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tutorial import framework

framework("ray.data")
import ffrecord.ray  # noqa: E402

pytestmark = pytest.mark.wrong_data

_COUNTS = pa.map_(pa.string(), pa.int64())


@pytest.mark.parametrize("nothing", [False, True])
def test_a_task_with_other_columns_fails_before_the_job_ends(nothing: bool, tmp_path: Path) -> None:
    def columns(**values: Any) -> list[Any]:  # noqa: ANN401 - of Arrow
        return [pa.table({**values, **({"gone": [None]} if nothing else {})})]

    sink = ffrecord.ray.RecordSink(tmp_path / "out")
    sink.on_write_start()
    tasks = (SimpleNamespace(task_idx=number) for number in itertools.count())
    sink.write(columns(x=[1]), next(tasks))
    sink.write(columns(x=[None]), next(tasks))
    sink.write(columns(x=[2]), next(tasks))

    for other in ({"x": ["text"]}, {"x": [1], "y": [1]}, {"y": [1]}):
        with pytest.raises(ValueError, match=r"\bx\b") as error:
            sink.write(columns(**other), next(tasks))
    sink.on_write_failed(error.value)
    assert os.listdir(tmp_path) == []


def test_rows_of_any_number_of_tasks_keep_their_order(tmp_path: Path) -> None:
    """Also of those whose numbers have more digits than others."""
    numbers = [1_000_000, 999_999, 3, 10_000_000]
    sink = ffrecord.ray.RecordSink(tmp_path / "out")
    sink.on_write_start()
    found = [
        sink.write([pa.table({"x": [number]})], SimpleNamespace(task_idx=number))
        for number in numbers
    ]
    sink.on_write_complete(SimpleNamespace(write_returns=found))

    assert ffrecord.read_table(tmp_path / "out")["x"].to_pylist() == sorted(numbers)


@pytest.mark.parametrize("option", ["append", "replace", "file_id", "schema", "compres"])
def test_an_option_that_is_not_for_new_files_is_refused_before_any_task(
    option: str, tmp_path: Path
) -> None:
    """Files with one id would be one file for whoever has read a part of it before."""
    with pytest.raises(TypeError, match=rf"{option}"):
        ffrecord.ray.RecordSink(tmp_path / "out", **{option: b"0123456789abcdef"})


@pytest.mark.parametrize("path", ["", "s3://bucket/train"])
def test_a_name_that_is_no_folder_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="folder"):
        ffrecord.ray.RecordSink(path)


def test_tensors_that_are_null_stay_null(tmp_path: Path) -> None:
    """As a join makes them where the other side has no row; also if all of a task are."""
    from ray.data.block import BlockAccessor

    block = BlockAccessor.batch_to_block({"x": np.arange(8).reshape(2, 2, 2)})
    sink = ffrecord.ray.RecordSink(tmp_path / "out")
    sink.on_write_start()
    rows = ([0, None], [None, None], [None, 1])
    found = [
        sink.write([block.take(pa.array(each, pa.int64()))], SimpleNamespace(task_idx=number))
        for number, each in enumerate(rows)
    ]
    sink.on_write_complete(SimpleNamespace(write_returns=found))

    first, last = [0, 1, 2, 3], [4, 5, 6, 7]
    values = ffrecord.read_table(tmp_path / "out")["x"].to_pylist()
    assert values == [first, None, None, None, None, last]


def test_a_dataset_without_blocks_is_refused(tmp_path: Path) -> None:
    """Ray ends such a write without having begun it."""
    sink = ffrecord.ray.RecordSink(tmp_path / "out")
    with pytest.raises(ValueError, match="the dataset has no rows"):
        sink.on_write_complete(SimpleNamespace(write_returns=[]))


def test_a_sink_that_is_used_again_needs_another_name_before_any_task(tmp_path: Path) -> None:
    sink = ffrecord.ray.RecordSink(tmp_path / "out")
    sink.on_write_start()
    task = SimpleNamespace(task_idx=0)
    sink.on_write_complete(
        SimpleNamespace(write_returns=[sink.write([pa.table({"x": [1]})], task)])
    )
    with pytest.raises(ffrecord.ConflictError, match="exists"):
        sink.on_write_start()


def test_keys_of_maps_have_the_type_that_they_have_in_another_task(tmp_path: Path) -> None:
    sink = ffrecord.ray.RecordSink(tmp_path / "out")
    sink.on_write_start()
    maps = (pa.array([[]], pa.map_(pa.string(), pa.null())), pa.array([[("a", 1)]], _COUNTS))
    found = [
        sink.write([pa.table({"m": each})], SimpleNamespace(task_idx=number))
        for number, each in enumerate(maps)
    ]
    sink.on_write_complete(SimpleNamespace(write_returns=found))
    assert ffrecord.read_table(tmp_path / "out")["m"].to_pylist() == [[], [("a", 1)]]


def _of(value: Any, *, nullable: bool) -> pa.Table:  # noqa: ANN401 - of Arrow
    """A row with columns that may have nulls, or not, at every depth."""

    def inner(kind: pa.DataType) -> pa.Field:
        return pa.field("item", kind, nullable)

    fields = [
        pa.field("x", pa.int64(), nullable),
        pa.field("l", pa.list_(inner(pa.string())), nullable),
        pa.field("s", pa.struct([inner(pa.list_(inner(pa.int32())))]), nullable),
    ]
    row = {"x": value, "l": value and [str(value)], "s": {"item": value and [value]}}
    return pa.Table.from_pylist([row], pa.schema(fields))


def test_tasks_may_differ_in_where_nulls_can_be(tmp_path: Path) -> None:
    """As when some of the files that Ray read say `required` of a column."""
    sink = ffrecord.ray.RecordSink(tmp_path / "out", key=None, compress="zstd")
    sink.on_write_start()
    tables = [
        _of(1, nullable=False),
        _of(2, nullable=True),
        _of(3, nullable=False),
        _of(None, nullable=True),
    ]
    found = [
        sink.write([each], SimpleNamespace(task_idx=number)) for number, each in enumerate(tables)
    ]
    sink.on_write_complete(SimpleNamespace(write_returns=found))

    nullable = tables[1].schema
    wanted = pa.concat_tables([each.cast(nullable) for each in tables])
    assert ffrecord.read_table(tmp_path / "out").equals(wanted)
    assert ffrecord.read_table(tmp_path / "out").schema.equals(nullable)


def test_columns_that_no_task_lets_be_null_stay_so(tmp_path: Path) -> None:
    sink = ffrecord.ray.RecordSink(tmp_path / "out")
    sink.on_write_start()
    tables = [_of(number, nullable=False) for number in (1, 2)]
    found = [
        sink.write([each], SimpleNamespace(task_idx=number)) for number, each in enumerate(tables)
    ]
    sink.on_write_complete(SimpleNamespace(write_returns=found))
    assert ffrecord.read_table(tmp_path / "out").equals(pa.concat_tables(tables))
