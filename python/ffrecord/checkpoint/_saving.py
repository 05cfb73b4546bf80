"""One save, in two halves: the work of this rank alone, and the work of all ranks together."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal

from ffrecord import _ffrecord
from ffrecord._base.addresses import Target, target_from_root
from ffrecord.checkpoint._agreement import Agreement
from ffrecord.checkpoint._collector import without_collector
from ffrecord.checkpoint._ranks import Group, TensorSlice, shares_of_rank, together
from ffrecord.checkpoint._state import Flattener, Leaf, fill_ranks
from ffrecord.checkpoint._steps import step_number
from ffrecord.checkpoint._values import decode, encode

Replicated = Literal["rank0", "split"]


@dataclasses.dataclass(frozen=True, order=True)
class Commit:
    """A committed checkpoint.

    Attributes:
        step: as it was saved.
        attempt: 32 hex digits, unique to this save.
        size_bytes: of all ranks' tensors.
        damage: in a list, why this step cannot be loaded; empty if its manifests are whole. The
            attempt of a step whose root manifest is damaged is empty.
    """

    step: int
    attempt: str
    size_bytes: int
    damage: str = ""


@dataclasses.dataclass(frozen=True)
class Order:
    """The options of a save."""

    target: Target
    step: int
    replicated: Replicated
    direct: bool
    timeout_s: float
    incremental: bool = False

    def __post_init__(self) -> None:
        """An absolute target: the save may end when the process has changed its folder."""
        object.__setattr__(self, "target", target_from_root(self.target))


@dataclasses.dataclass(frozen=True)
class Said:
    """What a rank brings to the rounds of a save: encoded, so later changes do not matter."""

    order: Order
    words: dict[str, object]  # For the other ranks.
    agreement: Agreement | None  # With them; None if there are none.


@dataclasses.dataclass(frozen=True)
class Flat:
    """A state taken apart."""

    said: Said
    shares: list[Leaf]  # What this rank writes.


@without_collector()
def flatten(order: Order, state: object, rank: int, size: int) -> Flat:
    """Take a state apart, without communication between ranks.

    Raises:
        TypeError: a value in the state would need pickling; names its path.
        ValueError: an argument is out of range.
    """
    replicated = order.replicated
    step_number(order.step)
    if replicated not in ("rank0", "split"):
        raise ValueError(f'replicated is {replicated!r}, must be "rank0" or "split"')
    flattener = Flattener(rank)
    tree = flattener.value(state)
    split = replicated == "split"
    agreement = Agreement(flattener, tree, split=split) if size > 1 else None
    words: dict[str, object] = {
        "tree": encode(tree if rank == 0 else None),
        "own": encode(flattener.own_trees),
        "shared": [] if agreement is None else agreement.told,
        "has_own": bool(flattener.own_trees),
    }
    shares = shares_of_rank(flattener.leaves, rank, size, split)
    return Flat(Said(order, words, agreement), shares)


def _tree(answers: Sequence[Any]) -> bytes:
    """Rank 0's tree, with the values in it that are each rank's own."""
    tree: bytes = answers[0]["tree"]
    if not answers[0]["has_own"]:
        return tree
    return encode(fill_ranks(decode(tree), [decode(answer["own"]) for answer in answers]))  # type: ignore[misc]


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
        say: gives what this rank's `Flat` has to say, or raises what all ranks are to be told.
        slices: of its shares, with the memory that they are in; complete once `say` was called.
        released: called when no slice that is not stable is read any more, if it comes to that.
        progress: told how far the bytes of this rank have come.
        taken: called when the slices are not needed any more, but only the memory that they name.
    """
    prepared: _ffrecord.PreparedSave
    agreement: Agreement | None = None

    def prepare() -> dict[str, object]:
        # Whatever can fail on this rank alone: after this all ranks do the same with the same.
        nonlocal prepared, agreement
        said = say()
        order, agreement = said.order, said.agreement
        prepared = _ffrecord.PreparedSave(
            order.target,
            order.step,
            slices,
            order.direct,
            order.timeout_s,
            order.incremental,
            progress,
        )
        return said.words

    # A round before the plans: with its plan rank 0 makes an attempt at the target, and a state
    # that cannot be saved must leave nothing there.
    answers: list[Any] = together(group, prepare)
    if taken is not None:
        taken()
    if agreement is not None:
        told = [answer["shared"] for answer in answers]
        if agreement.differs(told):
            agreement.check(together(group, lambda: agreement.details(told)))
    tree = _tree(answers)  # On every rank, for it can fail.
    return Commit(*prepared.commit(tree, group, released))
