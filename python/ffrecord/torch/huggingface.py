"""Checkpoints of Hugging Face's Trainer: Trainer(..., callbacks=[CheckpointCallback("runs/x")])."""

import dataclasses
import json
import os
from typing import Any

from transformers import TrainerCallback  # type: ignore[import-not-found, unused-ignore]

import ffrecord.checkpoint as ckpt
from ffrecord._base.addresses import target_from_root
from ffrecord.torch._dataloader import DataLoader
from ffrecord.torch._loader_order import batches_left
from ffrecord.torch._training import TrainingState

Path = str | os.PathLike[str]
# A resumed run goes on with these parts of the Trainer's state.
_KEPT = (
    *("epoch", "log_history", "total_flos"),
    *("best_metric", "best_global_step", "best_model_checkpoint"),
)


class _Epoch:
    """The epoch in which a run resumes, which the Trainer takes for a whole one, its first.

    The Trainer applies accumulated gradients after each `gradient_accumulation_steps` batches and
    after the last batch of an epoch, which it recognizes by counting the batches of this run. In a
    resumed epoch it never counts so far: the gradients of the last batches, if they are too few
    for a step, would stay until a later one. That step is therefore made to need so few.
    """

    def __init__(self, loader: DataLoader) -> None:
        """The epoch that the next iteration of the loader runs."""
        self.count = len(loader)
        self.left = batches_left(loader)
        self.first = self.count - self.left
        self._taken = 0
        self._per_step: int | None = None  # As the program has set it, while it is another.

    @property
    def done(self) -> float:
        """The part of the epoch that is trained on, as the Trainer counts it."""
        return (self.first + self._taken) / self.count

    def expect_step(self, args: Any) -> None:  # noqa: ANN401 - TrainingArguments
        """Prepare the next step, before the Trainer requests its batches."""
        if self.left == 1:  # The Trainer decides about its first batch before `begin_step`.
            self._set(args, 1)

    def begin_step(self, args: Any) -> None:  # noqa: ANN401
        """Prepare the step that has begun, before its second batch."""
        if 1 < self.left < args.gradient_accumulation_steps:
            self._set(args, self._taken + self.left)  # Divides the count at the last batch only.

    def end_step(self, args: Any) -> None:  # noqa: ANN401
        """Count the batches of a step."""
        self.restore(args)
        batches = min(self.left, args.gradient_accumulation_steps)
        self._taken += batches
        self.left -= batches

    def restore(self, args: Any) -> None:  # noqa: ANN401
        """Set what the program has set."""
        if self._per_step is not None:
            args.gradient_accumulation_steps, self._per_step = self._per_step, None

    def _set(self, args: Any, batches: int) -> None:  # noqa: ANN401
        self._per_step = args.gradient_accumulation_steps
        args.gradient_accumulation_steps = batches


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
        self._epoch: _Epoch | None = None  # While the Trainer is in it.
        self._epochs = 0.0  # Those before the Trainer's first one.
        self._is_over = False

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
        self._epoch, self._epochs, self._is_over = None, 0.0, False
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
            self._note_resumed(state, step)
            self._epochs = state.epoch
            if isinstance(loader, DataLoader):
                self._epochs, self._epoch = int(state.epoch), _Epoch(loader)
            if step >= state.max_steps:
                self._is_over = control.should_training_stop = True

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """Prepare the first step of a resumed epoch."""
        if self._epoch is not None:
            self._epoch.expect_step(args)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """Prepare the last step of a resumed epoch."""
        if self._epoch is not None:
            self._epoch.begin_step(args)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """Save if it is time."""
        if self._is_over:
            self._take_back(state)
            return
        if self._epoch is None:
            state.epoch += self._epochs
        else:
            self._epoch.end_step(args)
            state.epoch = self._epochs + self._epoch.done
            self._epoch.expect_step(args)
        if state.global_step % self._every_steps == 0:
            self._save(state)

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """Change nothing, if there was nothing left to train."""
        if self._is_over:
            self._take_back(state)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """Leave a resumed epoch; the next one is whole."""
        if self._epoch is not None:
            self._epoch.restore(args)
            self._epoch = None

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """Save the last step, and wait for it."""
        self._save(state)
        self._finish(state)

    def _note_resumed(self, state: Any, step: int) -> None:  # noqa: ANN401
        assert self._training is not None
        words = json.loads(str(self._training.extra["trainer"]))
        for name in _KEPT:
            if name in words:
                setattr(state, name, words[name])
        state.global_step = self._saved = step

    def _take_back(self, state: Any) -> None:  # noqa: ANN401
        """Undo a batch: the Trainer trains on one before it looks whether it should stop."""
        if self._training is not None:
            self._note_resumed(state, self._training.load(self._target, step=self._saved))

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
