"""Goal: a dataset of no records is a dataset, whichever way it is reached.

Method: a file of 0 records through readers, views, datasets and each mode of the loader.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.utils import data

import ffrecord
from ffrecord.torch import ConcatDataset, DataLoader, Dataset, Sampler, Subset
from loading import every_engine


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("none") / "none.ffr"
    with ffrecord.Writer(path, {"label": "i64"}):
        pass
    return path


DATASETS: dict[str, Callable[[Path], Any]] = {
    "path": Dataset,
    "reader": lambda path: Dataset(ffrecord.open(path)),
    "subset of records": lambda path: Dataset(ffrecord.open(path).subset([])),
    "filter": lambda path: Dataset(ffrecord.open(path).filter(lambda i: i > 0)),
    "concat": lambda path: Dataset(ffrecord.concat([ffrecord.open(path)] * 2)),
    "formatted": lambda path: Dataset(path).with_format("torch"),
    "subset": lambda path: Subset(Dataset(path), []),
    "concatenation": lambda path: ConcatDataset([Dataset(path), Dataset(path)]),
    "sum": lambda path: Dataset(path) + Dataset(path),
    "torchs": lambda path: data.Subset(Dataset(path), []),
}
every_dataset = pytest.mark.parametrize("kind", DATASETS)


@every_dataset
@pytest.mark.parametrize("policy", ["raise", "skip", "replace"])
def test_it_has_no_samples(path: Path, kind: str, policy: Any) -> None:  # noqa: ANN401
    dataset = DATASETS[kind](path)
    if type(dataset) is Dataset:
        dataset.on_corrupt = policy

    assert len(dataset) == 0
    assert len(list(dataset[[]] if isinstance(dataset, Dataset) else [])) == 0
    with pytest.raises(IndexError):
        dataset[0]
    assert [sample for _, sample in zip(range(3), dataset, strict=False)] == []


@every_engine
@every_dataset
def test_a_loader_of_it_delivers_nothing(path: Path, kind: str, options: dict[str, Any]) -> None:
    loader = DataLoader(DATASETS[kind](path), batch_size=4, timeout=60, **options)

    for _ in range(2):
        assert list(loader) == []
    assert loader.stats()["batches"] == len(loader) == 0
    loader.close()


@every_dataset
def test_a_sampler_refuses_it_by_name(path: Path, kind: str) -> None:
    for last in ("drop", "pad", "short", "exact"):
        with pytest.raises(ValueError, match="the dataset is empty"):
            Sampler(DATASETS[kind](path), 4, last=last)  # type: ignore[arg-type]


def test_a_mixture_refuses_a_source_of_none_by_name(path: Path) -> None:
    mixed = ffrecord.mix([ffrecord.open(path)] * 2, [1, 1])

    with pytest.raises(ValueError, match="source 0 of the mixture has no records but the weight 1"):
        Sampler(Dataset(mixed), 4)
