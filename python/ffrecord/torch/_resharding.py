"""Rejects code that shards, batch by batch, what a `Sampler` has already sharded among ranks.

accelerate's `prepare_data_loader` does that with torch's own loaders. The sampler learns of it only
from its caller, which is on the stack.
"""

import sys
from types import FrameType

from torch.utils import data

# On the stack, a few wrappers and an iterator of torch's are between the code that shards and the
# sampler.
_FRAMES_MAX = 12


def refuse_second_share(ranks: int) -> None:
    """Check the caller; runs when a `Sampler` for one of several ranks is iterated.

    Raises:
        RuntimeError: the caller gives each rank a part of what is already one rank's part.
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
                f"{ranks}: most records would never be read. Use loader = "
                "ffrecord.torch.DataLoader(dataset, batch_sampler=sampler) and pass it to "
                "Accelerator.prepare, which then leaves it as it is; or use "
                "Sampler(..., rank=0, world_size=1) and let the other code shard"
            )
        frame = frame.f_back


def _shares_of(owner: object) -> int:
    """The number of parts into which `owner` cuts what it iterates."""
    if isinstance(owner, data.Sampler):
        parts = getattr(owner, "num_processes", 1), getattr(owner, "num_replicas", 1)
        return max((part for part in parts if isinstance(part, int)), default=1)
    if type(owner).__name__ == "DataLoaderDispatcher":  # One rank reads for all.
        return int(getattr(getattr(owner, "state", None), "num_processes", 1))
    return 1
