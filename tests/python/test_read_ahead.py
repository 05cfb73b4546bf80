"""Goal: a loader sends the daemon a prefetch hint for each epoch, and that changes no sample.

Method: the real ffrecordd, with and without reading ahead, under every engine of the loader; its
metrics say which hints it took and what became of it; it is killed in the middle of an epoch.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ffrecord
from daemon import Daemon
from eventually import eventually
from ffrecord._cli.admin import fetch

torch = pytest.importorskip("torch")

from ffrecord.torch import DataLoader, Dataset, Sampler  # noqa: E402 - after the look for torch
from loading import COUNT, every_engine, expected, labels, written  # noqa: E402 - likewise

FLAGS = ("--admin", "127.0.0.1:0")


def metric(daemon: Daemon, name: str, **labels: str) -> float:
    """The value of one metric now."""
    ready = next(line for line in reversed(daemon.log) if "event=ready" in line)
    return fetch(ready.split("admin=")[1].split()[0], 30).get(f"ffrecord_{name}", **labels)


def plans_set(daemon: Daemon) -> float:
    """How many prefetch hints it took since it started."""
    return metric(daemon, "requests_total", type="plan_set")


def settles(daemon: Daemon, name: str, value: float) -> bool:
    """Return once the metric is `value`."""
    return eventually(lambda: metric(daemon, name) == value)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return written(tmp_path)


@pytest.fixture
def daemon(tmp_path: Path, file: Path) -> Iterator[Daemon]:
    with Daemon(tmp_path / "data", *FLAGS) as running:
        ffrecord.publish(file, running.address("train"))
        yield running


def loader(address: str, **options: Any) -> DataLoader:  # noqa: ANN401 - DataLoader's
    dataset = Dataset(address, columns=["label"])
    return DataLoader(dataset, batch_sampler=Sampler(dataset, 20), **options)


@every_engine
def test_a_hinted_epoch_gives_the_same_samples(daemon: Daemon, options: dict[str, Any]) -> None:
    loading = loader(daemon.address("train"), **options)
    for epoch in range(2):
        assert labels(loading) == expected(epoch)
    # Threads may have read all of the second epoch in the first.
    assert 1 <= plans_set(daemon) <= 2
    loading.close()
    assert settles(daemon, "read_ahead_plans", 0)
    assert settles(daemon, "read_ahead_held_bytes", 0)


def test_an_epoch_that_is_broken_off_ends_its_plan(daemon: Daemon) -> None:
    batches = iter(loader(daemon.address("train")))
    next(batches)
    assert metric(daemon, "read_ahead_plans") == 1
    del batches
    assert settles(daemon, "read_ahead_plans", 0)


def test_a_daemon_that_reads_nothing_ahead_is_not_asked_to(tmp_path: Path, file: Path) -> None:
    with Daemon(tmp_path / "other", *FLAGS, "--read-ahead-mib", "0") as plain:
        ffrecord.publish(file, plain.address("train"))
        assert labels(loader(plain.address("train"))) == expected()
        assert plans_set(plain) == 0


def test_a_hint_is_sent_again_to_a_daemon_that_was_killed(daemon: Daemon) -> None:
    found = []
    for number, batch in enumerate(loader(daemon.address("train"))):
        found.append(batch["label"].tolist())
        if number == 2:
            daemon.kill()
            daemon.start()
    assert found == expected()
    assert plans_set(daemon) == 1


def test_what_a_daemon_cannot_follow_is_not_hint_epoch(daemon: Daemon, file: Path) -> None:
    sampler = Sampler(COUNT, 20)
    share = sampler.share(sampler.begin())
    assert ffrecord.open(file).hint_epoch(share) is None
    served = ffrecord.open(daemon.address("train"))
    assert served.hint_epoch(Sampler(COUNT - 1, 20).share(sampler.begin())) is None
    ffrecord.publish(file, daemon.address("train"), replace=True)
    assert served.hint_epoch(share) is None
    plan = ffrecord.open(daemon.address("train")).hint_epoch(share)
    assert plan is not None
    assert plan.alive
