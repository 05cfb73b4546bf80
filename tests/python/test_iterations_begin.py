"""Goal: an iteration begins where its sampler is when its first batch is requested.

Method: positions that are set before, between and during iterations, under each name by which a
loader gets a sampler; steps of every size that go on from every position.
"""

import itertools
import json
from collections.abc import Callable
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import data

from ffrecord.torch import DataLoader, Dataset, Sampler, collate
from loading import COUNT, ENGINES, every_engine, expected, labels, noise, written

pytestmark = pytest.mark.wrong_data


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("loader"), "numbers")


NAMES: dict[str, Any] = {
    "batch_sampler": lambda sampler: {"batch_sampler": sampler},
    "sampler": lambda sampler: {"batch_size": None, "sampler": sampler},
}
PLACES = [(name, engine) for name in NAMES for engine in ENGINES]
every_loader = pytest.mark.parametrize(("name", "engine"), PLACES)


def made(path: Path, name: str, engine: str, **how: Any) -> tuple[Sampler, DataLoader]:  # noqa: ANN401
    dataset = Dataset(path, columns=["label"])
    sampler = Sampler(dataset, 20, **how)
    return sampler, DataLoader(dataset, **NAMES[name](sampler), **ENGINES[engine])


@every_loader
def test_epochs_follow_each_other_under_every_name(path: Path, name: str, engine: str) -> None:
    _, loader = made(path, name, engine)

    assert [labels(loader) for _ in range(3)] == [expected(epoch) for epoch in range(3)]
    assert loader.state_dict()["epoch"] == 3
    assert len(loader) == COUNT // 20
    loader.close()


@every_loader
@pytest.mark.parametrize("of_loader", [True, False])
def test_what_is_set_after_iter_counts_until_the_first_batch(
    path: Path, name: str, engine: str, of_loader: bool
) -> None:
    sampler, loader = made(path, name, engine)
    begun = iter(loader)
    (loader if of_loader else sampler).set_epoch(2)
    assert labels(begun) == expected(2)

    state = {**sampler.state_dict(), "epoch": 5, "position": 40}
    begun = iter(loader)
    loader.load_state_dict(state)
    assert labels(begun) == expected(5)[2:]
    loader.close()


@every_loader
def test_a_state_of_an_epochs_end_goes_on_in_the_next_as_frameworks_restore_it(
    path: Path, name: str, engine: str
) -> None:
    """Restored, then begun, then told the epoch, then asked for a batch: Lightning's sequence."""
    _, first = made(path, name, engine)
    for _ in range(2):
        labels(first)
    state = json.loads(json.dumps(first.state_dict()))
    for told in (2, 0):  # A framework may count from 0 in a resumed run.
        _, loader = made(path, name, engine)
        loader.load_state_dict(state)
        begun = iter(loader)
        loader.set_epoch(told)
        assert labels(begun) == expected(2)
        loader.set_epoch(told + 1)
        assert labels(loader) == expected(3)
        loader.close()
    first.close()


@every_loader
def test_an_epoch_that_a_framework_had_left_early_does_not_go_on(
    path: Path, name: str, engine: str
) -> None:
    """As with Lightning's `limit_train_batches`: the number of its epoch says which it wants."""
    _, first = made(path, name, engine)
    for epoch in range(2):
        first.set_epoch(epoch)
        seen = [batch["label"].tolist() for batch in itertools.islice(first, 3)]
        assert seen == expected(epoch)[:3]
    state = json.loads(json.dumps(first.state_dict()))
    # The epoch itself, as in its middle; the next, as at its end; one of a count from 0.
    for named, wanted in ((1, expected(1)[3:]), (2, expected(2)), (0, expected(1)[3:])):
        _, loader = made(path, name, engine)
        loader.load_state_dict(state)
        assert loader.state_dict() == state
        begun = iter(loader)
        loader.set_epoch(named)
        assert labels(begun) == wanted
        loader.set_epoch(named + 1)
        assert labels(loader) == expected(3 if named == 2 else 2)
        loader.close()
    first.close()


