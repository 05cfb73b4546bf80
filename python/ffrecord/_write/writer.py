"""Writing record files."""

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np

from ffrecord import _ffrecord
from ffrecord._base.closeable import Closing
from ffrecord._read.reader import Reader
from ffrecord._tables.arrow_reading import schema_of
from ffrecord._tables.arrow_schema import KEY, NULLS, facts_of, nulls_in
from ffrecord._tables.arrow_writing import Encoder, Rows, as_table, is_arrow_schema
from ffrecord._tables.schema import Column, columns_of, parse
from ffrecord._tables.values import (
    BytesLike,
    Converter,
    as_buffer,
    as_bytes,
    converter,
    in_row,
    key_of,
)
from ffrecord._write.file_rows import FileRanges, FileRows

if TYPE_CHECKING:
    import pyarrow as pa

# The end of the name of a stored column that says where another one has values.
_VALID = ":valid"
# Copied without being asked: 512 bytes of each record at most, at 8 bytes each.
_COPIED_SCALARS_MAX = 64


@dataclass(frozen=True)
class WriteSummary:
    """Summary of a finished file; sizes in bytes, `raw` means before compression."""

    record_count: int
    raw_size_bytes: int
    file_size_bytes: int
    fingerprint: str
    dictionary_size_bytes: int = 0
    """The size of the dictionary that the records are compressed with; 0 if there is none."""


