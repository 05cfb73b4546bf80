"""Goal: what a batch of joined datasets is depends on its columns, not on who owns its records.

Method: columns of every kind, some values missing, through concatenations and subsets of them, with
and without transforms that change nothing, in every kind of loader. The truth is the batch of one
dataset over all records.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from torch.utils import data

import ffrecord
from ffrecord.torch import ConcatDataset, DataLoader, Dataset, Sampler, Subset
from loading import every_engine

pytestmark = pytest.mark.wrong_data

COUNT = 12
COLUMNS = {
    "number": pa.array(range(COUNT)),
    "missing": pa.array([None if i in (1, 8) else i for i in range(COUNT)]),
    "text": pa.array([None if i == 2 else f"t{i}" for i in range(COUNT)]),
    "bytes": pa.array([b"%02d" % i for i in range(COUNT)]),
    "tags": pa.array([["a"] * (i % 3) for i in range(COUNT)]),
    "pairs": pa.array([[i, i + 1] for i in range(COUNT)]),
    "struct": pa.array([None if i == 3 else {"w": i, "t": "x"} for i in range(COUNT)]),
    "turns": pa.array([[{"role": "u", "n": i}] * (i % 2) for i in range(COUNT)]),
}


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("joined")
    table = pa.table(COLUMNS)
    found = [folder / "a.ffr", folder / "b.ffr"]
    ffrecord.write_table(table[:7], found[0])
    ffrecord.write_table(table[7:], found[1])
    return found


def same(sample: Any) -> Any:  # noqa: ANN401 - any sample
    return sample


def renewed(sample: dict[str, Any]) -> dict[str, Any]:
    return dict(sample)


TRANSFORMS: dict[str, tuple[Any, Any]] = {
    "none": (None, None),
    "identity": (same, same),
    "a new dict": (renewed, renewed),
    "one of two": (None, same),
}
EVERY_OTHER = range(0, COUNT, 2)
VIEWS: dict[str, tuple[Callable[[list[Dataset]], Any], list[int]]] = {
    "concatenation": (ConcatDataset, list(range(COUNT))),
    "sum": (lambda parts: parts[0] + parts[1], list(range(COUNT))),
    "subset of a concatenation": (
        lambda parts: Subset(ConcatDataset(parts), EVERY_OTHER),
        list(EVERY_OTHER),
    ),
    "torch's subset of a concatenation": (
        lambda parts: data.Subset(ConcatDataset(parts), EVERY_OTHER),
        list(EVERY_OTHER),
    ),
    "concatenation of subsets": (
        lambda parts: ConcatDataset([Subset(parts[0], [6, 0]), Subset(parts[1], [4])]),
        [6, 0, 11],
    ),
    "concatenation of concatenations": (
        lambda parts: ConcatDataset([ConcatDataset(parts), parts[0]]),
        [*range(COUNT), *range(7)],
    ),
}


def check_same(found: Any, expected: Any) -> None:  # noqa: ANN401 - any batch
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            check_same(found[key], value)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            check_same(one, other)
    elif isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype
        assert found.tolist() == expected.tolist()
    else:
        assert found == expected


@every_engine
@pytest.mark.parametrize(("view", "indices"), VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("transforms", TRANSFORMS.values(), ids=TRANSFORMS)
def test_joined_samples_are_collated_as_those_of_one_dataset(
    transforms: tuple[Any, Any],
    view: Callable[[list[Dataset]], Any],
    indices: list[int],
    options: dict[str, Any],
    paths: list[Path],
) -> None:
    parts = [Dataset(path, transform=t) for path, t in zip(paths, transforms, strict=True)]
    joined = view(parts)
    whole = Subset(Dataset(paths), indices)

    for shuffle in (False, True):
        found = DataLoader(
            joined, batch_sampler=Sampler(joined, 4, shuffle=shuffle, last="short"), **options
        )
        expected = DataLoader(whole, batch_sampler=Sampler(whole, 4, shuffle=shuffle, last="short"))
        check_same(list(found), list(expected))
        found.close()


@pytest.mark.parametrize("format", ["bytes", "torch", "arrow"])
def test_formats_are_kept(format: str, paths: list[Path]) -> None:
    joined = ConcatDataset(list(map(Dataset, paths))).with_format(format)
    whole = Dataset(paths).with_format(format)

    found, expected = ([*DataLoader(made, 5)] for made in (joined, whole))

    if format == "arrow":
        assert [table.to_pydict() for table in found] == [t.to_pydict() for t in expected]
    else:
        check_same(found, expected)


def test_a_value_that_one_transform_changes_is_collated_as_it_stands(paths: list[Path]) -> None:
    def doubled(sample: dict[str, Any]) -> dict[str, Any]:
        return {**sample, "number": sample["number"] * 2.0}

    joined = ConcatDataset([Dataset(path, transform=doubled) for path in paths])
    batch = next(iter(DataLoader(joined, COUNT)))

    assert batch["number"].tolist() == [2.0 * i for i in range(COUNT)]
    assert batch["missing"]["valid"].tolist() == [i not in (1, 8) for i in range(COUNT)]


def test_datasets_of_other_columns_are_joined_sample_by_sample(
    paths: list[Path], tmp_path: Path
) -> None:
    with ffrecord.Writer(tmp_path / "other.ffr", {"number": "f32"}) as writer:
        writer.write({"number": 0.5})
    joined = ConcatDataset([Dataset(paths[0], columns=["number"]), Dataset(tmp_path / "other.ffr")])

    assert [float(sample["number"]) for sample in joined] == [0, 1, 2, 3, 4, 5, 6, 0.5]


def required(kind: Any) -> Any:  # noqa: ANN401 - a type of pyarrow's
    """The type, in which nothing may be null."""
    if pa.types.is_list(kind):
        return pa.list_(pa.field("item", required(kind.value_type), nullable=False))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, required(f.type), nullable=False) for f in kind])
    return kind


@pytest.mark.parametrize("concat", [ConcatDataset, data.ConcatDataset])
@pytest.mark.parametrize("transforms", TRANSFORMS.values(), ids=TRANSFORMS)
def test_a_part_whose_columns_may_not_be_null_is_joined_to_one_whose_may(
    concat: Callable[[list[Any]], Any],
    transforms: tuple[Any, Any],
    paths: list[Path],
    tmp_path: Path,
) -> None:
    """Its batches have no marks of nulls, and those of both parts need them."""
    table = pa.table(COLUMNS)[9:]
    schema = pa.schema([pa.field(f.name, required(f.type), nullable=False) for f in table.schema])
    full = tmp_path / "full.ffr"
    ffrecord.write_table(pa.Table.from_pylist(table.to_pylist(), schema), full)
    whole = Subset(Dataset(paths), [*range(7), *range(9, COUNT)])
    one, other = [
        Dataset(path, transform=t) for path, t in zip((paths[0], full), transforms, strict=True)
    ]

    for parts, indices in (
        ([one, other], whole),
        ([other, one], Subset(whole, [*range(7, 10), *range(7)])),
    ):
        joined = concat(parts)
        for seed in (0, 3):
            found = DataLoader(joined, batch_sampler=Sampler(joined, 3, seed, last="short"))
            expected = DataLoader(indices, batch_sampler=Sampler(indices, 3, seed, last="short"))
            check_same(list(found), list(expected))


@pytest.mark.parametrize(
    "rows", [[[1, None], [3, 4]], [[1, None, 3], [4]]], ids=["equal", "ragged"]
)
def test_a_list_with_nulls_keeps_them_under_another_name(rows: list[Any], tmp_path: Path) -> None:
    """A sample has it as a masked array, whose numbers under the mask are none."""
    ffrecord.write_table(pa.table({"given": rows}), tmp_path / "nulls.ffr")
    dataset = Dataset(tmp_path / "nulls.ffr", transform=lambda s: {**s, "named": s["given"]})

    batch = next(iter(DataLoader(dataset, 2)))

    check_same(batch["named"], batch["given"])
    assert [one["valid"].tolist() for one in batch["named"]] == [
        [value is not None for value in row] for row in rows
    ]
