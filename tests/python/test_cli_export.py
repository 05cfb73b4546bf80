"""Goal: an export has every record, exactly; nothing in a record leads out of it.

Method: export small files to each format, and read them with what others use: tarfile, json,
pyarrow, and our own packing.
"""

import base64
import errno
import json
import os
import subprocess
import sys
import tarfile
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ffrecord
from cli import ok, run
from ffrecord._cli.data import new_file as files
from packing import records
from reading import plain_file, raw, sample, typed_file

pytestmark = pytest.mark.wrong_data

JPEG = b"\xff\xd8\xff\xe0" + bytes(40)


def pictures(folder: Path) -> Path:
    path = folder / "pictures.ffr"
    schema = {"image": "bytes", "label": "i64", "caption": "utf8", "box": "f32[2]", "half": "bf16"}
    with ffrecord.Writer(path, schema, key=True) as writer:
        for i in range(30):
            value = {"image": JPEG + bytes([i]), "label": i % 3, "caption": f"é{i}"}
            writer.write({**value, "box": np.array([i, np.nan]), "half": 1.5}, key=f"k{i}")
    return path


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_json_lines(tmp_path: Path) -> None:
    ok("ffrecord", "export", pictures(tmp_path), tmp_path / "x.jsonl")
    found = lines(tmp_path / "x.jsonl")
    assert len(found) == 30
    assert found[7] == {
        "index": 7,
        "key": "k7",
        "record": {
            "image": {"base64": base64.b64encode(JPEG + b"\x07").decode()},
            "label": 1,
            "caption": "é7",
            "box": [7.0, "nan"],
            "half": 1.5,
        },
    }
    ok(
        "ffrecord",
        "export",
        plain_file(tmp_path),
        tmp_path / "p.jsonl",
        "--start",
        "5",
        "--count",
        "2",
    )
    for i, line in zip((5, 6), lines(tmp_path / "p.jsonl"), strict=True):
        assert line == {"index": i, "record": raw(i).decode()}


def test_a_tar_is_what_webdataset_reads_and_packs_again(tmp_path: Path) -> None:
    ok("ffrecord", "export", pictures(tmp_path), tmp_path / "x.tar")
    with tarfile.open(tmp_path / "x.tar") as tar:
        names = tar.getnames()
        member = tar.extractfile("000007.image.jpg")
        assert member is not None and member.read() == JPEG + b"\x07"
        box = tar.extractfile("000007.box.json")
        assert box is not None and json.load(box) == [7.0, "nan"]
    assert names[:6] == [
        f"000000.{end}"
        for end in ("key", "image.jpg", "cls", "caption.txt", "box.json", "half.json")
    ]
    ok("ffrecord-pack", tmp_path / "x.tar", tmp_path / "again.ffr")
    again = records(tmp_path / "again.ffr")
    assert len(again) == 30
    assert (again[29]["label"], again[29]["caption.txt"]) == (2, "é29")
    assert again[29]["image.jpg"] == JPEG + b"\x1d"


def test_labels_that_may_be_null_are_labels_in_a_tar(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"label": [None, 3], "jpg": [b"x", b"y"], "txt": ["a", "b"]})
    ffrecord.write_table(table, tmp_path / "x.ffr")
    ok("ffrecord", "export", tmp_path / "x.ffr", tmp_path / "x.tar")
    with tarfile.open(tmp_path / "x.tar") as tar:
        assert tar.getnames()[2:] == [f"000001.{end}" for end in ("cls", "jpg", "txt")]
    ok("ffrecord-pack", tmp_path / "x.tar", tmp_path / "again.ffr")
    assert ffrecord.read_table(tmp_path / "again.ffr")["label"].to_pylist() == [None, 3]


