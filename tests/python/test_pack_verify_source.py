"""Goal: a packed folder is compared with its source, and each difference is named.

Method: folders of each kind are packed and compared; then one byte of the source, or of the result,
is another one, inputs are touched, longer or gone, and the function is another one.
"""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import cuttable
import ffrecord
import packing_functions
from cli import ok, run
from ffrecord.errors import CorruptionError
from ffrecord.pack import SourceOptions, maps, open_source, pack, verify_source
from packing import PART, write_classes

pytestmark = pytest.mark.wrong_data

pytest.importorskip("pyarrow")

Maker = Callable[[Path], Path]


def replaced(path: Path, old: bytes, new: bytes) -> None:
    """Other bytes of the same size in a file, whose time stays."""
    data, found = path.read_bytes(), path.stat()
    assert len(old) == len(new)
    assert data.count(old) >= 1
    path.write_bytes(data.replace(old, new, 1))
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


@pytest.mark.parametrize("name", cuttable.KINDS)
def test_a_folder_of_each_kind_is_as_its_source(tmp_path: Path, name: str) -> None:
    maker, options, _ = cuttable.KINDS[name]
    summary = pack(open_source(str(maker(tmp_path)), options), tmp_path / "x", part_size_bytes=6000)
    report = verify_source(tmp_path / "x")
    assert report.differences == ()
    assert report.is_same
    assert report.record_count == summary.record_count


@pytest.mark.parametrize("key", [None, "text"])
@pytest.mark.parametrize("compress", [False, True])
def test_a_value_that_differs_is_named_by_input_sample_and_column(
    tmp_path: Path, compress: bool, key: str | None
) -> None:
    path = tmp_path / "a.jsonl"
    rows = [{"id": i, "text": f"row {i:04}"} for i in range(900)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    pack(path, tmp_path / "x", part_size_bytes=6000, compress=compress, key=key)
    replaced(path, b"row 0123", b"row x123")
    replaced(path, b'"id": 877', b'"id": 878')
    report = verify_source(tmp_path / "x")
    keys = 0 if key is None else 1
    assert report.difference_count == 2 + keys
    assert f"{path}: sample 123: text differ" in report.differences
    assert f"{path}: sample 877: id differ" in report.differences
    assert report.changed == ()


def test_what_a_function_makes_is_compared_too(tmp_path: Path) -> None:
    folder = write_classes(_made(tmp_path / "classes"))
    pack(folder, tmp_path / "x", map="packing_functions:letters", part_size_bytes=PART)
    assert verify_source(tmp_path / "x").is_same

    file = folder / "b" / "042"
    content, found = file.read_bytes(), file.stat()
    file.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))
    report = verify_source(tmp_path / "x")
    assert report.differences == (f"{folder}: sample 142: byte differ",)

    other = packing_functions.size_of
    with pytest.raises(ValueError, match="is not the function with which"):
        verify_source(tmp_path / "x", map=other)


def test_a_function_with_arguments_is_given_again(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"id": i % 7}) + "\n" for i in range(900)))
    for number, function in enumerate((maps.keep("id > 3"), maps.deduplicate("id"))):
        folder = tmp_path / str(number)
        pack(path, folder, map=function, part_size_bytes=2000)
        with pytest.raises(ValueError, match="give it again, with its arguments"):
            verify_source(folder)
        assert verify_source(folder, map=function).is_same


def test_inputs_that_are_gone_touched_or_longer_are_named(tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.jsonl" for name in "abcd"]
    for path in paths:
        path.write_text("".join(json.dumps({"id": i}) + "\n" for i in range(300)))
    pack([str(path) for path in paths], tmp_path / "x", part_size_bytes=1000)
    _, gone, touched, longer = paths
    gone.unlink()
    os.utime(touched, (1, 1))
    with longer.open("a") as file:
        file.write('{"id": 7}\n')

    report = verify_source(tmp_path / "x")
    assert report.gone == (str(gone),)
    assert set(report.changed) == {str(touched), str(longer)}
    assert report.difference_count == 1
    assert str(longer) in report.differences[0]
    assert not report.is_same
    done = run("ffrecord", "verify", "--source", tmp_path / "x")
    assert done.returncode == 3
    assert f"{gone} is gone" in done.stdout

    longer.write_text(touched.read_text())
    shutil.copy(touched, gone)
    assert verify_source(tmp_path / "x").is_same
    assert json.loads(ok("ffrecord", "verify", "--source", "--json", tmp_path / "x"))["is_same"]


@pytest.mark.parametrize("cut", [1, 5])
def test_records_that_are_not_there_any_more_are_named(tmp_path: Path, cut: int) -> None:
    """Also if those that are compared at a time are not all lost, and other records follow."""
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"id": i}) + "\n" for i in range(900)))
    pack(path, tmp_path / "x", part_size_bytes=1000)
    part = tmp_path / "x" / "PART_00001.ffr"
    before, first = ffrecord.read_table(part), len(ffrecord.open(tmp_path / "x" / "PART_00000.ffr"))
    ffrecord.write_table(before.slice(0, len(before) - cut), part, replace=True)

    report = verify_source(tmp_path / "x")
    lost = range(first + len(before) - cut, first + len(before))
    assert report.differences == tuple(
        f"{path}: sample {sample}: its record is not there any more" for sample in lost
    )


def test_a_result_that_is_damaged_or_lacks_a_part_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"id": f"{i:06}"}) + "\n" for i in range(900)))
    pack(path, tmp_path / "x", part_size_bytes=6000)
    parts = sorted((tmp_path / "x").glob("*.ffr"))
    value = str(ffrecord.open(parts[1]).read([3])[0]["id"]).encode()
    replaced(parts[1], value, b"x" + value[1:])
    parts[2].unlink()
    report = verify_source(tmp_path / "x")
    assert any(parts[1].name in each for each in report.differences)
    assert any(parts[2].name in each for each in report.differences)
    assert not report.is_same


@pytest.mark.parametrize("name", ["PART_99999.ffr", "a.ffr", ".a.ffr"])
def test_records_in_the_folder_that_no_input_made_are_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"id": f"{i:06}"}) + "\n" for i in range(900)))
    pack(path, tmp_path / "x", part_size_bytes=6000)
    shutil.copy(tmp_path / "x" / "PART_00000.ffr", tmp_path / "x" / name)
    assert len(ffrecord.open(tmp_path / "x")) > 900
    report = verify_source(tmp_path / "x")
    assert not report.is_same
    assert [each.partition(" ")[0] for each in report.differences] == [name]


def test_a_folder_without_a_list_or_with_another_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": 1}\n' * 50)
    pack(path, tmp_path / "x.ffr")
    with pytest.raises(ValueError, match=r"has no PACKED\.json"):
        verify_source(tmp_path / "x.ffr")
    pack(path, tmp_path / "x")
    listed = tmp_path / "x" / "PACKED.json"
    found = json.loads(listed.read_text())
    for change in ("[1]", "{", json.dumps({**found, "inputs": []}), "\xff"):
        listed.write_bytes(change.encode("latin-1"))
        with pytest.raises(CorruptionError, match="not as packing wrote it"):
            verify_source(tmp_path / "x")


def test_options_of_the_source_count(tmp_path: Path) -> None:
    path = cuttable.web_dataset(tmp_path)
    options = SourceOptions(columns=("jpg", "name"))
    pack(open_source(str(path), options), tmp_path / "x", part_size_bytes=6000)
    assert verify_source(tmp_path / "x").is_same


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
