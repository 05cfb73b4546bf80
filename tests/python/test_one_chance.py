"""Goal: each draw of a record has a chance of its own, the same wherever and however it is read.

Method: transforms and decoders that draw, or that show what chance depends on, by views, orders and
engines.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import data

import ffrecord
from ffrecord.decode import Decoder, Field
from ffrecord.torch import ConcatDataset, DataLoader, Dataset, Sampler, Subset
from loading import ENGINES, met_by_engines
from mixing import mixed, written

pytestmark = pytest.mark.wrong_data

BATCH = 20


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return written(tmp_path_factory.mktemp("chance"))


def noise(sample: Any, generator: np.random.Generator) -> tuple[int, int]:  # noqa: ANN401
    return int(sample["label"]), int(generator.integers(2**31))


DRAWS: dict[str, Callable[[Dataset], tuple[Any, dict[str, Any]]]] = {
    "mix": lambda d: (d, {"batch_sampler": Sampler(d, BATCH)}),
    "mix, shuffled": lambda d: (d, {"batch_size": BATCH, "shuffle": True}),
    "by weight": lambda d: (
        (part := Subset(d, range(400))),
        {"batch_sampler": Sampler(part, BATCH, weights=[1, 0, 0, 0] * 100)},
    ),
    "with torch's replacement": lambda d: (
        d,
        {"batch_size": BATCH, "sampler": data.RandomSampler(range(5), True, 400)},  # type: ignore[arg-type]
    ),
    "with torch's weights": lambda d: (
        d,
        {"batch_size": BATCH, "sampler": data.WeightedRandomSampler([1.0] * 5, 400)},
    ),
    "more samples than records": lambda d: (
        (part := Subset(d, range(100))),
        {"batch_size": BATCH, "sampler": data.RandomSampler(part, num_samples=400)},
    ),
    "with torch's choice of records": lambda d: (
        d,
        {"batch_size": BATCH, "sampler": data.SubsetRandomSampler([*range(200), *range(200)])},
    ),
    "a program's indices": lambda d: (d, {"batch_size": BATCH, "sampler": [*range(200)] * 2}),
    "a program's batches": lambda d: (
        d,
        {"batch_sampler": [[i // 2 for i in range(at, at + 10)] for at in range(0, 400, 10)]},
    ),
    "indices listed twice": lambda d: (
        (part := Subset(d, [*range(200), *range(200)])),
        {"batch_sampler": Sampler(part, BATCH)},
    ),
    "indices listed twice, shuffled": lambda d: (
        Subset(d, [*range(200), *range(200)]),
        {"batch_size": BATCH, "shuffle": True},
    ),
    "in a concatenation": lambda d: (
        (one := ConcatDataset([d])),
        {"batch_sampler": Sampler(one, BATCH, weights=[1, 0, 0, 0] * 100)},
    ),
    "joined with itself": lambda d: (
        (one := ConcatDataset([part := Subset(d, range(200)), part])),
        {"batch_sampler": Sampler(one, BATCH)},
    ),
    "joined with itself by torch, shuffled": lambda d: (
        data.ConcatDataset([part := Subset(d, range(200)), part]),
        {"batch_size": BATCH, "shuffle": True},
    ),
    "subset of a join by torch": lambda d: (
        data.Subset(data.ConcatDataset([part := Subset(d, range(250)), part]), range(50, 450)),
        {"batch_size": BATCH, "shuffle": True},
    ),
}


@met_by_engines("draw", DRAWS, "mix", "by weight", "a program's indices", "joined with itself")
def test_a_record_that_is_drawn_twice_is_augmented_twice(
    files: dict[str, Path], draw: Callable[[Dataset], Any], options: dict[str, Any]
) -> None:
    dataset, how = draw(Dataset(mixed(files), transform=noise))
    loader = DataLoader(dataset, **how, **options)

    found = [pair for one, two in loader for pair in zip(one.tolist(), two.tolist(), strict=True)]

    assert len({label for label, _ in found}) < len(found) - 50
    assert len(set(found)) == len({noise for _, noise in found}) == len(found)
    again = [pair for one, two in loader for pair in zip(one.tolist(), two.tolist(), strict=True)]
    assert not set(again) & set(found)
    loader.close()


@pytest.mark.parametrize(
    "how",
    [
        {"sampler": data.WeightedRandomSampler([1.0] * 400, 400)},
        {"batch_sampler": [[0, 1], [0, 2]]},
    ],
    ids=["of torch", "of a program"],
)
def test_ranks_with_orders_of_their_own_have_chances_of_their_own(
    files: dict[str, Path], how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Lightning seeds them: all alike."""
    dataset = Dataset(mixed(files), transform=noise)
    found = []
    for rank in (0, 1, 1):
        monkeypatch.setenv("RANK", str(rank))
        torch.manual_seed(3)
        size = {"batch_size": BATCH} if "sampler" in how else {}
        found.append(
            [two for _, twos in DataLoader(dataset, **size, **how) for two in twos.tolist()]
        )

    assert not set(found[0]) & set(found[1])
    assert found[1] == found[2]


