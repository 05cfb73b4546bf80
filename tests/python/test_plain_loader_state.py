"""Goal: a loader with torch's own order resumes exactly, or says why it cannot and what to use.

Method: an epoch is cut after each number of batches, the state goes through JSON into a new loader,
and both parts together are compared with the epoch of torch's own loader under the same seed; other
datasets and samplers are refused.
"""

import json
from collections.abc import Callable
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import data

from ffrecord.torch import DataLoader, Dataset, Sampler
from loading import COUNT, ENGINES, every_engine, noise, written

BATCH = 25  # 120 records: the last batch has 20.


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("plain"), "numbers")


def through_json(loader: DataLoader) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(json.dumps(loader.state_dict()))
    return state


def torchs(seed: int, epochs: int, generator: torch.Generator | None = None) -> list[list[int]]:
    """The indices of torch's own loader."""
    torch.manual_seed(seed)
    loader: Any = data.DataLoader(range(COUNT), BATCH, True, generator=generator)  # type: ignore[arg-type]
    return [batch.tolist() for _ in range(epochs) for batch in loader]


def labels(batches: Any) -> list[list[int]]:  # noqa: ANN401 - any loader
    return [batch["label"].tolist() for batch in batches]


@every_engine
@pytest.mark.parametrize("shuffle", [True, False])
def test_an_epoch_that_was_cut_goes_on(path: Path, shuffle: bool, options: dict[str, Any]) -> None:
    dataset = Dataset(path, columns=["label"])
    expected = torchs(3, 1) if shuffle else labels(DataLoader(dataset, BATCH))
    for cut in (0, 1, 4, 5):
        torch.manual_seed(3)
        first = DataLoader(dataset, BATCH, shuffle, **options)
        seen = labels(islice(first, cut))
        state = through_json(first)
        torch.manual_seed(3 if cut == 0 else 99)  # The order of this epoch is in the state.
        second = DataLoader(dataset, BATCH, shuffle, **options)
        second.load_state_dict(state)
        assert through_json(second) == state
        if cut < 5:
            seen += labels(second)
        else:
            assert (state["epoch"], state["batches"]) == (1, 0)
            assert len(labels(second)) == 5
        assert seen == expected
        assert len(labels(second)) == 5
        first.close()
        second.close()


def taken(loader: Any, steps: int) -> list[list[int]]:  # noqa: ANN401 - ours or torch's
    """The first batches of an epoch, which is left then."""
    iterator = iter(loader)
    found = list(islice(iterator, steps))
    getattr(iterator, "close", lambda: None)()
    return [(each["label"] if isinstance(each, dict) else each).tolist() for each in found]


@every_engine
@pytest.mark.parametrize("order", ["replacement", "shuffled", "weights"])
@pytest.mark.parametrize("steps", [1, 3, 5])
def test_the_order_after_an_epoch_that_was_left_does_not_depend_on_what_loads(
    path: Path, order: str, steps: int, options: dict[str, Any]
) -> None:
    """Torch draws with replacement on the way, and engines ask for more than they deliver."""
    every: Any = range(COUNT)
    dataset = Dataset(path, columns=["label"])

    def sampler(seed: int) -> Any:  # noqa: ANN401 - torch's
        own = torch.Generator().manual_seed(seed)
        if order == "weights":
            return data.WeightedRandomSampler([1.0] * COUNT, COUNT, generator=own)
        return data.RandomSampler(every, order == "replacement", generator=own)

    twin: Any = DataLoader(dataset, BATCH, sampler=sampler(4))
    if order == "replacement":
        twin = data.DataLoader(every, BATCH, sampler=sampler(4))
    expected = [taken(twin, steps), taken(twin, 2), taken(twin, 5)]

    whole = DataLoader(dataset, BATCH, sampler=sampler(4), **options)
    assert [taken(whole, steps), taken(whole, 2), taken(whole, 5)] == expected
    whole.close()

    first = DataLoader(dataset, BATCH, sampler=sampler(4), **options)
    seen = taken(first, 1)
    resumed = DataLoader(dataset, BATCH, sampler=sampler(77), **options)
    resumed.load_state_dict(through_json(first))
    if steps > 1:  # Else the epoch goes on.
        seen += taken(resumed, steps - 1)
        assert [seen, taken(resumed, 2), taken(resumed, 5)] == expected
    first.close()
    resumed.close()


