"""Goal: a state goes on only over the samples that it is of, and a sampler only over its own.

Method: a table of views, ours, torch's and each over the other, by every kind of order. Two views
that differ in one choice or in the order of their parts have the same lengths; the state of one is
loaded over the other, and over the same view made again.
"""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.utils import data

import ffrecord
from ffrecord.torch import ConcatDataset, DataLoader, Dataset, Sampler, Subset
from loading import COUNT, labels, written

pytestmark = pytest.mark.wrong_data

HALF = COUNT // 2


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("identity"))


class OfProgram(data.Dataset[int]):
    """A dataset that has no fingerprint."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> int:
        return index


def halves(dataset: Any, subset: Any = Subset) -> list[Any]:  # noqa: ANN401 - any dataset
    """Two subsets of one length."""
    return [subset(dataset, range(HALF)), subset(dataset, range(HALF, COUNT))]


# Two views of one length, of other samples or in another order.
PAIRS: dict[str, Callable[[Any], list[Any]]] = {
    "subset": halves,
    "torch's subset": lambda d: halves(d, data.Subset),
    "torch's subset of torch's": lambda d: [
        data.Subset(half, range(5)) for half in halves(d, data.Subset)
    ],
    "concatenation": lambda d: [ConcatDataset(halves(d)), ConcatDataset(halves(d)[::-1])],
    "torch's concatenation": lambda d: [
        data.ConcatDataset(halves(d)),
        data.ConcatDataset(halves(d)[::-1]),
    ],
    "torch's concatenation of torch's subsets": lambda d: [
        data.ConcatDataset(halves(d, data.Subset)),
        data.ConcatDataset(halves(d, data.Subset)[::-1]),
    ],
    "torch's subset of torch's concatenation": lambda d: halves(
        data.ConcatDataset([d]), data.Subset
    ),
    "subset of torch's concatenation": lambda d: halves(data.ConcatDataset([d])),
    "torch's subset of a program's dataset": lambda _: halves(OfProgram(), data.Subset),
    "subset of a program's dataset": lambda _: halves(OfProgram()),
    "concatenation with a program's dataset": lambda d: [
        ConcatDataset([OfProgram(), d]),
        ConcatDataset([d, OfProgram()]),
    ],
}
ORDERS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "sampler": lambda dataset: {"batch_sampler": Sampler(dataset, 2)},
    "in order": lambda _: {"batch_size": 2},
    "shuffle": lambda _: {"batch_size": 2, "shuffle": True},
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_a_state_is_refused_over_other_samples_and_taken_over_the_same(
    path: Path, pair: Callable[[Any], list[Any]], order: Callable[[Any], dict[str, Any]]
) -> None:
    loaders, again = (
        [DataLoader(view, **order(view)) for view in pair(Dataset(path))] for _ in range(2)
    )
    states = [json.loads(json.dumps(loader.state_dict())) for loader in loaders]

    for number, other in itertools.permutations(range(2)):
        with pytest.raises(ValueError, match="fingerprint"):
            again[other].load_state_dict(states[number])
        again[number].load_state_dict(states[number])


def test_a_state_without_a_fingerprint_is_taken(path: Path) -> None:
    """As earlier releases saved them of views of torch's."""
    subset = data.Subset(Dataset(path), range(10))
    for order in ORDERS.values():
        state = DataLoader(subset, **order(subset)).state_dict()
        DataLoader(subset, **order(subset)).load_state_dict({**state, "fingerprint": None})


def test_a_subset_by_keys_that_are_no_integers_has_an_order_too() -> None:
    subset = data.Subset({"a": 1, "b": 2}, ["b", "a"])  # type: ignore[arg-type, var-annotated]
    loader = DataLoader(subset, batch_size=1, collate_fn=list)

    state = loader.state_dict()

    assert [*loader] == [[2], [1]]
    assert state["fingerprint"] is None
    assert len(Sampler(subset, 2)) == 1


