"""Goal: datasets of other forms become record files with nothing lost, changed or made up.

Method: samples as MosaicML Streaming 0.13 laid them out are kept here as bytes; more shards are
made by small encoders (TFRecords in a file of their own). What the formats allow and record files
do not, and damage, must be a clear error that leaves nothing behind.
"""

import bz2
import gzip
import hashlib
import io
import json
import os
import random
import struct
import tarfile
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

import ffrecord
from cli import ok, run
from ffrecord.errors import CorruptionError
from ffrecord.pack import open_source
from packing import TFRECORDS, records, refused, schema

pytestmark = pytest.mark.wrong_data

MDS_SAMPLES = bytes.fromhex(
    "00000000ffffffffffffffff000000000000003f020000000000000000000000c3bc0000803f0000003f"
)


# MDS

INDEX: dict[str, Any] = {
    "column_encodings": ["int", "str", "ndarray:float32:2"],
    "column_names": ["id", "text", "v"],
    "column_sizes": [8, None, 8],
    "compression": None,
    "format": "mds",
    "hashes": ["sha1"],
    "size_limit": 2000,
    "version": 2,
}


def mds_shard(samples: Sequence[bytes]) -> bytes:
    config = json.dumps(INDEX, sort_keys=True).encode()
    begins = np.cumsum([8 + 4 * len(samples) + len(config), *map(len, samples)]).astype("<u4")
    return struct.pack("<I", len(samples)) + begins.tobytes() + config + b"".join(samples)


def write_mds(
    folder: Path, shards: Sequence[bytes], counts: Sequence[int], compression: str | None = None
) -> Path:
    """A folder as Streaming's writer leaves it."""
    folder.mkdir(exist_ok=True)
    described = []
    for number, (raw, count) in enumerate(zip(shards, counts, strict=True)):
        stored = compressed(raw, compression)
        name = f"shard.{number:05}.mds"
        raw_data = info(name, raw)
        zip_data = info(f"{name}.{compression}", stored) if compression else None
        (folder / (zip_data or raw_data)["basename"]).write_bytes(stored)
        described.append(
            {
                **INDEX,
                "samples": count,
                "raw_data": raw_data,
                "zip_data": zip_data,
                "compression": compression,
            }
        )
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": described}))
    return folder


def compressed(raw: bytes, compression: str | None) -> bytes:
    if compression == "gz":
        return gzip.compress(raw)
    if compression == "bz2":
        return bz2.compress(raw)
    return zstandard.compress(raw) if compression == "zstd" else raw


def info(name: str, content: bytes) -> dict[str, Any]:
    digest = hashlib.sha1(content).hexdigest()
    return {"basename": name, "bytes": len(content), "hashes": {"sha1": digest}}


GOLDEN = [MDS_SAMPLES[:20], MDS_SAMPLES[20:]]


@pytest.mark.parametrize("compression", [None, "gz", "zstd"])
def test_mds_shards_are_read_in_order(tmp_path: Path, compression: str | None) -> None:
    shards = [mds_shard(GOLDEN), mds_shard(GOLDEN[::-1])]
    # As Streaming 0.13 laid the two samples out, to the byte.
    assert hashlib.sha1(shards[0]).hexdigest() == "85893db692e505b0d016752d17b4d3e135cc22e5"
    source = write_mds(tmp_path / "mds", shards, [2, 2], compression)

    ok("ffrecord-pack", source, tmp_path / "x.ffr")

    assert schema(tmp_path / "x.ffr") == {"id": "i64", "text": "utf8", "v": "f32[2]"}
    first, second = (
        {"id": -1, "text": "", "v": [0.0, 0.5]},
        {"id": 0, "text": "ü", "v": [1.0, 0.5]},
    )
    assert records(tmp_path / "x.ffr") == [first, second, second, first]


def test_an_mds_shard_with_other_columns_is_refused(tmp_path: Path) -> None:
    source = write_mds(tmp_path / "mds", [mds_shard(GOLDEN)] * 2, [2, 2])
    index = json.loads((source / "index.json").read_text())
    index["shards"][1]["column_names"] = ["id", "words", "v"]
    (source / "index.json").write_text(json.dumps(index))

    message = refused(2, source, tmp_path / "x.ffr")

    assert "shard.00001.mds has other columns than the first shard" in message


