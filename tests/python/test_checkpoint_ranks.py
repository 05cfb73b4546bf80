"""Goal: ranks save and load together, any number of them, and fail together.

Method: ranks that are threads; shards with gaps, other tensors, a damaged file, a broken group; a
folder and a daemon as the target.
"""

import threading
import warnings
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import ffrecord
import ffrecord.checkpoint as ckpt
from daemon import Daemon
from ffrecord.errors import ConflictError
from thread_ranks import AfterARound, ThreadRank, ThreadRanks, same


@pytest.mark.parametrize("replicated", ["rank0", "split"])
@pytest.mark.parametrize("size", [2, 3])
def test_ranks_save_together_and_any_number_loads(
    tmp_path: Path, size: int, replicated: Literal["rank0", "split"]
) -> None:
    random = np.random.default_rng(2)
    model = {f"layer{i}": random.standard_normal((401 + i, 700)) for i in range(3)}
    whole = random.standard_normal((100, 8)).astype("float32")
    state = {"model": model, "small": np.arange(3), "zero": np.array(1.0), "epoch": 4}

    def save(rank: ThreadRank) -> object:
        begin, end = 100 * rank.rank // size, 100 * (rank.rank + 1) // size
        mine = {
            **state,
            "shard": ckpt.Shard(whole[begin:end], (100, 8), (begin, 0)),
            "rng": ckpt.PerRank({"draws": rank.rank, "buffer": np.full(2, rank.rank)}),
        }
        return ckpt.save(tmp_path, 1, mine, group=rank, replicated=replicated)

    results = ThreadRanks(size).run(save)
    assert all(result == results[0] for result in results), results
    assert isinstance(results[0], ckpt.Commit)

    def load(rank: ThreadRank) -> object:
        column = ckpt.Shard(np.zeros((100, 3), "float32"), (100, 8), (0, rank.rank))
        into = {
            "model": {key: np.zeros_like(value) for key, value in model.items()},
            "small": np.zeros(3, int), "zero": np.array(0.0), "epoch": 0, "shard": column,
            "rng": ckpt.PerRank(None),
        }  # fmt: skip
        loaded: Any = ckpt.load(tmp_path, into, group=rank)
        assert same(loaded["model"], model)
        assert np.array_equal(column.data, whole[:, rank.rank : rank.rank + 3])  # type: ignore[arg-type]
        assert same(loaded["rng"].value, {"draws": rank.rank, "buffer": np.full(2, rank.rank)})
        return loaded["epoch"]

    assert ThreadRanks(size).run(load) == [4] * size
    with pytest.raises(
        ckpt.MismatchError, match=rf"rng .saved by each of {size} ranks, loaded by 1"
    ):
        ckpt.load(tmp_path)
    loaded: Any = ckpt.load(tmp_path, elastic=True)
    assert same(loaded["model"], model)
    assert np.array_equal(loaded["shard"], whole)
    assert loaded["rng"] is None


@pytest.mark.parametrize(
    "own", [7, "x", np.arange(3), np.float32(2), {"draws": 1, "list": [2]}, [3], (4,)]
)
def test_at_another_number_of_ranks_what_each_had_stays_as_it_is_in_the_state(
    tmp_path: Path, own: object
) -> None:
    ThreadRanks(2).must(
        lambda rank: ckpt.save(tmp_path, 1, {"own": ckpt.PerRank(rank.rank), "n": 1}, group=rank)
    )

    for wrapped in (own, ckpt.PerRank(own)):
        loaded: Any = ckpt.load(tmp_path, {"own": wrapped, "n": 0}, elastic=True)
        found = loaded["own"].value if isinstance(wrapped, ckpt.PerRank) else loaded["own"]
        assert same(found, own) and loaded["n"] == 1


def test_a_rank_that_fails_fails_all_and_nothing_is_left(tmp_path: Path) -> None:
    def save(rank: ThreadRank) -> object:
        state = {"w": np.ones(3), "bad": object() if rank.rank == 1 else 1}
        return ckpt.save(tmp_path / "run", 1, state, group=rank)

    results = ThreadRanks(3).run(save)

    assert isinstance(results[1], TypeError)
    for result in (results[0], results[2]):
        assert isinstance(result, ckpt.PeerError)
        assert "rank 1: TypeError: state: bad" in str(result)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("broken", ["offset", "target", "limit", "tree"])