@pytest.mark.parametrize("pair", [list, reversed], ids=["fewer", "more"])
@pytest.mark.parametrize("view", [Subset, data.Subset])
def test_a_sampler_of_another_dataset_is_refused(path: Path, view: Any, pair: Any) -> None:  # noqa: ANN401
    """A sampler of the training split over the whole dataset would read the first records of it."""
    whole = Dataset(path)
    sampled, loaded = pair([view(whole, range(10, 30)), whole])
    loader = DataLoader(loaded, batch_sampler=Sampler(sampled, 5))

    with pytest.raises(ValueError, match=f"Sampler.* of {len(sampled)} .*dataset.* {len(loaded)}"):
        next(iter(loader))


def test_a_sampler_of_a_number_reads_so_many(path: Path) -> None:
    """The program says itself how many of the records it wants."""
    loader = DataLoader(Dataset(path), batch_sampler=Sampler(10, 5, shuffle=False))

    assert labels(loader) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


class Backwards(Sampler):
    """A sampler of the program's."""

    def __iter__(self) -> Any:  # noqa: ANN401
        return iter([*super().__iter__()][::-1])


class Fewer(Sampler):
    """A sampler of the program's."""

    def __len__(self) -> int:
        return super().__len__() // 2


class Named(Sampler):
    """A sampler of the program's that changes nothing of the order."""

    def __init__(self, dataset: Any) -> None:  # noqa: ANN401
        super().__init__(dataset, 20)

    def __repr__(self) -> str:
        return "mine"


@pytest.mark.parametrize(
    ("kind", "name"), [(Backwards, "__iter__"), (Fewer, "__len__")], ids=["iter", "len"]
)
def test_a_sampler_whose_order_a_program_overrides_is_refused(
    path: Path, kind: type[Sampler], name: str
) -> None:
    """The loader takes the steps from the positions, and would not see it; torch's would."""
    dataset = Dataset(path)
    for order in ({"batch_sampler": kind(dataset, 20)}, {"batch_size": None}):
        options = order if "batch_sampler" in order else {**order, "sampler": kind(dataset, 20)}
        with pytest.raises(TypeError, match=rf"{kind.__name__} overrides {name}.* own iterable"):
            DataLoader(dataset, **options)


@pytest.mark.parametrize("options", [{}, {"mode": "threads", "num_workers": 2}])
def test_a_subclass_that_keeps_the_order_is_a_sampler(path: Path, options: dict[str, Any]) -> None:
    dataset = Dataset(path)
    loader = DataLoader(dataset, batch_sampler=Named(dataset), **options)

    assert labels(loader) == labels(DataLoader(dataset, batch_sampler=Sampler(dataset, 20)))
    loader.close()


def only_labels(sample: dict[str, Any]) -> dict[str, Any]:
    return {"label": sample["label"]}


ORDERS_OF_ANY: dict[str, Callable[[Any], dict[str, Any]]] = {
    "sampler": lambda whole: {"batch_sampler": Sampler(whole, 3, last="short")},
    "in order": lambda _: {"batch_size": 3},
}


@pytest.mark.parametrize("order", ORDERS_OF_ANY.values(), ids=ORDERS_OF_ANY)
@pytest.mark.parametrize("step", [None, 2], ids=["whole", "subset"])
def test_samples_of_files_with_other_columns_have_an_order_and_a_state(
    order: Callable[[Any], dict[str, Any]], step: int | None, tmp_path: Path
) -> None:
    """No reader has all of them, and the loader needs none."""
    for first, column in ((0, "a"), (10, "b")):
        with ffrecord.Writer(tmp_path / f"{column}.ffr", {"label": "i64", column: "f32"}) as writer:
            for label in range(first, first + 10):
                writer.write({"label": label, column: 0.5})

    def loader(columns: str) -> DataLoader:
        parts = [Dataset(tmp_path / f"{one}.ffr", transform=only_labels) for one in columns]
        whole: Any = ConcatDataset(parts)
        whole = whole if step is None else Subset(whole, range(0, 20, step))
        return DataLoader(whole, **order(whole))

    running, resumed = loader("ab"), loader("ab")
    seen = labels(itertools.islice(running, 2))
    state = json.loads(json.dumps(running.state_dict()))
    resumed.load_state_dict(state)
    seen += labels(resumed)

    assert sorted(label for batch in seen for label in batch) == list(range(0, 20, step or 1))
    with pytest.raises(ValueError, match="fingerprint"):
        loader("ba").load_state_dict(state)
