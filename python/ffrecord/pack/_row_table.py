"""The base of sources whose rows can be read from any row on: a source needs little beside it."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ffrecord.pack._cutting import Mark, parts_between
from ffrecord.pack._source import WHOLE, Part, stamp_of_files
from ffrecord.pack._table import ROWS_BYTES, ROWS_MAX, Tabular


class RowTable(Tabular):
    """Rows 0, 1, ... of an input, with types of Arrow.

    A source defines `arrow_schema`, which also sets `row_count`, and `size_bytes` if the input is
    more than one file; and `read`.
    """

    row_count = 0
    files: tuple[str, ...] = ()
    """The files of the input, if they are not the one at its path."""
    damage: tuple[type[Exception], ...] = ()
    """Exceptions by which the library that reads the input tells of damage."""

    @abstractmethod
    def read(self, names: list[str], begin: int, end: int) -> Any:  # noqa: ANN401 - pyarrow's
        """Return these columns of the rows from `begin` to before `end`, as a table or batch."""

    def cuts(self, size_bytes: int) -> list[Part]:
        """Return runs of rows of about this size."""
        total, count = max(self.size_bytes, 1), self.row_count
        step = max(1, -(-size_bytes * count // total))
        rows = (*range(0, count, step), count)
        return parts_between((Mark(row, total * row // max(count, 1), row) for row in rows), 1)

    def tables(
        self, names: list[str], part: Part, skipped: Counter[str]
    ) -> Iterator[tuple[Any, int]]:
        """Yield some rows at a time."""
        end = self.row_count if part.end == WHOLE else part.end
        count = max(end - part.begin, 1)
        step = self.rows_at_once()
        for begin in range(part.begin, end, step):
            stop = min(begin + step, end)
            yield self.read(names, begin, stop), part.size_bytes * (stop - part.begin) // count

    def rows_at_once(self) -> int:
        """How many rows are read at a time: some MiB of them."""
        row_bytes = self.size_bytes // max(self.row_count, 1)
        return max(1, min(ROWS_BYTES // max(row_bytes, 1), ROWS_MAX))

    def stamp(self) -> str:
        """Return a text that changes with the files of the input."""
        return stamp_of_files(self.files or (self.path,))

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Convert errors of pyarrow, and of the library that reads the input."""
        with super().reading():
            try:
                yield
            except self.damage as error:
                raise self.damaged(error) from error