@every_engine
def test_a_generator_is_restored_for_all_epochs_to_come(
    path: Path, options: dict[str, Any]
) -> None:
    dataset = Dataset(path, columns=["label"])

    def loader(seed: int) -> DataLoader:
        generator = torch.Generator().manual_seed(seed)
        return DataLoader(dataset, BATCH, True, generator=generator, **options)

    whole = loader(5)
    expected = [labels(whole) for _ in range(3)]
    if "persistent_workers" not in options:  # Such iterators of torch's draw once less.
        own = torch.Generator().manual_seed(5)
        assert [batch for epoch in expected for batch in epoch] == torchs(0, 3, own)
    whole.close()
    for cut in range(7):
        first = loader(5)
        seen = labels(islice(first, 5)) if cut >= 5 else []
        if cut == 6:
            seen = labels(first)  # The second epoch, to its end; the first was left after the last.
        elif 0 < cut < 5:
            seen = labels(islice(first, cut))
        second = loader(77)
        second.load_state_dict(through_json(first))
        rest = [labels(second), labels(second)]
        first.close()
        second.close()
        if cut == 0:
            assert rest == expected[:2]
        elif cut < 5:
            assert seen + rest[0] == expected[0]
            assert rest[1] == expected[1]
        elif cut == 5:
            assert seen == expected[0]
            if "persistent_workers" not in options:
                assert rest == expected[1:]


@every_engine
def test_a_generator_is_restored_between_two_epochs(path: Path, options: dict[str, Any]) -> None:
    dataset = Dataset(path, columns=["label"])

    def loader(seed: int) -> DataLoader:
        generator = torch.Generator().manual_seed(seed)
        return DataLoader(dataset, BATCH, True, generator=generator, **options)

    first = loader(5)
    labels(first)
    state = through_json(first)
    expected = [labels(first), labels(first)]
    second = loader(77)
    second.load_state_dict(state)
    assert through_json(second) == state
    assert [labels(second), labels(second)] == expected
    first.load_state_dict(state)
    assert labels(first) == expected[0]
    first.close()
    second.close()


@every_engine
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("kind", ["shuffle", "weighted", "in order"])
@pytest.mark.parametrize("epochs_before", [0, 1])
def test_an_epoch_that_has_begun_and_delivered_nothing_is_the_one_that_goes_on(
    path: Path, options: dict[str, Any], own: bool, kind: str, epochs_before: int
) -> None:
    dataset = Dataset(path, columns=["label"])

    def loader(seed: int) -> DataLoader:
        torch.manual_seed(seed)
        generator = torch.Generator().manual_seed(seed) if own else None
        if kind == "weighted":
            weights = np.arange(1.0, COUNT + 1).tolist()
            sampler = data.WeightedRandomSampler(weights, COUNT, generator=generator)
            return DataLoader(dataset, BATCH, sampler=sampler, **options)
        return DataLoader(dataset, BATCH, kind == "shuffle", generator=generator, **options)

    first = loader(5)
    for _ in range(epochs_before):
        labels(first)
    begun = iter(first)
    state = through_json(first)
    assert (state["epoch"], state["batches"], state["begun"]) == (epochs_before, 0, True)
    expected = labels(begun)
    second = loader(77)
    second.load_state_dict(state)
    assert labels(second) == expected
    first.close()
    second.close()


@every_engine
def test_an_epoch_may_be_cut_at_each_batch(path: Path, options: dict[str, Any]) -> None:
    dataset = Dataset(path, columns=["label"])
    torch.manual_seed(3)
    loader = DataLoader(dataset, BATCH, True, **options)
    seen = labels(islice(loader, 1))
    for _ in range(4):
        state = through_json(loader)
        loader.close()
        loader = DataLoader(dataset, BATCH, True, **options)
        loader.load_state_dict(state)
        seen += labels(islice(loader, 1))

    assert seen == torchs(3, 1)
    assert loader.state_dict()["epoch"] == 1
    loader.close()


def test_transforms_that_draw_draw_the_same(path: Path) -> None:
    dataset = Dataset(path, transform=noise)

    def loader() -> DataLoader:
        return DataLoader(dataset, BATCH, True)

    torch.manual_seed(4)
    whole = loader()
    expected = [[column.tolist() for column in batch] for _ in range(2) for batch in whole]
    torch.manual_seed(4)
    first = loader()
    seen = [[c.tolist() for c in batch] for batch in first]
    seen += [[c.tolist() for c in batch] for batch in islice(first, 2)]
    torch.manual_seed(8)
    second = loader()
    second.load_state_dict(through_json(first))
    seen += [[c.tolist() for c in batch] for batch in second]

    assert seen == expected


