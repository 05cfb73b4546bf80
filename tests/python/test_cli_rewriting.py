"""Goal: merge, split and shuffle lose nothing: each record, key, column and metadata is there.

Method: the commands run over small files; what they write is compared with what was read.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ffrecord
from cli import ok, run
from daemon import Daemon
from eventually import eventually
from ffrecord._cli.data import rewriting
from ffrecord._write import new_folder
from packing import records, schema
from reading import plain_file, typed_file

SCHEMA = {"name": "utf8", "label": "i64", "half": "bf16[2]", "image": "bytes"}


def write(path: Path, first: int, end: int, metadata: dict[str, bytes] | None = None) -> Path:
    with ffrecord.Writer(path, SCHEMA, key="name", metadata=metadata) as writer:
        for i in range(first, end):
            half = np.array([i, -i], np.float32)
            image = bytes([i % 256]) * (i % 70)
            writer.write({"name": f"n{i}", "label": i, "half": half, "image": image})
    return path


def labels(path: Path) -> list[int]:
    with ffrecord.open(path) as reader:
        return [int(sample["label"]) for sample in reader]


def test_merged_files_have_everything(tmp_path: Path) -> None:
    classes = {"classes": b'["a"]'}
    one, two = write(tmp_path / "1.ffr", 0, 40, classes), write(tmp_path / "2.ffr", 40, 99, classes)

    facts = json.loads(ok("ffrecord", "merge", one, two, tmp_path / "all.ffr", "--json"))

    assert facts["record_count"] == 99
    assert records(tmp_path / "all.ffr") == [*records(one), *records(two)]
    assert schema(tmp_path / "all.ffr") == SCHEMA
    with ffrecord.open(tmp_path / "all.ffr") as reader:
        assert reader.metadata() == classes
        assert reader.find_all(["n3", "n98", "x"]) == [3, 98, None]
    assert run("ffrecord", "verify", tmp_path / "all.ffr").returncode == 0


def test_keys_that_are_no_column_and_missing_keys_are_kept(tmp_path: Path) -> None:
    with ffrecord.Writer(tmp_path / "k.ffr", key=True) as writer:
        for i in range(30):
            writer.write(b"%d" % i, key=b"\xff%d" % i if i % 3 else None)

    ok("ffrecord", "shuffle", tmp_path / "k.ffr", tmp_path / "s.ffr", "--seed", "9")

    with ffrecord.open(tmp_path / "s.ffr") as reader:
        found = reader.find_all([b"\xff%d" % i for i in range(30)])
        for i, index in enumerate(found):
            assert (index is None) == (i % 3 == 0)
            assert index is None or bytes(reader[index]) == b"%d" % i
        assert sorted(map(bytes, reader)) == sorted(b"%d" % i for i in range(30))


def test_the_parts_of_a_split_are_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a.ffr", 0, 100)

    ok("ffrecord", "split", path, tmp_path / "seven", "--parts", "7")
    ok("ffrecord", "split", path, tmp_path / "each", "--part-records", "40")
    ok("ffrecord", "split", path, tmp_path / "size", "--part-size", "1KiB")

    for folder, sizes in (("seven", [14, 14, 14, 15, 14, 14, 15]), ("each", [40, 40, 20])):
        with ffrecord.open(tmp_path / folder) as reader:
            assert [file.record_count for file in reader.files] == sizes
    assert len(os.listdir(tmp_path / "size")) > 3
    for folder in ("seven", "each", "size"):
        assert labels(tmp_path / folder) == list(range(100))
        with ffrecord.open(tmp_path / folder) as reader:
            assert reader.find("n77") == 77


def test_parts_beyond_the_digits_keep_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.ffr", 0, 25)
    monkeypatch.setattr(new_folder, "DIGITS", 1)
    with rewriting.opened_whole([str(path)], 30) as reader:
        form = rewriting.form_of(reader, None, 0, "all")
        made = rewriting.Rewriting(reader, form, None)
        pieces = [np.arange(25)]
        written = made.write(pieces, tmp_path / "p", rewriting.by_records(2), False)
    assert [file["name"] for file in written.files] == sorted(os.listdir(tmp_path / "p"))
    assert labels(tmp_path / "p") == list(range(25))


def test_a_shuffle_is_the_order_of_the_seed(tmp_path: Path) -> None:
    one, two = write(tmp_path / "1.ffr", 0, 4000), write(tmp_path / "2.ffr", 4000, 5000)
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        ok("ffrecord", "shuffle", one, two, tmp_path / f"{name}.ffr", "--seed", str(seed))

    order = labels(tmp_path / "a.ffr")

    assert sorted(order) == list(range(5000))
    expected = ffrecord._order.epoch_order.EpochOrder(5, 0, 5000).range(0, 5000).tolist()
    assert order == labels(tmp_path / "b.ffr") == expected
    assert order != labels(tmp_path / "c.ffr")
    moved = np.abs(np.array(order) - np.arange(5000)).mean()
    assert moved > 1000
    with ffrecord.open(tmp_path / "a.ffr") as reader:
        assert reader.find("n4321") == order.index(4321)


def test_compression_is_kept_unless_told_otherwise(tmp_path: Path) -> None:
    def size(source: Path, *options: str) -> int:
        target = tmp_path / "new.ffr"
        ok("ffrecord", "merge", source, target, "--overwrite", *options)
        assert records(target) == records(source)
        return target.stat().st_size

    packed, bare = typed_file(tmp_path), plain_file(tmp_path)
    assert size(packed) == size(packed, "--compress") < size(packed, "--no-compress")
    assert size(bare) == size(bare, "--no-compress") > size(bare, "--compress")
    assert size(packed, "--dictionary", "2KiB") > 0
    done = run("ffrecord", "merge", packed, tmp_path / "x", "--no-compress", "--dictionary", "2KiB")
    assert done.returncode == 2


def test_version_1_becomes_version_2(tmp_path: Path) -> None:
    with ffrecord.FileWriter(str(tmp_path / "old.ffr"), 3) as writer:
        for text in (b"a", b"", b"ccc"):
            writer.write_one(text)
    ok("ffrecord", "merge", tmp_path / "old.ffr", tmp_path / "new.ffr")
    with ffrecord.open(tmp_path / "new.ffr") as reader:
        assert list(map(bytes, reader)) == [b"a", b"", b"ccc"]
        assert reader.files[0].format_version == 2


def test_what_does_not_fit_together_is_refused_by_name(tmp_path: Path) -> None:
    keyed = write(tmp_path / "keyed.ffr", 0, 5, {"classes": b"[]", "by": b"x"})
    other = write(tmp_path / "other.ffr", 5, 9, {"classes": b"[1]", "by": b"x"})
    with ffrecord.Writer(tmp_path / "keyless.ffr", SCHEMA) as writer:
        writer.write({"name": "n", "label": 1, "half": np.zeros(2), "image": b""})
    plain = plain_file(tmp_path)
    before = sorted(os.listdir(tmp_path))

    def refused(*files: Path) -> str:
        done = run("ffrecord", "merge", *files, tmp_path / "new.ffr")
        assert (done.returncode, done.stdout) == (2, "")
        assert sorted(os.listdir(tmp_path)) == before
        return done.stderr

    assert "plain.ffr" in refused(keyed, plain) and "columns" in refused(keyed, plain)
    assert "other.ffr has other metadata than" in refused(keyed, other)
    assert "keyed.ffr: classes; choose with --metadata" in refused(keyed, other)
    message = run(
        "ffrecord",
        "merge",
        keyed,
        tmp_path / "keyless.ffr",
        tmp_path / "new.ffr",
        "--metadata",
        "none",
    )
    assert message.returncode == 2
    assert "keyless.ffr was written without keys" in message.stderr
    ok("ffrecord", "merge", keyed, other, tmp_path / "new.ffr", "--metadata", "first")
    with ffrecord.open(tmp_path / "new.ffr") as reader:
        assert reader.metadata() == {"classes": b"[]", "by": b"x"}


def test_damage_leaves_nothing_behind(tmp_path: Path) -> None:
    path = plain_file(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content.replace(b"299:", b"29x:", 1))
    for arguments in (["merge"], ["shuffle", "--seed", "1"]):
        for target in ("new.ffr", "new"):
            done = run("ffrecord", *arguments, path, tmp_path / target)
            assert done.returncode == 3
            assert os.listdir(tmp_path) == ["plain.ffr"]
    done = run("ffrecord", "split", path, tmp_path / "parts", "--parts", "3")
    assert (done.returncode, os.listdir(tmp_path)) == (3, ["plain.ffr"])


def test_a_file_can_replace_itself_and_nothing_is_replaced_unasked(tmp_path: Path) -> None:
    path = write(tmp_path / "a.ffr", 0, 50)
    done = run("ffrecord", "shuffle", path, path, "--seed", "1")
    assert done.returncode == 4 and "--overwrite" in done.stderr
    assert labels(path) == list(range(50))
    ok("ffrecord", "shuffle", path, path, "--seed", "1", "--overwrite")
    assert labels(path) != list(range(50))
    assert sorted(labels(path)) == list(range(50))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    done = run("ffrecord", "split", path, tmp_path / "mine", "--parts", "2", "--overwrite")
    assert done.returncode == 4 and "notes.txt" in done.stderr
    assert os.listdir(tmp_path / "mine") == ["notes.txt"]


def test_a_dry_run_checks_and_writes_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "a.ffr", 0, 50)
    for command in (["merge"], ["shuffle", "--seed", "1"], ["split", "--parts", "2"]):
        facts = json.loads(ok("ffrecord", *command, path, tmp_path / "new", "--dry-run", "--json"))
        assert (facts["dry_run"], facts["record_count"]) == (True, 50)
    assert run("ffrecord", "merge", path, path, "--dry-run").returncode == 4
    assert os.listdir(tmp_path) == ["a.ffr"]


WRONG = [
    (["split", "FILE", "new"], "give one of --parts"),
    (["split", "FILE", "new", "--parts", "2", "--part-size", "1MiB"], "give one of --parts"),
    (["split", "FILE", "new", "--parts", "51"], "has only 50 records"),
    (["split", "FILE", "new", "--parts", "0"], "--parts"),
    (["split", "FILE", "new", "--part-size", "-1"], "--part-size"),
    (["split", "FILE", "new.ffr", "--parts", "2"], "name a folder"),
    (["merge", "FILE"], "Missing argument"),
    (["merge", "FILE", ""], "destination's name is empty"),
    (["merge", "FILE", "none/new.ffr"], "there is no folder"),
    (["merge", "FILE", "new.ffr", "--part-size", "1MiB"], "new.ffr is one file"),
    (["shuffle", "FILE", "new.ffr", "--seed", "1", "--part-size", "1MiB"], "is one file"),
    (["merge", "FILE", "S3://bucket/new.ffr"], "is an address"),
    (["split", "FILE", "ffrecord://localhost/x", "--parts", "2"], "is an address"),
    (["merge", "none.ffr", "new.ffr"], "none.ffr"),
    (["merge", "EMPTY", "new.ffr"], "has no records"),
    (["shuffle", "FILE", "new.ffr"], "--seed"),
    (["shuffle", "FILE", "new.ffr", "--seed", str(1 << 64)], "--seed"),
    (["merge", "FILE", "ünï.ffr", "--dictionary", "9GiB"], "out of range"),
]


@pytest.mark.parametrize(("arguments", "expected"), WRONG, ids=lambda each: str(each)[:50])
def test_wrong_arguments_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "FILE.ffr", 0, 50)
    with ffrecord.Writer(tmp_path / "EMPTY.ffr"):
        pass
    words = [f"{word}.ffr" if word in ("FILE", "EMPTY") else word for word in arguments]

    done = run("ffrecord", *words)

    assert done.returncode in (2, 4)
    assert expected in done.stderr
    assert sorted(os.listdir(tmp_path)) == ["EMPTY.ffr", "FILE.ffr"]


def test_a_killed_run_leaves_no_destination(tmp_path: Path) -> None:
    path = tmp_path / "large.ffr"
    with ffrecord.Writer(path) as writer:
        for _ in range(100_000):
            writer.write(os.urandom(500))
    command = [sys.executable, "-m", "ffrecord._cli.main", "shuffle", str(path)]
    process = subprocess.Popen([*command, str(tmp_path / "new"), "--seed", "1"])
    eventually(lambda: list(tmp_path.glob(".new.partial-*/parts")), process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "new").exists()
    ok("ffrecord", "shuffle", path, tmp_path / "new", "--seed", "1")
    assert sorted(os.listdir(tmp_path)) == ["large.ffr", "new"]


def test_datasets_of_a_daemon_are_looked_at_and_copied(tmp_path: Path) -> None:
    path = write(tmp_path / "a.ffr", 0, 50, {"classes": b"[]"})
    with Daemon(tmp_path / "data") as daemon:
        address = f"ffrecord://{daemon.listen}/pets"
        ok("ffrecord", "publish", path, address)
        shown = ok("ffrecord", "head", address, "--count", "2", "--json")
        assert [json.loads(line)["record"]["label"] for line in shown.splitlines()] == [0, 1]
        assert run("ffrecord", "find", address, "n7").stdout.split() == ["7", "n7"]
        assert json.loads(ok("ffrecord", "stats", address, "--json"))["seen_count"] == 50
        ok("ffrecord", "merge", address, tmp_path / "copy.ffr")
        ok("ffrecord", "view", address, "--output", tmp_path / "page.html")
        ok("ffrecord", "export", address, tmp_path / "x.jsonl")
        would = json.loads(ok("ffrecord", "remove", address, "--dry-run", "--json"))
        assert would == {"would_remove": address, "record_count": 50, "dry_run": True}
        assert "pets" in ok("ffrecord", "list", f"ffrecord://{daemon.listen}/")
    assert records(tmp_path / "copy.ffr") == records(path)
    with ffrecord.open(tmp_path / "copy.ffr") as reader:
        assert reader.find("n33") == 33
        assert reader.metadata() == {"classes": b"[]"}
    assert "n49" in (tmp_path / "page.html").read_text()
    done = run("ffrecord", "head", "ffrecord://127.0.0.1:1/x", "--timeout", "1")
    assert done.returncode == 4