def test_whatever_fails_on_one_rank_alone_is_told_to_all(tmp_path: Path, broken: str) -> None:
    def save(rank: ThreadRank) -> object:
        bad = rank.rank == 1
        offset: Any = (-1,) if bad and broken == "offset" else (3 * rank.rank,)
        target: Any = 5 if bad and broken == "target" else tmp_path
        limit = 0.0 if bad and broken == "limit" else 30.0
        state: Any = {"w": ckpt.Shard(np.ones(3), (6,), offset)}
        if broken == "tree":
            state["own"] = ckpt.PerRank("x" * (40 << 20))  # Together more than a tree may have.
        return ckpt.save(target, 1, state, group=rank, timeout_s=limit)

    ranks = ThreadRanks(2)
    ranks.barrier = threading.Barrier(2, timeout=60)  # A rank that is left alone shows.
    results = ranks.run(save)

    assert all(isinstance(result, Exception) for result in results)
    assert not any(isinstance(result, threading.BrokenBarrierError) for result in results), results
    if broken != "tree":
        assert isinstance(results[0], ckpt.PeerError)
        assert str(results[0]).endswith(f"{type(results[1]).__name__}: {results[1]}")
    assert ckpt.list(tmp_path) == []


class Untold(Exception):
    """Its message cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("no message")


@pytest.mark.parametrize(
    "error",
    [ValueError("lone \udcff"), ValueError("x" * (65 << 20)), Untold()],
    ids=["surrogate", "long", "none"],
)
def test_a_failure_is_told_whatever_its_message_is(tmp_path: Path, error: Exception) -> None:
    class Failing:
        def state_dict(self) -> object:
            raise error

        def load_state_dict(self, state: object) -> None: ...

    ranks = ThreadRanks(2)
    ranks.barrier = threading.Barrier(2, timeout=60)
    results = ranks.run(
        lambda rank: ckpt.save(tmp_path, 1, {"w": Failing() if rank.rank else 1}, group=rank)
    )

    assert isinstance(results[0], ckpt.PeerError), type(results[0])
    assert results[0].kind == type(error).__name__
    assert results[1] is error


@pytest.mark.wrong_data
@pytest.mark.parametrize("number", [1, 2, 3, 4])
@pytest.mark.parametrize("step", ["latest", 1])
def test_ranks_never_load_two_saves_of_one_step(
    tmp_path: Path, number: int, step: Literal["latest", 1]
) -> None:
    """After a rollback, or of a damaged step, a step is saved again while others load it."""
    ckpt.save(tmp_path, 1, {"w": np.full(1000, 1)})

    def save_again() -> None:
        ckpt.remove(tmp_path, 1)
        ckpt.save(tmp_path, 1, {"w": np.full(1000, 2)}, group="alone")

    def load(rank: ThreadRank) -> object:
        state = {"w": np.zeros(1000, int)}
        try:
            ckpt.load(tmp_path, state, step=step, group=AfterARound(rank, number, save_again))
        except (ConflictError, ckpt.PeerError):
            return 0
        finally:
            assert len(set(state["w"])) == 1
        return int(state["w"][0])

    loaded = ThreadRanks(2).must(load)
    assert loaded == ([0, 0] if number == 1 else [1, 1])


@pytest.mark.parametrize("broken", ["target", "on_corrupt", "warning"])
def test_whatever_fails_a_load_on_one_rank_alone_is_told_to_all(
    tmp_path: Path, broken: str
) -> None:
    for step in (1, 2):
        ckpt.save(tmp_path, step, {"w": step})
    if broken == "warning":
        (tmp_path / "step-000000002/root.manifest").write_bytes(b"damaged")

    def load(rank: ThreadRank) -> object:
        bad = rank.rank == 1
        target: Any = 5 if bad and broken == "target" else tmp_path
        policy: Any = "ignore" if bad and broken == "on_corrupt" else "raise"
        return ckpt.load(target, group=rank, on_corrupt=policy)

    ranks = ThreadRanks(2)
    ranks.barrier = threading.Barrier(2, timeout=60)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Rank 0 finds the damage, and only it would warn.
        results = ranks.run(load)

    assert sorted(isinstance(result, ckpt.PeerError) for result in results) == [False, True]
    assert not any(isinstance(result, threading.BrokenBarrierError) for result in results), results


def test_ranks_with_other_tensors_are_refused(tmp_path: Path) -> None:
    results = ThreadRanks(2).run(
        lambda rank: ckpt.save(tmp_path, 1, {"w": np.ones(3 + rank.rank)}, group=rank)
    )
    assert all("not those of rank 0" in str(result) for result in results), results


def test_shards_with_a_gap_are_refused(tmp_path: Path) -> None:
    def save(rank: ThreadRank) -> object:
        shard = ckpt.Shard(np.ones((2, 3)), (5, 3), (2 * rank.rank, 0))
        return ckpt.save(tmp_path, 1, {"w": shard}, group=rank)

    results = ThreadRanks(2).run(save)
    for result in results:
        assert isinstance(result, ValueError)
        assert "w: the ranks' slices cover 12 of 15 elements" in str(result)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_segment_fails_the_load_of_all_ranks(tmp_path: Path) -> None:
    ThreadRanks(2).run(
        lambda rank: ckpt.save(
            tmp_path,
            1,
            {"w": ckpt.Shard(np.ones((500, 9)), (1000, 9), (500 * rank.rank, 0))},
            group=rank,
        )
    )
    segment = tmp_path / "step-000000001/part-00001/seg-0000"
    content = bytearray(segment.read_bytes())
    content[0] ^= 1
    segment.write_bytes(content)

    def load(rank: ThreadRank) -> object:
        shard = ckpt.Shard(np.ones((500, 9)), (1000, 9), (500 * rank.rank, 0))
        return ckpt.load(tmp_path, {"w": shard}, group=rank)

    results = ThreadRanks(2).run(load)
    assert isinstance(results[1], ffrecord.CorruptionError)
    assert isinstance(results[0], ckpt.PeerError) and "part-00001/seg-0000" in str(results[0])


def test_a_group_that_breaks_is_told_as_it_is(tmp_path: Path) -> None:
    class Broken:
        rank, size = 0, 1

        def __init__(self, calls: int) -> None:
            self.calls = calls

        def all_gather(self, mine: bytes) -> list[bytes]:
            self.calls -= 1
            if self.calls < 0:
                raise ConnectionResetError("a rank is gone")
            return [mine]

    for calls in (1, 2):
        with pytest.raises(ConnectionResetError, match="a rank is gone"):
            ckpt.save(tmp_path / "run", 1, {"w": np.ones(3)}, group=Broken(calls))
        assert list((tmp_path / "run").iterdir()) == []

    with pytest.raises(ConnectionResetError, match="a rank is gone") as raised:
        ckpt.save(tmp_path / "run", 1, {"w": np.ones(3)}, group=Broken(3))
    assert "step 1 may or may not be committed" in raised.value.__notes__[0]
    assert len(ckpt.list(tmp_path / "run")) == 1


# --- At a daemon ---------------------------------------------------------------------------------


def test_a_daemon_is_a_target_like_a_folder(tmp_path: Path) -> None:
    state = {"w": np.arange(100_000.0), "n": {"step": 7}}
    with Daemon(tmp_path / "data") as daemon:
        target = daemon.address("runs/x")
        assert ckpt.latest(target) is None

        def save(rank: ThreadRank) -> object:
            mine = {**state, "rng": ckpt.PerRank(rank.rank)}
            return ckpt.save(target, 1200, mine, group=rank, replicated="split")

        commits = ThreadRanks(2).run(save)
        assert commits[0] == commits[1] == ckpt.latest(target) == ckpt.list(target)[0]
        loaded: Any = ckpt.load(target, elastic=True)
        assert same({key: loaded[key] for key in state}, state)
        into = {"w": np.zeros(100_000), "n": None, "rng": None}
        ckpt.load(target, into, elastic=True)
        assert np.array_equal(into["w"], state["w"])  # type: ignore[arg-type]
        with pytest.raises(FileExistsError, match="step-000001200"):
            ckpt.save(target, 1200, state)
        with pytest.raises(FileNotFoundError):
            ckpt.load(target, step=5)
        ckpt.save(target, 1250, state, incremental=True)
        ckpt.remove(target, 1250)
        ckpt.save(target, 1300, state, incremental=True)
        assert same(ckpt.load(target), state)
        assert [commit.step for commit in ckpt.prune(target, keep_last=1)] == [1200]
    with pytest.raises(ConnectionError, match=r"127\.0\.0\.1"):
        ckpt.save(target, 1400, state, timeout_s=1)
