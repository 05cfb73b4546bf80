"""Goal: batches over a concatenation of torch's are those over ours, whoever asks for them.

Method: two tables with nulls, lists of equal and of unequal lengths, texts and pictures' bytes, in
which some batches lack what others have; loaders of torch's and ours; transforms that leave values,
add and change some. Torch asks for one sample at a time: what it asks for is counted, too.
"""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import data

import ffrecord
from ffrecord.decode import Image
from ffrecord.errors import CorruptionError
from ffrecord.torch import ConcatDataset, DataLoader, Dataset, Sampler, Subset, collate
from loading import every_engine

pa = pytest.importorskip("pyarrow")

pytestmark = pytest.mark.wrong_data

COUNT, BATCH = 11, 4


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    made = [tmp_path_factory.mktemp("parts") / f"{part}.ffr" for part in range(2)]
    for part, path in enumerate(made):
        numbers = range(part * COUNT, (part + 1) * COUNT)
        table = {
            "id": pa.array(numbers),
            "some": pa.array([None if i == 6 else i for i in numbers], pa.int64()),
            "pair": pa.array([[i, i + 1] for i in numbers], pa.list_(pa.int64())),
            "ragged": pa.array([["x"] * (i % 3) for i in numbers], pa.list_(pa.string())),
            "text": pa.array([None if i > 12 else str(i) for i in numbers]),
        }
        ffrecord.write_table(pa.table(table), path)
    return made


def unchanged(sample: dict[str, Any]) -> dict[str, Any]:
    return sample


def added(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "twice": 2 * sample["id"]}


