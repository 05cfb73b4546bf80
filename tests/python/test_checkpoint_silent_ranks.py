"""Goal: a rank that gets nowhere ends a save or load of the others, which name it and what it did.

A rank that gets on does not end it.

Method: processes joined by Gloo, of which one is stopped or killed, before a save or load and in
each of its rounds; the others say what they got. What ranks conclude from what others tell, by a
clock of the test.
"""

import os
import signal
from pathlib import Path

import pytest

from eventually import eventually

pytest.importorskip("torch")

import numpy as np
import torch.distributed as dist

import ffrecord.checkpoint as ckpt
from ffrecord.checkpoint._torch_group import _padded_size
from ffrecord.checkpoint._waiting import Notes, board_of
from ffrecord.torch.checkpoint import Group
from ranks import Ranks, run_ranks

WORLD = 3


def _body(rank: int, world: int, folder: str, way: str, how: int, limit_s: float) -> list[object]:
    group = Group(timeout_s=limit_s)
    state = {"x": ckpt.Shard(np.full(10, rank), (10 * world,), (10 * rank,))}
    ckpt.save(f"{folder}/run", 1, state, group=group)
    group.background().all_gather(b"")  # Made by all.
    dist.barrier()
    if rank == 1:
        Path(folder, "pid").write_text(str(os.getpid()))
        os.kill(os.getpid(), how)
        return []
    try:
        if way == "save":
            ckpt.save(f"{folder}/run", 2, state, group=group)
        elif way == "async_save":
            ckpt.async_save(f"{folder}/run", 2, state, group=group).result()
        else:
            ckpt.load(f"{folder}/run", state, group=group)
    except RuntimeError as error:
        found: list[object] = [type(error).__name__, str(error)]
    else:
        found = ["nothing", ""]
    Path(folder, f"done{rank}").touch()
    if rank == 0:  # It has the store.
        eventually(Path(folder, "done2").exists)
    return found


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
@pytest.mark.parametrize("way", ["save", "async_save", "load"])
def test_a_rank_that_does_not_answer_is_named(tmp_path: Path, way: str, how: int) -> None:
    ranks = Ranks(_body, WORLD, str(tmp_path), way, int(how), 3.0)
    for rank in (0, 2):
        ranks.context.processes[rank].join(300)
    if how == signal.SIGSTOP:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    ranks.context.processes[1].join(300)
    for rank in (0, 2):
        kind, message = ranks.found(rank)
        assert (kind, "rank 1 of 3 did not answer" in message) == ("PeerError", True), message
    assert [commit.step for commit in ckpt.list(tmp_path / "run")] == [1]
    assert not list((tmp_path / "run").glob(".attempt-2-*/part-*"))


class _Stopping(Group):
    """Stops its process in a round of a save or load, when the others have heard what it does."""

    def stop_in(self, number: int, folder: str, before: str) -> None:
        self.left, self.folder, self.before = number, folder, before

    def all_gather(self, mine: bytes) -> list[bytes]:
        """As a group does."""
        if self.left == 0:
            board = board_of(None, 1)
            eventually(lambda: board.told is not None and self.before in board.told[0])
            Path(self.folder, "pid").write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGSTOP)
        self.left -= 1
        return super().all_gather(mine)


def _stops_in_a_round(
    rank: int, world: int, folder: str, way: str, number: int, does: str, limit_s: float
) -> list[str]:
    state = {"x": ckpt.Shard(np.full(10, rank), (10 * world,), (10 * rank,))}
    group = Group(timeout_s=limit_s)
    ckpt.save(f"{folder}/run", 1, state, group=group)
    if rank == 1:
        group = stopping = _Stopping(timeout_s=limit_s)
        stopping.stop_in(number, folder, does)
    try:
        if way == "save":
            ckpt.save(f"{folder}/run", 2, state, group=group)
        else:
            ckpt.load(f"{folder}/run", state, group=group)
    except RuntimeError as error:
        found = [type(error).__name__, str(error)]
    else:
        found = ["nothing", ""]
    Path(folder, f"done{rank}").touch()
    if rank == 0:  # It has the store.
        eventually(Path(folder, "done2").exists)
    return found


# Way and round, and what the rank that is stopped does then.
ROUNDS = [
    ("save", 0, "plans step 2 of"),
    ("save", 1, "plans step 2 of"),
    ("save", 2, "has written part-00001 of step 2 of"),
    ("save", 3, "has written part-00001 of step 2 of"),
    ("load", 0, "begins a load"),
    ("load", 1, "opens step 1 of"),
    ("load", 2, "plans what it reads of step 1 of"),
    ("load", 4, "reads x of step 1"),
]


