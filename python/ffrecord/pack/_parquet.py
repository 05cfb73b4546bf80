"""Parquet files, the format of Hugging Face's datasets; read by pyarrow."""

import os
from collections.abc import Iterator
from mmap import ACCESS_READ, mmap
from typing import Any

from ffrecord.errors import CorruptionError
from ffrecord.pack._source import needed
from ffrecord.pack._table import ROWS_BYTES, ROWS_MAX, Tabular

_MAGIC = b"PAR1"


def is_parquet(path: str) -> bool:
    """Recognised by its content."""
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


class ParquetSource(Tabular):
    """Columns as `write_table` stores those of the table that pyarrow reads."""

    what = "Parquet file"
    _file: Any = None

    def arrow_schema(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        """The schema that pyarrow reads the file with."""
        parquet = needed("pyarrow.parquet", "a Parquet file")
        self._file = parquet.ParquetFile(self.path, page_checksum_verification=True)
        self._check_is_one()
        return self._file.schema_arrow

    def _check_is_one(self) -> None:
        """Of joined files, the last one's footer is taken for the first one's rows."""
        metadata = self._file.metadata
        end = len(_MAGIC)
        for group in range(metadata.num_row_groups):
            for number in range(metadata.num_columns):
                column = metadata.row_group(group).column(number)
                begin = column.data_page_offset
                if column.has_dictionary_page and column.dictionary_page_offset:
                    begin = min(begin, column.dictionary_page_offset)
                end = max(end, begin + column.total_compressed_size)
        # Behind the rows there may be more, such as an index.
        if end + metadata.serialized_size + 4 + len(_MAGIC) == self.size_bytes:
            return
        with open(self.path, "rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as mapped:
            if (at := mapped.find(_MAGIC + _MAGIC)) >= 0:
                raise CorruptionError(
                    f"{self.path} has a Parquet file that ends at {at + len(_MAGIC)}, and another "
                    "behind it: give each on its own"
                )

    def may_lack_items(self, name: str) -> bool:
        """Whether the statistics of the file tell of nulls, or tell nothing."""
        metadata = self._file.metadata
        for group in range(metadata.num_row_groups):
            for number in range(metadata.num_columns):
                column = metadata.row_group(group).column(number)
                if not f"{column.path_in_schema}.".startswith(f"{name}."):
                    continue  # Of another column; names may have dots, too.
                found = column.statistics
                if found is None or not found.has_null_count or found.null_count:
                    return True
        return False

    def tables(self, names: list[str]) -> Iterator[tuple[Any, int]]:
        """Yield so many rows at a time as have some MiB."""
        metadata = self._file.metadata
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        wide = sum(group.total_byte_size for group in groups) // max(metadata.num_rows, 1)
        rows = max(1, min(ROWS_BYTES // max(wide, 1), ROWS_MAX))
        total, done = metadata.num_rows, 0
        for batch in self._file.iter_batches(batch_size=rows, columns=names):
            done += len(batch)
            yield batch, self.size_bytes * done // max(total, done)
        if done != total:
            raise CorruptionError(f"{self.path} has {done} rows, and says that it has {total}")
