"""Records as files of other kinds: a folder, a tar of WebDataset, JSON lines, Parquet."""

import errno
import importlib
import io
import json
import os
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from ffrecord import Batch, Reader
from ffrecord._cli.console import Progress
from ffrecord._cli.data.new_file import check_no_source, check_vacant_file, named_file, new_file
from ffrecord._cli.data.records import Keys, batches, in_order
from ffrecord._cli.data.values import (
    as_bytes,
    dumps,
    media_type,
    numbers_of,
    plain,
    plain_sample,
    text_of,
)
from ffrecord._cli.data.words import in_words
from ffrecord._order.epoch_order import Indices
from ffrecord._tables.schema import Column
from ffrecord._write.new_folder import check_vacant, new_folder, sync_contents
from ffrecord.errors import ConflictError

FORMATS = ("folder", "webdataset", "jsonl", "parquet")
_BY_ENDING = {".tar": "webdataset", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
# A folder of a folder has so many records.
_FOLDER_RECORDS = 10_000
_DIGITS_MIN = 6
# By which the endings of files are chosen; they are in memory meanwhile.
_LOOK_RECORDS = 256
_INDEX = "records.jsonl"
_NAME_MAX = 60
# Columns with such a name are files with that ending, as WebDataset names them.
_ENDINGS = frozenset(
    (
        *("jpg", "jpeg", "png", "gif", "bmp", "webp", "ppm", "wav", "flac", "mp3", "ogg", "mp4"),
        *("txt", "text", "json", "npy", "bin", "cls"),
    )
)
_LABEL = "cls"
_GROUP_BYTES, _GROUP_ROWS = 64 << 20, 1 << 16


class Record(NamedTuple):
    """One record of an export."""

    position: int
    """Its index."""
    key: bytes | None
    value: Any
    """Its bytes, or a value for each column."""


def format_of(path: Path, asked: str | None) -> str:
    """The format that was asked for, or that the name of `path` stands for.

    Raises:
        ValueError: the name stands for none.
    """
    if asked is not None:
        return asked
    if path.suffix in _BY_ENDING:
        return _BY_ENDING[path.suffix]
    if path.suffix == ".ffr":
        raise ValueError(f"{path.name} is the name of a record file: use 'ffrecord merge' for that")
    if path.suffix:
        raise ValueError(
            f"{path.name}: its ending names no format that is known; add --format "
            f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
        )
    return "folder"


def is_table(reader: Reader) -> bool:
    """Whether Arrow has the types of the columns, rather than the schema of the file."""
    logical = reader.logical
    return not logical.is_flat or bool(logical.full or logical.arrow_schemas())


class _KeyIsNoColumnError(Exception):
    """A record's key is not the value of the column that was the key of the first record."""


class Export:
    """Writes records of `reader` in another format. Single use."""

    def __init__(
        self,
        reader: Reader,
        columns: tuple[Column, ...],
        progress: Progress | None,
        *,
        plain: bool = False,
    ) -> None:
        """Write nothing yet.

        Args:
            reader: the records, at least one.
            columns: those to write; () for records without columns.
            progress: given bytes of the record files.
            plain: lines of JSON are the columns alone, which programs, and packing, read as they
                are; else they have the index, the key and the record.

        Raises:
            ValueError: it is `plain`, and there are no columns.
        """
        if plain and not columns:
            raise ValueError("the records have no columns: export them without --plain")
        self._reader = reader
        self._columns = columns
        self._progress = progress
        self._is_plain = plain
        self._written = 0
        self._key_column: str | None = None
        """The column whose values are the keys, which are not written apart from it then."""
        self._digits = max(_DIGITS_MIN, len(str(len(reader) - 1)))

    def check(self, path: Path, format_: str, overwrite: bool) -> None:
        """Raise what `write` would raise before it writes.

        Raises:
            ConflictError: the destination exists, and may not be replaced.
            ImportError: Parquet needs pyarrow, which is not installed.
            OSError: the destination's folder is not there, or may not be written.
            ValueError: the destination is a file that is read.
        """
        if format_ == "folder":
            if os.path.lexists(path):
                raise ConflictError(
                    errno.EEXIST, f"{path} exists; remove it, or choose another name"
                )
            check_vacant(path, False)
        else:
            check_vacant_file(path, overwrite)
            check_no_source(path, self._reader)
        if format_ == "parquet":
            _pyarrow()

    def write(self, span: range, path: Path, format_: str, overwrite: bool) -> int:
        """Write the records of these indices; return how many.

        The destination appears only once it is complete.

        Raises:
            ConflictError: the destination exists, and may not be replaced.
            CorruptionError: a record is damaged.
            ImportError: Parquet needs pyarrow, which is not installed.
            OSError: a file cannot be read or written.
            ValueError: the destination is a file that is read; or plain lines would lose keys.
        """
        self.check(path, format_, overwrite)
        keys = Keys(self._reader)
        pieces = in_order(span.start, span.stop)
        try:
            if format_ == "folder":
                with new_folder(path, False) as folder:
                    self._folder(pieces, keys, folder, path)
                return self._written
            writers: dict[str, Callable[[Iterable[Indices], Keys, BinaryIO], None]] = {
                "webdataset": self._tar,
                "jsonl": self._json_lines,
                "parquet": self._parquet,
            }
            if format_ != "jsonl" or self._is_plain:
                self._key_column = self._column_of_key(keys, span.start)
            with new_file(path, overwrite) as file:
                try:
                    writers[format_](pieces, keys, file)
                except _KeyIsNoColumnError:  # Once more, with the keys.
                    self._key_column, self._written = None, 0
                    file.seek(0)
                    file.truncate()
                    writers[format_](in_order(span.start, span.stop), keys, file)
            return self._written
        finally:
            keys.close()

    def _column_of_key(self, keys: Keys, first: int) -> str | None:
        """The column with the key of the record `first`, if there is one."""
        sample, key = self._reader.read([first])[0], keys.of(first)
        for column in self._columns:
            if column.kind.is_text and _is_key(sample[column.name], key):
                return column.name
        return None

    def _batches(self, pieces: Iterable[Indices], keys: Keys) -> Iterator[Batch]:
        total = self._reader.size_bytes
        for batch in batches(self._reader, pieces):
            if self._key_column is not None:
                values = zip(batch.indices.tolist(), batch[self._key_column], strict=True)
                if not all(_is_key(value, keys.of(index)) for index, value in values):
                    raise _KeyIsNoColumnError
            yield batch
            self._written += len(batch)
            if self._progress is not None:
                self._progress(total * self._written // len(self._reader), total)

    def _records(self, pieces: Iterable[Indices], keys: Keys) -> Iterator[Record]:
        for batch in self._batches(pieces, keys):
            for index, value in zip(batch.indices.tolist(), in_words(batch), strict=True):
                yield Record(index, keys.of(index), value)

    def _looked_at(
        self, pieces: Iterable[Indices], keys: Keys
    ) -> tuple[Iterator[Record], dict[str | None, Any]]:
        """All records, and of each column the first value there is among the first thousands."""
        records = self._records(pieces, keys)
        some = list(islice(records, _LOOK_RECORDS))
        if not self._columns:
            return chain(some, records), {None: some[0].value}
        firsts: dict[str | None, Any] = {}
        for column in self._columns:
            values = (record.value[column.name] for record in some)
            firsts[column.name] = next((value for value in values if value is not None), None)
        return chain(some, records), firsts

    def _json_lines(self, pieces: Iterable[Indices], keys: Keys, file: BinaryIO) -> None:
        if self._is_plain and keys.count and self._key_column is None:
            raise ValueError("the keys of the records are no column: export without --plain")
        for record in self._records(pieces, keys):
            value = plain_sample(record.value, self._columns)
            file.write(
                dumps(value).encode() + b"\n" if self._is_plain else self._line(record, value)
            )

    def _line(self, record: Record, value: Any) -> bytes:  # noqa: ANN401
        facts = {"index": record.position}
        if record.key is not None:
            facts["key"] = plain(record.key)
        return dumps({**facts, "record": value}).encode() + b"\n"

    def _tar(self, pieces: Iterable[Indices], keys: Keys, file: BinaryIO) -> None:
        with_keys = bool(keys.count) and self._key_column is None
        records, firsts = self._looked_at(pieces, keys)
        endings = endings_of(firsts, self._columns, with_keys)
        with tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT) as tar:
            for record in records:
                name = f"{record.position:0{self._digits}}"
                members = list(_members(record, self._columns, endings))
                if not members:
                    raise ValueError(
                        f"record {record.position} has no value in any column, and would be no "
                        "file in a tar: export to .jsonl or .parquet"
                    )
                for ending, data in members:
                    info = tarfile.TarInfo(f"{name}.{ending}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
                # It remembers all that it has written.
                tar.members = []  # type: ignore[attr-defined]

    def _folder(
        self, pieces: Iterable[Indices], keys: Keys, folder: Path, destination: Path
    ) -> None:
        """A file for each value of bytes or text; all else is in `records.jsonl`."""
        files = tuple(column for column in self._columns if column.kind.is_text)
        others = tuple(column for column in self._columns if not column.kind.is_text)
        records, firsts = self._looked_at(pieces, keys)
        endings = endings_of(firsts, files, False, bool(self._columns))
        with named_file(folder / _INDEX, destination / _INDEX) as index:
            for record in records:
                below = f"{record.position // _FOLDER_RECORDS:05}"
                if endings:
                    (folder / below).mkdir(exist_ok=True)
                names: dict[str, str | None] = {}
                for column, ending in endings.items():
                    value = record.value if column is None else record.value[column]
                    if value is None:
                        names[column or "record"] = None
                        continue
                    data = as_bytes(value)
                    name = f"{below}/{record.position:0{self._digits}}.{ending}"
                    with named_file(folder / name, destination / name) as file:
                        file.write(data)
                    names[column or "record"] = name
                numbers = {c.name: plain(record.value[c.name], c) for c in others}
                index.write(self._line(record, {"files": names, "values": numbers}))
        sync_contents(folder)

    def _parquet(self, pieces: Iterable[Indices], keys: Keys, file: BinaryIO) -> None:
        pa = _pyarrow()
        with_keys = bool(keys.count) and self._key_column is None
        names = [column.name for column in self._columns]
        schema = None if is_table(self._reader) else _arrow_schema(self._columns, with_keys)
        writer = None
        waiting: list[Any] = []
        try:
            for batch in self._batches(pieces, keys):
                if schema is None:
                    made = batch.only(names).to_arrow()
                    waiting.append(_with_keys(made, batch, keys if with_keys else None))
                else:
                    made = _arrow_batch(batch, self._columns, schema, keys)
                    waiting.append(pa.Table.from_batches([made]))
                if writer is None:
                    module = importlib.import_module("pyarrow.parquet")
                    writer = module.ParquetWriter(file, waiting[0].schema)
                rows, size = sum(map(len, waiting)), sum(each.nbytes for each in waiting)
                if rows >= _GROUP_ROWS or size >= _GROUP_BYTES:
                    writer.write_table(pa.concat_tables(waiting), row_group_size=rows)
                    waiting = []
            if waiting and writer is not None:
                writer.write_table(pa.concat_tables(waiting))
        finally:
            if writer is not None:
                writer.close()


def _with_keys(table: Any, batch: Batch, keys: Keys | None) -> Any:  # noqa: ANN401 - a table
    """The table, with a column for the keys."""
    if keys is None:
        return table
    if _KEY in table.column_names:
        raise ValueError(f"a column is called {_KEY}: leave it out with --column")
    found = [keys.of(index) for index in batch.indices.tolist()]
    pa = _pyarrow()
    return table.append_column(_KEY, pa.array(found, pa.large_binary()))


def _is_key(value: Any, key: bytes | None) -> bool:  # noqa: ANN401 - of a column of bytes or text
    return value is not None and as_bytes(value) == key


def endings_of(
    firsts: dict[str | None, Any],
    columns: tuple[Column, ...],
    with_key: bool,
    has_columns: bool = False,
) -> dict[str | None, str]:
    """How the names of files end, by column, by None for a whole record, and by "" for the key.

    `firsts` has a value of each, or None if there is none.

    Names of columns are a stranger's: what could lead out of a folder is replaced.
    """
    if not columns and not has_columns:
        return {None: _ending_of_data(as_bytes(firsts[None])), **({"": "key"} if with_key else {})}
    endings: dict[str | None, str] = {}
    taken: set[str] = set()
    for column in columns:
        clean = re.sub(r"[^A-Za-z0-9_-]", "_", column.name)[:_NAME_MAX] or "_"
        first = firsts[column.name]
        is_label = _is_label(column, first)
        ending = _LABEL if is_label else clean + _ending_of_value(column, clean, first)
        number = 1
        while ending.lower() in taken:  # Some file systems do not tell a.txt from A.txt.
            number += 1
            ending = f"{clean}_{number}" + _ending_of_value(column, "", first)
        taken.add(ending.lower())
        endings[column.name] = ending
    if with_key:
        endings[""] = "key" if "key" not in taken else "__key__"
    return endings


def _is_label(column: Column, first: Any) -> bool:  # noqa: ANN401
    """Whether the values are WebDataset's labels: single integers, or null."""
    kind = column.kind
    is_number = kind.type[:1] in "iu" and not kind.fields and not kind.shape
    return column.name == "label" and is_number and not isinstance(first, str)


def _ending_of_value(column: Column, clean: str, value: Any) -> str:  # noqa: ANN401
    if not column.kind.is_text:
        return ".json"
    if clean.lower() in _ENDINGS:
        return ""
    if column.kind.type == "utf8":
        return ".txt"
    return f".{_ending_of_data(b'' if value is None else as_bytes(value))}"


def _ending_of_data(data: bytes) -> str:
    kind = media_type(data)
    if kind is not None:
        return kind[1]
    return "txt" if data and text_of(data) is not None else "bin"


def _members(
    record: Record, columns: tuple[Column, ...], endings: dict[str | None, str]
) -> Iterator[tuple[str, bytes]]:
    if "" in endings and record.key is not None:
        yield endings[""], record.key
    if not columns:
        yield endings[None], as_bytes(record.value)
        return
    for column in columns:
        value = record.value[column.name]
        if value is None and (column.kind.is_text or endings[column.name] == _LABEL):
            continue  # As in WebDataset: a file that is not there.
        if not column.kind.is_text:
            data = json.dumps(plain(value, column)).encode()
        else:
            data = as_bytes(value)
        yield endings[column.name], data


def _pyarrow() -> Any:  # noqa: ANN401 - a module
    from ffrecord.pack._source import needed

    return needed("pyarrow", "an export to Parquet")


_ARROW = {
    **{"bool": "bool_", "f16": "float16", "f32": "float32", "f64": "float64", "bf16": "float32"},
    **{f"u{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{f"i{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{"bytes": "large_binary", "utf8": "large_string"},
}
_KEY = "__key__"


def _arrow_schema(columns: tuple[Column, ...], with_key: bool) -> Any:  # noqa: ANN401 - pyarrow's schema
    pa = _pyarrow()
    fields = []
    for column in columns:
        type_ = getattr(pa, _ARROW[column.type])()
        for size in reversed(column.shape):
            type_ = pa.list_(type_, size)
        fields.append(pa.field(column.name, type_, nullable=False))
    if not columns:
        fields.append(pa.field("record", pa.large_binary(), nullable=False))
    if with_key:
        if any(column.name == _KEY for column in columns):
            raise ValueError(f"a column is called {_KEY}: leave it out with --column")
        fields.append(pa.field(_KEY, pa.large_binary()))
    return pa.schema(fields)


def _arrow_batch(
    batch: Batch,
    columns: tuple[Column, ...],
    schema: Any,  # noqa: ANN401
    keys: Keys,
) -> Any:  # noqa: ANN401
    pa = _pyarrow()
    arrays = [_arrow_array(batch, column, schema.field(column.name).type) for column in columns]
    if not columns:
        arrays.append(pa.array([as_bytes(each) for each in batch], pa.large_binary()))
    if _KEY in schema.names:
        found = [keys.of(index) for index in batch.indices.tolist()]
        arrays.append(pa.array(found, pa.large_binary()))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _arrow_array(batch: Batch, column: Column, type_: Any) -> Any:  # noqa: ANN401
    pa = _pyarrow()
    values = batch[column.name]
    if column.type == "utf8":
        return pa.array(values, type_)
    if column.dtype is None:
        return pa.array([as_bytes(value) for value in values], type_)
    array = pa.array(np.ascontiguousarray(numbers_of(values, column)).reshape(-1))
    for size in reversed(column.shape):
        array = pa.FixedSizeListArray.from_arrays(array, size)
    return array
