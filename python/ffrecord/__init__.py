"""Training data in record files: read in batches, from local files, daemons or stores."""

from typing import TYPE_CHECKING

from ffrecord._batch import Batch
from ffrecord._ffrecord import __version__
from ffrecord._file_info import FileInfo
from ffrecord._later import later
from ffrecord._reader import Reader, open
from ffrecord._records import Records
from ffrecord.errors import ConflictError, CorruptionError, DeadlineExceeded, UnavailableError

if TYPE_CHECKING:
    from ffrecord._queue import BatchQueue, Completion
    from ffrecord._repairing import RepairReport, repair
    from ffrecord._served import Published, list_published, publish, remove_published
    from ffrecord._tables import read_table, write_table
    from ffrecord._token_blocks import TokenBlocks
    from ffrecord._verification import FileReport, verify
    from ffrecord._views import concat, mix
    from ffrecord._writer import Writer, WriteSummary
    from ffrecord.compat import FileReader, FileWriter, PackedFolder, checkFsAlign, pack_folder

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
    "read_table",
    "remove_published",
    "repair",
    "verify",
    "write_table",
]

# Reading a file needs none of these, and they take longer to import than all the rest
# (benchmarks/storage/startup.py). Each process of a loader imports this package.
__getattr__ = later(
    __name__,
    {
        "BatchQueue": "_queue",
        "Completion": "_queue",
        "FileReader": "compat",
        "FileReport": "_verification",
        "FileWriter": "compat",
        "PackedFolder": "compat",
        "Published": "_served",
        "RepairReport": "_repairing",
        "TokenBlocks": "_token_blocks",
        "WriteSummary": "_writer",
        "Writer": "_writer",
        "checkFsAlign": "compat",
        "concat": "_views",
        "list_published": "_served",
        "mix": "_views",
        "pack_folder": "compat",
        "publish": "_served",
        "read_table": "_tables",
        "remove_published": "_served",
        "repair": "_repairing",
        "verify": "_verification",
        "write_table": "_tables",
    },
    modules=("compat", "decode"),
)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
