"""Goal: what a worker hands over arrives unchanged, as one descriptor, and leaves nothing behind.

Method: batches and single values cross; maps, descriptors and /dev/shm are looked at.
"""

import gc
import multiprocessing
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import data

import ffrecord
from ffrecord.torch import DataLoader, Dataset
from ffrecord.torch._batch_transfer import Crossing, Told
from loading import COUNT, labels, written


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("loader"))


def test_a_batch_crosses_as_one_descriptor_and_is_writable(path: Path) -> None:
    def mapped() -> set[str]:
        lines = Path("/proc/self/maps").read_text().splitlines()
        return {line.split()[0] for line in lines if "/memfd:ffrecord" in line}

    dataset = Dataset(path)
    loader = DataLoader(dataset, batch_size=60, mode="workers", num_workers=1)
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


def inodes() -> set[str]:
    """Of blocks that are mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split()[4] for line in lines if "/memfd:ffrecord" in line}


def test_a_worker_uses_the_memory_of_batches_that_are_gone_again(path: Path) -> None:
    loader = DataLoader(
        Dataset(path), batch_size=60, mode="workers", num_workers=1, persistent_workers=True
    )
    gc.collect()
    before, seen, count = inodes(), set(), 0

    for _ in range(6):
        for batch in loader:
            for image, label in zip(batch["image"], batch["label"].tolist(), strict=True):
                assert image[0] == image[-1] == label
            seen |= inodes() - before
            count += 1

    # At most two are on their way, and two are held while the next one is asked for.
    assert count == 12
    assert len(seen) <= 4


def test_batches_of_a_worker_that_was_killed_stay_as_they_were(path: Path) -> None:
    loader = DataLoader(
        Dataset(path), batch_sampler=[range(60)] * 50, mode="workers", num_workers=1
    )
    others = multiprocessing.active_children()
    batches = iter(loader)
    batch = next(batches)
    (worker,) = set(multiprocessing.active_children()) - set(others)
    worker.kill()
    with pytest.raises((RuntimeError, OSError, EOFError)):  # Whoever sees it first.
        list(batches)

    assert [bytes(t.numpy()) for t in batch["image"]] == [
        bytes([i]) * (10_000 + i) for i in batch["label"].tolist()
    ]


def send(value: Any) -> Any:  # noqa: ANN401 - whatever crosses
    told = Told()
    crossed = pickle.loads(pickle.dumps(Crossing(value, told.token, 3, {"read_s": 1.0}, {})))
    assert told.workers == {os.getpid(): {"read_s": 1.0}}
    return crossed


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


def test_a_loader_of_others_receives_what_our_collate_function_sends(path: Path) -> None:
    ours = DataLoader(Dataset(path), batch_size=60)

    theirs: data.DataLoader[Any] = data.DataLoader(
        ours.dataset, batch_size=60, num_workers=1, collate_fn=ours.collate_fn
    )

    assert labels(theirs) == labels(ours)


def identity(batch: Any) -> Any:  # noqa: ANN401 - as it is
    return batch


def test_a_batch_itself_may_cross(path: Path) -> None:
    loader = DataLoader(
        Dataset(path), batch_size=30, mode="workers", num_workers=2, collate_fn=identity
    )

    assert [batch["label"].tolist() for batch in loader] == [
        list(range(first, first + 30)) for first in range(0, COUNT, 30)
    ]


@pytest.mark.alone("looks at all of /dev/shm")
def test_nothing_stays_in_shared_memory_or_open(path: Path) -> None:
    loader = DataLoader(
        Dataset(path), batch_size=10, mode="workers", num_workers=2, persistent_workers=True
    )
    list(loader)
    before = len(os.listdir("/proc/self/fd")), sorted(os.listdir("/dev/shm"))

    for _ in range(5):
        list(loader)

    assert (len(os.listdir("/proc/self/fd")), sorted(os.listdir("/dev/shm"))) == before
