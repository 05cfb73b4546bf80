"""Goal: a policy for damage acts on the view that the user made: on its records, count and limit.

Method: every policy through every view, alone and in every kind of loader, with one damaged record
inside of the view and others outside of it. What comes is compared with the records of the view.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import data

import ffrecord
from ffrecord._read.records import Records
from ffrecord.torch import ConcatDataset, DataLoader, Dataset, Sampler, Subset, collate

pytestmark = pytest.mark.wrong_data

COUNT = 40
BAD_INSIDE = 12
BAD_OUTSIDE = (13, 27)
POLICIES = ("raise", "skip", "replace")
ENGINES: dict[str, dict[str, Any]] = {
    "alone": {},
    "processes": {"mode": "workers", "num_workers": 2},
    "threads": {"mode": "threads", "num_workers": 2},
    "auto": {"num_workers": 2},
    "torch's": {"collate_fn": collate},
}
EVEN = np.arange(COUNT) % 2 == 0


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Records whose labels are their indices, some of them damaged; and good ones, 100 and up."""
    folder = tmp_path_factory.mktemp("damage")
    for name, first in (("bad", 0), ("good", 100)):
        with ffrecord.Writer(folder / f"{name}.ffr", {"label": "i64", "text": "bytes"}) as writer:
            for i in range(COUNT):
                writer.write({"label": first + i, "text": b"<%d>" % (first + i) * 20})
    content = bytearray((folder / "bad.ffr").read_bytes())
    for i in (BAD_INSIDE, *BAD_OUTSIDE):
        content[content.index(b"<%d>" % i * 20) + 1] ^= 1
    (folder / "bad.ffr").write_bytes(content)
    return folder / "bad.ffr", folder / "good.ffr"


# Of each view: the dataset, the labels of its records in their order, and the damaged indices.
_View = tuple[Any, list[int], set[int]]
_EVEN_LABELS = np.flatnonzero(EVEN).tolist()
_EVERY_FOURTH = np.flatnonzero(np.arange(COUNT) % 4 == 0).tolist()


def whole(bad: Records, good: Records, policy: Any) -> _View:  # noqa: ANN401
    return Dataset(bad, on_corrupt=policy), list(range(COUNT)), {BAD_INSIDE, *BAD_OUTSIDE}


