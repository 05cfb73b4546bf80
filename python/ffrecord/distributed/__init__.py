"""Collectives of gradients in CPU memory: for DDP, FSDP2, other models, and `torch.distributed`."""

from typing import TYPE_CHECKING

from ffrecord._base import gloo_exit  # noqa: F401 - acts at exit
from ffrecord._base.lazy_names import later

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

# The process group of `backend` does without them.
__getattr__ = later(
    __name__,
    {
        "CommHook": "_ddp_hook",
        "Decision": "_tuner",
        "Group": "_group",
        "Overlap": "_overlapping",
        "Setting": "_tuner",
        "Tuner": "_tuner",
        "comm_hook": "_ddp_hook",
        "overlap": "_overlapping",
        "use_for_fsdp": "_fsdp",
    },
)