def test_a_damaged_mds_shard_is_refused(tmp_path: Path) -> None:
    raw = mds_shard(GOLDEN)
    source = write_mds(tmp_path / "mds", [raw], [2])
    shard = source / "shard.00000.mds"

    shard.write_bytes(raw[:-1])
    assert "its index says" in refused(3, source, tmp_path / "x.ffr")
    shard.write_bytes(raw[:-1] + b"x")
    assert "fails its sha1" in refused(3, source, tmp_path / "x.ffr")
    shard.unlink()
    assert "No such file" in refused(4, source, tmp_path / "x.ffr")


@pytest.mark.parametrize("at", range(16))
def test_an_mds_shard_with_forged_offsets_is_refused(tmp_path: Path, at: int) -> None:
    forged = bytearray(mds_shard(GOLDEN))
    forged[at] ^= 0x81
    source = write_mds(tmp_path / "mds", [bytes(forged)], [2])  # Its hash is right.

    message = refused(3, source, tmp_path / "x.ffr")

    assert "not laid out" in message or "sizes" in message


def test_an_mds_sample_with_more_than_its_columns_is_refused(tmp_path: Path) -> None:
    source = write_mds(tmp_path / "mds", [mds_shard([GOLDEN[0] + b"x", GOLDEN[1]])], [2])
    assert "sample 0 has 21 bytes, and its sizes say 20" in refused(3, source, tmp_path / "x.ffr")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"column_encodings": ["int", "pkl", "ndarray:float32:2"]}, "'text' is encoded as pkl"),
        ({"format": "xsv"}, "xsv of version 2"),
        ({"version": 1}, "mds of version 1"),
        ({"raw_data": {"basename": "../../x", "bytes": 1, "hashes": {}}}, "leads out"),
        ({"raw_data": {"basename": "/x", "bytes": 1, "hashes": {}}}, "leads out"),
        ({"column_sizes": [8]}, "no index of MDS shards"),
        ({"raw_data": None}, "no index of MDS shards"),
        ({"column_names": ["id", "id", "v"]}, "several of one name"),
        ({"samples": 1 << 32}, "no count of 32 bits"),
        ({"column_sizes": [4, None, 8]}, "'id' is int and of 4 bytes"),
        ({"column_sizes": [8, None, None]}, "'v' is ndarray:float32:2 and of None bytes"),
    ],
)
def test_an_index_that_cannot_be_followed(
    tmp_path: Path, change: dict[str, Any], expected: str
) -> None:
    source = write_mds(tmp_path / "mds", [mds_shard(GOLDEN)], [2])
    index = json.loads((source / "index.json").read_text())
    index["shards"][0] |= change
    (source / "index.json").write_text(json.dumps(index))

    assert expected in refused(2, source, tmp_path / "x.ffr")


