"""The ranks of this job: those of torch.distributed if it runs, else of torchrun, else one."""

import os

import torch.distributed


def rank_in_job() -> int:
    """The rank of this process."""
    return torch.distributed.get_rank() if _runs() else int(os.environ.get("RANK", 0))


def ranks_of_job() -> int:
    """How many ranks there are."""
    return torch.distributed.get_world_size() if _runs() else int(os.environ.get("WORLD_SIZE", 1))


def _runs() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
