"""Checkpoints of Hugging Face's Trainer: Trainer(..., callbacks=[CheckpointCallback("runs/x")])."""

import dataclasses
import json
import os
from typing import Any

from transformers import TrainerCallback  # type: ignore[import-not-found, unused-ignore]

import ffrecord.checkpoint as ckpt
from ffrecord._base.addresses import target_from_root
from ffrecord.torch._dataloader import DataLoader
from ffrecord.torch._training import TrainingState

Path = str | os.PathLike[str]


class CheckpointCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Saves model, optimizer, scheduler, random states and the Trainer's own state during training.

    Training continues during a save. Set the Trainer's `save_strategy="no"` to have no other
    checkpoints. With `resume`, training continues at the newest step of the target, with the next
    sample: the Trainer's loader must be a loader of `ffrecord.torch`, which knows its position
    (`return self.accelerator.prepare(loader)` in `get_train_dataloader`).
    """

    def __init__(
        self,
        target: Path,
        *,
        every_steps: int = 500,
        keep_last: int = 3,
        resume: bool = True,
        data_anew: bool = False,
        **options: Any,  # noqa: ANN401 - those of async_save
    ) -> None:
        """Store the arguments; start nothing.

        Args:
            target: a folder that all ranks share, or `ffrecord://host[:port]/run`.
            every_steps: optimizer steps between saves; there is also a save at the end.
            keep_last: how many checkpoints to keep.
            resume: load the newest one before training, if there is one.
            data_anew: resume even with a loader that does not know its position, and let the
                Trainer start its data at the first sample again.
            options: of `ffrecord.checkpoint.async_save`.
        """
        if every_steps < 1 or keep_last < 1:
            raise ValueError("every_steps and keep_last must be at least 1")
        self._target, self._options = target_from_root(target), options
        self._every_steps, self._keep_last, self._resume = every_steps, keep_last, resume
        self._data_anew = data_anew
        self._training: TrainingState | None = None
        self._pending: ckpt.PendingSave | None = None
        self._saved = -1

    def on_train_begin(
        self,
        args: Any,  # noqa: ANN401 - TrainingArguments, TrainerState, TrainerControl
        state: Any,  # noqa: ANN401
        control: Any,  # noqa: ANN401
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """Load the checkpoint to resume from.

        Raises:
            ValueError: there is one, and the Trainer's loader does not know its position.
        """
        loader = kwargs.get("train_dataloader")
        knows_place = isinstance(loader, DataLoader)
        self._training = TrainingState(
            kwargs["model"],
            kwargs.get("optimizer"),
            loader if knows_place else None,
            scheduler=kwargs.get("lr_scheduler"),
        )
        if not self._resume:
            return
        if not knows_place and not self._data_anew and ckpt.latest(self._target) is not None:
            raise ValueError(
                f"{self._target} has a checkpoint, and a {type(loader).__name__} does not know "
                "where its data continues: have get_train_dataloader of the Trainer return "
                "self.accelerator.prepare(loader), with a loader of ffrecord.torch, or use "
                "CheckpointCallback(..., data_anew=True) to start at the first sample again"
            )
        if step := self._training.load(self._target):
            words = json.loads(str(self._training.extra["trainer"]))
            for name in ("log_history", "best_metric", "best_model_checkpoint", "total_flos"):
                setattr(state, name, words.get(name))
            state.global_step = self._saved = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """Save if it is time."""
        if state.global_step % self._every_steps == 0:
            self._save(state)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """Save the last step, and wait for it."""
        self._save(state)
        self._finish(state)

    def _save(self, state: Any) -> None:  # noqa: ANN401
        if self._training is None or state.global_step == self._saved:
            return
        self._finish(state)
        self._training.extra = {"trainer": json.dumps(dataclasses.asdict(state), default=str)}
        self._saved = state.global_step
        self._pending = self._training.async_save(self._target, self._saved, **self._options)

    def _finish(self, state: Any) -> None:  # noqa: ANN401
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        pending.result()
        if self._training is not None:
            self._training.on_rank_0(lambda: ckpt.prune(self._target, keep_last=self._keep_last))
