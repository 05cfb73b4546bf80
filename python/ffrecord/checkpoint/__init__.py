"""Checkpoints: all ranks' tensors and small values durable and visible together, or not at all.

    import ffrecord.checkpoint as ckpt

    state = {"model": model, "optim": optim, "rng": ckpt.PerRank(ckpt.rng_state()), "step": 1200}
    ckpt.save("runs/x", 1200, state, group=group)
    ckpt.load("runs/x", state, group=group)      # Fills the tensors in place.
    pending = ckpt.async_save("runs/x", 1300, state, group=group)
    pending.result()                             # Committed; training went on meanwhile.

A target is a folder that all ranks share, `ffrecord://host[:port]/run`, `s3://bucket/run` of an
S3-compatible store (`Mirror` copies there what is saved elsewhere), or several of them
(`buddies`), any one of which may be lost. Nothing is pickled when
saving and nothing is unpickled when loading: a state is made of None, bool, int, float, str,
bytes, list, tuple, dict, arrays and tensors, and of objects with `state_dict` and
`load_state_dict`. Works with NumPy alone; torch is used if the program has imported it.
"""

import contextlib
import os
from typing import Literal

from ffrecord import _ffrecord
from ffrecord.checkpoint.background import BusyError, OnBusy, PendingSave, process_background
from ffrecord.checkpoint.buddies import buddies
from ffrecord.checkpoint.collector import without_collector
from ffrecord.checkpoint.difference import Difference, diff
from ffrecord.checkpoint.loading import OnCorrupt, load
from ffrecord.checkpoint.mirror import Mirror, copy
from ffrecord.checkpoint.ranks import Box, Group, PeerError, box_of
from ffrecord.checkpoint.restore import MismatchError
from ffrecord.checkpoint.rng import rng_state, set_rng_state
from ffrecord.checkpoint.safetensors import export_safetensors, import_safetensors
from ffrecord.checkpoint.saving import Commit, Order, Replicated, Target, commit, flatten
from ffrecord.checkpoint.staging import TornStageError
from ffrecord.checkpoint.state import PerRank, Shard
from ffrecord.checkpoint.tensors import memory_of
from ffrecord.checkpoint.watching import Progress, Report, Save, Watch, ledger, watch
from ffrecord.errors import CorruptionError

__all__ = [
    "BusyError",
    "Commit",
    "Difference",
    "Group",
    "Mirror",
    "MismatchError",
    "OnCorrupt",
    "PeerError",
    "PendingSave",
    "PerRank",
    "Progress",
    "Report",
    "Shard",
    "TornStageError",
    "Watch",
    "async_save",
    "buddies",
    "copy",
    "diff",
    "export_safetensors",
    "import_safetensors",
    "latest",
    "list",
    "load",
    "prune",
    "remove",
    "rng_state",
    "save",
    "set_rng_state",
    "verify",
    "watch",
]

_list = list  # The public `list` below hides the builtin.


def save(
    target: Target,
    step: int,
    state: object,
    *,
    group: Group | None = None,
    replicated: Replicated = "rank0",
    direct: bool = True,
    incremental: bool = False,
    timeout_s: float = 30.0,
) -> Commit:
    """Save one checkpoint; it is committed when this returns, on every rank alike.

    Tensors are read while saving: do not change them meanwhile. Values are those of rank 0, but for
    `PerRank` values.

    Args:
        target: a folder, made if it is not there, `ffrecord://host[:port]/run`, `s3://bucket/run`,
            or several of them, of `buddies`.
        step: 0 or more; the name of the checkpoint within `target`.
        state: values, tensors, `Shard`s, and objects with `state_dict`.
        group: the ranks that save together; all of them call this with the same step. None: alone.
        replicated: who saves what all ranks have: rank 0, or each rank a share, which needs the
            replicas to be equal.
        direct: write past the page cache where the file system allows it.
        incremental: write only what has changed since the newest checkpoint of the target, and
            share the files of the rest with it. Costs one more hash of every byte. Every checkpoint
            stays whole by itself; at a daemon or store all is written.
        timeout_s: for each call to a daemon or store.

    Raises:
        TypeError: something in the state would need pickling; names its path.
        FileExistsError: the step is committed already.
        ValueError: ranks disagree, or a tensor is not covered exactly once.
        OSError: with errno, such as ENOSPC; nothing of the step is left.
        PeerError: another rank failed before anything was written.
    """
    rank, size = (0, 1) if group is None else (group.rank, group.size)
    order = Order(target, step, replicated, direct, timeout_s, incremental)
    seen = Save(step)
    owners: _list[object] = []  # Of the memory that boxes name.
    boxes: _list[Box] = []

    def prepare() -> dict[str, object]:
        flat = flatten(order, state, rank, size)
        boxes.extend(flat.shares)
        owners.extend([leaf.data for leaf in flat.shares])
        for index, leaf in enumerate(flat.shares):
            if leaf.address is None:  # Not contiguous, or not on the CPU.
                copy = memory_of(leaf.data)
                owners.append(copy)
                boxes[index] = box_of(leaf, copy.address + leaf.skip_bytes, False)
        return flat.words

    with ledger().stall(), ledger().save(seen), contextlib.ExitStack() as uncollected:
        # Until the boxes are gone again: the collector would walk through them, and all of torch.
        uncollected.enter_context(without_collector())

        def taken() -> None:
            boxes.clear()
            uncollected.close()

        return commit(order, group, prepare, boxes, progress=seen.bytes, taken=taken)


