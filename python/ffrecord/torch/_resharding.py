"""Rejects code that treats a `Sampler` in a way that loses records or repeats them.

That is code that shards, batch by batch, what the sampler has already sharded among ranks:
accelerate's `prepare_data_loader` does that with torch's own loaders. Code that skips steps which a
restored state has skipped. And a Trainer of transformers that resumes in a later epoch without a
word to the sampler. The sampler learns of each only from its caller, which is on the stack.
"""

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

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
    for frame in _callers():
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


def refuse_second_skip(steps: int) -> None:
    """Check the caller; runs when a `Sampler` goes on behind the first `steps` of an epoch.

    The guide of accelerate calls `skip_first_batches` after `load_state`, which restores the
    position of a loader of ours.

    Raises:
        RuntimeError: the caller leaves out as many steps again.
    """
    for frame in _callers():
        owner: Any = frame.f_locals.get("self")
        if type(owner).__name__ == "SkipBatchSampler" and owner.skip_batches:
            raise RuntimeError(
                f"skip_first_batches leaves out {owner.skip_batches} batches of a loader whose "
                f"restored state is behind {steps} of its epoch already: their records would never "
                "be read. Iterate over the loader itself"
            )


def refuse_other_epoch(epoch: int) -> None:
    """Check the caller; runs when a `Sampler` that is at `epoch` is iterated.

    Early releases 5 of transformers resume through accelerate's `skip_first_batches`, and call
    `set_epoch` on its loader only, which has none.

    Raises:
        RuntimeError: a Trainer skips the first batches of another epoch.
    """
    skips = False
    for frame in _callers():
        owner = frame.f_locals.get("self")
        skips = skips or type(owner).__name__ == "SkipBatchSampler"
        theirs = frame.f_locals.get("epoch")
        if skips and frame.f_code.co_name == "_run_epoch" and theirs not in (None, epoch):
            version = getattr(sys.modules.get("transformers"), "__version__", "in use")
            raise RuntimeError(
                f"the Trainer resumes in epoch {theirs}, but has not told the loader, which would "
                f"repeat records of epoch {epoch}: transformers {version} lacks that. Run pip "
                "install 'transformers>=5.17'; or resume with "
                "ffrecord.torch.huggingface.CheckpointCallback"
            )


def _callers() -> Iterator[FrameType]:
    """The frames of the callers of the function that iterates over this, the nearest first."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_FRAMES_MAX):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


def _shares_of(owner: object) -> int:
    """The number of parts into which `owner` cuts what it iterates."""
    if isinstance(owner, data.Sampler):
        parts = getattr(owner, "num_processes", 1), getattr(owner, "num_replicas", 1)
        return max((part for part in parts if isinstance(part, int)), default=1)
    if type(owner).__name__ == "DataLoaderDispatcher":  # One rank reads for all.
        return int(getattr(getattr(owner, "state", None), "num_processes", 1))
    return 1
