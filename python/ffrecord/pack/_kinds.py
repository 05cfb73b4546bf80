"""The kinds of sources: the one list that code, messages, help and documentation have them from."""

import importlib
from typing import NamedTuple, cast

from ffrecord.pack import _places
from ffrecord.pack._source import Source, SourceOptions


class KindOfSource(NamedTuple):
    """How a source is recognised and opened, and what the documentation says of it."""

    shown: str
    """The name for people."""
    module: str
    """The module in this package that knows it."""
    test: str
    """The function in it that recognises a path."""
    source: str
    """The class in it that reads it."""
    record: str
    """The parts of one record."""
    columns: str
    """The columns, in words."""
    needs: str = ""
    """The packages that it needs beside NumPy, as pip calls them."""
    is_list: bool = False
    """Whether it stands for files of another kind, which `source` returns."""

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
    KindOfSource(
        "a folder of LitData chunks",
        "_litdata",
        "is_litdata",
        "LitDataSource",
        "sample",
        "one per value, `outer/inner` within dicts: numbers, text, bytes, files; arrays of one "
        "dimension as lists, others with the shape of the first sample's",
        "pyarrow",
    ),
    KindOfSource(
        "a folder of MDS shards",
        "_mds",
        "is_mds",
        "MdsSource",
        "sample",
        "numbers and `ndarray`s of a fixed shape unchanged; str, json and numbers as text as utf8; "
        "bytes, jpeg and png as bytes. MosaicML Streaming, version 2; plain, gz, bz2, zstd",
        "zstandard for zstd",
    ),
    KindOfSource(
        "a folder of Hugging Face datasets' save_to_disk",
        "_saved",
        "is_saved",
        "SavedSource",
        "row",
        "as of Parquet; `--split` chooses one of several splits",
        "pyarrow",
    ),
    KindOfSource(
        "a folder of Megatron Energon",
        "_split_folders",
        "is_energon",
        "energon_files",
        "sample",
        "as of WebDataset; `--split` chooses one of several splits",
        "pyyaml",
        is_list=True,
    ),
    KindOfSource(
        "Lance datasets",
        "_lance",
        "is_lance",
        "LanceSource",
        "row",
        "as `write_table` stores the table that lance reads",
        "pylance, pyarrow",
    ),
    KindOfSource(
        "LMDB databases",
        "_lmdb",
        "is_lmdb",
        "LmdbSource",
        "entry",
        "`key` and `value`, both bytes, in the order of the keys",
        "lmdb, pyarrow",
    ),
    KindOfSource(
        "*.ffr or a folder of them",
        "_record_files",
        "is_record_files",
        "RecordFiles",
        "record",
        "unchanged; files of either version",
    ),
    KindOfSource(
        "a folder as of Hugging Face's hub",
        "_split_folders",
        "is_hub",
        "hub_files",
        "row, or sample",
        "as of its files, such as `data/train-00000-of-00002.parquet`, `train.jsonl` or "
        "`train/0000.tar`; `--split` chooses one of several splits",
        "pyyaml for a `README.md` with `configs`",
        is_list=True,
    ),
    KindOfSource(
        "a YOLO folder",
        "_yolo",
        "is_yolo",
        "YoloSource",
        "picture",
        "`name`; `image: bytes`; lists with an item per object: `label`, and `box` or `outline` "
        "([below](#coco-and-yolo))",
        "pyarrow, pyyaml for `data.yaml`",
    ),
    KindOfSource(
        "a folder with a subfolder per class",
        "_folder",
        "is_folder",
        "FolderSource",
        "file",
        "`label: i64`, the index of the class in the sorted list of classes; `name`; "
        "`payload: bytes`",
    ),
    KindOfSource(
        "*.jsonl or *.ndjson (plain or .gz)",
        "_jsonl",
        "is_json_lines",
        "json_lines_source",
        "line",
        "one per field, nested ones too ([below](#json-lines))",
        "pyarrow",
    ),
    KindOfSource(
        "*.csv or *.tsv (plain or .gz)",
        "_csv",
        "is_csv",
        "CsvSource",
        "row",
        "one per name in the first line ([below](#csv))",
        "pyarrow",
    ),
    KindOfSource(
        "COCO's *.json",
        "_coco",
        "is_coco",
        "CocoSource",
        "picture",
        "`name`; `image: bytes`; the fields of the image; `annotations`, a list of structs "
        "([below](#coco-and-yolo))",
        "pyarrow",
    ),
    KindOfSource(
        "Parquet",
        "_parquet",
        "is_parquet",
        "ParquetSource",
        "row",
        "as `write_table` stores the table that pyarrow reads ([below](#tables))",
        "pyarrow",
    ),
    KindOfSource(
        "Arrow IPC files, streams and Feather",
        "_ipc",
        "is_ipc",
        "IpcSource",
        "row",
        "as `write_table` stores the table; Feather of version 2",
        "pyarrow",
    ),
    KindOfSource(
        "*.npy and *.npz",
        "_numpy",
        "is_numpy",
        "NumpySource",
        "row of the arrays",
        "one per array: `value` in a `.npy`; numbers with the shape of a row, or text",
    ),
    KindOfSource(
        "HDF5",
        "_hdf5",
        "is_hdf5",
        "Hdf5Source",
        "row of the datasets",
        "one per dataset, `group/name`: numbers with the shape of a row, text, lists of numbers "
        "([below](#hdf5-and-lmdb))",
        "h5py, pyarrow",
    ),
    KindOfSource(
        "token files (*.bin, with Megatron's .idx or without)",
        "_tokens",
        "is_tokens",
        "TokenFile",
        "document",
        "`tokens`, a list of numbers of the file's type ([below](#files-of-tokens))",
        "pyarrow",
    ),
    KindOfSource(
        "ArrayRecord",
        "_array_record",
        "is_array_record",
        "array_record_source",
        "record",
        "of `tf.train.Example` as of TFRecords; otherwise `payload: bytes`",
        "array_record, pyarrow",
    ),
    KindOfSource(
        "TFRecords",
        "_tfrecord_source",
        "is_tfrecord",
        "tfrecord_source",
        "`tf.train.Example` or `SequenceExample`",
        "one per feature ([below](#tfrecords)); plain or gzip",
        "google-crc32c, pyarrow",
    ),
    KindOfSource(
        "tars (plain, gz, bz2, xz)",
        "_tar",
        "is_tar",
        "TarSource",
        "file, or sample of WebDataset",
        "of files: `name`, `payload: bytes`, and `label: i64` if files come with a `.cls`; of "
        "samples see [below](#webdataset)",
    ),
)


