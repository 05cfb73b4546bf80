"""Goal: what a program changes between two iterations holds from the next one on.

Method: replace indices and transforms below every kind of view, start at a later step and resume,
and begin iterations of one loader in several threads; in every mode.
"""

import io
import itertools
import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import data

import ffrecord
from ffrecord.decode import Npy
from ffrecord.torch import ConcatDataset, DataLoader, Dataset, Sampler, Subset, collate
from ffrecord.torch._sampler import Cursor
from loading import COUNT, ENGINES, every_engine, labels, written

pytestmark = pytest.mark.wrong_data

VIEWS: dict[str, Callable[[Any], Any]] = {
    "dataset": lambda dataset: dataset,
    "subset": lambda dataset: Subset(dataset, range(COUNT)),
    "torch's subset": lambda dataset: data.Subset(dataset, range(COUNT)),
    "torch's subset of a subset": lambda d: data.Subset(Subset(d, range(COUNT)), range(COUNT)),
    "torch's concatenation": lambda dataset: data.ConcatDataset([dataset]),
    "concatenation of torch's subset": lambda d: ConcatDataset([data.Subset(d, range(COUNT))]),
    "subset of torch's concatenation": lambda d: data.Subset(data.ConcatDataset([d]), range(COUNT)),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("changes"))


def unchanged(sample: dict[str, Any], _: np.random.Generator) -> dict[str, Any]:
    return sample


def tenfold(sample: dict[str, Any]) -> dict[str, Any]:
    return {"label": 10 * sample["label"]}


def hundredfold(sample: dict[str, Any]) -> dict[str, Any]:
    return {"label": 100 * sample["label"]}


def in_order(loader: DataLoader) -> list[int]:
    """The labels of all batches."""
    return [label for batch in labels(loader) for label in batch]


def replaced(subset: Any, indices: list[int]) -> None:  # noqa: ANN401 - torch's
    subset.indices = indices


def changed_in_place(subset: Any, indices: list[int]) -> None:  # noqa: ANN401 - torch's
    subset.indices[:] = indices


@pytest.mark.parametrize("change", [replaced, changed_in_place])
@pytest.mark.parametrize("how", [{}, {"on_corrupt": "replace"}, {"transform": unchanged}])
@pytest.mark.parametrize("is_nested", [False, True])
def test_a_subset_of_torchs_has_the_indices_that_it_has_now(
    path: Path, how: dict[str, Any], change: Callable[..., None], is_nested: bool
) -> None:
    subset = data.Subset(Dataset(path, **how), [0, 1, 2, 4])
    whole = data.Subset(subset, range(4)) if is_nested else subset
    loaders = [data.DataLoader(whole, 2, collate_fn=collate), DataLoader(whole, 2)]
    first = Sampler(whole, 2).fingerprint
    for loader in loaders:
        assert labels(loader) == [[0, 1], [2, 4]]

    change(subset, [9, -1, 7, 30])

    for loader in loaders:
        assert labels(loader) == [[9, COUNT - 1], [7, 30]]
    assert [int(whole[at]["label"]) for at in range(4)] == [9, COUNT - 1, 7, 30]
    assert Sampler(whole, 2).fingerprint != first


@every_engine
def test_a_loader_reads_the_indices_that_a_subset_of_torchs_was_given_last(
    path: Path, options: dict[str, Any]
) -> None:
    subset = data.Subset(Dataset(path), [0, 1, 2, 4])
    assert labels(DataLoader(subset, 2, **options)) == [[0, 1], [2, 4]]

    subset.indices = [9, 8, 7, 5]

    assert labels(DataLoader(subset, 2, **options)) == [[9, 8], [7, 5]]


