"""Packing all samples in an order that a seed gives, however many there are.

First the samples are packed as they come, to `.NAME.unshuffled` beside the destination NAME; then
its records are read in their new order. Both are ordinary packings: any number of processes shares
them, and they go on after a kill.
"""

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ffrecord._base.destination import destination_path
from ffrecord._write.new_folder import MANIFEST
from ffrecord.pack._inputs import Inputs
from ffrecord.pack._job import clear_up, job_folder, remove_at_once, sweep
from ffrecord.pack._plan import Plan
from ffrecord.pack._record_files import RecordFiles
from ffrecord.pack._source import Source, SourceOptions
from ffrecord.pack._summary import PackSummary

ORIGIN = "unshuffled"
"""In a plan: the plan of what was shuffled, and its inputs."""
_SEED_MAX = (1 << 64) - 1


def check_seed(seed: int) -> int:
    """Return the seed.

    Raises:
        ValueError: an order has no such seed.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= _SEED_MAX:
        raise ValueError(f"shuffle is {seed!r}; it must be a whole number from 0 to 2^64 - 1")
    return seed


def unshuffled_path(destination: str | os.PathLike[str]) -> Path:
    """Where the records lie until they are shuffled."""
    path = destination_path(destination)
    return path.with_name(f".{path.name}.unshuffled")


def shuffled(folder: Path, seed: int, origin: str) -> Source:
    """The records of a folder in the order of a seed.

    `origin` says what they are, wherever the folder is.
    """
    inputs = Inputs([str(folder)], SourceOptions(shuffle=(seed,)), names=(origin,))
    assert isinstance(inputs.first, RecordFiles)
    inputs.first._inputs = inputs
    return inputs.first


def origin_of(plan: Plan) -> dict[str, Any]:
    """The facts about this plan in the plan of the shuffled records."""
    return {"plan_id": plan.id, "inputs": [list(one) for one in plan.inputs]}


def with_fates(origin: Mapping[str, Any], before: PackSummary) -> dict[str, Any]:
    """The facts of `origin_of`, and what became of samples before they were shuffled."""
    return {**origin, "skipped": before.skipped, "failures": before.failures} if origin else {}


def shuffled_before(
    destination: Path, origin: Mapping[str, Any], form: tuple[bool, int], seed: int
) -> PackSummary | None:
    """The summary of the destination, if it is the shuffled result of this plan already.

    `form` says whether it is compressed, and the size of dictionaries.
    """
    try:
        found = json.loads((destination / MANIFEST).read_text())
        asked = found["asked"]
        writing = asked["writing"]["compress"], asked["writing"]["dictionary_bytes"]
        known = asked[ORIGIN]
        there = {name: known[name] for name in origin}, writing, asked["options"]["shuffle"]
        is_whole = all(
            os.stat(destination / file["name"]).st_size == file["file_size_bytes"]
            for unit in found["units"]
            for file in unit["files"]
        )
        if there != (origin, form, [seed]) or not is_whole:
            return None
        summary = PackSummary()
        for unit in found["units"]:
            summary.add(unit)
        summary.skipped = dict(known.get("skipped", {}))
        summary.failures = list(known.get("failures", ()))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return summary


def remove_unshuffled(destination: str | os.PathLike[str]) -> None:
    """Remove what was shuffled, of which the result is there, and what killed processes left."""
    path, unshuffled = destination_path(destination), unshuffled_path(destination)
    if unshuffled.is_dir():
        remove_at_once(unshuffled)
    sweep(unshuffled)
    found: dict[str, Any] = {}
    with suppress(OSError, ValueError):  # Not packed from paths.
        found = json.loads((path / MANIFEST).read_text())
    clear_up(job_folder(path), found.get("plan_id", ""))
    clear_up(job_folder(unshuffled), found.get("asked", {}).get(ORIGIN, {}).get("plan_id", ""))


def halves(
    progress: Callable[[int], None] | None, total_bytes: int
) -> tuple[Callable[[int], None] | None, Callable[[int, int], None]]:
    """Progress of both packings: the first is a half, the second the other one of this total."""
    if progress is None:
        return None, lambda done, of: None
    return (
        lambda done: progress(done // 2),
        lambda done, of: progress(total_bytes // 2 + total_bytes * done // (2 * max(of, 1))),
    )
