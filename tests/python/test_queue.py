"""Several batches of one reader at a time.

Goal: a queue, futures and asyncio tasks give the batches that `read` gives, and what is cancelled,
late, damaged, interrupted or left stops nobody.
Method: random batches of local files, warm and past the page cache, compared with `read`; a damaged
record; threads, loops, forks, Ctrl-C and interpreters that end with batches under way.
"""

import asyncio
import contextlib
import os
import pathlib
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent import futures

import numpy as np
import pytest

import ffrecord
from eventually import until_idle

COUNT = 400


@pytest.fixture(scope="module", params=[False, True], ids=["warm", "direct"])
def reader(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ffrecord.Reader]:
    path = tmp_path_factory.mktemp("queue") / "a.ffr"
    chance = np.random.default_rng(7)
    with ffrecord.Writer(path) as writer:
        for _ in range(COUNT):
            writer.write(chance.bytes(int(chance.integers(0, 20_000))))
    with ffrecord.open(path, direct=request.param) as opened:
        yield opened


def damaged(tmp_path: pathlib.Path, index: int) -> pathlib.Path:
    path = tmp_path / "damaged.ffr"
    with ffrecord.Writer(path) as writer:
        for number in range(20):
            writer.write(f"record number {number:05}".encode())
    content = bytearray(path.read_bytes())
    content[content.index(f"number {index:05}".encode())] ^= 1
    path.write_bytes(content)
    return path


def wanted_batches(count: int) -> list[list[int]]:
    chance = np.random.default_rng(1)
    return [list(chance.integers(-COUNT, COUNT, int(chance.integers(0, 60)))) for _ in range(count)]


def same(found: ffrecord.Batch, expected: ffrecord.Batch) -> bool:
    return list(found.indices) == list(expected.indices) and all(
        bytes(a) == bytes(b) for a, b in zip(found, expected, strict=True)
    )


@pytest.mark.parametrize("in_order", [False, True])
def test_each_batch_is_returned_once_and_as_read_returns_it(
    reader: ffrecord.Reader, in_order: bool
) -> None:
    wanted = wanted_batches(30)
    with reader.open_queue(batches_in_flight=3, in_order=in_order) as queue:
        for number, indices in enumerate(wanted):
            assert queue.submit(indices, token=("batch", number)) == ("batch", number)
        assert len(queue) == 30
        found = {}
        while (done := queue.poll()) is not None:
            found[done.token[1]] = done.result()
    assert len(found) == 30
    if in_order:
        assert list(found) == sorted(found)
    for number, indices in enumerate(wanted):
        assert same(found[number], reader.read(indices))


def test_its_descriptor_serves_an_event_loop(reader: ffrecord.Reader) -> None:
    with reader.open_queue(batches_in_flight=2) as queue, select.epoll() as events:
        events.register(queue.fileno(), select.EPOLLIN)
        done = 0
        for number in range(20):
            queue.submit(range(number, COUNT))
            while queue.poll(0) is not None:
                done += 1
        while done < 20:
            assert events.poll(20), "nobody said that there is something to do"
            while queue.poll(0) is not None:
                done += 1


def test_tokens_are_numbers_by_default_and_a_cancelled_batch_is_not_returned(
    reader: ffrecord.Reader,
) -> None:
    with reader.open_queue(batches_in_flight=1) as queue:
        tokens = [queue.submit(range(100)) for _ in range(5)]
        assert len(set(tokens)) == 5
        assert queue.cancel(tokens[2])
        assert not queue.cancel(tokens[2])
        assert not queue.cancel("never")
        assert len(queue) == 4
        left = []
        while (done := queue.poll()) is not None:
            left.append(done.token)
        assert sorted(left) == sorted(tokens[:2] + tokens[3:])


def test_what_is_wrong_is_refused_and_leaves_the_queue_as_it_was(reader: ffrecord.Reader) -> None:
    with pytest.raises(ValueError, match="batches_in_flight is 0"):
        reader.open_queue(batches_in_flight=0)
    with pytest.raises(ValueError, match="on_corrupt"):
        reader.open_queue(on_corrupt="never")
    with reader.open_queue() as queue:
        with pytest.raises(IndexError, match=f"record index {COUNT}"):
            queue.submit([COUNT])
        with pytest.raises(TypeError):
            queue.submit([0.5])
        with pytest.raises(ValueError, match="timeout_s"):
            queue.submit([0], timeout_s=0)
        assert len(queue) == 0
        assert queue.poll() is None
        queue.submit([0])
    with pytest.raises(ValueError, match="closed"):
        queue.submit([0])
    with pytest.raises(ValueError, match="closed"):
        queue.poll()


