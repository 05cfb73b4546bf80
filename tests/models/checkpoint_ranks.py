"""What two ranks that are threads save together, and whether each gets back what it has."""

from pathlib import Path
from typing import Any

import numpy as np

import checkpoint_truth as truth
import ffrecord.checkpoint as ckpt
from checkpoint_truth import Content
from thread_ranks import ThreadRank, ThreadRanks, same


def load_stages(run: Path, step: int, content: Content) -> None:
    """Check that each rank gets back the tensor that only it has."""
    half = truth.TABLE_ROWS // 2
    whole = content.arrays()["table"]

    def work(rank: ThreadRank) -> bool:
        key = f"stage {rank.rank}"
        rows = whole[half * rank.rank : half * (rank.rank + 1)]
        shard = ckpt.Shard(np.zeros_like(rows), rows.shape, (0, 0))
        ckpt.load(run, {key: shard}, step=step, group=rank, strict=False)
        return bool(np.array_equal(shard.data, rows))

    assert ThreadRanks(2).run(work) == [True, True], "a stage was saved and cannot be loaded"


def save_and_load(run: Path, step: int, content: Content, *, split: bool) -> None:
    """Save what all ranks have and what each has, in dicts of other orders, and load it."""

    def work(rank: ThreadRank) -> bool:
        own = {"own": {"at": rank.rank}, "other": np.full(3, rank.rank + 10)}
        state = {**content.arrays(), **{key: ckpt.PerRank(each) for key, each in own.items()}}
        if rank.rank == 1:
            state = dict(reversed(state.items()))
        how: Any = "split" if split else "rank0"
        ckpt.save(run, step, state, group=rank, replicated=how)
        found: Any = ckpt.load(run, step=step, group=rank)
        return all(same(found[key], each) for key, each in {**content.arrays(), **own}.items())

    assert ThreadRanks(2).must(work) == [True, True], "a rank has what is not its own"


def load_elastic(run: Path, step: int, content: Content) -> object:
    """Load it on one rank, whose state has no PerRank: what the own value of the state becomes."""
    into = {**content.arrays(), "own": {"at": -1}, "other": ckpt.PerRank(None)}
    loaded: Any = ckpt.load(run, into, step=step, elastic=True)
    return loaded["own"]


def within_s(limit_s: float, work: Any) -> Any:  # noqa: ANN401
    """Return what `work` does, which may hang for ever; raises what it raises."""
    (found,) = ThreadRanks(1, daemon=True).run(lambda _: work(), limit_s)
    if isinstance(found, Exception):
        raise found
    return found
