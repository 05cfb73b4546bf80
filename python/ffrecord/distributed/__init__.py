"""Collectives of gradients in CPU memory: for DDP, FSDP2, other models, and `torch.distributed`."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ffrecord.distributed._ddp_hook import CommHook, comm_hook
    from ffrecord.distributed._fsdp import use_for_fsdp
    from ffrecord.distributed._group import Group
    from ffrecord.distributed._overlapping import Overlap, overlap
    from ffrecord.distributed._tuner import Decision, Setting, Tuner

__all__ = [
    "CommHook",
    "Decision",
    "Group",
    "Overlap",
    "Setting",
    "Tuner",
    "comm_hook",
    "overlap",
    "use_for_fsdp",
]


# The file of this folder that each name is in. They are imported when they are wanted: the process
# group of `backend` does without them.
_LATER = {
    "CommHook": "_ddp_hook",
    "Decision": "_tuner",
    "Group": "_group",
    "Overlap": "_overlapping",
    "Setting": "_tuner",
    "Tuner": "_tuner",
    "comm_hook": "_ddp_hook",
    "overlap": "_overlapping",
    "use_for_fsdp": "_fsdp",
}


def __getattr__(name: str) -> object:
    """What is imported when it is asked for."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    globals()[name] = value
    return value
