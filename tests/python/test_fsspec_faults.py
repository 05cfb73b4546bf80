"""Goal: what goes wrong in a file system of fsspec costs time, or is told by its name.

Method: file systems that fail, throttle, stall, cut, replace and damage files on order; reads that
are interrupted, given up and left.
"""

import asyncio
import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import ffrecord
from eventually import eventually
from ffrecord import ConflictError, CorruptionError, DeadlineExceeded, UnavailableError
from ffrecord._base import clock
from ffrecord._read.fsspec_errors import without_secrets
from file_systems import AsyncShelf, Shelf, SyncShelf, filled
from files_at_a_store import (
    COUNT,
    addresses,
    assert_same,
    at_a_server,
    read_again,
    three_files,
)
from interrupting import interrupted_after
from range_server import RangeServer
from virtual_clock import virtual_time

PROTOCOLS = ["shelf", "ashelf"]


class HttpError(Exception):
    """As clients of stores have them: the status is an attribute."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the store says {status}: https://host/x?X-Amz-Signature=secret")
        self.status = status


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return three_files(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def local(folder: Path) -> ffrecord.Reader:
    return ffrecord.open(folder)


@pytest.fixture
def shelf(folder: Path) -> Iterator[Shelf]:
    with filled({f"train/{path.name}": path.read_bytes() for path in folder.iterdir()}) as full:
        yield full


@pytest.fixture
def served(folder: Path) -> Iterator[RangeServer]:
    yield from at_a_server(folder)


@pytest.fixture(params=PROTOCOLS)
def where(request: pytest.FixtureRequest) -> str:
    return f"{request.param}://train/"


# --- Faults that pass ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        "short",
        ConnectionResetError("gone"),
        OSError(errno.EIO, "broken"),
        OSError(errno.EBUSY, "slow down"),
        TimeoutError("late"),
        HttpError(503),
        HttpError(500),
    ],
    ids=str,
)
def test_a_fault_that_passes_costs_time_alone(
    shelf: Shelf, local: ffrecord.Reader, where: str, fault: str | Exception
) -> None:
    shelf.fault = lambda number, path: fault if number % 3 == 1 else None
    reader = ffrecord.open(where)
    assert_same(reader, local)
    stats = reader.stats()
    assert stats["store_retries"] > 0
    is_throttled = isinstance(fault, HttpError) and fault.status == 503
    is_throttled |= isinstance(fault, OSError) and fault.errno == errno.EBUSY
    assert (stats["store_throttled"] > 0) == is_throttled


@pytest.mark.parametrize("status", [500, 503, 429, "cut", "reset"])
def test_faults_of_a_real_client_pass_too(
    served: RangeServer, local: ffrecord.Reader, status: int | str
) -> None:
    reader = ffrecord.open(addresses(served), storage_options={})
    len(reader)
    served.fault = lambda number, path: status if number % 3 == 1 else None
    assert_same(reader, local)


def test_a_file_system_that_fails_at_the_start_is_asked_again(
    shelf: Shelf, local: ffrecord.Reader, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [ConnectionError("not yet"), HttpError(503)]
    info = shelf.info

    def failing(path: str) -> object:
        if failures:
            raise failures.pop()
        return info(path)

    monkeypatch.setattr(shelf, "info", failing)
    assert_same(ffrecord.open(where), local)
    assert not failures


def test_a_file_system_that_stalls_is_waited_for_and_comes_back(shelf: Shelf, where: str) -> None:
    reader = ffrecord.open(where, timeout_s=1)
    reader.read([5, 150])
    shelf.fault = lambda number, path: "stall"
    begin = time.monotonic()
    with pytest.raises(DeadlineExceeded, match="no answer within 1000 ms"):
        reader.read([5])
    assert time.monotonic() - begin > 0.9
    shelf.fault = lambda number, path: None
    shelf.resume.set()
    assert len(read_again(reader, [5, 150])) == 2


# --- Faults that stay ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "error", "text"),
    [
        (FileNotFoundError("no such key"), FileNotFoundError, "no such key"),
        (PermissionError("expired token"), PermissionError, "expired token"),
        (HttpError(401), PermissionError, "401"),
        (HttpError(403), PermissionError, "403"),
        (HttpError(404), FileNotFoundError, "404"),
        (HttpError(418), UnavailableError, "418"),
        (ConnectionError("the cable"), UnavailableError, "ConnectionError: the cable"),
        (HttpError(503), UnavailableError, "503"),
        (RuntimeError("whatever it is"), UnavailableError, "RuntimeError: whatever it is"),
        (KeyError("a bug"), UnavailableError, "KeyError: 'a bug'"),
        (NotImplementedError(), UnavailableError, "NotImplementedError"),
        ("short", UnavailableError, r"part-0\.ffr: sent \d+ bytes instead of"),
        ("long", ValueError, "must support reads of ranges"),
        ("whole", ValueError, "must support reads of ranges"),
        (TimeoutError(), DeadlineExceeded, "TimeoutError"),
    ],
    ids=str,
)
def test_a_fault_that_stays_is_told(
    shelf: Shelf, where: str, fault: str | Exception, error: type[Exception], text: str
) -> None:
    reader = ffrecord.open(where, timeout_s=1)
    reader.read([5])  # Its index page is there.
    shelf.fault = lambda number, path: fault
    shelf.reads.clear()
    with pytest.raises(error, match=text) as caught:
        reader.read([5], on_corrupt="skip")
    assert isinstance(caught.value, OSError | ValueError)
    if error in (FileNotFoundError, PermissionError, ValueError):
        assert len(shelf.reads) == 1  # It is not tried again.
    assert "train/part-0.ffr" in str(caught.value)
    assert "secret" not in str(caught.value)
    shelf.fault = lambda number, path: None
    assert len(read_again(reader, [5])) == 1


def test_a_fault_of_one_range_spoils_no_other(shelf: Shelf, where: str) -> None:
    reader = ffrecord.open(where, timeout_s=5)
    reader.read([5, 150, 250])
    shelf.fault = lambda number, path: PermissionError("no") if "part-1" in path else None
    queue = reader.open_queue()
    queue.submit([5])
    queue.submit([150])
    queue.submit([250])
    outcomes = []
    while (done := queue.poll()) is not None:
        try:
            outcomes.append(int(done.result()["label"][0]))
        except PermissionError:
            outcomes.append(-1)
    assert sorted(outcomes) == [-1, 5, 250]


def test_a_replaced_file_is_no_damage_but_a_conflict(shelf: Shelf, where: str) -> None:
    reader = ffrecord.open(f"{where}part-0.ffr")
    reader.read([5])
    data = shelf.files["train/part-0.ffr"]
    shelf.put("train/part-0.ffr", bytes(len(data)))
    text = r"train/part-0\.ffr was replaced since it was opened"
    for policy in ("raise", "skip", "replace"):
        with pytest.raises(ConflictError, match=text):
            reader.read([7], on_corrupt=policy)
    shelf.put("train/part-0.ffr", data[:2000])
    with pytest.raises(ConflictError, match=text):
        reader.read([7])
    shelf.put("train/part-0.ffr", data)
    assert len(ffrecord.open(f"{where}part-0.ffr").read([7])) == 1  # Opened again, it is read.


def test_without_versions_the_size_and_the_checksums_tell(shelf: Shelf, where: str) -> None:
    shelf.is_tagged = False
    reader = ffrecord.open(f"{where}part-0.ffr")
    reader.read([5])
    data = shelf.files["train/part-0.ffr"]
    shelf.put("train/part-0.ffr", bytes(len(data)))
    with pytest.raises(CorruptionError, match=r"part-0\.ffr: record 7"):
        reader.read([7])
    shelf.put("train/part-0.ffr", data + b"more")
    shelf.fault = lambda number, path: "damage"
    with pytest.raises(ConflictError, match="was replaced"):
        reader.read([7])


def test_damage_follows_the_policy(shelf: Shelf, local: ffrecord.Reader, where: str) -> None:
    data = bytearray(shelf.files["train/part-0.ffr"])
    data[data.find(bytes(local[3]["data"])[:64])] ^= 1
    shelf.put("train/part-0.ffr", bytes(data))
    reader = ffrecord.open(where)
    assert len(reader.read(range(10), on_corrupt="skip")) == 9
    assert list(reader.stats()["damaged"]) == [3]
    with pytest.raises(CorruptionError, match=r"part-0\.ffr: record 3"):
        reader.read([3])


def test_a_file_that_is_cut_or_empty_says_so(shelf: Shelf, where: str) -> None:
    shelf.put("train/part-0.ffr", shelf.files["train/part-0.ffr"][:50_000])
    with pytest.raises(CorruptionError, match=r"part-0\.ffr"):
        len(ffrecord.open(f"{where}part-0.ffr"))
    shelf.put("train/part-0.ffr", b"")
    with pytest.raises((CorruptionError, ValueError), match=r"part-0\.ffr"):
        len(ffrecord.open(f"{where}part-0.ffr"))


def test_a_file_system_that_gives_no_bytes_at_all_is_told(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    from file_systems import SyncShelf

    reader = ffrecord.open("shelf://train/", timeout_s=2)
    reader.read([5])
    monkeypatch.setattr(SyncShelf, "cat_ranges", lambda self, paths, *rest, **more: [None])
    with pytest.raises(UnavailableError, match="part-0"):
        reader.read([5])
    asked: list[object] = []

    def nothing(_system: object, paths: object, *_: object, **__: object) -> list[bytes]:
        asked.append(paths)
        return []

    def is_told() -> bool:
        with pytest.raises(UnavailableError, match="part-0"):
            reader.read([5])
        return bool(asked)  # For half a second, a single range fails at once.

    monkeypatch.setattr(SyncShelf, "cat_ranges", nothing)
    eventually(is_told)
    monkeypatch.undo()
    assert len(read_again(reader, [5])) == 1


class WithoutText(Exception):
    """Its text fails, as if a client formatted what is not there."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class WithoutStatus(Exception):
    """A property that fails."""

    @property
    def status(self) -> int:
        """Nothing."""
        raise RuntimeError("no status")


