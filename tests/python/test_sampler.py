"""Goal: every world size, split and resume sees one global stream, and no rank waits for another.

Method: samplers of all ranks are run side by side and their shares laid end to end; property
tests cut and resume the stream at random places with random world sizes.
"""

import copy
import json
import multiprocessing
import operator
import pickle
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ffrecord._order.epoch_order import EpochOrder, Indices
from ffrecord._order.mixture import BY_SOURCE, Mixture
from ffrecord._read.choice import Choice
from ffrecord.torch import IndexBatch, Sampler
from ffrecord.torch._sampler import Cursor
from order import permute, permute_blocked

WORLDS = [1, 2, 3, 4, 8]


class Data:
    """A dataset that has nothing but a length and a fingerprint."""

    def __init__(self, count: int, fingerprint: str) -> None:
        self.count = count
        self.fingerprint = fingerprint

    def __len__(self) -> int:
        return self.count


def ranks(count: int, batch: int, world: int, **options: object) -> list[Sampler]:
    return [
        Sampler(count, batch, rank=rank, world_size=world, **options)  # type: ignore[arg-type]
        for rank in range(world)
    ]


def epoch(samplers: list[Sampler], steps: int | None = None) -> list[list[int]]:
    """One list of global indices for each step; fails if the ranks' numbers of steps differ."""
    shares = [list(islice(iter(sampler), steps)) for sampler in samplers]
    return [[i for share in step for i in share] for step in zip(*shares, strict=True)]


def flat(steps: list[list[int]]) -> list[int]:
    return [index for step in steps for index in step]


def test_an_epoch_is_the_specified_order() -> None:
    steps = epoch(ranks(1000, 100, 1, seed=42))

    assert flat(steps) == [permute(42, 0, 0, 1000, p) for p in range(1000)]


def test_the_golden_vector_of_the_blocked_order_comes_out_of_the_sampler() -> None:
    steps = epoch(ranks(10, 5, 1, block=4, window=2))

    assert flat(steps) == [9, 4, 1, 2, 3, 0, 8, 5, 6, 7]
    assert flat(steps) == [permute_blocked(0, 0, 10, 4, 2, p) for p in range(10)]


@given(
    count=st.integers(1, 500),
    batch=st.integers(8, 64),
    seed=st.integers(0, 2**64 - 1),
    last=st.sampled_from(["drop", "pad", "short"]),
    blocked=st.booleans(),
)
def test_every_world_size_sees_one_stream(
    count: int, batch: int, seed: int, last: str, blocked: bool
) -> None:
    options: dict[str, object] = {"seed": seed, "last": last, "uneven": True}
    if blocked:
        options |= {"block": 7, "window": 3}
    if last == "drop" and count < batch:
        with pytest.raises(ValueError, match="would be empty"):
            Sampler(count, batch, last="drop")
        return

    alone = epoch(ranks(count, batch, 1, **options))

    for world in WORLDS[1:]:
        together = epoch(ranks(count, batch, world, **options))
        whole = count // batch if last == "short" else len(alone)
        assert together[:whole] == alone[:whole]
        assert len(together) == len(alone)


@given(data=st.data(), count=st.integers(60, 400), seed=st.integers(0, 2**64 - 1))
def test_resizing_in_mid_epoch_continues_the_stream(
    data: st.DataObject, count: int, seed: int
) -> None:
    batch = 24
    expected = flat(epoch(ranks(count, batch, 1, seed=seed)))
    samplers = ranks(count, batch, data.draw(st.sampled_from(WORLDS)), seed=seed)

    seen: list[int] = []
    while len(seen) < len(expected):
        left = (len(expected) - len(seen)) // batch
        seen += flat(epoch(samplers, data.draw(st.integers(1, left))))
        states = [json.loads(json.dumps(sampler.state_dict())) for sampler in samplers]
        assert all(state == states[0] for state in states)
        samplers = ranks(count, batch, data.draw(st.sampled_from(WORLDS)), seed=0)
        for sampler in samplers:
            sampler.load_state_dict(states[0])

    assert seen == expected