@pytest.mark.parametrize("compression", [None, "gz", "bz2", "zstd"])
def test_an_mds_shard_damaged_anywhere_is_refused(tmp_path: Path, compression: str | None) -> None:
    """Only hashes of what was compressed are there, as some writers leave it."""
    source = write_mds(tmp_path / "mds", [mds_shard(GOLDEN)], [2], compression)
    if compression:
        index = json.loads((source / "index.json").read_text())
        index["shards"][0]["zip_data"]["hashes"] = {}
        (source / "index.json").write_text(json.dumps(index))
    (path,) = source.glob("shard*")
    whole = path.read_bytes()
    wanted = [str(sample) for sample, _ in open_source(source).samples()]

    for at in range(0, len(whole), 1 if compression else 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        try:
            found = [str(sample) for sample, _ in open_source(source).samples()]
        except (CorruptionError, ValueError) as error:
            assert str(path) in str(error), at
        else:  # Where it makes no difference: gzip's time.
            assert found == wanted, at


@pytest.mark.parametrize("compression", ["gz", "bz2", "zstd"])
def test_a_small_mds_shard_that_becomes_huge_is_refused_early(
    tmp_path: Path, compression: str
) -> None:
    """The index says how large a shard is: 128 MB more are not decompressed to be counted."""
    source = write_mds(tmp_path / "mds", [mds_shard(GOLDEN)], [2], compression)
    bomb = compressed(mds_shard(GOLDEN) + bytes(128 << 20), compression)
    index = json.loads((source / "index.json").read_text())
    zip_data = index["shards"][0]["zip_data"]
    zip_data |= {"bytes": len(bomb), "hashes": {}}
    (source / zip_data["basename"]).write_bytes(bomb)
    (source / "index.json").write_text(json.dumps(index))

    tracemalloc.start()
    with pytest.raises(CorruptionError, match="its index says"):
        list(open_source(source).samples())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 64 << 20


@pytest.mark.parametrize("compression", ["gz", "bz2", "zstd"])
def test_nothing_may_follow_a_compressed_mds_shard(tmp_path: Path, compression: str) -> None:
    source = write_mds(tmp_path / "mds", [mds_shard(GOLDEN)], [2], compression)
    (path,) = source.glob("shard*")
    index = json.loads((source / "index.json").read_text())
    for more in (b"junk", compressed(b"more", compression)[:-1]):
        stored = compressed(mds_shard(GOLDEN), compression) + more
        path.write_bytes(stored)
        index["shards"][0]["zip_data"] = info(path.name, stored)
        (source / "index.json").write_text(json.dumps(index))
        with pytest.raises(CorruptionError, match=r"shard\.00000\.mds\."):
            list(open_source(source).samples())


def test_an_index_with_any_value_of_another_type_is_refused_or_as_it_was(tmp_path: Path) -> None:
    source = write_mds(tmp_path / "mds", [mds_shard(GOLDEN)], [2], "gz")
    text = (source / "index.json").read_text()
    wanted = [str(sample) for sample, _ in open_source(source).samples()]

    def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:  # noqa: ANN401
        if isinstance(value, dict | list):
            for key in list(value) if isinstance(value, dict) else range(len(value)):
                yield (*at, key)
                yield from places(value[key], (*at, key))

    for place in places(json.loads(text)):
        for other in (None, -1, 0, 3, 1 << 40, 1.5, "x", "\ud800", [], ["a"], {}, {"a": 1}, True):
            index = json.loads(text)
            parent = index
            for key in place[:-1]:
                parent = parent[key]
            parent[place[-1]] = other
            (source / "index.json").write_text(json.dumps(index))
            try:
                found = [str(sample) for sample, _ in open_source(source).samples()]
            except (CorruptionError, ValueError) as error:
                assert str(source) in str(error), (place, other)
            except FileNotFoundError as error:
                assert place[-1] in ("basename", "zip_data"), (place, other)
                assert str(source) in str(error.filename)
            else:
                assert len(found) == len(wanted), (place, other)


# Parquet


def test_parquet_columns_keep_their_types(tmp_path: Path) -> None:
    images = [{"bytes": b"\xff\xd8%d" % i, "path": f"{i}.jpg"} for i in range(600)]
    tokens = [list(range(i % 5)) for i in range(600)]
    table = pa.table(
        {
            "image": pa.array(images),
            "label": pa.array([i % 7 for i in range(600)], pa.int64()),
            "small": pa.array([i % 200 for i in range(600)], pa.uint8()),
            "half": pa.array(np.arange(600).astype(np.float16)),
            "score": pa.array([i / 2 for i in range(600)], pa.float64()),
            "good": pa.array([i % 2 == 0 for i in range(600)]),
            "text": pa.array([f"grün {i}" for i in range(600)]).dictionary_encode(),
            "tokens": pa.array(tokens, pa.list_(pa.int32())),
            "box": pa.array([[i, 1.5] for i in range(600)], pa.list_(pa.float32(), 2)),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=250)

    ok("ffrecord-pack", tmp_path / "a.parquet", tmp_path / "x.ffr", "--key", "text")

    assert schema(tmp_path / "x.ffr") == {
        "image": "struct<bytes: bytes, path: utf8>",
        "label": "i64",
        "small": "u8",
        "half": "f16",
        "score": "f64",
        "good": "bool",
        "text": "utf8",
        "tokens": "list<i32>",
        "box": "f32[2]",
    }
    found = records(tmp_path / "x.ffr")
    assert len(found) == 600
    image = found[307].pop("image")
    assert (bytes(image["bytes"]), image["path"]) == (b"\xff\xd8307", "307.jpg")
    assert found[307] == {
        "label": 307 % 7,
        "small": 107,
        "half": 307.0,
        "score": 153.5,
        "good": False,
        "text": "grün 307",
        "tokens": [0, 1],
        "box": [307.0, 1.5],
    }
    assert ffrecord.open(tmp_path / "x.ffr").find("grün 411") == 411


def test_parquet_that_cannot_be_packed_whole_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": pa.nulls(2), "b": [1, 2]}), source)
    message = refused(2, source, tmp_path / "x.ffr")
    assert "'a' is null, which records cannot hold" in message
    assert "--drop" in message and "--cast" in message
    for option in (["--column", "b"], ["--drop", "a"]):
        ok("ffrecord-pack", source, tmp_path / "b.ffr", *option, "--overwrite")
        assert records(tmp_path / "b.ffr") == [{"b": 1}, {"b": 2}]
    ok("ffrecord-pack", source, tmp_path / "c.ffr", "--cast", "a=i32")
    assert records(tmp_path / "c.ffr") == [{"a": None, "b": 1}, {"a": None, "b": 2}]
    assert "no column 'c'; columns: a, b" in refused(2, source, tmp_path / "x.ffr", "--column", "c")

    source.write_bytes(source.read_bytes()[:-6])
    assert "no whole Parquet file" in refused(3, source, tmp_path / "x.ffr")

    wrong = pa.array([b"a", b"\xff"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"s": wrong}), source)
    assert f"{source}: column 's' is not valid" in refused(2, source, tmp_path / "x.ffr")


def test_parquet_with_another_count_of_rows_than_it_says_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": range(20)}), path)
    whole = path.read_bytes()
    footer = len(whole) - pq.read_metadata(path).serialized_size - 8
    messages = []
    for at in range(footer, len(whole)):
        for count in (0, 19, 21) if whole[at] == 2 * 20 else ():  # As thrift writes it.
            path.write_bytes(whole[:at] + bytes([2 * count]) + whole[at + 1 :])
            try:
                source = open_source(path)
                assert sum(len(chunk.table) for chunk, _ in source.samples()) == 20  # type: ignore[union-attr]
            except (CorruptionError, ValueError) as error:
                messages.append(str(error))
    for count in (0, 19, 21):
        assert f"{path} has 20 rows, and says that it has {count}" in messages


def test_parquet_damaged_anywhere_is_refused_by_name_or_read_as_it_was(tmp_path: Path) -> None:
    """What pyarrow tells of damage are errors of many kinds, of which few name the file."""
    path = tmp_path / "a.parquet"
    table = pa.table(
        {
            "n": range(20),
            "s": pa.array([f"s{i % 3}" for i in range(20)]).dictionary_encode(),
            "l": [[i] * (i % 3) for i in range(20)],
        }
    )
    pq.write_table(table, path, write_page_checksum=True)
    whole = path.read_bytes()
    footer = len(whole) - pq.read_metadata(path).serialized_size - 8
    chance = random.Random(int(os.environ.get("FFRECORD_TEST_SEED", "1")))
    refused_count = 0
    for at in chance.sample(range(4, footer), 100) + chance.sample(range(footer, len(whole)), 300):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << chance.randrange(8)
        path.write_bytes(flipped)
        try:
            for _ in open_source(path).samples():
                pass
        except (CorruptionError, ValueError) as error:
            assert str(path) in str(error), at
            refused_count += 1
    assert refused_count > 200


def test_a_damaged_parquet_page_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "a.parquet"
    table = pa.table({"a": list(range(1000)), "b": [b"x" * 9] * 1000})
    pq.write_table(table, source, write_page_checksum=True, compression="zstd")
    whole = source.read_bytes()
    first = pq.read_metadata(source).row_group(0).column(0)
    middle = first.data_page_offset + first.total_compressed_size // 2
    source.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])

    assert f"{source} is damaged" in refused(3, source, tmp_path / "x.ffr")


