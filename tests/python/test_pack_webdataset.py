"""Goal: a sample of WebDataset is one record, and has null where it lacks a file.

Method: small shards of captioned pictures; samples and whole shards that lack a file, or have one
that the first samples do not have, before and after those that decide what the columns are.
"""

import gzip
import io
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import ffrecord
from cli import ok
from ffrecord.pack import SourceOptions, open_source, pack
from packing import records, refused

pytestmark = pytest.mark.wrong_data


def write_tar(path: Path, files: Mapping[str, bytes]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def captioned(first: int, count: int) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for i in range(first, first + count):
        key = f"shard/{i:04}"
        files |= {f"{key}.jpg": b"\xff\xd8%d" % i, f"{key}.txt": f"grün {i}".encode()}
        files |= {f"{key}.cls": b"%d" % (i % 3), f"{key}.json": b'{"i": %d}' % i}
    return files


def test_a_sample_of_webdataset_is_one_record(tmp_path: Path) -> None:
    shards = [write_tar(tmp_path / f"{n}.tar", captioned(10 * n, 10)) for n in range(3)]

    line = ok("ffrecord-pack", *shards, tmp_path / "x.ffr")

    assert line.startswith("packed 30 records, ")
    found = records(tmp_path / "x.ffr")
    assert found[17] == {
        "label": 2,
        "name": "shard/0017",
        "jpg": b"\xff\xd817",
        "txt": "grün 17",
        "json": '{"i": 17}',
    }
    assert [each["name"] for each in found] == [f"shard/{i:04}" for i in range(30)]
    assert ffrecord.open(tmp_path / "x.ffr").find("shard/0023") == 23


@pytest.mark.parametrize("lacking", ["txt", "jpg", "cls", "json"])
@pytest.mark.parametrize("late", [2, 1500])
def test_what_a_sample_lacks_is_null(lacking: str, late: int, tmp_path: Path) -> None:
    """Also in samples after those that decide what the columns are, and in a shard without any."""
    files = captioned(0, late + 2)
    del files[f"shard/{late:04}.{lacking}"]
    one = write_tar(tmp_path / "1.tar", files)
    rest = {name: data for name, data in captioned(late + 2, 3).items() if lacking not in name}
    two = write_tar(tmp_path / "2.tar", rest)

    pack([one, two], tmp_path / "x.ffr")
    pack([one, two], tmp_path / "parts", workers=2)

    column = "label" if lacking == "cls" else lacking
    wanted = [i == late or i > late + 1 for i in range(late + 5)]
    for place in ("x.ffr", "parts"):
        reader = ffrecord.open(tmp_path / place)
        assert reader.columns == ffrecord.open(tmp_path / "x.ffr").columns
        assert [sample[column] is None for sample in reader] == wanted
        others = [name for name in ("label", "jpg", "txt", "json") if name != column]
        assert all(sample[name] is not None for sample in reader for name in others)
    pack(one, tmp_path / "y.ffr", map=as_it_is, schema=None)
    assert [sample[column] is None for sample in ffrecord.open(tmp_path / "y.ffr")] == wanted[:-3]


def as_it_is(sample: dict[str, Any]) -> dict[str, Any]:
    return sample


as_it_is.schema = pa.schema(  # type: ignore[attr-defined]
    [
        ("label", pa.int64()),
        ("name", pa.string()),
        ("jpg", pa.binary()),
        ("txt", pa.string()),
        ("json", pa.string()),
    ]
)


def test_a_sample_with_more_than_the_first_is_refused_unless_columns_are_named(
    tmp_path: Path,
) -> None:
    bare = {name: data for name, data in captioned(0, 1500).items() if ".cls" not in name}
    for more in ("wav", "cls"):
        source = write_tar(tmp_path / "a.tar", bare | {f"shard/1499.{more}": b"5"})
        message = refused(2, source, tmp_path / "x.ffr")
        assert "the sample shard/1499" in message
        assert "--column" in message
        for option in (["--column", "jpg"], ["--drop", "txt", "--drop", "json"]):
            ok("ffrecord-pack", source, tmp_path / "y.ffr", *option, "--overwrite")
            assert len(records(tmp_path / "y.ffr")) == 1500


@pytest.mark.parametrize("label", [True, False])
def test_only_the_extension_cls_is_a_label(label: bool, tmp_path: Path) -> None:
    """`.seg.cls` is what a library of segmentation calls its classes, not the label."""
    files: dict[str, bytes] = {}
    for i in range(5):
        files |= {f"{i}.jpg": b"\xff\xd8%d" % i, f"{i}.seg.cls": b"of pixels %d" % i}
        files |= {f"{i}.CLS": b"%d" % i} if label else {}
    source = write_tar(tmp_path / "a.tar", files)
    pack(source, tmp_path / "x.ffr")
    ffrecord.index(source)
    for place in (tmp_path / "x.ffr", source):
        assert records(place) == [
            {
                **({"label": i} if label else {}),
                "name": f"{i}",
                "jpg": b"\xff\xd8%d" % i,
                "seg.cls": b"of pixels %d" % i,
            }
            for i in range(5)
        ]


def test_a_shard_unlike_the_first_is_refused(tmp_path: Path) -> None:
    one = write_tar(tmp_path / "1.tar", captioned(0, 3))
    two = write_tar(tmp_path / "2.tar", {"a.jpg": b"x", "a.png": b"y"})

    message = refused(2, one, two, tmp_path / "x.ffr")

    assert f"{two} has other columns than {one}" in message
    assert "jpg: bytes" in message
    (tmp_path / "folder").mkdir()
    assert "is a folder" in refused(2, one, tmp_path / "folder", tmp_path / "x.ffr")
    assert "No such file" in refused(4, one, tmp_path / "absent.tar", tmp_path / "x.ffr")


@pytest.mark.parametrize("part_size_bytes", [None, 2048])
@pytest.mark.parametrize("suffix", ["tar", "tar.gz"])
@pytest.mark.parametrize("options", [{}, {"columns": ("name", "jpg")}])
def test_late_files_of_a_sample_that_stand_apart_are_refused(
    tmp_path: Path,
    options: dict[str, Any],
    suffix: str,
    part_size_bytes: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They would be two samples, each with null for the files of the other."""
    monkeypatch.setattr("ffrecord.pack._tar._LOOK_GROUPS", 2)
    apart = {"x.jpg": b"j", "y.jpg": b"j", "x.txt": b"t", "y.txt": b"t"}
    tar = write_tar(tmp_path / "a.tar", captioned(0, 3) | apart)
    if suffix == "tar.gz":
        tar.with_suffix(".tar.gz").write_bytes(gzip.compress(tar.read_bytes()))
    source = open_source(tmp_path / f"a.{suffix}", SourceOptions(**options))

    with pytest.raises(ValueError, match="the files of the sample x are not adjacent: make the"):
        pack(source, tmp_path / "x", part_size_bytes=part_size_bytes)

    assert not (tmp_path / "x").exists()


def test_late_files_of_a_sample_that_stand_apart_are_not_read_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ffrecord.pack._tar._LOOK_GROUPS", 2)
    apart = {"x.jpg": b"j", "y.jpg": b"j", "x.txt": b"t", "y.txt": b"t"}
    tar = write_tar(tmp_path / "a.tar", captioned(0, 3) | apart)

    with pytest.raises(ValueError, match="the files of the sample x are not adjacent"):
        ffrecord.index(tar)

    assert os.listdir(tmp_path) == ["a.tar"]
