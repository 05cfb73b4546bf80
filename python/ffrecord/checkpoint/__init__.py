"""Checkpoints: all ranks' tensors and small values durable and visible together, or not at all.

    import ffrecord.checkpoint as ckpt

    state = {"model": model, "optim": optim, "rng": ckpt.PerRank(ckpt.rng_state()), "step": 1200}
    ckpt.save("runs/x", 1200, state, group=group)
    ckpt.load("runs/x", state, group=group)      # Fills the tensors in place.
    pending = ckpt.async_save("runs/x", 1300, state, group=group)
    pending.result()                             # Committed; training went on meanwhile.

A target is a folder that all ranks share, `ffrecord://host[:port]/run`, `s3://bucket/run` of an
S3-compatible store, or several of them: replicas, any one of which may be lost
(`replicated_target`), or a fast place and slower ones behind it (`stage`). Saving pickles nothing
and loading unpickles nothing: a state is made of None, bool, int, float, complex, str, bytes, list,
tuple, dict, set, frozenset, enums, dataclasses, arrays and tensors (also DTensors of any mesh), and
of objects with `state_dict` and `load_state_dict`. Works with NumPy alone; torch is used
if the program has imported it.
"""

import contextlib
import errno
from typing import Literal

from ffrecord import _ffrecord
from ffrecord._base.addresses import Target
from ffrecord.checkpoint._against import Against, differences
from ffrecord.checkpoint._background import (
    BusyError,
    FailedSaveError,
    OnBusy,
    PendingSave,
    process_background,
)
from ffrecord.checkpoint._collector import without_collector
from ffrecord.checkpoint._commit import Commit
from ffrecord.checkpoint._copying import copy
from ffrecord.checkpoint._difference import Difference, diff
from ffrecord.checkpoint._every_place import damage_at_places
from ffrecord.checkpoint._loading import OnCorrupt, load
from ffrecord.checkpoint._monitoring import Monitor, Progress, Report, Save, ledger, monitor
from ffrecord.checkpoint._peer_error import PeerError
from ffrecord.checkpoint._pieces import Fetcher
from ffrecord.checkpoint._ranks import (
    Group,
    Ranks,
    TensorSlice,
    group_of,
    members_of,
    slice_of,
)
from ffrecord.checkpoint._replicated import replicated_target
from ffrecord.checkpoint._restore import MismatchError
from ffrecord.checkpoint._rng import rng_state, set_rng_state
from ffrecord.checkpoint._safetensors import export_safetensors, import_safetensors
from ffrecord.checkpoint._saving import (
    Flat,
    OnUnchanged,
    Order,
    Replicated,
    Said,
    commit,
    flatten,
)
from ffrecord.checkpoint._staged import Flushed, FlushError, Staged, flush, stage
from ffrecord.checkpoint._staging import TornStageError
from ffrecord.checkpoint._state import OnRanks, PerRank, Shard
from ffrecord.checkpoint._steps import newest_on_line, step_number, wanted_step
from ffrecord.checkpoint._values import Named
from ffrecord.errors import ConflictError, CorruptionError

__all__ = [
    "Against",
    "BusyError",
    "Commit",
    "Difference",
    "FailedSaveError",
    "FlushError",
    "Flushed",
    "Group",
    "MismatchError",
    "Monitor",
    "Named",
    "OnCorrupt",
    "OnRanks",
    "OnUnchanged",
    "PeerError",
    "PendingSave",
    "PerRank",
    "Progress",
    "Report",
    "Shard",
    "Staged",
    "TornStageError",
    "async_save",
    "close",
    "copy",
    "diff",
    "export_safetensors",
    "flush",
    "import_safetensors",
    "latest",
    "list",
    "load",
    "monitor",
    "prune",
    "remove",
    "replicated_target",
    "rng_state",
    "save",
    "set_rng_state",
    "stage",
    "verify",
]

_list = list  # The public `list` below hides the builtin.


