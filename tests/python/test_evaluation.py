"""Goal: an evaluation sees the records in their order, each once, whatever ranks and loader it has.

Method: samplers of all ranks side by side; loaders of each engine over a file, whose batches are
compared with those of positions.
"""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ffrecord
from ffrecord._order.epoch_order import EpochOrder
from ffrecord.torch import DataLoader, Dataset, Sampler

ENGINES: list[dict[str, Any]] = [
    {},
    {"mode": "workers", "num_workers": 2},
    {"mode": "threads", "num_workers": 2},
    {"num_workers": 2},
]


def shares(count: int, batch: int, world: int, **options: Any) -> list[list[list[int]]]:  # noqa: ANN401
    """The batches of each rank."""
    samplers = [Sampler(count, batch, rank=r, world_size=world, **options) for r in range(world)]
    return [[list(batch) for batch in sampler] for sampler in samplers]


@pytest.mark.parametrize("world", [1, 2, 3, 6])
def test_without_shuffle_the_ranks_together_read_the_file_in_its_order(world: int) -> None:
    for _ in range(2):  # Every epoch.
        by_rank = shares(60, 12, world, shuffle=False, seed=7)
        steps = [[i for share in step for i in share] for step in zip(*by_rank, strict=True)]
        assert steps == [list(range(at, at + 12)) for at in range(0, 60, 12)]


def test_a_state_in_file_order_goes_on_at_another_world_size() -> None:
    first = Sampler(50, 10, shuffle=False, rank=0, world_size=1)
    seen = [i for batch in islice(iter(first), 2) for i in batch]
    state = json.loads(json.dumps(first.state_dict()))
    resumed = [Sampler(50, 10, rank=r, world_size=2) for r in range(2)]
    for sampler in resumed:
        sampler.load_state_dict(state)  # The kind of order is the state's.

    for step in zip(*resumed, strict=True):
        seen += [i for share in step for i in share]

    assert seen == list(range(50))
    assert not resumed[0].shuffle
    assert resumed[0].identity() != Sampler(50, 10, rank=0, world_size=2).identity()


@given(
    count=st.integers(1, 120),
    batch=st.integers(1, 20),
    world=st.integers(1, 8),
    shuffle=st.booleans(),
)
def test_exact_epochs_have_each_record_once_and_as_many_steps_on_each_rank(
    count: int, batch: int, world: int, shuffle: bool
) -> None:
    batch = max(batch, world)
    options: dict[str, Any] = {"last": "exact", "shuffle": shuffle, "uneven": True}
    if count < world:
        with pytest.raises(ValueError, match=f"{count} records are left .* for {world} ranks"):
            shares(count, batch, world, **options)
        return

    by_rank = shares(count, batch, world, **options)

    steps = [[i for share in step for i in share] for step in zip(*by_rank, strict=True)]
    order = EpochOrder(0, 0, count, shuffle=shuffle)
    assert [i for step in steps for i in step] == order.range(0, count).tolist()
    assert all(share for rank in by_rank for share in rank)
    assert max(len(step) for step in steps) < batch + world
    assert len(Sampler(count, batch, rank=0, world_size=world, **options)) == len(steps)


def test_an_exact_epoch_is_broken_off_and_resumed_exactly() -> None:
    for world, other in ((3, 2), (4, 1), (1, 4)):
        samplers = [Sampler(41, 12, last="exact", rank=r, world_size=world) for r in range(world)]
        begun = [islice(iter(sampler), 2) for sampler in samplers]
        seen = [i for step in zip(*begun, strict=True) for share in step for i in share]
        resumed = [Sampler(41, 12, last="exact", rank=r, world_size=other) for r in range(other)]
        for sampler in resumed:
            sampler.load_state_dict(samplers[0].state_dict())

        for step in zip(*resumed, strict=True):
            seen += [i for share in step for i in share]

        assert seen == EpochOrder(0, 0, 41).range(0, 41).tolist()
        assert resumed[0].epoch == 1


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("last", ["drop", "pad", "short", "exact"])
@pytest.mark.parametrize("count", [36, 37, 38, 41, 47])
def test_a_sampler_tells_how_much_of_the_last_step_is_no_padding(
    count: int, last: str, world: int
) -> None:
    by_rank = shares(count, 12, world, shuffle=False, last=last)
    end = [i for share in by_rank for i in share[-1]]
    once = list(dict.fromkeys(end))
    before = {i for share in by_rank for step in share[:-1] for i in step}

    unpadded = Sampler(count, 12, last=last, rank=0, world_size=world).unpadded

    assert end[: unpadded or None] == [i for i in once if i not in before]
    is_smaller = count % 12 >= (world if last == "exact" else 1) and last != "drop"
    assert (unpadded > 0) == is_smaller  # As frameworks count that repeat a loss for each record.


def test_a_state_before_too_few_records_for_the_ranks_is_refused() -> None:
    one = Sampler(41, 8, last="exact", rank=0, world_size=1)
    list(islice(iter(one), 5))
    state = one.state_dict()  # One record is left.

    with pytest.raises(ValueError, match="1 records are left of the epoch, for 2 ranks"):
        Sampler(41, 8, last="exact", rank=0, world_size=2).load_state_dict(state)


def test_ranks_that_are_known_late_are_checked_when_an_epoch_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exact, dropping = Sampler(3, 4, last="exact"), Sampler(7, batch_size=4)
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "1")

    with pytest.raises(ValueError, match="3 records are left of the epoch, for 4 ranks"):
        next(iter(exact))
    with pytest.raises(ValueError, match="7 records are fewer than global_batch 16"):
        next(iter(dropping))