@pytest.mark.parametrize("engine", ["inline", "workers", "threads", "auto"])
@pytest.mark.parametrize("change", [replaced, changed_in_place])
@pytest.mark.parametrize("view", ["itself", "torch's subset", "concatenation of torch's subset"])
def test_batches_read_ahead_for_other_indices_are_not_delivered(
    path: Path, view: str, change: Callable[..., None], engine: str
) -> None:
    subset = data.Subset(Dataset(path), list(range(100)))
    whole: Any = subset if view == "itself" else data.Subset(subset, range(100))
    if view.startswith("concatenation"):
        whole = ConcatDataset([whole])
    sampler = Sampler(whole, 20, shuffle=False)
    loader = DataLoader(whole, batch_sampler=sampler, **ENGINES[engine])
    assert in_order(loader) == list(range(100))

    change(subset, list(range(99, -1, -1)))

    assert in_order(loader) == list(range(99, -1, -1))
    loader.close()


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_batches_read_ahead_by_another_transform_are_not_delivered(
    path: Path, view: Callable[[Any], Any]
) -> None:
    dataset = Dataset(path, transform=tenfold)
    whole = view(dataset)
    sampler = Sampler(whole, 60, shuffle=False)
    loader = DataLoader(whole, batch_sampler=sampler, mode="threads", num_workers=2)
    assert labels(loader)[0][:3] == [0, 10, 20]

    dataset.transform = hundredfold

    assert labels(loader)[0][:3] == [0, 100, 200]
    loader.close()


def test_batches_read_ahead_without_a_generator_are_not_delivered(path: Path) -> None:
    def transform(_: object, generator: object = None) -> dict[str, int]:
        return {"label": int(generator is not None)}

    dataset = Dataset(path, transform=transform)
    sampler = Sampler(dataset, 60)
    loader = DataLoader(dataset, batch_sampler=sampler, mode="threads", num_workers=2)
    assert not any(in_order(loader))

    dataset.pass_generator = True

    assert all(in_order(loader))
    loader.close()


