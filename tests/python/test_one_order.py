"""Goal: every view has one order, which each sampler, loader and framework keeps, or refuses.

Method: a table of views by consumers. The truth of a view is record after record; that of a mix is
computed by position from its parts.
"""

import json
import pickle
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import data
from torch.utils.data.distributed import DistributedSampler

import ffrecord
import ffrecord.grain
import ffrecord.tensorflow
import ffrecord.torch
from ffrecord._order.mixture import BY_SOURCE, Mixture
from ffrecord._read.records import Records
from ffrecord.decode import Decoder, Field
from ffrecord.torch import ConcatDataset, DataLoader, Dataset, Sampler, Subset
from loading import ENGINES, every_engine

pytestmark = pytest.mark.wrong_data

COUNTS = {"a": 300, "b": 100, "c": 200}
FIRST = {"a": 0, "b": 1000, "c": 2000}  # The labels of a file begin there.
BATCH = 20


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("order")
    for name, count in COUNTS.items():
        with ffrecord.Writer(folder / f"{name}.ffr", {"label": "i64", "t": "bytes"}) as writer:
            for label in range(FIRST[name], FIRST[name] + count):
                writer.write({"label": label, "t": np.full(4, label, "<u2").tobytes()})
    return {name: folder / f"{name}.ffr" for name in COUNTS}


def mixed(files: dict[str, Path], weights: Iterable[int] = (1, 1), seed: int = 5) -> Any:  # noqa: ANN401 - a Mix
    return ffrecord.mix([ffrecord.open(files["a"]), ffrecord.open(files["b"])], weights, seed)


def stream(mixture: Mixture, seed: int, begin: int, end: int) -> list[int]:
    """The labels at these positions of a mix of a and b."""
    laid = mixture.range(seed, begin, end)
    return [int(i) if i < 300 else int(i) - 300 + 1000 for i in laid]


VIEWS: dict[str, Callable[[dict[str, Path]], Records]] = {
    "file": lambda files: ffrecord.open(files["c"]),
    "mix": mixed,
    "mix as arrow": lambda files: mixed(files).with_format("arrow").with_format("numpy"),
    "mix of a mix": lambda files: ffrecord.mix([mixed(files), ffrecord.open(files["c"])], [2, 1]),
    "subset of a mix": lambda files: mixed(files).subset(range(10, 390)),
    "filtered mix": lambda files: mixed(files).filter(lambda indices: indices % 3 > 0),
    "mix of subsets of a mix": lambda files: ffrecord.mix(
        [mixed(files).subset(range(200)), ffrecord.open(files["c"]).subset([5, 5, 6, 7])], [3, 1]
    ),
    "concatenation": lambda files: ffrecord.concat([mixed(files), ffrecord.open(files["c"])]),
}
every_view = pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)


def truth(records: Records) -> list[int]:
    return [int(records[index]["label"]) for index in range(len(records))]


def labels(batches: Any) -> list[int]:  # noqa: ANN401 - any loader
    return [int(label) for batch in batches for label in batch["label"]]


def test_record_i_of_a_mix_is_the_ith_of_its_stream(files: dict[str, Path]) -> None:
    mix = mixed(files)

    expected = stream(Mixture([300, 100], [1, 1], 5), 0, 0, 400)

    assert truth(mix) == expected
    assert sum(label >= 1000 for label in expected) == 200
    assert [mix[-1]["label"], mix[-400]["label"]] == [expected[-1], expected[0]]
    with pytest.raises(IndexError, match="400 records"):
        mix[400]
    with pytest.raises(IndexError):
        mix.read([BY_SOURCE + 400])


def test_a_mix_keeps_its_proportions_inside_of_views(files: dict[str, Path]) -> None:
    def share(records: Records) -> float:
        of_mix = [label for label in truth(records) if label < 2000]
        return sum(label >= 1000 for label in of_mix) / len(of_mix)

    for name in ("mix", "mix as arrow", "mix of a mix", "subset of a mix", "concatenation"):
        assert share(VIEWS[name](files)) == pytest.approx(0.5, abs=0.01), name
    blocks = ffrecord.TokenBlocks(mixed(files), 4, dtype="u16", column="t")
    assert blocks.read(range(400))["tokens"][:, 0].tolist() == truth(mixed(files))