def test_another_global_batch_continues_at_the_same_record() -> None:
    expected = flat(epoch(ranks(240, 24, 1)))
    first = Sampler(240, 24)
    seen = flat([list(b) for b in islice(iter(first), 5)])
    second = Sampler(240, 40)
    second.load_state_dict(first.state_dict())

    seen += flat([list(b) for b in second])

    assert seen == expected


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, "a", None])
def test_a_seed_that_is_none_is_refused(seed: Any) -> None:  # noqa: ANN401
    said = r"seed is .*; it must be a whole number from 0 to 2\*\*64 - 1"
    for options in ({}, {"shuffle": False}, {"weights": [1] * 8}, {"block": 2, "window": 2}):
        with pytest.raises(ValueError, match=said):
            Sampler(8, 2, seed, **options)
    sampler = Sampler(8, 2)
    with pytest.raises(ValueError, match=said):
        sampler.load_state_dict({**sampler.state_dict(), "seed": seed})
    next(iter(Sampler(8, 2, np.int64(3))))  # type: ignore[arg-type]


def test_indices_carry_seed_epoch_and_position_through_a_pickle() -> None:
    sampler = Sampler(100, 20, 7, rank=1, world_size=2)
    sampler.set_epoch(3)

    batch = pickle.loads(pickle.dumps(next(islice(iter(sampler), 2, None))))

    assert isinstance(batch, IndexBatch)
    assert (batch.seed, batch.epoch, batch.position) == (7, 3, 50)
    assert batch == [permute(7, 3, 0, 100, p) for p in range(50, 60)]


