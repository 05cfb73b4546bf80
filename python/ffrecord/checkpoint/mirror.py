"""Copies of committed checkpoints in a second place, such as an S3-compatible store."""

import os
import pathlib
from typing import Literal

from ffrecord import _ffrecord
from ffrecord.checkpoint.buddies import SCHEME
from ffrecord.checkpoint.saving import Commit, Target
from ffrecord.copying import Copying

# In a run's folder: where steps that are no longer there are loaded from.
_NAME = "MIRROR"


def copy(
    source: Target,
    target: Target,
    step: int | Literal["latest"] = "latest",
    *,
    compress: bool = False,
    timeout_s: float = 30.0,
) -> Commit:
    """Copy a committed checkpoint as it is, from any target to any other.

    It is visible there when all of it is. What a copy that failed or was killed has sent is not
    sent again; one that is there already is left alone.

    Args:
        source: a target of either kind, its steps compressed or not.
        target: where the copy goes.
        step: which; the newest by default.
        compress: keep its tensors compressed at `target`, byte planes of their elements by zstd,
            every part by itself: a seventh less of float32 weights, say, three tenths of bfloat16,
            for loads that take longer. What is loaded or copied from there is the same. Takes the
            room of one segment, that is of a rank's share, below TMPDIR or /var/tmp meanwhile.
        timeout_s: for each call, its retries included.

    Raises:
        FileNotFoundError: no such step, or none at all.
        FileExistsError: another save of that step is committed there.
        CorruptionError: a manifest of the source fails a check.
    """
    where = os.fspath(source)
    if step == "latest":
        reader = _ffrecord.CheckpointReader(where, None, timeout_s)
        step = reader.commit[0]
    return Commit(*_ffrecord.copy_checkpoint(where, step, os.fspath(target), timeout_s, compress))


class Mirror(Copying[list[Commit]]):
    """Keeps copies of a run's checkpoints at a remote target, made while training goes on.

        with ckpt.Mirror("runs/x", "s3://bucket/runs/x", keep_local=3) as mirror:
            ...
            ckpt.save("runs/x", step, state)
            mirror.start()

    Where the local target is a folder, its file MIRROR says where the copies are, and `load` finds
    there what has left the folder. One process of a run has a Mirror: that of rank 0. Credentials
    and endpoint of a store come from the usual AWS variables and files. Thread-safe.
    """

    def __init__(
        self,
        target: Target,
        remote: str,
        *,
        keep_local: int | None = None,
        compress: bool = False,
        timeout_s: float = 30.0,
    ) -> None:
        """Starts and sends nothing yet.

        Args:
            target: where checkpoints are saved: a folder, `ffrecord://host[:port]/run`, `buddies`.
            remote: where they are copied to: `s3://bucket/run`.
            keep_local: how many of the newest stay at `target`, 1 or more, once they are copied;
                all without it.
            compress: as `copy`.
            timeout_s: for each call, its retries included.
        """
        if keep_local is not None and keep_local < 1:
            raise ValueError(f"keep_local is {keep_local}, must be at least 1")
        self.target, self.remote = os.fspath(target), remote
        self.keep_local, self.compress, self.timeout_s = keep_local, compress, timeout_s
        super().__init__()

    def sync(self) -> list[Commit]:
        """Copy every checkpoint that is not at the remote yet, oldest first; returns those.

        Then `keep_local` is seen to: what leaves the local target is at the remote, the same save.
        """
        self._point_at_remote()
        there = set(self._list(self.remote))
        copied = [
            copy(
                self.target,
                self.remote,
                commit.step,
                compress=self.compress,
                timeout_s=self.timeout_s,
            )
            for commit in self._list(self.target)
            if commit not in there
        ]
        if self.keep_local is not None:
            self._evict(there.union(copied), self.keep_local)
        return copied

    def _list(self, target: str) -> list[Commit]:
        return [Commit(*found) for found in _ffrecord.list_checkpoints(target, self.timeout_s)]

    def _evict(self, safe: set[Commit], keep: int) -> None:
        # One by one and oldest first: a kill leaves the newest steps without a gap.
        for commit in self._list(self.target)[:-keep]:
            if commit in safe:
                _ffrecord.remove_checkpoint(self.target, commit.step, self.timeout_s)

    def _point_at_remote(self) -> None:
        if "://" in self.target or self.target.startswith(SCHEME):
            return
        folder = pathlib.Path(self.target)
        line = f"{self.remote}\n"
        path = folder / _NAME
        if path.exists() and path.read_text() == line:
            return
        folder.mkdir(parents=True, exist_ok=True)
        made = folder / f".{_NAME}-{os.getpid()}"
        with made.open("w") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        made.replace(path)
