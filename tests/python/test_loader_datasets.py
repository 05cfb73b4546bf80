"""Goal: transforms and datasets of every kind load alike in any loader.

Method: seeded transforms, classes written as for HFAiLab/ffrecord, subsets and concatenations.
"""

import itertools
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch.utils import data

from ffrecord import FileReader, FileWriter
from ffrecord._order.epoch_order import IndexBatch
from ffrecord.torch import ConcatDataset, DataLoader, Dataset, Sampler, Subset
from loading import COUNT, every_engine, noise, written


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("loader"))


def draws(batches: Any) -> dict[int, int]:  # noqa: ANN401 - any loader
    return {
        label: value
        for one, other in batches
        for label, value in zip(one.tolist(), other.tolist(), strict=True)
    }


def test_randomness_is_of_seed_epoch_and_index_whoever_draws(path: Path) -> None:
    dataset = Dataset(path, transform=noise)

    def epoch(number: int, seed: int = 0, **options: Any) -> dict[int, int]:  # noqa: ANN401
        found: dict[int, int] = {}
        world = options.pop("world", 1)
        for rank in range(world):
            sampler = Sampler(dataset, 24, seed, rank=rank, world_size=world)
            sampler.set_epoch(number)
            found |= draws(DataLoader(dataset, batch_sampler=sampler, **options))
        return found

    alone = epoch(3)

    assert len(set(alone.values())) == COUNT
    for options in (
        {"mode": "workers", "num_workers": 2},
        {"world": 3},
        {"mode": "threads", "num_workers": 2},
    ):
        assert epoch(3, **options) == alone
    for other in (epoch(4), epoch(3, seed=1)):
        assert all(other[label] != alone[label] for label in alone)
    part = Subset(dataset, range(0, COUNT, 2))
    sampler = Sampler(part, 20)
    sampler.set_epoch(3)
    assert draws(DataLoader(part, batch_sampler=sampler)).items() <= alone.items()


@pytest.mark.parametrize("on_corrupt", ["skip", "replace"])
def test_randomness_stays_with_its_record_beside_damaged_ones(
    path: Path, tmp_path: Path, on_corrupt: Literal["skip", "replace"]
) -> None:
    content = bytearray(path.read_bytes())
    content[content.index(bytes([7]) * 10_007)] ^= 1
    (tmp_path / "bad.ffr").write_bytes(content)
    bad = Dataset(tmp_path / "bad.ffr", transform=noise, on_corrupt=on_corrupt)
    good = Dataset(path, transform=noise)
    joined = ConcatDataset([bad, bad]), ConcatDataset([good, good])

    def epoch(dataset: Dataset, batch: int) -> list[tuple[int, int]]:
        sampler = Sampler(dataset, batch, 5)
        sampler.set_epoch(3)
        found = DataLoader(dataset, batch_sampler=sampler)
        return [
            pair for one, other in found for pair in zip(one.tolist(), other.tolist(), strict=True)
        ]

    for dataset, whole, batch in ((bad, good, 24), (bad, good, 1), (*joined, 1)):
        found = epoch(dataset, batch)
        assert set(found) == {pair for pair in epoch(whole, 24) if pair[0] != 7}
        assert len(found) == len(dataset) - (on_corrupt == "skip" and batch > 1)


def drawn_by_torch(path: Path, **options: Any) -> list[tuple[int, int]]:  # noqa: ANN401
    """The pairs of a loader whose sampler of torch's repeats records."""
    own = torch.Generator().manual_seed(4)
    dataset = Dataset(path, transform=noise, **options)
    sampler = data.RandomSampler(dataset, replacement=True, generator=own)
    found = DataLoader(dataset, 7, sampler=sampler, generator=torch.Generator().manual_seed(2))
    return [pair for one, other in found for pair in zip(one.tolist(), other.tolist(), strict=True)]


def test_each_draw_of_a_record_is_augmented_anew_beside_damaged_ones(
    path: Path, tmp_path: Path
) -> None:
    whole = drawn_by_torch(path)
    assert len(dict(whole)) < len(set(whole)) == len(whole)  # Some records came twice.
    bad = max(label for label, _ in whole[:3])
    content = bytearray(path.read_bytes())
    content[content.index(bytes([bad]) * (10_000 + bad))] ^= 1
    (tmp_path / "bad.ffr").write_bytes(content)

    skipped = drawn_by_torch(tmp_path / "bad.ffr", on_corrupt="skip")

    assert skipped == [pair for pair in whole if pair[0] != bad]


