"""Record files from Hugging Face's `datasets`, and back; `pip install datasets`.

    from_huggingface(datasets.load_dataset("imagefolder", data_dir="x", split="train"), "x.ffr")
    same = to_huggingface("x.ffr")
    splits = load_dataset({"train": "train-*.ffr", "test": "test.ffr"})

Images and audio are stored as the bytes of their files, not decoded. The features are stored in the
file's metadata, so that `to_huggingface` gives them back: names of labels, images as images.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ffrecord._read.reader import Reader
from ffrecord._tables.arrow_schema import KEY
from ffrecord._tables.logical import LogicalSchema
from ffrecord._tables.schema import Column
from ffrecord._write.writer import Writer, WriteSummary

try:
    import datasets  # type: ignore[import-not-found, import-untyped, unused-ignore]
except ImportError as error:
    raise ImportError(
        "ffrecord.huggingface needs Hugging Face's datasets 4.0 or newer: pip install datasets"
    ) from error

__all__ = ["from_huggingface", "load_dataset", "to_huggingface"]

Files = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_FEATURES = "huggingface.features"
# The column of records that are plain bytes.
_RECORD = "record"
_NUMBERS = {
    **{"bool": "bool", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64"},
    **{"uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64"},
    **{"float16": "f16", "float32": "f32", "float64": "f64"},
}
_VALUES = {
    **_NUMBERS,
    **{"string": "utf8", "large_string": "utf8", "binary": "bytes", "large_binary": "bytes"},
}
_THEIRS = {ours: theirs for theirs, ours in _NUMBERS.items()} | {
    **{"utf8": "string", "bytes": "binary"},
    "bf16": "float32",  # Holds each value of bf16; `datasets` has no bf16.
}
_ARRAYS = (datasets.Array2D, datasets.Array3D, datasets.Array4D, datasets.Array5D)
_MEDIA = (datasets.Image, datasets.Audio)
# Another way, which stores the rest, and `to_huggingface` returns the same.
_AS_TABLE = "write all columns with ffrecord.write_table(dataset.with_format('arrow')[:], path)"


def from_huggingface(
    dataset: Any,  # noqa: ANN401 - datasets.Dataset or datasets.IterableDataset
    path: str | os.PathLike[str],
    **options: Any,  # noqa: ANN401 - those of Writer
) -> WriteSummary:
    """Write a dataset of `datasets` as a record file, one record for each row.

    Args:
        dataset: one split, map-style or streamed, with features.
        path: of the file, whose folder must exist.
        options: of `ffrecord.Writer`, such as `compress="zstd"`.

    Raises:
        ValueError: a column has no counterpart, such as lists of unequal length, or a value is
            null; the message names the column, and the file is not written.
        TypeError: `dataset` is no dataset, or several splits.
        FileNotFoundError: an image or a sound is a path to a file that is not there.
    """
    if isinstance(dataset, dict):
        raise TypeError(f"there are {len(dataset)} splits: pass one, such as dataset['train']")
    if not isinstance(dataset, datasets.Dataset | datasets.IterableDataset):
        raise TypeError(f"a {type(dataset).__name__} is no dataset of Hugging Face's")
    features = dataset.features
    if features is None:
        raise ValueError("the streamed dataset has no features: dataset.cast(datasets.Features())")
    schema = {name: _type_of(name, feature) for name, feature in features.items()}
    media = {name for name, feature in features.items() if isinstance(feature, _MEDIA)}
    rows = dataset.with_format(None)
    for name in media:
        rows = rows.cast_column(name, type(features[name])(decode=False))
    metadata = {**(options.pop("metadata", None) or {})}
    metadata[_FEATURES] = json.dumps(features.to_dict()).encode()
    with Writer(path, schema, metadata=metadata, **options) as writer:
        for number, row in enumerate(rows):
            writer.write({name: _value(name, number, row[name], name in media) for name in schema})
        return writer.close()


def load_dataset(
    data_files: Files | Mapping[str, Files],
    *,
    split: str | None = None,
    streaming: bool = False,
) -> Any:  # noqa: ANN401 - datasets has no types
    """Do for record files what `datasets.load_dataset("parquet", data_files=...)` does for Parquet.

    Args:
        data_files: files by split, or files of the split "train"; see `to_huggingface`.
        split: the one to load; by default all.
        streaming: as for `to_huggingface`.

    Returns:
        A datasets.DatasetDict, or a datasets.IterableDatasetDict with `streaming`; with `split`
        the dataset itself.

    Raises:
        ValueError: there is no such split; and as `to_huggingface`, whose other errors it has, too.
    """
    splits = dict(data_files) if isinstance(data_files, Mapping) else {"train": data_files}
    if not splits:
        raise ValueError("data_files has no splits: write {'train': 'train.ffr'}")
    if split is not None and split not in splits:
        raise ValueError(
            f"split is {split!r}; there are {', '.join(splits)}. For a part of one, load it and "
            "take rows: .select(range(100)), or .take(100) where it is streamed"
        )
    wanted = splits if split is None else {split: splits[split]}
    made = {name: _load(files, name, streaming) for name, files in wanted.items()}
    if split is not None:
        return made[split]
    return (datasets.IterableDatasetDict if streaming else datasets.DatasetDict)(made)


def to_huggingface(files: Files, *, streaming: bool = False) -> Any:  # noqa: ANN401
    """Make a dataset of `datasets` from record files.

    Args:
        files: of one schema; plain bytes become a column `record`.
        streaming: whether to return an IterableDataset, which reads while it is iterated, and
            shards by file; else the records are copied into the Arrow cache of `datasets`.

    Returns:
        A datasets.Dataset or datasets.IterableDataset; its features are those of the dataset that
        the files were written from, if they were; of files that were written from tables, those of
        the types of Arrow; else as the schema says. bf16 becomes float32.

    Raises:
        ValueError: a column has no counterpart: arrays of more than five dimensions, maps; or
            labels have other names in some files, or none.
        OSError: a file is missing.
        CorruptionError: a file is damaged.
    """
    return _load(files, "train", streaming)


def _load(files: Files, split: str, streaming: bool) -> Any:  # noqa: ANN401 - a dataset
    with Reader(files) as reader:
        features = _features_of(reader)
        names = [file.name for file in reader.files]
        if not all(map(os.path.exists, names)):  # At a daemon or a store.
            given = [files] if isinstance(files, str | os.PathLike) else files
            names = [os.fspath(file) for file in given]
        # The cache of `datasets` goes by the arguments: other data must not be found there.
        arguments = {"files": names, "fingerprint": reader.fingerprint, "lists": streaming}
        is_empty = not len(reader)
    if is_empty and not streaming:  # `datasets` makes none of a generator that yields nothing.
        none: dict[str, list[Any]] = {column: [] for column in features}
        return datasets.Dataset.from_dict(none, features, split=datasets.NamedSplit(split))
    kind = datasets.IterableDataset if streaming else datasets.Dataset
    name = datasets.NamedSplit(split)
    return kind.from_generator(_rows, features=features, gen_kwargs=arguments, split=name)


def _type_of(name: str, feature: Any) -> str:  # noqa: ANN401 - `datasets` has many
    """The type of the column that holds a feature."""
    if isinstance(feature, datasets.ClassLabel):
        return "i64"
    if isinstance(feature, _MEDIA):
        return "bytes"
    if isinstance(feature, datasets.Value) and feature.dtype in _VALUES:
        return _VALUES[feature.dtype]
    if isinstance(feature, _ARRAYS) and None not in feature.shape and feature.dtype in _NUMBERS:
        return f"{_NUMBERS[feature.dtype]}[{','.join(map(str, feature.shape))}]"
    inner, length = getattr(feature, "feature", None), getattr(feature, "length", -1)
    if isinstance(inner, datasets.Value) and inner.dtype in _NUMBERS and length > 0:
        return f"{_NUMBERS[inner.dtype]}[{length}]"
    raise ValueError(
        f"column '{name}': records have no plain type for {feature!r}. To keep it, {_AS_TABLE}. Or "
        f"leave it out with dataset.remove_columns('{name}'), or make it a number, text, bytes, or "
        "a list or array of a fixed shape with dataset.map"
    )


def _value(name: str, row: int, value: Any, is_file: bool) -> Any:  # noqa: ANN401 - as it is
    """The value of a row, as a writer takes it."""
    if value is None or (is_file and value["bytes"] is None and value["path"] is None):
        raise ValueError(
            f"column '{name}' is null in row {row}, and a plain record has a value in each column. "
            f"To keep nulls, {_AS_TABLE}. Or fill it with dataset.map, or leave such rows out with "
            "dataset.filter"
        )
    if not is_file:
        return value
    found = value["bytes"]
    return Path(value["path"]).read_bytes() if found is None else found


def _features_of(reader: Reader) -> Any:  # noqa: ANN401 - datasets.Features
    """The features that are stored in the files; else those that the schema implies."""
    columns = reader.columns
    _check_labels(reader)
    if columns and (stored := _stored_features(reader)) is not None:
        return stored
    if not columns:
        return datasets.Features({_RECORD: datasets.Value("binary")})
    if _is_table(reader.logical):
        schema = reader.read([]).to_arrow().schema
        try:
            return datasets.Features.from_arrow_schema(schema)
        except (ValueError, NotImplementedError) as error:
            raise ValueError(
                f"datasets has no features for a table with {', '.join(schema.names)}: {error}"
            ) from error
    return datasets.Features({column.name: _feature_of(column) for column in columns})


def _stored_features(reader: Reader) -> Any:  # noqa: ANN401 - datasets.Features, or None
    """The features in the first file's metadata, if they describe the records that are there."""
    stored = reader.metadata().get(_FEATURES) if len(reader.files) else None
    if stored is None:
        return None
    try:
        features = datasets.Features.from_dict(json.loads(stored))
        schema = {name: _type_of(name, feature) for name, feature in features.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None  # The writer of the file may have put anything there.
    return features if schema == reader.schema else None


def _check_labels(reader: Reader) -> None:
    """Check that a number is the same label in each file, if any file names its labels.

    Raises:
        ValueError: it is not, or a file does not say so.
    """
    stated = [
        dict(_labels_in(_stated_by(reader.metadata(number)))) for number in range(len(reader.files))
    ]
    seen = reader.schema
    for place in dict.fromkeys(place for labels in stated for place in labels):
        if place[0] not in seen:  # The column was left out since.
            continue
        known = next(number for number, labels in enumerate(stated) if place in labels)
        names, where = stated[known][place], reader.files[known].name
        for file, labels in zip(reader.files, stated, strict=True):
            if place not in labels:
                raise ValueError(
                    f"the labels of column '{'.'.join(place)}' are {names} in {where}, and have no "
                    f"names in {file.name}: load the files one by one, give these labels names "
                    "with dataset.cast_column, and join them with datasets.concatenate_datasets"
                )
            if labels[place] != names:
                raise ValueError(
                    f"the labels of column '{'.'.join(place)}' are {names} in {where}, and "
                    f"{labels[place]} in {file.name}: load the files one by one, give them one "
                    "order with dataset.align_labels_with_mapping, and join them with "
                    "datasets.concatenate_datasets"
                )


def _stated_by(metadata: Mapping[str, bytes]) -> Any:  # noqa: ANN401 - JSON
    """The features that a file names itself, or the table that it was written from."""
    import pyarrow as pa

    try:
        if (stored := metadata.get(_FEATURES)) is not None:
            return json.loads(stored)
        schema = pa.ipc.read_schema(pa.py_buffer(metadata.get(KEY, b"")))
        return json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, RecursionError):
        return None  # The writer of the file may have put anything there.


