"""The loader for PyTorch: used like `torch.utils.data`, with one read per batch."""

from typing import TYPE_CHECKING

from ffrecord.torch import _old_releases  # noqa: F401 - refuses an old torch, before it is used

# isort: split
from ffrecord._base import gloo_exit, torch_steps  # noqa: F401 - the first acts at exit
from ffrecord._base.lazy_names import later
from ffrecord._order.epoch_order import IndexBatch
from ffrecord.torch._collate import collate
from ffrecord.torch._dataloader import DataLoader
from ffrecord.torch._dataset import Dataset, ReaderRegistry
from ffrecord.torch._sampler import Sampler
from ffrecord.torch._subsets import ConcatDataset, Subset

if TYPE_CHECKING:
    from ffrecord.torch._checkpoint_dcp import CheckpointReader, CheckpointWriter
    from ffrecord.torch._dcp_planner import BalancedSavePlanner
    from ffrecord.torch._dcp_stager import Stager
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
    "Stager",
    "Subset",
    "TrainingState",
    "collate",
]

torch_steps.watch()

# Names that loading does not need, imported on use: every process of a loader imports this package,
# and they would double the time and memory of that.
__getattr__ = later(
    __name__,
    {
        "BalancedSavePlanner": "_dcp_planner",
        "CheckpointReader": "_checkpoint_dcp",
        "CheckpointWriter": "_checkpoint_dcp",
        "Stager": "_dcp_stager",
        "TrainingState": "_training",
    },
)
