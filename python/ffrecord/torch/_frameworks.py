"""Keeps training frameworks from sharding again what a `Sampler` has sharded.

Each framework detects in its own way that a loader already serves several ranks: Lightning, Fabric
and Ray by a `DistributedSampler`, accelerate by an attribute. The loader shows them that. Code that
shards anyway is the subject of `resharding`.
"""

import operator
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from types import FrameType
from typing import Any

import torch
from torch.utils import data
from torch.utils.data.distributed import DistributedSampler

from ffrecord.torch._sampler import Sampler

# Between a loop of Lightning and the loader that it iterates are half as many.
_FRAMES_MAX = 20


class Share(DistributedSampler[int], data.SequentialSampler):
    """The `sampler` of a loader whose batches a `Sampler` makes: one rank's share, index by index.

    Frameworks look at its type: one that finds a `DistributedSampler` does not insert its own, and
    one that finds the `SequentialSampler` that torch has beside any batch sampler sees no shuffling
    to stop.
    """

    def __init__(self, inner: Sampler) -> None:
        """Wrap `inner`. Does not run the initialisers of the bases, which need a process group."""
        self.inner = inner
        self._offset = 0  # How many epochs the sampler is ahead of its framework.

    @property
    def num_replicas(self) -> int:  # type: ignore[override]
        """Ranks with samples of their own."""
        return self.inner.world_size

    def set_epoch(self, epoch: int) -> None:
        """Note that the framework begins its epoch `epoch`.

        After `load_state_dict`, the first call keeps the restored position: a framework that begins
        at 0 in a resumed run does not rewind it. Later calls count on from there. A framework that
        goes on counting, and had left the epoch of that position early, begins the next one. One
        that has iterated several times in an epoch of its own, as Lightning does over the shorter
        of two loaders, goes on where that ended: no epoch comes again.
        """
        inner, epoch = self.inner, operator.index(epoch)
        if inner.was_restored:
            inner.was_restored = False
            if inner.is_left(epoch):
                inner.set_epoch(inner.epoch + 1)
            self._offset = inner.epoch - epoch
        else:
            if inner.is_beyond(epoch):
                inner.go_on()
                self._offset = inner.epoch - epoch
            inner.set_epoch(max(0, epoch + self._offset))
        inner.note_name(epoch)

    def __iter__(self) -> Iterator[int]:
        steps = self.inner.epoch_from(self.inner.place)
        return chain.from_iterable(batch for _, batch in steps)

    def __len__(self) -> int:
        return sum(len(batch) for _, batch in self.inner.epoch_from(self.inner.place))


def is_held_back_by(owner: object) -> bool:
    """Whether `owner` requests a batch before it passes on the last: its consumer is one behind."""
    kind = type(owner)
    return kind.__name__ == "_WrappedDataLoader" and kind.__module__.partition(".")[0] == "ray"


def lightning_fit_loop() -> Any:  # noqa: ANN401 - Lightning is not imported here
    """The loop of a Trainer of Lightning that trains with the loader that the caller iterates.

    None if there is no such loop.
    """
    # The loader's __iter__ is called by Lightning's combination of loaders, that by a loop.
    frame = sys._getframe(1).f_back
    if frame is None or not _module_of(frame).endswith(".utilities.combined_loader"):
        return None
    for _ in range(_FRAMES_MAX):
        frame = frame.f_back
        if frame is None or _module_of(frame).endswith(".loops.evaluation_loop"):
            return None
        if _module_of(frame).endswith(".loops.fit_loop"):
            return frame.f_locals.get("self")
    return None


def is_saved_by(fit_loop: Any) -> bool:  # noqa: ANN401 - Lightning's, or None
    """Whether Lightning saves the loaders of this loop.

    Its checkpoints, those of weights alone too, have the states of all loaders that know
    `state_dict`. A loader that cannot give its state would end a training at the first checkpoint,
    perhaps hours from now.
    """
    return bool(getattr(getattr(fit_loop, "trainer", None), "checkpoint_callbacks", None))


def has_ended_epoch(fit_loop: Any) -> bool:  # noqa: ANN401 - Lightning's
    """Whether Lightning resumes behind the last batch of one of its epochs.

    With `limit_train_batches`, that is not the last one of the loader's epoch.
    """
    progress = getattr(getattr(fit_loop, "epoch_loop", None), "batch_progress", None)
    resumes = getattr(fit_loop, "restarting", False)
    return bool(resumes and getattr(progress, "is_last_batch", False))