# The steps of a program's sampler, in each form that a dataset takes.
STEPS: dict[str, dict[str, Any]] = {
    "lists": {"batch_sampler": [[0, 1, 2], [3, 4]]},
    "tuples": {"batch_sampler": [(0, 1, 2), (3, 4)]},
    "ranges": {"batch_sampler": [range(3), range(3, 5)]},
    "arrays": {"batch_sampler": [np.arange(3), np.arange(3, 5)]},
    "tensors": {"batch_sampler": torch.arange(6).split(4)},
    "one by one": {"batch_size": None},
    "one by one, shuffled": {"batch_size": None, "shuffle": True},
    "one by one, as NumPy's": {"batch_size": None, "sampler": np.arange(5)},
    "one by one, as tensors": {"batch_size": None, "sampler": torch.arange(5)},
    "batches by a sampler of them": {
        "batch_size": None,
        "sampler": data.BatchSampler(data.SequentialSampler(range(7)), 3, False),
    },
}
STEP_VIEWS: dict[str, Callable[[Any], Any]] = {
    "dataset": lambda d: d,
    "subset": lambda d: Subset(d, range(9)),
    "torch's subset": lambda d: data.Subset(d, range(9)),
    "concatenation": lambda d: ConcatDataset([d, d]),
    "torch's concatenation": lambda d: data.ConcatDataset([d, d]),
    "torch's subset of it": lambda d: data.Subset(data.ConcatDataset([d]), range(9)),
}


@pytest.mark.parametrize("engine", ["inline", "workers"])
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("view", STEP_VIEWS.values(), ids=STEP_VIEWS)
def test_each_epoch_has_its_own_chance_in_whatever_form_a_sampler_asks(
    files: dict[str, Path], view: Callable[[Any], Any], step: dict[str, Any], engine: str
) -> None:
    dataset = view(Dataset(files["a"], transform=noise))
    whole = dataset.dataset if type(dataset) is data.Subset else dataset
    asks_for_lists = isinstance(step.get("sampler"), data.BatchSampler)
    if asks_for_lists and isinstance(whole, data.ConcatDataset):
        pytest.skip("torch's concatenation takes no list")

    def pairs(loader: DataLoader) -> list[tuple[int, int]]:
        """Of a batch of one, and of more."""
        each = (zip(*map(np.atleast_1d, batch), strict=True) for batch in loader)
        return sorted((int(one), int(two)) for rows in each for one, two in rows)

    loader = DataLoader(dataset, **step, **ENGINES[engine])
    first, second = pairs(loader), pairs(loader)

    assert [label for label, _ in first] == [label for label, _ in second]
    assert len(first) >= 5
    assert not {two for _, two in first} & {two for _, two in second}
    loader.close()


