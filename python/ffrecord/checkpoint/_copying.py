"""Copies of committed checkpoints at another target."""

from typing import Literal

from ffrecord import _ffrecord
from ffrecord._base.addresses import Target
from ffrecord.checkpoint import _staged as staged
from ffrecord.checkpoint._commit import Commit
from ffrecord.checkpoint._steps import tell_skipped, wanted_step


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
    staged.before_save(target)
    made = Commit(*_ffrecord.copy_checkpoint(source, wanted, target, timeout_s, compress, replaces))
    staged.saved(target, made, replaces=bool(replaces))
    return made