def test_drawing_with_replacement_and_single_samples_resume_too(path: Path) -> None:
    dataset = Dataset(path, columns=["label"])
    for batch_size in (BATCH, None):

        def loader() -> DataLoader:
            sampler = data.RandomSampler(dataset, replacement=True, num_samples=90)  # type: ignore[arg-type]
            return DataLoader(dataset, batch_size, sampler=sampler)  # noqa: B023 - used at once

        torch.manual_seed(6)
        expected = [np.asarray(batch["label"]).tolist() for batch in loader()]
        torch.manual_seed(6)
        first = loader()
        seen = [np.asarray(batch["label"]).tolist() for batch in islice(first, 3)]
        second = loader()
        second.load_state_dict(through_json(first))
        seen += [np.asarray(batch["label"]).tolist() for batch in second]
        assert seen == expected


DRAWN: list[Callable[[torch.Generator | None], Any]] = [
    lambda own: data.WeightedRandomSampler([1.0 + i % 5 for i in range(COUNT)], 110, generator=own),
    lambda own: data.SubsetRandomSampler(range(5, COUNT - 5), generator=own),
]


@every_engine
@pytest.mark.parametrize("draw", DRAWN)
@pytest.mark.parametrize("has_own", [False, True])
def test_what_is_drawn_by_weight_or_of_some_records_goes_on(
    path: Path,
    draw: Callable[[torch.Generator | None], Any],
    has_own: bool,
    options: dict[str, Any],
) -> None:
    dataset = Dataset(path, columns=["label"])

    def loader(seed: int) -> DataLoader:
        torch.manual_seed(seed)
        own = torch.Generator().manual_seed(seed) if has_own else None
        return DataLoader(dataset, BATCH, sampler=draw(own), **options)

    torch.manual_seed(6)
    own = torch.Generator().manual_seed(6) if has_own else None
    theirs: Any = data.DataLoader(range(COUNT), BATCH, sampler=draw(own))  # type: ignore[arg-type]
    expected = [batch.tolist() for batch in theirs]
    for cut in (0, 1, 4, 5):
        first = loader(6)
        seen = labels(islice(first, cut)) if cut else []  # Workers draw as soon as they begin.
        state = through_json(first)
        first.close()
        second = loader(6 if cut == 0 else 99)
        second.load_state_dict(state)
        assert through_json(second) == state or (has_own and cut == 5)
        seen += labels(second) if cut < 5 else []
        assert seen == expected
        assert len(labels(second)) == 5
        second.close()


def test_states_of_other_weights_or_indices_are_refused(path: Path) -> None:
    dataset = Dataset(path)

    def loader(sampler: Any) -> DataLoader:  # noqa: ANN401 - torch's own
        return DataLoader(dataset, BATCH, sampler=sampler)

    weights = [1.0] * COUNT
    weighted = loader(data.WeightedRandomSampler(weights, COUNT))
    some = loader(data.SubsetRandomSampler(range(COUNT)))
    for of in (weighted, some):
        next(iter(of))
        of.load_state_dict(through_json(of))
    for same in (list(range(COUNT)), np.arange(COUNT, dtype=np.int16), torch.arange(COUNT)):
        loader(data.SubsetRandomSampler(same)).load_state_dict(through_json(some))
    for state, other in (
        (weighted.state_dict(), data.WeightedRandomSampler([2.0, *weights[1:]], COUNT)),
        (weighted.state_dict(), data.WeightedRandomSampler(weights, COUNT - 1)),
        (
            weighted.state_dict(),
            data.WeightedRandomSampler(weights, COUNT, generator=torch.Generator()),
        ),
        (weighted.state_dict(), data.RandomSampler(weights)),
        (some.state_dict(), data.SubsetRandomSampler([*range(1, COUNT), 0])),
    ):
        with pytest.raises(ValueError, match="would not continue the same epoch"):
            loader(other).load_state_dict(state)
    with pytest.raises(ValueError, match="it is damaged"):
        weighted.load_state_dict(weighted.state_dict() | {"drawn": "xy"})


def test_resuming_leaves_torchs_default_generator_alone(path: Path) -> None:
    dataset = Dataset(path, columns=["label"])
    first = DataLoader(dataset, BATCH, True)
    next(iter(first))
    second = DataLoader(dataset, BATCH, True)
    second.load_state_dict(first.state_dict())
    torch.manual_seed(1)
    expected = torch.get_rng_state()

    list(second)  # Its seed for workers was drawn in the run that was saved.

    assert torch.equal(torch.get_rng_state(), expected)


class Stream(data.IterableDataset[int]):
    """Iterable, so that only it knows where it is."""

    def __iter__(self) -> Any:  # noqa: ANN401
        return iter(range(10))


