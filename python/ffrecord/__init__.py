"""Training data at the speed of the device: record files, read in batches, local or served."""

from ffrecord._ffrecord import __version__
from ffrecord.batch import Batch
from ffrecord.compat.fileio import FileReader, FileWriter, checkFsAlign
from ffrecord.compat.packed_folder import PackedFolder, pack_folder
from ffrecord.errors import ConflictError, CorruptionError, DeadlineExceeded, UnavailableError
from ffrecord.reader import FileInfo, Reader, open
from ffrecord.records import Records
from ffrecord.repairing import RepairReport, repair
from ffrecord.served import Published, list_published, publish, remove_published
from ffrecord.token_blocks import TokenBlocks
from ffrecord.verification import FileReport, verify
from ffrecord.views import concat, mix
from ffrecord.writer import Writer, WriteSummary

__all__ = [
    "Batch",
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
