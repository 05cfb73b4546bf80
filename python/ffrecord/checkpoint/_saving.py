"""One save, in two halves: the work of this rank alone, and the work of all ranks together."""

import dataclasses
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any, Literal

from ffrecord import _ffrecord
from ffrecord._base.addresses import Target, target_from_root
from ffrecord.checkpoint import _staged as staged
from ffrecord.checkpoint._activity import SaveActivity, watched
from ffrecord.checkpoint._agreement import Agreement
from ffrecord.checkpoint._collector import without_collector
from ffrecord.checkpoint._commit import Commit
from ffrecord.checkpoint._ranks import (
    Group,
    TensorSlice,
    gather_encoded,
    shares_of_rank,
    together,
)
from ffrecord.checkpoint._sharing import Leaf
from ffrecord.checkpoint._state import Flattener
from ffrecord.checkpoint._steps import step_number
from ffrecord.checkpoint._ties import referring, tied
from ffrecord.checkpoint._values import Parts, encode, encode_around, fill_places

Replicated = Literal["rank0", "split"]
OnUnchanged = Literal["warn", "raise", "off"]

_log = logging.getLogger("ffrecord.checkpoint")

_NOTHING = encode(None)
_NAMED_MAX = 5  # Tensors in a message.


@dataclasses.dataclass(frozen=True)
class Order:
    """The options of a save."""

    target: Target
    step: int
    replicated: Replicated
    direct: bool
    timeout_s: float
    incremental: bool = False
    overwrite: bool = False
    on_unchanged: OnUnchanged = "warn"
    # When the state is taken: what is loaded while it is written is not what it goes on from.
    turn: int = dataclasses.field(default_factory=_ffrecord.take_turn)

    def __post_init__(self) -> None:
        """An absolute target: the save may end when the process has changed its folder."""
        object.__setattr__(self, "target", target_from_root(self.target))


@dataclasses.dataclass(frozen=True)
class Said:
    """A rank's part in the rounds of a save: a copy, so later changes do not matter."""

    order: Order
    tree: Parts  # Rank 0's: of all that ranks have together, without each rank's own values.
    own: dict[str, bytes]  # Those of this rank, encoded, by their paths.
    agreement: Agreement | None  # With the other ranks; None if there are none.
    training: list[str]  # The keys of tensors of this rank that training changes.


@dataclasses.dataclass(frozen=True)
class Flat:
    """A state taken apart."""

    said: Said
    shares: list[Leaf]  # The leaves that this rank writes.


@without_collector()
def flatten(
    order: Order, state: object, rank: int, size: int, members: Sequence[int] | None = None
) -> Flat:
    """Take a state apart, without communication between ranks.

    Args:
        order: the options.
        state: what is saved.
        rank: among those that save.
        size: how many save.
        members: which ranks of the job save, if that is known.

    Raises:
        TypeError: a value in the state would need pickling; names its path.
        ValueError: an argument is out of range.
    """
    replicated = order.replicated
    step_number(order.step)
    if replicated not in ("rank0", "split"):
        raise ValueError(f'replicated is {replicated!r}, must be "rank0" or "split"')
    if order.on_unchanged not in ("warn", "raise", "off"):
        raise ValueError(
            f'on_unchanged is {order.on_unchanged!r}, must be "warn", "raise" or "off"'
        )
    split = replicated == "split"
    flattener = Flattener(rank, () if size == 1 else members, compares=split and size > 1)
    tree = flattener.value(state)
    flattener.divide()
    ties = tied(flattener.leaves, frozenset(flattener.sharded))
    leaves, own_trees = flattener.leaves, flattener.own_trees
    if ties:
        leaves = [leaf for leaf in leaves if leaf.key not in ties]
        tree = referring(tree, ties)
        own_trees = {path: referring(own, ties) for path, own in own_trees.items()}
    agreement = Agreement(flattener, tree, ties, split=split) if size > 1 else None
    own = {path: encode(own_trees[path]) for path in sorted(own_trees)}
    shares = shares_of_rank(leaves, rank, size, split)
    alarmed = set[str]()
    if order.on_unchanged != "off":  # A parameter may be stored under another name.
        alarmed = {ties.get(key, key) for key in flattener.training}
    training = sorted({leaf.key for leaf in shares if leaf.key in alarmed}) if alarmed else []
    said = Said(order, encode_around(tree if rank == 0 else None), own, agreement, training)
    return Flat(said, shares)


