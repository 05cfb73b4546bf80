"""Training data at the speed of the device: record files, read in batches, local or served."""

from ffrecord.batch import Batch
from ffrecord.errors import ConflictError, CorruptionError, DeadlineExceeded, UnavailableError
from ffrecord.reader import FileInfo, Reader, open
from ffrecord.records import Records
from ffrecord.served import Published, list_published, publish, remove_published
from ffrecord.verification import FileReport, verify
from ffrecord.views import concat, mix
from ffrecord.writer import Writer, WriteSummary

__all__ = [
    "Batch",
    "ConflictError",
    "CorruptionError",
    "DeadlineExceeded",
    "FileInfo",
    "FileReport",
    "Published",
    "Reader",
    "Records",
    "UnavailableError",
    "WriteSummary",
    "Writer",
    "concat",
    "list_published",
    "mix",
    "open",
    "publish",
    "remove_published",
    "verify",
]
