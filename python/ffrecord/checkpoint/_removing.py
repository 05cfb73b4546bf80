"""Removals by the user, and which of them give up a step at the mirror as well.

A step leaves a folder for several reasons: retention, `keep_local`, a lost disk, or because
training went back and gave it up. Only then is its copy wrong: the newest step at the mirror would
be one of an abandoned future. Two facts tell. The user called `remove`, which leaves a note in a
folder that has a mirror; and a save was made since, of an earlier step or the same one.
"""

import contextlib
import os
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

from ffrecord import _ffrecord
from ffrecord._base.addresses import REPLICATED, Target, target_from_root
from ffrecord.checkpoint._saving import Commit

# In a run's folder: where steps that are no longer there are loaded from.
MIRROR = "MIRROR"
_PREFIX = ".mirror-removed-"


class Save(NamedTuple):
    """A save of a step."""

    step: int
    attempt: str

    @property
    def line(self) -> str:
        """As it stands in files."""
        return f"{self.step} {self.attempt}"


class Removal(NamedTuple):
    """A note of one removal."""

    save: Save
    others: frozenset[str]  # Lines of the saves that were in the folder, or at the mirror, then.
    path: pathlib.Path

    def is_followed_by(self, save: Save) -> bool:
        """Whether a save in the folder was made since, of the same step or an earlier one."""
        return save.step <= self.save.step and save.line not in self.others


def folder_of(target: str) -> pathlib.Path | None:
    """The folder that a target is; None for any other kind."""
    is_folder = "://" not in target and not target.startswith(REPLICATED)
    return pathlib.Path(target) if is_folder else None


def remove(target: Target, step: int, timeout_s: float, attempt: str = "") -> None:
    """Remove a step, and leave a note if the target is a folder with a mirror.

    Raises:
        FileNotFoundError: there is no such step; with an `attempt`, if it is another save.
    """
    folder = folder_of(target_from_root(target))
    if folder is None or not (folder / MIRROR).exists():
        _ffrecord.remove_checkpoint(target, step, timeout_s, attempt)
        return
    here: list[Save] = []
    with contextlib.suppress(OSError):  # A damaged step is looked for at the mirror.
        listed = _ffrecord.list_checkpoints(target, timeout_s, own_only=True)
        here = [Save(*found[:2]) for found in listed]
    _ffrecord.remove_checkpoint(target, step, timeout_s, attempt)
    for save in here:
        if save.step == step and save.attempt:
            _write(folder, save, {each.line for each in here} | copied_from(folder))


def retire(target: Target, saves: Sequence[Commit], timeout_s: float) -> list[Commit]:
    """Remove saves that retention does not keep; return those that were there still.

    Leaves no note: nobody has given them up, and their copies at a mirror stay. A save that has
    taken the place of one of them stays, too.
    """
    removed = []
    for save in saves:
        with contextlib.suppress(FileNotFoundError):
            _ffrecord.remove_checkpoint(target, save.step, timeout_s, save.attempt)
            removed.append(save)
    return removed


def copied_from(folder: pathlib.Path) -> set[str]:
    """Lines of the saves that MIRROR lists."""
    text = (folder / MIRROR).read_text(encoding="utf-8", errors="surrogateescape")
    return set(text.splitlines()[1:])


def _write(folder: pathlib.Path, save: Save, others: set[str]) -> None:
    path = folder / f"{_PREFIX}{save.step}-{save.attempt}"
    made = path.with_name(f"{path.name}-{os.getpid()}.tmp")
    made.write_text("".join(f"{line}\n" for line in sorted(others)))
    made.replace(path)


def removals(folder: pathlib.Path | None) -> list[Removal]:
    """The notes in a folder."""
    found = []
    for path in sorted(folder.glob(f"{_PREFIX}*")) if folder is not None else ():
        step, _, attempt = path.name.removeprefix(_PREFIX).partition("-")
        if step.isdigit() and attempt.isalnum():
            with contextlib.suppress(FileNotFoundError):
                lines = frozenset(path.read_text().splitlines())
                found.append(Removal(Save(int(step), attempt), lines, path))
    return found
