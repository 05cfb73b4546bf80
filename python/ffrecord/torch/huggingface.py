"""Checkpoints of Hugging Face's Trainer: Trainer(..., callbacks=[CheckpointCallback("runs/x")])."""

import dataclasses
import json
import logging
import math
import os
import sys
from types import FrameType
from typing import Any

import torch
from transformers import TrainerCallback  # type: ignore[import-not-found, unused-ignore]

import ffrecord.checkpoint as ckpt
from ffrecord._base.addresses import target_from_root
from ffrecord.torch._dataloader import DataLoader
from ffrecord.torch._loader_order import batches_left
from ffrecord.torch._training import TrainingState

_log = logging.getLogger("ffrecord.torch")
Path = str | os.PathLike[str]
# A resumed run goes on with these parts of the Trainer's state.
_KEPT = (
    *("epoch", "log_history", "total_flos", "num_input_tokens_seen"),
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

    def restore(self, args: Any) -> bool:  # noqa: ANN401
        """Set what the program has set; whether it was another."""
        if self._per_step is None:
            return False
        args.gradient_accumulation_steps, self._per_step = self._per_step, None
        return True

    def _set(self, args: Any, batches: int) -> None:  # noqa: ANN401
        self._per_step = args.gradient_accumulation_steps
        args.gradient_accumulation_steps = batches


class _Running:
    """The Trainer that calls a callback, which it does not name, and what it counts from.

    It takes its counts of logged steps and tokens before callbacks can resume. Where it is not
    found, its first loss is divided by all steps of the run.
    """

    def __init__(self, state: Any) -> None:  # noqa: ANN401 - TrainerState
        """Look among the callers for the Trainer that has this state."""
        self._trainer: Any = None
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and self._trainer is None:
            found = frame.f_locals.get("self")
            if getattr(found, "__dict__", {}).get("state") is state:
                self._trainer = found
            frame = frame.f_back

    def resume(self, state: Any) -> None:  # noqa: ANN401
        """Let it count from here."""
        self._set("_globalstep_last_logged", state.global_step)
        self._set("_initial_global_step", state.global_step)
        self._set("_initial_num_input_tokens_seen", state.num_input_tokens_seen)

    def forget_batch(self) -> None:
        """Let it forget the loss and the operations of the batch that was taken back."""
        self._set(
            "_tr_loss", torch.zeros_like(getattr(self._trainer, "_tr_loss", torch.tensor(0.0)))
        )
        self._set("current_flos", 0)

    def _set(self, name: str, value: Any) -> None:  # noqa: ANN401
        if hasattr(self._trainer, name):
            setattr(self._trainer, name, value)


def _steps_per_epoch(args: Any, loader: Any) -> int | None:  # noqa: ANN401 - as the Trainer has them
    """None if the loader has no length."""
    try:
        return max(1, math.ceil(len(loader) / int(args.gradient_accumulation_steps)))
    except TypeError:
        return None


def _has_best(args: Any, state: Any) -> bool:  # noqa: ANN401
    """Whether the Trainer loads another model than the last one at its end."""
    return bool(args.load_best_model_at_end and state.best_model_checkpoint is not None)


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
        self._is_inside_step = False
        self._running: _Running | None = None
        self._per_epoch: int | None = None
        self._scaler: Any = None  # The GradScaler of fp16, if there is one.
        self._random: Any = None  # Where a resumed run goes on, until it does.

    def on_train_begin(
        self,
        args: Any,  # noqa: ANN401 - TrainingArguments, TrainerState, TrainerControl
        state: Any,  # noqa: ANN401
        control: Any,  # noqa: ANN401
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """Load the checkpoint to resume from.

        Raises:
            ValueError: there is one, and the Trainer's loader does not know its position, or the
                Trainer resumes from another one, or its epochs have another number of steps, or it
                would end before `max_steps`.
            TypeError: the loader can never tell its position.
        """
        self._refuse_changed(args)
        self._epoch, self._epochs, self._is_over = None, 0.0, False
        self._is_inside_step, self._random = False, None
        loader = kwargs.get("train_dataloader")
        knows_place = isinstance(loader, DataLoader)
        if isinstance(loader, DataLoader):
            loader.state_dict()  # One that has none would end the training at its first save.
        self._training = TrainingState(
            kwargs["model"],
            kwargs.get("optimizer"),
            loader if knows_place else None,
            scheduler=kwargs.get("lr_scheduler"),
        )
        self._per_epoch = _steps_per_epoch(args, loader)
        self._scaler = getattr(kwargs.get("optimizer"), "scaler", None)
        if not self._resume:
            return
        if (state.global_step or not (knows_place or self._data_anew)) and self._is_there():
            self._refuse_resume(state, loader)
        if step := self._training.load(self._target):
            self._note_resumed(state, step)
            self._refuse_other_epochs(args, step)
            self._running = _Running(state)
            self._running.resume(state)
            self._random = ckpt.rng_state()
            self._epochs = state.epoch
            if isinstance(loader, DataLoader):
                self._epochs, self._epoch = int(state.epoch), _Epoch(loader)
                self._refuse_early_end(args, state, self._epoch)
            if step >= state.max_steps:
                self._is_over = control.should_training_stop = True

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """Prepare the first step of a resumed epoch."""
        if self._random is not None:  # The Trainer may have evaluated since (`eval_on_start`).
            ckpt.set_rng_state(self._random)
            self._random = None
        if self._epoch is not None:
            self._epoch.expect_step(args)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """Prepare the last step of a resumed epoch."""
        self._is_inside_step = True
        if self._epoch is not None:
            self._epoch.begin_step(args)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """Save if it is time."""
        self._is_inside_step = False
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
        if not control.should_save:
            self._save_before_best(args, state, control)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """Save the last step with the Trainer's own checkpoint of it."""
        self._save_before_best(args, state, control)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """Save the last step, and wait for it."""
        if _has_best(args, state) and state.global_step != self._saved:
            _log.warning("step %d is not saved: the Trainer has loaded the best", state.global_step)
        else:
            self._save(state)
        self._finish(state)

    def _save_before_best(self, args: Any, state: Any, control: Any) -> None:  # noqa: ANN401
        """Save the last step before the Trainer loads the model of the best one in its place."""
        if control.should_training_stop and args.load_best_model_at_end:
            self._save(state)

    def _is_there(self) -> bool:
        return ckpt.latest(self._target) is not None

    def _refuse_changed(self, args: Any) -> None:  # noqa: ANN401
        """Raise if an exception ended the last training in a step that was to need few batches."""
        if self._epoch is not None and self._epoch.restore(args):
            raise RuntimeError(
                "the last training was interrupted while gradient_accumulation_steps was changed "
                "for the end of a resumed epoch, and this Trainer has counted with that: it is as "
                "the program has set it again, so call train() once more"
            )

    def _refuse_resume(self, state: Any, loader: Any) -> None:  # noqa: ANN401
        if state.global_step:
            raise ValueError(
                f"{self._target} has a checkpoint, and the Trainer resumes from one of its own, at "
                f"step {state.global_step}: it would skip batches that the other one has skipped. "
                "Leave out resume_from_checkpoint, or use CheckpointCallback(..., resume=False)"
            )
        raise ValueError(
            f"{self._target} has a checkpoint, and a {type(loader).__name__} does not know "
            "where its data continues: have get_train_dataloader of the Trainer return "
            "self.accelerator.prepare(loader), with a loader of ffrecord.torch, or use "
            "CheckpointCallback(..., data_anew=True) to start at the first sample again"
        )

    def _refuse_other_epochs(self, args: Any, step: int) -> None:  # noqa: ANN401
        """Raise if steps, by which the Trainer counts epochs, are other parts of them now."""
        assert self._training is not None
        before, now = self._training.extra.get("steps_per_epoch"), self._per_epoch
        if args.max_steps <= 0 and None not in (before, now) and before != now:
            raise ValueError(
                f"{self._target}, step {step}: its run had {before} steps an epoch, and this one "
                f"has {now}, so it would end at another epoch than num_train_epochs says. Resume "
                "with the same global batch and gradient_accumulation_steps, or give max_steps"
            )

    def _refuse_early_end(self, args: Any, state: Any, epoch: _Epoch) -> None:  # noqa: ANN401
        """Raise if the epochs that the Trainer has planned end before `max_steps`.

        It plans them as if all steps had as many records as those that are left.
        """
        first = math.ceil(epoch.left / args.gradient_accumulation_steps)
        end = state.global_step + first + (state.num_train_epochs - 1) * (self._per_epoch or 0)
        if args.max_steps > end:
            raise ValueError(
                f"{self._target}, step {state.global_step}: the Trainer would end at step {end}, "
                f"before max_steps, {args.max_steps}, for its steps have fewer records than those "
                "before. Resume with the same global batch and gradient_accumulation_steps"
            )

    def _note_resumed(self, state: Any, step: int) -> None:  # noqa: ANN401
        assert self._training is not None
        words = json.loads(str(self._training.extra["trainer"]))
        for name in _KEPT:
            if name in words:
                setattr(state, name, words[name])
        if self._scaler is not None and self._training.extra.get("scaler"):
            self._scaler.load_state_dict(self._training.extra["scaler"])
        state.global_step = self._saved = step

    def _take_back(self, state: Any) -> None:  # noqa: ANN401
        """Undo a batch: the Trainer trains on one before it looks whether it should stop."""
        if self._training is not None:
            self._note_resumed(state, self._training.load(self._target, step=self._saved))
            if self._running is not None:
                self._running.forget_batch()

    def _save(self, state: Any) -> None:  # noqa: ANN401
        if self._training is None or state.global_step == self._saved:
            return
        if self._is_inside_step:
            _log.warning("not saved: the training was stopped behind a part of a step's batches")
            return
        self._finish(state)
        self._training.extra = {"trainer": json.dumps(dataclasses.asdict(state), default=str)}
        if self._per_epoch is not None:
            self._training.extra["steps_per_epoch"] = self._per_epoch
        if self._scaler is not None:
            self._training.extra["scaler"] = self._scaler.state_dict()
        self._saved = state.global_step
        self._pending = self._training.async_save(self._target, self._saved, **self._options)

    def _finish(self, state: Any) -> None:  # noqa: ANN401
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        pending.result()
        if self._training is not None:
            self._training.on_rank_0(lambda: ckpt.prune(self._target, keep_last=self._keep_last))
