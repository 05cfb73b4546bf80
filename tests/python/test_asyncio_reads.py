"""Tasks of an asyncio loop that read from a store which does not answer.

Goal: the loop goes on whatever a read waits for, and a read that is cancelled or late is given up:
it leaves its room to others, and neither a descriptor nor a timer in the loop.
Method: a file system whose reads stall until the test lets them go; the test counts what it is
asked for, and watches what the loop has registered.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import ffrecord
from ffrecord import DeadlineExceeded
from ffrecord._read.queue import LoopReads
from ffrecord._read.reader import _READS_IN_FLIGHT
from file_systems import Shelf, filled
from files_at_a_store import COUNT, three_files

WHERE = "ashelf://train/"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return three_files(tmp_path_factory.mktemp("files"))


@pytest.fixture
def shelf(folder: Path) -> Iterator[Shelf]:
    with filled({f"train/{path.name}": path.read_bytes() for path in folder.iterdir()}) as full:
        yield full


def stalled(shelf: Shelf, *, warm: bool) -> ffrecord.Reader:
    """A reader whose reads stall from now on; its indexes are in memory if it is warm."""
    reader = ffrecord.open(WHERE, timeout_s=60)
    len(reader)  # Opens the files.
    if warm:
        reader.read(range(0, COUNT, 7))
    shelf.reads.clear()
    shelf.fault = lambda number, path: "stall"
    return reader


def let_go(shelf: Shelf) -> None:
    shelf.fault = lambda number, path: None
    shelf.resume.set()


async def until(condition: Callable[[], bool]) -> None:
    """As `eventually`; the loop goes on."""
    while not condition():
        await asyncio.sleep(0.005)


@contextmanager
def released_if_blocked(shelf: Shelf) -> Iterator[threading.Event]:
    """Lets a loop go that is blocked for a minute, and says so."""
    was_blocked = threading.Event()

    def release() -> None:
        was_blocked.set()
        let_go(shelf)

    timer = threading.Timer(60, release)
    timer.start()
    try:
        yield was_blocked
    finally:
        timer.cancel()


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 300))


def reads_of(reader: ffrecord.Reader) -> LoopReads:
    return reader._reads_of(asyncio.get_running_loop(), LoopReads)


def is_at_rest(reads: LoopReads) -> bool:
    """Whether nothing is read, and the loop has nothing of it. Takes the descriptor out."""
    return (
        not reads._futures
        and len(reads._queue) == 0
        and reads._timer is None
        and not asyncio.get_running_loop().remove_reader(reads._descriptor)
    )


async def cancelled(task: "asyncio.Task[ffrecord.Batch]") -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("warm", [True, False], ids=["records", "index"])
def test_a_read_that_is_cancelled_ends_at_once_and_is_given_up(shelf: Shelf, warm: bool) -> None:
    reader = stalled(shelf, warm=warm)

    async def main() -> None:
        reads = reads_of(reader)
        task = asyncio.create_task(reader.read_async([5]))
        await until(lambda: bool(shelf.reads))
        await cancelled(task)
        assert not shelf.resume.is_set()
        await until(lambda: is_at_rest(reads))

        shelf.fault = lambda number, path: None  # What stalls still does.
        again = await reader.read_async([5])
        assert list(again["label"]) == [5]
        assert not shelf.resume.is_set()
        await until(lambda: is_at_rest(reads))

    run(main())


@pytest.mark.parametrize("warm", [True, False], ids=["records", "index"])
def test_cancelled_reads_make_room_for_those_that_wait(shelf: Shelf, warm: bool) -> None:
    reader = stalled(shelf, warm=warm)
    shelf.fault = lambda number, path: "stall" if "part-0" in path else None

    async def main() -> None:
        tasks = [asyncio.create_task(reader.read_async([i])) for i in range(_READS_IN_FLIGHT)]
        await until(lambda: bool(shelf.reads))
        waiting = asyncio.create_task(reader.read_async([COUNT - 1]))
        await asyncio.sleep(0)
        for task in tasks:
            await cancelled(task)
        assert len(await waiting) == 1
        assert not shelf.resume.is_set()

    run(main())


def test_one_of_two_reads_is_cancelled_and_the_other_goes_on(shelf: Shelf) -> None:
    reader = stalled(shelf, warm=False)

    async def main() -> None:
        reads = reads_of(reader)
        # Both need the same page of the index.
        kept, left = (asyncio.create_task(reader.read_async([i])) for i in (1, 2))
        await until(lambda: bool(shelf.reads))
        await cancelled(left)
        assert not kept.done()
        let_go(shelf)
        assert len(await kept) == 1
        await until(lambda: is_at_rest(reads))

    run(main())


def test_the_loop_does_not_wait_for_an_index(shelf: Shelf) -> None:
    reader = stalled(shelf, warm=False)

    async def main() -> None:
        with released_if_blocked(shelf) as was_blocked:
            tasks = [asyncio.create_task(reader.read_async([i, COUNT - 1 - i])) for i in range(3)]
            await until(lambda: bool(shelf.reads))
            for _ in range(20):
                await asyncio.sleep(0.005)
            assert not was_blocked.is_set(), "the loop stood still"
            let_go(shelf)
            assert [len(batch) for batch in await asyncio.gather(*tasks)] == [2, 2, 2]

    run(main())


@pytest.mark.parametrize("warm", [True, False], ids=["records", "index"])
def test_a_read_that_is_late_says_so_and_is_given_up(shelf: Shelf, warm: bool) -> None:
    reader = stalled(shelf, warm=warm)

    async def main() -> None:
        reads = reads_of(reader)
        with pytest.raises(DeadlineExceeded):
            await reader.read_async([5], timeout_s=0.2)
        assert not shelf.resume.is_set()
        await until(lambda: is_at_rest(reads))

    run(main())


def test_a_loop_that_is_left_with_a_read_ends(shelf: Shelf) -> None:
    reader = stalled(shelf, warm=True)
    started: list[asyncio.Task[ffrecord.Batch]] = []

    async def main() -> None:
        started.append(asyncio.create_task(reader.read_async([5])))
        await until(lambda: bool(shelf.reads))

    run(main())  # asyncio cancels the task.
    assert started[0].cancelled()
    let_go(shelf)
    assert len(reader.read([5])) == 1
