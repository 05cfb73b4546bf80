"""Removals by retention."""

import contextlib
from collections.abc import Sequence

from ffrecord import _ffrecord
from ffrecord._base.addresses import Target
from ffrecord.checkpoint._commit import Commit


def retire(target: Target, saves: Sequence[Commit], timeout_s: float) -> list[Commit]:
    """Remove saves that retention does not keep; return those that were there still.

    A save that has taken the place of one of them stays.
    """
    removed = []
    for save in saves:
        with contextlib.suppress(FileNotFoundError):
            _ffrecord.remove_checkpoint(target, save.step, timeout_s, save.attempt)
            removed.append(save)
    return removed
