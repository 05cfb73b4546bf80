"""The check of a state that a `Sampler` gets."""

from typing import Any

from ffrecord._order.epoch_order import plain_numbers
from ffrecord.torch._subsets import said_of_data

# Which specified order: format.md, "Order 1"; 0 is that of the records, 2 is drawn by weights.
ORDER, FILE_ORDER, DRAWN = 1, 0, 2
_NUMBERS = ("order", "epoch", "position", "block", "window", "count")
# Not in every state.
_OPTIONAL = ("ahead", "named", "named_at", "weights", "versions")


def checked(sampler: Any, state: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401 - a `Sampler`
    """The state, with whole numbers of Python's.

    Raises:
        ValueError: it belongs to other data, or to an order that this version lacks; or it is
            damaged.
    """
    ours = sampler.state_dict()
    if missing := [name for name in ours if name not in state and name not in _OPTIONAL]:
        raise ValueError(f"not a sampler's state: {', '.join(missing)} is missing")
    named = [name for name in ("named", "named_at") if name in state]
    state = {**state, **plain_numbers(state, *_NUMBERS, *named)}
    if ("mixture" in state) != (sampler.mixture is not None):
        raise ValueError(
            "one of the state and the dataset is a mixture and the other is not: resuming "
            "would not continue the same stream"
        )
    if state["order"] not in (ORDER, FILE_ORDER, DRAWN):
        raise ValueError(
            f"the state is of order {state['order']}; this version knows {FILE_ORDER}, "
            f"{ORDER} and {DRAWN}"
        )
    _check_same_weights(sampler, state)
    _check_same_data(sampler, state)
    if None in (state["position"], state["epoch"]) or not (
        0 <= state["position"] <= sampler.count and state["epoch"] >= 0
    ):
        raise ValueError(
            f"the state names epoch {state['epoch']}, position {state['position']} of "
            f"{sampler.count} records: it is damaged"
        )
    return state


def delivered_ahead(sampler: Any, state: dict[str, Any]) -> frozenset[int]:  # noqa: ANN401
    """Delivered steps after the position of `state`.

    Raises:
        ValueError: they are not steps of this sampler.
    """
    if not (steps := state.get("ahead")):
        return frozenset()
    if steps["step"] != sampler.global_batch:
        raise ValueError(
            f"the state was saved while batches of {steps['step']} records came out of order: "
            f"resume it with global_batch={steps['step']}, not {sampler.global_batch}; or save "
            "states without in_order=False"
        )
    ahead = frozenset(steps["positions"])
    first, size = state["position"], sampler.global_batch
    if any((at - first) % size or not first < at < sampler.count for at in ahead):
        raise ValueError(f"the state's steps ahead of {first}, {sorted(ahead)}, are damaged")
    return ahead


def _check_same_weights(sampler: Any, state: dict[str, Any]) -> None:  # noqa: ANN401
    ours = None if sampler.weights is None else sampler.weights.token
    theirs = state.get("weights") if state["order"] == DRAWN else None
    if (state["order"] == DRAWN) != (ours is not None):
        raise ValueError(
            "one of the state and the sampler draws by weights and the other does not: "
            "resuming would not continue the same stream"
        )
    if theirs != ours:
        raise ValueError(
            f"the state was drawn by other weights ({theirs}, these are {ours}): give the "
            "sampler the weights of that run"
        )


def _check_same_data(sampler: Any, state: dict[str, Any]) -> None:  # noqa: ANN401
    both = said_of_data(state.get("versions"), sampler.versions)
    if state["count"] != sampler.count:
        raise ValueError(
            f"the state is of {state['count']} records, the dataset has {sampler.count}{both}: "
            "resuming would not continue the same stream; open the same files in the same order"
        )
    theirs, ours = state["fingerprint"], sampler.fingerprint
    if theirs is not None and ours is not None and theirs != ours:
        raise ValueError(
            f"the state is of data with the fingerprint {theirs}, the dataset has {ours}{both}: "
            "records or their order differ; open the same files in the same order"
            + ("" if sampler.mixture is None else ", and mix them with the same weights and seed")
        )
