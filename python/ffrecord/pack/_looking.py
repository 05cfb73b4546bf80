"""The columns that a user's function returns: said, known from an interrupted run, or inferred."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from ffrecord._tables.arrow_writing import Encoder, is_arrow_schema
from ffrecord._tables.nested import stored
from ffrecord._tables.schema import parse
from ffrecord.pack._inference import schema_of_rows
from ffrecord.pack._inputs import Inputs
from ffrecord.pack._job import plan_of
from ffrecord.pack._mapping import Row, UserMap, rows_of
from ffrecord.pack._passed import Passed, kept_fields
from ffrecord.pack._plan import is_begun_alike, schema_from_json
from ffrecord.pack._rows import own_copy
from ffrecord.pack._seen import Seen
from ffrecord.pack._source import Facts, Progressed
from ffrecord.pack._table_schema import TableSchema, kinds_of
from ffrecord.pack._user_code import ClosedFilesError

# Rows from which the columns are inferred, and samples that the function is tried on.
_LOOK_ROWS, _LOOK_SAMPLES = 64, 1000


class Looked(NamedTuple):
    """The columns of a function's result, and how they were found."""

    columns: Any
    samples: Iterator[Progressed]
    """All of them, also those that were looked at."""
    passed: tuple[str, ...]
    """Columns that it returns as it gets them."""
    seen: Seen


def columns_before(
    destination: Path, inputs: Inputs, user_map: UserMap
) -> tuple[Any, dict[str, bytes]] | None:
    """Columns and metadata of the run that this one continues; None if there is none.

    The function's first calls found them then, for the same inputs, options and code.
    """
    if user_map.schema is not None or hasattr(user_map.function, "columns"):
        return None
    found = plan_of(destination)
    if found is None or not is_begun_alike(found, inputs, user_map):
        return None
    asked = found["asked"]
    metadata = {name: bytes.fromhex(value) for name, value in asked["metadata"].items()}
    return schema_from_json(asked["schema"]), metadata


def columns_of(
    user_map: UserMap,
    schema: Any,  # noqa: ANN401 - a mapping, or a schema of pyarrow
    samples: Iterator[Progressed],
    source: Facts,
) -> Looked:
    """Ask the function for its columns, or infer them from the first rows.

    Raises:
        ValueError: the columns that are said are none, or no sample gives a row.
    """
    known = user_map.schema if schema is None else schema
    if known is None:
        has_own = isinstance(source.schema, Mapping) and not source._names_are_stored
        fields = source.arrow_fields
        known = user_map.columns(source.schema if fields is None and has_own else fields)
    if known is not None:
        if isinstance(known, Mapping):
            parse(known)  # Else each sample would fail for it.
        return Looked(known, samples, (), Seen())
    return _inferred(user_map, samples, source)


def _inferred(user_map: UserMap, samples: Iterator[Progressed], source: Facts) -> Looked:
    passed = Passed()
    function = user_map.made()
    looked_at: list[Progressed] = []
    rows: list[Row] = []
    seen = Seen()
    error: Exception | None = None
    for number, item in enumerate(islice(samples, _LOOK_SAMPLES)):
        sample = own_copy(item[0])
        looked_at.append((sample, item[1]))
        try:
            made = rows_of(function, sample)
            if not user_map.makes_objects:  # Each object gets all samples of its process.
                seen.note(function, number, sample, made)
            passed.look(sample, made or [])
            rows += made or []
        except ClosedFilesError as closed:
            raise ValueError(f"{source.name}: sample {number}: {closed}") from closed
        except Exception as failed:  # It counts when the sample is packed.
            error = error or failed
        if len(rows) >= _LOOK_ROWS:
            break
    if not rows:
        why = f"failed: {type(error).__name__}: {error}" if error else "returned nothing"
        raise ValueError(
            f"{user_map.name} {why} for each of the first {len(looked_at)} samples, so its columns "
            "are not known: say them with an attribute `schema` of the function"
        ) from error
    fields = kept_fields(passed.names, source.arrow_fields)
    columns = _laid_out(schema_of_rows(rows, user_map.name, fields), passed.names, source)
    return Looked(columns, chain(looked_at, samples), passed.names, seen)


def _laid_out(columns: Any, passed: Sequence[str], source: Facts) -> Any:  # noqa: ANN401
    """The columns, where lists of a fixed size that are passed on are stored as in the source.

    Their items may be null in rows that nobody has looked at.
    """
    if not is_arrow_schema(columns):
        return columns
    own, kinds = kinds_of(source.schema), Encoder(columns).kinds
    for name in passed:
        if name in own and "fixed_size_list" in str(columns.field(name).type):
            kinds[name] = own[name]
    if kinds == Encoder(columns).kinds:
        return columns
    return TableSchema(columns, tuple(c for n, kind in kinds.items() for c in stored(n, kind)))
