"""Savers of checkpoints that are killed at random times, and what they leave."""

import random
import subprocess
import time
from pathlib import Path

from saved_state import SAVER, check, visible_steps

import ffrecord.checkpoint as ckpt

_MODES = ["", "async", "incremental"]
_LONGEST_S = 0.08  # A saver gets through several steps in that time.


def kill_savers(run: Path, kills: int, chance: random.Random) -> tuple[int, int]:
    """Let saver after saver write steps into `run`, each with SIGKILL at its end.

    Returns:
        How many kills met a save in its midst, and how many steps had been promised.

    Raises:
        AssertionError: a step that was promised is gone, or one is torn, or what was left of a
            killed save stays.
    """
    kept: set[int] = set()
    next_step = 1
    in_the_midst = 0
    promises = 0
    for kill in range(kills):
        ranks, mode = chance.choice([1, 2, 3]), chance.choice(_MODES)
        promised = _killed_saver(run, next_step, ranks, mode, chance.uniform(0, _LONGEST_S))
        promises += len(promised)
        # All that was promised is there, and at most one more, which was being committed.
        allowed = kept | promised
        in_the_midst += any(run.glob(".attempt-*"))
        problem = check(run, [allowed, allowed | {max(allowed, default=0) + 1}])
        assert problem == "", f"kill {kill}, {ranks} ranks {mode}: {problem}"
        ckpt.prune(run, keep_last=2)
        kept = set(visible_steps(run))
        next_step = max(kept, default=0) + 1
    subprocess.run([SAVER, run, str(next_step), "1", "1"], stdout=subprocess.DEVNULL, check=True)
    left = [path.name for path in run.glob(".attempt-*")]
    assert not left, f"a later save left {left}"
    return in_the_midst, promises


def _killed_saver(run: Path, step: int, ranks: int, mode: str, seconds: float) -> set[int]:
    """The steps that one saver had promised when it was killed."""
    command = [SAVER, run, str(step), "100000", str(ranks), *filter(None, [mode])]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    time.sleep(seconds)
    process.kill()
    output, _ = process.communicate()
    # Of the last line only a part may have come.
    return {int(line.split()[1]) for line in output.splitlines(keepends=True) if line[-1] == "\n"}
