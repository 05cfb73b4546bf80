"""What keeps training frameworks from sharding again what a `Sampler` has sharded.

Each finds out in its own way that a loader is for several ranks already: Lightning, Fabric and Ray
by a `DistributedSampler`, accelerate by an attribute. They are shown that. For what shards all the
same see `resharding`.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch.utils import data
from torch.utils.data.distributed import DistributedSampler

from ffrecord.torch._sampler import Sampler


class Share(DistributedSampler[int], data.SequentialSampler):
    """The `sampler` of a loader whose batches a `Sampler` makes: one rank's share, index by index.

    Frameworks look at its type: who finds a `DistributedSampler` puts none in its place, and who
    finds the `SequentialSampler` that torch has beside any batch sampler sees no shuffling to stop.
    """

    def __init__(self, inner: Sampler) -> None:
        """Stand for `inner`. The initialisers of the bases would ask for a process group."""
        self.inner = inner
        self._offset = 0  # Epochs that the sampler is ahead of its framework.

    @property
    def num_replicas(self) -> int:  # type: ignore[override]
        """Ranks with samples of their own."""
        return self.inner.world_size

    def set_epoch(self, epoch: int) -> None:
        """Note that the framework begins its epoch `epoch`.

        The first time after `load_state_dict` the restored place stands: a framework that begins at
        0 in a resumed run does not turn it back, and counts on from there.
        """
        if self.inner.was_restored:
            self.inner.was_restored = False
            self._offset = self.inner.epoch - epoch
        else:
            self.inner.set_epoch(max(0, epoch + self._offset))

    def __iter__(self) -> Iterator[int]:
        steps = self.inner.epoch_from(self.inner.place)
        return chain.from_iterable(batch for _, batch in steps)

    def __len__(self) -> int:
        return sum(len(batch) for _, batch in self.inner.epoch_from(self.inner.place))


def is_held_back_by(owner: object) -> bool:
    """Whether `owner` asks for a batch before it hands out the last: its consumer is one behind."""
    kind = type(owner)
    return kind.__name__ == "_WrappedDataLoader" and kind.__module__.partition(".")[0] == "ray"


class Accelerated:
    """A loader that an `Accelerator` has prepared, as accelerate wants to know it.

    For accumulated gradients accelerate asks the loader that is being iterated whether the batch is
    the last one, and for how many of its records are repeats; ours are none.
    """

    remainder = -1

    def __init__(self) -> None:
        """Not iterated yet."""
        self.end_of_dataloader = False

    @property
    def device(self) -> torch.device | None:
        """Where `prepare` promises batches; None for the CPU, where they are."""
        found: torch.device = sys.modules["accelerate.state"].PartialState().device
        return None if found.type == "cpu" else found

    @contextmanager
    def iterated(self) -> Iterator[None]:
        """Is the loader of the moment for the time of the block."""
        gradients = sys.modules["accelerate.state"].GradientState()
        self.end_of_dataloader = False
        gradients._add_dataloader(self)
        try:
            yield
        finally:
            gradients._remove_dataloader(self)