@pytest.mark.parametrize(("way", "number", "does"), ROUNDS)
def test_a_rank_that_stops_in_a_round_is_named_with_what_it_did(
    tmp_path: Path, way: str, number: int, does: str
) -> None:
    ranks = Ranks(_stops_in_a_round, WORLD, str(tmp_path), way, number, does, 4.0)
    for rank in (0, 2):
        ranks.context.processes[rank].join()
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    ranks.context.processes[1].join()
    for rank in (0, 2):
        kind, message = ranks.found(rank)
        assert kind == "PeerError", message
        assert "no progress for 4 s" in message and "rank 1 " in message and does in message
    committed = [commit.step for commit in ckpt.list(tmp_path / "run")]
    assert committed == ([1, 2] if (way, number) == ("save", 3) else [1])


# --- What ranks conclude -------------------------------------------------------------------------


def test_ranks_that_get_on_are_waited_for_and_others_are_named() -> None:
    notes = Notes([1, 2], 3)
    for now in range(100):
        told = {
            1: ("waits in round 2", now, True),
            2: (f"writes a, {now} of 100 bytes", now, False),
        }
        notes.take(told, now)
        assert notes.verdict(0, now, 10) is None
    for now in range(100, 109):
        notes.take({1: ("waits in round 2", now, True), 2: told[2]}, now)
        assert notes.verdict(0, now, 10) is None
    notes.take({1: ("waits in round 2", 109, True), 2: told[2]}, 109)
    why = notes.verdict(0, 109, 10)
    assert why is not None and why.startswith("rank 2 of 3 did not answer: no progress for 10 s")
    assert "rank 2 writes a, 99 of 100 bytes" in why and "rank 1 " not in why


def test_a_rank_that_never_came_is_named_after_the_limit_of_this_wait() -> None:
    notes = Notes([0, 1, 3], 4)
    for now in range(50, 60):
        notes.take({rank: ("waits in round 1", now, True) for rank in (0, 3)}, now)
        assert notes.verdict(50, now, 10) is None
    notes.take({rank: ("waits in round 1", 60, True) for rank in (0, 3)}, 60)
    why = notes.verdict(50, 60, 10)
    assert why is not None and "rank 1 has never come to a save or load" in why


def test_what_a_rank_has_not_told_yet_is_no_silence() -> None:
    """Ranks tell what they do from time to time: at the limit one may be further than it told."""
    notes = Notes([1, 2], 3)
    notes.take({1: ("writes a", 1, False), 2: ("writes b", 1, False)}, 0)
    for now in range(1, 12):
        assert notes.verdict(0, now, 10, 2.5) is None
    notes.take({1: ("writes a", 1, False), 2: ("writes b", 2, False)}, 12)
    assert notes.verdict(0, 12, 10, 2.5) is None
    why = notes.verdict(0, 12.5, 10, 2.5)
    assert why is not None and why.startswith("rank 1 of 3 did not answer: no progress for 10 s")


def test_ranks_that_all_wait_for_each_other_end() -> None:
    notes = Notes([1], 2)
    for now in range(10):
        assert notes.verdict(0, now, 10) is None
        notes.take({1: ("waits in round 2", now, True)}, now)
    notes.take({1: ("waits in round 2", 12, True)}, 12)
    assert notes.verdict(0, 12, 10) == (
        "all 2 ranks have waited for each other for 10 s: what they send does not arrive"
    )
    notes.take({1: ("waits in round 3", 13, True)}, 13)
    assert notes.verdict(0, 13, 10) is None


# --- Messages of very different sizes ------------------------------------------------------------


def _gather_sizes(rank: int, world: int) -> list[bool]:
    group = Group(timeout_s=60)
    right = []
    for sizes in [(0, 0, 0), (1, 0, 70_000), (3_000_000, 5, 0), (200_000, 3, 900_000), (9, 9, 9)]:
        expected = [bytes([1 + i]) * size for i, size in enumerate(sizes)]
        right.append(group.all_gather(expected[rank]) == expected)
    return right


def test_ranks_with_much_to_tell_do_not_cost_those_with_little() -> None:
    assert run_ranks(_gather_sizes, WORLD) == [[True] * 5] * WORLD
    assert _padded_size([100] * 1000) == 100
    assert _padded_size([100] * 1000 + [2_000_000]) == 100
    assert _padded_size([2_000_000] * 4) == 2_000_000


def test_a_limit_that_is_none_is_refused() -> None:
    for limit in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="timeout_s"):
            Group(timeout_s=limit)
