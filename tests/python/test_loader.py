"""Goal: the loader keeps its promises under every engine, and what goes wrong ends with a reason.

Method: one small dataset, loaded in every way; workers and the daemon are killed in mid-epoch.
"""

import gc
import itertools
import json
import os
import pickle
import signal
import threading
import time
from multiprocessing import context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import data

import ffrecord
from daemon import Daemon
from ffrecord import FileReader, FileWriter
from ffrecord.order import IndexBatch
from ffrecord.stages import Stages, verdict
from ffrecord.torch import ConcatDataset, DataLoader, Dataset, Sampler, Subset
from ffrecord.torch.handover import Crossing

COUNT = 120
ENGINES: dict[str, dict[str, Any]] = {
    "inline": {},
    "workers": {"num_workers": 2},
    "persistent": {"num_workers": 2, "persistent_workers": True},
    "threads": {"mode": "threads", "num_workers": 2},
}
every_engine = pytest.mark.parametrize("options", ENGINES.values(), ids=ENGINES)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("loader") / "data.ffr"
    with ffrecord.Writer(path, {"label": "i64", "x": "f32[3]", "image": "bytes"}) as writer:
        for i in range(COUNT):
            image = bytes([i]) * (10_000 + i)
            writer.write({"label": i, "x": np.arange(3) + i, "image": image})
    return path


def labels(batches: Any) -> list[list[int]]:  # noqa: ANN401 - any loader
    return [batch["label"].tolist() for batch in batches]


def expected(epoch: int = 0, batch: int = 20) -> list[list[int]]:
    sampler = Sampler(COUNT, batch)
    sampler.set_epoch(epoch)
    return [list(indices) for indices in sampler]


def loader_threads() -> int:
    gc.collect()
    return sum(thread.name == "ffrecord-loader" for thread in threading.enumerate())


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_give_the_order_under_any_start_method(path: Path, method: str) -> None:
    dataset = Dataset(path)
    assert len(dataset) == COUNT  # Opened in the parent, before any child.

    loader = DataLoader(
        dataset, batch_sampler=Sampler(dataset, 20), num_workers=2, multiprocessing_context=method
    )

    assert labels(loader) == expected()


@every_engine
def test_an_epoch_broken_off_begins_again_and_a_state_goes_on(
    path: Path, options: dict[str, Any]
) -> None:
    dataset = Dataset(path)
    loader = DataLoader(dataset, batch_sampler=Sampler(dataset, 20), **options)

    first = labels(itertools.islice(loader, 2))
    assert first == expected()[:2]
    state = loader.state_dict()
    assert (state["epoch"], state["position"]) == (0, 40)
    assert labels(loader) == expected()
    assert loader.state_dict()["epoch"] == 1

    loader.load_state_dict(state)
    assert labels(loader) == expected()[2:]
    assert labels(loader) == expected(epoch=1)


def test_threads_go_on_over_the_end_of_an_epoch(path: Path) -> None:
    before = loader_threads()
    dataset = Dataset(path)
    sampler = Sampler(dataset, 20)
    loader = DataLoader(dataset, batch_sampler=sampler, mode="threads", num_workers=2)

    assert labels(loader) == expected(0)
    # Read ahead into epoch 1 while epoch 0 was being consumed.
    ahead = loader._ahead
    assert ahead is not None
    assert labels(loader) == expected(1)
    assert loader._ahead is ahead
    # They read ahead into epoch 2, as soon as they get to it.
    deadline = time.monotonic() + 60
    while dataset.stats()["records"] <= 2 * COUNT:
        assert time.monotonic() < deadline
        time.sleep(0.01)

    sampler.set_epoch(0)
    assert labels(loader) == expected(0)
    assert loader._ahead is not ahead
    loader.close()
    assert loader_threads() == before


def test_a_loader_that_is_dropped_ends_its_threads(path: Path) -> None:
    before = loader_threads()
    dataset = Dataset(path)
    loader = DataLoader(dataset, batch_sampler=Sampler(dataset, 20), mode="threads", num_workers=2)
    labels(loader)
    assert loader_threads() == before + 2

    del loader

    assert loader_threads() == before


