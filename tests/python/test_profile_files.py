"""Goal: a profile is read whole, whatever happened to its process; other files give clear errors.

Method: processes that record and fork, spawn, exec, are killed or exit; files that are cut, flipped
and foreign.
"""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ffrecord
from cli import run
from eventually import eventually
from ffrecord import _ffrecord
from ffrecord._base import recording
from ffrecord._profile import files
from ffrecord.errors import CorruptionError


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[Path]:
    """A profile of this process that is on; its path."""
    path = Path(recording.begin(str(tmp_path)))
    yield path
    recording.end()


def test_events_are_read_as_they_were_recorded(recorded: Path) -> None:
    recording.record(
        recording.DAEMON_READ, 5, 9, "10.0.0.1:9400", size_bytes=7, detail=8, first=1, second=2
    )
    with recording.Span(recording.SAVE, "runs/x", 12):
        during = files.read(recorded)
    after = files.read(recorded)
    (unfinished,) = during.unfinished
    assert (unfinished["kind"], unfinished["detail"]) == (recording.SAVE, 12)
    assert during.name(unfinished) == "runs/x"
    assert len(after.unfinished) == 0
    read, save = after.events
    assert read.tolist()[:7] == (5, 9, 7, 8, 1, 2, recording.DAEMON_READ)
    assert after.name(read) == "10.0.0.1:9400"
    assert save["end_ns"] > save["begin_ns"]
    assert (after.pid, after.torn, after.overwritten) == (os.getpid(), 0, 0)
    assert not after.has_ended


def test_a_span_takes_whatever_a_program_calls_a_step(recorded: Path) -> None:
    for detail in (-1, "12", None, 1 << 64, True, 3):
        with recording.Span(recording.SAVE, detail=detail):
            pass
    assert files.read(recorded).events["detail"].tolist() == [0, 0, 0, 0, 1, 3]


def test_the_end_is_noted(tmp_path: Path) -> None:
    path = recording.begin(str(tmp_path))
    recording.end()
    recording.end()
    assert files.read(path).has_ended


def test_a_ring_that_wrapped_says_how_much_it_lost(tmp_path: Path) -> None:
    path = str(tmp_path / "a.ffrprof")
    _ffrecord.profile_open(path, coarse_events=64, fine_events=16)
    try:
        for number in range(100):
            _ffrecord.profile_record(recording.WAIT, 0, number, number + 1)
    finally:
        _ffrecord.profile_close()
    found = files.read(path)
    assert found.events["begin_ns"].tolist() == list(range(36, 100))
    assert (found.overwritten, found.torn) == (36, 0)


_WRITES_FOREVER = """
import itertools, sys
from ffrecord._base import recording
print(recording.begin(sys.argv[1]), flush=True)
for number in itertools.count():
    with recording.Span(recording.SAVE, detail=number):
        recording.record(recording.READ, number, number + 1, f"name {number % 600}")
"""


def test_a_killed_process_leaves_whole_events_and_what_it_was_in(tmp_path: Path) -> None:
    chance = random.Random(int(os.environ.get("FFRECORD_TEST_SEED", "1")))
    for _ in range(5):
        writing = subprocess.Popen(
            [sys.executable, "-c", _WRITES_FOREVER, str(tmp_path)], stdout=subprocess.PIPE
        )
        assert writing.stdout is not None
        path = writing.stdout.readline().decode().strip()
        enough = chance.randrange(1, 3000)
        eventually(lambda path=path, enough=enough: len(files.read(path).events) > enough, writing)
        writing.kill()
        writing.wait()
        writing.stdout.close()
        found = files.read(path)
        assert not found.has_ended
        assert found.torn <= 1
        assert len(found.unfinished) <= 1
        reads = found.events[found.events["kind"] == recording.READ]
        assert (reads["end_ns"] - reads["begin_ns"] == 1).all()
        saves = found.events[found.events["kind"] == recording.SAVE]
        assert sorted(saves["detail"].tolist()) == list(range(len(saves)))
        os.remove(path)


