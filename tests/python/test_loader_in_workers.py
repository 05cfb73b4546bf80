"""Goal: a loader that a dataset iterates over gives batches, also in a worker of another loader.

Method: iterable datasets read shards with loaders of their own, in torch's workers and in ours.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import data

from ffrecord.torch import DataLoader, Dataset, Sampler
from loading import COUNT, written

pytestmark = pytest.mark.wrong_data


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("workers"))


class Labels(data.IterableDataset[torch.Tensor]):
    """The labels of a worker's share, which a loader of its own reads."""

    def __init__(self, path: Path, **options: Any) -> None:  # noqa: ANN401 - a loader's
        self.path, self.options = path, options

    def __iter__(self) -> Iterator[torch.Tensor]:
        dataset, worker = Dataset(self.path), data.get_worker_info()
        assert worker is not None
        share = {"rank": worker.id, "world_size": worker.num_workers}
        sampler = Sampler(dataset, 20, **share)
        for batch in DataLoader(dataset, batch_sampler=sampler, **self.options):
            yield batch["label"]


class Sums(data.Dataset[int]):
    """Each sample is made of an epoch of a loader."""

    def __init__(self, path: Path) -> None:
        self.inner = Dataset(path, columns=["label"])

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        sampler = Sampler(self.inner, 60, seed=index)
        batches = DataLoader(self.inner, batch_sampler=sampler)
        return index + sum(int(batch["label"].sum()) for batch in batches)


@pytest.mark.parametrize("loader", [data.DataLoader, DataLoader])
@pytest.mark.parametrize("options", [{}, {"mode": "threads", "num_workers": 1}])
def test_a_dataset_in_a_worker_iterates_over_a_loader(
    path: Path,
    loader: Any,  # noqa: ANN401 - a class
    options: dict[str, Any],
) -> None:
    batches = list(loader(Labels(path, **options), batch_size=None, num_workers=2))

    assert sorted(label for batch in batches for label in batch.tolist()) == list(range(COUNT))
    assert {len(batch) for batch in batches} == {10}


def test_batches_out_of_order_are_counted_although_the_dataset_iterates_over_a_loader(
    path: Path,
) -> None:
    dataset = Sums(path)
    loader = DataLoader(dataset, batch_sampler=Sampler(dataset, 3), num_workers=2, in_order=False)

    batches = iter(loader)
    seen = [next(batches).tolist() for _ in range(2)]
    state = loader.state_dict()
    resumed = DataLoader(dataset, batch_sampler=Sampler(dataset, 3))
    resumed.load_state_dict(state)

    whole = sum(range(COUNT))
    rest = [batch.tolist() for batch in resumed]
    assert sorted(n - whole for batch in [*seen, *rest] for n in batch) == list(range(12))