@every_engine
@pytest.mark.parametrize("shuffle", [False, True])
def test_set_step_skips_batches_of_torchs_own_order(
    path: Path, options: dict[str, Any], shuffle: bool
) -> None:
    def generator() -> torch.Generator:
        return torch.Generator().manual_seed(7)

    # With workers that stay, torch draws from its generator in another order.
    processes = {} if "mode" in options else options
    theirs: data.DataLoader[int] = data.DataLoader(
        range(COUNT),  # type: ignore[arg-type]
        batch_size=16,
        shuffle=shuffle,
        generator=generator(),
        **processes,
    )
    loader = DataLoader(
        Dataset(path), batch_size=16, shuffle=shuffle, generator=generator(), **options
    )

    loader.set_step(3)

    assert len(loader) == 8 - 3
    assert labels(loader) == [batch.tolist() for batch in theirs][3:]
    loader.set_step(0)
    assert len(loader) == 8
    assert labels(loader) == [batch.tolist() for batch in theirs]


@every_engine
def test_set_step_works_with_an_elastic_order(path: Path, options: dict[str, Any]) -> None:
    dataset = Dataset(path)
    loader = DataLoader(dataset, batch_sampler=Sampler(dataset, 20), **options)

    loader.set_step(4)

    assert labels(loader) == expected()[4:]
    assert labels(loader) == expected(1)[4:]


def test_steps_out_of_range_and_loaders_that_cannot_skip_assert(path: Path) -> None:
    loader = DataLoader(Dataset(path), batch_size=40)
    for step in (-1, 3):
        with pytest.raises(AssertionError, match="of 3 batches"):
            loader.set_step(step)
    loader.set_step(2)
    with pytest.raises(AssertionError, match="skippable"):
        DataLoader(Dataset(path), skippable=False).set_step(1)
    assert len(DataLoader(Dataset(path), num_workers=0, prefetch_factor=5)) == COUNT


# What a worker hands over.


def test_a_batch_crosses_as_one_descriptor_and_is_writable(path: Path) -> None:
    def mapped() -> set[str]:
        lines = Path("/proc/self/maps").read_text().splitlines()
        return {line.split()[0] for line in lines if "/memfd:ffrecord" in line}

    dataset = Dataset(path)
    loader = DataLoader(dataset, batch_size=60, num_workers=1)
    gc.collect()
    before = mapped()  # What other tests have left.

    batches = list(loader)

    crossed = mapped() - before
    assert len(crossed) == 2
    for batch in batches:
        assert batch["x"].dtype == torch.float32
        assert [bytes(t.numpy()) for t in batch["image"]] == [
            bytes([i]) * (10_000 + i) for i in batch["label"].tolist()
        ]
        batch["x"] += 1  # Pages of its own.
    del batches, batch
    gc.collect()
    assert not mapped() & crossed


def send(value: Any) -> Any:  # noqa: ANN401 - whatever crosses
    crossed = pickle.loads(pickle.dumps(Crossing(value, 3, {"read_s": 1.0})))
    assert (crossed.worker, crossed.numbers) == (3, {"read_s": 1.0})
    return crossed.value


@pytest.mark.parametrize("size", [1, 100_000], ids=["small", "large"])
def test_every_kind_of_batch_crosses_unchanged(path: Path, size: int) -> None:
    big = torch.arange(size, dtype=torch.float64)
    kinds = {
        "bf16": big.to(torch.bfloat16),
        "bool": big > 3,
        "complex": torch.complex(big, -big).conj(),
        "scalar": torch.tensor(2.5),
        "empty": torch.empty((0, 3)),
        "empty of no stride": torch.empty_strided((0,), (0,), dtype=torch.int64),
        "strided": torch.arange(24).reshape(4, 6)[::2, 1:].t(),
        "array": np.arange(size, dtype=np.int16),
        "nested": [(1, "a"), {"b": torch.ones(2)}],
        "none": None,
    }

    found = send(kinds)

    for name in ("bf16", "bool", "complex", "scalar", "empty", "empty of no stride", "strided"):
        assert torch.equal(found[name], kinds[name].resolve_conj())  # type: ignore[attr-defined]
        assert found[name].dtype == kinds[name].dtype  # type: ignore[attr-defined]
    assert np.array_equal(found["array"], kinds["array"])  # type: ignore[arg-type]
    assert (found["nested"][0], found["none"]) == ((1, "a"), None)
    assert torch.equal(found["nested"][1]["b"], torch.ones(2))
    batch = send(ffrecord.open(path).read(range(50)))
    assert batch["label"].tolist() == list(range(50))
    assert batch["image"][7].tobytes() == bytes([7]) * 10_007


def identity(batch: Any) -> Any:  # noqa: ANN401 - as it is
    return batch


