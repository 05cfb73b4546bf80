"""Tables of pyarrow, and whatever shows its data as Arrow does."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from ffrecord._arrow_writing import Encoder, as_table
from ffrecord.pack._ahead import ahead
from ffrecord.pack._source import Progressed, Source


class TableSource(Source):
    """The rows of a table, one record each; readers give the types of its columns back.

    As `ffrecord.write_table` stores them, but in as many parts as `pack` makes.
    """

    def __init__(self, table: Any) -> None:  # noqa: ANN401 - pyarrow has no types
        """Prepare a pyarrow Table, RecordBatch or RecordBatchReader, or what has a stream of Arrow.

        Raises:
            ValueError: records cannot hold a column; its name is in the message.
            TypeError: it is no table.
            ImportError: pyarrow is not installed.
        """
        self._table = as_table(table)
        is_known = hasattr(self._table, "to_batches")
        self._encoder = Encoder(self._table.schema, self._table if is_known else None)
        self.schema = self._encoder.schema
        self.metadata = self._encoder.metadata
        self.size_bytes = int(self._table.nbytes) if is_known else 0
        self._count = len(self._table) if is_known else 0
        self.skipped = Counter()

    def samples(self) -> Iterator[Progressed]:
        """Yield the rows.

        Raises:
            ValueError: a stream has a null in a column that may have none.
        """
        yield from ahead(self._samples())

    def _samples(self) -> Iterator[Progressed]:
        for number, sample in enumerate(self._encoder.samples(self._table), start=1):
            yield sample, self.size_bytes * number // max(self._count, number)
