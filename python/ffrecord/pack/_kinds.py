"""The kinds of sources: the one list that code, messages, help and documentation have them from."""

import importlib
import os
import stat
from typing import NamedTuple, cast

from ffrecord.pack._source import Source, SourceOptions


class KindOfSource(NamedTuple):
    """How a source is recognised and opened."""

    shown: str
    """What people call it, as in `docs/guides/packing.md`."""
    module: str
    """The module in this package that knows it."""
    test: str
    """The function in it that recognises a path."""
    source: str
    """The class in it that reads it."""

    def fits(self, path: str) -> bool:
        """Whether it is one."""
        return bool(getattr(self._loaded(), self.test)(path))

    def open(self, path: str, options: SourceOptions) -> Source:
        """Read what is to be known before samples are."""
        return cast(Source, getattr(self._loaded(), self.source)(path, options))

    def _loaded(self) -> object:
        return importlib.import_module(f"ffrecord.pack.{self.module}")


# In the order in which they are tried: what has a mark of its own before what has but a name.
KINDS = (
    KindOfSource("a folder of MDS shards", "_mds", "is_mds", "MdsSource"),
    KindOfSource(
        "a folder of Hugging Face datasets' save_to_disk", "_saved", "is_saved", "SavedSource"
    ),
    KindOfSource("*.ffr or a folder of them", "_record_files", "is_record_files", "RecordFiles"),
    KindOfSource("a folder with a subfolder per class", "_folder", "is_folder", "FolderSource"),
    KindOfSource(
        "*.jsonl or *.ndjson (plain or .gz)", "_jsonl", "is_json_lines", "json_lines_source"
    ),
    KindOfSource("*.csv or *.tsv (plain or .gz)", "_csv", "is_csv", "CsvSource"),
    KindOfSource("Parquet", "_parquet", "is_parquet", "ParquetSource"),
    KindOfSource("Arrow IPC files, streams and Feather", "_ipc", "is_ipc", "IpcSource"),
    KindOfSource("*.npy and *.npz", "_numpy", "is_numpy", "NumpySource"),
    KindOfSource("TFRecords", "_tfrecord", "is_tfrecord", "tfrecord_source"),
    KindOfSource("tars (plain, gz, bz2, xz)", "_tar", "is_tar", "TarSource"),
)


def kind_of(path: str) -> KindOfSource | None:
    """The kind of a path; None if it is none."""
    return next((kind for kind in KINDS if kind.fits(path)), None)


def open_one(name: str, options: SourceOptions) -> Source:
    """Open one source, as `open_source` does."""
    found = os.stat(name)
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
        raise ValueError(
            f"{name} is neither a file nor a folder: packing inspects a source before it reads it, "
            "so write the output of a pipe to a file first"
        )
    if stat.S_ISREG(found.st_mode) and found.st_size == 0:
        raise ValueError(f"{name} is empty: there is nothing to pack")
    if (kind := kind_of(name)) is None:
        raise ValueError(f"{name} is not a source: give {', '.join(each.shown for each in KINDS)}")
    return kind.open(name, options)


def listed() -> str:
    """All kinds, for help."""
    return ", ".join(kind.shown for kind in KINDS)