def save(
    target: Target,
    step: int,
    state: object,
    *,
    group: Ranks = None,
    replicated: Replicated = "rank0",
    direct: bool = True,
    incremental: bool = False,
    overwrite: bool = False,
    on_unchanged: OnUnchanged = "warn",
    timeout_s: float = 30.0,
) -> Commit:
    """Save one checkpoint; when this returns, it is committed on every rank.

    Tensors are read during the save: do not change them until it returns. Values are those of rank
    0, except `PerRank` values.

    Args:
        target: a folder, created if missing, `ffrecord://host[:port]/run`, `s3://bucket/run`, or
            several of them, made by `replicated_target` or `stage`.
        step: 0 or more; the name of the checkpoint within `target`. If a checkpoint of that step is
            there and damaged, or was given up, the new one takes its place once it is whole. A step
            is given up if this process has loaded an earlier one, and goes on from that: so are
            all later ones, and `latest`, `list` and `prune` no longer count them.
        state: values, tensors, `Shard`s, DTensors, and objects with `state_dict`.
        group: the ranks that save together; all of them call this with the same step. None: all
            ranks of torch's default process group, if there is one. "alone": this process only.
        replicated: which rank saves data that all ranks have: "rank0", or "split": each rank a
            share. With "split", every rank hashes all of it first, and the save fails unless the
            replicas are equal. Data that some ranks have alike by a DTensor's placements or an
            `OnRanks` is always shared among them; "split" compares it too.
        direct: bypass the page cache if the file system allows it.
        incremental: write only what has changed since the newest checkpoint of the target, and
            share the rest with it: files in a folder, extents at a daemon and in a cluster, copies
            that the store makes in a bucket. Costs one more hash of every byte, and one read of
            each shared file that this process has not verified since it was written; a damaged file
            is written anew. Every checkpoint stays complete on its own.
        overwrite: replace a checkpoint of that step, also if it is whole. It stays until the new
            one is durable. A step that another process has saved since this one loaded or saved
            the step that it goes on from is not replaced.
        on_unchanged: what to do if tensors that train (parameters of a module in the state with
            `requires_grad`) are bit-identical to those that this process saved last at the target:
            log a warning, raise ValueError on all ranks and save nothing, or "off". Each rank looks
            at what it writes.
        timeout_s: for each call to a daemon or store. Ranks wait for each other as long as their
            group says.

    Raises:
        TypeError: a value in the state would need pickling; names its path.
        FileExistsError: the step is committed already, and is whole: rank 0 reads all of it first.
        ConflictError: another process has gone back to an earlier step than this one goes on from,
            or has saved the step that is to be replaced.
        ValueError: ranks disagree, their replicas differ (names tensor and ranks), something in the
            state of a rank could never be loaded, or a tensor is not covered exactly once.
        OSError: with errno, such as ENOSPC; nothing of the step is left.
        PeerError: another rank failed before anything was written, or ranks did not answer.
    """
    together = group_of(group)
    rank, size = (0, 1) if together is None else (together.rank, together.size)
    seen = Save(step)
    owners: _list[object] = []  # They own the memory that slices name.
    slices: _list[TensorSlice] = []

    def prepare() -> Said:
        process_background().raise_unseen()
        order = Order(
            target, step, replicated, direct, timeout_s, incremental, overwrite, on_unchanged
        )
        flat = flatten(order, state, rank, size, members_of(together))
        slices.extend(flat.shares)
        owners.extend([leaf.data for leaf in flat.shares])
        for index, leaf in enumerate(flat.shares):
            if leaf.address is None:  # Not contiguous, or not on the CPU.
                slices[index] = slice_of(leaf, Fetcher(leaf.data, leaf.skip_bytes), False)
        return flat.said

    with ledger().stall(), ledger().save(seen), contextlib.ExitStack() as uncollected:
        # Until the slices are gone again: the collector would walk through them, and all of torch.
        uncollected.enter_context(without_collector())

        def taken() -> None:
            slices.clear()
            uncollected.close()

        return commit(together, prepare, slices, progress=seen.bytes, taken=taken)


