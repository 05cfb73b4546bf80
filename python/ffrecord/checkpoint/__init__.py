"""Checkpoints: all ranks' tensors and small values durable and visible together, or not at all.

    import ffrecord.checkpoint as ckpt

    state = {"model": model, "optim": optim, "rng": ckpt.PerRank(ckpt.rng_state()), "step": 1200}
    ckpt.save("runs/x", 1200, state, group=group)
    ckpt.load("runs/x", state, group=group)      # Fills the tensors in place.

A target is a folder that all ranks share, or `ffrecord://host[:port]/run`. Nothing is pickled when
saving and nothing is unpickled when loading: a state is made of None, bool, int, float, str,
bytes, list, tuple, dict, arrays and tensors, and of objects with `state_dict` and
`load_state_dict`. Works with NumPy alone; torch is used if the program has imported it.
"""

import dataclasses
import hashlib
import os
import warnings
from typing import Any, Literal

from ffrecord import _ffrecord
from ffrecord.checkpoint.ranks import Group, PeerError, boxes_of_rank, together
from ffrecord.checkpoint.restore import MismatchError, Restorer
from ffrecord.checkpoint.rng import rng_state, set_rng_state
from ffrecord.checkpoint.state import Flattener, PerRank, Shard, fill_ranks
from ffrecord.checkpoint.tensors import memory_of
from ffrecord.checkpoint.values import decode, encode

__all__ = [
    "Commit",
    "Group",
    "MismatchError",
    "PeerError",
    "PerRank",
    "Shard",
    "latest",
    "list",
    "load",
    "prune",
    "remove",
    "rng_state",
    "save",
    "set_rng_state",
]

Target = str | os.PathLike[str]
_list = list  # The public `list` below hides the builtin.


@dataclasses.dataclass(frozen=True, order=True)
class Commit:
    """A committed checkpoint.

    Attributes:
        step: as it was saved.
        attempt: 32 hex digits, unique to this save.
        size_bytes: of all ranks' tensors.
    """

    step: int
    attempt: str
    size_bytes: int


def save(
    target: Target,
    step: int,
    state: object,
    *,
    group: Group | None = None,
    replicated: Literal["rank0", "split"] = "rank0",
    direct: bool = True,
    timeout_s: float = 30.0,
) -> Commit:
    """Save one checkpoint; it is committed when this returns, on every rank alike.

    Tensors are read while saving: do not change them meanwhile. Values are those of rank 0, but for
    `PerRank` values.

    Args:
        target: a folder, made if it is not there, or `ffrecord://host[:port]/run`.
        step: 0 or more; the name of the checkpoint within `target`.
        state: values, tensors, `Shard`s, and objects with `state_dict`.
        group: the ranks that save together; all of them call this with the same step. None: alone.
        replicated: who saves what all ranks have: rank 0, or each rank a share, which needs the
            replicas to be equal.
        direct: write past the page cache where the file system allows it.
        timeout_s: for each call to a daemon.

    Raises:
        TypeError: something in the state would need pickling; names its path.
        FileExistsError: the step is committed already.
        ValueError: ranks disagree, or a tensor is not covered exactly once.
        OSError: with errno, such as ENOSPC; nothing of the step is left.
        PeerError: another rank failed before anything was written.
    """
    rank, size = (0, 1) if group is None else (group.rank, group.size)
    flattener = Flattener(rank)

    def flatten() -> object:
        if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step < 2**63:
            raise ValueError(f"step is {step!r}, must be an integer from 0 to 2**63 - 1")
        if replicated not in ("rank0", "split"):
            raise ValueError(f'replicated is {replicated!r}, must be "rank0" or "split"')
        tree = flattener.value(state)
        shared = sorted((leaf.key, leaf.shape) for leaf in flattener.leaves if not leaf.is_own)
        digest = hashlib.blake2b(repr(shared).encode(), digest_size=16).digest()
        return {
            "tree": encode(tree if rank == 0 else None),
            "own": encode(flattener.own_trees),
            "shared": (digest, len(flattener.own_trees)),
        }

    answers: _list[Any] = together(group, flatten)
    for other, answer in enumerate(answers):
        if answer["shared"] != answers[0]["shared"]:
            raise ValueError(
                f"the tensors of rank {other} are not those of rank 0; what only some ranks have "
                "is a Shard or PerRank"
            )
    trees: _list[Any] = [decode(answer["own"]) for answer in answers]
    tree = fill_ranks(decode(answers[0]["tree"]), trees)
    memories = [(leaf, memory_of(leaf.data)) for leaf in flattener.leaves]
    boxes = boxes_of_rank(memories, rank, size, replicated == "split")
    return Commit(
        *_ffrecord.save_checkpoint(
            os.fspath(target),
            step,
            boxes,
            encode(tree) if rank == 0 else b"",
            group,
            direct,
            timeout_s,
        )
    )


