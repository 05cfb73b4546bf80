"""Several places as one target: every rank shard of a checkpoint is at two of them."""

from collections.abc import Sequence

from ffrecord._base.addresses import REPLICATED, SEVERAL, Target, target_from_root


def replicated_target(places: Sequence[Target]) -> str:
    """Make a target whose checkpoints survive the loss of any one place.

        target = ckpt.replicated_target([f"ffrecord://{node}/runs/x" for node in nodes])
        ckpt.async_save(target, step, state, group=group)
        ckpt.load(target, state, group=group)        # Also when one of the nodes is gone.

    Rank r writes its shard to place r, modulo the number of places, and a copy to the next
    different place; a checkpoint is committed when both are durable, for all ranks. If you give one
    place per rank, in the order of the ranks, each rank writes to its own node's daemon and to a
    neighbour's. A daemon whose folder is in memory (tmpfs) keeps its copies in memory; as the first
    place of a `stage` they go further.

    A save needs every place. A load needs one copy of each shard: places may come in any order, and
    lost places may be named or left out. If one copy is lost or damaged, the other is read.

    Args:
        places: targets as for `save`; at least two different ones. A place may occur several times.

    Returns:
        An address that every function with a target accepts.
    """
    names = [target_from_root(place) for place in places]
    if len(set(names)) < 2:
        raise ValueError(f"a replicated target needs at least two places, not {names}")
    for name in names:
        if "|" in name or name.startswith(SEVERAL):
            raise ValueError(f"{name!r} cannot be one of several places")
    return REPLICATED + "|".join(names)
