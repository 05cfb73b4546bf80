"""What two ranks that are threads save together, and whether each gets back what it has."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

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
        ckpt.load(run, {key: shard}, step=step, group=rank, strict=False, resume=False)
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
        found: Any = ckpt.load(run, step=step, group=rank, resume=False)
        return all(same(found[key], each) for key, each in {**content.arrays(), **own}.items())

    assert ThreadRanks(2).must(work) == [True, True], "a rank has what is not its own"


def load_elastic(run: Path, step: int, content: Content) -> object:
    """Load it on one rank, whose state has no PerRank: what the own value of the state becomes."""
    into = {**content.arrays(), "own": {"at": -1}, "other": ckpt.PerRank(None)}
    loaded: Any = ckpt.load(run, into, step=step, elastic=True, resume=False)
    return loaded["own"]


def within_s(limit_s: float, work: Any) -> Any:  # noqa: ANN401
    """Return what `work` does, which may hang for ever; raises what it raises."""
    (found,) = ThreadRanks(1, daemon=True).run(lambda _: work(), limit_s)
    if isinstance(found, Exception):
        raise found
    return found


def load_scattered(target: Path, step: int, content: Content) -> None:
    """Check that ranks that divide the rows in another way get theirs."""
    whole = content.arrays()["table"]

    def work(rank: ThreadRank) -> bool:
        other = 1 - rank.rank
        into = truth.scattered(other, whole, is_filled=False)
        expected = truth.scattered(other, whole)
        ckpt.load(target, {"table": into}, step=step, group=rank, strict=False, resume=False)
        pairs = zip(into.local_shards(), expected.local_shards(), strict=True)
        return all(torch.equal(here.tensor, there.tensor) for here, there in pairs)

    assert ThreadRanks(2).run(work) == [True, True], "rows were saved and others loaded"


# What two ranks that save together have.
DIVIDED = ["shards", "scattered", "stages", "on ranks"]
# In these they do not have one state: rows of another rank, rows of none, all rows twice, another
# type, one table less, other values of each rank.
NO_STATE = ["overlap", "gap", "twice", "types", "table", "own"]
KINDS = [*DIVIDED, *NO_STATE, "differ", "raises", "steps"]


def spoil(state: dict[str, Any], what: str, rank: int) -> None:
    """Change the state of this rank, if it is rank 1, or its part of the table."""
    whole, half = state["table"], truth.TABLE_ROWS // 2
    if what in ("overlap", "gap", "twice"):
        begins = {"overlap": (0, half - 1), "gap": (0, half + 1), "twice": (0, 0)}[what]
        ends = (len(whole) if what == "twice" else half, len(whole))
        begin, end = begins[rank], ends[rank]
        state["table"] = ckpt.Shard(whole[begin:end], whole.shape, (begin, 0))
    elif rank == 1 and what == "types":
        state["table"] = whole.astype(np.float16)
    elif rank == 1 and what == "table":
        del state["table"]
    elif rank == 1 and what == "own":
        state["own"] = ckpt.PerRank(1)


def divide(state: dict[str, Any], what: str, rank: int) -> None:
    """Leave this rank its part of the table."""
    half = truth.TABLE_ROWS // 2
    whole = state["table"]
    part = whole[half * rank : half * (rank + 1)]
    if what == "shards":
        state["table"] = ckpt.Shard(part, whole.shape, (half * rank, 0))
    elif what == "scattered":
        state["table"] = truth.scattered(rank, whole)
    else:
        del state["table"]
        is_marked = what == "on ranks"
        alone: Any = (
            ckpt.OnRanks(part, (rank,)) if is_marked else ckpt.Shard(part, part.shape, (0, 0))
        )
        state[f"stage {rank}"] = alone