@every_view
def test_readers_of_a_view_have_its_order(
    view: Callable[[dict[str, Path]], Records], files: dict[str, Path]
) -> None:
    records = view(files)
    expected = truth(records)
    every = np.arange(len(records))

    assert [sample["label"] for sample in records] == expected
    assert records[3:40]["label"].tolist() == expected[3:40]
    assert records.read(every[::-1])["label"].tolist() == expected[::-1]
    assert labels(records.batches(7)) == expected
    assert truth(pickle.loads(pickle.dumps(records))) == expected
    assert records.with_format("arrow").read(every).to_arrow()["label"].to_pylist() == expected
    assert [sample["label"] for sample in Dataset(records)] == expected
    assert [s["label"] for s in ffrecord.grain.DataSource(records)._getitems(every)] == expected
    sized = records._sizes(every)
    assert sized.tolist() == [16] * len(records)


SAMPLERS: dict[str, Callable[[Any], Iterable[Any]]] = {
    "torch's loader, in order": lambda d: data.DataLoader(d, BATCH),
    "torch's loader, shuffled": lambda d: data.DataLoader(d, BATCH, shuffle=True),
    "torch's loader, of all indices": lambda d: data.DataLoader(
        d, BATCH, sampler=data.SubsetRandomSampler(range(len(d)))
    ),
    "torch's loaders of two ranks": lambda d: [
        batch
        for rank in range(2)
        for batch in data.DataLoader(d, BATCH, sampler=DistributedSampler(d, 2, rank))
    ],
    "torch's parts of a split": lambda d: [
        batch for part in data.random_split(d, [0.5, 0.5]) for batch in data.DataLoader(part, BATCH)
    ],
    "torch's subset": lambda d: data.DataLoader(data.Subset(d, range(len(d))), BATCH, shuffle=True),
    "torch's concatenation": lambda d: data.DataLoader(data.ConcatDataset([d]), BATCH),
    "our subset under our sampler": lambda d: DataLoader(
        (part := Subset(d, range(len(d)))), batch_sampler=Sampler(part, BATCH, last="short")
    ),
    "our concatenation under our sampler": lambda d: DataLoader(
        (one := ConcatDataset([d])), batch_sampler=Sampler(one, BATCH, last="short")
    ),
    "our sampler, in order": lambda d: DataLoader(
        d, batch_sampler=Sampler(d, BATCH, shuffle=False, last="short")
    ),
}


@every_view
@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
def test_an_epoch_of_any_sampler_has_each_record_of_the_view_once(
    view: Callable[[dict[str, Path]], Records],
    sampler: Callable[[Any], Iterable[Any]],
    files: dict[str, Path],
) -> None:
    records = view(files)

    assert Counter(labels(sampler(Dataset(records, columns=["label"])))) == Counter(truth(records))


@every_view
@every_engine
def test_our_loader_shuffles_a_view_as_it_stands(
    view: Callable[[dict[str, Path]], Records], options: dict[str, Any], files: dict[str, Path]
) -> None:
    records = view(files)
    loader = DataLoader(Dataset(records, columns=["label"]), BATCH, True, **options)

    assert Counter(labels(loader)) == Counter(truth(records))


@every_view
@every_engine
def test_our_sampler_gives_one_stream_to_every_loader_and_framework(
    view: Callable[[dict[str, Path]], Records], options: dict[str, Any], files: dict[str, Path]
) -> None:
    records = view(files)
    dataset = Dataset(records, columns=["label"])
    sampler = Sampler(dataset, BATCH, 3)
    expected = [int(records.read([i])["label"][0]) for _ in range(2) for s in sampler for i in s]

    def sampled() -> Sampler:
        return Sampler(dataset, BATCH, 3)

    ours = DataLoader(dataset, batch_sampler=sampled(), **options)
    assert labels(ours) + labels(ours) == expected
    torchs: Any = data.DataLoader(
        dataset, batch_sampler=sampled(), num_workers=options.get("num_workers", 0)
    )
    assert labels(torchs) + labels(torchs) == expected
    if not options:
        steps = ffrecord.grain.BatchSource(records, BATCH, seed=3, epochs=2, drop_last=True)
        assert labels(steps[i] for i in range(len(steps))) == expected
        numbers = ffrecord.tensorflow.Batches(records, BATCH, seed=3, epochs=2, columns=["label"])
        assert labels(numbers) == expected
    ours.close()