def async_save(
    target: Target,
    step: int,
    state: object,
    *,
    group: Ranks = None,
    replicated: Replicated = "rank0",
    direct: bool = True,
    incremental: bool = False,
    overwrite: bool = False,
    on_unchanged: OnUnchanged = "warn",
    timeout_s: float = 30.0,
    stage_bytes_max: int | None = None,
    on_busy: OnBusy = "wait",
) -> PendingSave:
    """Save one checkpoint in the background; returns when the state may be changed again.

    Copies the tensors of this rank first, into memory that is kept for the next save. Tensors
    beyond `stage_bytes_max` are written from their own memory before this returns: the call then
    takes as long as writing them. The saves of a process run one after the other. The interpreter
    does not exit before the last has ended. In a forked child a save continues in the parent alone.

    Args:
        target: as for `save`, and so are `state`, `direct`, `incremental` and others.
        step: the name of the checkpoint within `target`.
        state: values, tensors, `Shard`s, and objects with `state_dict`.
        group: the ranks that save together, as for `save`. They communicate on a thread of their
            own: if the group has a method `background`, it returns another group for that; all
            ranks call it.
        replicated: which rank saves data that all ranks have.
        direct: bypass the page cache if the file system allows it.
        incremental: write only what has changed since the newest checkpoint.
        overwrite: replace a checkpoint of that step, also if it is whole.
        on_unchanged: what to do if tensors that train are bit-identical to those saved last.
        timeout_s: for each call to a daemon or store.
        stage_bytes_max: the memory for the copies of this rank, in bytes. None: half of the memory
            that is free at the first save, divided by the processes of this machine; a log line
            says how much that is.
        on_busy: if an earlier save is in progress, wait for it, or fail with BusyError, on all
            ranks.

    Returns:
        The save. A failure on any rank fails its `result` on every rank, and `ffrecord.checkpoint`
        logs it at once. If the program does not call `result`, the next save and `close` raise the
        error; at the exit of the interpreter it becomes an exit status of 1.

    Raises:
        FailedSaveError: an earlier save has failed, and the program has not asked for its result.
            No rank starts this save.
        ValueError: `on_busy` or `stage_bytes_max` is invalid; no rank starts this save.
    """
    together = group_of(group)
    rank, size = (0, 1) if together is None else (together.rank, together.size)

    def take() -> Flat:
        order = Order(
            target, step, replicated, direct, timeout_s, incremental, overwrite, on_unchanged
        )
        return flatten(order, state, rank, size, members_of(together))

    apart = getattr(together, "background", None)
    ranks: Group | None = together if apart is None else apart()
    return process_background().start(step, take, ranks, stage_bytes_max, on_busy)


def close() -> None:
    """Wait for the saves of `async_save`; call it on every rank before the program ends.

    Raises:
        FailedSaveError: one has failed, and the program has not asked for its result.
    """
    process_background().close()


def latest(target: Target, *, timeout_s: float = 30.0) -> Commit | None:
    """Return the newest complete checkpoint, the one that `load` would load, or None."""
    try:
        reader = _ffrecord.CheckpointReader(target, None, timeout_s)
    except FileNotFoundError:
        return None
    return Commit(*reader.commit)


def list(target: Target, *, given_up: bool = False, timeout_s: float = 30.0) -> _list[Commit]:
    """Return the committed checkpoints, by ascending step.

    Those that were given up are left out, unless `given_up`: training went back behind them. Reads
    every manifest and looks for every segment, but reads no tensors: `verify` does. The `damage` of
    a checkpoint that cannot be loaded says why.
    """
    found = [Commit(*each) for each in _ffrecord.list_checkpoints(target, timeout_s)]
    return [commit for commit in found if given_up or not commit.given_up]