def test_a_batch_itself_may_cross(path: Path) -> None:
    loader = DataLoader(Dataset(path), batch_size=30, num_workers=2, collate_fn=identity)

    assert [batch["label"].tolist() for batch in loader] == [
        list(range(first, first + 30)) for first in range(0, COUNT, 30)
    ]


def test_nothing_stays_in_shared_memory_or_open(path: Path) -> None:
    loader = DataLoader(Dataset(path), batch_size=10, num_workers=2, persistent_workers=True)
    list(loader)
    before = len(os.listdir("/proc/self/fd")), sorted(os.listdir("/dev/shm"))

    for _ in range(5):
        list(loader)

    assert (len(os.listdir("/proc/self/fd")), sorted(os.listdir("/dev/shm"))) == before


# What goes wrong.


def kill_worker(sample: dict[str, Any]) -> int:
    if sample["label"] == 50:
        os.kill(os.getpid(), signal.SIGKILL)
    return int(sample["label"])


def test_a_killed_worker_is_an_error_not_a_hang(path: Path) -> None:
    loader = DataLoader(Dataset(path, transform=kill_worker), batch_size=10, num_workers=2)

    with pytest.raises(RuntimeError, match=r"worker.*exited unexpectedly|killed by signal"):
        list(loader)


LAST_STRAW = expected()[3][7]  # A record of the fourth batch.


def kill_the_worker_once(sample: dict[str, Any]) -> int:
    if sample["label"] == LAST_STRAW and data.get_worker_info() is not None:
        os.kill(os.getpid(), signal.SIGKILL)
    return int(sample["label"])


def test_a_run_goes_on_from_its_state_after_a_worker_was_killed(path: Path) -> None:
    dataset = Dataset(path, transform=kill_the_worker_once)
    loader = DataLoader(dataset, batch_sampler=Sampler(dataset, 20), num_workers=1)
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


def test_a_batch_that_cannot_cross_is_an_error_not_a_hang(path: Path) -> None:
    loader = DataLoader(Dataset(path), batch_size=60, num_workers=1, collate_fn=unsendable)

    with pytest.raises(RuntimeError, match="of worker 0 cannot be handed over"):
        list(loader)


never = threading.Event()


def hang(sample: dict[str, Any]) -> int:
    never.wait(60)
    return int(sample["label"])


def test_a_worker_that_hangs_is_a_deadline(path: Path) -> None:
    loader = DataLoader(Dataset(path, transform=hang), batch_size=10, num_workers=1, timeout=0.5)

    with pytest.raises(ffrecord.DeadlineExceeded, match=r"1 loader workers within 0\.5 s"):
        next(iter(loader))


