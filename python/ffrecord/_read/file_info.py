"""Facts about one record file."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class FileInfo:
    """Facts about one file that need no record to be read; sizes in bytes."""

    name: str
    format_version: int
    size_bytes: int
    record_count: int
    first_index: int
    fingerprint: str
    warnings: tuple[str, ...]


def file_info(info: dict[str, Any]) -> FileInfo:
    """Make them of what the extension tells."""
    fields = {
        **info,
        "fingerprint": info["fingerprint"].hex(),
        "warnings": tuple(info["warnings"]),
    }
    return FileInfo(**fields)