@every_view
def test_a_subset_of_torchs_has_the_order_and_the_state_of_ours(
    view: Callable[[dict[str, Path]], Records], files: dict[str, Path]
) -> None:
    dataset = Dataset(view(files), columns=["label"])
    chosen = range(0, len(dataset), 3)
    outer = range(5, len(chosen), 2)
    pairs = [
        (Subset(dataset, chosen), data.Subset(dataset, chosen)),
        (
            Subset(Subset(dataset, chosen), outer),
            data.Subset(data.Subset(dataset, chosen), outer),
        ),
    ]
    for ours, torchs in pairs:
        sampler, same = Sampler(ours, 8, 3, last="short"), Sampler(torchs, 8, 3, last="short")
        assert same.fingerprint == sampler.fingerprint is not None
        assert same.identity() == sampler.identity()
        expected = labels(DataLoader(ours, batch_sampler=sampler))
        assert labels(DataLoader(torchs, batch_sampler=same)) == expected
        assert Counter(expected) == Counter(truth_of(ours))
        other = Sampler(data.Subset(dataset, range(1, len(dataset), 3)), 8, 3, last="short")
        with pytest.raises(ValueError, match=r"dataset has|fingerprint"):
            other.load_state_dict(same.state_dict())


def truth_of(dataset: Dataset) -> list[int]:
    return [int(dataset[index]["label"]) for index in range(len(dataset))]


class Wrapped(data.Dataset[Any]):
    """A dataset of a user's own, which sees whole numbers and no batches."""

    def __init__(self, inner: Dataset) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:  # noqa: ANN401
        return self.inner[index]


def test_a_wrapper_that_sees_single_indices_reads_the_records_of_the_sampler(
    files: dict[str, Path],
) -> None:
    mix = mixed(files)
    sampler = Sampler(mix, BATCH, 3)
    sampler.set_weights([1, 4])
    loader = DataLoader(Wrapped(Dataset(mix, columns=["label"])), batch_sampler=sampler)

    assert labels(loader) == stream(Mixture([300, 100], [1, 4], 5), 3, 0, 400)


def test_fingerprints_tell_mixtures_apart(files: dict[str, Path]) -> None:
    a, b = ffrecord.open(files["a"]), ffrecord.open(files["b"])
    different = [
        *(ffrecord.mix([a, b], [1, 1]), ffrecord.mix([a, b], [1, 2])),
        *(ffrecord.mix([a, b], [1, 1], seed=1), ffrecord.mix([b, a], [1, 1])),
        *(ffrecord.concat([a, b]), ffrecord.mix([ffrecord.mix([a, b], [1, 1])], [1])),
    ]

    assert len({records.fingerprint for records in different}) == len(different)
    assert ffrecord.mix([a, b], [2, 4]).fingerprint == different[1].fingerprint


@pytest.mark.parametrize("change", [{"seed": 6}, {"weights": (2, 1)}])
def test_resuming_another_mixture_is_refused(files: dict[str, Path], change: Any) -> None:  # noqa: ANN401
    for given in (lambda d: {"batch_sampler": Sampler(d, BATCH)}, lambda _: {"shuffle": True}):

        def loader(given: Any = given, **how: Any) -> DataLoader:  # noqa: ANN401
            dataset = Dataset(mixed(files, **how))
            return DataLoader(dataset, **given(dataset))

        with pytest.raises(ValueError, match="fingerprint"):
            loader(**change).load_state_dict(loader().state_dict())


@every_engine
@pytest.mark.parametrize("kind", ["loader", "wrapped"])
def test_weights_that_change_in_a_running_loop_count_from_its_next_batch(
    files: dict[str, Path], options: dict[str, Any], kind: str
) -> None:
    def made(world: int = 1, rank: int = 0) -> tuple[Sampler, DataLoader]:
        mix = mixed(files)
        dataset: Any = Dataset(mix, columns=["label"])
        sampler = Sampler(mix, BATCH, 3, world_size=world, rank=rank)
        used = Wrapped(dataset) if kind == "wrapped" else dataset
        return sampler, DataLoader(used, batch_sampler=sampler, **options)

    changed = {5: [1, 3], 9: [7, 2]}
    mixture = Mixture([300, 100], [1, 1], 5)
    for step, weights in changed.items():
        mixture = mixture.change(weights, step * BATCH)
    sampler, loader = made()
    seen: list[int] = []
    state = {}
    for step, batch in enumerate(loader, 1):
        seen += batch["label"].tolist()
        if step in changed:
            sampler.set_weights(changed[step])
        if step == 12:
            state = json.loads(json.dumps(loader.state_dict()))
    assert seen == stream(mixture, 3, 0, 400)
    assert labels(loader) == stream(mixture, 3, 400, 800)
    loader.close()

    ranks = [made(2, rank) for rank in range(2)]
    for each, _ in ranks:
        each.load_state_dict(state)
    steps = zip(*(loader for _, loader in ranks), strict=True)
    rest = [label for step in steps for batch in step for label in batch["label"].tolist()]
    assert rest == stream(mixture, 3, 12 * BATCH, 400)
    assert len(json.dumps(state)) <= 350
    for _, loader in ranks:
        loader.close()