def test_a_folder_has_a_file_for_each_value(tmp_path: Path) -> None:
    ok("ffrecord", "export", pictures(tmp_path), tmp_path / "x")
    index = lines(tmp_path / "x" / "records.jsonl")
    assert [each["key"] for each in index] == [f"k{i}" for i in range(30)]
    entry = index[9]["record"]
    assert entry["values"] == {"label": 0, "box": [9.0, "nan"], "half": 1.5}
    assert (tmp_path / "x" / entry["files"]["image"]).read_bytes() == JPEG + b"\x09"
    assert (tmp_path / "x" / entry["files"]["caption"]).read_text() == "é9"
    assert entry["files"]["image"] == "00000/000009.image.jpg"
    ok("ffrecord", "export", plain_file(tmp_path), tmp_path / "p")
    name = lines(tmp_path / "p" / "records.jsonl")[299]["record"]["files"]["record"]
    assert (tmp_path / "p" / name).read_bytes() == raw(299)


def test_parquet_has_the_columns(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    ok("ffrecord", "export", pictures(tmp_path), tmp_path / "x.parquet")
    table = parquet.read_table(tmp_path / "x.parquet").to_pylist()
    assert len(table) == 30
    assert (table[4]["image"], table[4]["label"], table[4]["caption"]) == (JPEG + b"\x04", 1, "é4")
    assert table[4]["box"][0] == 4.0 and np.isnan(table[4]["box"][1])
    assert (table[4]["half"], table[4]["__key__"]) == (1.5, b"k4")
    ok("ffrecord", "export", typed_file(tmp_path), tmp_path / "t.parquet", "--column", "box")
    boxes = parquet.read_table(tmp_path / "t.parquet").to_pylist()
    assert list(boxes[3]) == ["box"]
    assert boxes[3]["box"] == np.asarray(sample(3)["box"]).tolist()
    ok("ffrecord", "export", plain_file(tmp_path), tmp_path / "p.parquet")
    assert parquet.read_table(tmp_path / "p.parquet")["record"][11].as_py() == raw(11)


def test_a_column_that_is_a_key_by_chance_does_not_take_its_place(tmp_path: Path) -> None:
    """Only the first record's key is its text."""
    path = tmp_path / "chance.ffr"
    with ffrecord.Writer(path, {"text": "utf8"}, key=True) as writer:
        for number in range(5_000):
            key = f"key{number}" if number != 4_500 else "other"
            writer.write({"text": f"key{number}"}, key=key)

    ok("ffrecord", "export", path, tmp_path / "x.tar")
    ok("ffrecord", "export", path, tmp_path / "y.tar", "--count", "4500")

    with tarfile.open(tmp_path / "x.tar") as tar:
        assert len(tar.getnames()) == 10_000
        key = tar.extractfile("004500.key")
        assert key is not None and key.read() == b"other"
        text = tar.extractfile("000000.text")
        assert text is not None and text.read() == b"key0"
    with tarfile.open(tmp_path / "y.tar") as tar:
        assert len(tar.getnames()) == 4500
    parquet = pytest.importorskip("pyarrow.parquet")
    ok("ffrecord", "export", path, tmp_path / "x.parquet")
    ok("ffrecord", "export", path, tmp_path / "y.parquet", "--count", "4500")
    table = parquet.read_table(tmp_path / "x.parquet")
    assert (len(table), table["__key__"][4500].as_py()) == (5_000, b"other")
    assert parquet.read_table(tmp_path / "y.parquet").column_names == ["text"]


@pytest.mark.parametrize("format_", ["webdataset", "jsonl", "parquet"])
def test_memory_does_not_grow_with_the_records(tmp_path: Path, format_: str) -> None:
    from ffrecord._cli.data import exporting

    with ffrecord.Writer(tmp_path / "x.ffr", {"number": "i64", "text": "utf8"}) as writer:
        for number in range(8_400):
            writer.write({"number": number, "text": f"text {number}"})

    def peak(count: int) -> int:
        with ffrecord.open(tmp_path / "x.ffr") as reader:
            reader.read([0])
            tracemalloc.start()
            export = exporting.Export(reader, reader.columns, None)
            export.write(range(count), tmp_path / f"{count}", format_, True)
            _, most = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        return most

    peak(10)  # Modules are imported, too.
    assert peak(8_400) < peak(4_200) + (1 << 20)


def test_a_column_named_twice_is_written_once(tmp_path: Path) -> None:
    path = pictures(tmp_path)
    twice = ("--column", "label", "--column", "caption", "--column", "label")
    ok("ffrecord", "export", path, tmp_path / "x.jsonl", *twice)
    assert lines(tmp_path / "x.jsonl")[1]["record"] == {"label": 1, "caption": "é1"}
    parquet = pytest.importorskip("pyarrow.parquet")
    ok("ffrecord", "export", path, tmp_path / "x.parquet", *twice)
    names = parquet.read_table(tmp_path / "x.parquet").column_names
    assert names == ["label", "caption", "__key__"]


def test_a_file_that_is_read_is_not_replaced(tmp_path: Path) -> None:
    path = plain_file(tmp_path)
    before = path.read_bytes()
    os.link(path, tmp_path / "other.jsonl")
    for target in (path, tmp_path / "other.jsonl"):
        for dry in ((), ("--dry-run",)):
            done = run("ffrecord", "export", path, target, "--format", "jsonl", "--overwrite", *dry)
            assert (done.returncode, "is a file that is read" in done.stderr) == (2, True)
    done = run("ffrecord", "view", path, "--output", path, "--overwrite")
    assert (done.returncode, "is a file that is read" in done.stderr) == (2, True)
    assert path.read_bytes() == before


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("has_nameless", [False, True])
def test_a_file_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overwrite: bool, has_nameless: bool
) -> None:
    done: list[str] = []
    fsync, link = os.fsync, os.link

    def noted_fsync(descriptor: int) -> None:
        what = "folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "file"
        done.append(f"sync {what} of {os.fstat(descriptor).st_size if what == 'file' else 0}")
        fsync(descriptor)

    def noted_link(*names: Any, **others: Any) -> None:  # noqa: ANN401
        done.append("name")
        link(*names, **others)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "link", noted_link)
    if not has_nameless:
        monkeypatch.setattr(files, "_nameless", lambda folder: None)

    with files.new_file(tmp_path / "a", overwrite) as file:
        file.write(b"abc")

    assert done == ["sync file of 3", "name", "sync folder of 0"]