def test_damage_is_treated_as_read_treats_it(tmp_path: pathlib.Path) -> None:
    path = damaged(tmp_path, 7)
    with ffrecord.open(path) as reader:
        for on_corrupt, count in [("skip", 19), ("replace", 20), ("keep", 20)]:
            with reader.open_queue(on_corrupt=on_corrupt) as queue:
                queue.submit(range(20))
                batch = queue.poll().result()
                assert len(batch) == count
                assert same(batch, reader.read(range(20), on_corrupt=on_corrupt))
        with reader.open_queue() as queue:
            queue.submit(range(20), token="bad")
            queue.submit(range(5), token="good")
            done = {one.token: one for one in (queue.poll(), queue.poll())}
            with pytest.raises(ffrecord.CorruptionError, match="record 7"):
                done["bad"].result()
            assert len(done["good"].result()) == 5
        with pytest.raises(ffrecord.CorruptionError, match="record 7"):
            reader.submit(range(20)).result(20)
        with pytest.raises(ffrecord.CorruptionError, match="record 7"):
            asyncio.run(reader.read_async(range(20)))


def test_calls_of_two_threads_do_not_overlap(reader: ffrecord.Reader) -> None:
    with reader.open_queue() as queue:
        inner = queue._inner
        assert inner is not None
        stop = threading.Event()
        refused: list[str] = []

        def submit() -> None:
            while not stop.is_set():
                try:
                    inner.submit(np.arange(100), 1, None)
                    inner.poll(0, [])
                except ValueError as error:
                    refused.append(str(error))

        threads = [threading.Thread(target=submit) for _ in range(3)]
        for thread in threads:
            thread.start()
        stop.wait(0.3)
        stop.set()
        for thread in threads:
            thread.join()
        assert all("another thread" in text for text in refused)


def test_futures_of_many_threads(reader: ffrecord.Reader) -> None:
    wanted = wanted_batches(60)
    with futures.ThreadPoolExecutor(4) as pool:
        submitted = list(pool.map(reader.submit, wanted))
    for indices, future in zip(wanted, submitted, strict=True):
        assert same(future.result(30), reader.read(indices))
    with pytest.raises(IndexError):
        reader.submit([COUNT])


def test_a_future_that_is_cancelled_stops_nobody(reader: ffrecord.Reader) -> None:
    submitted = [reader.submit(range(COUNT)) for _ in range(30)]
    for future in submitted[::2]:
        future.cancel()
    for future in submitted[1::2]:
        assert len(future.result(30)) == COUNT


def test_tasks_of_a_loop_read_at_the_same_time(reader: ffrecord.Reader) -> None:
    wanted = wanted_batches(40)

    async def all_of_them() -> list[ffrecord.Batch]:
        return await asyncio.gather(*(reader.read_async(indices) for indices in wanted))

    for _ in range(2):  # Each in a loop of its own.
        for indices, batch in zip(wanted, asyncio.run(all_of_them()), strict=True):
            assert same(batch, reader.read(indices))


