"""Making a new file from the whole records of a damaged one."""

import os
from collections.abc import Callable
from dataclasses import dataclass

from ffrecord import _ffrecord

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class RepairReport:
    """The result of a repair; sizes in bytes, indices are those of the damaged file."""

    format_version: int
    kept_count: int
    lost_count: int
    lost: tuple[tuple[int, int], ...]
    """Ranges, first and behind the last, ascending; the first thousand."""
    record_count_is_known: bool
    """Whether the file still says how many records there were: its end is whole. Else more may be
    lost than `lost_count`, behind the last record of which anything was left."""
    skipped_bytes: int
    kept_parts: tuple[str, ...]
    """The parts beside the records that are as they were, in words."""
    rebuilt_parts: tuple[str, ...]
    """The parts that were rebuilt for the records that are kept."""
    other_losses: tuple[str, ...]
    kept_key_count: int
    lost_key_count: int
    """As far as the file says how many there were; some may be of records that are lost too."""
    size_bytes: int
    """The size of the new file."""
    fingerprint: str

    @property
    def lost_nothing(self) -> bool:
        """Whether every record is kept, and the file still proves it."""
        return self.lost_count == 0 and self.record_count_is_known and not self.other_losses


def repair(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    replace: bool = False,
    progress: Progress | None = None,
) -> RepairReport:
    """Copy every intact record of a damaged file to a new file; the damaged file is unchanged.

    Records keep their order and get new numbers. Schema, metadata, dictionaries and compression are
    kept as far as they can be found; keys and column copies are made again. The new file appears
    complete or not at all.

    Args:
        source: one local file, of either version.
        destination: where the new file will be.
        replace: replace a file of that name.
        progress: called with bytes done and bytes in all.

    Raises:
        CorruptionError: nothing in the file identifies it.
        ConflictError: the destination exists and `replace` is False.
        OSError: a file is missing, cannot be read, or cannot be written.
    """
    found = _ffrecord.repair_file(
        os.fsencode(source), os.fsencode(destination), replace=replace, progress=progress
    )
    return RepairReport(
        **{
            **found,
            "lost": tuple(found["lost"]),
            "kept_parts": tuple(found["kept_parts"]),
            "rebuilt_parts": tuple(found["rebuilt_parts"]),
            "other_losses": tuple(found["other_losses"]),
            "fingerprint": found["fingerprint"].hex(),
        }
    )
