"""The loader for PyTorch: plain `torch.utils.data` habits, one read for each batch."""

from ffrecord.order import IndexBatch
from ffrecord.torch.collate import collate
from ffrecord.torch.comm_hook import CommHook, comm_hook
from ffrecord.torch.dataset import Dataset
from ffrecord.torch.loader import DataLoader
from ffrecord.torch.sampler import Sampler

__all__ = ["CommHook", "DataLoader", "Dataset", "IndexBatch", "Sampler", "collate", "comm_hook"]
