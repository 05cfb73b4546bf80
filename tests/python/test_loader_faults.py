"""Goal: what goes wrong under a loader ends in the documented way, never in a hang.

Method: workers and the daemon are killed in mid-epoch, files cut and replaced, states mixed up.
"""

import gc
import json
import multiprocessing
import os
import pickle
import re
import resource
import signal
import subprocess
import sys
import threading
from multiprocessing import context, synchronize
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils import data
from torch.utils.data._utils import signal_handling

import ffrecord
import killing
from daemon import Daemon
from eventually import eventually
from ffrecord.torch import DataLoader, Dataset, Sampler
from loading import COUNT, KINDS, every_engine, expected, labels, written


@pytest.fixture(scope="module", params=KINDS)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("loader"), request.param)


def kill_worker(sample: dict[str, Any]) -> int:
    if sample["label"] == 50:
        os.kill(os.getpid(), signal.SIGKILL)
    return int(sample["label"])


def test_a_killed_worker_is_an_error_not_a_hang(path: Path) -> None:
    loader = DataLoader(
        Dataset(path, transform=kill_worker),
        batch_size=10,
        mode="workers",
        num_workers=2,
        timeout=20,
    )

    with pytest.raises(RuntimeError, match=r"worker.*exited unexpectedly|killed by signal"):
        list(loader)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_killed_worker_ends_in_torchs_error_soon_in_any_epoch_and_thread(
    tmp_path: Path, method: str
) -> None:
    words = [sys.executable, killing.__file__, str(written(tmp_path)), method]

    done = subprocess.run(words, capture_output=True, text=True, timeout=480, check=False)

    assert done.returncode == 0, done.stderr
    loaders = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(loaders) == 5
    for ended, seconds, again in loaders:
        assert re.match("RuntimeError: DataLoader worker.*(exited unexpectedly|killed by)", ended)
        assert seconds < 10
        assert again == COUNT  # The next iteration has new workers.


LAST_STRAW = expected()[3][7]  # A record of the fourth batch.


def kill_the_worker_once(sample: dict[str, Any]) -> int:
    if sample["label"] == LAST_STRAW and data.get_worker_info() is not None:
        os.kill(os.getpid(), signal.SIGKILL)
    return int(sample["label"])


def test_a_run_goes_on_from_its_state_after_a_worker_was_killed(path: Path) -> None:
    dataset = Dataset(path, transform=kill_the_worker_once)
    loader = DataLoader(
        dataset, batch_sampler=Sampler(dataset, 20), mode="workers", num_workers=1, timeout=20
    )
    seen = []
    with pytest.raises(RuntimeError, match=r"worker.*exited unexpectedly|killed by signal"):
        for numbers in loader:
            seen.append(numbers.tolist())
    assert len(seen) <= 3

    resumed = DataLoader(dataset, batch_sampler=Sampler(dataset, 20), mode="threads", num_workers=1)
    resumed.load_state_dict(loader.state_dict())

    assert seen + [numbers.tolist() for numbers in resumed] == expected()


def unsendable(batch: Any) -> Any:  # noqa: ANN401 - as collate_fn is called
    return lambda: batch


def die_with_a_lock(_: int) -> None:
    """Let this worker be killed when it looks whether the loader is done, if that takes a lock."""

    def look(event: synchronize.Event) -> bool:
        with event._cond:  # type: ignore[attr-defined]
            os.kill(os.getpid(), signal.SIGKILL)
        return False

    synchronize.Event.is_set = look  # type: ignore[method-assign]


def load_beside_a_death(path: Path) -> None:
    dataset = Dataset(path)
    loader = DataLoader(dataset, 20, num_workers=2, worker_init_fn=die_with_a_lock, timeout=20)
    assert len(labels(loader)) == COUNT // 20


def test_a_worker_that_is_killed_leaves_no_lock_that_the_loader_needs(path: Path) -> None:
    process = multiprocessing.get_context("forkserver").Process(
        target=load_beside_a_death, args=(path,)
    )
    process.start()
    process.join(120)
    process.kill()  # If it waits for the lock.
    process.join()
    assert process.exitcode == 0


def test_a_batch_that_cannot_cross_is_an_error_not_a_hang(path: Path) -> None:
    loader = DataLoader(
        Dataset(path),
        batch_size=60,
        mode="workers",
        num_workers=1,
        collate_fn=unsendable,
        timeout=20,
    )

    with pytest.raises(RuntimeError, match="of worker 0 cannot be received"):
        list(loader)


never = threading.Event()


