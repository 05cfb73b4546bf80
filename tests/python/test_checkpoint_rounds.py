"""Goal: a save consists of four rounds, and a failure in any of them reaches every rank.

Method: ranks that are threads, whose group counts the rounds, delays a rank, loses or damages what
it gathers, or lets another save be faster.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import ffrecord.checkpoint as ckpt
from eventually import until_idle
from ffrecord import _ffrecord
from ffrecord.checkpoint._values import encode
from ffrecord.errors import ConflictError, UnavailableError
from thread_ranks import ThreadRank, ThreadRanks

SIZE = 3
STATE, PLAN, WRITE, PUBLISH = range(4)
COMMITTED = {"LATEST", "step-000000001"}


class Rank:
    """A rank whose gathering a test may watch and change."""

    def __init__(self, inner: ThreadRank) -> None:
        self.inner, self.rank, self.size = inner, inner.rank, inner.size
        self.said: list[bytes] = []
        self.before: Callable[[int], object] = lambda _: None
        self.after: Callable[[int, list[bytes]], list[bytes]] = lambda _, gathered: gathered

    def all_gather(self, mine: bytes) -> list[bytes]:
        """The bytes of all ranks, as `after` changes them."""
        number = len(self.said)
        self.said.append(mine)
        self.before(number)
        return self.after(number, self.inner.all_gather(mine))


def state_of(rank: int) -> dict[str, object]:
    """A tensor of which each rank has rows, and a value of each rank."""
    rows = ckpt.Shard(np.full((4, 5), rank), (4 * SIZE, 5), (4 * rank, 0))
    return {"w": rows, "own": ckpt.PerRank(rank)}


def save_all(
    target: Path | Callable[[int], Path | str],
    change: Callable[[Rank, dict[str, object]], object] = lambda rank, state: None,
    alone_s: float = 60.0,
) -> tuple[list[Any], list[Rank]]:
    """What a save gave on each rank after `change`, and the ranks."""
    ranks: list[Any] = [None] * SIZE

    def save(inner: ThreadRank) -> object:
        rank = ranks[inner.rank] = Rank(inner)
        state = state_of(rank.rank)
        change(rank, state)
        where = target if isinstance(target, Path) else target(rank.rank)
        return ckpt.save(where, 1, state, group=rank)

    group = ThreadRanks(SIZE)
    group.barrier = threading.Barrier(SIZE, timeout=alone_s)  # A rank that is left alone shows.
    return group.run(save), ranks


def entries_of(folder: Path) -> set[str]:
    """Of a run: steps, and attempts that somebody left."""
    return {each.name for each in folder.iterdir()}


def rounds_of(ranks: list[Rank]) -> list[int]:
    """How many rounds each rank took part in."""
    return [len(rank.said) for rank in ranks]


def test_a_save_takes_four_rounds_of_one_form(tmp_path: Path) -> None:
    results, ranks = save_all(tmp_path)

    assert isinstance(results[0], ckpt.Commit)
    assert results == [results[0]] * SIZE
    assert rounds_of(ranks) == [4] * SIZE
    assert all(said.startswith(b"\x01") for rank in ranks for said in rank.said)
    assert results[0].size_bytes == SIZE * 4 * 5 * 8
    loaded: Any = ckpt.load(tmp_path, elastic=True)
    assert loaded["w"][:, 0].tolist() == [rank for rank in range(SIZE) for _ in range(4)]


def test_a_state_that_fails_leaves_the_target_alone(tmp_path: Path) -> None:
    def spoil(rank: Rank, state: dict[str, object]) -> None:
        if rank.rank > 0:
            state["bad"] = object()

    results, ranks = save_all(tmp_path / "run", spoil)

    assert rounds_of(ranks) == [1] * SIZE
    assert isinstance(results[0], ckpt.PeerError)
    assert str(results[0]).startswith("rank 1: TypeError: state: bad")
    assert results[0].kind == "TypeError"
    assert [type(result) for result in results[1:]] == [TypeError] * (SIZE - 1)
    assert not (tmp_path / "run").exists()


def test_a_plan_that_fails_fails_all(tmp_path: Path) -> None:
    ckpt.save(tmp_path, 1, {"before": 1})

    results, ranks = save_all(tmp_path)

    assert rounds_of(ranks) == [2] * SIZE
    assert [type(result) for result in results] == [ConflictError] * SIZE
    assert len({str(result) for result in results}) == 1
    assert ckpt.load(tmp_path) == {"before": 1}
    assert entries_of(tmp_path) == COMMITTED


def test_a_target_that_one_rank_cannot_open_fails_all(tmp_path: Path) -> None:
    results, ranks = save_all(
        lambda rank: "ffrecord://host:none/run" if rank == 1 else tmp_path  # No port.
    )

    assert rounds_of(ranks) == [2] * SIZE
    assert all("rank 1: " in str(result) for result in results), results
    assert len({(type(result), str(result)) for result in results}) == 1
    assert entries_of(tmp_path) == set()


@pytest.mark.parametrize("failing", [1, SIZE - 1])
def test_a_write_that_fails_fails_all_and_leaves_nothing(tmp_path: Path, failing: int) -> None:
    def where(rank: int) -> Path:
        return tmp_path / ("elsewhere" if rank == failing else "run")

    results, ranks = save_all(where)

    assert rounds_of(ranks) == [3] * SIZE
    assert all(f"rank {failing}: " in str(result) for result in results), results
    assert len({(type(result), str(result)) for result in results}) == 1
    assert entries_of(tmp_path / "run") == set()


def test_a_publication_that_fails_fails_all_and_leaves_nothing(tmp_path: Path) -> None:
    def outrun(rank: Rank, _state: object) -> None:
        def save_first(number: int, gathered: list[bytes]) -> list[bytes]:
            if rank.rank == 0 and number == WRITE:
                faster = _ffrecord.CheckpointShards(tmp_path, 1, None, True, 30.0, False)
                faster.commit([faster.write(0, [])[0]], encode({"faster": 1}))
            return gathered

        rank.after = save_first

    results, ranks = save_all(tmp_path, outrun)

    assert rounds_of(ranks) == [4] * SIZE
    assert [type(result) for result in results] == [ConflictError] * SIZE
    assert ckpt.load(tmp_path) == {"faster": 1}
    assert entries_of(tmp_path) == COMMITTED


@pytest.mark.parametrize("slow", range(SIZE))
def test_nothing_is_visible_before_all_ranks_have_written(tmp_path: Path, slow: int) -> None:
    seen: list[object] = []

    def delay(rank: Rank, _state: object) -> None:
        def wait(number: int) -> None:
            if rank.rank == slow and number == WRITE:
                until_idle()  # The others have written.
                seen.extend(ckpt.list(tmp_path))

        rank.before = wait

    results, _ = save_all(tmp_path, delay)

    assert seen == []
    assert results == ckpt.list(tmp_path) * SIZE


@pytest.mark.parametrize("lost", [STATE, PLAN, WRITE, PUBLISH])
def test_a_rank_that_dies_in_a_round_fails_all(tmp_path: Path, lost: int) -> None:
    heard = threading.Semaphore(0)

    def die(rank: Rank, _state: object) -> None:
        def leave(number: int) -> None:
            if number != lost:
                return
            if rank.rank < SIZE - 1:
                heard.release()
                return
            for _ in range(SIZE - 1):  # The others have done their work of this round.
                assert heard.acquire(timeout=60)
            rank.inner.ranks.barrier.abort()

        rank.before = leave

    results, ranks = save_all(tmp_path, die)

    assert rounds_of(ranks) == [lost + 1] * SIZE
    assert [type(result) for result in results] == [threading.BrokenBarrierError] * SIZE
    unsure = ["may or may not be committed" in str(result.__notes__) for result in results]
    assert unsure == [lost == PUBLISH] * SIZE
    # Only rank 0 commits, and only what all have written.
    assert len(ckpt.list(tmp_path)) == (lost == PUBLISH)
    assert entries_of(tmp_path) == (COMMITTED if lost == PUBLISH else set())


@pytest.mark.parametrize("numbers", [(0, 1, 5), (0, 2, 1), (4, 5, 6), (0, 0, 0)])
def test_ranks_with_wrong_numbers_commit_nothing(
    tmp_path: Path, numbers: tuple[int, int, int]
) -> None:
    def misname(rank: Rank, _state: object) -> None:
        rank.rank = numbers[rank.inner.rank]

    results, _ = save_all(tmp_path, misname, alone_s=2)

    misnamed = [UnavailableError for place, number in enumerate(numbers) if place != number]
    assert [type(result) for result in results].count(UnavailableError) == len(misnamed), results
    assert entries_of(tmp_path) == set()


@pytest.mark.parametrize("number", [STATE, PLAN, WRITE, PUBLISH])
def test_messages_in_a_wrong_order_commit_nothing(tmp_path: Path, number: int) -> None:
    def swap(rank: Rank, _state: object) -> None:
        rank.after = lambda at, gathered: gathered[::-1] if at == number else gathered

    results, _ = save_all(tmp_path, swap, alone_s=2)

    if number < PUBLISH:  # In that round all say the same.
        assert not any(isinstance(result, ckpt.Commit) for result in results), results
        assert entries_of(tmp_path) == set()


@pytest.mark.parametrize("damage", ["missing", "surplus", "empty", "cut"])
@pytest.mark.parametrize("number", [STATE, PLAN, WRITE, PUBLISH])
def test_messages_that_are_damaged_commit_nothing(
    tmp_path: Path, number: int, damage: Literal["missing", "surplus", "empty", "cut"]
) -> None:
    changes: dict[str, Callable[[list[bytes]], list[bytes]]] = {
        "missing": lambda all_said: all_said[:-1],
        "surplus": lambda all_said: [*all_said, all_said[-1]],
        "empty": lambda all_said: [*all_said[:-1], b""],
        "cut": lambda all_said: [*all_said[:-1], b"\x00\x01"],  # A failure that ends early.
    }

    def spoil(rank: Rank, _state: object) -> None:
        rank.after = lambda at, gathered: changes[damage](gathered) if at == number else gathered

    results, ranks = save_all(tmp_path, spoil)

    assert rounds_of(ranks) == [number + 1] * SIZE
    assert [type(result) for result in results] == [UnavailableError] * SIZE
    assert all("garbled" in str(result) for result in results), results
    assert entries_of(tmp_path) == (COMMITTED if number == PUBLISH else set())
