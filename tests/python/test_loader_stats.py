"""Goal: a loader tells what was read, where the time went, and what to do about it.

Method: an epoch under every engine; the sentence for given sums.
"""

import json
import multiprocessing
import os
import pickle
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import ffrecord
from eventually import until_idle
from ffrecord._base.stage_times import STAGES, Stages, verdict
from ffrecord.torch import DataLoader, Dataset, Sampler, Subset
from loading import COUNT, KINDS, every_engine, written


@pytest.fixture(scope="module", params=KINDS)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("loader"), request.param)


TRANSFORM_S, COLLATE_S, WORK_S = 0.001, 0.01, 0.005


def slow(sample: dict[str, Any]) -> int:
    """A transform that takes a known time, at least."""
    time.sleep(TRANSFORM_S)
    return int(sample["label"])


def slowly_put_together(samples: list[int]) -> torch.Tensor:
    """A collate function that does."""
    time.sleep(COLLATE_S)
    return torch.tensor(samples)


@every_engine
def test_stats_tell_what_was_read_and_where_the_time_went(
    path: Path, options: dict[str, Any], tmp_path: Path
) -> None:
    dataset = Dataset(path, transform=slow)
    batch = ffrecord.open(path).read(range(COUNT))
    dataset[list(range(10))]  # None of the loader's, nor of its workers by fork.
    loader = DataLoader(
        dataset,
        batch_sampler=Sampler(dataset, 20),
        collate_fn=slowly_put_together,
        **options,
    )
    assert loader.stats()["verdict"] == "Nothing was loaded yet."

    begin = time.perf_counter()
    for _ in range(2):
        for _ in loader:
            time.sleep(WORK_S)
    wall_s = time.perf_counter() - begin
    stats = loader.stats()
    loader.close()

    stages = stats["stages"]
    assert stats["batches"] == 12
    by_threads = stats["engine"] == "threads"
    if by_threads:  # They have begun with the next epochs.
        assert 2 * COUNT <= stats["records"] <= 9 * COUNT
        assert stats["size_bytes"] >= 2 * int(batch.sizes.sum())
    else:
        assert stats["records"] == 2 * COUNT
        # Reads past the page cache may take what lies between two records, too.
        assert stats["size_bytes"] >= 2 * int(batch.sizes.sum())
    # Each cause is found in its own stage, and nowhere twice: a stage takes no more than the time
    # there was, for each that was at it at once.
    at_once = max(1, options.get("num_workers", 0))
    assert 2 * COUNT * TRANSFORM_S <= stages["decode"] <= at_once * (wall_s + 1)
    assert 12 * COLLATE_S <= stages["collate"] <= at_once * (wall_s + 1)
    assert stages["decode"] + stages["collate"] <= at_once * (wall_s + 1)
    assert tuple(stages) == STAGES
    reading = [stages[stage] for stage in ("submit", "device", "verify", "decompress")]
    assert 0 < sum(reading) <= at_once * wall_s and min(reading) >= 0
    assert stages["submit"] > 0
    assert (stages["handover"] > 0) == (at_once > 1 and not by_threads)
    assert (stages["queue"] > 0) == (at_once > 1)
    assert stages["user"] >= 11 * WORK_S
    assert stats["wait_s"] > 0
    assert stats["wait_s"] + stages["user"] <= wall_s
    loading = {stage: seconds for stage, seconds in stages.items() if stage != "queue"}
    assert max(loading, key=lambda stage: loading[stage]) in stats["verdict"]
    loader.write_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    waits = [event for event in events if event["name"] == "wait"]
    assert len(waits) == 12
    assert sum(event["dur"] for event in waits) == pytest.approx(stats["wait_s"] * 1e6)
    assert all(event["dur"] >= 0 and event["ph"] == "X" for event in events)


def test_native_threads_measure_their_own_stages(tmp_path: Path) -> None:
    dataset = Dataset(written(tmp_path, "numbers"))
    loader = DataLoader(dataset, batch_sampler=Sampler(dataset, 20), mode="threads", num_workers=2)
    begin = time.perf_counter()
    for _ in range(2):
        for _ in loader:
            until_idle()
            time.sleep(WORK_S)  # Batches are ready, and wait, meanwhile.
    wall_s = time.perf_counter() - begin
    stages = loader.stats()["stages"]
    loader.close()
    for stage in ("submit", "collate", "handover"):
        assert 0 < stages[stage] < 2 * wall_s, stage
    assert stages["verify"] + stages["device"] > 0
    assert stages["queue"] > 6 * WORK_S
    assert stages["decode"] == stages["decompress"] == 0.0


