"""The verification of a step at each place of a staged target."""

import errno

from ffrecord import _ffrecord
from ffrecord._base.addresses import STAGED, Target, split_places, target_from_root
from ffrecord.errors import ConflictError, CorruptionError

_OF_THE_STEP = (CorruptionError, ConflictError, FileNotFoundError)


def damage_at_places(target: Target, step: int, timeout_s: float) -> list[str]:
    """One message for each bad block at each place, and for each place that cannot be asked.

    A place without the step has passed it over, does not keep it any more, or waits for it: that is
    no damage.

    Raises:
        FileNotFoundError: no place has the step.
    """
    name = target_from_root(target)
    places = split_places(name)[2] if name.startswith(STAGED) else [name]
    told: list[str] = []
    saves: dict[str, str] = {}  # The first place of each save of the step.
    is_there = False
    for place in places:
        try:
            is_here = step in _ffrecord.list_steps(place, timeout_s)
            attempt, damage = _damage_at(place, step, timeout_s) if is_here else ("", [])
        except (OSError, ValueError) as error:
            told.append(f"{place} cannot be verified: {error}")
            continue
        is_there |= is_here
        told += damage
        if attempt and saves.setdefault(attempt, place) == place and len(saves) > 1:
            told.append(
                f"{place} has another save of step {step} than {next(iter(saves.values()))}"
            )
    if not is_there and not told:
        raise FileNotFoundError(errno.ENOENT, f"no place of {name} has step {step}")
    return told


def _damage_at(place: str, step: int, timeout_s: float) -> tuple[str, list[str]]:
    """The save that a place has, as far as it can be read, and what is bad there."""
    try:
        reader = _ffrecord.CheckpointReader(place, step, timeout_s)
        return reader.commit[1], reader.verify()
    except _OF_THE_STEP as error:
        return "", [f"{place}: {error}"]