def hang(sample: dict[str, Any]) -> int:
    never.wait(60)
    return int(sample["label"])


def test_a_worker_that_hangs_is_a_deadline(path: Path) -> None:
    loader = DataLoader(
        Dataset(path, transform=hang), batch_size=10, mode="workers", num_workers=1, timeout=0.5
    )

    with pytest.raises(ffrecord.DeadlineExceeded, match=r"1 loader workers within 0\.5 s"):
        next(iter(loader))


@pytest.mark.parametrize(
    "options", [{"mode": "threads"}, {"mode": "workers"}], ids=["threads", "workers"]
)
def test_a_file_that_is_cut_under_a_loader_costs_its_records_only(
    path: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    copy = tmp_path / "copy.ffr"
    copy.write_bytes(path.read_bytes())
    dataset = Dataset([copy, path], on_corrupt="skip", max_corrupt=1.0)
    loader = DataLoader(dataset, batch_size=20, num_workers=1, prefetch_factor=1, **options)
    batches = iter(loader)
    first = next(batches)["label"].tolist()

    os.truncate(copy, 300_000)

    rest = labels(batches)
    assert first == list(range(20))
    assert all(rest)  # No step is empty: a record of the other file stands for those that are lost.
    assert [label for batch in rest[5:] for label in batch] == list(range(COUNT))
    assert loader.stats()["damaged"] > 0
    with pytest.raises(ffrecord.CorruptionError, match=r"none of the 120 records .* is good"):
        Dataset(dataset.source.subset(range(COUNT)), on_corrupt="skip")[[3, 4]]


@pytest.mark.parametrize(
    "options", [{"mode": "threads"}, {"mode": "workers"}], ids=["threads", "workers"]
)
def test_a_file_replaced_in_mid_run_is_never_mixed_in(
    path: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    copy, other = tmp_path / "copy.ffr", tmp_path / "other.ffr"
    copy.write_bytes(path.read_bytes())
    with ffrecord.Writer(other, {"label": "i64", "x": "f32[3]", "image": "bytes"}) as writer:
        for i in range(COUNT):
            writer.write({"label": -i, "x": np.zeros(3), "image": b""})
    dataset = Dataset(copy)
    loader = DataLoader(dataset, batch_sampler=Sampler(dataset, 20), num_workers=1, **options)
    batches = iter(loader)
    seen = [next(batches)["label"].tolist()]

    os.replace(other, copy)

    # Who has the file open reads on in what it has opened; so do children by fork.
    assert seen + labels(batches) == expected(0)
    assert labels(loader) == expected(1)


def as_sent_to_a_process(dataset: Dataset) -> bytes:
    context.set_spawning_popen(object())  # As multiprocessing does while it pickles.
    try:
        return pickle.dumps(dataset)
    finally:
        context.set_spawning_popen(None)


def test_a_process_that_is_started_while_the_daemon_restarts_waits_for_it(
    path: Path, tmp_path: Path
) -> None:
    with Daemon(tmp_path / "data") as daemon:
        ffrecord.publish(path, daemon.address("train"))
        dataset = Dataset(ffrecord.open(daemon.address("train"), timeout_s=1))
        with pytest.raises(ffrecord.UnavailableError, match="no daemon answers"):
            len(Dataset("ffrecord://127.0.0.1:1/train"))  # Nobody has ever been there.
        assert len(dataset) == COUNT
        sent = as_sent_to_a_process(dataset)
        command = [sys.executable, "-c", LENGTH, sent.hex()]

        daemon.kill()
        late = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (
            "tried until the timeout" in late.stderr and "no daemon answers" not in late.stderr
        ), late.stderr
        daemon.start()
        found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)

    assert found.stdout == f"{COUNT}\n"


LENGTH = """
import pickle, sys
print(len(pickle.loads(bytes.fromhex(sys.argv[1]))))
"""


def test_a_process_that_is_started_refuses_a_file_that_was_replaced(
    path: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.ffr"
    copy.write_bytes(path.read_bytes())
    dataset = Dataset(copy)
    assert len(dataset) == COUNT
    sent = as_sent_to_a_process(dataset)
    with ffrecord.Writer(copy, {"label": "i64"}, replace=True) as writer:
        for i in range(COUNT):
            writer.write({"label": i})

    with pytest.raises(ffrecord.CorruptionError, match=r"copy\.ffr: the data was replaced"):
        len(pickle.loads(sent))
    assert len(pickle.loads(pickle.dumps(dataset))) == COUNT  # A pickle on disk holds paths only.


@every_engine
def test_a_state_of_other_data_is_refused_and_one_of_another_batch_goes_on(
    path: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    with ffrecord.Writer(tmp_path / "other.ffr", {"label": "i64"}) as writer:
        for i in range(COUNT):
            writer.write({"label": i})
    dataset, other = Dataset(path), Dataset(tmp_path / "other.ffr")
    loader = DataLoader(dataset, batch_sampler=Sampler(dataset, 20), **options)
    state = {**loader.state_dict(), "position": 40}

    with pytest.raises(ValueError, match="fingerprint"):
        loader.load_state_dict(Sampler(other, 20).state_dict())
    assert labels(loader) == expected()

    larger = DataLoader(dataset, batch_sampler=Sampler(dataset, 40, seed=9), **options)
    larger.load_state_dict(state)
    assert labels(larger) == expected(batch=40)[1:]  # Of the state's order, not of seed 9.


def test_a_daemon_that_is_restarted_in_mid_epoch_costs_nothing(path: Path, tmp_path: Path) -> None:
    with Daemon(tmp_path / "data") as daemon:
        ffrecord.publish(path, daemon.address("train"))
        dataset = Dataset(daemon.address("train"))
        for options in (
            {"mode": "threads", "num_workers": 2},
            {"mode": "workers", "num_workers": 2},
        ):
            loader = DataLoader(dataset, batch_sampler=Sampler(dataset, 20), **options)  # type: ignore[arg-type]
            batches = iter(loader)
            seen = [next(batches)["label"].tolist()]

            daemon.kill()
            daemon.start()

            assert seen + labels(batches) == expected()


def test_a_daemon_that_stays_away_is_an_error_that_names_it(path: Path, tmp_path: Path) -> None:
    with Daemon(tmp_path / "data") as daemon:
        ffrecord.publish(path, daemon.address("train"))
        dataset = Dataset(ffrecord.open(daemon.address("train"), timeout_s=0.5), on_corrupt="skip")
        loader = DataLoader(
            dataset, batch_size=10, mode="threads", num_workers=1, prefetch_factor=1
        )
        batches = iter(loader)
        next(batches)
        daemon.kill()

        with pytest.raises((ffrecord.UnavailableError, ffrecord.DeadlineExceeded), match=r"127\.0"):
            list(batches)


@every_engine
def test_a_loader_used_before_a_fork_works_in_the_child(
    path: Path, options: dict[str, Any]
) -> None:
    dataset = Dataset(path)
    loader = DataLoader(dataset, batch_sampler=Sampler(dataset, 20), timeout=20, **options)
    assert labels(loader) == expected(0)

    if (pid := os.fork()) == 0:
        good = labels(loader) == expected(1)
        os._exit(0 if good else 1)

    assert os.waitpid(pid, 0)[1] == 0
    assert labels(loader) == expected(1)


AT_EXIT = """
import sys, threading
from ffrecord.torch import DataLoader, Dataset, Sampler

began = threading.Event()

def slow(sample):
    began.set()
    threading.Event().wait(0.01)
    return sample["label"]

dataset = Dataset(sys.argv[1], transform=slow)
loaders = [
    DataLoader(dataset, batch_sampler=Sampler(dataset, 20), num_workers=1, **options)
    for options in ({"mode": "workers"}, {"mode": "threads"})
]
batches = [iter(loader) for loader in loaders]
print([next(each).tolist() for each in batches])
began.clear()
began.wait(60)
raise SystemExit(7)
"""


def test_an_interpreter_that_exits_while_batches_are_loaded_ends_quietly(path: Path) -> None:
    words = [sys.executable, "-W", "error", "-c", AT_EXIT, str(path)]

    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)

    assert (done.returncode, done.stderr) == (7, "")
    assert json.loads(done.stdout) == [expected()[0]] * 2


DAEMONS_AT_EXIT = """
import sys, threading, time
import ffrecord
from ffrecord import checkpoint

path, folder = sys.argv[1:]
reader = ffrecord.open(path)
called = threading.Semaphore(0)

def callback(*_):
    called.release()
    time.sleep(0.001)  # Lets go of the GIL, and comes for it again.

class Group:
    rank, size = 0, 2
    def all_gather(self, mine):
        while True:
            callback()

def read():
    reader.read(range(50))
    callback()

def verify():
    ffrecord.verify(path, progress=callback)

def repair():
    ffrecord.repair(path, f"{folder}/repaired", replace=True, progress=callback)

def save():
    checkpoint.save(f"{folder}/checkpoints", 1, {"w": 1}, group=Group())

def again(call):
    while True:
        call()

class Slow:  # Goes while the interpreter goes down, which lets the others come for the GIL.
    def __init__(self, sleep):
        self.sleep = sleep
    def __del__(self):
        self.sleep(0.3)

sys.modules["slow"] = Slow(time.sleep)
for call in (read, verify, repair, save):
    threading.Thread(target=again, args=(call,), daemon=True).start()
    for _ in range(3):
        called.acquire()
raise SystemExit(7)
"""


def test_an_interpreter_that_exits_while_daemon_threads_work_ends_quietly(
    path: Path, tmp_path: Path
) -> None:
    words = [sys.executable, "-c", DAEMONS_AT_EXIT, str(path), str(tmp_path)]

    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (7, "", "")


def test_a_hundred_thousand_files_are_one_dataset(tmp_path: Path) -> None:
    different, names, times, each = 7, 1_000, 100, 2
    for number in range(different):
        with ffrecord.Writer(tmp_path / f"{number}", {"label": "i64"}) as writer:
            for i in range(each):
                writer.write({"label": number * each + i})
    paths = [tmp_path / f"{number:04}.ffr" for number in range(names)]
    for number, name in enumerate(paths):
        os.link(tmp_path / f"{number % different}", name)

    dataset = Dataset(paths * times)

    assert len(dataset) == names * times * each == 200_000
    indices = next(iter(Sampler(dataset, 2_000)))
    loader = DataLoader(
        dataset, batch_sampler=Sampler(dataset, 2_000), mode="threads", num_workers=2
    )
    batch = next(iter(loader))
    assert batch["label"].tolist() == [i % (names * each) % (different * each) for i in indices]
    # Half of those allowed are files' at most: the program needs some, too.
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert len(os.listdir("/proc/self/fd")) < 0.6 * soft


def test_persistent_workers_that_an_interrupt_has_ended_are_replaced(path: Path) -> None:
    dataset = Dataset(path)
    sampler = Sampler(dataset, 20)
    loader = DataLoader(
        dataset, batch_sampler=sampler, num_workers=2, persistent_workers=True, timeout=60
    )
    assert labels(loader) == expected(0)
    workers = loader._iterator._workers  # type: ignore[union-attr]

    for each in workers:
        os.kill(each.pid, signal.SIGINT)  # A terminal interrupts all of its processes.
    for each in workers:
        each.join(60)

    assert labels(loader) == expected(1)


@pytest.mark.parametrize("late", [False, True])
def test_a_loader_that_is_interrupted_while_it_starts_workers_ends_those_that_it_has_started(
    path: Path, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    dataset = Dataset(path)
    loader = DataLoader(dataset, 20, mode="workers", num_workers=2)
    others = set(multiprocessing.active_children())
    start = multiprocessing.process.BaseProcess.start
    started: list[Any] = []

    def interrupted(process: Any) -> None:  # noqa: ANN401 - a process
        if started and not late:
            raise KeyboardInterrupt
        start(process)
        started.append(process)

    def registered() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", interrupted)
    if late:
        monkeypatch.setattr(signal_handling, "_set_SIGCHLD_handler", registered)
    unraisable: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    for _ in range(3):  # The next iterator may be at the address of the first.
        with pytest.raises(KeyboardInterrupt):
            next(iter(loader))
        gc.collect()

    assert started
    assert not unraisable  # torch fails to end workers of an iterator that was not made whole.
    eventually(lambda: not {*multiprocessing.active_children()} - others)


KILLED = """
import multiprocessing, sys, threading
from ffrecord.torch import DataLoader, Dataset, Sampler

if __name__ == "__main__":
    dataset = Dataset(sys.argv[1])
    loader = DataLoader(
        dataset,
        batch_sampler=Sampler(dataset, 30),
        num_workers=2,
        mode="workers",
        multiprocessing_context=sys.argv[2],
    )
    batches = iter(loader)
    next(batches)
    print(*(each.pid for each in multiprocessing.active_children()), flush=True)
    threading.Event().wait()
"""


def is_running(process: str) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_workers_end_with_a_process_that_is_killed(tmp_path: Path, method: str) -> None:
    program = tmp_path / "killed.py"
    program.write_text(KILLED)
    words = [sys.executable, str(program), str(written(tmp_path)), method]

    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        workers = process.stdout.readline().split()
        process.kill()

    assert len(workers) == 2
    eventually(lambda: not any(map(is_running, workers)))