@pytest.mark.parametrize(
    "error",
    [WithoutText(), WithoutStatus("w"), OSError("no \udcff here")],
    ids=["text", "status", "name"],
)
def test_an_error_that_cannot_be_told_is_an_error_all_the_same(
    shelf: Shelf, where: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = ffrecord.open(where, timeout_s=1)
    len(reader)
    for system in (SyncShelf, AsyncShelf):
        name = "cat_ranges" if system is SyncShelf else "_cat_ranges"

        def fails(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr(system, name, fails)
    with pytest.raises(UnavailableError, match=f"{type(error).__name__}"):
        reader.read([5, 150])


@pytest.mark.parametrize("password", ["pass", "p@ss", "a@b@c"])
def test_no_password_is_told(password: str) -> None:
    for text in (
        f"sftp://user:{password}@host/path",
        f"error at sftp://user:{password}@host/p: no",
    ):
        assert password.rpartition("@")[2] not in without_secrets(text).replace("path", "")
        assert "sftp://host/" in without_secrets(text)


def test_a_client_that_would_end_the_process_ends_its_range(shelf: Shelf) -> None:
    reader = ffrecord.open("shelf://train/", timeout_s=1)
    reader.read([5])
    shelf.fault = lambda number, path: SystemExit("no licence")
    for _ in range(10):  # More often than there are threads.
        with pytest.raises(UnavailableError, match="SystemExit: no licence"):
            reader.read([5, 30])
    shelf.fault = lambda number, path: None
    assert len(reader.read([5, 30])) == 2


# --- Reads that are left -------------------------------------------------------------------------


def _stalled(shelf: Shelf, reader: ffrecord.Reader) -> None:
    reader.read([5, 150])
    shelf.reads.clear()
    shelf.fault = lambda number, path: "stall"


def test_ctrl_c_ends_a_read_that_stalls(shelf: Shelf, where: str) -> None:
    reader = ffrecord.open(where, timeout_s=600)
    _stalled(shelf, reader)
    with interrupted_after(0.3), pytest.raises(KeyboardInterrupt):
        reader.read([5])
    shelf.resume.set()
    assert len(reader.read([5])) == 1


def test_ctrl_c_ends_an_opening_that_stalls(
    shelf: Shelf, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends(work: Callable[[], object]) -> None:
        with interrupted_after(0.3), pytest.raises(KeyboardInterrupt):
            work()

    shelf.fault = lambda number, path: "stall"
    reader = ffrecord.open(where, timeout_s=600)
    ends(lambda: len(reader))  # The first bytes do not come.
    waiting = threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(shelf, "info", lambda path: waiting.wait())
        # Nor the facts about the file.
        ends(lambda: len(ffrecord.open(f"{where}part-0.ffr", timeout_s=600)))
    waiting.set()
    shelf.fault = lambda number, path: None
    shelf.resume.set()
    assert len(reader) == COUNT


def test_an_opening_that_stalls_ends_in_time(
    shelf: Shelf, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = threading.Event()
    monkeypatch.setattr(shelf, "info", lambda path: waiting.wait())
    with virtual_time():
        begin = clock.now()
        with pytest.raises(DeadlineExceeded, match="does not answer"):
            len(ffrecord.open(where, timeout_s=30))
        assert 30 <= clock.now() - begin < 32
        waiting.set()


def test_a_deadline_ends_reads_of_all_kinds(shelf: Shelf, where: str) -> None:
    reader = ffrecord.open(where)
    _stalled(shelf, reader)
    with pytest.raises(DeadlineExceeded):
        reader.submit([5], timeout_s=0.3).result(60)
    with pytest.raises(DeadlineExceeded):
        asyncio.run(reader.read_async([150], timeout_s=0.3))
    with reader.open_queue() as queue:
        queue.submit([5], token="a")
        eventually(lambda: len(shelf.reads) > 0)
        queue.cancel("a")
        assert queue.poll(5) is None
    shelf.resume.set()
    assert len(reader.read([5])) == 1


def test_reads_that_were_given_up_do_not_stay_in_the_way(shelf: Shelf) -> None:
    reader = ffrecord.open("ashelf://train/")
    _stalled(shelf, reader)
    for _ in range(6):  # More than there are threads.
        with pytest.raises(DeadlineExceeded):
            reader.submit(range(0, COUNT, 7), timeout_s=0.2).result(60)
    shelf.fault = lambda number, path: None
    assert len(reader.submit([5, 150], timeout_s=60).result(60)) == 2
    shelf.resume.set()  # Answers that nobody waits for any more.
    assert len(reader.read(range(0, COUNT, 7))) == -(-COUNT // 7)


def test_closing_while_a_read_stalls_waits_for_nothing(shelf: Shelf, where: str) -> None:
    reader = ffrecord.open(where)
    _stalled(shelf, reader)
    outcome: list[object] = []

    def read() -> None:
        try:
            outcome.append(reader.read([5]))
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    eventually(lambda: len(shelf.reads) > 0)
    reader.close()
    shelf.resume.set()
    thread.join()
    assert len(outcome) == 1  # The read that was under way had its reader, and has its batch.
    with pytest.raises(ValueError, match="closed"):
        reader.read([5])


def test_threads_end_with_their_reader(shelf: Shelf, where: str) -> None:
    before = set(threading.enumerate())  # Those of other tests may end meanwhile.

    def alive() -> int:
        threads = set(threading.enumerate()) - before
        return sum(thread.name == "ffrecord-fsspec" for thread in threads)

    for _ in range(3):
        with ffrecord.open(where) as reader:
            reader.read(range(0, COUNT, 7))
            assert alive() > 0
    with pytest.raises((CorruptionError, ValueError)):
        shelf.put("train/x.ffr", b"no records at all")
        len(ffrecord.open(f"{where}x.ffr"))
    eventually(lambda: alive() == 0)


_LEFT = """
import os, sys, threading
sys.path.insert(0, sys.argv[1])
import ffrecord, file_systems
from eventually import eventually
from file_systems import shelf
for name in sorted(os.listdir(sys.argv[2])):
    with open(os.path.join(sys.argv[2], name), "rb") as file:
        shelf.put(f"train/{name}", file.read())
reader = ffrecord.open(sys.argv[3])
reader.read([5])
shelf.reads.clear()
shelf.fault = lambda number, path: "stall"
threading.Thread(target=reader.read, args=([5],), daemon=True).start()
eventually(lambda: len(shelf.reads) > 0)
print("left", flush=True)
"""


def test_a_process_ends_while_reads_stall(folder: Path, where: str) -> None:
    here = os.path.dirname(__file__)
    done = subprocess.run(
        [sys.executable, "-c", _LEFT, here, str(folder), where],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "left\n"), done.stderr
