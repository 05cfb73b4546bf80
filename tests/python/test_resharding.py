"""Goal: no training framework makes ranks see less, or more, than their share of each epoch.

Method: stand-ins that treat a loader as the frameworks do, without them; tests/frameworks has the
real ones. Two ranks are two samplers.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils import data
from torch.utils.data.distributed import DistributedSampler

from ffrecord.torch import DataLoader, Dataset, Sampler
from loading import COUNT, every_engine, expected, labels, written


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("loader"))


def loader_of(path: Path, rank: int = 0, world: int = 2, **options: Any) -> DataLoader:  # noqa: ANN401
    dataset = Dataset(path)
    sampler = Sampler(dataset, 20, rank=rank, world_size=world)
    return DataLoader(dataset, batch_sampler=sampler, **options)


class BatchSamplerShard(data.BatchSampler):
    """accelerate's: each rank takes every so many-th batch."""

    def __init__(self, batch_sampler: Any, num_processes: int, process_index: int) -> None:  # noqa: ANN401
        self.batch_sampler = batch_sampler
        self.num_processes = num_processes
        self.process_index = process_index

    def __iter__(self) -> Iterator[list[int]]:
        return itertools.islice(self._inner(), self.process_index, None, self.num_processes)

    def _inner(self) -> Iterator[list[int]]:
        yield from self.batch_sampler


class SkipBatchSampler(BatchSamplerShard):
    """accelerate's: for a resumed epoch; shards nothing."""

    def __init__(self, batch_sampler: Any) -> None:  # noqa: ANN401
        super().__init__(batch_sampler, 1, 0)


class State:
    """accelerate's `PartialState`, as far as it is looked at."""

    num_processes = 2


class DataLoaderDispatcher:
    """accelerate's: the first rank reads for all."""

    def __init__(self, base: data.DataLoader[Any]) -> None:
        self.base_dataloader = base
        self.state = State()

    def __iter__(self) -> Iterator[Any]:
        yield from self.base_dataloader


class Reordered(DistributedSampler[Any]):
    """Lightning's `DistributedSamplerWrapper`: a list of another sampler, sharded."""

    def __init__(self, inner: Any) -> None:  # noqa: ANN401
        super().__init__(list(range(6)), num_replicas=2, rank=0, shuffle=False)  # type: ignore[arg-type]
        self.inner = inner

    def __iter__(self) -> Iterator[Any]:
        every = list(self.inner)
        return (every[index] for index in super().__iter__())


@pytest.mark.parametrize(
    ("wrap", "workers"),
    [
        (lambda sampler: BatchSamplerShard(sampler, 2, 1), 0),
        (lambda sampler: BatchSamplerShard(sampler, 2, 1), 1),
        (lambda sampler: SkipBatchSampler(BatchSamplerShard(sampler, 2, 0)), 0),
        (lambda sampler: BatchSamplerShard(SkipBatchSampler(sampler), 2, 0), 0),
        (Reordered, 0),
    ],
    ids=["sharded", "workers", "skipped", "sharded-rest", "lightning"],
)
def test_who_shards_once_more_is_told_what_to_write(
    path: Path,
    wrap: Any,  # noqa: ANN401 - a sampler's constructor
    workers: int,
) -> None:
    loader = loader_of(path)
    theirs: data.DataLoader[Any] = data.DataLoader(
        loader.dataset,
        batch_sampler=wrap(loader.batch_sampler),
        collate_fn=loader.collate_fn,
        num_workers=workers,
    )

    with pytest.raises(RuntimeError, match=r"among 2 ranks.*Use loader = ffrecord\.torch\.Data"):
        next(iter(theirs))


def test_a_loader_that_reads_for_all_ranks_is_told_what_to_write(path: Path) -> None:
    loader = loader_of(path)
    theirs: data.DataLoader[Any] = data.DataLoader(
        loader.dataset, batch_sampler=loader.batch_sampler, collate_fn=loader.collate_fn
    )

    with pytest.raises(RuntimeError, match=r"DataLoaderDispatcher shards.*Accelerator\.prepare"):
        next(iter(DataLoaderDispatcher(theirs)))


def test_wrappers_that_shard_nothing_or_what_is_whole_are_let_through(path: Path) -> None:
    mine = loader_of(path, rank=1)
    rest: data.DataLoader[Any] = data.DataLoader(
        mine.dataset,
        batch_sampler=SkipBatchSampler(mine.batch_sampler),
        collate_fn=mine.collate_fn,
    )
    assert labels(rest) == [batch[10:] for batch in expected()]
    whole = [Sampler(COUNT, 20, rank=0, world_size=1) for _ in range(2)]  # Left to the other.
    shards = [BatchSamplerShard(sampler, 2, rank) for rank, sampler in enumerate(whole)]
    assert [list(map(list, shard)) for shard in shards] == [expected()[::2], expected()[1::2]]


