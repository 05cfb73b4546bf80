"""How the keys of record files were given, as a writer of the same records needs it."""

from dataclasses import dataclass
from typing import Literal

from ffrecord._read.reader import Reader


@dataclass(frozen=True)
class KeyOrigin:
    """How to write the records of some files so that each keeps its key."""

    key: str | Literal[True] | None
    """As for `Writer`: the column if it is the key in all of the files; True if keys have to be
    given, None if no file was written with keys."""
    files_without: tuple[str, ...]
    """Names of the files with records that were written without keys, if others have them."""


def key_origin(reader: Reader) -> KeyOrigin:
    """Learn it from what the files state, not from their keys: it may be that no record has one.

    Raises:
        CorruptionError: what a file states of itself is damaged.
        OSError: a file cannot be read.
    """
    inner = reader._open()
    stated = [(file, *inner.key_origin(number)) for number, file in enumerate(reader.files)]
    columns = {column for _, has_keys, column in stated if has_keys}
    if not columns:
        return KeyOrigin(None, ())
    without = tuple(file.name for file, has_keys, _ in stated if not has_keys and file.record_count)
    only = columns.pop() if len(columns) == 1 and not without else None
    is_text = any(
        column.name == only and column.dtype is None for column in reader.logical.raw.columns
    )
    return KeyOrigin(only if only and is_text else True, without)