@pytest.mark.parametrize("options", [{"mode": "threads"}, {}], ids=["threads", "workers"])
def test_a_file_that_is_cut_under_a_loader_costs_its_records_only(
    path: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    copy = tmp_path / "copy.ffr"
    copy.write_bytes(path.read_bytes())
    dataset = Dataset(copy, on_corrupt="skip", max_corrupt=1.0)
    loader = DataLoader(dataset, batch_size=20, num_workers=1, prefetch_factor=1, **options)
    batches = iter(loader)
    first = next(batches)["label"].tolist()

    os.truncate(copy, 300_000)

    seen = first + [label for batch in labels(batches) for label in batch]
    assert first == list(range(20))
    assert seen == sorted(set(seen))
    assert len(seen) < COUNT
    assert loader.stats()["damaged"] > 0


@pytest.mark.parametrize("options", [{"mode": "threads"}, {}], ids=["threads", "workers"])
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


def test_a_process_that_is_started_refuses_a_file_that_was_replaced(
    path: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.ffr"
    copy.write_bytes(path.read_bytes())
    dataset = Dataset(copy)
    assert len(dataset) == COUNT
    context.set_spawning_popen(object())  # As multiprocessing does while it pickles.
    try:
        sent = pickle.dumps(dataset)
    finally:
        context.set_spawning_popen(None)
    with ffrecord.Writer(copy, {"label": "i64"}, replace=True) as writer:
        for i in range(COUNT):
            writer.write({"label": i})

    with pytest.raises(ffrecord.CorruptionError, match=r"copy\.ffr: replaced since"):
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
        for options in ({"mode": "threads", "num_workers": 2}, {"num_workers": 2}):
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


def test_a_loader_used_before_a_fork_works_in_the_child(path: Path) -> None:
    dataset = Dataset(path)
    loader = DataLoader(dataset, batch_sampler=Sampler(dataset, 20), mode="threads", num_workers=2)
    assert labels(loader) == expected(0)

    if (pid := os.fork()) == 0:
        good = labels(loader) == expected(1)
        os._exit(0 if good else 1)

    assert os.waitpid(pid, 0)[1] == 0
    assert labels(loader) == expected(1)


# What transforms are given.


def noise(sample: dict[str, Any], generator: np.random.Generator) -> tuple[int, int]:
    return int(sample["label"]), int(generator.integers(2**31))


def draws(batches: Any) -> dict[int, int]:  # noqa: ANN401 - any loader
    return {
        label: value
        for one, other in batches
        for label, value in zip(one.tolist(), other.tolist(), strict=True)
    }


def test_randomness_is_of_seed_epoch_and_index_whoever_draws(path: Path) -> None:
    dataset = Dataset(path, transform=noise)

    def epoch(number: int, seed: int = 0, **options: Any) -> dict[int, int]:  # noqa: ANN401
        found: dict[int, int] = {}
        world = options.pop("world", 1)
        for rank in range(world):
            sampler = Sampler(dataset, 24, seed, rank=rank, world_size=world)
            sampler.set_epoch(number)
            found |= draws(DataLoader(dataset, batch_sampler=sampler, **options))
        return found

    alone = epoch(3)

    assert len(set(alone.values())) == COUNT
    for options in ({"num_workers": 2}, {"world": 3}, {"mode": "threads", "num_workers": 2}):
        assert epoch(3, **options) == alone
    for other in (epoch(4), epoch(3, seed=1)):
        assert all(other[label] != alone[label] for label in alone)
    part = Subset(dataset, range(0, COUNT, 2))
    sampler = Sampler(part, 20)
    sampler.set_epoch(3)
    assert draws(DataLoader(part, batch_sampler=sampler)).items() <= alone.items()


class Upstream(Dataset):
    """As code for HFAiLab/ffrecord is written."""

    def process(self, indices: Any, data: Any) -> list[tuple[int, int]]:  # noqa: ANN401
        """Make pairs."""
        assert isinstance(data, list)
        return [(int(index), int(record[0])) for index, record in zip(indices, data, strict=True)]


class OwnReader(Dataset):
    """Its own reader and its own indexing, without `super().__init__`."""

    def __init__(self, path: Path) -> None:
        self.reader = FileReader(path)

    def __getitem__(self, indices: Any) -> list[int]:  # noqa: ANN401 - a list of integers
        return [int(record[0]) for record in self.reader.read(indices)]


@pytest.fixture
def v1(tmp_path: Path) -> Path:
    with FileWriter(tmp_path / "v1.ffr", 50) as writer:
        for i in range(50):
            writer.write_one(bytes([i * 2]))
    return tmp_path / "v1.ffr"


@every_engine
def test_datasets_written_for_upstream_load_in_any_loader(
    v1: Path, options: dict[str, Any]
) -> None:
    pairs = list(DataLoader(Upstream(v1), batch_size=25, **options))
    assert [batch[0].tolist() for batch in pairs] == [list(range(25)), list(range(25, 50))]
    assert pairs[1][1].tolist() == [i * 2 for i in range(25, 50)]

    numbers = list(DataLoader(OwnReader(v1), batch_size=25, **options))
    assert numbers[0].tolist() == [i * 2 for i in range(25)]
    torchs: data.DataLoader[Any] = data.DataLoader(OwnReader(v1), batch_size=50)
    assert next(iter(torchs)).tolist() == [i * 2 for i in range(50)]


def test_upstreams_indexing_and_ours_are_one(v1: Path, path: Path) -> None:
    dataset = Upstream(v1)

    assert dataset[[3, 1, 3]] == [(3, 6), (1, 2), (3, 6)]
    assert dataset[4] == (4, 8)
    assert dataset[np.int64(4)] == (4, 8)
    assert dataset[(1, 2)] == [(1, 2), (2, 4)]
    assert dataset[48:] == [(48, 96), (49, 98)]
    assert dataset.reader.n == len(dataset) == 50
    assert [type(r) for r in dataset.ffreaders()] == [FileReader]
    native = Dataset(path, columns=["label"])
    assert native[[5, 6]]["label"].tolist() == [5, 6]
    assert native[-1] == {"label": COUNT - 1}
    assert [sample["label"] for sample in itertools.islice(native, 3)] == [0, 1, 2]
    assert len(pickle.dumps(dataset)) < 1024
    assert pickle.loads(pickle.dumps(dataset))[[1]] == [(1, 2)]
    with pytest.raises(AttributeError, match="nothing to read"):
        len(type("Empty", (Dataset,), {"__init__": lambda self: None})())


def test_concat_dataset_honours_duplicate_indices(v1: Path) -> None:
    both = Upstream(v1) + Subset(Upstream(v1), [9, 8, 7])

    assert isinstance(both, ConcatDataset)
    assert both[[0, 7, 14, 7]] == [(0, 0), (7, 14), (14, 28), (7, 14)]
    assert both[[50, 3, 50, -1]] == [(9, 18), (3, 6), (9, 18), (7, 14)]
    assert both[-1] == (7, 14)
    assert len(both) == 53
    assert both.cumulative_sizes == [50, 53]
    assert len(both.ffreaders()) == 2
    with pytest.raises(IndexError, match="53 records"):
        both[[53]]
    with pytest.raises(AssertionError, match="empty"):
        ConcatDataset([])


def test_a_subset_reads_the_chosen_and_replaces_within_its_order(
    path: Path, tmp_path: Path
) -> None:
    content = bytearray(path.read_bytes())
    content[content.index(bytes([40]) * 10_040) + 500] ^= 1
    (tmp_path / "bad.ffr").write_bytes(content)
    dataset = Dataset(tmp_path / "bad.ffr", on_corrupt="replace")
    part = Subset(dataset, range(0, COUNT, 4))
    sampler = Sampler(part, 30)
    (whole,) = list(sampler)
    assert isinstance(whole, IndexBatch)
    place = whole.index(10)

    found = part.__getitems__(whole)["label"].tolist()

    wanted = [i * 4 for i in whole]
    wanted[place] = wanted[(place + 1) % 30]
    assert found == wanted
    assert len(part.fingerprint) == 32
    assert part[[1, -1]]["label"].tolist() == [4, 116]


# What it tells.


@every_engine
def test_stats_tell_what_was_read_and_where_the_time_went(
    path: Path, options: dict[str, Any], tmp_path: Path
) -> None:
    dataset = Dataset(path, transform=noise)
    loader = DataLoader(dataset, batch_sampler=Sampler(dataset, 20), **options)
    assert loader.stats()["verdict"] == "Nothing was loaded yet."

    for _ in loader:
        pass

    stats = loader.stats()
    assert stats["batches"] == 6
    assert stats["records"] >= COUNT
    assert stats["size_bytes"] > 100_000
    assert stats["stages"]["decode"] > 0
    assert stats["stages"]["check"] > 0
    assert stats["wait_s"] > 0
    if options.get("num_workers") and options.get("mode") != "threads":
        assert 0 < stats["stages"]["handover"] < 600
    assert all(0 <= seconds < 600 for seconds in stats["stages"].values())
    assert "MB/s" in stats["verdict"]
    loader.write_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {"wait"} <= {event["name"] for event in events}
    assert all(event["dur"] >= 0 and event["ph"] == "X" for event in events)


@pytest.mark.parametrize(
    ("stages", "wait_s", "words"),
    [
        ({"decode": 5.0, "device": 1.0}, 8.0, ["80%", "83%", "decode", "num_workers"]),
        ({"decode": 1.0, "device": 9.0}, 8.0, ["90%", "device", "doctor"]),
        ({"decode": 9.0}, 0.01, ["keeps up"]),
        ({}, 5.0, ["no stage was measured"]),
    ],
)
def test_the_verdict_names_the_stage_that_takes_the_time(
    stages: dict[str, float], wait_s: float, words: list[str]
) -> None:
    sentence = verdict(stages, wait_s, 2.0, 10**9)

    assert all(word in sentence for word in words)
    assert sentence.count(".") == 1


def test_stages_add_up_over_threads() -> None:
    stages = Stages()
    threads = [
        threading.Thread(target=lambda: [stages.add("read", 0, 10**6) for _ in range(1000)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert stages.sums()["read"] == pytest.approx(4.0)
    assert len(stages.events()) == 4000
    assert pickle.loads(pickle.dumps(stages)).sums() == {}


def test_a_device_that_is_not_there_is_refused(path: Path) -> None:
    with pytest.raises(ValueError, match="CUDA"):
        DataLoader(Dataset(path), device="cpu")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="CUDA"):
            DataLoader(Dataset(path), device="cuda")