class Writer(Closing):
    """Writes one file, which appears under its name only when it is complete and on the disk.

    >>> with ffrecord.Writer("a.ffr", schema={"image": "bytes", "label": "i64"}) as writer:
    ...     writer.write({"image": png, "label": 3})

    The end of the block publishes the file; an exception in the block leaves no file.

    With `append`, records are added in place to an existing file, which keeps its schema, by one
    writer at a time. Records are safe once they are committed: by `commit`, by `close`, and every
    64 MiB. After an exception in the block the file is as of its last commit; after a kill, readers
    see it so, and the next append cuts off the rest. Each call writes all of its records or none.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        schema: "Mapping[str, str] | pa.Schema | None" = None,
        *,
        compress: Literal["zstd"] | None = None,
        level: int = 3,
        align: int = 1,
        replace: bool = False,
        append: bool = False,
        metadata: Mapping[str, bytes] | None = None,
        dictionary: bytes | int | None = None,
        key: str | Literal[True] | None = None,
        copy_columns: Sequence[str] | None = None,
        file_id: bytes = b"",
    ) -> None:
        """Start a file, or continue one.

        Args:
            path: where the file will be; its folder must exist.
            schema: type by column name (ffrecord._tables.schema), or a schema of pyarrow, for
                `write_table`; None if records are plain bytes.
            compress: compress each record on its own, unless that saves less than 5 %.
            level: of the compression, 1 to 19.
            align: of each record in the file, in bytes: 1, or 512 or 4096 for direct reads.
            replace: replace a file of that name.
            append: add to the file of that name, with the compression that it began with.
            metadata: values to store in the file, by name, 16 MiB in all; `Reader.metadata`
                returns them. In an append they replace those of the file; None keeps them.
            dictionary: for compressing many small, similar records: a dictionary in zstd's format,
                or the size in bytes, 1,024 to 16 MiB, of one to train on the first records.
            key: the column, utf8 or bytes, whose value identifies a record for `Reader.find`; True
                if `write` is given keys. An empty value is refused; a record whose value is null
                has no key. The file remembers it: an append needs no `key`.
            copy_columns: columns to store a second time, so that `Reader.column` need not read the
                records: of fixed width, at most 64 bytes each. None: the scalars, if there is
                also a column of utf8 or bytes.
            file_id: 16 bytes that tell the file from every other; random by default. For files
                that must be the same whenever they are made: a hash of all that decides them.

        Raises:
            ValueError: an option or the schema is invalid, or differs from the existing file.
            ConflictError: the file exists and `replace` is False, or another writer adds to it.
            OSError: the folder is missing or cannot be written.
        """
        if compress not in (None, "zstd"):
            raise ValueError(f"compress is {compress!r}; it can be 'zstd' or None")
        self.path = os.fspath(path)
        # A table is written by many calls; no other thread writes between them.
        self._lock = threading.RLock()
        self._takes_empty_keys = False
        self._encoder: Encoder | None = None
        if is_arrow_schema(schema):
            self._encoder = Encoder(schema)
        elif isinstance(schema, Encoder):  # From `ffrecord.write_table`.
            self._encoder = schema
        self._metadata: dict[str, bytes] = dict(metadata or {})
        self._holding: frozenset[str] | None = frozenset()
        self._marks: tuple[tuple[int, str], ...] = ()
        self._summary: WriteSummary | None = None
        if append:
            if replace or align != 1:
                raise ValueError("append keeps the file and its alignment: no replace, no align")
            if dictionary is not None or copy_columns is not None or file_id:
                raise ValueError("append keeps the file's dictionary, column copies and id")
            self._inner = _ffrecord.RecordWriter.append(
                os.fsencode(path),
                compress=True if compress else None,
                level=level,
                metadata=None if metadata is None else dict(metadata),
            )
            try:
                self._continue(schema, metadata, key)
            except BaseException:
                self._inner.discard()
                raise
            return
        if self._encoder is not None:
            metadata = {**self._metadata, **self._encoder.metadata, **nulls_in(())}
            self._metadata = metadata
        own_schema = parse(schema if self._encoder is None else self._encoder.schema)
        self._columns = columns_of(own_schema)
        self._key_column = _key_column(self._columns, key)
        train = dictionary if isinstance(dictionary, int) else 0
        self._inner = _ffrecord.RecordWriter.create(
            os.fsencode(path),
            own_schema,
            compress=compress is not None,
            level=level,
            align=align,
            replace=replace,
            metadata=dict(metadata or {}),
            dictionary=None if isinstance(dictionary, int) else dictionary,
            train_dictionary_bytes=train,
            keys=key is not None,
            key_column=key if isinstance(key, str) else "",
            copied_columns=self._copied(copy_columns),
            file_id=file_id,
        )

    def _continue(
        self,
        schema: "Mapping[str, str] | pa.Schema | None",
        metadata: Mapping[str, bytes] | None,
        key: str | Literal[True] | None,
    ) -> None:
        """Learn what the file tells of its columns; a later append begins after this one has ended.

        A file that was begun with a table goes on with rows of it, also if no schema is given.
        """
        with Reader(self.path) as reader:
            found = reader.metadata()
        self._columns = columns_of(self._inner.schema)
        told = {name: value for name, value in found.items() if name in (KEY, NULLS)}
        if self._encoder is not None or (schema is None and KEY in told):
            known = schema_of((told[KEY],)) if KEY in told else None
            wanted: Any = known if self._encoder is None else self._encoder.arrow
            if known is None or wanted.types != known.types:
                raise ValueError(
                    f"append to {self.path}: it was not written from a table of these types"
                )
            self._encoder = Encoder(wanted, columns=self._columns)
        elif schema is not None and columns_of(parse(schema)) != self._columns:
            raise ValueError(f"append to {self.path}: the schema differs; leave it out")
        self._holding = facts_of(told).holding
        if self._encoder is None and self._holding is not None:
            self._marks = tuple(_marks(self._columns))
        self._metadata = found
        if metadata is not None:
            self._metadata = {**metadata, **told}
            if told:  # A user cannot leave out the metadata of tables.
                self._inner.set_metadata(self._metadata)
        self._key_column = self._key_column_of_append(key)

    def _note_nulls(self, holding: set[str]) -> None:
        """Tell readers of nulls before the first record that has one can be committed."""
        if self._holding is not None and not holding <= self._holding:
            self._holding |= holding
            self._metadata = {**self._metadata, **nulls_in(self._holding)}
            self._inner.set_metadata(self._metadata)

    def _copied(self, names: Sequence[str] | None) -> list[str]:
        """The stored columns to copy: with those of the user, what says where they have values."""
        if names is None:
            return _scalars(self._columns)
        stored = {column.name for column in self._columns}
        return [
            each
            for name in names
            for each in (f"{name}{_VALID}", name)
            if each in stored or each == name
        ]

    def write(
        self, sample: BytesLike | Mapping[str, Any], *, key: str | bytes | None = None
    ) -> None:
        """Add one record: a dict with a value for each column, or bytes if there is no schema.

        Bytes are any object with a buffer, such as an array of any type: all its `nbytes` in C
        order; a strided array is copied. `key`, of at most 65,535 bytes, identifies the record for
        `Reader.find`; leave it out if the key of the file is a column.

        Raises:
            ValueError: a column is missing, unknown, of another shape or out of its type's range.
            TypeError: a value has another type than its column.
            OSError: the disk fails; the writer is then unusable, except for `discard`.
        """
        try:
            fields = self._fields_of(sample) if self._columns else None
            record = self._record_of(sample) if fields is None else b""
            own_key = b""
            if self._key_column is not None and fields is not None:
                own_key = self._key_in(fields)
            if key is not None:
                own_key = self._given_key(key)
        except (ValueError, TypeError) as error:
            raise in_row(self._inner.record_count, error) from None
        with self._lock:
            if self._encoder is not None:
                self._note_nulls(self._encoder.holding)
            elif fields is not None and self._marks:
                lacking = (name for at, name in self._marks if b"\0" in as_bytes(fields[at]))
                self._note_nulls(set(lacking))
            if fields is None:
                self._inner.write(record, own_key)
            else:
                self._inner.write_fields(fields, own_key)

    def _allow_empty_keys(self) -> None:
        """Take records of other files as they are: an empty key was no key in earlier versions."""
        self._takes_empty_keys = True

    def write_table(self, table: Any) -> None:  # noqa: ANN401 - pyarrow has no types
        """Add a record for each row of a table; the file must have been begun with its schema.

        All rows are written, or none: if the call fails, the writer is as before it, also when a
        stream fails in its middle. An append therefore commits before or after a table, never
        within it. Numbers are not copied before they are written. If the file has a key column, its
        values are the keys.

        Args:
            table: a pyarrow Table, RecordBatch or RecordBatchReader, or what pyarrow makes one of
                without a copy: what has `__arrow_c_stream__`, such as a DataFrame of polars.

        Raises:
            ValueError: the table has another schema, or a null in a column that may have none.
            TypeError: it is no table, or the writer was not made with a schema of pyarrow.
            OSError: the disk fails; the writer is then unusable, except for `discard`.
        """
        if self._encoder is None:
            raise TypeError("for tables, give their schema: Writer(path, table.schema)")
        done = 0
        with self._all_or_nothing():
            for rows in self._encoder.rows(as_table(table)):
                self._write_rows(rows, self._encoder.holding, done, 0, len(rows[0]))
                done += len(rows[0])

    def _write_rows(
        self, rows: tuple[Rows, ...], holding: set[str], first: int, begin: int, end: int
    ) -> None:
        """Write the rows [begin, end) of those that an encoder made.

        `holding` is what has nulls in them, and `first` the number of the first, for errors.
        """
        with self._lock:
            self._check_keys(rows, first, begin, end)
            self._note_nulls(holding)
            columns = [(each.data, each.bounds) for each in rows]
            self._inner.write_rows(columns, begin, end, self._key_column)

    def _write_file_rows(self, rows: FileRows, first: int, begin: int, end: int) -> int | None:
        """Write the rows [begin, end) of those that are in files.

        `first` is the number of the first, for errors. Returns the first row with a file that is
        not as it was listed, if there is one: those before it are written.
        """
        with self._lock:
            self._check_keys(rows.columns, first, begin, end)
            values = [
                (each.data, each.bounds) if isinstance(each, Rows) else tuple(each)
                for each in rows.columns
            ]
            return self._inner.write_file_rows(values, rows.files, begin, end, self._key_column)

    def _check_keys(
        self, rows: Sequence[Rows | FileRanges], first: int, begin: int, end: int
    ) -> None:
        """Refuse keys that are empty, and not null."""
        if self._key_column is None or self._takes_empty_keys:
            return
        wrong = rows[self._key_column].sizes == 0
        if self._key_known is not None and wrong.any():
            known = rows[self._key_known]
            assert isinstance(known, Rows)
            wrong &= np.frombuffer(known.data, np.bool_)
        if (found := np.flatnonzero(wrong[begin:end])).size:
            raise in_row(first + begin + int(found[0]), self._empty_key())

    def commit(self) -> None:
        """In an append: make all records so far durable, and visible to readers that open the file.

        Raises:
            ValueError: the file is new; it becomes visible when it is closed.
            ConflictError: another program deleted, renamed or replaced the file, or wrote over it:
                the records since the last commit are not in the file of that name.
            OSError: the disk fails; the file stays at its last commit.
        """
        with self._lock:
            self._inner.commit()

    def close(self) -> WriteSummary:
        """Write the index, sync to the disk and publish the file. Idempotent.

        Raises:
            OSError: the disk fails; an earlier file of that name is untouched.
            ConflictError: a file of that name has appeared in the meantime; in an append, as
                `commit`.
        """
        with self._lock:
            if self._summary is None:
                summary = self._inner.close()
                fingerprint = summary["fingerprint"].hex()
                self._summary = WriteSummary(**{**summary, "fingerprint": fingerprint})
            return self._summary

    def discard(self) -> None:
        """Remove everything that was written since the last commit. Does nothing after `close`."""
        self._inner.discard()

    def _abandon(self) -> None:
        self.discard()

    def _key_column_of_append(self, key: str | Literal[True] | None) -> int | None:
        """The key column that the file remembers, which `key` may only repeat."""
        known = self._inner.key_column
        if not self._inner.has_keys:
            if key is not None:
                raise ValueError(f"append to {self.path}: it was begun without keys; leave key out")
            return None
        if known is not None:
            if key is not None and key != (known or True):
                began = f"the column '{known}'" if known else "keys that `write` is given"
                raise ValueError(
                    f"append to {self.path}: key is {key!r}, and it was begun with {began}; "
                    "leave key out"
                )
            return _key_column(self._columns, known or True)
        if key is None and any(column.dtype is None for column in self._columns):
            raise ValueError(
                f"append to {self.path}: it has keys, and was begun by a library that did not "
                "store which column they are in: give key= as it was given then, the column's "
                "name, or True for keys that `write` is given"
            )
        return _key_column(self._columns, key)

    @contextlib.contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Take back the records that were written in the block if it raises."""
        with self._lock:
            self._inner.begin_group()
            try:
                yield
            except BaseException:
                # A writer that cannot take them back, or that was discarded, publishes nothing.
                with contextlib.suppress(OSError, ValueError):
                    self._inner.undo_group()
                raise
            self._inner.end_group()

    def __repr__(self) -> str:
        return f"ffrecord.Writer({self.path!r})"

    @cached_property
    def _converters(self) -> tuple[tuple[str, Converter], ...]:
        return tuple((column.name, converter(column)) for column in self._columns)

    def _record_of(self, sample: BytesLike | Mapping[str, Any]) -> BytesLike:
        if isinstance(sample, Mapping):
            raise TypeError("a dict needs a schema: Writer(path, schema={'name': 'type'})")
        return as_buffer(sample)

    def _fields_of(self, sample: BytesLike | Mapping[str, Any]) -> Sequence[BytesLike]:
        """The values of all columns."""
        if not isinstance(sample, Mapping):
            raise TypeError(f"a record of this file is a dict, not {type(sample).__name__}")
        if self._encoder is not None:
            return list(self._encoder.row(sample))
        if len(sample) != len(self._converters):
            self._refuse_columns(sample)
        try:
            return [make(sample[name]) for name, make in self._converters]
        except KeyError:
            if all(name in sample for name, _ in self._converters):
                raise  # The error names a value.
            self._refuse_columns(sample)

    def _given_key(self, key: str | bytes) -> bytes:
        if self._key_column is not None:
            raise ValueError(f"the key is the column '{self._columns[self._key_column].name}'")
        return key_of(key)

    def _key_in(self, fields: Sequence[BytesLike]) -> bytes:
        """The value of the key column; none where it is null, which is stored as an empty one."""
        number = self._key_column
        key = b"" if number is None else as_bytes(fields[number])
        if key or number is None or self._takes_empty_keys:
            return key
        known = self._key_known
        if known is not None and not any(as_bytes(fields[known])):
            return key
        raise self._empty_key()

    def _empty_key(self) -> ValueError:
        assert self._key_column is not None
        return ValueError(
            f"column '{self._columns[self._key_column].name}': the value is empty, and the column "
            "is the key, which has at least one byte; a record without a key has null there, in a "
            "column that may have nulls"
        )

    @cached_property
    def _key_known(self) -> int | None:
        """The stored column that says where the key column has values, if it may have nulls."""
        if self._key_column is None:
            return None
        wanted = f"{self._columns[self._key_column].name}{_VALID}"
        names = [column.name for column in self._columns]
        return names.index(wanted) if wanted in names else None

    def _refuse_columns(self, sample: Mapping[str, Any]) -> NoReturn:
        names = [column.name for column in self._columns]
        raise ValueError(
            f"a record has the columns {', '.join(names)}; "
            f"missing: {', '.join(n for n in names if n not in sample) or 'none'}; "
            f"unknown: {', '.join(str(n) for n in sample if n not in names) or 'none'}"
        )


def _key_column(columns: tuple[Column, ...], key: str | Literal[True] | None) -> int | None:
    if key is None or key is True:
        return None
    for number, column in enumerate(columns):
        if column.name == key and column.dtype is None:
            return number
    raise ValueError(f"key is '{key}'; it must be a column of utf8 or bytes, or True")


def _marks(columns: tuple[Column, ...]) -> Iterator[tuple[int, str]]:
    """The stored columns that say where there are values, and of which column, by number."""
    for number, column in enumerate(columns):
        if column.name.endswith(_VALID):
            yield number, column.name.removesuffix(_VALID)


def _scalars(columns: tuple[Column, ...]) -> list[str]:
    """The number columns of records that also hold other data: used to filter and sample by."""
    if all(column.dtype is not None for column in columns):
        return []
    scalars = [column.name for column in columns if column.dtype is not None and not column.shape]
    return scalars[:_COPIED_SCALARS_MAX]
