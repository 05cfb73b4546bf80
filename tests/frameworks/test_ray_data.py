"""Goal: Ray Data reads each record exactly once, in any number of blocks, with the types it has.

Method: datasets of Ray over files, views and a daemon, in a cluster on this machine, compared with
our own reader; damaged and replaced files; the page's script.
"""

import io
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tutorial import framework, replace_in, write_script

import ffrecord
from daemon import Daemon
from ffrecord.decode import Image

# Nothing is reported to anybody, and no token is left in the home folder.
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
os.environ.update(QUIET)
ray = framework("ray")
framework("ray.data")
import ffrecord.ray  # noqa: E402

COUNT = 125


@pytest.fixture(scope="module", autouse=True)
def running() -> Iterator[None]:
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
        log_to_driver=False,
        object_store_memory=200 << 20,
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield
    ray.shutdown()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    schema = {
        **{"label": "i64", "raw": "bytes", "text": "utf8"},
        **{"point": "f32[2,3]", "flag": "bool", "half": "bf16"},
    }
    with ffrecord.Writer(tmp_path / "a.ffr", schema) as writer:
        for i in range(COUNT):
            point = np.arange(6).reshape(2, 3) + i
            row = {"label": i, "raw": bytes([i]) * i, "text": f"\u00e4{i}", "point": point}
            writer.write({**row, "flag": i % 3 == 0, "half": float(i)})
    return tmp_path / "a.ffr"


def labels(rows: Any) -> list[int]:  # noqa: ANN401 - of Ray
    return sorted(int(row["label"]) for row in rows.take_all())


@pytest.mark.parametrize("blocks", [None, 1, 7, 125, 1000])
def test_each_record_comes_exactly_once(path: Path, blocks: int | None) -> None:
    rows = ffrecord.ray.read(path, blocks=blocks)

    assert rows.count() == COUNT
    assert labels(rows) == list(range(COUNT))


def test_rows_have_the_types_of_their_columns(path: Path) -> None:
    rows = ffrecord.ray.read(path, blocks=3)

    assert rows.schema().names == ["label", "raw", "text", "point", "flag", "half"]
    (row,) = [row for row in rows.take_all() if row["label"] == 7]
    assert (row["raw"], row["text"], row["flag"]) == (bytes([7]) * 7, "\u00e47", False)
    assert row["point"].tolist() == [[7, 8, 9], [10, 11, 12]]
    assert row["half"] == 0x40E0  # The bits of 7.
    batch = next(iter(rows.iter_batches(batch_size=COUNT, batch_format="numpy")))
    assert batch["point"].shape == (COUNT, 2, 3)
    assert batch["point"].dtype == np.float32


def test_decimals_and_missing_lists_of_a_table_are_no_tensors(tmp_path: Path) -> None:
    numbers = pa.list_(pa.float32(), 2)
    table = pa.table(
        {
            "price": pa.array([Decimal("1.5"), Decimal("2.5")], pa.decimal128(5, 1)),
            "code": pa.array([b"abc", b"def"], pa.binary(3)),
            "maybe": pa.array([[1, 2], None], numbers),
            "point": pa.array([[1, 2], [3, 4]], numbers),
            "ragged": [[1], [2, 3]],
        }
    )
    ffrecord.write_table(table, tmp_path / "t.ffr")

    first, second = ffrecord.ray.read(tmp_path / "t.ffr", blocks=1).take_all()

    assert [first["price"], first["code"], first["maybe"]] == [Decimal("1.5"), b"abc", [1, 2]]
    assert [second["price"], second["code"], second["maybe"]] == [Decimal("2.5"), b"def", None]
    assert isinstance(second["point"], np.ndarray)
    assert second["point"].tolist() == [3, 4]
    assert list(second["ragged"]) == [2, 3]


def test_only_the_columns_named_are_there(path: Path) -> None:
    rows = ffrecord.ray.read(path, columns=["text", "label"])

    assert rows.schema().names == ["text", "label"]
    assert rows.take(1)[0].keys() == {"text", "label"}
    with pytest.raises(KeyError, match="no column 'what'; columns: label, raw"):
        ffrecord.ray.read(path, columns=["what"])


