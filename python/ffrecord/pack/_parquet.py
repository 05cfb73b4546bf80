"""Parquet files, the format of Hugging Face's datasets; read by pyarrow."""

from collections import Counter
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from ffrecord.errors import CorruptionError
from ffrecord.pack import _places
from ffrecord.pack._cutting import Mark, parts_between
from ffrecord.pack._parquet_footer import Footer, footer_of
from ffrecord.pack._source import WHOLE, Part, needed
from ffrecord.pack._table import ROWS_BYTES, ROWS_MAX, Tabular

_MAGIC = b"PAR1"
_PIECE_BYTES = 1 << 20


def is_parquet(path: str) -> bool:
    """Recognised by its content."""
    if not _places.is_file(path):
        return False
    with _places.open_input(path) as file:
        return file.read(len(_MAGIC)) == _MAGIC


def _found(path: str, wanted: bytes) -> int:
    """Where these bytes are in a file; -1 if they are not."""
    done, rest = 0, b""
    with _places.open_input(path) as file:
        while piece := file.read(_PIECE_BYTES):
            data = rest + piece
            if (at := data.find(wanted)) >= 0:
                return done - len(rest) + at
            done, rest = done + len(piece), data[1 - len(wanted) :]
    return -1


class ParquetSource(Tabular):
    """Columns as `write_table` stores those of the table that pyarrow reads."""

    what = "Parquet file"
    _file: Any = None
    _footer = Footer(0, None)

    def arrow_schema(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        """The schema that pyarrow reads the file with."""
        parquet = needed("pyarrow.parquet", "a Parquet file")
        self._file = parquet.ParquetFile(
            _places.for_library(self.path), page_checksum_verification=True
        )
        self._footer = footer_of(self.path)
        self._check_is_one()
        return self._file.schema_arrow

    def _check_is_one(self) -> None:
        """For joined files, the last one's footer is taken for the first one's rows."""
        begin, chunks = self._footer
        end = max((chunk.end for chunk in chunks or ()), default=len(_MAGIC))
        if chunks is not None and end == begin:
            return
        # Behind the rows there may be more, such as an index.
        if (at := _found(self.path, _MAGIC + _MAGIC)) >= 0:
            raise CorruptionError(
                f"{self.path} has a Parquet file that ends at {at + len(_MAGIC)}, and another "
                "behind it: give each on its own"
            )

    def may_lack_items(self, name: str) -> bool:
        """Whether the statistics of the file tell of nulls, or tell nothing."""
        chunks = self._footer.chunks
        return chunks is None or any(
            chunk.null_count != 0
            for chunk in chunks
            if f"{chunk.path}.".startswith(f"{name}.")  # Names may have dots, too.
        )

    def cuts(self, size_bytes: int) -> list[Part]:
        """Return runs of row groups of about this size."""
        groups = self._groups()
        total = max(sum(group.total_byte_size for group in groups), 1)
        sizes = [self.size_bytes * group.total_byte_size // total for group in groups]
        behind = accumulate(sizes, initial=0)
        rows = accumulate((group.num_rows for group in groups), initial=0)
        return parts_between(map(Mark, range(len(groups) + 1), behind, rows), size_bytes)

    def tables(
        self, names: list[str], part: Part, skipped: Counter[str]
    ) -> Iterator[tuple[Any, int]]:
        """Yield so many rows at a time as have some MiB."""
        groups = self._groups()
        end = len(groups) if part.end == WHOLE else part.end
        groups = groups[part.begin : end]
        total, done = sum(group.num_rows for group in groups), 0
        wide = sum(group.total_byte_size for group in groups) // max(total, 1)
        rows = max(1, min(ROWS_BYTES // max(wide, 1), ROWS_MAX))
        wanted = range(part.begin, end)
        for group in wanted:
            # One at a time: pyarrow joins no dictionaries of several, where they are in lists.
            batches = self._file.iter_batches(batch_size=rows, columns=names, row_groups=[group])
            for batch in batches:
                done += len(batch)
                yield batch, part.size_bytes * done // max(total, done)
        if done != total:
            raise self._miscounted(done, total)

    def _groups(self) -> list[Any]:
        metadata = self._file.metadata
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        if (rows := sum(group.num_rows for group in groups)) != metadata.num_rows:
            raise self._miscounted(rows, metadata.num_rows)
        return groups

    def _miscounted(self, found: int, said: int) -> CorruptionError:
        return CorruptionError(f"{self.path} has {found} rows, and says that it has {said}")