def test_batch_size_is_that_of_each_rank_and_drop_last_is_torchs() -> None:
    two = [Sampler(50, batch_size=8, rank=r, world_size=2, shuffle=False) for r in range(2)]

    assert two[0].global_batch == 16
    assert [list(map(len, sampler)) for sampler in two] == [[8] * 3, [8] * 3]
    assert next(iter(two[1])) == list(range(8, 16))
    kept = Sampler(50, batch_size=8, drop_last=False, rank=0, world_size=2)
    assert [len(batch) for batch in kept] == [8, 8, 8, 1]
    assert len(Sampler(50, batch_size=8, drop_last=True, rank=0, world_size=2)) == 3
    grouped = Sampler(50, batch_size=8, rank=0, world_size=4, group_size=2)
    assert grouped.global_batch == 16


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "one of global_batch.*batch_size"),
        ({"global_batch": 4, "batch_size": 4}, "one of global_batch.*batch_size"),
        ({"batch_size": 0}, "batch_size is 0; it must be positive"),
        ({"batch_size": 4, "last": "pad", "drop_last": True}, "give one of them"),
        ({"batch_size": 4, "shuffle": False, "block": 2, "window": 2}, "no block"),
        ({"batch_size": 4, "group_size": 2, "world_size": 3}, "do not divide a world of 3"),
    ],
)
def test_contradictions_name_the_remedy(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sampler(40, rank=0, **options)


def test_a_mixture_in_its_order_is_what_iterating_gives(dataset: Dataset) -> None:
    mixed = Dataset(ffrecord.mix([dataset.source, dataset.source], [1, 2]))
    loader = DataLoader(mixed, batch_sampler=Sampler(mixed, 10, shuffle=False, last="short"))

    for _ in range(2):
        labels = [label for batch in loader for label in batch["label"].tolist()]
        assert labels == [sample["label"] for sample in mixed]


# --- Loaders ---


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    path = tmp_path_factory.mktemp("evaluation") / "data.ffr"
    with ffrecord.Writer(path, {"label": "i64"}) as writer:
        for i in range(41):
            writer.write({"label": i})
    return Dataset(path)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("world", [1, 3])  # With three ranks two records are too few for a step.
def test_each_loader_delivers_each_record_once_epoch_after_epoch(
    dataset: Dataset, engine: dict[str, Any], world: int
) -> None:
    loaders = [
        DataLoader(
            dataset,
            batch_sampler=Sampler(
                dataset, 39 // 3, shuffle=False, last="exact", uneven=True, rank=r, world_size=world
            ),
            **engine,
        )
        for r in range(world)
    ]

    for _ in range(2):
        by_rank = [[batch["label"] for batch in loader] for loader in loaders]
        steps = [torch.cat(step) for step in zip(*by_rank, strict=True)]
        assert torch.cat(steps).tolist() == list(range(41))
        assert len(steps) == len(loaders[0])
    for loader in loaders:
        assert loader.state_dict()["epoch"] == 2
        loader.close()


def test_native_threads_make_the_batches_in_file_order(dataset: Dataset) -> None:
    sampler = Sampler(dataset, 10, shuffle=False)
    loader = DataLoader(dataset, batch_sampler=sampler, mode="threads", num_workers=2)

    found = [batch["label"].tolist() for batch in loader]

    assert found == [list(range(at, at + 10)) for at in range(0, 40, 10)]
    assert loader.stats()["stages"]["handover"] > 0
    loader.close()


def test_a_loader_in_file_order_resumes(dataset: Dataset) -> None:
    for engine in ENGINES:
        first = DataLoader(dataset, batch_sampler=Sampler(dataset, 10, shuffle=False), **engine)
        seen = [i for batch in islice(first, 2) for i in batch["label"].tolist()]
        again = DataLoader(dataset, batch_sampler=Sampler(dataset, 5, shuffle=False), **engine)
        again.load_state_dict(first.state_dict())
        assert seen + [i for batch in again for i in batch["label"].tolist()] == list(range(40))
        first.close()
        again.close()


def test_a_progress_bar_knows_where_a_resumed_epoch_begins(dataset: Dataset) -> None:
    first = Sampler(dataset, 10)
    assert (first.step, len(first)) == (0, 4)
    list(islice(iter(first), 3))
    for size, step, left in ((10, 3, 1), (5, 6, 2)):
        resumed = Sampler(dataset, size)
        resumed.load_state_dict(first.state_dict())
        assert (resumed.step, len(list(resumed))) == (step, left)
        assert resumed.step == 0


def test_damage_is_replaced_by_the_records_that_follow(tmp_path: Path) -> None:
    path = tmp_path / "data.ffr"
    with ffrecord.Writer(path) as writer:
        for i in range(20):
            writer.write(bytes([i]) * 100)
    contents = bytearray(path.read_bytes())
    at = contents.index(bytes([4]) * 100)
    contents[at + 50] ^= 1
    path.write_bytes(contents)
    damaged = Dataset(path, on_corrupt="replace", max_corrupt=0.5)

    loader = DataLoader(damaged, batch_sampler=Sampler(damaged, 5, shuffle=False))
    found = [[int(record[0]) for record in batch] for batch in loader]

    assert found[0][:4] == [0, 1, 2, 3]
    assert 4 not in found[0]
    assert len(found[0]) == 5