def has_no_more(fit_loop: Any) -> bool:  # noqa: ANN401 - Lightning's
    """Whether a loader that Lightning resumes at the start of an epoch has no batches in this one.

    With mode="max_size", Lightning has None for a loader whose epoch is over, until its own is. It
    resumes inside of one behind a batch of each loader, so one at the start of an epoch is over.
    """
    combined = getattr(fit_loop, "_combined_loader", None)
    progress = getattr(getattr(fit_loop, "epoch_loop", None), "batch_progress", None)
    ready = getattr(getattr(progress, "current", None), "ready", 0)
    is_inside = ready > 0 and getattr(fit_loop, "restarting", False)
    has_ended = has_ended_epoch(fit_loop)
    return bool(getattr(combined, "_mode", "") == "max_size" and is_inside and not has_ended)


def take_state(fit_loop: Any, loader: Any) -> dict[str, Any] | None:  # noqa: ANN401 - as above
    """Take the state of `loader` from the checkpoint, if Lightning resumes without it.

    It loads the states of loaders only inside of an epoch. Behind the end of one, a loader with
    torch's own order would begin its first epoch again, and a mixture have its first weights.
    """
    states = getattr(fit_loop, "_combined_loader_states_to_load", None)
    if not isinstance(states, list) or getattr(fit_loop, "restarting", True):
        return None
    loaders = getattr(getattr(fit_loop, "_combined_loader", None), "flattened", [])
    known = [each for each in loaders if hasattr(each, "state_dict")]
    for place, each in enumerate(known if len(known) == len(states) else []):
        if each is loader and isinstance(states[place], dict):
            found: dict[str, Any] = states[place]
            states[place] = None  # A loader that is made for a later epoch has its own.
            return found
    return None


def _module_of(frame: FrameType) -> str:
    """The name of Lightning's module that a function is in; empty if it is in none."""
    name = str(frame.f_globals.get("__name__", ""))
    return name if name.startswith(("pytorch_lightning.", "lightning.pytorch.")) else ""


class Accelerated:
    """A loader that an `Accelerator` has prepared, in the form that accelerate expects.

    When gradients are accumulated, accelerate asks the loader being iterated whether the batch is
    the last one. `gather_for_metrics` asks how many records of the last step over all ranks are no
    repeats, which come first there. A step with fewer records than others has a number, too, as
    with loaders of accelerate's: the Trainer of transformers has a loss for each record of a full
    step, and cuts them to it.

    It gathers tensors of one shape only; others end the process where the collective is not
    checked. In a step of which ranks have unequal shares, accelerate is therefore made to compare
    the shapes first: `gather` and `gather_for_metrics` then raise, unless objects are gathered.
    """

    def __init__(self, sampler: Sampler) -> None:
        """The view of a loader whose batches `sampler` makes; not iterated yet."""
        self._sampler = sampler
        self.end_of_dataloader = False
        self._compares_shapes = False  # By the user's choice.

    @property
    def remainder(self) -> int:
        """Records of the last step that come once; 0 if it has as many as others."""
        return self._sampler.unpadded

    @property
    def device(self) -> torch.device | None:
        """The device on which `prepare` promises batches; None for the CPU, where they are."""
        found: torch.device = sys.modules["accelerate.state"].PartialState().device
        return None if found.type == "cpu" else found

    @contextmanager
    def iterated(self) -> Iterator[None]:
        """Be accelerate's current loader for the duration of the block."""
        states = sys.modules["accelerate.state"]
        gradients, process = states.GradientState(), states.PartialState()
        self.end_of_dataloader, self._compares_shapes = False, process.debug
        gradients._add_dataloader(self)
        try:
            yield
        finally:
            process.debug = self._compares_shapes
            gradients._remove_dataloader(self)

    def note(self, is_last: bool, shares_differ: bool) -> None:
        """Tell accelerate of the batch that comes now: is it the last, do ranks' batches differ."""
        self.end_of_dataloader = is_last
        sys.modules["accelerate.state"].PartialState().debug = (
            self._compares_shapes or shares_differ
        )
