"""Goal: a rank that does not answer ends a save or load of the others, by its number, in time.

Method: processes joined by Gloo, of which one is stopped or killed; the others say what they got.
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
from ffrecord.torch.checkpoint import Group
from ranks import Ranks

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
        ranks.context.processes[rank].join()
    if how == signal.SIGSTOP:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    ranks.context.processes[1].join()
    for rank in (0, 2):
        kind, message = ranks.found(rank)
        assert (kind, "rank 1 of 3 did not answer" in message) == ("PeerError", True), message
    assert [commit.step for commit in ckpt.list(tmp_path / "run")] == [1]
    assert not list((tmp_path / "run").glob(".attempt-2-*/part-*"))


def test_a_limit_that_is_none_is_refused() -> None:
    for limit in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="timeout_s"):
            Group(timeout_s=limit)
