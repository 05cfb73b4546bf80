"""The summary of a packing."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class PackSummary:
    """Summary of a packing; sizes in bytes, `raw` means before compression."""

    record_count: int = 0
    raw_size_bytes: int = 0
    file_size_bytes: int = 0
    file_count: int = 0
    classes: tuple[str, ...] = ()
    skipped: dict[str, int] = field(default_factory=dict)
    failures: list[dict[str, Any]] = field(default_factory=list)
    """Samples that failed in the user's function: input, number of the sample, error."""

    def add(self, tally: Mapping[str, Any]) -> None:
        """Count what became of some samples: the plain values of a `Tally`."""
        for file in tally["files"]:
            self.record_count += file["record_count"]
            self.raw_size_bytes += file["raw_size_bytes"]
            self.file_size_bytes += file["file_size_bytes"]
            self.file_count += 1
        reasons = {"samples by the function": tally["skipped"], **tally["left_out"]}
        for reason, count in reasons.items():
            if count:
                self.skipped[reason] = self.skipped.get(reason, 0) + count
        self.failures += tally["failures"]