def test_the_order_is_kept_where_ray_is_asked_to(path: Path) -> None:
    options = ray.data.DataContext.get_current().execution_options
    options.preserve_order = True
    try:
        rows = ffrecord.ray.read(path, blocks=9)
        assert [int(row["label"]) for row in rows.take_all()] == list(range(COUNT))
    finally:
        options.preserve_order = False


def test_several_files_a_view_and_a_daemon_are_read(path: Path, tmp_path: Path) -> None:
    both = ffrecord.concat([ffrecord.open(path), ffrecord.open(path)])
    assert labels(ffrecord.ray.read(both, blocks=3)) == sorted([*range(COUNT), *range(COUNT)])
    some = ffrecord.open(path).subset(range(10, 20))
    assert labels(ffrecord.ray.read(some, blocks=3)) == list(range(10, 20))
    with Daemon(tmp_path / "served") as daemon:
        ffrecord.publish(path, daemon.address("x"))
        rows = ffrecord.ray.read(daemon.address("x"), blocks=4, timeout_s=20)
        assert labels(rows) == list(range(COUNT))


def test_pictures_are_decoded_to_tensors(tmp_path: Path) -> None:
    from PIL import Image as Pillow

    with ffrecord.Writer(tmp_path / "b.ffr", {"picture": "bytes", "label": "i64"}) as writer:
        for i in range(6):
            file = io.BytesIO()
            Pillow.new("RGB", (8 + i, 8), (40 * i, 0, 0)).save(file, "png")
            writer.write({"picture": file.getvalue(), "label": i})

    rows = ffrecord.ray.read(tmp_path / "b.ffr", decode={"picture": Image(4)}, blocks=2)

    found = {int(row["label"]): row["picture"] for row in rows.take_all()}
    expected = ffrecord.open(tmp_path / "b.ffr").read(range(6), decode={"picture": Image(4)})
    for i in range(6):
        assert found[i].tolist() == expected[i]["picture"].tolist()


def test_plain_records_are_one_column_of_bytes(tmp_path: Path) -> None:
    with ffrecord.Writer(tmp_path / "c.ffr") as writer:
        for i in range(9):
            writer.write(b"x" * i)

    rows = ffrecord.ray.read(tmp_path / "c.ffr", blocks=2)

    assert sorted(row["record"] for row in rows.take_all()) == [b"x" * i for i in range(9)]


def test_a_file_without_records_is_a_dataset_without_rows(tmp_path: Path) -> None:
    ffrecord.Writer(tmp_path / "d.ffr", {"label": "i64"}).close()

    assert ffrecord.ray.read(tmp_path / "d.ffr").count() == 0


def test_a_limit_reads_no_more_than_it_gives(path: Path) -> None:
    source = ffrecord.ray.RecordSource(path)

    (task,) = source.get_read_tasks(1, per_task_row_limit=5)

    assert task.metadata.num_rows == 5
    assert [table.num_rows for table in task()] == [5]
    assert len(ffrecord.ray.read(path, blocks=4).limit(7).take_all()) == 7


def test_two_consumers_of_a_split_share_the_records(path: Path) -> None:
    @ray.remote
    def seen(shard: Any) -> list[int]:  # noqa: ANN401 - of Ray
        return [int(row["label"]) for row in shard.iter_rows()]

    shards = ffrecord.ray.read(path, blocks=10).streaming_split(2)
    both = ray.get([seen.options(num_cpus=0).remote(shard) for shard in shards])

    assert sorted(both[0] + both[1]) == list(range(COUNT))


