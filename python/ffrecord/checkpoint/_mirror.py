"""Copies of committed checkpoints in a second place, such as an S3-compatible store."""

import logging
import os
import pathlib
from collections.abc import Collection
from typing import Any, Literal

from ffrecord import _ffrecord
from ffrecord._base.addresses import BUCKETS, Target, target_from_root
from ffrecord._base.background_copies import Copying
from ffrecord.checkpoint._removing import MIRROR, Save, folder_of, removals
from ffrecord.checkpoint._saving import Commit
from ffrecord.checkpoint._steps import tell_skipped, wanted_step
from ffrecord.errors import CorruptionError

_log = logging.getLogger("ffrecord.checkpoint")
# Errors of one step, which keep no other from the mirror.
_OF_A_STEP = (FileExistsError, FileNotFoundError, CorruptionError)
# Text whose first line may be a folder, with a name of any bytes.
_ANY_NAME: Any = {"encoding": "utf-8", "errors": "surrogateescape"}


def copy(
    source: Target,
    target: Target,
    step: int | Literal["latest"] = "latest",
    *,
    compress: bool = False,
    replaces: str = "",
    timeout_s: float = 30.0,
) -> Commit:
    """Copy a committed checkpoint unchanged, from any target to any other.

    It becomes visible there when it is complete. Every block is verified as it is read; a damaged
    one is read from the source's other copy, if there is one. Files that an earlier copy sent, even
    one that failed or was killed, are not sent again; an existing copy of the checkpoint is not
    changed, unless it is damaged: then it is replaced. If training went back to an earlier step of
    the source, a target that has a save of the source goes back with the first step that was saved
    since, and a save of the step that was given up is replaced there.

    Args:
        source: a target of any kind, its steps compressed or not.
        target: where the copy goes.
        step: the step to copy; by default, the newest that is whole. If newer ones are damaged, a
            warning says so.
        compress: store the tensors compressed at `target`: byte planes of their elements with zstd,
            in independent parts. Saves, for example, a seventh of float32 weights and three
            tenths of bfloat16, but loads take longer. Loads and copies from there return the same
            data. The copy uses temporary space for one segment, which is a rank's shard, below
            TMPDIR or /var/tmp.
        replaces: the `attempt` of another save of the step at `target`, which the copy replaces
            when it is whole.
        timeout_s: for each call, its retries included.

    Raises:
        FileNotFoundError: there is no such step, or no checkpoint at all.
        FileExistsError: another save of that step is committed there.
        CorruptionError: bytes of the source fail a check, or a file of the step is missing; nothing
            becomes visible at `target`.
    """
    wanted = wanted_step(step)
    if wanted is None:
        reader = _ffrecord.CheckpointReader(source, None, timeout_s)
        tell_skipped(reader, 2)
        wanted = reader.commit[0]
    made = _ffrecord.copy_checkpoint(source, wanted, target, timeout_s, compress, replaces)
    return Commit(*made)