@pytest.mark.parametrize(
    ("name", "package"), [("a.tfrecord", "google_crc32c"), ("a.parquet", "pyarrow")]
)
def test_a_package_that_is_missing_is_named(tmp_path: Path, name: str, package: str) -> None:
    absent = tmp_path / "absent"
    absent.mkdir()
    (absent / f"{package}.py").write_text("raise ImportError('not here')\n")
    (tmp_path / name).write_bytes(TFRECORDS if package == "google_crc32c" else b"PAR1PAR1")
    path = os.pathsep.join([str(absent), os.environ.get("PYTHONPATH", "")])

    done = run("ffrecord-pack", tmp_path / name, tmp_path / "x.ffr", env={"PYTHONPATH": path})

    assert done.returncode == 4
    assert f"needs {package}, which is not installed: pip install" in done.stderr


# Record files


def test_record_files_are_packed_again(tmp_path: Path) -> None:
    written: list[dict[str, Any]] = []
    (tmp_path / "parts").mkdir()
    for part in range(2):
        with ffrecord.Writer(
            tmp_path / "parts" / f"{part}.ffr",
            {"name": "utf8", "v": "f32[2]", "data": "bytes"},
            key="name",
        ) as writer:
            for i in range(700):
                value: npt.NDArray[np.float32] = np.array([part, i], np.float32)
                written.append({"name": f"{part}/{i}", "v": value, "data": b"x" * i})
                writer.write(written[-1])

    ok("ffrecord-pack", tmp_path / "parts", tmp_path / "x.ffr", "--compress")

    expected = [{**each, "v": each["v"].tolist()} for each in written]
    assert records(tmp_path / "x.ffr") == expected
    assert ffrecord.open(tmp_path / "x.ffr").find("1/600") == 1300
    assert (tmp_path / "x.ffr").stat().st_size < 200_000