def test_a_task_that_is_cancelled_stops_its_read_alone(reader: ffrecord.Reader) -> None:
    async def some() -> list[ffrecord.Batch | BaseException]:
        tasks = [asyncio.create_task(reader.read_async(range(COUNT))) for _ in range(20)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    found = asyncio.run(some())
    assert all(len(batch) == COUNT for batch in found[1::2])
    assert all(isinstance(one, asyncio.CancelledError) or len(one) == COUNT for one in found[::2])


def test_a_child_reads_with_queues_of_its_own(reader: ffrecord.Reader) -> None:
    queue = reader.open_queue()
    queue.submit(range(COUNT))
    first = reader.submit(range(COUNT))
    child = os.fork()
    if child == 0:
        try:
            with pytest.raises(ValueError, match="parent"):
                queue.submit([0])
            del queue
            assert len(reader.submit(range(10)).result(60)) == 10
            assert len(asyncio.run(reader.read_async(range(10)))) == 10
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert len(queue.poll().result()) == COUNT
    assert len(first.result(20)) == COUNT


def interrupted_at_random(chance: np.random.Generator, work: Callable[[], None]) -> None:
    """Run `work`, and have Ctrl-C come within 4 ms, if it takes so long."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, float(chance.uniform(1e-5, 4e-3)))
            work()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGALRM, before)


def test_ctrl_c_at_any_moment_leaves_a_queue_usable(reader: ffrecord.Reader) -> None:
    chance = np.random.default_rng(3)

    def work() -> None:
        for token in "abc":
            queue.submit(range(COUNT), token=token)
        while queue.poll(20) is not None:
            pass

    for _ in range(100):
        with reader.open_queue(batches_in_flight=2) as queue:
            interrupted_at_random(chance, work)
            left = [queue.poll(20) for _ in range(len(queue))]
            assert all(done is not None and len(done.result()) == COUNT for done in left)
            assert queue.poll(0) is None


def test_ctrl_c_at_any_moment_costs_no_other_future(reader: ffrecord.Reader) -> None:
    chance = np.random.default_rng(4)

    def work() -> None:
        reader.submit(range(COUNT))
        reader.submit(range(COUNT))
        while True:  # Not `result()`: Python's Condition loses its lock if a handler raises in it.
            pass

    for _ in range(100):
        others = reader.submit(range(COUNT))
        interrupted_at_random(chance, work)
        assert len(others.result(20)) == len(reader.submit(range(COUNT)).result(20)) == COUNT


def test_a_callback_that_would_end_its_thread_costs_no_other_future(
    reader: ffrecord.Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[type[BaseException]] = []
    monkeypatch.setattr(threading, "excepthook", lambda found: told.append(found.exc_type))
    others = [reader.submit(range(COUNT)) for _ in range(5)]
    with contextlib.suppress(SystemExit):  # It may be done already.
        others[0].add_done_callback(lambda _: sys.exit(1))
    others += [reader.submit(range(COUNT)) for _ in range(5)]
    assert all(len(future.result(20)) == COUNT for future in others)
    assert told in ([], [SystemExit])


def test_a_loop_that_is_closed_with_reads_under_way_is_left_alone(reader: ffrecord.Reader) -> None:
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _loop, _facts: None)  # Of tasks that are left.
    reads = [reader.read_async(range(COUNT)) for _ in range(12)]
    tasks = [loop.create_task(read) for read in reads]
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    until_idle()  # Some are complete by now, and nobody has taken them.
    for read in reads:
        read.close()  # As the garbage collector does, which would hide an error.
    del tasks
    assert len(asyncio.run(reader.read_async(range(COUNT)))) == COUNT


def test_futures_need_no_further_descriptor(reader: ffrecord.Reader) -> None:
    program = f"""
import resource, ffrecord
reader = ffrecord.open({str(reader.where[0])!r})
reader.submit([0]).result(60)
limit = resource.RLIMIT_NOFILE
resource.setrlimit(limit, (3, resource.getrlimit(limit)[1]))
for _ in range(50):
    futures = [reader.submit(range(400)) for _ in range(4)]
    assert all(len(future.result(60)) == 400 for future in futures)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_thread_that_cannot_start_fails_one_submit_alone(
    reader: ffrecord.Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    reader.submit([0]).result(60)
    for thread in threading.enumerate():
        if thread.name == "ffrecord-reads":
            thread.join()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            reader.submit(range(COUNT))
    later = [reader.submit(range(COUNT)) for _ in range(10)]
    assert all(len(future.result(60)) == COUNT for future in later)


def test_a_loop_that_refuses_a_descriptor_fails_one_read_alone(
    reader: ffrecord.Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def some() -> list[ffrecord.Batch]:
        loop = asyncio.get_running_loop()

        def refuse(*_arguments: object) -> None:
            raise OSError("no descriptor")

        with monkeypatch.context() as patched:
            patched.setattr(loop, "add_reader", refuse)
            with pytest.raises(OSError, match="no descriptor"):
                await reader.read_async(range(COUNT))
        later = asyncio.gather(*(reader.read_async(range(COUNT)) for _ in range(20)))
        return await asyncio.wait_for(later, 10)

    assert all(len(batch) == COUNT for batch in asyncio.run(some()))


@pytest.mark.parametrize(
    "left",
    [
        "queue = reader.open_queue(); [queue.submit(range(400)) for _ in range(20)]",
        "[reader.submit(range(400)) for _ in range(20)]",
        "[reader.submit(range(400)) for _ in range(20)]; reader.close(); del reader",
    ],
)
def test_a_program_ends_with_batches_under_way(reader: ffrecord.Reader, left: str) -> None:
    program = f"import ffrecord; reader = ffrecord.open({str(reader.where[0])!r}); {left}"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_batches_count_in_the_statistics_of_the_reader(reader: ffrecord.Reader) -> None:
    before = reader.stats()
    with reader.open_queue() as queue:
        queue.submit(range(10))
        queue.poll().result()
    after = reader.stats()
    assert after["batches"] == before["batches"] + 1
    assert after["records"] == before["records"] + 10