class Trainer:
    """transformers', from 5.4 to 5.16: tells only the loader that skips, if it has `set_epoch`."""

    def _run_epoch(self, loader: DataLoader, epoch: int) -> list[Any]:
        skipping = data.DataLoader(
            loader.dataset,
            batch_sampler=SkipBatchSampler(loader.batch_sampler),
            collate_fn=loader.collate_fn,
        )
        return [batch for batch in skipping]


def test_a_trainer_that_resumes_in_another_epoch_is_told_what_to_install(path: Path) -> None:
    loader = loader_of(path)

    with pytest.raises(RuntimeError, match=r"resumes in epoch 1, .* 'transformers>=5\.17'"):
        Trainer()._run_epoch(loader, 1)

    loader.batch_sampler.set_epoch(1)  # As later ones do.
    assert Trainer()._run_epoch(loader, 1) != []
    assert Trainer()._run_epoch(loader_of(path), 0) != []


def test_frameworks_find_that_the_loader_is_for_several_ranks(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = loader_of(path, rank=1)
    plain = DataLoader(Dataset(path), batch_size=20)

    assert isinstance(loader.sampler, DistributedSampler)  # Lightning, Fabric, Ray.
    assert isinstance(loader.sampler, data.SequentialSampler)  # Lightning's overfit_batches.
    assert list(loader.sampler) == [index for batch in expected() for index in batch[10:]]
    assert len(loader.sampler) == COUNT // 2
    assert loader._is_accelerate_prepared is True  # Accelerator.prepare.
    loader._is_accelerate_prepared = True  # What it does in the end.
    assert loader.use_stateful_dataloader is True  # Accelerator.save_state.
    assert not isinstance(plain.sampler, DistributedSampler)
    assert (plain._is_accelerate_prepared, plain.use_stateful_dataloader) == (False, False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert not loader_of(path, world=1)._is_accelerate_prepared  # It is left to accelerate.


@every_engine
def test_epochs_of_a_framework_go_on_from_a_restored_place(
    path: Path, options: dict[str, Any]
) -> None:
    state = {**Sampler(Dataset(path), 20).state_dict(), "epoch": 3, "position": 40}
    loader = loader_of(path, world=1, **options)

    loader.load_state_dict(state)
    seen = []
    for epoch in range(2):  # As of a framework that begins to count anew.
        loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
        seen.append(labels(loader))

    assert seen == [expected(3)[2:], expected(4)]
    loader.set_epoch(2)
    labels(itertools.islice(loader, 2))
    loader.set_epoch(3)  # Epochs that are broken off are left behind.
    assert labels(loader) == expected(6)
    loader.close()
    fresh = loader_of(path, world=1, **options)
    fresh.set_epoch(2)
    assert labels(fresh) == expected(2)


class _WrappedDataLoader:
    """Ray's: asks for a batch before it hands out the last."""

    __module__ = "ray.train.torch.train_loop_utils"

    def __init__(self, base: data.DataLoader[Any]) -> None:
        self._dataloader = base

    def __iter__(self) -> "_WrappedDataLoader":
        self.dataloader_iter = iter(self._dataloader)
        self.next_batch = next(self.dataloader_iter, None)
        return self

    def __next__(self) -> Any:  # noqa: ANN401
        if (batch := self.next_batch) is None:
            raise StopIteration
        self.next_batch = next(self.dataloader_iter, None)
        return batch


@every_engine
def test_a_wrapper_that_holds_a_batch_back_costs_none_at_a_resume(
    path: Path, options: dict[str, Any]
) -> None:
    loader = loader_of(path, world=1, **options)
    seen = labels(itertools.islice(_WrappedDataLoader(loader), 2))  # type: ignore[arg-type]
    state = loader.state_dict()
    assert state["position"] == 40

    resumed = loader_of(path, world=1, **options)
    resumed.load_state_dict(state)

    assert seen + labels(_WrappedDataLoader(resumed)) == expected()
    assert resumed.state_dict()["epoch"] == 1
    for each in (loader, resumed):
        each.close()


def test_a_loader_made_of_another_ones_parts_gives_the_same_batches(path: Path) -> None:
    loader = loader_of(path, rank=1)

    again = DataLoader(
        loader.dataset,
        batch_sampler=loader.batch_sampler,
        collate_fn=loader.collate_fn,
        num_workers=1,
        device="cpu",
    )

    assert labels(again) == [batch[10:] for batch in expected()]
    assert again.stats()["batches"] == len(expected())