def test_indices_are_made_where_somebody_looks_at_them(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    whole = EpochOrder.range

    def counted(order: EpochOrder, begin: int, end: int) -> Indices:
        made.append(begin)
        return whole(order, begin, end)

    monkeypatch.setattr(EpochOrder, "range", counted)

    batch = pickle.loads(pickle.dumps(next(iter(Sampler(100, 20, 7)))))
    assert len(batch) == 20 and not made

    assert [*batch, batch[3], *batch.array] and made == [0]


def test_a_batch_of_indices_stands_for_a_list() -> None:
    batch = next(iter(Sampler(100, 20, 7)))
    same = [permute(7, 0, 0, 100, p) for p in range(20)]

    assert batch == same and batch == copy.copy(batch) and batch != same[1:]
    assert (batch[0], batch[-1], batch[3:5]) == (same[0], same[-1], same[3:5])
    assert type(batch[0]) is int and repr(batch) == repr(same)
    assert operator.add(batch, [1]) == [*same, 1] and operator.add([1], batch) == [1, *same]
    assert batch + batch == same * 2
    assert same[4] in batch and batch.index(same[4]) == 4 and list(reversed(batch)) == same[::-1]
    assert np.asarray(batch).tolist() == torch.tensor(batch).tolist() == same
    with pytest.raises(IndexError):
        batch[20]


def test_the_next_epoch_follows_and_set_epoch_jumps() -> None:
    sampler = Sampler(10, 5)
    first, second = flat(list(map(list, sampler))), flat(list(map(list, sampler)))

    assert first == [permute(0, 0, 0, 10, p) for p in range(10)]
    assert second == [permute(0, 1, 0, 10, p) for p in range(10)]

    sampler.set_epoch(1)
    assert flat(list(map(list, sampler))) == second


def test_set_epoch_of_the_resumed_epoch_keeps_the_position() -> None:
    sampler = Sampler(100, 10)
    sampler.load_state_dict({**sampler.state_dict(), "epoch": 2, "position": 40})

    sampler.set_epoch(2)

    assert next(iter(sampler)).position == 40


def test_an_iteration_broken_off_starts_its_epoch_again() -> None:
    sampler = Sampler(100, 10)

    assert list(islice(iter(sampler), 3)) == list(islice(iter(sampler), 3))


def test_a_state_at_the_end_of_an_epoch_begins_the_next() -> None:
    sampler = Sampler(100, 30)
    list(sampler)

    state = sampler.state_dict()

    assert (state["epoch"], state["position"]) == (1, 0)
    larger = Sampler(100, 60)
    larger.load_state_dict({**state, "epoch": 0, "position": 90})
    assert next(iter(larger)).epoch == 1


@pytest.mark.parametrize(("last", "end"), [("drop", 40), ("pad", 60), ("short", 50)])
def test_a_share_says_what_the_ranks_read_to_the_end_of_the_epoch(
    last: Literal["drop", "pad", "short"], end: int
) -> None:
    shares = [
        Sampler(50, 20, last=last, rank=rank, world_size=2).share(Cursor(3, 20))
        for rank in range(2)
    ]

    assert [share.rank for share in shares] == [0, 1]
    for share in shares:
        assert share[1:5] == (20, end, 20, 2)
        assert (share.order.epoch, share.order.count) == (3, 50)


def test_the_last_step_is_dropped_padded_or_short() -> None:
    whole = [permute(0, 0, 0, 10, p) for p in range(10)]

    assert flat(epoch(ranks(10, 4, 2))) == whole[:8]
    assert flat(epoch(ranks(10, 4, 2, last="pad"))) == whole + whole[:2]
    assert flat(epoch(ranks(10, 4, 2, last="short"))) == whole


def test_a_short_step_leaves_no_rank_without_a_record() -> None:
    samplers = ranks(9, 8, 4, last="short")

    shares = [list(sampler) for sampler in samplers]

    assert [len(share) for share in shares] == [2, 2, 2, 2]
    assert [len(share[-1]) for share in shares] == [1, 1, 1, 1]


def test_the_state_is_small_and_json() -> None:
    data = Data(2**48, "f" * 32)
    sampler = Sampler(data, 1024, 2**64 - 1, block=2**24, window=2**16)
    sampler.set_epoch(2**32)

    assert len(json.dumps({**sampler.state_dict(), "position": 2**48})) <= 256


def test_positions_deep_in_a_huge_epoch_cost_nothing() -> None:
    sampler = Sampler(2**48, 4)
    sampler.load_state_dict({**sampler.state_dict(), "position": 2**47})

    assert next(iter(sampler)) == [permute(0, 0, 0, 2**48, 2**47 + i) for i in range(4)]


def test_other_data_are_refused_with_the_reason() -> None:
    state = Sampler(Data(100, "a" * 32), 10).state_dict()

    with pytest.raises(ValueError, match=r"fingerprint a{32}.*has b{32}"):
        Sampler(Data(100, "b" * 32), 10).load_state_dict(state)
    with pytest.raises(ValueError, match="of 100 records, the dataset has 99"):
        Sampler(Data(99, "a" * 32), 10).load_state_dict(state)


def test_a_refused_state_changes_nothing() -> None:
    sampler = Sampler(Data(100, "a" * 32), 10)
    before = copy.deepcopy(sampler.state_dict())

    for wrong in ({"order": 2}, {"count": 7}, {"position": 101}, {"epoch": -1}, {"block": 3}):
        with pytest.raises(ValueError, match=r".+"):
            sampler.load_state_dict({**before, **wrong})
        assert sampler.state_dict() == before
    with pytest.raises(ValueError, match="fingerprint is missing"):
        sampler.load_state_dict({k: v for k, v in before.items() if k != "fingerprint"})


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((0, 1), {}, "empty"),
        ((10, 0), {}, "global_batch is 0"),
        ((10, 11), {}, "last='pad'"),
        ((10, 10), {"world_size": 4}, "use 8 or 12.*uneven=True"),
        ((10, 2), {"world_size": 4, "rank": 0}, "use 4 or more"),
        ((10, 4), {"world_size": 2, "rank": 2}, "rank 2 is not below"),
        ((10, 4), {"block": 3}, "give both or neither"),
        ((10, 4), {"block": 0, "window": 1}, "block is 0"),
        ((10, 4), {"last": "wrap"}, "drop, pad, short"),
        ((10, 4), {"group_size": 0}, "one rank or more"),
        ((10, 4), {"group_size": 2, "world_size": 3, "rank": 0}, "do not divide a world of 3"),
    ],
)
def test_wrong_arguments_name_the_remedy(
    arguments: tuple[int, int], options: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Sampler(*arguments, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("records", [6 / 2, True, "4"])
def test_records_of_a_step_are_a_whole_number(records: Any) -> None:  # noqa: ANN401
    for name in ("global_batch", "batch_size"):
        with pytest.raises(TypeError, match=f"{name} is .* must be a whole number, such as 7 // 2"):
            Sampler(10, **{name: records})
    assert len(Sampler(10, np.int64(5))) == 2  # type: ignore[arg-type]


def test_a_wrong_world_size_at_resume_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    state = Sampler(100, 10, world_size=2, rank=0).state_dict()
    resumed = Sampler(100, 10)
    resumed.load_state_dict(state)
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("RANK", "0")

    with pytest.raises(ValueError, match="does not divide among 3 ranks; use 9 or 12"):
        iter(resumed)


@given(
    count=st.integers(20, 300),
    groups=st.integers(1, 4),
    group_size=st.integers(1, 3),
    last=st.sampled_from(["drop", "pad", "short"]),
)
def test_ranks_of_a_group_get_the_same_samples(
    count: int, groups: int, group_size: int, last: str
) -> None:
    options: dict[str, object] = {"last": last, "uneven": True}
    plain = [list(map(list, sampler)) for sampler in ranks(count, 16, groups, **options)]

    together = ranks(count, 16, groups * group_size, group_size=group_size, **options)

    shares = [list(map(list, sampler)) for sampler in together]
    assert shares == [share for share in plain for _ in range(group_size)]


def test_an_index_batch_pickles_as_its_place_not_as_its_indices() -> None:
    (batch,) = islice(iter(Sampler(2**40, 4096)), 1)

    pickled = pickle.dumps(batch)

    assert len(pickled) < 200
    assert pickle.loads(pickled) == batch


def test_an_index_batch_pickles_with_its_views() -> None:
    (batch,) = islice(iter(Sampler(40, 8)), 1)
    even, scattered = Choice(range(0, 80, 2), 80), Choice([*range(50, 80), *range(50)], 80)
    seen = batch.through(even.at).through(scattered.at)

    copy = pickle.loads(pickle.dumps(seen))

    assert list(copy) == list(seen) != list(batch)
    rows = np.array([0, 3])
    assert copy.following(rows, 2).tolist() == seen.following(rows, 2).tolist()
    assert list(copy.part(2, 5)) == list(seen)[2:5]
    with pytest.raises(IndexError, match=r"rows \[2, 9\) of 8"):
        copy.part(2, 9)


class Mixed(Data):
    """A mix of two sources, as far as a sampler looks at it."""

    mixture = Mixture([30, 20], [3, 1])


def test_weights_change_in_mid_run_and_resume_exactly() -> None:
    def run(world: int) -> list[list[int]]:
        samplers = ranks_of(Mixed(50, "a"), 8, world)
        steps = epoch(samplers, 3)
        for sampler in samplers:
            sampler.set_weights([1, 1])
        steps += epoch(samplers, 1)
        states = [json.loads(json.dumps(sampler.state_dict())) for sampler in samplers]
        assert len(json.dumps(states[0])) <= 256
        samplers = ranks_of(Mixed(50, "a"), 8, 4)
        for sampler in samplers:
            sampler.load_state_dict(states[0])
        return steps + epoch(samplers) + epoch(samplers)

    expected = Mixture([30, 20], [3, 1]).range(0, 0, 24).tolist()
    changed = Mixture([30, 20], [3, 1]).change([1, 1], 24)
    expected += changed.range(0, 24, 48).tolist() + changed.range(0, 50, 98).tolist()

    assert flat(run(1)) == flat(run(2)) == [BY_SOURCE + index for index in expected]


def ranks_of(dataset: Data, batch: int, world: int) -> list[Sampler]:
    return [Sampler(dataset, batch, rank=rank, world_size=world) for rank in range(world)]


def test_a_mixtures_state_is_refused_by_plain_data_and_the_other_way() -> None:
    mixed, plain = Sampler(Mixed(50, "a"), 10), Sampler(Data(50, "a"), 10)

    with pytest.raises(ValueError, match="is a mixture and the other is not"):
        plain.load_state_dict(mixed.state_dict())
    with pytest.raises(ValueError, match="mixture is missing"):
        mixed.load_state_dict(plain.state_dict())
    with pytest.raises(TypeError, match=r"ffrecord\.mix"):
        plain.set_weights([1])
    with pytest.raises(ValueError, match="order of its own"):
        Sampler(Mixed(50, "a"), 10, block=4, window=2)


def test_rank_and_world_size_come_from_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")

    batch = next(iter(Sampler(100, 10)))

    assert batch == [permute(0, 0, 0, 100, p) for p in range(5, 10)]


def test_the_order_is_uniform() -> None:
    """Chi-square over where index 0 to 63 land, in 4096 epochs; 1e-6 tail of 63 degrees."""
    count, epochs = 64, 4096
    table = np.zeros((count, count))
    sampler = Sampler(count, count)
    for _ in range(epochs):
        for batch in sampler:
            table[np.arange(count), batch] += 1

    expected = epochs / count
    chi = ((table - expected) ** 2 / expected).sum(axis=1)

    assert chi.max() < 130.0


@pytest.mark.parametrize("name", ["rank", "world_size", "group_size", "batch_size", "dataset"])
def test_states_are_json_if_an_argument_is_a_number_of_numpys(name: str) -> None:
    given = {"dataset": 100, "batch_size": 5, "rank": 1, "world_size": 4, "group_size": 2}
    sampler = Sampler(**{**given, name: np.int64(given[name])})
    first = iter(sampler)
    assert list(next(first)) == list(next(iter(Sampler(**given))))

    state = json.loads(json.dumps(sampler.state_dict()))

    assert (state["position"], state["count"]) == (10, 100)


@pytest.mark.parametrize("name", ["order", "epoch", "position", "block", "window", "count"])
@pytest.mark.parametrize("value", [4.0, "4", True, [4]])
def test_a_state_whose_numbers_are_none_is_refused(name: str, value: object) -> None:
    sampler = Sampler(100, 10)
    state = sampler.state_dict() | {name: value}

    with pytest.raises(ValueError, match=f"the state's {name} is .* it is damaged"):
        sampler.load_state_dict(state)

    assert sampler.place == (0, 0, frozenset())


def test_a_states_numbers_may_be_of_numpy_or_torch() -> None:
    sampler = Sampler(100, 10)
    state = sampler.state_dict() | {"seed": np.int64(3), "position": torch.tensor(20)}

    sampler.load_state_dict(state)

    assert next(iter(sampler))[0] == permute(3, 0, 0, 100, 20)
    assert json.loads(json.dumps(sampler.state_dict()))["position"] == 30


def share_of_rank(rank: int, folder: str, shares: "multiprocessing.Queue[list[int]]") -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2
    )
    shares.put(next(iter(Sampler(100, 10))))
    torch.distributed.barrier()  # The other may be joining still.
    torch.distributed.destroy_process_group()


def test_rank_and_world_size_come_from_torch_distributed(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    shares = context.Queue()
    processes = [
        context.Process(target=share_of_rank, args=(rank, str(tmp_path), shares))
        for rank in range(2)
    ]
    for process in processes:
        process.start()

    found = [shares.get(timeout=120) for _ in range(2)]

    for process in processes:
        process.join()
        assert process.exitcode == 0
    order = [permute(0, 0, 0, 100, p) for p in range(10)]
    assert sorted(map(list, found)) == sorted([order[:5], order[5:]])
