"""Everything that a training run needs to resume, as one checkpoint."""

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch

import ffrecord.checkpoint as ckpt
from ffrecord.checkpoint._ranks import together
from ffrecord.checkpoint._torch_group import Group
from ffrecord.errors import CorruptionError


class TrainingState:
    """Model, optimizer, scheduler, loader, random states, and values of your own.

        training = TrainingState(model, optimizer, loader, scheduler=scheduler)
        step = training.load("runs/x")               # 0 if there is no checkpoint yet.
        for batch in loader:
            ...
            step += 1
            if step % 1000 == 0:
                training.async_save("runs/x", step)

    The position of a loader counts delivered batches, so the run continues with the next sample, at
    any world size. Random states of the ranks are restored at the same world size; at another one
    they are left as they are, and `restored_rng` says so. (Loaders draw from the global generator
    whenever an epoch begins. Where one goes on, those of `ffrecord.torch` draw nothing; torch's own
    draw once more: give them a `generator`.)

    Attributes:
        extra: plain values that are saved and loaded with the rest.
        restored_rng: whether the last `load` set the random states.
    """

    def __init__(
        self,
        model: Any,  # noqa: ANN401 - whatever has state_dict and load_state_dict, as below
        optimizer: Any = None,  # noqa: ANN401
        loader: Any = None,  # noqa: ANN401
        *,
        scheduler: Any = None,  # noqa: ANN401
        extra: Mapping[str, object] | None = None,
        group: ckpt.Group | None = None,
        **others: Any,  # noqa: ANN401
    ) -> None:
        """Store the objects, each with `state_dict` and `load_state_dict`.

        Args:
            model: a module; wrapped in DistributedDataParallel it is saved as the module within.
            optimizer: of the model.
            loader: an object with a position in the stream, such as `ffrecord.torch.DataLoader`.
            scheduler: of the learning rate.
            extra: plain values.
            group: the ranks; by default all of the process group, if there is one.
            others: more such objects, by name, such as a gradient scaler.
        """
        inner = isinstance(model, torch.nn.parallel.DistributedDataParallel)
        parts = {
            "model": model.module if inner else model,
            "optimizer": optimizer,
            "scheduler": scheduler,
            "loader": loader,
            **others,
        }
        self._parts = {name: part for name, part in parts.items() if part is not None}
        self.extra = dict(extra or {})
        self.restored_rng = False
        if group is None and torch.distributed.is_available():
            group = Group() if torch.distributed.is_initialized() else None
        self._group = group

    def _state(self, step: int) -> dict[str, object]:
        rng = ckpt.PerRank(ckpt.rng_state())
        return {**self._parts, "step": step, "extra": self.extra, "rng": rng}

    def save(self, target: str | os.PathLike[str], step: int, **options: Any) -> ckpt.Commit:  # noqa: ANN401
        """Save with `ffrecord.checkpoint.save`, which takes `options`."""
        return ckpt.save(target, step, self._state(step), group=self._group, **options)

    def async_save(
        self,
        target: str | os.PathLike[str],
        step: int,
        **options: Any,  # noqa: ANN401
    ) -> ckpt.PendingSave:
        """Save with `ffrecord.checkpoint.async_save`, which takes `options`."""
        return ckpt.async_save(target, step, self._state(step), group=self._group, **options)

    def load(self, target: str | os.PathLike[str], **options: Any) -> int:  # noqa: ANN401
        """Load with `ffrecord.checkpoint.load`, which takes `options`.

        The run goes on from there, unless the options say `resume=False`.

        Returns:
            The step that was saved; 0, with nothing changed, if there is no checkpoint and the
            options name no step.
        """
        rng = ckpt.PerRank(None)
        state: dict[str, Any] = {**self._parts, "step": 0, "extra": None, "rng": rng}
        if options.get("step", "latest") == "latest" and not self._is_there(target, options):
            return 0
        options = {"elastic": True, "resume": True, **options}
        ckpt.load(target, state, group=self._group, **options)
        self.extra = state["extra"]
        own = state["rng"].value
        self.restored_rng = own is not None
        together(self._group, lambda: None if own is None else ckpt.set_rng_state(own))
        return int(state["step"])

    def on_rank_0(self, work: Callable[[], object]) -> None:
        """Run `work` on rank 0 alone; if it raises there, raise on every rank."""

        def do() -> None:
            if self._group is None or self._group.rank == 0:
                work()

        together(self._group, do)

    def _is_there(self, target: str | os.PathLike[str], options: dict[str, Any]) -> bool:
        """The step that rank 0 sees, since a save may be in progress; `load` reports damage."""

        def look() -> bool:
            if self._group is not None and self._group.rank != 0:
                return False
            timeout_s = options.get("timeout_s", 30.0)
            try:
                return ckpt.latest(target, timeout_s=timeout_s) is not None
            except CorruptionError:
                return True

        return bool(together(self._group, look)[0])