def test_a_damaged_record_is_named_or_left_out(path: Path) -> None:
    place = path.read_bytes().index(bytes([90]) * 90)
    with path.open("r+b") as file:
        file.seek(place)
        file.write(b"?")

    with pytest.raises(Exception, match="90"):
        ffrecord.ray.read(path, blocks=3).take_all()
    skipped = ffrecord.ray.read(path, blocks=3, on_corrupt="skip")
    assert labels(skipped) == [i for i in range(COUNT) if i != 90]
    assert skipped.count() == COUNT - 1
    (task,) = ffrecord.ray.RecordSource(path, on_corrupt="skip").get_read_tasks(1, COUNT - 10)
    assert sum(block.num_rows for block in task()) == COUNT - 10
    with pytest.raises(ValueError, match="rows have no status"):
        ffrecord.ray.read(path, on_corrupt="keep")


def test_data_that_is_replaced_after_the_plan_is_an_error(path: Path) -> None:
    rows = ffrecord.ray.read(path, blocks=3)
    with ffrecord.Writer(path, {"label": "i64"}, replace=True) as writer:
        for _ in range(COUNT):
            writer.write({"label": 0})

    with pytest.raises(Exception, match="was replaced after the dataset was made"):
        rows.take_all()


def test_a_task_is_small_to_send_and_names_its_files(path: Path, tmp_path: Path) -> None:
    other = Path(shutil.copy(path, tmp_path / "b.ffr"))

    tasks = ffrecord.ray.RecordSource([path, other]).get_read_tasks(5)

    assert [task.metadata.num_rows for task in tasks] == [50] * 5
    named = [[Path(name).name for name in task.metadata.input_files] for task in tasks]
    assert named == [["a.ffr"], ["a.ffr"], ["a.ffr", "b.ffr"], ["b.ffr"], ["b.ffr"]]
    assert len(pickle.dumps(tasks[0].read_fn)) < 2000


def test_options_go_where_the_reader_is_opened(path: Path) -> None:
    with pytest.raises(ValueError, match=r"give timeout_s where .* was opened"):
        ffrecord.ray.RecordSource(ffrecord.open(path), timeout_s=1.0)
    with pytest.raises(ValueError, match="has the format arrow; Ray takes numpy"):
        ffrecord.ray.RecordSource(ffrecord.open(path).with_format("arrow"))
    with pytest.raises(FileNotFoundError, match=r"none\.ffr"):
        ffrecord.ray.read(path.parent / "none.ffr")


def test_the_script_of_the_page_prints_what_it_says(tmp_path: Path) -> None:
    script = write_script("ray.md", "rows.py", tmp_path)
    replace_in(script, "ray.init(", 'ray.init(_node_ip_address="127.0.0.1", ')

    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )

    assert done.returncode == 0, done.stderr
    for line in ("records: 125", "columns: ['label']", "sum: 15500"):
        assert line in done.stdout


def test_a_dataset_that_is_written_reads_back_with_its_types(path: Path, tmp_path: Path) -> None:
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    rows = ffrecord.ray.read(path, blocks=5, columns=["label", "raw", "text", "point", "flag"])

    rows.write_datasink(ffrecord.ray.RecordSink(tmp_path / "out", compress="zstd"))

    with ffrecord.open(tmp_path / "out") as made, ffrecord.open(path) as source:
        every = np.arange(COUNT)
        got, want = made.read(every), source.read(every)
        assert set(got.columns) == {"label", "raw", "text", "point", "flag"}
        for name in got.columns:
            assert [np.asarray(x).tolist() for x in got[name]] == [
                np.asarray(x).tolist() for x in want[name]
            ], name
        assert got["point"].shape == (COUNT, 2, 3) and got["label"].dtype == np.int64
    assert [each for each in os.listdir(tmp_path) if each.startswith(".")] == []


def test_nulls_lists_and_structs_are_written(tmp_path: Path) -> None:
    table = pa.table(
        {
            "id": pa.array(range(40)),
            "maybe": pa.array([None if i % 7 else i for i in range(40)], pa.int32()),
            "words": [["w"] * (i % 3) for i in range(40)],
            "chat": [[{"role": "user", "text": str(i)}] for i in range(40)],
            "at": pa.array(range(40), pa.timestamp("us", tz="UTC")),
        }
    )
    # In the first block all of `maybe` is null.
    ray.data.from_arrow([table.slice(1, 6), table.slice(7)]).write_datasink(
        ffrecord.ray.RecordSink(tmp_path / "out")
    )

    rows = ffrecord.read_table(tmp_path / "out").sort_by("id").to_pylist()

    assert rows == table.slice(1).to_pylist()


