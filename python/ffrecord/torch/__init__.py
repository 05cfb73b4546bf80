"""The loader for PyTorch: plain `torch.utils.data` habits, one read for each batch."""

from typing import TYPE_CHECKING

from ffrecord.order import IndexBatch
from ffrecord.torch.collate import collate
from ffrecord.torch.comm_hook import CommHook, comm_hook
from ffrecord.torch.dataloader import DataLoader
from ffrecord.torch.dataset import ConcatDataset, Dataset, ReaderRegistry, Subset
from ffrecord.torch.group import Group
from ffrecord.torch.overlap import Overlap, overlap
from ffrecord.torch.sampler import Sampler
from ffrecord.torch.training import TrainingState
from ffrecord.torch.tuner import Decision, Setting, Tuner

if TYPE_CHECKING:
    from ffrecord.torch.checkpoint_dcp import (
        BalancedSavePlanner,
        CheckpointReader,
        CheckpointWriter,
    )
    from ffrecord.torch.fsdp import use_for_fsdp

__all__ = [
    "BalancedSavePlanner",
    "CheckpointReader",
    "CheckpointWriter",
    "CommHook",
    "ConcatDataset",
    "DataLoader",
    "Dataset",
    "Decision",
    "Group",
    "IndexBatch",
    "Overlap",
    "ReaderRegistry",
    "Sampler",
    "Setting",
    "Subset",
    "TrainingState",
    "Tuner",
    "collate",
    "comm_hook",
    "overlap",
    "use_for_fsdp",
]


def __getattr__(name: str) -> object:
    """What needs parts of torch.distributed that load slowly, when it is asked for."""
    if name in ("BalancedSavePlanner", "CheckpointReader", "CheckpointWriter"):
        from ffrecord.torch import checkpoint_dcp

        return getattr(checkpoint_dcp, name)
    if name == "use_for_fsdp":
        from ffrecord.torch import fsdp

        return fsdp.use_for_fsdp
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
