"""Several places as one target: every part of a checkpoint is at two of them."""

from collections.abc import Sequence

from ffrecord._locations import BUDDIES, Target, target_from_root

SCHEME = BUDDIES


def replicated_target(places: Sequence[Target]) -> str:
    """A target whose checkpoints outlive the loss of any one place.

        target = ckpt.replicated_target([f"ffrecord://{node}/runs/x" for node in nodes])
        ckpt.async_save(target, step, state, group=group)
        ckpt.load(target, state, group=group)        # Also when one of the nodes is gone.

    Rank r writes its part to place r, counted round, and a copy to the next that is another place;
    a checkpoint is committed when both are durable, of all ranks. Give a place for each rank, in
    the order of the ranks, and each rank writes to its own node's daemon and to a neighbour's. A
    daemon whose folder is in memory (tmpfs) keeps its copies there; `Mirror` carries them on.

    A save needs every place, a load needs one copy of each part: places in any order, those that
    are gone among them or left out. What one copy has lost or damaged is read from the other.

    Args:
        places: targets as for `save`; two different ones at least. One may be named several times.

    Returns:
        An address that everything takes that takes a target.
    """
    names = [target_from_root(place) for place in places]
    if len(set(names)) < 2:
        raise ValueError(f"a replicated target is two places at least, not {names}")
    for name in names:
        if "|" in name or name.startswith(SCHEME):
            raise ValueError(f"{name!r} cannot be one of several places")
    return SCHEME + "|".join(names)