class OwnWeighted(data.WeightedRandomSampler):
    """Of a user, who may draw in another way."""


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda dataset: DataLoader(Stream(), 2), "StatefulDataLoader"),
        (
            lambda dataset: DataLoader(dataset, 2, sampler=OwnWeighted([1.0] * COUNT, COUNT)),
            r"weights=weights",
        ),
        (
            lambda dataset: DataLoader(dataset, 2, sampler=[1, 2]),
            r"Sampler\(\.\.\.\), whose order .* list cannot resume",
        ),
        (lambda dataset: DataLoader(dataset, batch_sampler=[[1, 2]]), "list cannot resume"),
    ],
)
def test_what_cannot_resume_says_what_to_use(path: Path, made: Any, said: str) -> None:  # noqa: ANN401
    loader = made(Dataset(path))

    for call in (loader.state_dict, lambda: loader.load_state_dict({})):
        with pytest.raises(TypeError, match=said):
            call()
    assert len(list(islice(loader, 1))) == 1  # It loads all the same.


def test_states_of_something_else_are_refused(path: Path) -> None:
    dataset = Dataset(path)
    loader = DataLoader(dataset, BATCH, True)
    state = loader.state_dict()

    with pytest.raises(ValueError, match="a Sampler, too"):
        loader.load_state_dict(Sampler(dataset, BATCH).state_dict())
    with pytest.raises(ValueError, match="batches, drawn, begun is missing"):
        loader.load_state_dict(
            {k: v for k, v in state.items() if k not in ("batches", "drawn", "begun")}
        )
    with pytest.raises(ValueError, match="batch_size is 25, this one's is 5"):
        DataLoader(dataset, 5, True).load_state_dict(state)
    with pytest.raises(ValueError, match="sampler is RandomSampler"):
        DataLoader(dataset, BATCH).load_state_dict(state)
    with pytest.raises(ValueError, match="a generator of its own"):
        DataLoader(dataset, BATCH, True, generator=torch.Generator()).load_state_dict(state)
    with pytest.raises(ValueError, match="not a sampler's state"):
        DataLoader(dataset, batch_sampler=Sampler(dataset, BATCH)).load_state_dict(state)
    with pytest.raises(ValueError, match="in_order=False"):
        DataLoader(dataset, BATCH, num_workers=1, in_order=False).state_dict()


@every_engine
def test_a_distributed_sampler_goes_on_in_its_epoch(path: Path, options: dict[str, Any]) -> None:
    """What Lightning makes of a loader without a `Sampler`; it saves the state of one rank."""
    dataset = Dataset(path, columns=["label"])

    def loader(of: int) -> DataLoader:
        sampler = data.DistributedSampler(dataset, 2, of, seed=5)
        return DataLoader(dataset, 8, sampler=sampler, **options)

    own: Any = data.DistributedSampler(range(COUNT), 2, 1, seed=5)  # type: ignore[arg-type]
    own.set_epoch(3)
    expected = list(own)
    first, second = loader(0), loader(1)
    first.set_epoch(3)
    list(islice(first, 3))
    second.load_state_dict(through_json(first))
    second.set_epoch(1)  # Of a framework that counts anew: the epoch that was begun goes on.

    assert list(chain.from_iterable(labels(second))) == expected[3 * 8 :]
    own.set_epoch(1)
    assert list(chain.from_iterable(labels(second))) == list(own)
    state = second.state_dict()
    assert (state["batches"], state["drawn"]) == (0, None)
    first.close()
    second.close()


def test_a_state_of_another_world_is_refused(path: Path) -> None:
    dataset = Dataset(path)

    def loader(world: int, **options: Any) -> DataLoader:  # noqa: ANN401
        return DataLoader(dataset, 8, sampler=data.DistributedSampler(dataset, world, 0, **options))

    state = loader(2).state_dict()
    with pytest.raises(ValueError, match=r"of 2 ranks, seed 0, this one's is .* of 4 ranks"):
        loader(4).load_state_dict(state)
    for others in ({"seed": 1}, {"shuffle": False}, {"drop_last": True}):
        with pytest.raises(ValueError, match="sampler is DistributedSampler"):
            loader(2, **others).load_state_dict(state)


def test_a_state_of_other_draws_is_refused(path: Path) -> None:
    dataset = Dataset(path)

    def loader(**options: Any) -> DataLoader:  # noqa: ANN401
        return DataLoader(dataset, BATCH, sampler=data.RandomSampler(dataset, **options))  # type: ignore[arg-type]

    drawn = loader(replacement=True, num_samples=90)
    with pytest.raises(ValueError, match="replacement is True, this one's is False"):
        loader(num_samples=90).load_state_dict(drawn.state_dict())
    with pytest.raises(ValueError, match="samples is 90, this one's is 120"):
        loader(replacement=True).load_state_dict(drawn.state_dict())
    loader(replacement=True, num_samples=90).load_state_dict(drawn.state_dict())