def _labels_in(
    features: Any,  # noqa: ANN401 - JSON
    place: tuple[str, ...] = (),
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The names of labels, by the column and the place in it that has them."""
    if isinstance(features, list):
        for each in features:
            yield from _labels_in(each, place)
    elif isinstance(features, dict) and features.get("_type") == "ClassLabel":
        yield place, features.get("names")
    elif isinstance(features, dict):
        for name, each in features.items():
            yield from _labels_in(each, (*place, name))


def _feature_of(column: Column) -> Any:  # noqa: ANN401 - `datasets` has many
    kind, dimensions = _THEIRS[column.type], len(column.shape)
    if dimensions == 0:
        return datasets.Value(kind)
    if dimensions == 1:
        return datasets.List(datasets.Value(kind), length=column.shape[0])
    if dimensions > 1 + len(_ARRAYS):
        raise ValueError(
            f"column '{column.name}': {column.spelling} has {dimensions} dimensions, and datasets "
            f"has arrays of up to {1 + len(_ARRAYS)}"
        )
    return _ARRAYS[dimensions - 2](shape=column.shape, dtype=kind)


def _rows(files: list[str], fingerprint: str, lists: bool) -> Iterator[dict[str, Any]]:
    """The records, their arrays as lists if nobody converts them.

    The cache of `datasets` knows by `fingerprint` of what records it was made.
    """
    with Reader(files[0] if len(files) == 1 else files) as reader:
        columns, is_table = reader.columns, _is_table(reader.logical)
        for batch in reader.batches():
            if is_table:
                yield from batch.to_arrow().to_pylist()
                continue
            if not columns:
                yield from ({_RECORD: record.tobytes()} for record in batch.records())
                continue
            values = [_plain(column, batch[column.name], lists) for column in columns]
            for row in zip(*values, strict=True):
                yield {column.name: value for column, value in zip(columns, row, strict=True)}


def _is_table(logical: LogicalSchema) -> bool:
    """Whether the types of Arrow say what the columns are: of a table, or of nested columns."""
    return not logical.is_flat or bool(logical.arrow_schemas())


def _plain(column: Column, values: Any, lists: bool) -> Any:  # noqa: ANN401 - arrays, lists
    """The values of a column as `datasets` takes them."""
    if column.type == "utf8":
        return values
    if column.type == "bytes":
        return [value.tobytes() for value in values]
    if column.type == "bf16":  # The upper half of a float32.
        values = (values.astype("<u4") << 16).view("<f4")
    return values.tolist() if lists or not column.shape else values