def test_a_skipped_record_leaves_the_others_their_chance(
    files: dict[str, Path], tmp_path: Path
) -> None:
    content = bytearray(files["b"].read_bytes())
    content[content.index(np.full(4, 1007, "<u2").tobytes())] ^= 1
    (tmp_path / "bad.ffr").write_bytes(content)

    def draws(path: Path, **options: Any) -> set[tuple[int, int]]:  # noqa: ANN401
        mix = ffrecord.mix([ffrecord.open(files["a"]), ffrecord.open(path)], [1, 1])
        dataset = Dataset(mix, transform=noise, **options)
        loader = DataLoader(dataset, batch_sampler=Sampler(dataset, BATCH))
        return {p for one, two in loader for p in zip(one.tolist(), two.tolist(), strict=True)}

    whole = draws(files["b"])
    expected = {pair for pair in whole if pair[0] != 1007}
    assert draws(tmp_path / "bad.ffr", on_corrupt="skip") == expected
    replaced = draws(tmp_path / "bad.ffr", on_corrupt="replace")
    assert len(replaced) == 400
    assert expected < replaced


class Chance(Decoder):
    """Makes what chance depends on: seed, epoch and place."""

    def decode(self, field: Field) -> tuple[Any, dict[int, str]]:
        """One number for each of seed, epoch and place."""
        rows = [[field.seed, field.epoch, place] for place in field.positions.tolist()]
        return np.array(rows, np.int64), {}


# A view of ours, and the same of torch's.
TWINS: dict[str, Callable[[Dataset, Any, Any], Any]] = {
    "subset": lambda d, subset, _: subset(d, range(50, 100)),
    "concatenation": lambda d, subset, concat: concat([d, subset(d, range(50))]),
    "subset of a concatenation": lambda d, subset, concat: subset(concat([d, d]), range(50, 500)),
    "concatenation of concatenations": lambda d, _, concat: concat([concat([d]), concat([d, d])]),
    "subset of a subset": lambda d, subset, _: subset(subset(d, range(90, 2, -1)), range(1, 80, 2)),
}
TWIN_ORDERS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "sampler": lambda view: {"batch_sampler": Sampler(view, BATCH, 3)},
    "in order": lambda _: {"batch_size": BATCH},
    "torch's replacement": lambda view: {
        "batch_size": BATCH,
        "sampler": data.RandomSampler(view, True, 100, torch.Generator().manual_seed(2)),
    },
}


@pytest.mark.parametrize("order", TWIN_ORDERS.values(), ids=TWIN_ORDERS)
@met_by_engines("twin", TWINS, "subset of a concatenation")
def test_a_view_of_torchs_has_the_chance_of_the_same_view_of_ours(
    files: dict[str, Path],
    twin: Callable[[Dataset, Any, Any], Any],
    order: Callable[[Any], dict[str, Any]],
    options: dict[str, Any],
) -> None:
    """Torch's concatenation asks for single samples, and does not pass on whose they are."""
    datasets = [
        Dataset(files["a"], transform=noise),
        Dataset(files["a"], decode={"t": Chance()}, columns=["label", "t"]),
    ]
    for dataset in datasets:
        found = []
        for views in ((Subset, ConcatDataset), (data.Subset, data.ConcatDataset)):
            view = twin(dataset, *views)
            generator = torch.Generator().manual_seed(1)
            loader = DataLoader(view, **order(view), **options, generator=generator)
            found.append([[[*map(rows, parts(batch))] for batch in loader] for _ in range(2)])
            loader.close()
        ours, torchs = found
        assert torchs == ours
        assert torchs[0] != torchs[1]  # Each epoch has a chance of its own.


def parts(batch: Any) -> list[Any]:  # noqa: ANN401 - as collate makes it
    """The values of labels and of what chance made."""
    return [batch["label"], batch["t"]] if isinstance(batch, dict) else [*batch]


def rows(values: Any) -> list[Any]:  # noqa: ANN401 - a tensor, or a list of tensors
    """Its numbers."""
    return [np.asarray(value).tolist() for value in values]
