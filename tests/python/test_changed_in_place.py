"""Goal: a value that a transform changes in place is changed in the batch, once for each sample.

Method: tables of every kind of column, also with missing values, under views of ours and torch's;
a transform adds one to what it can change, alone or beside a new key. Records come twice in one.
"""

import copy
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.utils import data

import ffrecord
from ffrecord.decode import Npy
from ffrecord.torch import ConcatDataset, DataLoader, Dataset, Sampler, Subset
from loading import ENGINES

pytestmark = pytest.mark.wrong_data

COUNT = 12
ORDER = [3, 9, 3, 7, 0, 9, 9, 1, 11, 3]  # Not of neighbours, which are read as one anyway.
VIEWS: dict[str, Callable[[list[Dataset]], Any]] = {
    "plain": lambda parts: parts[0],
    "subset": lambda parts: Subset(parts[0], range(COUNT)),
    "torch's subset": lambda parts: data.Subset(parts[0], list(range(COUNT))),
    "concat": lambda parts: ConcatDataset(parts),
    "torch's concat": lambda parts: data.ConcatDataset(parts),
}
every_view = pytest.mark.parametrize("view", VIEWS)


def array_of(number: int) -> bytes:
    file = io.BytesIO()
    np.save(file, np.full(300, number, np.float32))
    return file.getvalue()


def row(i: int, missing: bool) -> dict[str, Any]:
    return {
        "label": i,
        "fixed": [float(i)] * 3,
        "raw": bytes([i]) * 5000,
        "list": [i] * (i % 3),
        "maybe": None if missing and i % 4 == 1 else [i, i],
        "struct": {"items": [i, i], "n": i},
        "array": array_of(i),
    }


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two files, one of which lacks values."""
    folder = tmp_path_factory.mktemp("in_place")
    schema = pa.schema(
        {
            "label": pa.int64(),
            "fixed": pa.list_(pa.float32(), 3),
            "raw": pa.binary(),
            "list": pa.list_(pa.int64()),
            "maybe": pa.list_(pa.int32()),
            "struct": pa.struct({"items": pa.list_(pa.int64()), "n": pa.int64()}),
            "array": pa.binary(),
        }
    )
    made = [folder / "whole.ffr", folder / "missing.ffr"]
    for number, path in enumerate(made):
        rows = [row(i, bool(number)) for i in range(COUNT)]
        ffrecord.write_table(pa.Table.from_pylist(rows, schema), path)
    return made


def add_one(value: Any) -> None:  # noqa: ANN401 - of a sample
    """Change what can be changed in place."""
    if isinstance(value, dict):
        for each in value.values():
            add_one(each)
    elif isinstance(value, torch.Tensor) or (isinstance(value, np.ndarray) and value.ndim):
        value += 1


def alone(sample: dict[str, Any]) -> dict[str, Any]:
    add_one(sample)
    return sample


def beside_a_key(sample: dict[str, Any]) -> dict[str, Any]:
    add_one(sample)
    return {**sample, "more": 1}


def of_a_copy(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda sample: change(copy.deepcopy(sample))


def plain(value: Any) -> Any:  # noqa: ANN401 - of a batch
    """Without the form of the batch: a list of values, or of None."""
    if isinstance(value, dict) and value.keys() == {"values", "valid"}:
        pairs = zip(plain(value["values"]), plain(value["valid"]), strict=True)
        return [number if known else None for number, known in pairs]
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value.tolist() if isinstance(value, torch.Tensor | np.ndarray) else value


def batches(dataset: Any, engine: str = "inline") -> list[Any]:  # noqa: ANN401 - any dataset
    half = len(ORDER) // 2
    steps = [ORDER[:half], [len(dataset) - 1 - index for index in ORDER[half:]], ORDER]
    if isinstance(dataset, ConcatDataset | data.ConcatDataset):
        steps = [[*step, *(index + COUNT for index in step if index < COUNT)] for step in steps]
    loader = DataLoader(dataset, batch_sampler=steps, **ENGINES[engine])
    found = [plain(batch) for batch in loader]
    loader.close()
    return found


def of_view(view: str, paths: list[Path], format: str, transform: Any) -> Any:  # noqa: ANN401
    decode = {"array": Npy()}
    parts = [Dataset(path, transform=transform, decode=decode) for path in paths]
    return VIEWS[view]([part.with_format(format) for part in parts])


@every_view
@pytest.mark.parametrize("change", [alone, beside_a_key])
@pytest.mark.parametrize("format", ["numpy", "torch"])
def test_a_change_in_place_is_that_of_a_copy(
    paths: list[Path], view: str, change: Callable[[Any], Any], format: str
) -> None:
    expected = batches(of_view(view, paths, format, of_a_copy(change)))

    assert batches(of_view(view, paths, format, change)) == expected
    assert {values[0] for values in expected[0]["raw"]} == {index + 1 for index in ORDER[:5]}


@every_view
@pytest.mark.parametrize("engine", ["threads", "workers"])
def test_a_change_in_place_does_not_depend_on_what_loads(
    paths: list[Path], view: str, engine: str
) -> None:
    def of() -> Any:  # noqa: ANN401 - a dataset
        return of_view(view, paths, "numpy", beside_a_key)

    assert batches(of(), engine) == batches(of())


def test_a_record_that_takes_the_place_of_a_damaged_one_is_changed_once(tmp_path: Path) -> None:
    path = tmp_path / "damaged.ffr"
    with ffrecord.Writer(path, {"label": "i64", "raw": "bytes"}) as writer:
        for i in range(40):
            writer.write({"label": i, "raw": bytes([i]) * 5000})
    content = bytearray(path.read_bytes())
    content[content.find(bytes([7]) * 100)] ^= 1
    path.write_bytes(content)
    dataset = Dataset(path, transform=alone, on_corrupt="replace")
    found = [
        (label, set(raw.tolist()))
        for batch in DataLoader(dataset, batch_sampler=Sampler(dataset, 40))
        for label, raw in zip(batch["label"].tolist(), batch["raw"], strict=True)
    ]
    assert len(found) == 40
    assert all(values == {label + 1} for label, values in found)


def test_a_batch_may_be_changed_in_place(paths: list[Path]) -> None:
    dataset = Dataset(paths[0], columns=["label", "raw"])
    for batch in DataLoader(dataset, batch_sampler=[ORDER]):
        for tensor in batch["raw"]:
            tensor += 1
        found = [set(tensor.tolist()) for tensor in batch["raw"]]
        assert found == [{label + 1} for label in batch["label"].tolist()]


def fill(sample: dict[str, Any]) -> dict[str, Any]:
    items = sample["items"]
    items[np.ma.getmaskarray(items)] = 7
    return sample


@every_view
def test_missing_items_may_be_filled_in_place(view: str, tmp_path: Path) -> None:
    rows = [[1, None, 3], [None], [4], []] * 3
    ffrecord.write_table(pa.table({"items": pa.array(rows, pa.list_(pa.int64()))}), tmp_path / "a")
    dataset = VIEWS[view]([Dataset(tmp_path / "a", transform=fill) for _ in range(2)])

    found = next(iter(DataLoader(dataset, batch_sampler=[list(range(len(dataset)))])))["items"]

    assert [each["values"].tolist() for each in found[:3]] == [[1, 7, 3], [7], [4]]
    assert all(each["valid"].all() for each in found)