class Upstream(Dataset):
    """As code for HFAiLab/ffrecord is written."""

    def process(self, indices: Any, data: Any) -> list[tuple[int, int]]:  # noqa: ANN401
        """Make pairs."""
        assert isinstance(data, list)
        return [(int(index), int(record[0])) for index, record in zip(indices, data, strict=True)]


class OwnReader(Dataset):
    """Its own reader and its own indexing, without `super().__init__`."""

    def __init__(self, path: Path) -> None:
        self.reader = FileReader(path)

    def __getitem__(self, indices: Any) -> list[int]:  # noqa: ANN401 - a list of integers
        return [int(record[0]) for record in self.reader.read(indices)]


@pytest.fixture
def v1(tmp_path: Path) -> Path:
    with FileWriter(tmp_path / "v1.ffr", 50) as writer:
        for i in range(50):
            writer.write_one(bytes([i * 2]))
    return tmp_path / "v1.ffr"


@every_engine
def test_datasets_written_for_upstream_load_in_any_loader(
    v1: Path, options: dict[str, Any]
) -> None:
    pairs = list(DataLoader(Upstream(v1), batch_size=25, **options))
    assert [batch[0].tolist() for batch in pairs] == [list(range(25)), list(range(25, 50))]
    assert pairs[1][1].tolist() == [i * 2 for i in range(25, 50)]

    numbers = list(DataLoader(OwnReader(v1), batch_size=25, **options))
    assert numbers[0].tolist() == [i * 2 for i in range(25)]
    torchs: data.DataLoader[Any] = data.DataLoader(OwnReader(v1), batch_size=50)
    assert next(iter(torchs)).tolist() == [i * 2 for i in range(50)]


def test_upstreams_indexing_and_ours_are_one(v1: Path, path: Path) -> None:
    dataset = Upstream(v1)

    assert dataset[[3, 1, 3]] == [(3, 6), (1, 2), (3, 6)]
    assert dataset[4] == (4, 8)
    assert dataset[np.int64(4)] == (4, 8)
    assert dataset[(1, 2)] == [(1, 2), (2, 4)]
    assert dataset[48:] == [(48, 96), (49, 98)]
    assert dataset.reader.n == len(dataset) == 50
    assert [type(r) for r in dataset.ffreaders()] == [FileReader]
    native = Dataset(path, columns=["label"])
    assert native[[5, 6]]["label"].tolist() == [5, 6]
    assert native[-1] == {"label": COUNT - 1}
    assert [sample["label"] for sample in itertools.islice(native, 3)] == [0, 1, 2]
    assert len(pickle.dumps(dataset)) < 1024
    assert pickle.loads(pickle.dumps(dataset))[[1]] == [(1, 2)]
    with pytest.raises(AttributeError, match="nothing to read"):
        len(type("Empty", (Dataset,), {"__init__": lambda self: None})())


def test_concat_dataset_honours_duplicate_indices(v1: Path) -> None:
    both = Upstream(v1) + Subset(Upstream(v1), [9, 8, 7])

    assert isinstance(both, ConcatDataset)
    assert both[[0, 7, 14, 7]] == [(0, 0), (7, 14), (14, 28), (7, 14)]
    assert both[[50, 3, 50, -1]] == [(9, 18), (3, 6), (9, 18), (7, 14)]
    assert both[-1] == (7, 14)
    assert len(both) == 53
    assert both.cumulative_sizes == [50, 53]
    assert len(both.ffreaders()) == 2
    with pytest.raises(IndexError, match="53 records"):
        both[[53]]
    with pytest.raises(AssertionError, match="empty"):
        ConcatDataset([])


def test_a_subset_reads_the_chosen_and_replaces_within_its_order(
    path: Path, tmp_path: Path
) -> None:
    content = bytearray(path.read_bytes())
    content[content.index(bytes([40]) * 10_040) + 500] ^= 1
    (tmp_path / "bad.ffr").write_bytes(content)
    dataset = Dataset(tmp_path / "bad.ffr", on_corrupt="replace")
    part = Subset(dataset, range(0, COUNT, 4))
    sampler = Sampler(part, 30)
    (whole,) = list(sampler)
    assert isinstance(whole, IndexBatch)
    place = whole.index(10)

    found = part.__getitems__(whole)["label"].tolist()

    wanted = [i * 4 for i in whole]
    wanted[place] = wanted[(place + 1) % 30]
    assert found == wanted
    assert len(part.fingerprint) == 32
    assert part[[1, -1]]["label"].tolist() == [4, 116]


