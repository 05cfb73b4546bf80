"""Goal: opening what is not there fails when it is opened, and a pickle of what is there is lazy.

Method: a table of what may be missing by everything that opens; what a process gets by pickle, what
was evicted, and a daemon that is not there yet.
"""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ffrecord
import ffrecord.grain
import ffrecord.tensorflow
from daemon import Daemon
from ffrecord import archive
from ffrecord._read.reader import Reader
from ffrecord._store.eviction import evict
from ffrecord.torch import Dataset

MANY = 12  # More than are looked into.


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "shards"
    made.mkdir()
    for number in range(MANY):
        with ffrecord.Writer(made / f"{number:02}.ffr", {"label": "i64"}) as writer:
            writer.write({"label": number})
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("These are no records. " * 50)
    os.mkfifo(tmp_path / "pipe.ffr")
    return made


OPENERS: dict[str, Callable[[Any], object]] = {
    "open": ffrecord.open,
    "Dataset": Dataset,
    "grain": ffrecord.grain.DataSource,
    "grain, batches": lambda where: ffrecord.grain.BatchSource(where, 2),
}
MISSING: dict[str, Callable[[Path], Any]] = {
    "a file": lambda folder: folder / "no.ffr",
    "a file of a list": lambda folder: [*sorted(folder.glob("*.ffr")), folder / "no.ffr"],
    "a file in a file": lambda folder: folder / "00.ffr" / "no.ffr",
    "a folder without record files": lambda folder: folder.parent / "empty",
    "a glob": lambda folder: folder / "no*.ffr",
    "a glob of a list": lambda folder: [folder, folder / "no*.ffr"],
    "no record file": lambda folder: folder.parent / "notes.txt",
    "no record file in a list": lambda folder: [folder / "00.ffr", folder.parent / "notes.txt"],
    "a pipe": lambda folder: folder.parent / "pipe.ffr",
    "no host": lambda _: "ffrecord:///x",
    "no name": lambda _: "ffrecord://localhost",
    "no such port": lambda _: "ffrecord://localhost:99999/x",
    "no bucket": lambda _: "s3://",
    "no server": lambda _: "http:///x.ffr",
    "no such protocol": lambda _: "nothing-knows://x/y.ffr",
}


@pytest.mark.parametrize("what", MISSING.values(), ids=MISSING)
@pytest.mark.parametrize("opener", OPENERS.values(), ids=OPENERS)
def test_what_is_not_there_raises_when_it_is_opened_what_a_read_raises(
    opener: Callable[[Any], object], what: Callable[[Path], Any], folder: Path
) -> None:
    where = what(folder)
    with pytest.raises(Exception) as at_first_read:
        len(Reader(where))

    with pytest.raises(type(at_first_read.value)) as opened:
        opener(where)

    assert type(opened.value) is type(at_first_read.value)
    assert str(opened.value) == str(at_first_read.value)


def held(folder: Path) -> list[str]:
    """The files of the folder that this process holds open."""
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    targets = [os.readlink(link) for link in links if os.path.lexists(link)]
    return [target for target in targets if target.startswith(str(folder))]


@pytest.mark.parametrize("opener", [ffrecord.open, Dataset])
def test_nothing_is_held_before_the_first_read(opener: Callable[[Any], Any], folder: Path) -> None:
    made = opener(folder)

    assert not held(folder)
    assert "not opened yet" in repr(made)
    assert len(made) == MANY


@pytest.mark.parametrize("opener", [ffrecord.open, Dataset])
def test_a_pickle_of_what_has_gone_raises_at_the_first_read(
    opener: Callable[[Any], Any], folder: Path
) -> None:
    pickled = pickle.dumps(opener(folder / "00.ffr"))
    (folder / "00.ffr").unlink()

    back = pickle.loads(pickled)
    with pytest.raises(FileNotFoundError, match=r"00\.ffr"):
        len(back)


@pytest.mark.parametrize("name", ["", "*.ffr", "07.ffr", "00.ffr"])
def test_an_evicted_file_is_there_by_name_and_stays_away(name: str, folder: Path) -> None:
    target = str(folder.parent / "target")
    archive.push(folder, target)
    evict(folder, target)
    assert not list(folder.glob("*.ffr"))

    reader = ffrecord.open(folder / name)
    assert not list(folder.glob("*.ffr"))
    assert len(reader) == (1 if name[:1].isdigit() else MANY)

    for gone in ("no.ffr", "no*.ffr"):
        with pytest.raises(FileNotFoundError, match=r"no"):
            ffrecord.open(folder / gone)


def test_a_damaged_file_is_there(folder: Path) -> None:
    path = folder / "00.ffr"
    path.write_bytes(path.read_bytes()[:-7])

    reader = ffrecord.open(path)
    with pytest.raises(ffrecord.CorruptionError, match=r"00\.ffr"):
        reader.read([0])


def test_a_daemon_that_answers_is_asked_at_once_and_others_at_the_first_read(folder: Path) -> None:
    with Daemon(folder.parent / "data") as daemon:
        for opener in (ffrecord.open, Dataset):
            with pytest.raises(FileNotFoundError, match="train"):
                opener(daemon.address("train"))
        ffrecord.publish([folder / "00.ffr"], daemon.address("train"))
        pickled = pickle.dumps(ffrecord.open(daemon.address("train")))
        daemon.kill()
        late = [pickle.loads(pickled), ffrecord.open(daemon.address("train"))]
        daemon.start()
        assert [len(reader) for reader in late] == [1, 1]


def test_a_daemon_that_does_not_answer_is_waited_for_at_the_first_read(folder: Path) -> None:
    with Daemon(folder.parent / "data") as daemon:
        ffrecord.publish([folder / "00.ffr"], daemon.address("train"))
        daemon.freeze()
        reader = ffrecord.open(daemon.address("train"), timeout_s=60)
        daemon.thaw()
        assert len(reader) == 1
