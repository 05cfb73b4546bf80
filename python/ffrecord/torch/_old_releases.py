"""Names releases of torch and of frameworks that are too old, and what to install instead."""

import re
import sys

import torch

# From pyproject.toml.
_TORCH = (2, 4)
# The first whose checkpoints have the states of loaders; and the first that is tested.
_WITH_LOADERS = {
    "accelerate": ((0, 34), "accelerate>=1.1"),
    "pytorch_lightning": ((2, 2), "pytorch-lightning>=2.4"),
    "lightning": ((2, 2), "lightning>=2.4"),
}


def is_older(version: str, than: tuple[int, int]) -> bool:
    """Compare the first two numbers; a version without them is taken for a new one."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return found is not None and (int(found[1]), int(found[2])) < than


def refuse_old_torch() -> None:
    """Check the torch that is imported.

    Raises:
        ImportError: it is too old.
    """
    if is_older(torch.__version__, _TORCH):
        raise ImportError(
            f"ffrecord.torch needs torch {_TORCH[0]}.{_TORCH[1]} or newer, and this is"
            f" {torch.__version__}: run pip install -U 'ffrecord[torch]'"
        )


def loaders_are_lost_by(*names: str) -> str | None:
    """Why a run does not resume with the framework of one of these names; None if it does."""
    for name in names:
        version = getattr(sys.modules.get(name), "__version__", "")
        oldest, remedy = _WITH_LOADERS[name]
        if is_older(version, oldest):
            return (
                f"{name} {version} does not save the state of loaders, so that a resumed run"
                f" would repeat records: run pip install -U '{remedy}'"
            )
    return None


refuse_old_torch()