def _record_one(number: int) -> None:
    recording.record(recording.DECODE, number, number + 1, f"child {number}")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_write_to_the_file_of_the_process_that_started_them(
    method: str, tmp_path: Path
) -> None:
    program = f"""
import multiprocessing, os, sys
import ffrecord
from ffrecord._base import recording
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_profile_files import _record_one
if __name__ == "__main__":
    context = multiprocessing.get_context({method!r})
    children = [context.Process(target=_record_one, args=(n,)) for n in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join()
"""
    script = tmp_path / "program.py"
    script.write_text(program)
    run_folder = tmp_path / "run"
    subprocess.run(
        [sys.executable, str(script)],
        check=True,
        env={**os.environ, recording.FOLDER_VARIABLE: str(run_folder)},
    )
    (found,) = files.read_run(run_folder)
    assert sorted(found.events["begin_ns"].tolist()) == [0, 1, 2]
    assert sorted(map(found.name, found.events)) == ["child 0", "child 1", "child 2"]
    assert found.has_ended


def _train(folder: str) -> None:
    recording.trains()
    recording.record(recording.OPTIMIZER, 1, 2)


def test_a_forked_process_that_trains_gets_a_file_of_its_own(tmp_path: Path) -> None:
    with ffrecord.profile(tmp_path, show=False):
        context = multiprocessing.get_context("fork")
        children = [context.Process(target=_train, args=(str(tmp_path),)) for _ in range(2)]
        for child in children:
            child.start()
        for child in children:
            child.join()
            assert child.exitcode == 0
    found = files.read_run(tmp_path)
    assert sorted(len(each.events) for each in found) == [0, 1, 1]
    assert len({each.pid for each in found}) == 3


def test_a_program_goes_on_without_a_profile_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = subprocess.run(
        [sys.executable, "-c", "import ffrecord; print('trained')"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, recording.FOLDER_VARIABLE: str(tmp_path / "file" / "run")},
    )
    assert done.stdout == "trained\n"
    assert "ffrecord: this process is not profiled: " in done.stderr


def _damaged(whole: bytes) -> dict[str, bytes]:
    newer = bytearray(whole)
    newer[8] = 9
    sizes = bytearray(whole)
    sizes[16:20] = (77).to_bytes(4, "little")
    return {
        "begins otherwise": b"\0" * 100 + whole[100:],
        "version 9": bytes(newer),
        "is damaged or was not copied whole": whole[:-100],
        "where its header says": bytes(sizes),
    }


@pytest.mark.parametrize(
    "message",
    [
        "begins otherwise",
        "version 9",
        "is damaged or was not copied whole",
        "where its header says",
    ],
)
def test_a_damaged_file_is_refused_by_name(message: str, tmp_path: Path, recorded: Path) -> None:
    damaged = tmp_path / f"damaged{files.SUFFIX}"
    damaged.write_bytes(_damaged(recorded.read_bytes())[message])
    with pytest.raises(CorruptionError, match=message) as caught:
        files.read(damaged)
    assert str(damaged) in str(caught.value)
    done = run("ffrecord", "why", damaged)
    assert done.returncode == 3
    assert message in done.stderr


def test_flipped_bits_lose_no_more_than_the_events_that_they_are_in(recorded: Path) -> None:
    for number in range(100):
        recording.record(recording.WAIT, number, number + 1)
    whole = recorded.read_bytes()
    begin = whole.index((1).to_bytes(8, "little") + bytes(8) + (1).to_bytes(8, "little"))
    chance = random.Random(7)
    for _ in range(200):
        changed = bytearray(whole)
        at = chance.randrange(begin, begin + 100 * 64)
        changed[at] ^= 1 << chance.randrange(8)
        other = recorded.with_name("flipped")
        other.write_bytes(changed)
        found = files.read(other)
        assert (len(found.events), found.torn) == (99, 1)


def test_folders_without_profiles_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no such folder"):
        files.read_run(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match="holds no profile"):
        files.read_run(tmp_path)
    (tmp_path / f"a{files.SUFFIX}").write_bytes(bytes(8192))
    with pytest.raises(CorruptionError, match="every profile in it is empty"):
        files.read_run(tmp_path)
    assert run("ffrecord", "why", tmp_path / "none").returncode == 4


def test_a_signal_in_the_middle_of_a_span_leaves_the_next_ones_alone(recorded: Path) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt), recording.Span(recording.LOAD):
            os.kill(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(files.read(recorded).unfinished) == 0