def load(
    target: Target,
    state: object = None,
    *,
    step: int | Literal["latest"] = "latest",
    strict: bool = True,
    elastic: bool = False,
    group: Group | None = None,
    timeout_s: float = 30.0,
) -> object:
    """Load a checkpoint, whatever number of ranks saved it.

    Args:
        target: as for `save`.
        state: what to fill, of the structure that was saved. Arrays, tensors and `Shard`s are
            filled in place, values in dicts and lists are replaced, objects get their
            `load_state_dict` called; None takes whatever is stored in its place. Nothing is
            touched unless all of it fits. Without a state everything is made anew, as NumPy arrays.
        step: which; "latest" is the newest that is whole. If newer ones are damaged, a warning
            says so.
        strict: paths that only one of both has are an error; otherwise they are left alone.
        elastic: at another number of ranks, leave `PerRank` values as they are in `state`.
        group: the ranks that load together: all load the same step, and each its `PerRank` values.
        timeout_s: for each call to a daemon.

    Returns:
        The state; a new one where it could not be filled in place.

    Raises:
        FileNotFoundError: no such step, or none at all.
        CorruptionError: bytes fail a check; names the file. Tensors may then be partly filled.
        MismatchError: a ValueError that lists every path that does not fit.
        PeerError: another rank failed.
    """
    rank, size = (0, 1) if group is None else (group.rank, group.size)
    where = os.fspath(target)
    opened: _list[_ffrecord.CheckpointReader] = []

    def open_step(wanted: int | None) -> object:
        opened.append(_ffrecord.CheckpointReader(where, wanted, timeout_s))
        return opened[-1].commit[0]

    # Rank 0 decides which step is the latest, for a save may be under way.
    asked = None if step == "latest" else step
    chosen = together(group, lambda: open_step(asked) if rank == 0 else None)[0]
    if rank != 0:
        together(group, lambda: open_step(chosen if isinstance(chosen, int) else None))
    else:
        together(group, lambda: None)
    reader = opened[0]
    for message in reader.skipped:
        warnings.warn(f"passed over a damaged checkpoint: {message}", stacklevel=2)

    restorer = Restorer(reader, rank, size, elastic)
    filled: _list[object] = []

    def plan() -> None:
        tree = decode(reader.tree)
        filled.append(restorer.fresh(tree) if state is None else restorer.into(state, tree))
        restorer.check(strict)

    together(group, plan)
    together(group, restorer.run)
    return filled[0]


def latest(target: Target, *, timeout_s: float = 30.0) -> Commit | None:
    """The newest checkpoint that is whole, which `load` would take; None if there is none."""
    try:
        reader = _ffrecord.CheckpointReader(os.fspath(target), None, timeout_s)
    except FileNotFoundError:
        return None
    return Commit(*reader.commit)


def list(target: Target, *, timeout_s: float = 30.0) -> _list[Commit]:
    """The committed checkpoints whose root manifest verifies, in the order of their steps."""
    return [Commit(*found) for found in _ffrecord.list_checkpoints(os.fspath(target), timeout_s)]


def remove(target: Target, step: int, *, timeout_s: float = 30.0) -> None:
    """Make a checkpoint disappear for good. Raises FileNotFoundError if there is none."""
    _ffrecord.remove_checkpoint(os.fspath(target), step, timeout_s)


def prune(target: Target, *, keep_last: int, timeout_s: float = 30.0) -> _list[Commit]:
    """Remove all but the newest `keep_last` checkpoints; returns those removed.

    Damaged checkpoints neither count nor go. Call it on one rank.
    """
    if keep_last < 1:
        raise ValueError(f"keep_last is {keep_last}, must be at least 1")
    removed = list(target, timeout_s=timeout_s)[:-keep_last]
    for commit in removed:
        remove(target, commit.step, timeout_s=timeout_s)
    return removed