def drawn(sample: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
    return {**sample, "draw": int(generator.integers(1 << 60))}


def alike(one: Any, other: Any) -> bool:  # noqa: ANN401 - batches
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(alike(one[name], other[name]) for name in one)
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
    return type(one) is type(other) and bool(one == other)


def odd(dataset: Any, subset: Any) -> Any:  # noqa: ANN401 - of torch's or ours
    return subset(dataset, [*range(1, len(dataset), 2), 0, 0])


# Torch's view of the parts, and the same one of ours.
VIEWS: dict[str, tuple[Callable[[list[Any]], Any], Callable[[list[Any]], Any]]] = {
    "concatenation": (data.ConcatDataset, ConcatDataset),
    "subset of it": (
        lambda parts: odd(data.ConcatDataset(parts), data.Subset),
        lambda parts: odd(ConcatDataset(parts), Subset),
    ),
    "subset of ours of it": (
        lambda parts: odd(data.ConcatDataset(parts), Subset),
        lambda parts: odd(ConcatDataset(parts), Subset),
    ),
    "concatenation of subsets": (
        lambda parts: data.ConcatDataset([odd(part, data.Subset) for part in parts]),
        lambda parts: ConcatDataset([odd(part, Subset) for part in parts]),
    ),
}


@every_engine
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("transform", [None, unchanged, added, drawn])
@pytest.mark.parametrize("order", ["sampler", "torch's"])
def test_batches_are_those_of_our_view(
    paths: list[Path],
    view: str,
    transform: Any,  # noqa: ANN401 - with one parameter or two
    order: str,
    options: dict[str, Any],
) -> None:
    def batches(made: Any) -> list[Any]:  # noqa: ANN401 - a view
        given: dict[str, Any] = {"batch_size": BATCH}
        if order == "sampler":
            given = {"batch_sampler": Sampler(made, BATCH, seed=3, last="short")}
        torch.manual_seed(7)
        with_close = DataLoader(made, timeout=60, **given, **options)
        found = list(with_close)
        with_close.close()
        return found

    found, known = (
        batches(make([Dataset(path, transform=transform) for path in paths]))
        for make in VIEWS[view]
    )
    assert len(found) == len(known) > 2
    assert all(map(alike, found, known))


@pytest.mark.parametrize("transform", [None, added])
def test_torchs_own_loader_gets_them_too(paths: list[Path], transform: Any) -> None:  # noqa: ANN401
    parts = [Dataset(path, transform=transform) for path in paths]
    found = list(data.DataLoader(data.ConcatDataset(parts), BATCH, collate_fn=collate))
    assert all(map(alike, found, DataLoader(ConcatDataset(parts), BATCH)))
    # A batch is read at once: two parts have one in common.
    assert sum(part.stats()["batches"] for part in parts) == 2 * (len(found) + 1)


def test_a_batch_is_made_anew_although_its_list_of_indices_is_the_same(paths: list[Path]) -> None:
    parts = [Dataset(path) for path in paths]
    fixed = [[1, 15, 3], [1, 15, 3], [4, 4]]
    loader = data.DataLoader(
        data.ConcatDataset(parts),
        batch_sampler=fixed,  # type: ignore[arg-type]
        collate_fn=collate,
    )
    for mark in range(3):
        for part in parts:
            part.transform = lambda sample, mark=mark: {"id": sample["id"], "mark": mark}
        seen = [(batch["id"].tolist(), batch["mark"].tolist()) for batch in loader]
        assert seen == [(indices, [mark] * len(indices)) for indices in fixed]


@pytest.mark.parametrize("concat", [data.ConcatDataset, ConcatDataset])
@pytest.mark.parametrize("transform", [None, unchanged, added])
def test_decoded_values_have_one_form_although_only_one_part_lacks_some(
    concat: Any,  # noqa: ANN401 - torch's or ours
    transform: Any,  # noqa: ANN401
    tmp_path: Path,
) -> None:
    picture = io.BytesIO()
    pytest.importorskip("PIL.Image").new("RGB", (3, 2)).save(picture, "PNG")
    for part in range(2):
        pictures = [None if part and i == 2 else picture.getvalue() for i in range(5)]
        table = {"id": pa.array(range(5)), "p": pa.array(pictures, pa.binary())}
        ffrecord.write_table(pa.table(table), tmp_path / f"{part}.ffr")

    def made(where: Any) -> Dataset[Any]:  # noqa: ANN401 - any location
        return Dataset(where, transform=transform, decode={"p": Image(2)})

    paths = [tmp_path / f"{part}.ffr" for part in range(2)]
    found = list(DataLoader(concat(list(map(made, paths))), 4))
    assert all(map(alike, found, DataLoader(made(paths), 4)))
    assert all(type(batch["p"]) is list for batch in found)


def test_an_error_of_a_transform_is_raised_and_the_next_batch_is_whole(paths: list[Path]) -> None:
    def refuse(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["id"] == 5:
            raise KeyError("no 5")
        return {"id": sample["id"]}

    both = data.ConcatDataset([Dataset(path, transform=refuse) for path in paths])
    batches = iter(data.DataLoader(both, batch_sampler=[[4, 5], [0, 12]], collate_fn=collate))  # type: ignore[arg-type]
    with pytest.raises(KeyError, match="no 5"):
        next(batches)
    assert next(batches)["id"].tolist() == [0, 12]


def test_a_damaged_record_is_named(paths: list[Path], tmp_path: Path) -> None:
    with ffrecord.Writer(tmp_path / "ill.ffr", {"id": "i64", "b": "bytes"}) as writer:
        for label in range(6):
            writer.write({"id": label, "b": bytes([100 + label]) * 50})
    content = bytearray((tmp_path / "ill.ffr").read_bytes())
    content[content.find(bytes([103]) * 50)] ^= 1
    (tmp_path / "ill.ffr").write_bytes(content)
    part = Dataset(tmp_path / "ill.ffr", columns=["id"])
    loader = DataLoader(data.ConcatDataset([part, part]), 4)
    with pytest.raises(CorruptionError, match="record 3"):
        next(iter(loader))


@pytest.mark.parametrize("concat", [data.ConcatDataset, ConcatDataset])
@pytest.mark.parametrize("transform", [None, unchanged, added])
@pytest.mark.parametrize("fewer", [0, 1])
def test_samples_of_other_columns_are_not_one_batch(
    paths: list[Path],
    concat: Any,  # noqa: ANN401 - torch's or ours
    transform: Any,  # noqa: ANN401
    fewer: int,
) -> None:
    parts: list[Any] = [
        Dataset(path, columns=["id"] if number == fewer else ["id", "pair"], transform=transform)
        for number, path in enumerate(paths)
    ]
    whole = concat(parts)

    with pytest.raises(ValueError, match=r"columns id.* others .*id.*columns="):
        list(DataLoader(whole, 2 * COUNT))
    # A program may collate them as it likes.
    (found,) = DataLoader(whole, 2 * COUNT, collate_fn=list)
    assert ["pair" in sample for sample in found] == [fewer == 1] * COUNT + [fewer == 0] * COUNT


def test_a_transform_gives_all_samples_of_a_batch_the_same_columns(paths: list[Path]) -> None:
    def sometimes(sample: dict[str, Any]) -> dict[str, Any]:
        return added(sample) if sample["id"] % 2 else sample

    with pytest.raises(ValueError, match=r"others .*twice"):
        list(DataLoader(Dataset(paths[0], columns=["id"], transform=sometimes), 4))
