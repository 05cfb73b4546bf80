"""Checkpoints of `torch.distributed` programs: the ranks' side of `ffrecord.checkpoint`."""

from ffrecord.checkpoint._torch_group import Group

__all__ = ["Group"]
