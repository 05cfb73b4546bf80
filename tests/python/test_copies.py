"""Goal: loaders, datasets, samplers and readers are copied and pickled at any moment, as torch's.

Method: each kind of copy, before, in the middle of and after an epoch, in each mode; the copy must
deliver what the original would, begun anew, and must not move the original.
"""

import copy
import pickle
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import data

import ffrecord
from ffrecord.torch import ConcatDataset, DataLoader, Dataset, Sampler, Subset
from loading import COUNT, ENGINES, every_engine, labels, written


def pickled(given: Any) -> Any:  # noqa: ANN401
    return pickle.loads(pickle.dumps(given))


Copy = Callable[[Any], Any]
every_copy = pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled])
every_moment = pytest.mark.parametrize("moment", ["before", "within", "after"])


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("copies"), "numbers")


def batches_of(loader: Any, moment: str) -> Any:  # noqa: ANN401
    """An iteration at that moment."""
    iteration = iter(loader)
    if moment != "before":
        list(islice(iteration, None if moment == "after" else 2))
    return iteration


@pytest.mark.wrong_data
@every_copy
@every_moment
@every_engine
def test_a_copy_of_a_loader_begins_where_torchs_would(
    path: Path, copied: Copy, moment: str, options: dict[str, Any]
) -> None:
    dataset = Dataset(path, columns=["label"])
    loader = DataLoader(dataset, batch_sampler=Sampler(dataset, 20), timeout=60, **options)
    torchs = data.DataLoader(dataset, batch_sampler=Sampler(dataset, 20))
    running, theirs = batches_of(loader, moment), batches_of(torchs, moment)

    other, torchs_other = copied(loader), copied(torchs)

    wanted = labels(torchs_other)
    assert labels(other) == wanted
    assert labels(other) != wanted  # It goes on to the next epoch, with workers that persist too.
    if copied is not copy.copy and moment == "within":  # Which shares its sampler, as torch's does.
        assert labels(running) == labels(theirs)
    for each in (loader, other):
        each.close()


@pytest.mark.wrong_data
@every_copy
@every_moment
@every_engine
def test_a_copy_without_a_sampler_of_ours_draws_from_its_generator(
    path: Path, copied: Copy, moment: str, options: dict[str, Any]
) -> None:
    dataset = Dataset(path, columns=["label"])

    def made(kind: Any, **more: Any) -> Any:  # noqa: ANN401
        generator = torch.Generator().manual_seed(3)
        return kind(dataset, batch_size=20, shuffle=True, generator=generator, **more)

    ours = made(DataLoader, **options)
    by_threads = ours.stats()["engine"] == "threads"
    of_torch = {} if by_threads else {name: options[name] for name in options if name != "mode"}
    torchs = made(data.DataLoader, **of_torch)
    iterations = [batches_of(ours, moment), batches_of(torchs, moment)]

    try:
        other = copied(torchs)
    except NotImplementedError:  # Workers of torch's that persist are in its pickles.
        other = None
    mine = copied(ours)

    found = labels(mine)
    assert sorted(i for batch in found for i in batch) == list(range(COUNT))
    # An epoch of ours that has begun has drawn all that torch's sampler draws, also at its end.
    # With workers it begins when the iterator is made, as torch's do.
    ahead = moment == "within" or (moment == "before" and options.get("num_workers", 0) > 0)
    if other is not None and not options.get("persistent_workers") and not ahead:
        assert found == labels(other)
    assert len(iterations) == 2
    ours.close()
    mine.close()


@every_copy
@every_engine
def test_a_copy_resumes_from_the_state_of_the_original(
    path: Path, copied: Copy, options: dict[str, Any]
) -> None:
    dataset = Dataset(path, columns=["label"])
    loader = DataLoader(dataset, batch_sampler=Sampler(dataset, 20), timeout=60, **options)
    whole = labels(DataLoader(dataset, batch_sampler=Sampler(dataset, 20)))
    running = iter(loader)
    first = labels(islice(running, 2))
    state = loader.state_dict()

    other = copied(loader)
    assert other.state_dict() == state
    other.load_state_dict(state)

    assert first + labels(other) == whole
    assert other.stats()["batches"] == 4
    loader.close()
    other.close()