class Scale:
    """A transform whose factor a program changes, and which counts its samples."""

    def __init__(self) -> None:
        self.factor, self.count = 10, 0

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Multiply, and count."""
        self.count += 1
        return {"label": self.factor * sample["label"]}


# Workers that persist keep the settings that they began with, as torch's do.
@pytest.mark.parametrize("name", [name for name in ENGINES if name != "persistent"])
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_the_settings_of_a_transform_hold_for_the_whole_next_epoch(
    path: Path, view: Callable[[Any], Any], name: str
) -> None:
    scale = Scale()
    whole = view(Dataset(path, transform=scale))
    sampler = Sampler(whole, 10, shuffle=False)
    loader = DataLoader(whole, batch_sampler=sampler, **ENGINES[name])
    assert in_order(loader) == [10 * label for label in range(COUNT)]

    scale.factor = 100

    assert in_order(loader) == [100 * label for label in range(COUNT)]
    loader.close()
    here = loader.stats()["engine"] != "processes"
    assert scale.count == (2 * COUNT if here else 0)  # None of an epoch that has not begun.


@pytest.mark.parametrize("name", [name for name in ENGINES if name != "persistent"])
@pytest.mark.parametrize("is_native", [False, True])
def test_a_decoder_that_is_put_into_the_dict_decodes_from_the_next_epoch_on(
    tmp_path: Path, name: str, is_native: bool
) -> None:
    with ffrecord.Writer(tmp_path / "a.ffr", {"label": "i64", "means": "bytes"}) as writer:
        for label in range(COUNT):
            np.save(out := io.BytesIO(), np.full(3, label, "<f4"))
            writer.write({"label": label, "means": out.getvalue()})
    # One makes a tensor of a batch, the other a list of tensors.
    both = [Npy("f4", (3,)), Npy()] if is_native else [Npy(), Npy("f4", (3,))]
    dataset = Dataset(tmp_path / "a.ffr", decode={"means": both[0]})
    loader = DataLoader(dataset, batch_sampler=Sampler(dataset, 10), **ENGINES[name])
    kinds = [{type(batch["means"]) for batch in loader}]

    dataset.decode["means"] = both[1]  # type: ignore[index]

    kinds.append({type(batch["means"]) for batch in loader})
    assert kinds == ([{torch.Tensor}, {list}] if is_native else [{list}, {torch.Tensor}])
    loader.close()


@every_engine
@pytest.mark.parametrize("is_plain", [False, True])
def test_a_run_that_starts_at_a_later_step_resumes_with_its_next_batch(
    path: Path, options: dict[str, Any], is_plain: bool
) -> None:
    def loader_at_step_1() -> DataLoader:
        dataset = Dataset(path)
        order = {} if is_plain else {"batch_sampler": Sampler(dataset, 20, shuffle=False)}
        loader = DataLoader(dataset, 20 if is_plain else 1, **order, **options)
        loader.set_step(1)
        return loader

    first = loader_at_step_1()
    batches = iter(first)
    assert [next(batches)["label"][0], next(batches)["label"][0]] == [20, 40]

    resumed = loader_at_step_1()
    resumed.load_state_dict(json.loads(json.dumps(first.state_dict())))

    assert [batch[0] for batch in labels(resumed)] == [60, 80, 100]
    assert [batch[0] for batch in labels(resumed)] == [20, 40, 60, 80, 100]
    del batches


@every_engine
def test_weights_that_are_set_after_the_last_batch_are_those_of_the_next_epoch(
    path: Path, options: dict[str, Any]
) -> None:
    reader = ffrecord.open(path)
    mixed = ffrecord.mix([reader.subset(range(40)), reader.subset(range(40, COUNT))], [1, 1])
    dataset = Dataset(mixed, columns=["label"])
    sampler = Sampler(dataset, 20)
    loader = DataLoader(dataset, batch_sampler=sampler, **options)
    batches = iter(loader)
    assert len(first := labels(itertools.islice(batches, COUNT // 20))) == COUNT // 20

    sampler.set_weights([3, 1])

    assert labels(batches) == []
    assert [sum(label < 40 for label in batch) for batch in first] == [10] * 6
    assert [sum(label < 40 for label in batch) for batch in labels(loader)] == [15] * 6
    loader.close()


def test_weights_may_change_while_a_framework_holds_back_the_last_batch(path: Path) -> None:
    reader = ffrecord.open(path)
    sampler = Sampler(Dataset(ffrecord.mix([reader, reader], [1, 1])), 40)
    last = Cursor(0, 2 * COUNT - 40)
    (_, before), *_ = itertools.islice(sampler.stream(last), 1)
    sampler.deliver(last, handed=Cursor(1, 0))

    sampler.set_weights([3, 1])

    state = json.loads(json.dumps(sampler.state_dict()))
    sampler.load_state_dict(state)
    assert list(next(iter(sampler))) == list(before)


@pytest.mark.parametrize("options", [{}, {"mode": "threads", "num_workers": 1}])
@pytest.mark.parametrize("is_plain", [False, True])
def test_threads_of_a_program_iterate_one_loader_beside_each_other(
    path: Path, options: dict[str, Any], is_plain: bool
) -> None:
    dataset = Dataset(path, columns=["label"])
    order = {} if is_plain else {"batch_sampler": Sampler(dataset, 60, shuffle=False)}
    loader = DataLoader(dataset, 60 if is_plain else 1, **order, **options)
    wrong: list[Any] = []

    def iterate() -> None:
        try:
            for _ in range(60):
                if (found := in_order(loader)) != list(range(COUNT)):
                    wrong.append(found)
        except Exception as error:  # In a thread, nobody else would see it.
            wrong.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=iterate) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)

    assert wrong == []
    loader.close()


@pytest.mark.parametrize("name", ["num_workers", "prefetch_factor"])
def test_threads_are_not_fewer_than_none(path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is -1"):
        DataLoader(Dataset(path), mode="threads", **{"num_workers": 1, name: -1})


@pytest.mark.parametrize("mode", ["threads", "workers"])
def test_no_batch_ahead_is_refused_where_none_would_come(path: Path, mode: Any) -> None:  # noqa: ANN401
    with pytest.raises(ValueError, match="prefetch_factor is 0"):
        DataLoader(Dataset(path), mode=mode, num_workers=1, prefetch_factor=0)