def test_an_exported_folder_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ffrecord._cli.data import exporting
    from ffrecord._write import new_folder

    done: list[str] = []
    contents, rename = new_folder.sync_contents, os.rename

    def noted_contents(folder: Path) -> None:
        done.append(f"sync {sorted(os.listdir(folder))}")
        contents(folder)

    def noted_rename(one: Path, other: Path) -> None:
        done.append(f"rename {Path(other).name}")
        rename(one, other)

    monkeypatch.setattr(exporting, "sync_contents", noted_contents)
    monkeypatch.setattr(os, "rename", noted_rename)
    with ffrecord.open(plain_file(tmp_path)) as reader:
        exporting.Export(reader, (), None).write(range(9), tmp_path / "x", "folder", False)

    assert done[-2:] == ["sync ['00000', 'records.jsonl']", "rename x"]
    with pytest.raises(FileNotFoundError):
        contents(tmp_path / "absent")


@pytest.mark.parametrize("target", ["x", "x.tar", "x.jsonl", "x.parquet"])
def test_names_of_strangers_lead_nowhere(tmp_path: Path, target: str) -> None:
    names = ["../../evil", "/etc/evil", "a/b", "A/B", "a.b", "é" * 120, ".", "key", "\n"]
    with ffrecord.Writer(tmp_path / "h.ffr", dict.fromkeys(names, "bytes"), key=True) as writer:
        for i in range(3):
            writer.write({name: name.encode() for name in names}, key=f"../../key{i}")
    inside = tmp_path / "in"
    inside.mkdir()

    ok("ffrecord", "export", tmp_path / "h.ffr", inside / target)

    assert sorted(os.listdir(tmp_path)) == ["h.ffr", "in"]
    assert os.listdir(inside) == [target]
    if target == "x.tar":
        with tarfile.open(inside / target) as tar:
            found = tar.getnames()
            assert len(found) == len(set(map(str.lower, found))) == 3 * (len(names) + 1)
            assert not any("/" in name or ".." in name for name in found)
    if target == "x":
        written = [path for path in (inside / "x" / "00000").iterdir()]
        assert len(written) == 3 * len(names)
        entry = lines(inside / "x" / "records.jsonl")[0]["record"]["files"]
        for name in names:
            assert (inside / "x" / entry[name]).read_bytes() == name.encode()