def async_save(
    target: Target,
    step: int,
    state: object,
    *,
    group: Group | None = None,
    replicated: Replicated = "rank0",
    direct: bool = True,
    incremental: bool = False,
    timeout_s: float = 30.0,
    stage_bytes_max: int = 512 << 20,
    on_busy: OnBusy = "wait",
) -> PendingSave:
    """Save one checkpoint while training goes on; returns when the state may be changed again.

    Tensors of this rank are copied first, in memory that stays for the next save. What passes
    `stage_bytes_max` is written from where it is, before this returns: the call then takes as long
    as writing that part does. Saves of a process follow each other; the interpreter does not exit
    before the last has ended. In a forked child it goes on in the parent alone.

    Args:
        target: as for `save`, and so for `state`, `direct`, `incremental` and the like.
        step: the name of the checkpoint within `target`.
        state: values, tensors, `Shard`s, and objects with `state_dict`.
        group: the ranks that save together. They talk on a thread of their own: a group with a
            method `background` gives another group for that, called by all ranks alike.
        replicated: who saves what all ranks have.
        direct: write past the page cache where the file system allows it.
        incremental: write only what has changed since the newest checkpoint.
        timeout_s: for each call to a daemon or store.
        stage_bytes_max: for the copies of this rank, in bytes.
        on_busy: while the save before goes on, wait for it, or fail with BusyError, on all ranks.

    Returns:
        The save. Whatever fails, on whichever rank, fails its `result` on every rank.
    """
    if on_busy not in ("wait", "raise"):
        raise ValueError(f'on_busy is {on_busy!r}, must be "wait" or "raise"')
    if stage_bytes_max < 0:
        raise ValueError(f"stage_bytes_max is {stage_bytes_max}, must not be negative")
    rank, size = (0, 1) if group is None else (group.rank, group.size)
    order = Order(target, step, replicated, direct, timeout_s, incremental)
    apart = getattr(group, "background", None)
    ranks: Group | None = group if apart is None else apart()
    return process_background().start(
        order, lambda: flatten(order, state, rank, size), ranks, stage_bytes_max, on_busy
    )


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


def verify(
    target: Target, step: int | Literal["latest"] = "latest", *, timeout_s: float = 30.0
) -> _list[str]:
    """Read every byte of a checkpoint; what is wrong with it, a message for each bad block.

    Manifests are checked first: where they are damaged, their message is the only one.

    Raises:
        FileNotFoundError: no such step, or none at all.
    """
    where = os.fspath(target)
    if step == "latest":
        steps = [commit.step for commit in list(target, timeout_s=timeout_s)]
        wanted = max(steps, default=None)
    else:
        wanted = step
    try:
        return _ffrecord.CheckpointReader(where, wanted, timeout_s).verify()
    except CorruptionError as error:
        return [str(error)]


def remove(target: Target, step: int, *, timeout_s: float = 30.0) -> None:
    """Make a checkpoint disappear for good. Raises FileNotFoundError if there is none."""
    _ffrecord.remove_checkpoint(os.fspath(target), step, timeout_s)


def prune(
    target: Target,
    *,
    keep_last: int,
    keep_every: int | None = None,
    dry_run: bool = False,
    timeout_s: float = 30.0,
) -> _list[Commit]:
    """Remove old checkpoints; returns those removed.

    Damaged checkpoints neither count nor go. Call it on one rank.

    Args:
        target: as for `save`.
        keep_last: how many of the newest stay, 1 or more.
        keep_every: steps that this divides stay as well.
        dry_run: remove nothing, and return what would go.
        timeout_s: for each call to a daemon or store.
    """
    if keep_last < 1:
        raise ValueError(f"keep_last is {keep_last}, must be at least 1")
    if keep_every is not None and keep_every < 1:
        raise ValueError(f"keep_every is {keep_every}, must be at least 1")
    removed = [
        commit
        for commit in list(target, timeout_s=timeout_s)[:-keep_last]
        if keep_every is None or commit.step % keep_every != 0
    ]
    for each in [] if dry_run else removed:
        remove(target, each.step, timeout_s=timeout_s)
    return removed