@every_loader
def test_the_shorter_of_two_loaders_goes_on_in_the_next_epoch_of_a_framework(
    path: Path, name: str, engine: str
) -> None:
    """Lightning iterates it again and again, until an epoch of the longer one is over."""
    _, loader = made(path, name, engine)
    states = []
    loader.set_epoch(0)
    assert labels(loader) == expected(0)
    for step, batch in enumerate(loader):
        assert batch["label"].tolist() == expected(1)[step]
        states.append(json.loads(json.dumps(loader.state_dict())))
        if step == 1:
            break
    loader.set_epoch(1)
    assert labels(loader) == expected(1)[2:]
    assert labels(islice(loader, 1)) == expected(2)[:1]
    loader.set_epoch(2)
    assert labels(loader) == expected(2)[1:]
    loader.set_epoch(0)  # A training that begins anew.
    assert labels(loader) == expected(0)
    loader.close()

    _, resumed = made(path, name, engine)
    resumed.load_state_dict(states[1])  # Behind the framework's epoch.
    assert resumed.state_dict() == states[1]
    resumed.set_epoch(1)
    assert labels(resumed) == expected(1)[2:]
    resumed.load_state_dict(states[0])  # Within it.
    resumed.set_epoch(0)
    assert labels(islice(resumed, 1)) == expected(1)[1:2]
    resumed.set_epoch(1)
    assert labels(resumed) == expected(1)[2:]
    resumed.close()


@every_loader
def test_an_iteration_that_is_left_for_another_epoch_does_not_take_it_back(
    path: Path, name: str, engine: str
) -> None:
    sampler, loader = made(path, name, engine)
    for broken_off in (False, True):
        sampler.set_epoch(0)
        seen = []
        for step, batch in enumerate(loader):
            seen.append(batch["label"].tolist())
            if step == 1:
                sampler.set_epoch(7)
                assert (sampler.state_dict()["epoch"], sampler.state_dict()["position"]) == (7, 0)
            if broken_off and step == 3:
                break
        assert seen == expected(0)[: len(seen)]
        assert loader.state_dict()["epoch"] == 7
        assert labels(loader) == expected(7)
    loader.close()


@every_loader
def test_a_state_that_is_loaded_in_a_loop_is_where_the_next_one_begins(
    path: Path, name: str, engine: str
) -> None:
    _, loader = made(path, name, engine)
    labels(islice(loader, 3))
    state = loader.state_dict()
    for step, batch in enumerate(loader):
        assert batch["label"].tolist() == expected(0)[step]
        if step == 4:
            loader.load_state_dict(state)

    assert loader.state_dict() == state
    assert labels(loader) == expected(0)[3:]
    loader.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_torchs_own_loader_asks_the_sampler_at_its_first_batch(path: Path, workers: int) -> None:
    dataset = Dataset(path, columns=["label"])
    sampler = Sampler(dataset, 20)
    loader: Any = data.DataLoader(
        dataset, batch_sampler=sampler, num_workers=workers, collate_fn=collate
    )
    assert labels(loader) == expected(0)
    begun = None if workers else iter(loader)  # Workers are sent their steps at iter().
    sampler.set_epoch(4)

    assert labels(begun or loader) == expected(4)


def test_each_epoch_of_a_sampler_by_any_name_augments_anew(path: Path) -> None:
    dataset = Dataset(path, transform=noise)
    for name in NAMES.values():
        loader = DataLoader(dataset, **name(Sampler(dataset, 20)))
        epochs = [{pair for one, two in loader for pair in zip(one, two)} for _ in range(2)]  # noqa: B905
        values = [{int(value) for _, value in epoch} for epoch in epochs]
        assert len(values[0] | values[1]) == 2 * COUNT


FOREIGN: dict[str, Callable[[Dataset[Any]], Any]] = {
    "ours": lambda dataset: dataset,
    "a subset": lambda dataset: data.Subset(dataset, range(0, COUNT, 2)),
    "joined": lambda dataset: data.ConcatDataset([dataset, dataset]),
    "a subset of joined": lambda dataset: data.Subset(data.ConcatDataset([dataset]), [*range(50)]),
    "stacked": lambda dataset: data.StackDataset(label=[dataset[i]["label"] for i in range(50)]),
    "a list": lambda dataset: [dataset[i] for i in range(50)],
}


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
@pytest.mark.parametrize("kind", FOREIGN.values(), ids=FOREIGN)
def test_datasets_of_others_give_the_same_under_every_name(
    path: Path, kind: Callable[[Dataset[Any]], Any], engine: dict[str, Any]
) -> None:
    dataset = kind(Dataset(path, columns=["label"]))
    found = []
    for named in NAMES.values():
        loader = DataLoader(dataset, **named(Sampler(dataset, 8, 3)), **engine)
        found.append(labels(loader))
        assert len(found[-1]) == len(loader) == len(dataset) // 8
        loader.close()

    assert found[0] == found[1]


