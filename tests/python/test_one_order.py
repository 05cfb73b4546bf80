"""Goal: every view has one order, which each sampler, loader and framework keeps, or refuses.

Method: a table of views by consumers. The truth of a view is record after record; that of a mix is
computed by position from its parts.
"""

import json
import pickle
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils import data
from torch.utils.data.distributed import DistributedSampler

import ffrecord
import ffrecord.grain
import ffrecord.tensorflow
import ffrecord.torch
from ffrecord._order.mixture import BY_SOURCE, Mixture
from ffrecord._read.records import Records
from ffrecord.torch import ConcatDataset, DataLoader, Dataset, Sampler, Subset
from loading import every_engine
from mixing import mixed, written

pytestmark = pytest.mark.wrong_data

BATCH = 20


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return written(tmp_path_factory.mktemp("order"))


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
    for order in (lambda d: {"batch_sampler": Sampler(d, BATCH)}, lambda _: {"shuffle": True}):

        def loader(order: Any = order, **how: Any) -> DataLoader:  # noqa: ANN401
            dataset = Dataset(mixed(files, **how))
            return DataLoader(dataset, **order(dataset))

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


@pytest.mark.parametrize("last", ["pad", "short"])
def test_an_epoch_remembers_every_change_of_its_weights(files: dict[str, Path], last: Any) -> None:  # noqa: ANN401
    """Its last step may be padded from its start, and it may start again, resumed, too."""
    mix = mixed(files)
    dataset = Dataset(mix, columns=["label"])
    mixture = Mixture([300, 100], [1, 1], 5)
    sampler = Sampler(mix, 7, 3, last=last)
    seen: list[int] = []
    for step, batch in enumerate(DataLoader(dataset, batch_sampler=sampler), 1):
        seen += batch["label"].tolist()
        if step < 50:
            weights = [step % 5, 1 + step % 2]
            sampler.set_weights(weights)
            mixture = mixture.change(weights, 7 * step)
        if step == 50:
            state = json.loads(json.dumps(sampler.state_dict()))
    expected = stream(mixture, 3, 0, 400)
    assert seen == expected + (expected[:6] if last == "pad" else [])

    resumed = Sampler(mix, 7, 3, last=last)
    resumed.load_state_dict(state)
    loader = DataLoader(dataset, batch_sampler=resumed)
    assert labels([next(iter(loader))]) == seen[350:357]
    assert labels(loader) == seen
    assert (
        labels(loader)
        == stream(mixture, 3, 400, 800) + stream(mixture, 3, 400, 406)[: len(seen) - 400]
    )


@pytest.mark.parametrize("size", [1, 2, 7])
def test_weights_that_change_after_each_batch_keep_their_proportions(
    files: dict[str, Path], size: int
) -> None:
    """A round of the weights is longer than a batch: the source of little weight is late in it."""
    mix = mixed(files)
    sampler = Sampler(mix, size)
    counts = [0, 0]
    for step, batch in enumerate(DataLoader(Dataset(mix), batch_sampler=sampler)):
        for label in batch["label"].tolist():
            counts[label >= 1000] += 1
        sampler.set_weights([900 - step % 3, 100])
    assert sum(counts) == 400 - 400 % size
    assert counts[1] == pytest.approx(40, abs=4)


@settings(max_examples=25)
@given(
    schedule=st.lists(
        st.lists(st.integers(0, 60), min_size=3, max_size=3).filter(any), min_size=2, max_size=5
    ),
    size=st.integers(1, 70),
)
@example(schedule=[[99, 0, 1], [99, 1, 0]], size=50)  # In step with the rounds.
@example(schedule=[[99, 0, 1], [99, 1, 0]], size=100)
@example(schedule=[[7, 3, 0], [0, 7, 7], [0, 1, 0]], size=5)  # No slot fits all three.
def test_each_source_stays_at_its_share_whatever_the_schedule(
    schedule: list[list[int]], size: int
) -> None:
    mixture = Mixture([1000, 10, 7], schedule[0])
    shares = np.zeros(3)
    for step in range(200):
        weights = schedule[step % len(schedule)]
        mixture = mixture.change(weights, step * size, known_from=step * size)
        shares += np.array(weights) / sum(weights) * size
        taken = np.array(mixture.taken_before((step + 1) * size))
        assert np.abs(taken - shares).max() < 4


def test_weights_that_are_set_back_at_once_change_nothing() -> None:
    mixture = Mixture([50, 50, 9], [90, 3, 7])
    back = mixture.change([1, 1, 1], 41).change([90, 3, 7], 41)

    assert back.range(5, 0, 400).tolist() == mixture.range(5, 0, 400).tolist()


def test_many_sources_with_weights_of_many_digits_take_little_memory() -> None:
    """A loader has it in each of its processes, for each of the last weights."""
    sources = 500
    mixture = Mixture([10] * sources, [1] * sources)
    tracemalloc.start()
    try:
        changed = mixture.change([1, *[39] * 499], 7).change([2, *[39] * 499], 9)
        assert changed.range(0, 0, 99).size == 99
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


def test_the_state_of_an_earlier_version_after_a_change_is_refused(files: dict[str, Path]) -> None:
    """Nothing in it says in which slot its weights began."""
    sampler = Sampler(mixed(files), BATCH)
    state = sampler.state_dict()
    sampler.load_state_dict(state)
    old = {"weights": [3, 1], "since": 40, "taken": [20, 20], "earlier": [[[1, 1], 0, [0, 0]]]}

    with pytest.raises(ValueError, match="of an earlier version"):
        sampler.load_state_dict({**state, "mixture": old})
    with pytest.raises(ValueError, match="of an earlier version"):
        sampler.load_state_dict({**state, "mixture": {**old, "earlier": []}})


def test_the_same_proportions_change_nothing() -> None:
    mixture = Mixture([50, 50], [1, 3]).change([2, 1], 30)

    assert mixture.change([4, 2], 41) is mixture
    assert mixture.change([4, 2], 30) is mixture
    assert mixture.change([2, 1], 7).range(0, 7, 90).tolist() != mixture.range(0, 7, 90).tolist()


def test_what_a_mixture_has_forgotten_is_an_error_not_some_memory() -> None:
    mixture = Mixture([50, 50], [1, 1])
    for number in range(1, 40):
        mixture = mixture.change([1, number], number * 10, known_from=number * 10 - 160)

    assert len(json.dumps(mixture.state())) < 1000
    assert mixture.range(0, 380, 400).tolist() == mixture.range(0, 300, 400).tolist()[80:]
    for ask in (lambda: mixture.range(0, 0, 5), lambda: mixture.change([1, 1], 3)):
        with pytest.raises(IndexError, match="in a later epoch"):
            ask()
    far = Sampler(type("Data", (list,), {"mixture": mixture})([0] * 100), 10)
    with pytest.raises(IndexError, match="in a later epoch"):
        labels(far)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"since": -1}, {"since": 2.5}, {"taken": [1]}, {"taken": [0, -1]}, {"weights": [0, 0]}),
        *({"earlier": [[[1, 1], 90, [0, 0]]]}, {"earlier": 7}, {"taken": None}),
        *({"slot": 2}, {"slot": -1}, {"slot": 0.5}, {"behind": [0]}, {"behind": [1 << 40, 0]}),
        *({"taken": [1, 0]}, {"taken": [1 << 70, 0]}, {"since": 3, "behind": [0, 0]}),
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
