"""Whether a stored state fits a torch optimizer, which does not check shapes itself."""

import sys
from collections.abc import Mapping
from typing import Any

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