def verify(
    target: Target,
    step: int | Literal["latest"] = "latest",
    *,
    against: Against | None = None,
    every_place: bool = False,
    timeout_s: float = 30.0,
) -> _list[str]:
    """Read every byte of a checkpoint; return one message for each bad block.

    Without a step: the newest that is there, whole or not. Manifests are checked first: if one is
    damaged, its message is the only one. If no block is bad, the tensors are compared with the
    digests that were made of them when they were saved. At a replicated target both copies of each
    shard are read, and a place that lacks its copy or cannot be read is damage too.

    Args:
        target: as for `save`.
        step: which one.
        against: also return a message for each tensor that is not as in another checkpoint: a step
            of the same target, a target and its step, or TARGET/step-000001200; or as in a
            safetensors file, which may have a part of the tensors. Digests of checkpoints are
            compared, so the tensors of the other one are not read, whatever mesh saved it.
        every_place: of a staged target, read every copy, and not only the nearest. A place that
            cannot be asked is damage, one that does not keep the step is not.
        timeout_s: for each call to a daemon or store.

    Raises:
        FileNotFoundError: there is no such step or file, or no checkpoint at all.
        CorruptionError: the other checkpoint or file is damaged.
        UnavailableError, DeadlineExceeded: a daemon or store does not answer: nothing is known.
    """
    wanted = wanted_step(step)
    if wanted is None:
        wanted = newest_on_line(target, timeout_s)
    listed = _ffrecord.list_steps(target, timeout_s)
    try:
        reader = _ffrecord.CheckpointReader(target, wanted, timeout_s)
        found = reader.commit[0]
        damage = damage_at_places(target, found, timeout_s) if every_place else reader.verify()
    except (CorruptionError, ConflictError, FileNotFoundError) as error:
        if wanted not in listed and isinstance(error, FileNotFoundError):
            raise
        reader, damage = None, [str(error)]  # Perhaps a file of it is missing.
    if damage and wanted in listed and wanted not in _ffrecord.list_steps(target, timeout_s):
        # It is being removed: with retention beside this, newer steps have come.
        if step == "latest" and newest_on_line(target, timeout_s) is not None:
            return verify(
                target, step, against=against, every_place=every_place, timeout_s=timeout_s
            )
        raise FileNotFoundError(
            errno.ENOENT, f"step {wanted} was removed while it was verified", str(target)
        )
    if against is not None and reader is not None:
        damage += differences(reader, target, against, timeout_s)
    return damage


def remove(target: Target, step: int, *, timeout_s: float = 30.0) -> None:
    """Remove a checkpoint for good, at every place. Raises FileNotFoundError if there is none."""
    _ffrecord.remove_checkpoint(target, step_number(step), timeout_s)


def prune(
    target: Target,
    *,
    keep_last: int,
    keep_every: int | None = None,
    verify: bool = True,
    dry_run: bool = False,
    timeout_s: float = 30.0,
) -> _list[Commit]:
    """Remove old checkpoints, oldest first; return those removed.

    Only whole checkpoints count. Damaged ones that are newer than the last whole one stay, and so
    do those whose root manifest is damaged. The last one that can be loaded is never removed. Those
    that were given up do not count, and go. Call it on one rank.

    Args:
        target: as for `save`.
        keep_last: how many of the newest whole checkpoints to keep, 1 or more.
        keep_every: also keep steps that are multiples of this.
        verify: before anything is removed, read every byte of those that are to count, unless this
            process has verified them since they were written. False: those count whose manifests
            verify and whose segments exist with their size.
        dry_run: remove nothing, and return what would be removed.
        timeout_s: for each call to a daemon or store.
    """
    if keep_last < 1:
        raise ValueError(f"keep_last is {keep_last}, must be at least 1")
    if keep_every is not None and keep_every < 1:
        raise ValueError(f"keep_every is {keep_every}, must be at least 1")
    removed = _ffrecord.prune_checkpoints(
        target, keep_last, keep_every or 0, verify, dry_run, timeout_s
    )
    return [Commit(*each) for each in removed]
