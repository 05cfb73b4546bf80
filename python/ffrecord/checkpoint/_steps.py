"""Which step a caller means, and what is said if it is not the newest that is there."""

import operator
import warnings
from typing import Literal

from ffrecord import _ffrecord
from ffrecord._base.addresses import Target

STEP_MAX = 2**63 - 1


def step_number(step: object, also: str = "") -> int:
    """The number of a step.

    Raises:
        ValueError: it is none; `also` says what else the caller takes.
    """
    if not isinstance(step, bool):
        try:
            number = operator.index(step)  # type: ignore[arg-type]
        except TypeError:
            number = -1
        if 0 <= number <= STEP_MAX:
            return number
    raise ValueError(f"step is {step!r}, must be {also}an integer from 0 to 2**63 - 1")


def wanted_step(step: int | Literal["latest"]) -> int | None:
    """The step to open; None: the newest that is whole. Raises ValueError."""
    if isinstance(step, str) and step == "latest":
        return None
    return step_number(step, '"latest" or ')


def newest_on_line(target: Target, timeout_s: float) -> int | None:
    """The newest step that was not given up, whole or not; None if there is none.

    The steps are those of one listing: a list of checkpoints is read one by one, and leaves out
    those that are removed meanwhile.
    """
    listed = _ffrecord.list_checkpoints(target, timeout_s, roots_only=True)
    given_up = {found[0] for found in listed if found[4]}
    return max(set(_ffrecord.list_steps(target, timeout_s)) - given_up, default=None)


def tell_skipped(reader: _ffrecord.CheckpointReader, stack_level: int) -> None:
    """Warn of newer steps that were not opened: they are damaged, or their place is out of reach.

    Raises where warnings do.
    """
    for message in reader.skipped:
        warnings.warn(f"skipped a damaged checkpoint: {message}", stacklevel=stack_level + 1)
    for message in reader.unseen:
        warnings.warn(f"there may be a newer checkpoint: {message}", stacklevel=stack_level + 1)
