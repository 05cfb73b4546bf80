"""Training data in record files: read in batches, from local files, daemons or stores."""

import os
from typing import TYPE_CHECKING

from ffrecord._base.lazy_names import later
from ffrecord._ffrecord import __version__
from ffrecord._read.batch import Batch
from ffrecord._read.locations import Eviction, fetch_evicted_with
from ffrecord._read.named_versions import Catalogue, locate_versions_with
from ffrecord._read.reader import Reader, open
from ffrecord._read.records import Records
from ffrecord.errors import ConflictError, CorruptionError, DeadlineExceeded, UnavailableError

if TYPE_CHECKING:
    from ffrecord._profile.session import profile
    from ffrecord._read.file_info import FileInfo
    from ffrecord._read.joined import concat, mix
    from ffrecord._read.queue import BatchQueue, Completion
    from ffrecord._read.token_blocks import TokenBlocks
    from ffrecord._read.verification import FileReport, verify
    from ffrecord._store.published import Published, list_published, publish, remove_published
    from ffrecord._write.repair import RepairReport, repair
    from ffrecord._write.tables import read_table, write_table
    from ffrecord._write.writer import Writer, WriteSummary
    from ffrecord.compat import FileReader, FileWriter, PackedFolder, checkFsAlign, pack_folder
    from ffrecord.pack._in_place import IndexSummary, index

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
    "IndexSummary",
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
    "index",
    "list_published",
    "mix",
    "open",
    "pack_folder",
    "profile",
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
        "BatchQueue": "_read.queue",
        "Completion": "_read.queue",
        "FileInfo": "_read.file_info",
        "FileReader": "compat",
        "FileReport": "_read.verification",
        "FileWriter": "compat",
        "IndexSummary": "pack._in_place",
        "PackedFolder": "compat",
        "Published": "_store.published",
        "RepairReport": "_write.repair",
        "TokenBlocks": "_read.token_blocks",
        "WriteSummary": "_write.writer",
        "Writer": "_write.writer",
        "checkFsAlign": "compat",
        "concat": "_read.joined",
        "index": "pack._in_place",
        "list_published": "_store.published",
        "mix": "_read.joined",
        "pack_folder": "compat",
        "profile": "_profile.session",
        "publish": "_store.published",
        "read_table": "_write.tables",
        "remove_published": "_store.published",
        "repair": "_write.repair",
        "verify": "_read.verification",
        "write_table": "_write.tables",
    },
    modules=("compat", "decode"),
)


def _find_eviction() -> Eviction:
    from ffrecord._store import eviction  # With checkpoints, which few folders need.

    return eviction


def _find_catalogue() -> Catalogue:
    from ffrecord._store import catalogue  # With checkpoints, which few readers need.

    return catalogue


fetch_evicted_with(_find_eviction)
locate_versions_with(_find_catalogue)


if "FFRECORD_PROFILE" in os.environ:
    from ffrecord._profile.session import begin_as_told

    begin_as_told()


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
