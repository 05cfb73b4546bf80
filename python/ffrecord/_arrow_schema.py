"""What the metadata of a file tell of its tables: Arrow's types, as in Parquet, and nulls."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ffrecord.errors import CorruptionError

KEY = "ARROW:schema"
"""The name of the metadata: a schema as a message of Arrow's IPC format."""
NULLS = "ffrecord.nulls"
"""The name of the metadata: a list in JSON of what holds nulls, `x`, `x[]` or `x{f}`."""


class Facts(NamedTuple):
    """What the metadata of one file say."""

    schema: bytes | None = None
    """Arrow's; None if it was not written from tables."""
    holding: frozenset[str] | None = None
    """What holds nulls; None if that is not known."""
    trouble: str | None = None
    """Why nothing is known, if the metadata are damaged."""

    @property
    def schemas(self) -> tuple[bytes, ...]:
        """The schema, if there is one."""
        return () if self.schema is None else (self.schema,)


def facts_of(metadata: Mapping[str, bytes]) -> Facts:
    """What these metadata say."""
    return Facts(metadata.get(KEY), _holding(metadata.get(NULLS)))


def nulls_in(holding: Iterable[str]) -> dict[str, bytes]:
    """The metadata that say what holds nulls."""
    import json  # Slow to import, and many programs have no tables.

    return {NULLS: json.dumps(sorted(holding)).encode()}


def joined_nulls(each: Sequence[Mapping[str, bytes]]) -> dict[str, bytes]:
    """Those of the records of several files, from the metadata of each."""
    found = [_holding(metadata.get(NULLS)) for metadata in each]
    known = [holding for holding in found if holding is not None]
    return nulls_in(frozenset().union(*known)) if known and len(known) == len(found) else {}


def without_nulls(metadata: Mapping[str, bytes]) -> dict[str, bytes]:
    """The metadata without what differs between files of the same columns."""
    return {name: value for name, value in metadata.items() if name != NULLS}


def with_fields(metadata: Mapping[str, bytes], names: Sequence[str]) -> dict[str, bytes]:
    """The metadata of records of which only these columns are kept."""
    if KEY not in metadata:
        return dict(metadata)
    from ffrecord._arrow_reading import schema_of
    from ffrecord._formats import pyarrow

    schema = schema_of((metadata[KEY],))
    kept = [schema.field(name) for name in names if name in schema.names]
    made = pyarrow().schema(kept, metadata=schema.metadata)
    return {**metadata, KEY: made.serialize().to_pybytes()}


def _holding(text: bytes | None) -> frozenset[str] | None:
    if text is None:
        return None
    import json

    try:
        names = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return None
    return frozenset(names)


def check_together(
    one: tuple[bytes, ...],
    other: tuple[bytes, ...],
    one_name: str,
    other_name: str,
) -> None:
    """Check that values of two schemas of Arrow mean the same.

    Args:
        one: a schema; none if the columns are not those of a table.
        other: another one.
        one_name: where it is from, for errors.
        other_name: where the other is from.

    Raises:
        ValueError: a column has another unit, scale, time zone or type.
        ImportError: pyarrow, which knows the types, is not installed.
    """
    from ffrecord._arrow_types import is_itself, meaning_of  # Few programs need it.

    types = [_types_in(schemas) for schemas in (one, other)]
    for name in dict.fromkeys([*types[0], *types[1]]):
        found = [each.get(name) for each in types]
        known = [each for each in found if each is not None]
        meanings = {meaning_of(each) for each in known}
        # A number that a file without types has is that number.
        if len(meanings) == 1 and (len(known) == 2 or is_itself(known[0])):
            continue
        shown = ["without a type of Arrow" if each is None else str(each) for each in found]
        raise ValueError(
            f"column '{name}' is {shown[0]} in {one_name}, and {shown[1]} in {other_name}: the "
            "same stored values mean others there. Open them one by one, or write one of them "
            "again with table.cast"
        )


def _types_in(schemas: tuple[bytes, ...]) -> dict[str, Any]:
    from ffrecord._arrow_reading import schema_of

    if not schemas:
        return {}
    try:
        schema = schema_of(schemas[:1])
    except CorruptionError:
        return {}  # Whoever asks for types is told.
    return {field.name: field.type for field in schema}
