"""Copies of the steps of one target at another: which are lacking there, and how they get there."""

import errno
from collections.abc import Collection

from ffrecord import _ffrecord
from ffrecord.checkpoint._commit import Commit
from ffrecord.errors import ConflictError, CorruptionError

# Errors of one step, which keep no other from its backup.
OF_A_STEP = (FileExistsError, FileNotFoundError, CorruptionError)


class Backup:
    """The steps of `source` that `target` has, as one process knows it. Thread-bound."""

    def __init__(
        self,
        source: str,
        target: str,
        *,
        compress: bool = False,
        verify: bool = False,
        is_of_run: bool = False,
        timeout_s: float = 30.0,
    ) -> None:
        """Store the arguments; ask nothing yet.

        Args:
            source: where steps are copied from.
            target: where they are copied to.
            compress: as for `copy`.
            verify: read every byte of each copy that is there, once.
            is_of_run: what the target has is of this run, also if no save is at both: it goes back
                with the run.
            timeout_s: for each call.
        """
        self.source, self.target = source, target
        self.compress, self.verify, self.timeout_s = compress, verify, timeout_s
        self.is_of_run = is_of_run
        self._there: set[Commit] = set()  # Found there, or copied.

    def lacking(
        self,
        keep: int | None = None,
        damaged: Collection[Commit] = (),
        failed: Collection[Commit] = (),
    ) -> tuple[list[Commit], set[Commit]]:
        """The steps that the target lacks, or has damaged, oldest first; also those damaged here.

        With `keep`, only of the newest that it is to have. A step that it has is opened once: its
        manifests are read, and its files are looked for, or read with `verify`. Those `damaged` are
        known to be so. One that is damaged here, or has `failed`, takes the place of no other
        among the newest. Also returns the steps here that the target is not to have.
        """
        here = self.here()
        numbers = set(_ffrecord.list_steps(self.target, self.timeout_s))
        wanted = {commit.step for commit in here}
        if keep is not None:
            able = {each.step for each in here if not each.damage and each not in failed}
            counted = {each.step for each in self._counted()}
            newest = sorted(able | counted)[-keep:]
            has_room = len(newest) < keep
            wanted = {step for step in wanted - able if has_room or step > newest[0]}
            wanted.update(newest)
        self._there = {commit for commit in self._there if commit.step in numbers}
        self._there -= set(damaged)
        lacking = [
            each
            for each in here
            if each.step in wanted and (each in damaged or not self._has(each, numbers))
        ]
        return lacking, {each for each in here if each.step not in wanted}

    def here(self) -> list[Commit]:
        """The steps of the source, but those that were given up."""
        listed = _ffrecord.list_checkpoints(self.source, self.timeout_s, roots_only=True)
        return [Commit(*found) for found in listed if not found[4]]

    def bring(self, commit: Commit, *, replaces: bool = False) -> Commit:
        """Copy a step; with `replaces`, also over another save of it.

        Raises:
            CorruptionError: the step is damaged here.
            FileExistsError: the target has another save of it, which is not damaged, and which the
                run has not given up.
            FileNotFoundError: it is not here any more.
        """
        self._require_undamaged(commit)
        rival = self._rival(commit) if replaces else ""
        is_of_run = self.is_of_run or bool(self._there)
        try:
            copied = _ffrecord.copy_checkpoint(
                self.source,
                commit.step,
                self.target,
                self.timeout_s,
                self.compress,
                rival,
                is_of_run,
            )
        except FileExistsError as error:
            raise self._is_taken(commit) from error
        made = Commit(*copied)
        self._there.add(made)
        return made

    def check(self, commit: Commit) -> None:
        """Raise as `bring` would, as far as that can be seen without a copy."""
        self._require_undamaged(commit)
        if any(
            each.step == commit.step and each.attempt != commit.attempt for each in self._counted()
        ):
            raise self._is_taken(commit)

    def is_whole(self, commit: Commit, *, reads: bool) -> bool:
        """Whether the target has this save, whole as far as this looks."""
        try:
            reader = _ffrecord.CheckpointReader(self.target, commit.step, self.timeout_s)
        except OF_A_STEP:
            return False
        return Commit(*reader.commit) == commit and (not reads or reader.is_whole())

    def _require_undamaged(self, commit: Commit) -> None:
        if commit.damage:
            raise CorruptionError(
                f"step {commit.step} of {self.source} is damaged, and not copied: {commit.damage}"
            )

    def _is_taken(self, commit: Commit) -> FileExistsError:
        return FileExistsError(
            errno.EEXIST,
            f"{self.target} has another save of step {commit.step} than {self.source}: remove "
            "that step there, or give this run an address of its own",
        )

    def _has(self, commit: Commit, numbers: set[int]) -> bool:
        if commit.step not in numbers:
            return False
        if commit not in self._there and self.is_whole(commit, reads=self.verify):
            self._there.add(commit)
        return commit in self._there

    def _counted(self) -> list[Commit]:
        """The steps at the target that retention counts there."""
        listed = _ffrecord.list_checkpoints(
            self.target, self.timeout_s, roots_only=True, line_of=self.source
        )
        return [Commit(*found) for found in listed if not found[3] and not found[4]]

    def _rival(self, commit: Commit) -> str:
        """The attempt of the save that is in the way of this one; empty if there is none."""
        try:
            reader = _ffrecord.CheckpointReader(self.target, commit.step, self.timeout_s)
        except (CorruptionError, FileNotFoundError):
            return ""  # A damaged one is replaced without being named.
        rival = reader.commit[1]
        if rival == commit.attempt:
            return ""
        if not _ffrecord.CheckpointReader(self.source, commit.step, self.timeout_s).is_whole():
            raise ConflictError(
                f"step {commit.step} of {self.source} is damaged: the save of {self.target} stays"
            )
        return rival