@every_engine
def test_iterations_beside_each_other_follow_one_change_each_at_its_position(
    files: dict[str, Path], options: dict[str, Any]
) -> None:
    mix = mixed(files)
    sampler = Sampler(mix, BATCH, 3)
    loader = DataLoader(Dataset(mix, columns=["label"]), batch_sampler=sampler, **options)
    ahead, behind = iter(loader), iter(loader)
    seen = labels([next(behind)])
    begun = labels(next(ahead) for _ in range(5))
    sampler.set_weights([1, 3])
    mixture = Mixture([300, 100], [1, 1], 5).change([1, 3], 5 * BATCH)

    assert begun + labels(ahead) == stream(mixture, 3, 0, 400)
    assert seen + labels(behind) == stream(mixture, 3, 0, 400)
    loader.close()


def test_an_epoch_that_starts_again_has_its_earlier_weights(files: dict[str, Path]) -> None:
    mix = mixed(files)
    sampler = Sampler(mix, 150, 3, last="pad")
    loader = DataLoader(Dataset(mix), batch_sampler=sampler)
    first = labels([next(iter(loader))])
    sampler.set_weights([1, 4])
    mixture = Mixture([300, 100], [1, 1], 5).change([1, 4], 150)
    second = labels([next(iter(loader))])  # It begins at the change, and is broken off.
    assert second == stream(mixture, 3, 150, 300)

    whole = labels(loader)  # The last step is padded from the start of the epoch.

    assert whole[:300] == first + second
    assert whole == stream(mixture, 3, 0, 400) + first[:50]
    assert labels([next(iter(loader))]) == stream(mixture, 3, 400, 550)


def test_what_a_mixture_has_forgotten_is_an_error_not_some_memory() -> None:
    mixture = Mixture([50, 50], [1, 1])
    for number in range(1, 40):
        mixture = mixture.change([1, number], number * 10)

    assert len(json.dumps(mixture.state())) < 1000
    assert mixture.range(0, 380, 400).tolist() == mixture.range(0, 300, 400).tolist()[80:]
    for ask in (lambda: mixture.range(0, 0, 5), lambda: mixture.change([1, 1], 3)):
        with pytest.raises(IndexError, match="changed too often"):
            ask()
    far = Sampler(type("Data", (list,), {"mixture": mixture})([0] * 100), 10)
    with pytest.raises(IndexError, match="changed too often"):
        labels(far)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"since": -1}, {"since": 2.5}, {"taken": [1]}, {"taken": [0, -1]}, {"weights": [0, 0]}),
        *({"earlier": [[[1, 1], 90, [0, 0]]]}, {"earlier": 7}, {"taken": None}),
    ],
)
def test_a_damaged_state_of_a_mixture_is_refused(
    files: dict[str, Path], wrong: dict[str, Any]
) -> None:
    sampler = Sampler(mixed(files), BATCH)
    state = sampler.state_dict()
    before = repr(sampler.identity()), sampler.place

    with pytest.raises(ValueError, match="mixture"):
        sampler.load_state_dict({**state, "mixture": {**state["mixture"], **wrong}})
    assert (repr(sampler.identity()), sampler.place) == before


def test_states_are_json_whatever_numbers_were_given(files: dict[str, Path]) -> None:
    mix = mixed(files, np.array([1, 3]), np.int64(4))
    one, two = np.int64(20), np.uint32(1)
    sampler = Sampler(mix, batch_size=one, seed=np.uint64(7), world_size=1, rank=0)
    sampler.set_epoch(two)  # type: ignore[arg-type]
    sampler.set_weights(np.array([3, 1]))
    blocks = Sampler(100, one, block=one, window=two)  # type: ignore[arg-type]

    for each in (sampler, blocks):
        assert json.loads(json.dumps(each.state_dict())) == each.state_dict()


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


@every_engine
@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
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


@every_engine
@pytest.mark.parametrize("order", TWIN_ORDERS.values(), ids=TWIN_ORDERS)
@pytest.mark.parametrize("twin", TWINS.values(), ids=TWINS)
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
