"""Goal: code of a program between torch and the loader has the effect that it has elsewhere.

Method: transforms that load from other loaders, and samplers that have epochs, each beside plain
lists.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils import data
from torch.utils.data.distributed import DistributedSampler

from ffrecord.torch import DataLoader, Dataset
from loading import COUNT, labels, written

pytestmark = pytest.mark.wrong_data

BATCH = 7


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("program"))


class Beside:
    """Joins each sample with the next batch of another loader."""

    def __init__(self, others: Callable[[], Iterator[Any]]) -> None:
        self._others = others
        self._iterator: Iterator[Any] = iter(())

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Join one."""
        other = next(self._iterator, None)
        if other is None:
            self._iterator = self._others()
            other = next(self._iterator)
        return {"label": sample["label"], "other": int(other["label"][0])}


@pytest.mark.parametrize("size", [1, 2, BATCH, BATCH + 1])
def test_a_transform_may_load_from_another_loader(path: Path, size: int) -> None:
    inner = data.ConcatDataset([Dataset(path, columns=["label"])] * 2)
    both = Beside(lambda: iter(DataLoader(inner, size)))
    dataset = Dataset(path, columns=["label"], transform=both)

    found = labels(DataLoader(data.ConcatDataset([dataset, dataset]), BATCH))

    assert [label for batch in found for label in batch] == [*range(COUNT)] * 2


class OwnBatches(data.Sampler[list[int]]):
    """Batches of a program, by its own epoch."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Note it."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[self.epoch], [self.epoch + 1]])

    def __len__(self) -> int:
        return 2


EPOCHS: dict[str, Callable[[], dict[str, Any]]] = {
    "samples": lambda: {"batch_size": 5, "sampler": DistributedSampler(range(COUNT), 2, 0)},  # type: ignore[arg-type]
    "batches of them": lambda: {
        "batch_sampler": data.BatchSampler(DistributedSampler(range(COUNT), 2, 0), 5, False)  # type: ignore[arg-type]
    },
    "a program's batches": lambda: {"batch_sampler": OwnBatches()},
}


@pytest.mark.parametrize("how", EPOCHS.values(), ids=EPOCHS)
def test_set_epoch_of_a_loader_reaches_the_sampler_by_every_name(
    path: Path, how: Callable[[], dict[str, Any]]
) -> None:
    loader, twin = DataLoader(Dataset(path, columns=["label"]), **how()), how()
    for epoch in (3, 1):
        loader.set_epoch(epoch)
        inner: Any = twin.get("batch_sampler", twin.get("sampler"))
        getattr(inner, "sampler", inner).set_epoch(epoch)
        order = inner if "batch_sampler" in twin else data.BatchSampler(inner, 5, False)
        assert labels(loader) == list(order)
