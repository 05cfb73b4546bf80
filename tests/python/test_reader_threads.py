"""Goal: threads and children share a reader, and Ctrl-C ends a read of any length.

Method: a small file is read by many threads at once, in children of every start method, and with
signals that come in the middle.
"""

import ctypes
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ffrecord
from ffrecord import _ffrecord
from interrupting import interrupted_after
from reading import plain_file, raw

START_METHODS = ["fork", "spawn", "forkserver"]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plain_file(tmp_path_factory.mktemp("plain"))


def longest_pause(call: Callable[[], object]) -> float:
    """The longest stop of this thread while another one runs `call`, as a share of that time."""
    duration = [0.0]

    def measure() -> None:
        begin = time.perf_counter()
        call()
        duration[0] = time.perf_counter() - begin

    thread = threading.Thread(target=measure)
    pause, last = 0.0, time.perf_counter()
    thread.start()
    while thread.is_alive():
        now = time.perf_counter()
        pause, last = max(pause, now - last), now
    return pause / duration[0]


@pytest.mark.alone("the pauses of a thread that computes")
def test_other_threads_run_while_one_reads(tmp_path: Path) -> None:
    """Each read lasts many time slices; if one of ten does not stop us, reads hold no GIL."""
    path = tmp_path / "large.ffr"
    with ffrecord.Writer(path) as writer:
        for _ in range(64):
            writer.write(os.urandom(1 << 20))
    reader = ffrecord.open(path)
    indices = np.arange(64)
    holds_the_gil = ctypes.PyDLL(None).usleep

    pauses = [longest_pause(lambda: reader.read(indices)) for _ in range(10)]

    assert min(pauses) < 0.5
    assert longest_pause(lambda: holds_the_gil(200_000)) > 0.6


def test_threads_share_a_reader(plain: Path) -> None:
    reader = ffrecord.open(plain)
    failures: list[int] = []

    def work(seed: int) -> None:
        order = np.random.default_rng(seed)
        for _ in range(100):
            indices = order.integers(0, 300, 16)
            batch = reader.read(indices)
            failures.extend(
                i for i, r in zip(indices.tolist(), batch, strict=True) if bytes(r) != raw(i)
            )

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failures == []
    assert reader.stats()["records"] == 8 * 100 * 16


def test_threads_that_open_a_reader_at_once_use_the_same_one(
    plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read first is counted too: both threads are in the middle of opening."""
    reader = ffrecord.open(plain)
    open_files = _ffrecord.RecordReader.open
    both_are_here = threading.Barrier(2)

    def open_together(*args: object, **kwargs: object) -> _ffrecord.RecordReader:
        both_are_here.wait(60)
        return open_files(*args, **kwargs)

    monkeypatch.setattr(_ffrecord.RecordReader, "open", open_together)
    threads = [threading.Thread(target=reader.read, args=([1, 2, 3],)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert reader.stats()["records"] == 6


def read_in_child(reader: ffrecord.Reader, indices: list[int]) -> list[bytes]:
    return [bytes(record) for record in reader.read(indices)]


@pytest.mark.parametrize("method", START_METHODS)
def test_a_reader_used_before_works_in_children(plain: Path, method: str) -> None:
    reader = ffrecord.open(plain)
    assert bytes(reader[0]) == raw(0)
    indices = [5, 250, 5]

    with multiprocessing.get_context(method).Pool(3) as pool:
        results = pool.starmap(read_in_child, [(reader, indices)] * 6)

    assert results == [[raw(i) for i in indices]] * 6
    assert bytes(reader[1]) == raw(1)


def test_a_forked_child_uses_the_parents_reader_itself(plain: Path) -> None:
    """No pickle in between: the object is inherited, while the parent goes on reading."""
    reader = ffrecord.open(plain)
    reader.read(np.arange(300))
    child = os.fork()
    if child == 0:
        try:
            for i in range(300):
                assert bytes(reader[i]) == raw(i)
            os._exit(0)
        except BaseException:
            os._exit(1)

    for i in range(300):
        assert bytes(reader[i]) == raw(i)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_an_interrupt_ends_a_huge_read_and_the_reader_goes_on(plain: Path) -> None:
    indices = np.arange(6_000_000) * 7 % 300
    for direct in (False, True):
        reader = ffrecord.open(plain, direct=direct)
        len(reader)
        with pytest.raises(KeyboardInterrupt), interrupted_after(0.1):
            reader.read(indices)
        # It was broken off, and did not first come to its end.
        assert reader.stats()["batches"] == 0
        assert list(map(bytes, reader.read([299, 0, 7]))) == [raw(299), raw(0), raw(7)]


@pytest.mark.parametrize("direct", [False, True])
def test_a_handler_may_read_and_let_the_read_go_on(plain: Path, direct: bool) -> None:
    reader, seen = ffrecord.open(plain, direct=direct), []
    indices = np.arange(1_000_000) * 7 % 300

    def handler(*_: object) -> None:
        seen.append(bytes(reader.read([7])[0]))

    with interrupted_after(0.06):
        signal.signal(signal.SIGINT, handler)
        while not seen:  # On a busy machine it comes late.
            batch = reader.read(indices)
    assert seen == [raw(7)]
    assert len(batch) == indices.size
    assert bytes(batch[999_999]) == raw(999_999 * 7 % 300)


def test_other_threads_read_on_while_the_main_one_is_interrupted(plain: Path) -> None:
    reader, indices, done = ffrecord.open(plain), np.arange(1_000_000) % 300, []
    other = threading.Thread(target=lambda: done.append(len(reader.read(indices))))
    other.start()
    with pytest.raises(KeyboardInterrupt), interrupted_after(0.1):
        reader.read(np.arange(6_000_000) % 300)
    other.join()
    assert done == [1_000_000]
    assert reader.stats()["batches"] == 1