def kind_of(path: str) -> KindOfSource | None:
    """The kind of a path; None if it is none."""
    return next((kind for kind in KINDS if kind.fits(path)), None)


def files_of(path: str, options: SourceOptions) -> list[str] | None:
    """The files that a folder stands for; None if it is a source itself."""
    kind = kind_of(path)
    if kind is None or not kind.is_list:
        return None
    files: list[str] = getattr(kind._loaded(), kind.source)(path, options)
    return files


def open_one(name: str, options: SourceOptions) -> Source:
    """Open one source, as `open_source` does."""
    is_file, is_dir = _places.is_file(name), _places.is_dir(name)
    if not is_file and not is_dir:
        _places.look(name)  # An error of the system, or of the store, says more.
        raise ValueError(
            f"{name} is neither a file nor a folder: packing inspects a source before it reads it, "
            "so write the output of a pipe to a file first"
        )
    if is_file and _places.size_of(name) == 0:
        raise ValueError(f"{name} is empty: there is nothing to pack")
    if (kind := kind_of(name)) is None:
        raise ValueError(f"{name} is not a source: give {', '.join(each.shown for each in KINDS)}")
    return kind.open(name, options)


def listed() -> str:
    """All kinds, for help."""
    return ", ".join(kind.shown for kind in KINDS)


def as_markdown() -> str:
    """All kinds as a table, for the documentation; a test compares it."""
    rows = ["| source | one record per | columns | needs |", "|---|---|---|---|"]
    rows += [f"| {k.shown} | {k.record} | {k.columns} | {k.needs} |" for k in KINDS]
    return "\n".join(rows).replace(" |  |", " | |") + "\n"