@every_engine
@pytest.mark.parametrize("last", ["exact", "short"])
@pytest.mark.parametrize(("before", "size", "world"), [(7, 5, 2), (13, 10, 4), (9, 8, 3)])
def test_every_record_comes_once_from_any_position_on(
    path: Path, options: dict[str, Any], last: str, before: int, size: int, world: int
) -> None:
    dataset = Dataset(path, columns=["label"])
    for steps in range(1, COUNT // before):
        left = COUNT - steps * before
        if last == "exact" and left < world:
            continue
        if options.get("mode") != "threads" and steps % 5 != 2:
            continue  # Processes take long to start, and have no condition of their own.
        first = Sampler(dataset, before, 3, last=last)  # type: ignore[arg-type]
        whole = DataLoader(dataset, batch_sampler=first)
        seen = [*chain(*labels(islice(whole, steps)))]
        for rank in range(world):
            how: Any = {"last": last, "rank": rank, "world_size": world, "uneven": True}
            sampler = Sampler(dataset, size, **how)
            sampler.load_state_dict(first.state_dict())
            loader = DataLoader(dataset, batch_sampler=sampler, **options)
            seen += chain(*labels(loader))
            loader.close()
        if last == "exact":
            assert sorted(seen) == list(range(COUNT)), (steps, size)
        else:
            assert set(seen) == set(range(COUNT))


@every_engine
@pytest.mark.parametrize("cut", [0, 2, 6, 7])
@pytest.mark.parametrize("kind", ["shuffle", "in order", "by weight"])
def test_a_state_with_restored_random_numbers_goes_on_as_if_never_saved(
    path: Path, options: dict[str, Any], cut: int, kind: str
) -> None:
    """With torch's own samplers and its default generator, whose state the program saves."""
    dataset = Dataset(path, columns=["label"])

    def loader() -> DataLoader:
        if kind == "by weight":
            sampler = data.WeightedRandomSampler([1.0 + i % 5 for i in range(COUNT)], COUNT)
            return DataLoader(dataset, 20, sampler=sampler, **options)
        return DataLoader(dataset, 20, kind == "shuffle", **options)

    torch.manual_seed(3)
    first = loader()
    begun = iter(first)
    labels(islice(begun, cut))
    state, random = json.loads(json.dumps(first.state_dict())), torch.get_rng_state()
    rest = [labels(begun), labels(first), labels(first)]
    after = torch.get_rng_state()
    torch.manual_seed(77)
    second = loader()
    second.load_state_dict(state)
    assert second.state_dict() == state
    torch.set_rng_state(random)
    assert [labels(second) for _ in (rest if rest[0] else rest[1:])] == rest[not rest[0] :]
    assert torch.equal(torch.get_rng_state(), after)
    first.close()
    second.close()


PERSISTENT = {"num_workers": 1, "mode": "workers", "persistent_workers": True}


def program_draws(loader: DataLoader, epochs: range, stop: int, after: int = 0) -> list[float]:
    """What a program draws beside `loader`, a number for each of so many batches."""
    drawn: list[float] = []
    for _ in epochs:
        for _batch in loader:
            drawn.append(torch.rand(()).item())
            if len(drawn) + after == stop:
                return drawn
    return drawn


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("order", ["sampler", "shuffled"])
@pytest.mark.parametrize("engine", [*ENGINES, "workers that persist"])
def test_random_numbers_go_on_wherever_a_run_resumes(
    path: Path, engine: str, order: str, own: bool
) -> None:
    how = {**ENGINES, "workers that persist": PERSISTENT}[engine]
    per_epoch = COUNT // 20

    def loader() -> DataLoader:
        dataset = Dataset(path, columns=["label"])
        given = {"generator": torch.Generator().manual_seed(3)} if own else {}
        if order == "shuffled":
            return DataLoader(dataset, 20, shuffle=True, drop_last=True, **given, **how)
        return DataLoader(dataset, batch_sampler=Sampler(dataset, 20), **given, **how)

    torch.manual_seed(5)
    at_once = loader()
    whole = program_draws(at_once, range(2), 2 * per_epoch)
    at_once.close()
    for stop in (1, per_epoch - 1, per_epoch, per_epoch + 1):
        torch.manual_seed(5)
        before = loader()
        drawn = program_draws(before, range(2), stop)
        state, numbers = before.state_dict(), torch.get_rng_state()
        before.close()
        after = loader()
        after.load_state_dict(state)
        torch.set_rng_state(numbers)
        drawn += program_draws(after, range(2), 2 * per_epoch, stop)
        after.close()
        assert drawn == whole, stop
