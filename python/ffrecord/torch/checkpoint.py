"""Checkpoints of `torch.distributed` programs: the ranks' side of `ffrecord.checkpoint`."""

from ffrecord.checkpoint._torch_group import Group

__all__ = ["Group"]

for _each in (Group,):
    _each.__module__ = __name__  # Messages and pickles name the public module.
