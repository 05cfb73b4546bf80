"""Goal: from Python, records are found by key, columns read alone, small records compress well.

Method: files written with each option and read again; wrong options; packed folders.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ffrecord
from ffrecord.pack import open_source, pack

pytestmark = pytest.mark.wrong_data

SCHEMA = {"label": "i64", "name": "utf8", "box": "f32[2]", "image": "bytes"}


def _write(path: Path, count: int = 300, **options: object) -> None:
    with ffrecord.Writer(path, SCHEMA, **options) as writer:  # type: ignore[arg-type]
        for i in range(count):
            sample = {"label": i * i, "name": f"n{i}", "box": [i, -i], "image": b"x" * 5000}
            writer.write(sample)


def test_records_are_found_by_the_column_that_is_their_key(tmp_path: Path) -> None:
    _write(tmp_path / "a.ffr", key="name")
    with ffrecord.open(tmp_path / "a.ffr") as reader:
        assert reader.find("n17") == 17
        assert reader.find(b"n299") == 299
        assert reader.find("n300") is None
        assert reader.find_all(["n3", "no", b"n1"]) == [3, None, 1]


def test_keys_may_be_given_with_each_record(tmp_path: Path) -> None:
    path = tmp_path / "a.ffr"
    with ffrecord.Writer(path, key=True) as writer:
        writer.write(b"one", key="erste")
        writer.write(b"two")
        with pytest.raises(ValueError, match="at least one byte"):
            writer.write(b"three", key="")
    with ffrecord.Writer(path, append=True, key=True) as writer:
        writer.write(b"three", key=b"\x00")
    with ffrecord.open(path) as reader:
        assert [reader.find(key) for key in ("erste", b"\x00", "two")] == [0, 2, None]


def test_append_goes_on_with_the_key_column(tmp_path: Path) -> None:
    _write(tmp_path / "a.ffr", 3, key="name")
    with ffrecord.Writer(tmp_path / "a.ffr", append=True, key="name") as writer:
        writer.write({"label": 9, "name": "new", "box": [0, 0], "image": b""})
    with ffrecord.open(tmp_path / "a.ffr") as reader:
        assert reader.find("new") == 3
        np.testing.assert_array_equal(reader.column("label"), [0, 1, 4, 9])


def test_wrong_keys_are_refused(tmp_path: Path) -> None:
    for key in ("label", "box", "none"):
        with pytest.raises(ValueError, match="utf8 or bytes"):
            ffrecord.Writer(tmp_path / "a.ffr", SCHEMA, key=key)
    with ffrecord.Writer(tmp_path / "b.ffr") as writer, pytest.raises(ValueError, match="key"):
        writer.write(b"record", key="key")


@pytest.mark.parametrize("copied", [None, (), ("box",)])
def test_column_is_that_of_the_records(tmp_path: Path, copied: tuple[str, ...] | None) -> None:
    _write(tmp_path / "a.ffr", copy_columns=copied)
    with ffrecord.open([tmp_path / "a.ffr", tmp_path / "a.ffr"]) as reader:
        labels = reader.column("label")
        assert labels.dtype == np.int64
        np.testing.assert_array_equal(labels, [i * i for i in range(300)] * 2)
        boxes = reader.column("box", 299, 2)
        assert boxes.dtype == np.float32
        np.testing.assert_array_equal(boxes, [[299, -299], [0, 0]])
        assert reader.column("label", 600).shape == (0,)


def test_scalars_are_copied_unless_told_otherwise(tmp_path: Path) -> None:
    _write(tmp_path / "a.ffr")
    _write(tmp_path / "b.ffr", copy_columns=())
    grown = (tmp_path / "a.ffr").read_bytes().count(np.arange(3, 6).__pow__(2).tobytes())
    assert grown == 1
    assert (tmp_path / "b.ffr").read_bytes().count(np.arange(3, 6).__pow__(2).tobytes()) == 0


def test_wrong_columns_are_refused(tmp_path: Path) -> None:
    _write(tmp_path / "a.ffr", 2)
    with ffrecord.open(tmp_path / "a.ffr") as reader:
        with pytest.raises(KeyError, match="label"):
            reader.column("none")
        with pytest.raises(ValueError, match="utf8"):
            reader.column("name")
        for first, count in ((3, None), (0, 3), (-1, 1), (1, -1)):
            with pytest.raises(IndexError):
                reader.column("label", first, count)
    with pytest.raises(ValueError, match="fixed width"):
        ffrecord.Writer(tmp_path / "b.ffr", SCHEMA, copy_columns=["name"])


def test_dictionary_makes_lines_smaller(tmp_path: Path) -> None:
    lines = [
        json.dumps({"id": i, "url": f"https://example.org/{i * 7919 % 1000}", "language": "en"})
        for i in range(5000)
    ]
    sizes = {}
    for name, dictionary in (("plain", None), ("trained", 4096)):
        with ffrecord.Writer(
            tmp_path / f"{name}.ffr", compress="zstd", dictionary=dictionary
        ) as writer:
            for line in lines:
                writer.write(line.encode())
        summary = writer.close()
        sizes[name] = summary.file_size_bytes
        assert (summary.dictionary_size_bytes > 0) == (dictionary is not None)
        with ffrecord.open(tmp_path / f"{name}.ffr") as reader:
            assert bytes(reader[4321]) == lines[4321].encode()
    assert sizes["trained"] < 0.8 * sizes["plain"]
    with pytest.raises(ValueError, match="compress"):
        ffrecord.Writer(tmp_path / "c.ffr", dictionary=4096)


def test_packed_files_are_found_by_name(tmp_path: Path) -> None:
    for label in ("cat", "dog"):
        (tmp_path / "source" / label).mkdir(parents=True)
        (tmp_path / "source" / label / "1.txt").write_text(label)
    pack(open_source(tmp_path / "source"), tmp_path / "parts", part_size_bytes=1)
    with ffrecord.open(tmp_path / "parts") as reader:
        found = reader.find("dog/1.txt")
        assert found == 1
        np.testing.assert_array_equal(reader.column("label"), [0, 1])


def test_a_column_that_is_all_of_a_record_is_not_copied(tmp_path: Path) -> None:
    path = tmp_path / "a.ffr"
    rows = np.arange(600, dtype=np.float32).reshape(100, 2, 3)
    with ffrecord.Writer(path, {"row": "f32[2,3]"}) as writer:
        for row in rows:
            writer.write({"row": row})
    content = bytearray(path.read_bytes())
    content[content.index(rows[40].tobytes())] ^= 1
    (tmp_path / "bad.ffr").write_bytes(content)

    with ffrecord.open(path) as reader:
        for wanted in ([3, 4, 5], [9, 2, -1], [7, 7, 7, 1], []):
            batch = reader.read(wanted)
            np.testing.assert_array_equal(batch["row"], rows[wanted])
        batch = reader.read(range(10, 90))
        assert np.shares_memory(batch["row"], batch.slab)
        np.testing.assert_array_equal(batch[5:9]["row"], rows[15:19])
        np.testing.assert_array_equal(batch.select([3, 2, 7])["row"], rows[[13, 12, 17]])
    with ffrecord.open(tmp_path / "bad.ffr") as reader:
        kept = reader.read([39, 40, 41], on_corrupt="keep")["row"]
        np.testing.assert_array_equal(kept[[0, 2]], rows[[39, 41]])
        assert not kept[1].any()


@pytest.mark.parametrize("key", [5, 10**12, None, [1, 2], np.arange(3)])
def test_a_key_is_text_or_bytes(tmp_path: Path, key: Any) -> None:  # noqa: ANN401
    with ffrecord.Writer(tmp_path / "a.ffr", {"id": "utf8"}, key="id") as writer:
        writer.write({"id": "\0" * 5})
    reader = ffrecord.open(tmp_path / "a.ffr")
    with pytest.raises(TypeError, match="a key is str or bytes, not"):
        reader.find(key)
    assert reader.find(bytearray(5)) == reader.find(memoryview(bytes(5))) == 0
    with pytest.raises(TypeError, match="a list of keys"):
        reader.find_all("id")