@pytest.mark.parametrize(
    "wrong",
    [
        *({"batches": -3}, {"batches": 1.5}, {"batches": "2"}, {"epoch": -5}, {"epoch": None}),
        *({"seed": None}, {"drawn": 1.5}, {"drawn": 2**70}, {"drawn": "zz"}, {"begun": "yes"}),
    ],
)
def test_a_damaged_state_changes_nothing(path: Path, wrong: dict[str, Any]) -> None:
    dataset = Dataset(path, columns=["label"])
    first, second = DataLoader(dataset, BATCH, True), DataLoader(dataset, BATCH, True)
    next(iter(first))
    before = second.state_dict()

    with pytest.raises(ValueError, match="it is damaged"):
        second.load_state_dict({**first.state_dict(), **wrong})
    assert second.state_dict() == before


def test_a_damaged_state_of_a_generator_is_refused(path: Path) -> None:
    loader = DataLoader(Dataset(path), BATCH, True, generator=torch.Generator())

    with pytest.raises(ValueError, match="generator is damaged"):
        loader.load_state_dict({**loader.state_dict(), "drawn": "ab" * 100})


def test_the_state_is_of_the_iterator_that_delivered_last(path: Path) -> None:
    dataset = Dataset(path, columns=["label"])
    loader = DataLoader(dataset, BATCH, mode="threads", num_workers=1)
    one, two = iter(loader), iter(loader)
    next(one)
    next(two)
    next(two)
    assert (loader.state_dict()["batches"], loader.state_dict()["epoch"]) == (2, 1)
    next(one)
    next(one)
    assert (loader.state_dict()["batches"], loader.state_dict()["epoch"]) == (3, 0)
    loader.close()


@pytest.mark.parametrize("options", [ENGINES[name] for name in ("inline", "workers", "threads")])
@pytest.mark.parametrize("is_exhausted", [True, False])
def test_after_the_last_batch_the_next_order_is_torchs_whether_the_end_was_seen(
    path: Path, options: dict[str, Any], is_exhausted: bool
) -> None:
    def made() -> DataLoader:
        own = torch.Generator().manual_seed(8)
        return DataLoader(Dataset(path, columns=["label"]), 24, True, generator=own, **options)

    first = made()
    batches = iter(first)
    seen = labels(islice(batches, 6 if is_exhausted else 5))
    state = through_json(first)
    second = made()
    second.load_state_dict(state)

    seen += labels(second) + labels(second)

    # Batches of 24 fill the epoch: torch's sampler draws once more when its end is asked for.
    own = torch.Generator().manual_seed(8)
    loader: Any = data.DataLoader(range(COUNT), 24, True, generator=own)  # type: ignore[arg-type]
    assert seen == [batch.tolist() for _ in range(3) for batch in loader]
    del batches


@pytest.mark.parametrize("options", [ENGINES[name] for name in ("inline", "workers", "threads")])
@pytest.mark.parametrize("kind", ["shuffle", "replacement", "weighted"])
def test_a_consumer_that_never_asks_for_the_end_goes_on_from_there(
    path: Path, options: dict[str, Any], kind: str
) -> None:
    """As Lightning, which knows the number of batches: a resumed run has the same orders."""
    dataset = Dataset(path, columns=["label"])

    def made() -> DataLoader:
        own = torch.Generator().manual_seed(8)
        samplers: dict[str, Any] = {
            "shuffle": data.RandomSampler(dataset, generator=own),
            "replacement": data.RandomSampler(dataset, True, generator=own),
            "weighted": data.WeightedRandomSampler([1.0, 2.0] * 60, COUNT, generator=own),
        }
        return DataLoader(dataset, 24, sampler=samplers[kind], generator=own, **options)

    whole = made()
    steps, states = [], []
    for _ in range(3):
        for batch in islice(whole, len(whole)):
            steps.append(batch["label"].tolist())
            states.append(through_json(whole))
    for cut in (1, 4, 5, 9, 10):
        resumed = made()
        resumed.load_state_dict(states[cut - 1])
        rest = [labels(islice(resumed, len(resumed))) for _ in range(3)]
        assert steps[:cut] + [batch for each in rest for batch in each][: 15 - cut] == steps
        resumed.close()
    whole.close()
