"""The loader for PyTorch: plain `torch.utils.data` habits, one read for each batch."""

from ffrecord.order import IndexBatch
from ffrecord.torch.collate import collate
from ffrecord.torch.comm_hook import CommHook, comm_hook
from ffrecord.torch.dataloader import DataLoader
from ffrecord.torch.dataset import ConcatDataset, Dataset, ReaderRegistry, Subset
from ffrecord.torch.sampler import Sampler

__all__ = [
    "CommHook",
    "ConcatDataset",
    "DataLoader",
    "Dataset",
    "IndexBatch",
    "ReaderRegistry",
    "Sampler",
    "Subset",
    "collate",
    "comm_hook",
]
