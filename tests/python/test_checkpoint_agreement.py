"""Goal: what the ranks of a save do not have alike is refused when it is saved, by name, or loads.

Method: ranks that are threads save states that differ at one place; a save that succeeds is loaded
by the same ranks, each its own state.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import ffrecord.checkpoint as ckpt
from thread_ranks import ThreadRank, ThreadRanks

pytestmark = pytest.mark.wrong_data


def shard(value: float, rank: int = 0, ranks: int = 1) -> ckpt.Shard:
    return ckpt.Shard(np.full(4, value), (4 * ranks,), (4 * rank,))


# What each rank has, and the path that the error names.
REFUSED: dict[str, tuple[Callable[[int], Any], str]] = {
    "longer lists": (
        lambda rank: {"layers": [shard(5, rank, 3)] + [shard(1)] * (rank == 1)},
        "layers",
    ),
    "shorter lists": (lambda rank: {"layers": [1, 2, 3][: 3 - rank]}, "layers"),
    "lists in lists": (lambda rank: {"a": [[1] * (rank + 1)]}, "a/#0"),
    "a value": (lambda rank: {"step": 7, **({"expert": 5} if rank == 1 else {})}, "expert"),
    "a value in a dict": (lambda rank: {"a": {} if rank == 0 else {"b": 1}}, "a/b"),
    "a value beside a stage": (
        lambda rank: {"s": ckpt.OnRanks({f"w{rank}": 1}, (rank,)), **({"x": 1} if rank else {})},
        "has x,",
    ),
    "a list in a stage": (
        lambda rank: {"s": ckpt.OnRanks([np.ones(3)] * (rank + 1), (rank,))},
        "s (2 elements)",
    ),
    "a stage where rank 0 has a value": (
        lambda rank: {"s": 1 if rank == 0 else ckpt.OnRanks({"w": np.ones(3)}, (1, 2))},
        "s/w",
    ),
    "a tensor where rank 0 has nothing": (
        lambda rank: {"head": None if rank == 0 else shard(1, rank - 1, 2)},
        "head (a tensor)",
    ),
    "a stage that is a tensor where rank 0 has a value": (
        lambda rank: {"s": 1 if rank == 0 else ckpt.OnRanks(np.ones(3), (1, 2))},
        "s (a tensor)",
    ),
    "a stage that is a value on rank 0": (
        lambda rank: {
            "s": ckpt.OnRanks(np.ones(3) if rank == 1 else 5, (1,) if rank == 1 else (0, 2))
        },
        "s (a tensor)",
    ),
    "a stage that is a tensor on rank 0": (
        lambda rank: {
            "s": ckpt.OnRanks(5 if rank == 1 else np.ones(3), (1,) if rank == 1 else (0, 2))
        },
        "has s,",
    ),
    "a shared tensor": (
        lambda rank: {"w": np.ones(3), **({"b": np.ones(3)} if rank else {})},
        "rank 1 are not those of rank 0: it has b;",
    ),
    "a shared tensor less": (
        lambda rank: {"w": np.ones(3), **({} if rank == 1 else {"b": np.ones(3)})},
        "rank 1 are not those of rank 0: it lacks b;",
    ),
    "another shape": (
        lambda rank: {"w": np.ones(3), "b": np.ones(3 + rank, np.float32)},
        "b is float32 (4,), on rank 0 float32 (3,)",
    ),
    "another type": (
        lambda rank: {"w": np.ones(3, np.int8 if rank == 1 else np.int16)},
        "w is int8 (3,), on rank 0 int16 (3,)",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_state_of_only_some_ranks_is_refused_when_it_is_saved(tmp_path: Path, name: str) -> None:
    state_of, path = REFUSED[name]

    def save(rank: ThreadRank) -> None:
        ckpt.save(tmp_path / "run", 1, state_of(rank.rank), group=rank)

    for result in ThreadRanks(3).run(save):
        assert isinstance(result, ValueError), result
        assert "rank 1" in str(result) and path in str(result) and "PerRank" in str(result)
    assert ckpt.list(tmp_path / "run") == []


# Of what ranks hold together: what each has, and what the error says.
SLICES: dict[str, tuple[Callable[[int], Any], str]] = {
    "of another type": (
        lambda rank: {"w": ckpt.Shard(np.ones(1, f"i{1 + (rank == 1)}"), (3,), (rank,))},
        "tensor w: rank 0 has int8 (3), rank 1 has int16 (3)",
    ),
    "of another shape": (
        lambda rank: {"w": ckpt.Shard(np.ones((1, 2)), (3, 2 + (rank == 1)), (rank, 0))},
        "tensor w: rank 0 has float64 (3, 2), rank 1 has float64 (3, 3)",
    ),
    "that are another rank's": (
        lambda rank: {"w": ckpt.Shard(np.ones(1), (3,), (0 if rank == 1 else rank,))},
        "w: the slice of rank 0 at (0) of extent (1) overlaps the slice of rank 1 at (0)",
    ),
    "that no rank has": (
        lambda rank: {"w": ckpt.Shard(np.ones(int(rank != 1)), (3,), (rank,))},
        "w: the ranks' slices cover 2 of 3 elements",
    ),
}


@pytest.mark.parametrize("name", SLICES)
def test_slices_that_are_no_whole_tensor_are_refused_by_tensor_and_rank(
    tmp_path: Path, name: str
) -> None:
    state_of, why = SLICES[name]

    def save(rank: ThreadRank) -> None:
        ckpt.save(tmp_path / "run", 1, {**state_of(rank.rank), "n": 1}, group=rank)

    for result in ThreadRanks(3).run(save):
        assert isinstance(result, ValueError), result
        assert why in str(result)
    assert ckpt.list(tmp_path / "run") == []


LOADED: dict[str, Callable[[int], Any]] = {
    "stages in a PerRank": lambda rank: {"s": ckpt.PerRank({f"{rank}.w": np.full(3, rank)})},
    "lists in a PerRank": lambda rank: {"s": ckpt.PerRank([np.full(3, 1)] * (rank + 1))},
    "shards": lambda rank: {"s": [shard(rank, rank, 3)], "n": 1},
    "shards of pipeline stages": lambda rank: {"layers": {f"{rank}.weight": shard(rank)}, "n": 3},
    "a stage of two ranks": lambda rank: {
        "all": np.full(3, 7),
        "layers": ckpt.OnRanks(
            {f"{min(rank, 1)}.weight": np.full((2048, 100), min(rank, 1)), "b": np.full(2, 5)}
            if rank == 0
            else {"1.weight": np.full((2048, 100), 1.0), "1.bias": [np.full(2, 1), np.full(3, 6)]},
            (0,) if rank == 0 else (1, 2),
        ),
        "last": {"head": ckpt.OnRanks(np.full(5, 9), (2,))} if rank == 2 else {},
    },
    "stages without a value": lambda rank: {"s": {f"k{rank}": ckpt.OnRanks({}, (rank,))}},
    "an empty dict of one rank": lambda rank: {"s": {"k": {}} if rank == 1 else {}, "n": 3},
    "an empty shard": lambda rank: {
        "s": ckpt.Shard(np.full(4 * (rank > 0), 1.0), (8,), (max(0, rank - 1) * 4,))
    },
}


@pytest.mark.parametrize("name", LOADED)
def test_state_of_each_rank_that_is_saved_is_loaded(tmp_path: Path, name: str) -> None:
    def leaves(tree: Any) -> list[Any]:  # noqa: ANN401
        if isinstance(tree, dict):
            tree = list(tree.values())
        if isinstance(tree, list):
            return [leaf for item in tree for leaf in leaves(item)]
        if isinstance(tree, ckpt.PerRank | ckpt.OnRanks):
            return leaves(tree.value)
        return [np.array(tree.data if isinstance(tree, ckpt.Shard) else tree)]

    def work(rank: ThreadRank) -> object:
        state = LOADED[name](rank.rank)
        ckpt.save(tmp_path, 1, state, group=rank)
        expected = leaves(state)
        for leaf in leaves(state):
            leaf[...] = 0
        loaded = ckpt.load(tmp_path, LOADED[name](rank.rank), group=rank)
        return all(map(np.array_equal, leaves(loaded), expected))

    assert ThreadRanks(3).must(work) == [True] * 3


def some_per_rank(where: tuple[str, ...]) -> dict[str, Any]:
    return {key: ckpt.PerRank(5) if key in where else {} for key in ("a", "b")}


@pytest.mark.parametrize("where", [("a",), ("b",), ()])
def test_per_rank_values_in_other_places_are_refused(
    tmp_path: Path, where: tuple[str, ...]
) -> None:
    places = [("a", "b"), where, ("a", "b")]

    def save(rank: ThreadRank) -> None:
        ckpt.save(tmp_path / "run", 1, some_per_rank(places[rank.rank]), group=rank)

    for result in ThreadRanks(3).run(save):
        assert isinstance(result, ValueError), result
        assert "rank 1" in str(result) and "PerRank" in str(result)
    assert ckpt.list(tmp_path / "run") == []


@pytest.mark.parametrize("replicated", ["rank0", "split"])
def test_ranks_whose_dicts_have_other_orders_get_back_what_is_theirs(
    tmp_path: Path, replicated: Literal["rank0", "split"]
) -> None:
    def state(rank: int) -> dict[str, Any]:
        own = [ckpt.PerRank({"x": 10 * i + rank, "y": np.full(3, 10 * i + rank)}) for i in range(3)]
        sizes = (100, 150_000, 200, 250, 300_000, 1)
        values = {f"t{i}": np.arange(size) + i for i, size in enumerate(sizes)}
        made = {"own": dict(enumerate(own)), "shared": values, "list": [own[0], own[1]]}
        turned = made if rank % 2 == 0 else dict(reversed(made.items()))
        for key in ("own", "shared"):
            pairs = list(made[key].items())  # type: ignore[union-attr]
            turned[key] = dict(pairs[rank:] + pairs[:rank])
        return turned

    def work(rank: ThreadRank) -> object:
        mine = state(rank.rank)
        ckpt.save(tmp_path, 1, mine, group=rank, replicated=replicated)
        loaded: Any = ckpt.load(tmp_path, group=rank)
        for i in range(3):
            for found in [loaded["own"][i], *loaded["list"][i : i + 1]]:
                assert found["x"] == 10 * i + rank.rank
                assert np.array_equal(found["y"], np.full(3, 10 * i + rank.rank))
        for key, value in mine["shared"].items():
            assert np.array_equal(loaded["shared"][key], value)
        return loaded["shared"].keys() == mine["shared"].keys()

    assert ThreadRanks(3).must(work) == [True] * 3


def test_rank_0_may_have_more(tmp_path: Path) -> None:
    def save(rank: ThreadRank) -> int:
        state = {"w": np.ones(3), "s": shard(7) if rank.rank == 0 else None}
        state |= {"note": ["a", "b"]} if rank.rank == 0 else {}
        return ckpt.save(tmp_path, 1, state, group=rank).step

    assert ThreadRanks(2).must(save) == [1, 1]
    loaded: Any = ckpt.load(tmp_path, group="alone")
    assert loaded["note"] == ["a", "b"] and loaded["s"].tolist() == [7] * 4


def test_stages_are_one_checkpoint_that_any_other_stages_load(tmp_path: Path) -> None:
    """Four layers on three ranks, then on two and on one."""

    def layer(number: int) -> dict[str, Any]:
        return {"w": np.full(40, number), "rate": number / 2, "name": f"layer {number}"}

    def stage(numbers: list[int], ranks: tuple[int, ...], *, empty: bool = False) -> Any:  # noqa: ANN401
        made = {str(number): layer(0 if empty else number) for number in numbers}
        return {"step": 0 if empty else 5, "layers": ckpt.OnRanks(made, ranks)}

    numbers_of = [[0, 1], [2, 3], [2, 3]]
    ranks_of = [(0,), (1, 2), (1, 2)]

    def save(rank: ThreadRank) -> Any:  # noqa: ANN401
        state = stage(numbers_of[rank.rank], ranks_of[rank.rank])
        return ckpt.save(tmp_path, 1, state, group=rank)

    assert {commit.size_bytes for commit in ThreadRanks(3).must(save)} == {4 * 40 * 8}  # type: ignore[attr-defined]

    def load(rank: ThreadRank) -> object:
        numbers = [[0, 2], [1, 3]][rank.rank]
        into = stage(numbers, (rank.rank,), empty=True)
        loaded: Any = ckpt.load(tmp_path, into, group=rank)
        return loaded["step"] == 5 and all(
            found["w"].tolist() == [number] * 40 and found["rate"] == number / 2
            for number, found in ((n, loaded["layers"].value[str(n)]) for n in numbers)
        )

    assert ThreadRanks(2).must(load) == [True, True]
    whole: Any = ckpt.load(tmp_path, group="alone")
    assert sorted(whole["layers"]) == ["0", "1", "2", "3"]

    def load_less(rank: ThreadRank) -> object:
        return ckpt.load(tmp_path, stage([rank.rank], (rank.rank,), empty=True), group=rank)

    for result in ThreadRanks(2).run(load_less):
        assert isinstance(result, ckpt.MismatchError)
        assert result.extra == ["layers/2", "layers/3"]


def test_a_mark_of_ranks_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    for state, why in [
        (ckpt.OnRanks(1, (1, 2)), r"state: a: the OnRanks of rank 0 is of the ranks \(1, 2\)"),
        (ckpt.PerRank(ckpt.OnRanks(1, (0,))), "a/@rank0: the OnRanks of rank 0 is in a PerRank"),
        (ckpt.OnRanks(ckpt.PerRank(1), (0,)), "state: a: an OnRanks has another one, or a PerRank"),
    ]:
        with pytest.raises(ValueError, match=why):
            ckpt.save(tmp_path, 1, {"a": state})


@pytest.mark.parametrize("replicated", ["rank0", "split"])
def test_ranks_may_have_what_they_share_in_any_order(tmp_path: Path, replicated: Any) -> None:  # noqa: ANN401
    def stage(rank: int, fill: bool) -> Any:  # noqa: ANN401
        numbers = [3, 1, 2, 0, 4] if rank else [0, 1, 2, 3, 4]
        return ckpt.OnRanks(
            {f"{n}.w": np.full(n + 1, float(n) if fill else -1.0) for n in numbers}, (0, 1)
        )

    def work(rank: ThreadRank) -> object:
        state = {"s": stage(rank.rank, fill=True)}
        ckpt.save(tmp_path, 1, state, group=rank, replicated=replicated)
        loaded: Any = ckpt.load(tmp_path, {"s": stage(rank.rank, fill=False)}, group=rank)
        return all(
            np.array_equal(loaded["s"].value[key], each) for key, each in state["s"].value.items()
        )

    assert ThreadRanks(2).must(work) == [True, True]


# --- Replicas ------------------------------------------------------------------------------------


def replicas(rank: int, differing: dict[int, set[str]]) -> dict[str, Any]:
    """Large tensors, which are cut; a small one; one that is not contiguous; a number."""
    state = {
        "large": np.arange(400_000.0),
        "small": np.arange(7),
        "strided": np.arange(900_000.0).reshape(3, -1).T,
        "number": np.float32(1.5),
    }
    for key in differing.get(rank, set()):
        if key == "number":
            state[key] = np.float32(2.5)
        else:
            state[key].flat[-1] += 1  # type: ignore[union-attr]
    return state


@pytest.mark.parametrize(
    "differing",
    [
        {1: {"large"}},
        {2: {"small"}},
        {1: {"strided"}, 2: {"strided", "small"}},
        {1: {"number"}},
    ],
)
def test_replicas_that_differ_are_refused_with_tensors_and_ranks(
    tmp_path: Path, differing: dict[int, set[str]]
) -> None:
    def save(rank: ThreadRank) -> None:
        state = replicas(rank.rank, differing)
        ckpt.save(tmp_path / "run", 1, state, group=rank, replicated="split")

    for result in ThreadRanks(3).run(save):
        assert isinstance(result, ValueError), result
        for rank, keys in differing.items():
            for key in keys:
                named = str(result).split(f"{key} (rank ")[1].split(")")[0]
                assert str(rank) in named.split(", ")
    assert ckpt.list(tmp_path / "run") == []


def test_replicas_of_a_stage_are_compared_if_nothing_else_differs(tmp_path: Path) -> None:
    def save(rank: ThreadRank) -> None:
        state = {"s": ckpt.OnRanks(np.full(3, rank.rank), (0, 1))}
        ckpt.save(tmp_path / "run", 1, state, group=rank, replicated="split")

    for result in ThreadRanks(2).run(save):
        assert isinstance(result, ValueError), result
        assert "s at (0,) (rank 1)" in str(result)
    assert ckpt.list(tmp_path / "run") == []


@pytest.mark.wrong_data
@pytest.mark.parametrize("replicated", ["rank0", "split"])
@pytest.mark.parametrize(
    ("mine", "others"),
    [
        ({"lr": 0.1, "b": 2}, {"b": 2, "lr": 0.2}),
        ([1, 2], [1, 3]),
        ([1, 2], [1, 2, 3]),
        ([1, 2], (1, 2)),
        ({"x": 5}, {"x": None}),
        ({"x": {"a", "b"}}, {"x": {"a", "c"}}),
    ],
)
def test_values_of_a_stage_are_those_of_all_its_ranks(
    tmp_path: Path,
    mine: Any,  # noqa: ANN401
    others: Any,  # noqa: ANN401
    replicated: Any,  # noqa: ANN401
) -> None:
    """Rank 0 has none; those of rank 1 and 2 differ, then they are equal."""

    def state(rank: int, value: Any) -> dict[str, Any]:  # noqa: ANN401
        held = {"w": np.ones(3), "value": value}
        return {"s": ckpt.OnRanks(held, (1, 2))} if rank else {}

    def save(rank: ThreadRank) -> None:
        value = others if rank.rank == 2 else mine
        ckpt.save(tmp_path, 1, state(rank.rank, value), group=rank, replicated=replicated)

    for result in ThreadRanks(3).run(save):
        assert isinstance(result, ValueError), result
        assert "s/value" in str(result) and "(rank 2)" in str(result)
    assert ckpt.list(tmp_path) == []

    def save_equal(rank: ThreadRank) -> None:
        equal = dict(reversed(mine.items())) if isinstance(mine, dict) and rank.rank else mine
        ckpt.save(tmp_path, 1, state(rank.rank, equal), group=rank, replicated=replicated)

    ThreadRanks(3).must(save_equal)
    loaded: Any = ckpt.load(tmp_path, group="alone")
    assert loaded["s"]["value"] == mine


def test_replicas_that_are_one_under_other_names_are_refused(tmp_path: Path) -> None:
    def save(rank: ThreadRank) -> None:
        one, two = np.full(2, 1.0), np.full(2, 2.0)
        b, d = (one, two) if rank.rank == 0 else (two, one)
        state = {"a": one, "c": two, "b": b, "d": d}
        ckpt.save(tmp_path / "run", 1, state, group=rank, replicated="split")

    for result in ThreadRanks(2).run(save):
        assert isinstance(result, ValueError), result
        assert "one under several names on rank 1 are not so on rank 0" in str(result)
    assert ckpt.list(tmp_path / "run") == []


def test_equal_replicas_are_split(tmp_path: Path) -> None:
    def save(rank: ThreadRank) -> int:
        state = replicas(rank.rank, {})
        return ckpt.save(tmp_path, 1, state, group=rank, replicated="split").step

    assert ThreadRanks(3).must(save) == [1, 1, 1]
    loaded: Any = ckpt.load(tmp_path, group="alone")
    for key, value in replicas(0, {}).items():
        assert np.array_equal(loaded[key], value)
