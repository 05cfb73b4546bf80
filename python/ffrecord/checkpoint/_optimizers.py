"""Whether a stored state fits a torch optimizer, which does not check shapes itself."""

import sys
from collections.abc import Mapping
from typing import Any

from ffrecord.checkpoint._layouts import is_dtensor
from ffrecord.checkpoint._state import join
from ffrecord.checkpoint._values import TensorRef


def optimizer_misfits(
    optimizer: Any,  # noqa: ANN401 (torch.optim.Optimizer, or anything else)
    tree: object,
    path: str,
    stored: Mapping[str, tuple[str, tuple[int, ...]]],
) -> list[str]:
    """Return what does not fit, with its path; empty if `optimizer` is not torch's.

    Args:
        optimizer: the optimizer to fill.
        tree: its stored state.
        path: of the optimizer.
        stored: element type and shape of each tensor, by its key.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or not isinstance(optimizer, torch.optim.Optimizer):
        return []
    if type(optimizer).state_dict is not torch.optim.Optimizer.state_dict:
        return []  # Whatever that is.
    groups = tree.get("param_groups") if isinstance(tree, dict) else None
    if not isinstance(tree, dict) or not isinstance(groups, list):
        return [f"{path} (no state of an optimizer is stored)"]
    there = [len(group["params"]) for group in groups]
    here = [len(group["params"]) for group in optimizer.param_groups]
    if there != here:
        return [f"{path} (parameter groups of {there} parameters are stored, it has {here})"]
    # Those of others may keep anything; LBFGS keeps all parameters in one row.
    keeps_shapes = type(optimizer).__module__.startswith("torch.optim.")
    if not keeps_shapes or isinstance(optimizer, torch.optim.LBFGS):
        return []
    states = tree.get("state")
    return _misshapen(optimizer, groups, states if isinstance(states, dict) else {}, path, stored)


def distributed_like(
    optimizer: Any,  # noqa: ANN401
    tree: object,
    stored: Mapping[str, tuple[str, tuple[int, ...]]],
) -> object:
    """A state for an optimizer that has none yet: what is of a DTensor is distributed like it.

    Args:
        optimizer: the optimizer to fill.
        tree: its stored state, which fits it.
        stored: element type and shape of each tensor, by its key.

    Returns:
        None for what may be as it is stored: all of it, if no parameter is a DTensor.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or not isinstance(optimizer, torch.optim.Optimizer):
        return None
    if not isinstance(tree, dict) or not isinstance(tree.get("state"), dict):
        return None
    states: dict[object, object] = dict.fromkeys(tree["state"])
    for group, own in zip(tree.get("param_groups") or (), optimizer.param_groups, strict=False):
        for name, parameter in zip(group["params"], own["params"], strict=False):
            kept = tree["state"].get(name)
            if isinstance(kept, dict) and is_dtensor(parameter):
                states[name] = {
                    key: _empty_like(torch, parameter, item, stored) for key, item in kept.items()
                }
    if all(state is None for state in states.values()):
        return None
    return {**dict.fromkeys(tree), "state": states}


def _empty_like(
    torch: Any,  # noqa: ANN401
    parameter: Any,  # noqa: ANN401
    item: object,
    stored: Mapping[str, tuple[str, tuple[int, ...]]],
) -> object:
    if not isinstance(item, TensorRef) or item.key not in stored:
        return None
    dtype, shape = stored[item.key]
    if shape != tuple(parameter.shape):
        return None
    return torch.empty_like(parameter.detach(), dtype=getattr(torch, dtype))


def _misshapen(
    optimizer: Any,  # noqa: ANN401
    groups: list[Any],
    states: dict[object, Any],
    path: str,
    stored: Mapping[str, tuple[str, tuple[int, ...]]],
) -> list[str]:
    found = []
    for group, own in zip(groups, optimizer.param_groups, strict=True):
        for name, parameter in zip(group["params"], own["params"], strict=True):
            shape = tuple(parameter.shape)
            kept = states.get(name)
            for key, item in kept.items() if isinstance(kept, dict) else ():
                if not isinstance(item, TensorRef) or item.key not in stored:
                    continue
                _, extent = stored[item.key]
                if not _fits(extent, shape):
                    where = join(join(join(path, "state"), name), key)
                    found.append(f"{where} ({extent} is stored, the parameter is {shape})")
    return found


def _fits(extent: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether it may be kept for a parameter: a number, or one for each element, row or column."""
    if not extent or not shape or len(extent) != len(shape):
        return True
    return all(kept in (size, 1) for kept, size in zip(extent, shape, strict=True))
