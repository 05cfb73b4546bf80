"""Tables of pyarrow to record files, and back."""

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ffrecord._read.batch import Batch
from ffrecord._read.locations import Where
from ffrecord._read.reader import Reader
from ffrecord._tables.arrow_reading import TooManyError
from ffrecord._tables.arrow_writing import Encoder, as_table
from ffrecord._tables.formats import pyarrow
from ffrecord._tables.schema import names_of
from ffrecord._write.writer import Writer, WriteSummary

if TYPE_CHECKING:
    import pyarrow as pa


def write_table(
    table: Any,  # noqa: ANN401 - pyarrow has no types
    path: str | os.PathLike[str],
    **options: Any,  # noqa: ANN401 - those of Writer
) -> WriteSummary:
    """Write a table as a record file, one record for each row; `read_table` gives it back.

    Files of one schema belong together, whichever nulls each of them happens to have. A column that
    may have nulls, and has none in the files that are read, is read like one that can have none.

    Args:
        table: a pyarrow Table, RecordBatch or RecordBatchReader, or what pyarrow makes one of
            without a copy: what has `__arrow_c_stream__`, such as a DataFrame of polars.
        path: of the file, whose folder must exist.
        options: of `ffrecord.Writer`, such as `compress="zstd"`, `key=` or `append=True`.

    Raises:
        ValueError: records cannot hold a column, or it is not valid (offsets out of its buffers,
            text that is not UTF-8); its name is in the message, and there is no file.
        TypeError: it is no table.
        ImportError: pyarrow is not installed.
        OSError, ConflictError: as `Writer`.
    """
    data = as_table(table)
    is_known = not isinstance(data, pyarrow().RecordBatchReader)
    encoder: Any = data.schema
    if not options.get("append"):
        encoder = Encoder(data.schema, data if is_known else None)
    with Writer(path, encoder, **options) as writer:
        writer.write_table(data)
        return writer.close()


def read_table(
    where: Where,
    *,
    columns: Iterable[str] | None = None,
    **options: Any,  # noqa: ANN401 - those of open
) -> "pa.Table":
    """Read all records as one table; for some of them, `Reader.read(indices).to_arrow()`.

    Args:
        where: as for `ffrecord.open`.
        columns: the columns to return; all by default.
        options: of `ffrecord.open`.

    Raises:
        CorruptionError: a record, or the schema of Arrow, is damaged.
        KeyError: there is no such column.
        TypeError: `columns` is a text.
        ImportError: pyarrow is not installed.
        OSError: a file is missing or cannot be read.
    """
    names = names_of(columns)
    with Reader(where, **options) as reader:
        batches = reader.batches() if len(reader) else [reader.read([])]
        seen = (batch if names is None else batch.only(names) for batch in batches)
        return pyarrow().concat_tables([table for batch in seen for table in _tables_of(batch)])


def _tables_of(batch: Batch) -> list[Any]:
    """The batch as a table, or as several where a type of Arrow cannot count all its values."""
    try:
        return [batch.to_arrow()]
    except TooManyError:
        if len(batch) < 2:
            raise
    half = len(batch) // 2
    return _tables_of(batch[:half]) + _tables_of(batch[half:])