def test_damage_leaves_nothing_and_existing_files_stay(tmp_path: Path) -> None:
    path = plain_file(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"299:", b"29x:", 1))
    (tmp_path / "mine.tar").write_text("mine")
    for target in ("x", "x.tar", "x.jsonl", "x.parquet"):
        done = run("ffrecord", "export", path, tmp_path / target)
        assert done.returncode == 3, done.stderr
        done = run("ffrecord", "export", path, tmp_path / "mine.tar", "--overwrite")
        assert done.returncode == 3
        assert sorted(os.listdir(tmp_path)) == ["mine.tar", "plain.ffr"]
        assert (tmp_path / "mine.tar").read_text() == "mine"
    done = run("ffrecord", "export", path, tmp_path / "mine.tar", "--count", "2")
    assert done.returncode == 4 and "--overwrite" in done.stderr
    ok("ffrecord", "export", path, tmp_path / "mine.tar", "--count", "2", "--overwrite")
    assert tarfile.is_tarfile(tmp_path / "mine.tar")
    assert sorted(os.listdir(tmp_path)) == ["mine.tar", "plain.ffr"]


def test_file_systems_without_nameless_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refusing(path: Any, flags: int, *more: Any, **others: Any) -> int:  # noqa: ANN401
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "no")
        return real(path, flags, *more, **others)

    monkeypatch.setattr(os, "open", refusing)
    for overwrite in (False, True):
        with files.new_file(tmp_path / "a", overwrite) as file:
            file.write(b"%d" % overwrite)
        assert (tmp_path / "a").read_bytes() == b"%d" % overwrite
    with pytest.raises(KeyError), files.new_file(tmp_path / "b", False):
        raise KeyError
    assert os.listdir(tmp_path) == ["a"]


def test_what_a_kill_left_without_nameless_files_is_removed_by_the_next_run(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path\n"
        "from ffrecord._cli.data import new_file\n"
        "new_file._nameless = lambda folder: None\n"
        "with new_file.new_file(Path(sys.argv[1]), False) as file:\n"
        "    file.write(b'x')\n"
        "    if sys.argv[2] == 'kill':\n"
        "        os._exit(9)\n"
    )

    def runs(how: str) -> list[str]:
        subprocess.run([sys.executable, "-c", code, tmp_path / "a", how], check=False)
        return os.listdir(tmp_path)

    for _ in range(2):
        (left_over,) = runs("kill")
        assert left_over.startswith(".a.partial-")
    assert runs("to the end") == ["a"]


def test_what_appears_meanwhile_is_left(tmp_path: Path) -> None:
    with pytest.raises(ffrecord.ConflictError), files.new_file(tmp_path / "a", False) as file:
        file.write(b"ours")
        (tmp_path / "a").write_bytes(b"theirs")
    assert (tmp_path / "a").read_bytes() == b"theirs"
    assert os.listdir(tmp_path) == ["a"]


def test_links_and_devices_are_not_replaced(tmp_path: Path) -> None:
    path = plain_file(tmp_path)
    (tmp_path / "real.jsonl").write_text("mine")
    (tmp_path / "link.jsonl").symlink_to("real.jsonl")
    os.mkfifo(tmp_path / "fifo.jsonl")
    for name, expected in (("link", "is a symbolic link to real.jsonl"), ("fifo", "no plain file")):
        done = run("ffrecord", "export", path, tmp_path / f"{name}.jsonl", "--overwrite")
        assert (done.returncode, expected in done.stderr) == (4, True), done.stderr
    assert (tmp_path / "real.jsonl").read_text() == "mine"
    assert (tmp_path / "link.jsonl").is_symlink()


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    path = plain_file(tmp_path)
    for target in ("x", "x.tar", "x.jsonl"):
        facts = json.loads(ok("ffrecord", "export", path, tmp_path / target, "--dry-run", "--json"))
        assert (facts["record_count"], facts["dry_run"]) == (300, True)
    assert os.listdir(tmp_path) == ["plain.ffr"]