def test_a_file_of_the_first_version_becomes_one_of_the_second(tmp_path: Path) -> None:
    from ffrecord import FileWriter

    contents = [b"x" * i for i in range(50)]
    with FileWriter(str(tmp_path / "old.ffr"), len(contents)) as writer:
        for content in contents:
            writer.write_one(content)

    ok("ffrecord-pack", tmp_path / "old.ffr", tmp_path / "new.ffr")

    assert [file.format_version for file in ffrecord.open(tmp_path / "old.ffr").files] == [1]
    assert [file.format_version for file in ffrecord.open(tmp_path / "new.ffr").files] == [2]
    assert records(tmp_path / "new.ffr") == contents


def test_a_folder_of_classes_may_hold_what_was_packed_of_it(tmp_path: Path) -> None:
    (tmp_path / "images" / "cats").mkdir(parents=True)
    (tmp_path / "images" / "cats" / "1.png").write_bytes(b"x")
    for _ in range(2):
        ok("ffrecord-pack", tmp_path / "images", tmp_path / "images" / "x.ffr", "--overwrite")

    assert [each["name"] for each in records(tmp_path / "images" / "x.ffr")] == ["cats/1.png"]


# What is asked for in vain


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--nested"], "--nested does not apply"),
        (["--ragged", "x"], "--ragged does not apply"),
        (["--include", "*.x"], "--include does not apply"),
        (["--label-field", "x"], None),
    ],
)
def test_options_that_mean_nothing_are_refused(
    tmp_path: Path, options: list[str], expected: str | None
) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n')
    if expected is None:
        ok("ffrecord-pack", tmp_path / "a.jsonl", tmp_path / "x.ffr", *options)
    else:
        assert expected in refused(2, *options, tmp_path / "a.jsonl", tmp_path / "x.ffr")


@pytest.mark.parametrize("options", [(), ("--raw",)])
def test_hidden_files_of_a_tar_are_skipped_and_counted(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    names = [
        "._1.jpg",
        "1.jpg",
        "._1.txt",
        "1.txt",
        "./._2.jpg",
        "./2.jpg",
        ".git/2.txt",
        "./2.txt",
    ]
    with tarfile.open(tmp_path / "mac.tar", "w") as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = 1
            tar.addfile(info, io.BytesIO(b"x"))

    line = ok("ffrecord-pack", tmp_path / "mac.tar", tmp_path / "x.ffr", *options)

    found = [each["name"].removeprefix("./") for each in records(tmp_path / "x.ffr")]
    assert found == (["1.jpg", "1.txt", "2.jpg", "2.txt"] if options else ["1", "2"])
    assert "skipped 4 hidden files and folders" in line


@pytest.mark.parametrize(
    "extension", ["x:valid", "label:valid", "name", "x[]:i64", "y[]:i64", "y{f}", "x{f}"]
)
def test_an_extension_that_names_what_is_stored_beside_columns_is_refused(
    extension: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:
        for name in ("1.x", f"1.{extension}", "2.x", f"2.{extension}"):
            info = tarfile.TarInfo(name)
            info.size = 1
            tar.addfile(info, io.BytesIO(b"x"))

    said = refused(2, path, tmp_path / "x.ffr")

    assert f"a file with the extension .{extension}, which cannot name a column" in said
    ok("ffrecord-pack", path, tmp_path / "x.ffr", "--raw")


def test_an_extension_that_makes_no_part_of_a_column_is_a_column(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name in ("1.x", "1.l[]", "1.m[]:i64"):
            info = tarfile.TarInfo(name)
            info.size = 1
            tar.addfile(info, io.BytesIO(b"x"))

    ok("ffrecord-pack", tmp_path / "a.tar", tmp_path / "x.ffr", "--drop", "m[]:i64")

    assert records(tmp_path / "x.ffr") == [{"name": "1", "x": b"x", "l[]": b"x"}]


def test_hidden_files_of_a_folder_are_skipped_and_counted(tmp_path: Path) -> None:
    for name in ("cats/1.png", "cats/.DS_Store", "cats/.cache/2.png", ".ipynb_checkpoints/3.png"):
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")

    line = ok("ffrecord-pack", tmp_path / "images", tmp_path / "x.ffr")

    assert [each["name"] for each in records(tmp_path / "x.ffr")] == ["cats/1.png"]
    assert "skipped 3 hidden files and folders" in line
    assert "1 classes: 0 cats" in line
