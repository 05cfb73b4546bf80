"""Tables for a user's function, and the columns that it returns unchanged."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ffrecord._tables.arrow_types import is_bf16
from ffrecord._tables.arrow_values import maker
from ffrecord._tables.formats import pyarrow
from ffrecord.pack._mapping import without_masks
from ffrecord.pack._source import Keyed, Lacking


def rows_of_table(table: Any, where: str) -> Iterator[dict[str, Any]]:  # noqa: ANN401
    """The rows of a table of pyarrow as dicts of Python's values.

    Raises:
        ValueError: Python has no such value; names the column.
    """
    columns = []
    for name in table.column_names:
        try:
            check_times(table.column(name))
            columns.append(table.column(name).to_pylist())
        except (ValueError, OverflowError) as error:
            raise ValueError(
                f"{where}: the column '{name}' is {table.schema.field(name).type}, and has values "
                f"that Python's types have not ({error}): --cast {name}=TYPE stores it as another "
                "type, such as utf8 or i64, --drop leaves it out"
            ) from None
    for row in zip(*columns, strict=True):
        yield dict(zip(table.column_names, row, strict=True))


def check_times(array: Any) -> None:  # noqa: ANN401 - pyarrow has no types
    """Check that Python's times hold those in an array, or at any depth in it.

    Where pandas is installed, pyarrow leaves out nanoseconds of times without a word.

    Raises:
        ValueError: one has nanoseconds.
    """
    pa = pyarrow()
    types = pa.types
    if isinstance(array, pa.ChunkedArray):
        for chunk in array.chunks:
            check_times(chunk)
    elif isinstance(array, pa.ExtensionArray):
        check_times(array.storage)
    elif types.is_dictionary(array.type):
        check_times(array.dictionary)
    elif types.is_struct(array.type):
        for number in range(array.type.num_fields):
            check_times(array.field(number))
    elif types.is_map(array.type):
        check_times(array.keys)
        check_times(array.items)
    elif types.is_nested(array.type):
        check_times(array.flatten())
    elif types.is_time64(array.type) and array.type.unit == "ns":
        numbers = array.drop_null().cast(pa.int64()).to_numpy()
        if (numbers % 1000).any():
            raise ValueError("a time has nanoseconds")


class Passed:
    """The columns that a function has returned in each row as they were in its sample."""

    def __init__(self) -> None:
        """Before the first sample."""
        self._names: list[str] | None = None

    def look(self, sample: Any, rows: Sequence[Mapping[str, Any]]) -> None:  # noqa: ANN401
        """Look at what became of a sample."""
        for row in rows:
            names = list(row) if self._names is None else self._names
            known = sample.sample if isinstance(sample, Keyed | Lacking) else sample
            known = without_masks(known) if isinstance(known, Mapping) else {}
            self._names = [
                name
                for name in names
                if name in known and name in row and is_same(row[name], known[name])
            ]

    @property
    def names(self) -> tuple[str, ...]:
        """The columns, if a row was seen."""
        return tuple(self._names or ())


def kept_fields(names: Sequence[str], schema: Any) -> dict[str, Any]:  # noqa: ANN401
    """The fields of these columns in a schema of pyarrow, if there is one."""
    return {} if schema is None else {n: schema.field(n) for n in names if n in schema.names}


def takes(field: Any, values: Sequence[Any]) -> bool:  # noqa: ANN401 - pyarrow has no types
    """Whether a column of that field holds the values."""
    pa = pyarrow()
    try:
        maker(field.type, is_bf16(field))(list(values), f"column '{field.name}'")
    except (ValueError, TypeError, pa.ArrowException):
        return False
    return True


def is_same(one: Any, other: Any) -> bool:  # noqa: ANN401 - whatever a function returns
    """Whether two values are of one type and equal; not a number equals not a number."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ma.MaskedArray):
        masks = np.ma.getmaskarray(one), np.ma.getmaskarray(other)
        return is_same(*masks) and is_same(one.filled(0), other.filled(0))
    if isinstance(one, np.ndarray | np.generic):
        is_alike = one.dtype == other.dtype and one.shape == other.shape
        return bool(is_alike and not one.dtype.hasobject and one.tobytes() == other.tobytes())
    if isinstance(one, float) and math.isnan(one):
        return math.isnan(other)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, Mapping):
        pairs = zip(one.items(), other.items(), strict=False)
        return len(one) == len(other) and all(
            mine[0] == its[0] and is_same(mine[1], its[1]) for mine, its in pairs
        )
    try:
        return bool(one == other)
    except (ValueError, TypeError, RuntimeError):  # Such as tensors.
        return False
