"""Goal: files that were evicted to a store are back before anybody can miss them.

Method: a folder as the store, but once; every way to name files; evictions and restorations that
are killed at each of their steps; two processes that want the same file.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import cli
import ffrecord
import ffrecord.checkpoint
from ffrecord import archive
from ffrecord._read.locations import Where
from ffrecord._store.eviction import evict, restore
from ffrecord.errors import CorruptionError
from object_store import Store

NAMES = ["0.ffr", "1.ffr", "2.ffr"]


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    folder = tmp_path / "shards"
    folder.mkdir()
    for number, name in enumerate(NAMES):
        with ffrecord.Writer(folder / name) as writer:
            for record in range(20):
                writer.write(f"{number}/{record}".encode())
    return folder


@pytest.fixture
def target(shards: Path, tmp_path: Path) -> str:
    where = str(tmp_path / "target")
    archive.push(shards, where)
    return where


def records(where: Where) -> list[bytes]:
    return [bytes(record) for record in ffrecord.open(where)[:]]


def test_however_the_files_are_named_they_are_back_first(shards: Path, target: str) -> None:
    truth = records(shards)
    ways: list[tuple[Where, list[bytes]]] = [
        (shards, truth),
        (shards / "*.ffr", truth),
        (shards.parent / "sh*s" / "*.ffr", truth),
        (shards.parent / "**" / "shards" / "*.ffr", truth),
        ([shards / name for name in NAMES], truth),
        (shards / "1.ffr", truth[20:40]),
    ]
    for where, wanted in ways:
        evict(shards, target)
        assert sorted(os.listdir(shards)) == ["EVICTED"]
        assert records(where) == wanted
    assert sorted(os.listdir(shards)) == ["1.ffr", "EVICTED"]  # Only what was asked for.
    assert restore(shards) == ["0.ffr", "2.ffr"]
    assert sorted(os.listdir(shards)) == NAMES


def test_from_an_object_store_and_by_hand(
    store: Store, shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = records(shards)
    address = "s3://bucket/evicting/shards"
    cli.ok("ffrecord", "push", shards, address)
    gone = json.loads(cli.ok("ffrecord", "evict", "--json", shards, address))["evicted"]
    assert sorted(gone) == NAMES
    monkeypatch.chdir(shards)
    assert records("*.ffr") == truth


def test_the_least_recently_read_go_until_enough_are_gone(shards: Path, target: str) -> None:
    sizes = [(shards / name).stat().st_size for name in NAMES]
    for age, name in enumerate(NAMES):
        os.utime(shards / name, (1_000_000 - age, 1_000_000 - age))
    assert evict(shards, target, keep_bytes=sum(sizes)) == []
    assert evict(shards, target, keep_bytes=sum(sizes) - 1) == ["2.ffr"]
    assert evict(shards, target, keep_bytes=sizes[0]) == ["1.ffr"]
    assert evict(shards, target, keep_bytes=0) == ["0.ffr"]


def test_what_the_store_does_not_have_stays(shards: Path, target: str, tmp_path: Path) -> None:
    (shards / "1.ffr").unlink()
    with ffrecord.Writer(shards / "1.ffr") as writer:
        writer.write(b"another")
    with ffrecord.Writer(shards / "new.ffr") as writer:
        writer.write(b"never pushed")
    truth = records(shards)
    assert sorted(evict(shards, target)) == ["0.ffr", "2.ffr"]
    with pytest.raises(ValueError, match="other files are at"):
        archive.push(shards / "1.ffr", tmp_path / "elsewhere")
        evict(shards, tmp_path / "elsewhere")
    assert records(shards) == truth


@pytest.mark.wrong_data
@pytest.mark.parametrize("how", ["flipped", "cut", "gone"])
def test_a_file_whose_copy_is_damaged_stays(shards: Path, target: str, how: str) -> None:
    truth = records(shards)
    stored = next((Path(target) / "1.ffr").glob("step-*/part-*/seg-*"))
    content = bytearray(stored.read_bytes())
    content[3] ^= 1
    stored.unlink()
    if how != "gone":
        stored.write_bytes(content if how == "flipped" else content[:-1])

    with pytest.raises(CorruptionError, match=r"1\.ffr stays.*checkpoint\.remove"):
        evict(shards, target)
    assert sorted(os.listdir(shards)) == ["1.ffr", "EVICTED"]
    assert records(shards) == truth

    ffrecord.checkpoint.remove(Path(target) / "1.ffr", 0)  # As the error says.
    archive.push(shards, target)
    assert sorted(evict(shards, target)) == NAMES
    assert records(shards) == truth


@pytest.mark.wrong_data
def test_a_file_that_differs_from_its_copy_in_a_record_stays(shards: Path, target: str) -> None:
    """Its index is that of the copy: one of the two is damaged, and the other is all there is."""
    content = bytearray((shards / "1.ffr").read_bytes())
    content[content.index(b"1/7")] ^= 1
    (shards / "1.ffr").write_bytes(content)
    assert sorted(evict(shards, target)) == ["0.ffr", "2.ffr"]
    assert (shards / "1.ffr").read_bytes() == content


@pytest.mark.wrong_data
def test_a_file_that_was_written_since_is_not_replaced(
    shards: Path, target: str, caplog: pytest.LogCaptureFixture
) -> None:
    truth = records(shards)
    evict(shards, target)
    with ffrecord.Writer(shards / "1.ffr") as writer:
        writer.write(b"new")
    assert records(shards) == [*truth[:20], b"new", *truth[40:]]
    assert "1.ffr was written after" in caplog.text
    assert restore(shards) == []
    assert records(shards / "1.ffr") == [b"new"]


# Ends the process in front of the n-th call that changes a file's name or removes one.
DYING = """
import os, pathlib, sys
from ffrecord._store import eviction
left = int(sys.argv[1])
def dying(call):
    def counted(*arguments, **keywords):
        global left
        left -= 1
        if left < 0:
            os._exit(9)
        return call(*arguments, **keywords)
    return counted
