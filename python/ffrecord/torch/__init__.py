"""The loader for PyTorch: plain `torch.utils.data` habits, one read for each batch."""

from ffrecord.torch.collate import collate
from ffrecord.torch.dataset import Dataset
from ffrecord.torch.loader import DataLoader
from ffrecord.torch.sampler import IndexBatch, Sampler

__all__ = ["DataLoader", "Dataset", "IndexBatch", "Sampler", "collate"]
