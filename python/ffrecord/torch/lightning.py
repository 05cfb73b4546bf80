"""Lightning's checkpoints as ffrecord's: Trainer(plugins=[CheckpointIO()])."""

import logging
import os
from typing import Any

try:
    from lightning.fabric.plugins import (  # type: ignore[import-not-found, unused-ignore]
        CheckpointIO as _CheckpointIO,
    )
except ImportError:
    from lightning_fabric.plugins import (  # type: ignore[import-not-found, unused-ignore]
        CheckpointIO as _CheckpointIO,
    )

import ffrecord.checkpoint as ckpt
from ffrecord import _ffrecord
from ffrecord.checkpoint._state import named_values
from ffrecord.checkpoint._values import decode
from ffrecord.errors import CorruptionError

Path = str | os.PathLike[str]

# In a state that was saved here: a path may be a run that has checkpoints of others too.
_MARK = "#ffrecord.lightning"
_TIMEOUT_S = 30.0
_log = logging.getLogger("ffrecord.checkpoint")


class CheckpointIO(_CheckpointIO):  # type: ignore[misc, unused-ignore]
    """Saves, loads and removes checkpoints for a Trainer; each path is a folder with one step.

    If a path is saved again, the new checkpoint is committed before the old one goes; files of
    others there stay. Nothing is pickled: hyperparameters and the state of callbacks must be plain
    values, arrays or tensors.
    """

    def __init__(self, *, background: bool = False, **options: Any) -> None:  # noqa: ANN401
        """Store the arguments; start nothing.

        Args:
            background: let training continue during a save; the next save, or the end of training,
                waits for it, and raises its error.
            options: of `ffrecord.checkpoint.save`, or `async_save` with `background`.
        """
        super().__init__()
        # Lightning saves on rank 0 alone.
        self._background, self._options = background, {"group": "alone", **options}
        self._pending: tuple[ckpt.PendingSave, Path, list[ckpt.Commit]] | None = None

    def save_checkpoint(
        self,
        checkpoint: dict[str, Any],
        path: Path,
        storage_options: object = None,
    ) -> None:
        """Save; called on rank 0, which has the whole state."""
        if storage_options is not None:
            raise TypeError("storage_options are not supported")
        for where, named in named_values(checkpoint):
            if named.kind not in ("dtype", "device"):  # Nothing would make it one again.
                raise TypeError(
                    f"state: {where} is of kind {named.kind} ({named.name}), which would need "
                    "pickling; save plain values, arrays and tensors"
                )
        self._finish()
        there = ckpt.list(path)
        step, old = max((commit.step for commit in there), default=-1) + 1, _saved_here(path, there)
        checkpoint = {**checkpoint, _MARK: True}
        if self._background:
            pending = ckpt.async_save(path, step, checkpoint, **self._options)
            self._pending = pending, path, old
        else:
            ckpt.save(path, step, checkpoint, **self._options)
            _remove(path, old)

    def load_checkpoint(self, path: Path, *args: object, **kwargs: object) -> dict[str, Any]:
        """Load tensors to the CPU; Lightning moves them where they belong."""
        self._finish()
        # Saves take the next free number at their path, whatever was loaded there.
        loaded: Any = ckpt.load(path, as_torch=True, group="alone", resume=False)
        return {key: value for key, value in loaded.items() if key != _MARK}

    def remove_checkpoint(self, path: Path) -> None:
        """Remove everything that was saved here, and the folder if it is then empty.

        A damaged step does not say who saved it. It is removed unless there are checkpoints of
        others here; then it stays, and a warning names it.
        """
        self._finish()
        _remove(path, _saved_here(path, ckpt.list(path)))
        if "://" not in os.fspath(path) and os.path.isdir(path):
            hint = os.path.join(path, "LATEST")
            if os.listdir(path) == ["LATEST"]:
                os.unlink(hint)
                os.rmdir(path)

    def teardown(self) -> None:
        """Wait for the last save."""
        self._finish()

    def _finish(self) -> None:
        if self._pending is None:
            return
        (pending, path, old), self._pending = self._pending, None
        pending.result()
        _remove(path, old)


def _saved_here(path: Path, there: list[ckpt.Commit]) -> list[ckpt.Commit]:
    """The steps of a CheckpointIO, and the damaged ones if there are no steps of others."""
    ours: list[ckpt.Commit] = []
    others: list[ckpt.Commit] = []
    unknown: list[ckpt.Commit] = []
    for commit in there:
        try:
            tree = decode(_ffrecord.CheckpointReader(path, commit.step, _TIMEOUT_S).structure)
        except (CorruptionError, FileNotFoundError):
            unknown.append(commit)
        else:
            is_ours = isinstance(tree, dict) and _MARK in tree
            (ours if is_ours else others).append(commit)
    if others and unknown:
        _log.warning(
            "%s has damaged steps %s beside checkpoints of others; they stay. If they are not "
            "needed, remove them: ffrecord.checkpoint.remove(%r, STEP)",
            os.fspath(path),
            [commit.step for commit in unknown],
            os.fspath(path),
        )
    return ours if others else sorted([*ours, *unknown])


def _remove(path: Path, saves: list[ckpt.Commit]) -> None:
    for commit in saves:
        _ffrecord.remove_checkpoint(path, commit.step, _TIMEOUT_S, commit.attempt)