for name in ("unlink", "replace"):
    setattr(pathlib.Path, name, dying(getattr(pathlib.Path, name)))
eviction.evict(sys.argv[2], sys.argv[3])
eviction.restore(sys.argv[2])
"""


def test_nothing_is_missed_whenever_it_is_killed(shards: Path, target: str) -> None:
    truth = records(shards)
    for calls in range(100):
        done = subprocess.run(
            [sys.executable, "-c", DYING, str(calls), str(shards), target], check=False
        )
        assert records(shards) == truth
        assert "EVICTED" not in os.listdir(shards)
        if done.returncode == 0:
            break
        assert done.returncode == 9
    assert calls > 6


def test_many_that_want_the_same_file_get_it(shards: Path, target: str) -> None:
    truth = records(shards)
    evict(shards, target)
    script = "import ffrecord, sys; print(len(ffrecord.open(sys.argv[1])))"
    many = [
        subprocess.Popen([sys.executable, "-c", script, shards], stdout=subprocess.PIPE)
        for _ in range(4)
    ]
    for process in many:
        said, _ = process.communicate(timeout=180)
        assert (process.returncode, int(said)) == (0, len(truth))
    assert sorted(os.listdir(shards)) == NAMES


@pytest.mark.parametrize("wrong", ["", "[]", '{"target": "x", "files": {"../a": {}}}', '{"a": 1}'])
def test_a_damaged_list_is_told(shards: Path, wrong: str) -> None:
    (shards / "EVICTED").write_text(wrong)
    with pytest.raises(CorruptionError, match="pull the dataset"):
        ffrecord.open(shards)[0]


def test_a_store_that_is_gone_is_told(shards: Path, target: str) -> None:
    evict(shards, target)
    Path(target).rename(Path(target).with_name("moved"))
    with pytest.raises(FileNotFoundError, match="target"):
        ffrecord.open(shards)[0]
