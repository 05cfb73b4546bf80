"""The loader for PyTorch: plain `torch.utils.data` habits, one read for each batch."""

from importlib import import_module
from typing import TYPE_CHECKING

from ffrecord.order import IndexBatch
from ffrecord.torch.collate import collate
from ffrecord.torch.dataloader import DataLoader
from ffrecord.torch.dataset import ConcatDataset, Dataset, ReaderRegistry, Subset
from ffrecord.torch.sampler import Sampler

if TYPE_CHECKING:
    from ffrecord.torch.checkpoint_dcp import CheckpointReader, CheckpointWriter
    from ffrecord.torch.dcp_planner import BalancedSavePlanner
    from ffrecord.torch.training import TrainingState

__all__ = [
    "BalancedSavePlanner",
    "CheckpointReader",
    "CheckpointWriter",
    "ConcatDataset",
    "DataLoader",
    "Dataset",
    "IndexBatch",
    "ReaderRegistry",
    "Sampler",
    "Subset",
    "TrainingState",
    "collate",
]


# What loading does without, by the file of this folder that it is in: none may have the name of
# what it holds. Every process of a loader imports this module, and they would double what that
# takes.
_LATER = {
    "BalancedSavePlanner": "dcp_planner",
    "CheckpointReader": "checkpoint_dcp",
    "CheckpointWriter": "checkpoint_dcp",
    "TrainingState": "training",
}


def __getattr__(name: str) -> object:
    """What is imported when it is asked for."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    globals()[name] = value
    return value
