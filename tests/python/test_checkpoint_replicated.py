"""Goal: a run whose checkpoints are at two daemons goes on exactly when one of them is lost.

Method: train and save to two daemons, kill one and delete its folder, resume; kill the saving
process, or a daemon, while bytes are on their way.
"""

import json
import multiprocessing
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cli
import ffrecord.checkpoint as ckpt
import saving_to
from daemon import Daemon
from eventually import eventually
from ffrecord.errors import CorruptionError
from thread_ranks import ThreadRank, ThreadRanks, same


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[list[Daemon]]:
    with Daemon(tmp_path / "a") as a, Daemon(tmp_path / "b") as b:
        yield [a, b]


def target_of(daemons: list[Daemon]) -> str:
    return ckpt.replicated_target([daemon.address("runs/x") for daemon in daemons])


def lose(daemon: Daemon) -> None:
    """The node, with all that it had."""
    daemon.kill()
    shutil.rmtree(daemon.data)


def state(seed: int) -> dict[str, Any]:
    return {"w": np.random.default_rng(seed).random((300, 7)), "step": seed}


def test_a_run_goes_on_exactly_when_a_node_is_lost(daemons: list[Daemon]) -> None:
    """SGD with momentum, on samples drawn from a generator that is saved with it."""
    target = target_of(daemons)

    def train(state: dict[str, Any], count: int) -> list[float]:
        chance = np.random.default_rng()
        chance.bit_generator.state = state["chance"]
        seen = []
        for _ in range(count):
            slope = state["w"] - chance.random(1000)
            state["m"] = state["m"] * 0.9 + slope
            state["w"] = state["w"] - 0.1 * state["m"]
            seen.append(float(state["w"].sum()))
        state["chance"] = chance.bit_generator.state
        return seen

    def fresh() -> dict[str, Any]:
        return {
            "w": np.zeros(1000),
            "m": np.zeros(1000),
            "chance": np.random.default_rng(3).bit_generator.state,
        }

    run = fresh()
    train(run, 5)
    pending = ckpt.async_save(target, 5, run)
    expected = train(run, 20)
    assert pending.result().step == 5

    for lost, left in (daemons, daemons[::-1]):
        lose(lost)
        resumed: Any = ckpt.load(target, fresh())
        assert train(resumed, 20) == expected
        # Once a place is there again, copies go there again.
        lost.start()
        ckpt.copy(left.address("runs/x"), lost.address("runs/x"), 5)


def test_ranks_write_to_their_own_place_and_to_a_neighbours(
    daemons: list[Daemon], tmp_path: Path
) -> None:
    with Daemon(tmp_path / "c") as third:
        daemons.append(third)
        target = target_of(daemons)
        whole = np.random.default_rng(1).random((90, 4))

        def save(rank: ThreadRank) -> object:
            begin, end = 30 * rank.rank, 30 * (rank.rank + 1)
            shard = ckpt.Shard(whole[begin:end], (90, 4), (begin, 0))
            return ckpt.save(target, 1, {"w": shard}, group=rank)

        ThreadRanks(3).must(save)
        for daemon in daemons:
            with pytest.raises(CorruptionError, match="no such file"):  # Two of three parts.
                ckpt.load(daemon.address("runs/x"), step=1)
        lose(daemons[1])
        assert same(ckpt.load(target), {"w": whole})
        lose(daemons[2])
        with pytest.raises(FileNotFoundError, match=r"cannot be reached"):
            ckpt.load(target, step=1, timeout_s=0.6)


def test_everything_takes_buddies_that_takes_a_target(
    daemons: list[Daemon], tmp_path: Path
) -> None:
    target = target_of(daemons)
    for step in (1, 2, 3):
        ckpt.save(target, step, state(step))
    with pytest.raises(FileExistsError):
        ckpt.save(target, 3, state(4))

    assert [commit.step for commit in ckpt.list(target)] == [1, 2, 3]
    assert ckpt.verify(target) == []
    assert [commit.step for commit in ckpt.prune(target, keep_last=1)] == [1, 2]
    assert json.loads(cli.ok("ffrecord", "checkpoint", "list", "--json", target))[0]["step"] == 3
    ckpt.copy(target, tmp_path / "folder")
    assert same(ckpt.load(tmp_path / "folder"), state(3))
    staged = ckpt.stage(target, tmp_path / "far", keep=(1, None))
    ckpt.save(staged, 4, state(4))
    staged.flush()
    assert [commit.step for commit in ckpt.list(target)] == [4]
    assert [commit.step for commit in ckpt.list(tmp_path / "far")] == [3, 4]
    assert ckpt.latest(ckpt.replicated_target([tmp_path / "nothing", tmp_path / "there"])) is None


@pytest.mark.parametrize("places", [["a"], ["a", "a"], ["a", "b|c"], ["a", "buddies:b|c"]])
def test_what_are_no_buddies_is_refused(places: list[str]) -> None:
    with pytest.raises(ValueError, match="place"):
        ckpt.replicated_target(places)


# --- Killed on the way ---------------------------------------------------------------------------

_processes = multiprocessing.get_context("forkserver")


def test_a_save_that_is_killed_while_copying_is_no_step(daemons: list[Daemon]) -> None:
    target = target_of(daemons)
    ckpt.save(target, 1, state(1))
    for last in ("planned", "midway", "written"):
        here, there = _processes.Pipe()
        victim = _processes.Process(target=saving_to.save, args=(target, 2, there))
        victim.start()
        assert here.recv() == "planned"
        if last == "midway":
            daemons[1].freeze()  # It takes what its socket holds, and no more.
        if last != "planned":
            here.send("go on")
            while here.recv() != last:
                pass
        victim.kill()
        victim.join()
        daemons[1].thaw()
        assert same(ckpt.load(target), state(1))
        assert [commit.step for commit in ckpt.list(target)] == [1]
    ckpt.save(target, 2, state(2))
    assert same(ckpt.load(target), state(2))


def test_a_daemon_that_is_killed_while_it_gets_its_copy_fails_the_save(
    daemons: list[Daemon],
) -> None:
    target = target_of(daemons)
    ckpt.save(target, 1, state(1))
    here, there = _processes.Pipe()
    with ckpt.monitor() as watch:
        large = {"w": np.ones(saving_to.SIZE_BYTES, "uint8")}
        pending = ckpt.async_save(target, 2, large, group=saving_to.Ranks(there), timeout_s=1)
        assert here.recv() == "planned"
        daemons[1].freeze()  # It takes what its socket holds, and no more.
        here.send("go on")
        here.send("and on")
        eventually(lambda: not (seen := watch.report().running) or seen[0].done_bytes)
        daemons[1].thaw()
        lose(daemons[1])
        with pytest.raises((ConnectionError, TimeoutError)):
            pending.result()
    assert same(ckpt.load(target), state(1))
    assert [commit.step for commit in ckpt.list(target)] == [1]
