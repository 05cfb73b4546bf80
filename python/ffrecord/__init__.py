"""Training data at the speed of the device: record files, read in batches, local or served."""

from ffrecord.errors import ConflictError, CorruptionError, DeadlineExceeded, UnavailableError

__all__ = [
    "ConflictError",
    "CorruptionError",
    "DeadlineExceeded",
    "UnavailableError",
]
