"""Goal: --shuffle puts all records of a packing in an order that only the seed decides.

Method: sources of each kind are packed with and without it, and by several workers; every record,
its key and the bytes of the files are compared. test_pack_workers.py kills such runs.
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest

import cuttable
import ffrecord
from cli import ok, run
from ffrecord._order.epoch_order import EpochOrder
from ffrecord.errors import ConflictError
from ffrecord.pack import open_source, pack
from packing import PART, contents, records, write_classes

pytestmark = pytest.mark.wrong_data


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_classes(tmp_path_factory.mktemp("files"))


def order_of(seed: int, count: int) -> list[int]:
    return [int(i) for i in EpochOrder(seed, 0, count).range(0, count)]


@pytest.mark.parametrize("name", ["JSON lines", "CSV", "TFRecord", "WebDataset", "Parquet"])
def test_each_kind_is_put_in_the_order_of_the_seed(tmp_path: Path, name: str) -> None:
    pytest.importorskip("pyarrow")
    maker, options, _ = cuttable.KINDS[name]
    path = str(maker(tmp_path))
    pack(open_source(path, options), tmp_path / "plain", part_size_bytes=6000)
    plain = records(tmp_path / "plain")
    for seed in (0, 7):
        made = tmp_path / str(seed)
        summary = pack(open_source(path, options), made, part_size_bytes=6000, shuffle=seed)
        assert summary.record_count == len(plain)
        assert records(made) == [plain[i] for i in order_of(seed, len(plain))]
        assert len(contents(made)) > 3
    assert not list(tmp_path.glob(".*"))


def test_keys_go_with_their_records(tmp_path: Path) -> None:
    with ffrecord.Writer(tmp_path / "a.ffr", schema={"i": "i64"}, key=True) as writer:
        for i in range(500):
            writer.write({"i": i}, key=f"k{i}" if i % 3 else None)
    ok("ffrecord-pack", "--shuffle", "3", tmp_path / "a.ffr", tmp_path / "x", "--part-size", "1KiB")
    reader = ffrecord.open(tmp_path / "x")
    assert sorted(int(i) for i in reader.column("i")) == list(range(500))
    for i in range(500):
        found = reader.find(f"k{i}")
        assert (found is None) == (i % 3 == 0)
        assert found is None or reader.read([found])[0]["i"] == i


@pytest.mark.parametrize("destination", ["x", "x.ffr"])
def test_rows_and_single_files_are_shuffled_too(tmp_path: Path, destination: str) -> None:
    pack(lambda: ({"i": i} for i in range(300)), tmp_path / destination, shuffle=5)
    assert [row["i"] for row in records(tmp_path / destination)] == order_of(5, 300)
    assert os.listdir(tmp_path) == [destination]


@pytest.mark.parametrize("function", [None, "packing_functions:letters"])
def test_any_number_of_workers_gives_the_same_bytes(
    files: Path, tmp_path: Path, function: str | None
) -> None:
    for workers in (1, 2, 3):
        pack(
            files,
            tmp_path / f"{workers}",
            map=function,
            workers=workers,
            part_size_bytes=PART,
            shuffle=11,
            compress=True,
        )
    assert contents(tmp_path / "1") == contents(tmp_path / "2") == contents(tmp_path / "3")
    assert len(contents(tmp_path / "1")) > 3
    assert sorted(os.listdir(tmp_path)) == ["1", "2", "3"]


def test_what_is_there_is_not_shuffled_again(files: Path, tmp_path: Path) -> None:
    first = pack(files, tmp_path / "x", part_size_bytes=PART, shuffle=1)
    before = os.stat(tmp_path / "x" / "PART_00000.ffr").st_ino
    (tmp_path / ".x.unshuffled").mkdir()  # As a process left it that was killed at its very end.
    again = pack(files, tmp_path / "x", part_size_bytes=PART, shuffle=1)
    assert again.record_count == first.record_count
    assert os.stat(tmp_path / "x" / "PART_00000.ffr").st_ino == before
    assert os.listdir(tmp_path) == ["x"]
    for other in ({"shuffle": 2}, {"shuffle": 1, "compress": True}, {}):
        with pytest.raises(ConflictError, match="exists"):
            pack(files, tmp_path / "x", part_size_bytes=PART, **other)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", ["-1", "1.5", "x", str(1 << 64)])
def test_a_seed_that_is_none_is_refused(files: Path, tmp_path: Path, seed: str) -> None:
    done = run("ffrecord-pack", "--shuffle", seed, files, tmp_path / "x")
    assert done.returncode == 2
    assert os.listdir(tmp_path) == []


def test_a_failure_leaves_what_is_done_and_no_result(files: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="several workers pack from paths"):
        pack(files, tmp_path / "x.ffr", workers=2, shuffle=1)
    assert os.listdir(tmp_path) == []
    damaged = tmp_path / "a.jsonl"
    damaged.write_text("".join(json.dumps({"i": i}) + "\n" for i in range(2000)) + '{"i": "x"}\n')
    with pytest.raises(ValueError, match="line 2001"):
        pack(damaged, tmp_path / "x", shuffle=1)
    assert os.listdir(tmp_path) == ["a.jsonl"]


def test_an_order_has_every_record_once() -> None:
    assert np.array_equal(np.sort(order_of(9, 1000)), np.arange(1000))
