"""Goal: every engine of the loader gives the specified order, from any place of it.

Method: one small file, loaded in every way, broken off, gone on with.
"""

import gc
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import data

from eventually import eventually
from ffrecord.torch import DataLoader, Dataset, Sampler, collate
from loading import COUNT, KINDS, every_engine, expected, labels, written


@pytest.fixture(scope="module", params=KINDS)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("loader"), request.param)


def loader_threads() -> set[int]:
    """By their numbers in the system; native ones have no others."""
    gc.collect()
    names = {
        int(task.parent.name): task.read_text().strip()
        for task in Path("/proc/self/task").glob("*/comm")
    }
    native = {thread for thread, name in names.items() if name == "ffrecord-loader"}
    pythons = {t.native_id for t in threading.enumerate() if t.name == "ffrecord-loader"}
    return native | {thread for thread in pythons if thread is not None}


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
    threads = loader_threads() - before
    assert len(threads) == 2
    assert labels(loader) == expected(1)
    assert loader_threads() - before == threads
    # They read ahead into epoch 2, as soon as they get to it.
    eventually(lambda: loader.stats()["records"] > 2 * COUNT)

    sampler.set_epoch(0)
    assert labels(loader) == expected(0)
    assert not (loader_threads() - before) & threads
    loader.close()
    assert loader_threads() == before


def test_a_loader_that_is_dropped_ends_its_threads(path: Path) -> None:
    before = loader_threads()
    dataset = Dataset(path)
    loader = DataLoader(dataset, batch_sampler=Sampler(dataset, 20), mode="threads", num_workers=2)
    labels(loader)
    assert len(loader_threads() - before) == 2

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


class Endless(data.IterableDataset[int]):
    """It has a length, but no sample can be left out before it is made."""

    def __iter__(self) -> Iterator[int]:
        return itertools.count()

    def __len__(self) -> int:
        return 40


def test_steps_out_of_range_and_loaders_that_cannot_skip_assert(path: Path) -> None:
    loader = DataLoader(Dataset(path), batch_size=40)
    for step in (-1, 3):
        with pytest.raises(AssertionError, match="of 3 batches"):
            loader.set_step(step)
    loader.set_step(2)
    with pytest.raises(AssertionError, match="skippable"):
        DataLoader(Dataset(path), skippable=False).set_step(1)
    with pytest.raises(AssertionError, match="iterable"):  # It would begin at its first batch.
        DataLoader(Endless(), batch_size=4).set_step(1)
    assert len(DataLoader(Dataset(path), num_workers=0, prefetch_factor=5)) == COUNT


def test_a_memory_limit_is_any_number_of_bytes_from_one_on(path: Path) -> None:
    dataset = Dataset(path)
    for wrong in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="memory_limit_bytes is"):
            DataLoader(dataset, memory_limit_bytes=wrong)  # type: ignore[arg-type]
    for limit in (1, 2e9):
        loader = DataLoader(
            dataset,
            batch_sampler=Sampler(dataset, 20),
            mode="threads",
            num_workers=2,
            memory_limit_bytes=limit,  # type: ignore[arg-type]
        )
        assert labels(loader) == expected()
        loader.close()


def sparse(samples: list[dict[str, Any]]) -> torch.Tensor:
    return torch.tensor([int(sample["label"]) for sample in samples]).to_sparse()


@every_engine
def test_batches_may_be_sparse_tensors(tmp_path: Path, options: dict[str, Any]) -> None:
    dataset = Dataset(written(tmp_path))
    loader = DataLoader(dataset, batch_sampler=Sampler(dataset, 20), collate_fn=sparse, **options)

    assert [batch.to_dense().tolist() for batch in loader] == expected()


@pytest.mark.parametrize("loader", [DataLoader, torch.utils.data.DataLoader])
def test_a_sampler_in_the_place_of_one_of_indices_is_told_where_it_belongs(
    path: Path, loader: type[torch.utils.data.DataLoader[Any]]
) -> None:
    dataset: Dataset[Any] = Dataset(path)
    for options in ({}, {"batch_size": 20}):
        with pytest.raises(ValueError, match=r"write DataLoader\(dataset, batch_sampler=sampler\)"):
            next(iter(loader(dataset, sampler=Sampler(dataset, 20), **options)))
    # Without batches of its own, a loader passes on those of the sampler.
    made = loader(dataset, sampler=Sampler(dataset, 20), batch_size=None, collate_fn=collate)
    assert labels(made) == expected()
