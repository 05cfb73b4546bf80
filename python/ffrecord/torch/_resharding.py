"""Refuses what shards among ranks, batch by batch, what a `Sampler` has sharded among them.

accelerate's `prepare_data_loader` does that with loaders of torch's own. Nothing tells the sampler
so but who asks it for batches, and that is on the stack.
"""

import sys
from types import FrameType

from torch.utils import data

# Between who shards and the sampler that it asks stand a few wrappers and an iterator of torch's.
_FRAMES_MAX = 12


def refuse_second_share(ranks: int) -> None:
    """Called as a `Sampler` for one of so many ranks is iterated.

    Raises:
        RuntimeError: what iterates it gives each rank a part of what is one rank's part already.
    """
    if ranks == 1:
        return
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_FRAMES_MAX):
        if frame is None:
            return
        owner = frame.f_locals.get("self")
        if (shares := _shares_of(owner)) > 1:
            kind = f"{type(owner).__module__.partition('.')[0]}'s {type(owner).__name__}"
            raise RuntimeError(
                f"{kind} shards among {shares} ranks what ffrecord.torch.Sampler has sharded among "
                f"{ranks}: most records would never be seen. Write loader = "
                "ffrecord.torch.DataLoader(dataset, batch_sampler=sampler) and pass that to "
                "Accelerator.prepare, which then leaves it as it is; or "
                "Sampler(..., rank=0, world_size=1) and leave the sharding to the other"
            )
        frame = frame.f_back


def _shares_of(owner: object) -> int:
    """Into how many parts `owner` cuts what it iterates."""
    if isinstance(owner, data.Sampler):
        parts = getattr(owner, "num_processes", 1), getattr(owner, "num_replicas", 1)
        return max((part for part in parts if isinstance(part, int)), default=1)
    if type(owner).__name__ == "DataLoaderDispatcher":  # One rank reads, for all.
        return int(getattr(getattr(owner, "state", None), "num_processes", 1))
    return 1