def _tree_of_all(group: Group | None, said: Said, answers: Sequence[Any]) -> bytes:
    """The tree of the checkpoint without tensors: rank 0 makes it, others need not know it.

    Where rank 0 cannot, it tells the others in place of its plan.
    """
    agreement, parts = said.agreement, said.tree
    if group is None or agreement is None:
        return fill_places(parts, {path: [own] for path, own in said.own.items()})
    told = [answer[0] for answer in answers]
    details: list[bytes] = []
    if agreement.differs(told):
        rank = group.rank
        details = gather_encoded(group, lambda: agreement.details(told, rank))
    if group.rank != 0:
        return _NOTHING

    def make() -> bytes:
        tree = parts if not details else encode_around(agreement.settle(told, details))
        values = zip(*(answer[1] for answer in answers), strict=True)
        return fill_places(tree, dict(zip(said.own, values, strict=True)))

    try:
        return make()
    except Exception as error:
        failure = error

    def tell() -> bytes:
        raise failure

    gather_encoded(group, tell)
    raise AssertionError  # It has raised.


def commit(
    group: Group | None,
    say: Callable[[], Said],
    slices: list[TensorSlice],
    released: Callable[[], object] | None = None,
    progress: _ffrecord.SaveProgress | None = None,
    taken: Callable[[], object] | None = None,
) -> Commit:
    """Agrees with the other ranks, writes, and commits; all ranks call it and end alike.

    Args:
        group: the ranks.
        say: gives what this rank's `Flat` has to say, or raises the error for all ranks.
        slices: of its shares, with the memory that they are in; complete once `say` was called.
        released: called when no slice that is not stable is read any more, if it comes to that.
        progress: counts how far the bytes of this rank have come.
        taken: called when the slices are not needed any more, but only the memory that they name.
    """
    prepared: _ffrecord.PreparedSave
    said: Said

    def prepare() -> list[object]:
        # Whatever can fail on this rank alone: after this all ranks do the same with the same.
        nonlocal prepared, said
        said = say()
        order = said.order
        if group is None or group.rank == 0:
            staged.before_save(order.target)
        prepared = _ffrecord.PreparedSave(
            order.target,
            order.step,
            slices,
            order.direct,
            order.timeout_s,
            order.incremental,
            progress,
            order.overwrite,
            order.turn,
            said.training,
            order.on_unchanged == "raise",
        )
        activity.plans(f"step {order.step} of {os.fsdecode(order.target)}")
        told = [] if said.agreement is None else said.agreement.told
        return [told, [*said.own.values()]]

    activity = SaveActivity(0 if group is None else group.rank, progress)
    with watched(group, activity):
        # A round before the plans: with its plan rank 0 makes an attempt at the target, and a state
        # that cannot be saved must leave nothing there.
        answers: list[Any] = together(group, prepare)
        if taken is not None:
            taken()
        made = Commit(*prepared.commit(_tree_of_all(group, said, answers), group, released))
    if group is None or group.rank == 0:
        staged.saved(said.order.target, made, replaces=said.order.overwrite)
    rank = 0 if group is None else group.rank
    tell_unchanged(prepared.unchanged, len(said.training), said.order.target, made.step, rank)
    return made


def tell_unchanged(
    unchanged: tuple[int, Sequence[str]], training_count: int, target: Target, step: int, rank: int
) -> None:
    """Warn of tensors that train and are as in the last save: its step, and their names."""
    last_step, keys = unchanged
    if keys:
        named = ", ".join(keys[:_NAMED_MAX]) + (", ..." if len(keys) > _NAMED_MAX else "")
        _log.warning(
            "step %d of %s: on rank %d, %d of %d tensors that train are bit-identical to those of "
            'step %d: %s. Does the optimizer have them? (on_unchanged="off" does not look)',
            step,
            os.fsdecode(target),
            rank,
            len(keys),
            training_count,
            last_step,
            named,
        )