class Mirror(Copying[list[Commit]]):
    """Keeps copies of a run's checkpoints at a remote target, made in the background of training.

        with ckpt.Mirror("runs/x", "s3://bucket/runs/x", keep_local=3) as mirror:
            ...
            ckpt.save("runs/x", step, state)
            mirror.start()

    If the local target is a folder, its file MIRROR names the remote and the saves that were
    copied; `load` fetches from there the steps that were removed from the folder, or are damaged in
    it. One process of a run has a Mirror: that of rank 0. Credentials and endpoint of a store come
    from the usual AWS variables and files. Thread-safe.
    """

    def __init__(
        self,
        target: Target,
        remote: Target,
        *,
        keep_local: int | None = None,
        compress: bool = False,
        verify: bool = True,
        timeout_s: float = 30.0,
    ) -> None:
        """Store the arguments; send nothing yet.

        Args:
            target: where checkpoints are saved: a folder, `ffrecord://host[:port]/run`, or a
                replicated target.
            remote: where they are copied to: `s3://bucket/run`.
            keep_local: how many of the newest whole checkpoints to keep at `target`, 1 or more,
                after they are copied; all by default. Before a step is removed, its copy is read
                and verified. If the target is a folder, `remote` must be a store.
            compress: as for `copy`.
            verify: read every byte of the copies of the steps that are at `target`, unless this
                process has verified them since they were written, and copy damaged ones again.
                False: only manifests, and copies whose step is about to be removed.
            timeout_s: for each call, its retries included.
        """
        if keep_local is not None and keep_local < 1:
            raise ValueError(f"keep_local is {keep_local}, must be at least 1")
        self.target, self.remote = target_from_root(target), target_from_root(remote)
        self.keep_local, self.compress, self.timeout_s = keep_local, compress, timeout_s
        self.verify = verify
        self._known: set[str] = set()
        self._told: set[str] = set()
        if _ffrecord.share_place(self.target, self.remote):
            raise ValueError(f"Mirror: {self.target} and {self.remote} are the same place")
        if (
            keep_local is not None
            and self._path() is not None
            and not self.remote.startswith(BUCKETS)
        ):
            raise ValueError(
                f"keep_local: steps that leave the folder {self.target} are loaded only from "
                f"s3://bucket/run, not from {self.remote}"
            )
        super().__init__()

    def sync(self) -> list[Commit]:
        """Copy every checkpoint that the remote lacks or has damaged, oldest first; return those.

        A step that was saved again replaces the one that was copied from here before, when it is
        whole there. Where training went back to an earlier step, the remote goes back with the
        first step that was saved since. A step of another run is never replaced. If one step cannot
        be copied, the others still are. A copy that was damaged and is copied again is logged as a
        warning.

        A later step that `remove` gave up before this rollback is removed at the remote too, once
        the new save is whole there. A step that left the local folder in any other way stays; if it
        is the newest one at the remote, a warning names it.

        Then `keep_local` is applied: every step that is removed from the local target is whole at
        the remote, as the same save.

        Raises:
            FileExistsError: the remote has a step that was not copied from here; the others are
                copied. Give this run an address of its own, or remove that step there.
            CorruptionError: a step here is damaged; the others are copied.
        """
        known = self._point_at_remote()
        there = self._by_step()
        here = self._list()
        known |= {_line(commit) for commit in here if there.get(commit.step) == commit}
        failures: list[Exception] = []
        copied = []
        for commit in here:
            try:
                if self._bring(commit, there, known):
                    copied.append(there[commit.step])
            except _OF_A_STEP as error:
                if self._is_here(commit):
                    failures.append(error)
        self._give_up(here, there)
        self._note({line for line in known if line in set(map(_line, there.values()))})
        self._tell_of_a_future(here, there, known)
        if self.keep_local is not None:
            failures += self._evict(there, known, self.keep_local)
        if failures:
            raise failures[0]
        return copied

    def lacking(self) -> list[Commit]:
        """Find out what `sync` would copy; change nothing.

        Raises:
            FileExistsError: as `sync`.
        """
        known, there = self._noted() or set(), self._by_step()
        here = self._list()
        known |= {_line(commit) for commit in here if there.get(commit.step) == commit}
        found = [each for each in here if not each.damage and not self._has(each, there)]
        for commit in found:
            self._check_rival(there.get(commit.step), known)
        return found

    def _has(self, commit: Commit, there: dict[int, Commit]) -> bool:
        """Whether the remote has this save, whole as far as this object looks."""
        return there.get(commit.step) == commit and (not self.verify or self._is_whole(commit))

    def _bring(self, commit: Commit, there: dict[int, Commit], known: set[str]) -> bool:
        """Copy a step that the remote lacks or has damaged; whether that was necessary."""
        if commit.damage:
            raise _damaged(commit, self.target)
        if self._has(commit, there):
            return False
        self._copy(commit, there, known)
        return True

    def _copy(self, commit: Commit, there: dict[int, Commit], known: set[str]) -> None:
        replaces = self._replaced(commit, there.get(commit.step), known)
        is_of_run = any(_line(each) in known for each in there.values())
        made = Commit(
            *_ffrecord.copy_checkpoint(
                self.target,
                commit.step,
                self.remote,
                self.timeout_s,
                self.compress,
                replaces,
                is_of_run,
            )
        )
        there[commit.step] = made  # The step may have been saved again meanwhile.
        known.add(_line(made))
        self._note(known)

    def _by_step(self) -> dict[int, Commit]:
        """The checkpoints at the remote; `given_up` as this run has it."""
        listed = _ffrecord.list_checkpoints(
            self.remote, self.timeout_s, own_only=True, line_of=self.target
        )
        return {found[0]: Commit(*found) for found in listed}

    def _check_rival(self, rival: Commit | None, known: set[str]) -> None:
        """Refuse to replace a save that was not copied from here."""
        if rival is None or _line(rival) in known:
            return
        # The remote has a step of this run from before training went back, if it knows others.
        if rival.given_up and known:
            return
        # A damaged root manifest does not say whose the copy was: MIRROR does.
        if rival.damage and any(line.split(" ")[0] == str(rival.step) for line in known):
            return
        raise FileExistsError(
            f"{self.remote} has another save of step {rival.step}, which was not copied from "
            f"{self.target}: give this run an address of its own, or remove that step there"
        )

    def _replaced(self, commit: Commit, rival: Commit | None, known: set[str]) -> str:
        """The save of `commit`'s step that the copy may replace: it was copied from here before."""
        if rival is None:
            return ""
        self._check_rival(rival, known)
        # The step that takes its place has to be whole.
        if not _ffrecord.CheckpointReader(self.target, commit.step, self.timeout_s).is_whole():
            raise _damaged(commit, self.target)
        if rival == commit or rival.damage:  # A copy replaces a damaged one without asking.
            _log.warning(
                "the copy of step %d at %s is damaged; it is copied again from %s",
                commit.step,
                self.remote,
                self.target,
            )
        return rival.attempt

    def _give_up(self, here: list[Commit], there: dict[int, Commit]) -> None:
        """Remove the copies of steps that the user has removed, and then went back behind."""
        saves = [_save(commit) for commit in here]
        for removal in removals(folder_of(self.target)):
            step = removal.save.step
            rival = there.get(step)
            if rival is None or _save(rival) != removal.save or removal.save in saves:
                removal.path.unlink(missing_ok=True)
            elif any(
                removal.is_followed_by(_save(commit))
                and there.get(commit.step) == commit
                and self._is_whole(commit)
                for commit in here
            ):
                _log.warning(
                    "step %d at %s is removed: it was removed from %s before training went back",
                    step,
                    self.remote,
                    self.target,
                )
                _ffrecord.remove_checkpoint(self.remote, step, self.timeout_s, removal.save.attempt)
                del there[step]
                removal.path.unlink(missing_ok=True)

    def _tell_of_a_future(
        self, here: list[Commit], there: dict[int, Commit], known: Collection[str]
    ) -> None:
        """Name the newest step at the remote if it was copied from here and is here no longer."""
        newest = max((each for each in there.values() if not each.given_up), default=None)
        if newest is None or not here or newest.step <= here[-1].step:
            return
        line = _line(newest)
        if line not in known or line in self._told:
            return
        self._told.add(line)
        _log.warning(
            "step %d at %s was copied from %s, whose newest step is now %d; if training went back "
            "and gave it up, remove it: ffrecord.checkpoint.remove(%r, %d)",
            newest.step,
            self.remote,
            self.target,
            here[-1].step,
            self.remote,
            newest.step,
        )

    def _list(self) -> list[Commit]:
        listed = _ffrecord.list_checkpoints(self.target, self.timeout_s, own_only=True)
        return [Commit(*found) for found in listed if not found[4]]

    def _is_here(self, commit: Commit) -> bool:
        """Whether it is still there locally: retention may remove steps beside a mirror."""
        return any(_save(commit) == _save(each) for each in self._list())

    def _is_whole(self, commit: Commit) -> bool:
        """Whether it is whole at the remote: every block, as this process has read it there."""
        try:
            reader = _ffrecord.CheckpointReader(self.remote, commit.step, self.timeout_s)
        except (CorruptionError, FileNotFoundError):
            return False
        return Commit(*reader.commit) == commit and reader.is_whole()

    def _evict(self, there: dict[int, Commit], known: set[str], keep: int) -> list[Exception]:
        # One by one and oldest first: a kill leaves the newest steps without a gap.
        old = _ffrecord.prune_checkpoints(
            self.target, keep, 0, verify=True, dry_run=True, timeout_s=self.timeout_s
        )
        failures: list[Exception] = []
        for commit in (Commit(*each) for each in old):
            if there.get(commit.step) != commit:
                continue
            try:
                if not self._is_whole(commit):
                    self._copy(commit, there, known)
                if self._is_whole(commit):
                    _ffrecord.remove_checkpoint(
                        self.target, commit.step, self.timeout_s, commit.attempt
                    )
            except _OF_A_STEP as error:
                if self._is_here(commit):
                    failures.append(error)
        return failures

    def _path(self) -> pathlib.Path | None:
        """The path of the file that names the remote; None if the target is not a folder."""
        folder = folder_of(self.target)
        return None if folder is None else folder / MIRROR

    def _point_at_remote(self) -> set[str]:
        """The saves that were copied from here: those in MIRROR, or that this object has seen."""
        noted = self._noted()
        if noted is None and (path := self._path()) is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._write(path, [self.remote])
        return noted or set()

    def _noted(self) -> set[str] | None:
        """The saves that were copied from here; None if MIRROR does not name the remote yet."""
        path = self._path()
        if path is None:
            return set(self._known)
        lines = self._read(path) if path.exists() else []
        return set(lines[1:]) if lines[:1] == [self.remote] else None

    def _note(self, known: set[str]) -> None:
        """Record the saves that were copied from here."""
        self._known = set(known)
        path = self._path()
        if path is None:
            return
        lines = [self.remote, *sorted(known)]
        if self._read(path) != lines:
            self._write(path, lines)

    def _read(self, path: pathlib.Path) -> list[str]:
        return path.read_text(**_ANY_NAME).splitlines()

    def _write(self, path: pathlib.Path, lines: list[str]) -> None:
        made = path.with_name(f".{MIRROR}-{os.getpid()}")
        with made.open("w", **_ANY_NAME) as file:
            file.write("".join(f"{line}\n" for line in lines))
            file.flush()
            os.fsync(file.fileno())
        made.replace(path)


def _damaged(commit: Commit, target: str) -> CorruptionError:
    why = commit.damage or "a block fails its checksum: verify it"
    return CorruptionError(f"step {commit.step} of {target} is damaged, and not copied: {why}")


def _save(commit: Commit) -> Save:
    return Save(commit.step, commit.attempt)


def _line(commit: Commit) -> str:
    """A line of the file MIRROR: a save that was copied."""
    return _save(commit).line
