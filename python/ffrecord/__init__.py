"""Training data at the speed of the device: record files, read in batches, local or served."""

from ffrecord._batch import Batch
from ffrecord._ffrecord import __version__
from ffrecord._queue import BatchQueue, Completion
from ffrecord._reader import FileInfo, Reader, open
from ffrecord._records import Records
from ffrecord._repairing import RepairReport, repair
from ffrecord._served import Published, list_published, publish, remove_published
from ffrecord._token_blocks import TokenBlocks
from ffrecord._verification import FileReport, verify
from ffrecord._views import concat, mix
from ffrecord._writer import Writer, WriteSummary
from ffrecord.compat import FileReader, FileWriter, PackedFolder, checkFsAlign, pack_folder
from ffrecord.errors import ConflictError, CorruptionError, DeadlineExceeded, UnavailableError

__all__ = [
    "Batch",
    "BatchQueue",
    "Completion",
    "ConflictError",
    "CorruptionError",
    "DeadlineExceeded",
    "FileInfo",
    "FileReader",
    "FileReport",
    "FileWriter",
    "PackedFolder",
    "Published",
    "Reader",
    "Records",
    "RepairReport",
    "TokenBlocks",
    "UnavailableError",
    "WriteSummary",
    "Writer",
    "__version__",
    "checkFsAlign",
    "concat",
    "list_published",
    "mix",
    "open",
    "pack_folder",
    "publish",
    "remove_published",
    "repair",
    "verify",
]