@every_copy
def test_options_of_a_loader_are_those_of_its_copy(path: Path, copied: Copy) -> None:
    dataset = Dataset(path, columns=["label"])
    loader = DataLoader(dataset, batch_sampler=Sampler(dataset, 20), mode="threads", num_workers=3)
    loader.set_step(2)
    list(loader)

    other = copied(loader)

    assert len(other) == len(loader) == 4
    assert len(labels(other)) == 4
    assert (other.mode, other.skippable) == ("threads", True)
    assert other.stats()["held_bytes"] >= 0
    loader.close()
    other.close()


@every_copy
@every_moment
def test_a_copy_of_a_sampler_goes_on_by_itself(copied: Copy, moment: str) -> None:
    sampler = Sampler(COUNT, 20, weights=np.arange(COUNT), seed=5)
    running = batches_of(sampler, moment)
    untouched = Sampler(COUNT, 20, weights=np.arange(COUNT), seed=5)
    state, rest = sampler.state_dict(), len(list(batches_of(untouched, moment)))

    other = copied(sampler)

    assert other.state_dict() == state
    epoch = 1 if moment == "after" else 0
    untouched = Sampler(COUNT, 20, weights=np.arange(COUNT), seed=5)
    untouched.set_epoch(epoch)
    assert [list(batch) for batch in other] == [list(batch) for batch in untouched]
    assert len(list(running)) == rest


def shifted(sample: dict[str, Any]) -> int:
    return int(sample["label"]) + 1


DATASETS: dict[str, Callable[[Path], Any]] = {
    "dataset": lambda path: Dataset(path, transform=shifted),
    "subset": lambda path: Subset(Dataset(path, transform=shifted), [5, 3, 9] * 200),
    "concat": lambda path: ConcatDataset([Dataset(path, transform=shifted)] * 2),
    "torchs": lambda path: data.Subset(Dataset(path, transform=shifted), [5, 3, 9]),
    "mix": lambda path: Dataset(ffrecord.mix([ffrecord.open(path)] * 2, [1, 2]), transform=shifted),
}


@every_copy
@every_moment
@pytest.mark.parametrize("kind", DATASETS)
def test_a_copy_of_a_dataset_has_the_same_samples(
    path: Path, copied: Copy, moment: str, kind: str
) -> None:
    dataset = DATASETS[kind](path)
    running = batches_of([dataset[i] for i in range(2)] if kind == "torchs" else dataset, moment)

    other = copied(dataset)

    assert len(other) == len(dataset)
    assert [other[i] for i in range(3)] == [dataset[i] for i in range(3)]
    assert len(list(running)) >= 0


VIEWS: dict[str, Callable[[Any], Any]] = {
    "reader": lambda reader: reader,
    "subset": lambda reader: reader.subset(np.arange(COUNT)[::-1] % 7),
    "concat": lambda reader: ffrecord.concat([reader, reader.subset([0])]),
    "mix": lambda reader: ffrecord.mix([reader, reader], [1, 1]),
    "formatted": lambda reader: reader.with_format("bytes"),
}


@every_copy
@every_moment
@pytest.mark.parametrize("kind", VIEWS)
def test_a_copy_of_a_reader_has_the_same_records(
    path: Path, copied: Copy, moment: str, kind: str
) -> None:
    view = VIEWS[kind](ffrecord.open(path))
    running = batches_of(view, moment)

    other = copied(view)

    assert len(other) == len(view)
    assert other.fingerprint == view.fingerprint
    assert other.read(range(9))["label"].tolist() == view.read(range(9))["label"].tolist()
    assert len(list(running)) >= 0


def test_a_pickle_of_a_loader_is_small_whatever_was_delivered(path: Path) -> None:
    dataset = Dataset(path, columns=["label"])
    for options in ENGINES.values():
        loader = DataLoader(dataset, batch_sampler=Sampler(dataset, 20), **options)
        list(loader)
        assert len(pickle.dumps(loader)) < 6000
        loader.close()