@pytest.mark.parametrize(
    ("stages", "wait_s", "words"),
    [
        ({"decode": 5.0, "device": 1.0}, 8.0, ["80%", "83%", "decode", "num_workers"]),
        ({"decode": 1.0, "device": 9.0}, 8.0, ["90%", "device", "doctor"]),
        ({"verify": 6.0, "decompress": 2.0}, 8.0, ["75%", "verify", "free cores"]),
        ({"decompress": 6.0, "queue": 9.0}, 8.0, ["100%", "decompress", "free cores"]),
        ({"decode": 9.0}, 0.01, ["keeps up"]),
        ({}, 5.0, ["no stage was measured"]),
    ],
)
def test_the_verdict_names_the_stage_that_takes_the_time(
    stages: dict[str, float], wait_s: float, words: list[str]
) -> None:
    sentence = verdict({**stages, "user": 2.0}, wait_s, 10**9)

    assert all(word in sentence for word in words)
    assert sentence.count(".") == 1


def test_what_was_read_is_measured_against_what_the_source_gives(path: Path) -> None:
    dataset = Dataset(path)
    halves = Subset(dataset, range(COUNT // 2)) + Subset(dataset, range(COUNT // 2, COUNT))
    loader = DataLoader(halves, batch_sampler=Sampler(halves, 20))
    for _ in loader:
        pass

    stats = loader.stats(probe_s=0.05)

    assert stats["limit"] > 0
    assert f"of the {stats['limit'] / 1e6:.0f} MB/s that its source can give" in stats["verdict"]
    assert stats["records"] == loader.stats()["records"]
    assert loader.stats()["limit"] == 0


def test_probes_of_nothing_are_refused(path: Path, tmp_path: Path) -> None:
    for seconds in (0, -1, float("nan"), float("inf"), 2**63):
        with pytest.raises(ValueError, match=f"seconds is {seconds}"):
            ffrecord.open(path).probe(seconds)
    with ffrecord.Writer(tmp_path / "empty.ffr"):
        pass
    with pytest.raises(ValueError, match="with 0 records"):
        ffrecord.open(tmp_path / "empty.ffr").probe()
    with pytest.raises(ValueError, match="not an ffrecord dataset"):
        DataLoader([1, 2, 3]).stats(probe_s=0.1)  # type: ignore[arg-type]


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


FIGURES = {
    *("batches", "records", "size_bytes", "wait_s", "wait_share", "bytes_per_s"),
    *("depth", "held_bytes", "damaged"),
    *(f"stage_{stage}_s" for stage in STAGES),
}


@every_engine
def test_figures_are_the_numbers_of_the_stats_under_lasting_names(
    path: Path, options: dict[str, Any]
) -> None:
    dataset = Dataset(path)
    loader = DataLoader(dataset, batch_sampler=Sampler(dataset, 20), **options)
    before = loader.figures()
    assert before == {f"loader/{name}": 0.0 for name in FIGURES}

    for _ in loader:
        time.sleep(WORK_S)
    loader.close()  # Threads read ahead, into the next epoch.
    after, stats = loader.figures("rank3/"), loader.stats()

    assert {name.removeprefix("rank3/") for name in after} == FIGURES
    assert all(type(value) is float for value in after.values())
    assert after["rank3/batches"] == stats["batches"] == -(-COUNT // 20)
    assert after["rank3/records"] == stats["records"] >= COUNT
    assert after["rank3/wait_s"] == stats["wait_s"] > 0
    assert after["rank3/stage_device_s"] == pytest.approx(stats["stages"]["device"])
    total_s = stats["wait_s"] + stats["stages"]["user"]
    assert after["rank3/wait_share"] == pytest.approx(stats["wait_s"] / total_s)
    assert after["rank3/bytes_per_s"] == pytest.approx(stats["size_bytes"] / total_s)


def test_a_rate_is_measured_also_where_the_time_is_over_before_it_begins(path: Path) -> None:
    reader = ffrecord.open(path)
    assert reader.probe(1e-9) > 0
    assert (ffrecord.concat([reader, reader])).probe(1e-9) > 0


def test_a_child_that_is_forked_while_a_thread_counts_its_time_waits_for_nobody() -> None:
    """As a loader's worker is that is forked beside another loader's threads, over one dataset."""
    stages = Stages()
    stages.count("read", 1.0)

    def count() -> None:
        stages.count("read", 1.0)
        os._exit(int(stages.sums()["read"]))

    with stages._lock:  # The thread that holds it does not exist in the child.
        child = multiprocessing.get_context("fork").Process(target=count, daemon=True)
        child.start()
    child.join(60)

    assert child.exitcode == 2
