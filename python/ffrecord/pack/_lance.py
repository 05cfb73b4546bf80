"""Lance datasets, read by lance: the rows of the newest version."""

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ffrecord.pack import _places
from ffrecord.pack._row_table import RowTable
from ffrecord.pack._source import WHOLE, Part, needed

_VERSIONS = "_versions"


def is_lance(path: str) -> bool:
    """Whether it is a folder with versions of a dataset."""
    return _places.is_dir(os.path.join(path, _VERSIONS))


class LanceSource(RowTable):
    """Columns as `write_table` stores those of the table that lance reads."""

    what = "Lance dataset"

    def arrow_schema(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        """The schema of the newest version."""
        _places.check_local(self.path, self.what)
        lance = needed("lance", "a Lance dataset", "pylance")
        self.damage = (OSError, RuntimeError, ValueError)
        self._dataset = lance.dataset(self.path)
        self.row_count = self._dataset.count_rows()
        folder = os.path.join(self.path, _VERSIONS)
        self.files = tuple(os.path.join(folder, name) for name in sorted(_places.names_in(folder)))
        self.size_bytes = sum(
            _places.size_of(os.path.join(parent, name))
            for parent, _, names in _places.walk(os.path.join(self.path, "data"))
            for name in names
        )
        return self._dataset.schema

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Convert lance's errors; some damage makes it panic, which is no Exception."""
        with super().reading():
            try:
                yield
            except BaseException as error:
                if type(error).__name__ != "PanicException":
                    raise
                raise self.damaged(RuntimeError(str(error))) from error

    def read(self, names: list[str], begin: int, end: int) -> Any:  # noqa: ANN401 - pyarrow's
        """Return some rows."""
        return self._dataset.to_table(columns=names, offset=begin, limit=end - begin)

    def tables(
        self, names: list[str], part: Part, skipped: Counter[str]
    ) -> Iterator[tuple[Any, int]]:
        """Yield the rows in one scan."""
        end = self.row_count if part.end == WHOLE else part.end
        count, done = end - part.begin, 0
        if not count:
            return
        scanner = self._dataset.scanner(
            columns=names,
            offset=part.begin,
            limit=count,
            batch_size=self.rows_at_once(),
            scan_in_order=True,
        )
        for batch in scanner.to_batches():
            done += len(batch)
            yield batch, part.size_bytes * done // count
        if done != count:
            raise self.damaged(ValueError(f"it has {done} of {count} rows"))