@every_engine
def test_plain_orders_draw_anew_in_each_epoch_and_alike_in_each_engine(
    path: Path, options: dict[str, Any]
) -> None:
    dataset = Dataset(path, transform=noise)

    def epochs(seed: int, **engine: Any) -> list[dict[int, int]]:  # noqa: ANN401
        loader = DataLoader(
            dataset,
            batch_size=20,
            shuffle=True,
            generator=torch.Generator().manual_seed(seed),
            timeout=60,
            **engine,
        )
        found = [draws(loader) for _ in range(2)]
        loader.close()
        return found

    found = epochs(7, **options)

    assert [len(epoch) for epoch in found] == [COUNT, COUNT]
    assert not found[0].items() & found[1].items()
    assert found == epochs(7)
    assert not found[0].items() & epochs(8)[0].items()


class Constant:
    """A transform, as a curriculum replaces it."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __call__(self, sample: Any) -> int:  # noqa: ANN401 - a record
        """Whatever it is, the value."""
        return self.value


@pytest.mark.parametrize("kind", ["dataset", "subset", "concat"])
def test_a_transform_that_is_replaced_between_epochs_holds_from_the_next_batch(
    path: Path, kind: str
) -> None:
    inner = Dataset(path, transform=Constant(0))
    dataset = {
        "dataset": inner,
        "subset": Subset(inner, range(COUNT)),
        "concat": ConcatDataset([Dataset(path, transform=Constant(9)), inner]),
    }[kind]
    loader = DataLoader(
        dataset, batch_sampler=Sampler(dataset, 20), mode="threads", num_workers=2, timeout=60
    )
    for epoch in range(3):
        inner.transform = Constant(epoch)

        assert {value for batch in loader for value in batch.tolist()} - {9} == {epoch}
    loader.close()


class OfTheProgram(data.Dataset[Any]):
    """A dataset whose attributes mean something else than those of ours."""

    def __init__(self, path: Path) -> None:
        self.inner = Dataset(path, columns=["label"])
        self.stats = {"mean": 1.0}
        self.fingerprint = lambda: "of nothing"
        self.mixture = [0.3, 0.7]
        self.stages = self.versions = self.source = "of the program"

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:  # noqa: ANN401 - a sample
        return self.inner[index]


VIEWS_OF_ANY: dict[str, Callable[[Any], Any]] = {
    "alone": lambda dataset: dataset,
    "subset": lambda dataset: Subset(dataset, range(COUNT)),
    "torch's subset": lambda dataset: data.Subset(dataset, range(COUNT)),
    "concatenation": lambda dataset: ConcatDataset([dataset]),
    "torch's concatenation": lambda dataset: data.ConcatDataset([dataset]),
}


@pytest.mark.parametrize("view", VIEWS_OF_ANY)
@pytest.mark.parametrize("options", [{}, {"num_workers": 1}])
def test_names_of_a_programs_dataset_mean_what_the_program_says(
    path: Path, tmp_path: Path, view: str, options: dict[str, Any]
) -> None:
    dataset = VIEWS_OF_ANY[view](OfTheProgram(path))
    ordered = DataLoader(dataset, batch_sampler=Sampler(dataset, 20, shuffle=False), **options)
    plain = DataLoader(dataset, 20, **options)

    for loader in (ordered, plain):
        found = [label for batch in loader for label in batch["label"].tolist()]
        assert found == list(range(COUNT))
        assert json.loads(json.dumps(loader.state_dict())) == loader.state_dict()
        assert loader.stats()["batches"] == COUNT // 20
        loader.write_trace(tmp_path / "trace.json")  # type: ignore[arg-type]


def test_a_list_is_a_dataset_whose_loader_writes_a_trace(tmp_path: Path) -> None:
    loader = DataLoader([1, 2, 3, 4], 2)  # type: ignore[arg-type]

    assert [batch.tolist() for batch in loader] == [[1, 2], [3, 4]]
    loader.write_trace(str(tmp_path / "trace.json"))


@every_engine
def test_a_process_that_a_program_sets_on_a_dataset_makes_the_samples(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    dataset = Dataset(written(tmp_path, "numbers"), columns=["label"])
    dataset.process = tenfold  # type: ignore[method-assign]
    loader = DataLoader(dataset, batch_sampler=Sampler(dataset, 20, shuffle=False), **options)

    found = [label for batch in loader for label in batch["label"].tolist()]

    assert found == [10 * label for label in range(COUNT)]
    loader.close()


def tenfold(_: Any, batch: Any) -> list[dict[str, int]]:  # noqa: ANN401 - a batch of records
    return [{"label": 10 * int(sample["label"])} for sample in batch]
