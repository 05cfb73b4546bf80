"""Metadata of a file about its columns: Arrow's types, nulls, and the contents of bytes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ffrecord.errors import CorruptionError

KEY = "ARROW:schema"
"""The name of the metadata: a schema as a message of Arrow's IPC format."""
NULLS = "ffrecord.nulls"
"""The name of the metadata: a list in JSON of what holds nulls, `x`, `x[]` or `x{f}`."""
TYPES = "ffrecord.types"
"""The name of the metadata: an object in JSON, by column what its bytes are: `list of i32`."""

Types = tuple[tuple[str, str], ...]


class Facts(NamedTuple):
    """The facts in the metadata of one file."""

    schema: bytes | None = None
    """Arrow's; None if it was not written from tables."""
    holding: frozenset[str] | None = None
    """The columns that hold nulls; None if that is not known."""
    trouble: str | None = None
    """Why nothing is known, if the metadata are damaged."""
    types: Types = ()
    """The types of columns of bytes, as far as the file says it."""

    @property
    def schemas(self) -> tuple[bytes, ...]:
        """The schema, if there is one."""
        return () if self.schema is None else (self.schema,)


def facts_of(metadata: Mapping[str, bytes]) -> Facts:
    """The facts in these metadata."""
    types = tuple(_types(metadata.get(TYPES)).items())
    return Facts(metadata.get(KEY), _holding(metadata.get(NULLS)), types=types)


def nulls_in(holding: Iterable[str]) -> dict[str, bytes]:
    """The metadata that say what holds nulls."""
    import json  # Slow to import, and many programs have no tables.

    return {NULLS: json.dumps(sorted(holding)).encode()}


def types_in(types: Mapping[str, str]) -> dict[str, bytes]:
    """The metadata that say what the bytes of columns are; none if there is nothing to say."""
    import json

    return {TYPES: json.dumps(dict(sorted(types.items()))).encode()} if types else {}


def joined_facts(each: Sequence[Mapping[str, bytes]]) -> dict[str, bytes]:
    """Nulls and types of the records of several files, from the metadata of each.

    Types are those that all files state: bytes of a file that does not state it may be others.
    """
    facts = [facts_of(metadata) for metadata in each]
    known = [one.holding for one in facts if one.holding is not None]
    nulls = nulls_in(frozenset().union(*known)) if known and len(known) == len(facts) else {}
    types = set(facts[0].types).intersection(*(one.types for one in facts[1:]))
    return nulls | types_in(dict(types))


def joined_types(each: Sequence[Types], describe: Callable[[int], str]) -> Types:
    """The types of columns of bytes in several sequences, as far as any of them says it.

    Raises:
        ValueError: two of them say it otherwise.
    """
    found: dict[str, tuple[str, int]] = {}
    for number, types in enumerate(each):
        for name, what in types:
            before, place = found.setdefault(name, (what, number))
            if what != before:
                raise ValueError(
                    f"column '{name}' is bytes that are a {before} in {describe(place)}, and a "
                    f"{what} in {describe(number)}: open them one by one, or pack one of them "
                    "again with the same numbers"
                )
    return tuple((name, what) for name, (what, _) in found.items())


def without_facts(metadata: Mapping[str, bytes]) -> dict[str, bytes]:
    """The metadata without what differs between files of the same columns."""
    return {name: value for name, value in metadata.items() if name not in (NULLS, TYPES)}


def with_fields(metadata: Mapping[str, bytes], names: Sequence[str]) -> dict[str, bytes]:
    """The metadata of records of which only these columns are kept."""
    types = {name: what for name, what in facts_of(metadata).types if name in names}
    metadata = {name: value for name, value in metadata.items() if name != TYPES} | types_in(types)
    if KEY not in metadata:
        return metadata
    from ffrecord._tables.arrow_reading import schema_of
    from ffrecord._tables.formats import pyarrow

    schema = schema_of((metadata[KEY],))
    kept = [schema.field(name) for name in names if name in schema.names]
    made = pyarrow().schema(kept, metadata=schema.metadata)
    return {**metadata, KEY: made.serialize().to_pybytes()}


def of_columns(metadata: Mapping[str, bytes], names: Sequence[str]) -> dict[str, bytes]:
    """The metadata for other records, which have these columns as they were; not their nulls."""
    kept = {name: value for name, value in metadata.items() if name != NULLS}
    if not names:
        return {name: value for name, value in kept.items() if name not in (KEY, TYPES)}
    return with_fields(kept, names)


def _types(text: bytes | None) -> dict[str, str]:
    if text is None:
        return {}
    import json

    try:
        types = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(types, dict) or not all(isinstance(what, str) for what in types.values()):
        return {}
    return types


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
    from ffrecord._tables.arrow_types import is_itself, meaning_of  # Few programs need it.

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
    from ffrecord._tables.arrow_reading import schema_of

    if not schemas:
        return {}
    try:
        schema = schema_of(schemas[:1])
    except CorruptionError:
        return {}  # A call that asks for types raises the error.
    return {field.name: field.type for field in schema}