@pytest.mark.wrong_data
def test_a_column_without_values_in_some_tasks_has_the_type_of_the_others(tmp_path: Path) -> None:
    rows = [
        {"id": i, "words": ["w", None] if i == 31 else [], "chat": {"to": "me" if i == 7 else None}}
        for i in range(40)
    ]
    made = ray.data.from_items(rows, override_num_blocks=10)

    made.write_datasink(ffrecord.ray.RecordSink(tmp_path / "out"))

    assert ffrecord.read_table(tmp_path / "out").sort_by("id").to_pylist() == rows
    nothing = ray.data.from_items([{"id": 1, "gone": None}])
    with pytest.raises(Exception, match="column 'gone' has no value in any row; give it a type"):
        nothing.write_datasink(ffrecord.ray.RecordSink(tmp_path / "none"))
    assert os.listdir(tmp_path) == ["out"]


def test_a_task_that_ray_runs_again_writes_its_rows_once(tmp_path: Path) -> None:
    class Flaky(ffrecord.ray.RecordSink):  # type: ignore[misc]
        def write(self, blocks: Any, ctx: Any) -> Any:  # noqa: ANN401 - Ray's
            names = super().write(blocks, ctx)
            first = tmp_path / f"ran-{ctx.task_idx}"
            if not first.exists():
                first.touch()
                os._exit(1)  # After the file was written.
            return names

    rows = ray.data.range(100, override_num_blocks=4)

    rows.write_datasink(Flaky(tmp_path / "out"))

    assert list(tmp_path.glob("ran-*"))
    with ffrecord.open(tmp_path / "out") as reader:
        assert sorted(reader.column("id").tolist()) == list(range(100))


def test_a_job_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail(batch: Any) -> Any:  # noqa: ANN401
        if 70 in batch["id"]:
            raise ValueError("row 70 is bad")
        return batch

    rows = ray.data.range(100, override_num_blocks=10).map_batches(fail)

    with pytest.raises(Exception, match="row 70 is bad"):
        rows.write_datasink(ffrecord.ray.RecordSink(tmp_path / "out"))

    assert os.listdir(tmp_path) == []


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(ffrecord.errors.ConflictError, match="there exists"):
        ffrecord.ray.RecordSink(tmp_path / "there")
    with pytest.raises(ValueError, match=r"name a folder"):
        ffrecord.ray.RecordSink(tmp_path / "one.ffr")
    with pytest.raises(FileNotFoundError, match="make it first"):
        ffrecord.ray.RecordSink(tmp_path / "no" / "out")
    with pytest.raises(Exception, match="has no rows"):
        ray.data.range(10).filter(lambda row: False).write_datasink(
            ffrecord.ray.RecordSink(tmp_path / "out")
        )
    shapes = [{"x": np.zeros((i + 1, 2))} for i in range(3)]
    one = ray.data.from_items(shapes, override_num_blocks=1)
    each = ray.data.from_items(shapes, override_num_blocks=3)
    with pytest.raises(Exception, match="column 'x' has tensors of several shapes"):
        one.write_datasink(ffrecord.ray.RecordSink(tmp_path / "out"))
    with pytest.raises(Exception, match="are not those of"):
        each.write_datasink(ffrecord.ray.RecordSink(tmp_path / "out"))
    assert os.listdir(tmp_path) == ["there"]


def test_a_folder_of_record_files_is_replaced_where_that_is_meant(tmp_path: Path) -> None:
    for count in (20, 30):
        rows = ray.data.range(count, override_num_blocks=2)
        rows.write_datasink(ffrecord.ray.RecordSink(tmp_path / "out", overwrite=True))
        with ffrecord.open(tmp_path / "out") as reader:
            assert len(reader) == count
