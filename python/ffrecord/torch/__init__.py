"""The loader for PyTorch: plain `torch.utils.data` habits, one read for each batch."""

from importlib import import_module
from typing import TYPE_CHECKING

from ffrecord._order import IndexBatch
from ffrecord.torch._collate import collate
from ffrecord.torch._dataloader import DataLoader
from ffrecord.torch._dataset import ConcatDataset, Dataset, ReaderRegistry, Subset
from ffrecord.torch._sampler import Sampler

if TYPE_CHECKING:
    from ffrecord.torch._checkpoint_dcp import CheckpointReader, CheckpointWriter
    from ffrecord.torch._dcp_planner import BalancedSavePlanner
    from ffrecord.torch._training import TrainingState

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


# What loading does without, by the file of this folder that it is in. Every process of a loader
# imports this module, and they would double what that takes.
_LATER = {
    "BalancedSavePlanner": "_dcp_planner",
    "CheckpointReader": "_checkpoint_dcp",
    "CheckpointWriter": "_checkpoint_dcp",
    "TrainingState": "_training",
}


def __getattr__(name: str) -> object:
    """What is imported when it is asked for."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    globals()[name] = value
    return value
