"""A target of several places: a save goes to the first, and behind it to the others."""

import dataclasses
import os
from collections.abc import Sequence
from typing import Literal

from ffrecord import _ffrecord
from ffrecord._base.addresses import STAGED, Target, split_places, target_from_root
from ffrecord.checkpoint._commit import Commit
from ffrecord.checkpoint._flushing import Flushed, Flusher, FlushError, OnFailure, OnFull, Way

__all__ = ["FlushError", "Flushed", "Staged", "before_save", "flush", "saved", "stage"]


@dataclasses.dataclass(frozen=True)
class Staged:
    """A staged target, made by `stage`: a path for every function that takes a target.

    Attributes:
        address: the same as text, `stage:PLACE>PLACE`; options do not go with it.
    """

    address: str

    def __fspath__(self) -> str:
        """The address."""
        return self.address

    def __str__(self) -> str:
        """Return the address."""
        return self.address

    def flush(self, timeout_s: float | None = None) -> None:
        """As `ffrecord.checkpoint.flush`."""
        flush(self, timeout_s)

    def stats(self) -> tuple[Flushed, ...]:
        """The work of this process for each later place, and what waits."""
        return _flusher(self.address).stats()


def stage(
    *places: Target,
    keep: Sequence[int | None] | None = None,
    compress: bool = False,
    waiting_steps_max: int = 4,
    waiting_bytes_max: int | None = None,
    on_full: Literal["skip", "wait"] = "skip",
    on_failure: Literal["retry", "warn", "raise"] = "retry",
    retry_s: float = 1.0,
    timeout_s: float = 30.0,
) -> Staged:
    """Make a target whose saves are as fast as its first place, and are copied to the others.

        target = ckpt.stage("/nvme/run", "ffrecord://c/run", "s3://b/run", keep=(2, None, 10))
        ckpt.save(target, step, state)   # Durable at /nvme/run; goes on to the others.
        target.flush()                   # At all of them.

    A save returns when it is durable at the first place. Rank 0 then copies it to each other place,
    on a thread for each, from the nearest place that has it; there it appears whole. A place that
    is slow or gone holds up no other. A load takes the newest step that is whole at any place, and
    reads it at the nearest place that has it; what is damaged there is read at the next.

    The places themselves say what has to be copied: if a process is killed, the first save of the
    next one goes on, and so does `flush`, or the command `ffrecord checkpoint flush`. A program
    that ends copies the rest first, and tries once more if a place fails.

    Args:
        places: targets as for `save`, fastest first; each may be one of `replicated_target`. The
            first is a place that rank 0 can read: a folder that all ranks share, or daemons on
            their nodes.
        keep: for each place, how many of the newest whole steps stay there; None: all. A step
            leaves a place only when it is whole at a later one, which is read to know, or was
            passed over there by `on_full="skip"`.
        compress: store the tensors compressed at the last place.
        waiting_steps_max: how many steps may wait for a place.
        waiting_bytes_max: how many bytes, if that is less; the newest step may always wait.
        on_full: if more wait: "skip" passes over the oldest, with a warning; with "wait", the next
            save waits.
        on_failure: of a place: "retry" warns and tries again after `retry_s`, then twice that, up
            to a minute; "warn" warns and tries again at the next save; "raise" makes the next save
            fail with FlushError, once for each failure.
        retry_s: as above.
        timeout_s: for each call to a daemon or store.

    The options are those of this process; the last call for these places counts.

    Raises:
        ValueError: fewer than two places, one of them twice, or options that make no sense.
    """
    names = [target_from_root(place) for place in places]
    if len(names) < 2:
        raise ValueError(f"a staged target needs at least two places, not {names}")
    for number, name in enumerate(names):
        if ">" in name or name.startswith(STAGED):
            raise ValueError(f"{name!r} cannot be one of several places")
        for other in names[:number]:
            if _ffrecord.share_place(other, name):
                raise ValueError(f"stage: {other} and {name} are the same place")
    kept = (None,) * len(names) if keep is None else tuple(keep)
    if len(kept) != len(names) or any(each is not None and each < 1 for each in kept):
        raise ValueError(
            f"keep is {keep}, must have a number of 1 or more, or None, for each place"
        )
    if waiting_steps_max < 1:
        raise ValueError(f"waiting_steps_max is {waiting_steps_max}, must be at least 1")
    if waiting_bytes_max is not None and waiting_bytes_max < 1:
        raise ValueError(f"waiting_bytes_max is {waiting_bytes_max}, must be at least 1")
    if on_full not in ("skip", "wait"):
        raise ValueError(f'on_full is {on_full!r}, must be "skip" or "wait"')
    if on_failure not in ("retry", "warn", "raise"):
        raise ValueError(f'on_failure is {on_failure!r}, must be "retry", "warn" or "raise"')
    if not retry_s > 0:
        raise ValueError(f"retry_s is {retry_s}, must be positive")
    staged = Staged(STAGED + ">".join(names))
    _ways[staged.address] = _flusher(staged.address).way = Way(
        tuple(names),
        kept,
        compress,
        waiting_steps_max,
        waiting_bytes_max,
        OnFull(on_full),
        OnFailure(on_failure),
        retry_s,
        timeout_s,
    )
    return staged


def flush(target: Target, timeout_s: float | None = None) -> None:
    """Copy everything that later places of a staged target lack; return when they have it.

    Raises:
        FlushError: a place cannot be reached, or a step cannot be copied there; the others are.
        TimeoutError: it takes longer; it goes on.
        ValueError: the target has no later places.
    """
    flusher = _flusher_of(target)
    if flusher is None:
        raise ValueError(f"{os.fsdecode(target)} has no later places; make one with stage(...)")
    flusher.flush(timeout_s)


def before_save(target: Target) -> None:
    """Call it on rank 0 before a save: what an earlier process has left is copied from now on.

    Raises:
        FlushError: a step has not reached a place, and no save has raised that yet.
    """
    flusher = _flusher_of(target)
    if flusher is not None:
        flusher.make_room()


def saved(target: Target, commit: Commit, *, replaces: bool) -> None:
    """Call it on rank 0 when a save is committed.

    It `replaces` a whole save of its step only if its user has said so. Another one that has come
    to a later place meanwhile is of another process, and may be the newer one.
    """
    flusher = _flusher_of(target)
    if flusher is not None:
        flusher.saved(commit, replaces=replaces)


_ways: dict[str, Way] = {}  # By address, as these are.
_flushers: dict[str, Flusher] = {}


def _flusher_of(target: Target) -> Flusher | None:
    name = os.fsdecode(target)
    return _flusher(target_from_root(name)) if name.startswith(STAGED) else None


def _flusher(address: str) -> Flusher:
    found = _flushers.get(address)
    if found is None:
        places = tuple(split_places(address)[2])
        way = _ways.get(address, Way(places, (None,) * len(places)))
        found = _flushers.setdefault(address, Flusher(way))
    return found


# The threads are the parent's, and go on there.
os.register_at_fork(after_in_child=_flushers.clear)