def view_of_records(bad: Records, good: Records, policy: Any) -> _View:  # noqa: ANN401
    return Dataset(bad.filter(EVEN), on_corrupt=policy), _EVEN_LABELS, {BAD_INSIDE // 2}


def mask_of_a_mask(bad: Records, good: Records, policy: Any) -> _View:  # noqa: ANN401
    view = bad.filter(EVEN).filter(np.arange(COUNT // 2) % 2 == 0)
    return Dataset(view, on_corrupt=policy), _EVERY_FOURTH, {BAD_INSIDE // 4}


def subset(bad: Records, good: Records, policy: Any) -> _View:  # noqa: ANN401
    made = Subset(Dataset(bad, on_corrupt=policy), _EVEN_LABELS)
    return made, _EVEN_LABELS, {BAD_INSIDE // 2}


def subset_of_a_subset(bad: Records, good: Records, policy: Any) -> _View:  # noqa: ANN401
    made = Subset(Subset(Dataset(bad, on_corrupt=policy), _EVEN_LABELS), slice(0, None, 2))
    return made, _EVERY_FOURTH, {BAD_INSIDE // 4}


def concat_of_records(bad: Records, good: Records, policy: Any) -> _View:  # noqa: ANN401
    made = Dataset(ffrecord.concat([good, bad.filter(EVEN)]), on_corrupt=policy)
    return made, [*range(100, 100 + COUNT), *_EVEN_LABELS], {COUNT + BAD_INSIDE // 2}


def concat_of_datasets(bad: Records, good: Records, policy: Any) -> _View:  # noqa: ANN401
    even = Subset(Dataset(bad, on_corrupt=policy), _EVEN_LABELS)
    labels = [*range(100, 100 + COUNT), *_EVEN_LABELS]
    return ConcatDataset([Dataset(good), even]), labels, {COUNT + BAD_INSIDE // 2}


def subset_of_a_concat(bad: Records, good: Records, policy: Any) -> _View:  # noqa: ANN401
    both = ConcatDataset([Dataset(bad, on_corrupt=policy), Dataset(good)])
    made = Subset(both, [*_EVEN_LABELS, COUNT, COUNT + 1])
    return made, [*_EVEN_LABELS, 100, 101], {BAD_INSIDE // 2}


def subset_of_torchs(bad: Records, good: Records, policy: Any) -> _View:  # noqa: ANN401
    made: Any = data.Subset(Dataset(bad, on_corrupt=policy), _EVEN_LABELS)
    return made, _EVEN_LABELS, {BAD_INSIDE // 2}


def subset_of_a_subset_of_torchs(bad: Records, good: Records, policy: Any) -> _View:  # noqa: ANN401
    inner: Any = data.Subset(Dataset(bad, on_corrupt=policy), _EVEN_LABELS)
    return data.Subset(inner, range(0, COUNT // 2, 2)), _EVERY_FOURTH, {BAD_INSIDE // 4}


def mixture(bad: Records, good: Records, policy: Any) -> _View:  # noqa: ANN401
    mixed = ffrecord.mix([bad.filter(EVEN), good], [1, 2])
    # Which record is at each place of the stream is the subject of other tests.
    laid = mixed.mixture.at(0, np.arange(len(mixed))).tolist()
    labels = [*_EVEN_LABELS, *range(100, 100 + COUNT)]
    damaged = {place for place, at in enumerate(laid) if at == BAD_INSIDE // 2}
    return Dataset(mixed, on_corrupt=policy), [labels[at] for at in laid], damaged


View = Callable[..., _View]
VIEWS: list[View] = [
    whole,
    view_of_records,
    mask_of_a_mask,
    subset,
    subset_of_a_subset,
    concat_of_records,
    concat_of_datasets,
    subset_of_a_concat,
    subset_of_torchs,
    subset_of_a_subset_of_torchs,
    mixture,
]
every_view = pytest.mark.parametrize("view", VIEWS)
every_engine = pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)


def readers(paths: tuple[Path, Path]) -> list[Records]:
    return [ffrecord.open(path, max_corrupt=0.5) for path in paths]


def loaded(loader: Any) -> list[int]:  # noqa: ANN401 - any loader
    try:
        return [label for batch in loader for label in batch["label"].tolist()]
    finally:
        getattr(loader, "close", int)()


@pytest.mark.wrong_data
@every_view
@every_engine
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("size", [1, 6])
def test_only_records_of_the_view_come(
    paths: tuple[Path, Path], view: View, engine: dict[str, Any], policy: str, size: int
) -> None:
    dataset, labels, damaged = view(*readers(paths), policy)
    good = [label for i, label in enumerate(labels) if i not in damaged]
    kind: Any = data.DataLoader if "collate_fn" in engine else DataLoader
    loader = kind(dataset, batch_size=size, shuffle=True, **engine)

    if policy == "raise":
        with pytest.raises(ffrecord.CorruptionError, match=r"bad\.ffr"):
            loaded(loader)
        return
    found = loaded(loader)

    assert set(found) <= set(good)
    assert set(found) == set(good) or view is mixture
    # A step of one record is not empty, so a place there has another record.
    replaced = policy == "replace" or size == 1
    if view is not mixture:
        assert len(found) == (len(labels) if replaced else len(good))
    if hasattr(dataset, "stats"):
        assert set(dataset.stats()["damaged"]) <= damaged
    if kind is DataLoader and view is not mixture:
        assert loader.stats()["damaged"] == len(damaged)


@pytest.mark.wrong_data
@every_view
@every_engine
@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_a_sampler_finds_replacements_in_its_order(
    paths: tuple[Path, Path], view: View, engine: dict[str, Any], policy: str
) -> None:
    dataset, labels, damaged = view(*readers(paths), policy)
    sampler = Sampler(dataset, 6, seed=3, last="short")
    asked = [list(batch) for batch in Sampler(dataset, 6, seed=3, last="short")]
    stream = [i for batch in asked for i in batch]
    wanted: list[list[int]] = []
    # A mixture's stream names records by source, and its next epoch, where replacements at the end
    # come from, is another.
    for number, batch in enumerate([] if view is mixture else asked):
        wanted.append([])
        for row, index in enumerate(batch):
            at = number * 6 + row
            if index in damaged and policy == "skip":
                continue
            after = stream[at:] + stream[:at]
            wanted[-1].append(labels[next(i for i in after if i not in damaged)])
    kind: Any = data.DataLoader if "collate_fn" in engine else DataLoader
    loader = kind(dataset, batch_sampler=sampler, **engine)

    found = [batch["label"].tolist() for batch in loader]

    if view is not mixture:
        assert found == wanted
    assert all(set(batch) <= set(labels) for batch in found)
    getattr(loader, "close", int)()


@every_view
def test_one_record_is_raised_or_replaced_within_the_view(
    paths: tuple[Path, Path], view: View
) -> None:
    for policy in POLICIES:
        dataset, labels, damaged = view(*readers(paths), policy)
        index = min(damaged)
        if policy != "replace":
            with pytest.raises(ffrecord.CorruptionError, match=r"bad\.ffr"):
                dataset[index]
            continue
        following = next(i for i in range(index + 1, len(labels)) if i not in damaged)
        assert dataset[index]["label"] == labels[following]
        assert dataset[index - len(labels)]["label"] == labels[following]


def _thirds_of(dataset: Any) -> Any:  # noqa: ANN401 - a dataset of ours or of torch's
    return data.Subset(dataset, range(0, COUNT, 3))


# Records of torch's views, asked for in each way, where 12 is damaged, and 15 comes after it.
ONE_BY_ONE: dict[str, Callable[[Any], Any]] = {
    "one": lambda whole: _thirds_of(whole)[4]["label"],
    "one of NumPy": lambda whole: _thirds_of(whole)[np.int64(4)]["label"],
    "from the end": lambda whole: _thirds_of(whole)[4 - 14]["label"],
    "a list": lambda whole: collate(_thirds_of(whole)[[0, 4]])["label"][1],
    "a slice": lambda whole: collate(_thirds_of(whole)[3:5])["label"][1],
    "several": lambda whole: collate(_thirds_of(whole).__getitems__([0, 4]))["label"][1],
    "a subset of a subset": lambda whole: data.Subset(_thirds_of(whole), [0, 4, 5])[1]["label"],
    "joined": lambda whole: data.ConcatDataset([_thirds_of(whole)] * 2)[18]["label"],
    "of joined": lambda whole: _thirds_of(data.ConcatDataset([whole, whole]))[4]["label"],
    "several of joined": lambda whole: _thirds_of(data.ConcatDataset([whole])).__getitems__([0, 4])[
        1
    ]["label"],
    "a subset of a subset of joined": lambda whole: data.Subset(
        data.Subset(data.ConcatDataset([whole]), range(COUNT)), range(0, COUNT, 3)
    ).__getitems__([0, 4])[1]["label"],
    "a subset of joined subsets": lambda whole: data.Subset(
        data.ConcatDataset([_thirds_of(whole)] * 2), range(28)
    ).__getitems__([4, 18])[1]["label"],
    "torch's loader of joined": lambda whole: next(
        iter(data.DataLoader(_thirds_of(data.ConcatDataset([whole])), 1, sampler=[4]))
    )["label"],
}


@pytest.mark.parametrize("way", ONE_BY_ONE.values(), ids=ONE_BY_ONE)
def test_subsets_of_torchs_replace_from_the_subset_however_they_are_asked(
    paths: tuple[Path, Path], way: Callable[[Any], Any]
) -> None:
    whole = Dataset(readers(paths)[0], on_corrupt="replace")

    assert int(way(whole)) == 15


@every_view
def test_iterating_over_a_view_skips_what_is_damaged(paths: tuple[Path, Path], view: View) -> None:
    dataset, labels, damaged = view(*readers(paths), "skip")
    if view is mixture or isinstance(dataset, data.Subset):
        return  # Those iterate a stream, and record by record.

    found = [int(sample["label"]) for sample in dataset]

    assert found == [label for i, label in enumerate(labels) if i not in damaged]


def spoiled(folder: Path, bad: range, count: int) -> Path:
    path = folder / f"spoiled{bad.stop}.ffr"
    with ffrecord.Writer(path, {"label": "i64", "text": "bytes"}) as writer:
        for i in range(count):
            writer.write({"label": i, "text": b"<%d>" % i * 20})
    content = bytearray(path.read_bytes())
    for i in bad:
        content[content.index(b"<%d>" % i * 20) + 1] ^= 1
    path.write_bytes(content)
    return path


def test_each_view_has_its_own_count_and_limit(tmp_path: Path) -> None:
    # 12 of the first 100 records, which is too many for 100 but not for 1200.
    shared = Dataset(spoiled(tmp_path, range(12), 1200), on_corrupt="skip", max_corrupt=0.01)
    first, rest = Subset(shared, range(100)), Subset(shared, range(100, 1200))

    with pytest.raises(ffrecord.CorruptionError, match="12 damaged records, more than the 10"):
        first[list(range(100))]
    assert len(collate(rest[list(range(1100))])["label"]) == 1100
    assert rest.stats()["damaged"] == {}
    assert len(collate(shared[list(range(1200))])["label"]) == 1188
    assert shared.stats()["damaged_records"] == 12


def test_damage_of_one_view_does_not_end_the_other(tmp_path: Path) -> None:
    shared = Dataset(spoiled(tmp_path, range(20), 100), on_corrupt="skip", max_corrupt=0.1)
    halves = [Subset(shared, range(10, 60)), Subset(shared, [*range(10), *range(60, 100)])]

    assert [len(collate(half[list(range(50))])["label"]) for half in halves] == [40, 40]
    assert [half.stats()["damaged_records"] for half in halves] == [10, 10]
    with pytest.raises(ffrecord.CorruptionError, match="20 damaged records, more than the 10"):
        shared[[0, 99]]  # Together they are too many.


def test_a_view_without_a_good_record_says_so(tmp_path: Path) -> None:
    shared = Dataset(spoiled(tmp_path, range(5), 20), on_corrupt="replace")
    part = Subset(shared, range(5))

    for dataset in (part, ConcatDataset([part, part])):
        with pytest.raises(ffrecord.CorruptionError, match=r"none of the .* records of .* is good"):
            dataset[[0, 1]]


@pytest.mark.parametrize("key", [[True, False], np.array([1.5]), [0.0], np.ones(3, np.bool_)])
def test_masks_and_fractions_are_no_indices(paths: tuple[Path, Path], key: object) -> None:
    dataset = Dataset(paths[0])
    for each in (dataset, Subset(dataset, range(3)), ConcatDataset([dataset, dataset])):
        with pytest.raises(TypeError, match="they must be integers"):
            each[key]  # type: ignore[index]
    with pytest.raises(TypeError, match="expected integers"):
        Subset(dataset, key)  # type: ignore[arg-type]


def test_fingerprints_tell_views_apart(paths: tuple[Path, Path]) -> None:
    dataset = Dataset(paths[0])
    views = [
        dataset,
        Subset(dataset, range(20)),
        Subset(dataset, range(20, 40)),
        Subset(dataset, [0, 2, 1]),
        Subset(dataset, [0, 1, 2]),
        ConcatDataset([dataset, dataset]),
    ]
    assert len({view.fingerprint for view in views}) == len(views)


# Orders that choose from the records; the record after the damaged one is left out.
CHOSEN = [i for i in range(COUNT) if i not in (*BAD_OUTSIDE, BAD_INSIDE + 2) and i < 30]


class Chosen(data.Sampler[int]):
    """A sampler of a program, which nobody knows."""

    def __init__(self, chosen: list[int]) -> None:
        self.chosen = chosen

    def __iter__(self) -> Iterator[int]:
        return iter(self.chosen)

    def __len__(self) -> int:
        return len(self.chosen)


SAMPLERS: dict[str, Callable[[list[int], int, Any], Any]] = {
    "a list": lambda chosen, _, __: chosen,
    "of the program": lambda chosen, _, __: Chosen(chosen),
    "some": lambda chosen, _, generator: data.SubsetRandomSampler(chosen, generator=generator),
    "by weight": lambda chosen, count, generator: data.WeightedRandomSampler(
        [float(i in chosen) for i in range(count)], 4 * count, generator=generator
    ),
}
SPLIT_VIEWS: dict[str, Callable[[Any], Any]] = {
    "dataset": lambda dataset: dataset,
    "subset": lambda dataset: Subset(dataset, range(COUNT)),
    "torch's subset": lambda dataset: data.Subset(dataset, range(COUNT)),
    "torch's subset of its concatenation": lambda dataset: data.Subset(
        data.ConcatDataset([dataset]), range(COUNT)
    ),
}


@pytest.mark.parametrize("engine", ["alone", "processes", "auto"])
@pytest.mark.parametrize("policy", ["skip", "replace"])
@pytest.mark.parametrize("size", [1, 5, None])
@pytest.mark.parametrize(
    ("sampler", "own"),
    [("some", False), ("by weight", True), ("a list", False), ("of the program", False)],
)
@pytest.mark.parametrize("view", SPLIT_VIEWS)
def test_what_a_sampler_does_not_choose_takes_no_damaged_ones_place(
    paths: tuple[Path, Path],
    view: str,
    sampler: str,
    own: bool,
    size: int | None,
    policy: Any,  # noqa: ANN401
    engine: str,
) -> None:
    """A split by a sampler: what is left out is for validation."""
    if policy == "skip" and (size is None or "concatenation" in view):
        pytest.skip("a sample that is asked for alone cannot be skipped")
    dataset = SPLIT_VIEWS[view](Dataset(paths[0], on_corrupt=policy, columns=["label"]))
    generator = torch.Generator().manual_seed(3) if own else None
    torch.manual_seed(4)
    # The records behind the damaged one, by index, are damaged or left out, too.
    order = SAMPLERS[sampler]([i for i in CHOSEN if i != BAD_INSIDE + 1], COUNT, generator)
    loader = DataLoader(dataset, size, sampler=order, **ENGINES[engine])

    for _ in range(2):
        seen = [int(label) for batch in loader for label in np.atleast_1d(batch["label"])]
        assert set(seen) <= set(CHOSEN) - {BAD_INSIDE}
        whole = policy == "replace" or size == 1
        assert len(seen) == len(order) if whole else len(seen) < len(order)
    loader.close()


STEPS: dict[str, Callable[[list[int]], dict[str, Any]]] = {
    "lists": lambda chosen: {"batch_sampler": [chosen[:5], chosen[5:10], chosen[10:]]},
    "of the program": lambda chosen: {
        "batch_sampler": data.BatchSampler(Chosen(chosen), 5, drop_last=False)
    },
    "the first ones": lambda chosen: {
        "batch_size": 5,
        "sampler": data.RandomSampler(range(BAD_INSIDE + 1)),
    },
    "the first ones in order": lambda chosen: {
        "batch_size": 5,
        "sampler": data.SequentialSampler(range(BAD_INSIDE + 1)),
    },
}


@pytest.mark.parametrize("engine", ["alone", "processes"])
@pytest.mark.parametrize("steps", STEPS)
def test_what_no_step_asks_for_takes_no_damaged_ones_place(
    paths: tuple[Path, Path], steps: str, engine: str
) -> None:
    dataset = Dataset(paths[0], on_corrupt="replace", columns=["label"])
    loader = DataLoader(dataset, **STEPS[steps](CHOSEN), **ENGINES[engine])
    asked = range(BAD_INSIDE + 1) if "first" in steps else CHOSEN

    for _ in range(3):
        seen = [int(label) for batch in loader for label in batch["label"]]
        assert set(seen) <= set(asked) - {BAD_INSIDE}
        assert len(seen) == len(asked)
    loader.close()
