"""ArrayRecord files, read by array_record: `tf.train.Example`, or records of any bytes."""

import os
from collections.abc import Iterator
from typing import Any

from ffrecord._tables.formats import pyarrow
from ffrecord.errors import CorruptionError
from ffrecord.pack import _places
from ffrecord.pack._example import parse_example
from ffrecord.pack._row_table import RowTable
from ffrecord.pack._source import WHOLE, Part, Source, SourceOptions, needed
from ffrecord.pack._tfrecord import TFRecordTable

_NAMES = (".array_record", ".arrayrecord")
_LOOK_RECORDS = 10


def is_array_record(path: str) -> bool:
    """By its name, such as a-train.array_record-00000-of-00002: its first bytes are a hash."""
    return _places.is_file(path) and any(mark in os.path.basename(path).lower() for mark in _NAMES)


def array_record_source(path: str, options: SourceOptions) -> Source:
    """Open it: as columns of features if its first records are Examples, else as bytes."""
    like = options.like
    if options.raw or isinstance(like, ArrayRecords):
        return ArrayRecords(path, options)
    if isinstance(like, ArrayRecordTable):
        return ArrayRecordTable(path, options)
    try:
        some = _File(path).read(0, _LOOK_RECORDS)
        is_table = bool(some) and all(parse_example(record) for record in some)
    except ValueError:
        is_table = False
    return ArrayRecordTable(path, options) if is_table else ArrayRecords(path, options)


class _File:
    """The records of a file."""

    def __init__(self, path: str) -> None:
        _places.check_local(path, "ArrayRecord")
        module = needed("array_record.python.array_record_module", "ArrayRecord", "array_record")
        self._path = path
        with _places.open_input(path):  # An error of the system says what is wrong.
            pass
        try:
            self._reader = module.ArrayRecordReader(path)
            self.count = int(self._reader.num_records())
        except (RuntimeError, ValueError) as error:
            raise self._damaged(error) from error
        if not self._reader.ok():
            raise self._damaged(RuntimeError("its end is not that of such a file"))

    def read(self, begin: int, end: int) -> list[bytes]:
        end = min(end, self.count)
        if begin >= end:
            return []
        try:
            found = [bytes(record) for record in self._reader.read(begin, end)]
        except (RuntimeError, ValueError, IndexError) as error:
            raise self._damaged(error) from error
        if len(found) != end - begin:
            raise self._damaged(RuntimeError(f"it has {len(found)} records of {end - begin}"))
        return found

    def _damaged(self, error: Exception) -> CorruptionError:
        said = str(error).partition("\n")[0]
        return CorruptionError(f"{self._path} is damaged, or no whole ArrayRecord file: {said}")


class _Records(RowTable):
    """Records that can be read from any number on."""

    what = "ArrayRecord file"

    def arrow_schema(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        """One column of bytes."""
        self.open_file()
        pa = pyarrow()
        return pa.schema([pa.field("payload", pa.binary(), nullable=False)])

    def open_file(self) -> None:
        """Count the records."""
        self._array = _File(self.path)
        self.row_count = self._array.count

    def read(self, names: list[str], begin: int, end: int) -> Any:  # noqa: ANN401 - pyarrow's
        """Return some rows."""
        return pyarrow().table([self._array.read(begin, end)], schema=self.found)

    def payloads(self, part: Part) -> Iterator[tuple[bytes, int]]:
        """Each record of a part, and how many bytes of the file are behind it, about."""
        end = self.row_count if part.end == WHOLE else part.end
        step = self.rows_at_once()
        count, done = max(end - part.begin, 1), 0
        for begin in range(part.begin, end, step):
            for record in self._array.read(begin, min(begin + step, end)):
                done += 1
                yield record, part.begin + part.size_bytes * done // count


class ArrayRecords(_Records):
    """The bytes of each record."""

    meant = ("columns", "drop", "cast", "raw")


class ArrayRecordTable(_Records, TFRecordTable):
    """A column for each feature of `tf.train.Example`, as of TFRecords."""

    what = "ArrayRecord file"
    meant = TFRecordTable.meant
    finds_types = True
    tables = TFRecordTable.tables

    def arrow_schema(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        """The types of the first records."""
        self.open_file()
        return TFRecordTable.arrow_schema(self)