WRONG = [
    (["FILE", "x.ffr"], "ffrecord merge"),
    (["FILE", "x.zip"], "add --format"),
    (["FILE", ""], "name is empty"),
    (["FILE", "s3://bucket/x.tar"], "is an address"),
    (["FILE", "ffrecord://localhost/x"], "is an address"),
    (["FILE", "none/x.tar"], "there is no folder"),
    (["FILE", "x", "--format", "zip"], "--format"),
    (["FILE", "x", "--start", "300"], "there are 300 records"),
    (["FILE", "x", "--count", "0"], "--count"),
    (["FILE", "x", "--column", "label"], "records are plain bytes"),
    (["FILE", "."], "exists"),
    (["x.tar", "FILE"], "ffrecord merge"),
]


@pytest.mark.parametrize(("arguments", "expected"), WRONG, ids=lambda each: str(each)[:40])
def test_wrong_arguments_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = plain_file(tmp_path)
    done = run("ffrecord", "export", *[str(path) if word == "FILE" else word for word in arguments])
    assert done.returncode in (2, 4)
    assert expected in done.stderr
    assert os.listdir(tmp_path) == ["plain.ffr"]


def test_a_table_of_arrow_comes_back_with_its_types_and_nulls(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pa.table(
        {
            "name": pa.array([f"n{i}" for i in range(5000)]),
            "age": pa.array([None if i % 3 else i for i in range(5000)], pa.int32()),
            "tokens": pa.array([[*range(i % 4)] for i in range(5000)]),
            "box": [{"x": float(i), "label": "c"} if i % 2 else None for i in range(5000)],
            "seen": pa.array(range(5000), pa.timestamp("ms")),
        }
    )
    source = tmp_path / "a.ffr"
    ffrecord.write_table(table, source, key="name")

    ok("ffrecord", "export", source, tmp_path / "x.parquet")
    found = parquet.read_table(tmp_path / "x.parquet")
    assert found.to_pylist() == table.to_pylist()
    assert found.schema.field("seen").type == pa.timestamp("ms")

    ok("ffrecord", "export", source, tmp_path / "y.parquet", "--column", "age")
    assert parquet.read_table(tmp_path / "y.parquet").column_names == ["age", "__key__"]
    for target in ("x", "x.tar", "x.jsonl"):
        ok("ffrecord", "export", source, tmp_path / target, "--count", "10")
    ffrecord.write_table(table, tmp_path / "b.ffr")
    ok("ffrecord", "export", tmp_path / "b.ffr", tmp_path / "b.parquet", "--start", "4000")
    assert parquet.read_table(tmp_path / "b.parquet").to_pylist() == table[4000:].to_pylist()
    ok("ffrecord", "export", tmp_path / "b.ffr", tmp_path / "b.tar", "--count", "10")


def test_nulls_and_structs_survive_whatever_columns_are_named(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    ages, boxes = pa.array([7, None, 9], pa.int32()), pa.array([{"x": 1.5}, None, {"x": None}])
    table = pa.table({"age": ages, "box": boxes, "name": ["a", "b", "c"]})
    source, target = tmp_path / "a.ffr", tmp_path / "x.parquet"
    ffrecord.write_table(table, source, key="name")
    asked = ["--column", "box", "--column", "age"]

    ok("ffrecord", "export", source, target, *asked)
    found = parquet.read_table(target)
    assert found.select(["box", "age"]).to_pylist() == table.select(["box", "age"]).to_pylist()
    assert found.column_names == ["box", "age", "__key__"]
    assert found["__key__"].to_pylist() == [b"a", b"b", b"c"]
    for name in ("what", "age:valid"):  # What stores a column is no column.
        refused = run("ffrecord", "export", source, target, "--column", name, "--overwrite")
        assert refused.returncode == 2 and f"has no column '{name}'" in refused.stderr


def test_nullable_columns_that_no_table_was_written_from(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    source, target = tmp_path / "a.ffr", tmp_path / "x.parquet"
    with ffrecord.Writer(source, {"age:valid": "bool", "age": "i32"}) as writer:
        writer.write({"age:valid": True, "age": 3})
        writer.write({"age:valid": False, "age": 0})

    ok("ffrecord", "export", source, target)

    assert parquet.read_table(target).to_pylist() == [{"age": 3}, {"age": None}]
