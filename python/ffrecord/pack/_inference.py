"""The columns of rows that a user's function makes, from the first of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ffrecord._tables.arrow_types import FIXED, is_bf16
from ffrecord._tables.nested import layout_of
from ffrecord._tables.schema import DTYPES, columns_of, parse
from ffrecord.pack._passed import takes

_SPELLINGS = {np.dtype(code): name for name, code in DTYPES.items() if name != "bf16"}


def schema_of_rows(
    rows: Sequence[Mapping[str, Any]],
    what: str,
    fields: Mapping[str, Any] | None = None,
) -> Any:  # noqa: ANN401
    """A schema that takes these rows: a dict of types, or where that does not do pyarrow's.

    Columns with a field of pyarrow keep it, if it holds their values.

    Raises:
        ValueError: rows differ in their columns, or a column has values of several kinds; names the
            column and the remedy.
        ImportError: a column needs a type of Arrow, and pyarrow is not installed.
    """
    names = list(rows[0])
    if strange := [name for row in rows for name in row if not isinstance(name, str)]:
        raise ValueError(
            f"{what} returns a row with the column {strange[0]!r}, whose name is no text"
        )
    for row in rows:
        if set(row) != set(names):
            raise ValueError(
                f"{what} returns rows with the columns {', '.join(sorted(names))} and rows with "
                f"{', '.join(sorted(row))}: give each row all columns, None where there is nothing"
            )
    columns = {name: [row[name] for row in rows] for name in names}
    plain = {name: _plain_type(values) for name, values in columns.items()}
    kept = {
        name: field
        for name, field in (fields or {}).items()
        if name in columns and _tells_more(field, plain[name]) and takes(field, columns[name])
    }
    if all(plain.values()) and not kept:
        return plain
    return _arrow_schema(columns, what, kept)


def _tells_more(field: Any, plain: str) -> bool:  # noqa: ANN401 - pyarrow has no types
    """Whether a field says more than the type of a plain schema does."""
    known = {**FIXED, "string": "utf8", "large_binary": "bytes"}
    return bool(field.nullable or is_bf16(field) or known.get(str(field.type)) != plain)


def check_names(schema: Mapping[str, str], what: str) -> None:
    """Check that no column of a plain schema would be read as a part of another one.

    Raises:
        ValueError: one would be, by its name.
    """
    layout = layout_of(columns_of(parse(schema)))
    if layout is not None and layout.nested:
        name, whole = next(n for n in schema if n not in layout.names), next(iter(layout.nested))
        raise ValueError(
            f"{what}: a column called '{name}' would be read as a part of '{whole}', as names with "
            "[]{}: may be: rename it"
        )


def _plain_type(values: Sequence[Any]) -> str:
    """The type of a column that a plain schema has; empty if there is none."""
    kinds = {type(value) for value in values}
    if kinds == {str}:
        return "utf8"
    if kinds <= {bytes, bytearray, memoryview}:
        return "bytes"
    if kinds == {bool}:
        return "bool"
    if kinds == {int}:
        if min(values) >= 0 and 1 << 63 <= max(values) < 1 << 64:
            return "u64"
        return "i64" if all(-(1 << 63) <= value < 1 << 63 for value in values) else ""
    if kinds <= {int, float}:
        return "f64"
    if all(isinstance(value, np.ndarray | np.generic) for value in values):
        forms = {(value.dtype.newbyteorder("="), value.shape) for value in values}
        dtype, shape = next(iter(forms))
        name = _SPELLINGS.get(dtype, "")
        if len(forms) == 1 and name and 0 not in shape:
            return f"{name}[{','.join(map(str, shape))}]" if shape else name
    return ""


def _arrow_schema(columns: Mapping[str, Sequence[Any]], what: str, kept: Mapping[str, Any]) -> Any:  # noqa: ANN401
    from ffrecord._tables.formats import pyarrow

    pa = pyarrow()
    fields = []
    for name, values in columns.items():
        if name in kept:
            fields.append(kept[name])
            continue
        plain = _plain_type(values)
        try:
            kind = _arrow_type(pa, values, plain)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise ValueError(
                f"{what} returns values of several kinds in the column '{name}' ({error}): return "
                "one kind, or say the columns with an attribute `schema` of the function, or with "
                "schema="
            ) from None
        if pa.types.is_null(kind):
            raise ValueError(
                f"{what} returns None in the column '{name}' of all of the first {len(values)} "
                "rows, so its type is not known: say the columns with an attribute `schema` of the "
                "function, or with schema="
            )
        fields.append(pa.field(name, kind, nullable=not plain))
    return pa.schema(fields)


def _arrow_type(pa: Any, values: Sequence[Any], plain: str) -> Any:  # noqa: ANN401
    first = values[0]
    if plain == "u64":
        return pa.uint64()
    if plain and isinstance(first, np.ndarray):
        return pa.fixed_shape_tensor(pa.from_numpy_dtype(first.dtype), first.shape)
    if plain and isinstance(first, np.generic):
        return pa.from_numpy_dtype(first.dtype)
    return pa.array([x.tolist() if isinstance(x, np.generic) else x for x in values]).type
