"""Rows of a Python program: an iterable of them, or a function that returns one."""

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any

from ffrecord.pack._inference import schema_of_rows
from ffrecord.pack._source import Progressed, Source

# Rows from which the columns are inferred.
_LOOK_ROWS = 64

Rows = Iterable[Any] | Callable[[], Iterable[Any]]


class RowsSource(Source):
    """Dicts, which are records with columns, or bytes, which are records without."""

    def __init__(self, rows: Rows, schema: Any = None) -> None:  # noqa: ANN401 - see `pack`
        """Look at the first rows, which decide the columns unless `schema` says them.

        Raises:
            TypeError: they are neither dicts nor bytes.
            ValueError: there are none, or the columns do not follow from them.
        """
        self._shown = getattr(rows, "__qualname__", type(rows).__name__)
        made: Any = rows() if callable(rows) else rows
        try:
            found = iter(made)
        except TypeError:
            raise TypeError(
                f"{self!r} is {type(made).__name__}, not an iterable of dicts or bytes"
            ) from None
        some = enumerate(islice(found, _LOOK_ROWS))
        first = [own_copy(self._checked(row, number)) for number, row in some]
        if not first:
            raise ValueError(f"{self!r} has no rows: there is nothing to pack")
        self.skipped = Counter()
        self.schema = self._schema_of(first) if schema is None else schema
        self._rows = chain(first, found)

    def samples(self) -> Iterator[Progressed]:
        """Yield the rows."""
        for number, row in enumerate(self._rows):
            yield self._checked(row, number), 0

    def _checked(self, row: Any, number: int) -> Any:  # noqa: ANN401
        if isinstance(row, Mapping | bytes | bytearray | memoryview):
            return row if isinstance(row, Mapping) else bytes(row)
        raise TypeError(f"{self!r}: row {number} is {type(row).__name__}, not a dict or bytes")

    def _schema_of(self, rows: list[Any]) -> Any:  # noqa: ANN401
        kinds = {isinstance(row, Mapping) for row in rows}
        if len(kinds) > 1:
            raise ValueError(f"{self!r} has dicts and bytes: give one of them")
        return schema_of_rows(rows, repr(self)) if kinds == {True} else {}

    def __repr__(self) -> str:
        """The name in errors."""
        return f"the iterable '{self._shown}'"


def own_copy(sample: Any) -> Any:  # noqa: ANN401 - of any source
    """A sample that stays as it is when the program that made it uses its object again."""
    if not isinstance(sample, Mapping):
        return sample
    return {name: _copied(value) for name, value in sample.items()}


def _copied(value: Any) -> Any:  # noqa: ANN401 - of any column
    if isinstance(value, memoryview):
        return bytes(value)
    try:
        return copy.deepcopy(value)
    except Exception:  # Errors of any kind: an object that cannot be copied is packed as it is.
        return value
