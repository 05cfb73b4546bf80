"""ffrecord head, cat, find, sample: records on the terminal, or for a program."""

import errno
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import click
import numpy as np

from ffrecord import Batch, Reader
from ffrecord._cli.console import EXIT_DAMAGE, say
from ffrecord._cli.data.records import batches, in_order, opened, selected, shuffled
from ffrecord._cli.data.values import as_bytes, brief_sample, dumps, plain, plain_sample, text_of
from ffrecord._cli.data.words import (
    column_in_words,
    in_the_same_words,
    in_words,
    is_single,
    named_types,
)
from ffrecord._cli.options import timeout_option
from ffrecord._cli.text import shown
from ffrecord._order.epoch_order import Indices
from ffrecord._tables.schema import Column
from ffrecord._tables.values import bf16_numbers, exact
from ffrecord.errors import CorruptionError

EXIT_NOTHING_FOUND = 1
# Damaged records that a search names.
_DAMAGED_NAMED_MAX = 100
_INDEX_MAX = (1 << 63) - 1

files = click.argument("where", metavar="FILE...", nargs=-1, required=True, type=click.Path())
timeout = timeout_option()
DRY_RUN_HELP = "Check names, columns, keys and the destination, but no record; write nothing."
as_json_lines = click.option(
    "--json", "as_json", is_flag=True, help="Print a JSON object for each record, one a line."
)
column_option = click.option(
    "--column", "names", multiple=True, metavar="NAME", help="Only this column; repeatable."
)
seed_option = click.option(
    "--seed",
    type=click.IntRange(0, (1 << 64) - 1),
    default=0,
    show_default=True,
    help="The same seed gives the same order.",
)


def count_option(default: int | None, text: str) -> Callable[[Any], Any]:
    """The option --count."""
    return click.option(
        "--count",
        type=click.IntRange(0, _INDEX_MAX),
        default=default,
        show_default=default is not None,
        help=text,
    )


@click.command()
@files
@count_option(10, "So many records.")
@click.option(
    "--start",
    type=click.IntRange(0, _INDEX_MAX),
    default=0,
    show_default=True,
    help="Index of the first.",
)
@column_option
@as_json_lines
@timeout
def head(
    where: tuple[str, ...],
    count: int,
    start: int,
    names: tuple[str, ...],
    as_json: bool,
    timeout_s: float,
) -> None:
    """Show the first records of FILE: index, size and values, a line each.

    FILE is a file, a folder, a glob, ffrecord://HOST/NAME, or s3://BUCKET/KEY. Only the records
    that are shown are read. Long values are cut; --json prints them whole. Exits with status 3 if a
    record that is shown is damaged.
    """
    with opened(where, timeout_s) as reader:
        pieces = in_order(start, min(start + count, len(reader)))
        damaged = _show(reader, pieces, selected(reader, names), as_json)
    if damaged:
        raise click.exceptions.Exit(EXIT_DAMAGE)


@click.command()
@files
@count_option(10, "So many records.")
@seed_option
@column_option
@as_json_lines
@timeout
def sample(
    where: tuple[str, ...],
    count: int,
    seed: int,
    names: tuple[str, ...],
    as_json: bool,
    timeout_s: float,
) -> None:
    """Show random records of FILE, none twice.

    Another --seed gives others. Only the records that are shown are read. Exits with status 3 if
    one of them is damaged.
    """
    with opened(where, timeout_s) as reader:
        pieces = shuffled(len(reader), seed, count)
        damaged = _show(reader, pieces, selected(reader, names), as_json)
    if damaged:
        raise click.exceptions.Exit(EXIT_DAMAGE)


def _show(
    reader: Reader, pieces: Iterable[Indices], columns: tuple[Column, ...], as_json: bool
) -> bool:
    """Print a line for each record, damaged ones too; return whether there are such."""
    damaged = False
    for row in _rows(reader, pieces):
        index, size, value, problem = row
        damaged = damaged or problem is not None
        if as_json:
            facts: dict[str, Any] = {"index": index, "size_bytes": size}
            if problem is None:
                facts["record"] = plain_sample(value, columns)
            else:
                facts["damaged"] = problem
            click.echo(dumps(facts))
        else:
            text = f"damaged: {shown(problem)}" if problem else brief_sample(value, columns)
            click.echo(f"{index:>10}  {size:>9} B  {text}")
    return damaged


def _rows(reader: Reader, pieces: Iterable[Indices]) -> Iterator[tuple[int, int, Any, str | None]]:
    """Index, size, value and, of a damaged record, what is wrong with it."""
    for batch in batches(reader, pieces, keep=True):
        good = batch.select(np.flatnonzero(batch.status == 0))
        values = in_words(good)
        for index, size, status in zip(
            batch.indices.tolist(), batch.sizes.tolist(), batch.status.tolist(), strict=True
        ):
            if status:
                yield index, size, None, reader._describe(index, status)
            else:
                yield index, size, next(values), None


@click.command()
@files
@click.option(
    "--index",
    "indices",
    type=click.IntRange(-_INDEX_MAX, _INDEX_MAX),
    multiple=True,
    help="Only this record; repeatable. -1 is the last.",
)
@click.option("--key", "keys", multiple=True, help="Only the record with this key; repeatable.")
@column_option
@as_json_lines
@timeout
def cat(
    where: tuple[str, ...],
    indices: tuple[int, ...],
    keys: tuple[str, ...],
    names: tuple[str, ...],
    as_json: bool,
    timeout_s: float,
) -> None:
    """Write the bytes of records of FILE to standard output, one after the other.

    All records, or those of --index and then of --key. Records with several columns are JSON lines,
    unless one --column selects the bytes to write: of a value that is missing, none; of lists and
    structs, JSON. Nothing stands between the bytes of two records.
    """
    with opened(where, timeout_s) as reader:
        columns = selected(reader, names)
        wanted = [*_checked(reader, indices), *_of_keys(reader, keys)]
        is_chosen = bool(indices or keys)
        pieces = [np.array(wanted, np.int64)] if is_chosen else in_order(0, len(reader))
        if sys.__stdout__ is None:  # Closed before the start: `run` lets prints go nowhere.
            raise OSError(errno.EBADF, "standard output is closed")
        out = sys.stdout.buffer
        for batch in batches(reader, pieces):
            for index, value in zip(batch.indices.tolist(), in_words(batch), strict=True):
                if as_json or len(columns) > 1:
                    facts = {"index": index, "record": plain_sample(value, columns)}
                    out.write(dumps(facts).encode() + b"\n")
                else:
                    _write(out, _bytes_of(value, columns[0] if columns else None))
            out.flush()


def _bytes_of(value: Any, column: Column | None) -> bytes:  # noqa: ANN401
    """The bytes that `cat` writes for a record with at most one column in sight."""
    if column is None:
        return as_bytes(value)
    found = value[column.name]
    if found is None:
        return b""
    is_json = bool(column.kind.fields) or isinstance(found, list)
    return dumps(plain(found, column)).encode() if is_json else as_bytes(found)


def _write(out: Any, data: bytes) -> None:  # noqa: ANN401 - a binary stream
    """Write the bytes, unless a terminal would take them for commands."""
    if sys.stdout.isatty() and text_of(data) is None:
        raise click.UsageError(
            "these bytes are no text, and a terminal may take them for commands: write them to a "
            "file (> FILE), or add --json"
        )
    out.write(data)


def _checked(reader: Reader, indices: Iterable[int]) -> list[int]:
    count = len(reader)
    for index in indices:
        if not -count <= index < count:
            which = f"{count} records, 0 to {count - 1}" if count else "no records"
            raise ValueError(f"--index {index}: there are {which}")
    return [index % count for index in indices] if count else []


def _of_keys(reader: Reader, keys: tuple[str, ...]) -> list[int]:
    found = reader.find_all([_key(key) for key in keys]) if keys else []
    for key, index in zip(keys, found, strict=True):
        if index is None:
            raise FileNotFoundError(f"no record of {reader.where[0]} has the key '{shown(key)}'")
    return [index for index in found if index is not None]


def _key(key: str) -> bytes:
    """A key as it was typed, in UTF-8 or not."""
    if not key:
        raise ValueError("the key is empty; a key has at least one byte")
    return key.encode(errors="surrogateescape")


@click.command()
@click.argument("where", metavar="FILE", type=click.Path())
@click.argument("keys", metavar="[KEY]...", nargs=-1)
@click.option(
    "--where",
    "conditions",
    multiple=True,
    metavar="COLUMN=VALUE",
    help="Search for records with this value; of several conditions, all must hold.",
)
@count_option(10, "At most so many records of --where.")
@as_json_lines
@timeout
def find(
    where: str,
    keys: tuple[str, ...],
    conditions: tuple[str, ...],
    count: int,
    as_json: bool,
    timeout_s: float,
) -> None:
    """Find records of FILE by KEY, or by the value of a column.

    Keys are looked up in the index; --where reads, in order, until --count records are found.
    Columns that the file has a copy of are read without the records. Exits with status 1 if a key,
    or every value, is in no record; with status 3 if a record that was read is damaged.
    """
    if bool(keys) == bool(conditions):
        raise click.UsageError("give one KEY or more, or --where COLUMN=VALUE, not both")
    with opened([where], timeout_s) as reader:
        if keys:
            found = reader.find_all([_key(key) for key in keys])
            missing = False
            for key, index in zip(keys, found, strict=True):
                missing = missing or index is None
                if as_json:
                    click.echo(dumps({"key": plain(_key(key)), "index": index}))
                elif index is not None:
                    click.echo(f"{index:>10}  {shown(key)}")
                else:
                    say(f"no record has the key '{shown(key)}'")
        else:
            search = _Search(reader)
            missing = not search.show(conditions, count, as_json)
            if search.damaged_count:
                raise click.exceptions.Exit(EXIT_DAMAGE)
    if missing:
        raise click.exceptions.Exit(EXIT_NOTHING_FOUND)


class _Search:
    """Records that meet conditions; damaged ones, which meet none, are named on stderr."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._named = named_types(reader.read([]))
        self.damaged_count = 0

    def show(self, conditions: Iterable[str], count: int, as_json: bool) -> bool:
        """Print the records that meet all conditions; return whether there are any."""
        reader = self._reader
        tests = [self._condition(text) for text in conditions]
        left = count
        for piece in in_order(0, len(reader)):
            if left < 1:
                break
            for test in tests:
                piece = piece[test(piece)] if piece.size else piece
            if piece.size:
                chosen = piece[:left]
                left -= chosen.size
                self.damaged_count += _show(reader, [chosen], reader.columns, as_json)
        return left < count

    def _condition(self, text: str) -> Callable[[Indices], Any]:
        """A test of records: a function from indices, some thousands in order, to booleans."""
        name, value = self._split(text)
        (column,) = selected(self._reader, [name])[:1]
        kind = column.kind
        named = self._named.get(name)
        if named is not None and is_single(named):
            wanted = _named_value(name, named, value)
            return lambda piece: self._has_text(piece, name, wanted)
        if kind.is_text:
            wanted = value.encode(errors="surrogateescape")
            return lambda piece: self._has_text(piece, name, wanted)
        if named is not None or kind.fields or kind.shape:
            raise ValueError(
                f"column '{shown(name)}' is {column.spelling}: --where compares single values"
            )
        number = _number(kind.column(name), value)
        return lambda piece: _has_number(self._reader, piece, name, number)

    def _split(self, text: str) -> tuple[str, str]:
        """The column and the value of a condition; names of columns may have = in them."""
        found = [name for name in self._reader.schema if text.startswith(f"{name}=")]
        if len(found) > 1:
            raise click.BadParameter(
                f"'{shown(text)}' may be about each of the columns {', '.join(map(shown, found))}"
            )
        name, is_one, value = text.partition("=")
        if not is_one:
            raise click.BadParameter(f"'{shown(text)}' is no condition: write COLUMN=VALUE")
        return (found[0], text[len(found[0]) + 1 :]) if found else (name, value)

    def _has_text(self, piece: Indices, name: str, wanted: bytes) -> Any:  # noqa: ANN401
        found = []
        for batch in batches(self._reader, [piece], keep=True):
            self._name_damaged(batch)
            values = column_in_words(batch, name)
            same = np.array([v is not None and _word(v) == wanted for v in values], np.bool_)
            found.append(same & (batch.status == 0))
        return np.concatenate(found)

    def _name_damaged(self, batch: Batch) -> None:
        for row in np.flatnonzero(batch.status).tolist():
            if self.damaged_count < _DAMAGED_NAMED_MAX:
                index, status = int(batch.indices[row]), int(batch.status[row])
                say(f"damaged: {self._reader._describe(index, status)}")
            self.damaged_count += 1


def _word(value: Any) -> bytes:  # noqa: ANN401 - of a single type
    """A value as `in_the_same_words` gives it: also of what is stored as a number, and called."""
    is_text = isinstance(value, str | bytes | np.ndarray)
    return as_bytes(value) if is_text else str(value).encode()


def _has_number(reader: Reader, piece: Indices, name: str, number: Any) -> Any:  # noqa: ANN401
    first, last = int(piece[0]), int(piece[-1])
    values = _values(reader, name, first, last + 1)
    is_nan = isinstance(number, np.ndarray) and bool(np.isnan(number))  # It is not itself.
    found = np.isnan(values) if is_nan else values == number
    return np.ma.filled(found, False)[piece - first]  # A missing value is not equal.


def _values(reader: Reader, name: str, first: int, end: int) -> Any:  # noqa: ANN401
    try:
        values = reader.column(name, first, end - first)
    except CorruptionError as error:
        raise CorruptionError(f"--where {name}: {error}; run `ffrecord verify` on it") from None
    if reader.logical.kind(name).type != "bf16":
        return values
    return np.ma.array(bf16_numbers(np.ma.getdata(values)), mask=np.ma.getmaskarray(values))


def _named_value(name: str, kind: Any, text: str) -> bytes:  # noqa: ANN401
    try:
        return in_the_same_words(text, kind)
    except ValueError:
        raise ValueError(f"--where {name}={shown(text)}: the column is {kind}") from None


def _number(column: Column, text: str) -> Any:  # noqa: ANN401
    assert column.dtype is not None
    truth = {"true": True, "false": False, "1": True, "0": False}
    try:
        if column.type == "bool":
            return truth[text.lower()]
        if column.type == "bf16":
            return np.asarray(bf16_numbers(exact(np.array(float(text)), "bf16", column.name)))
        value = int(text) if column.dtype.kind in "iu" else float(text)
        return np.array(value).astype(column.dtype) if column.dtype.kind == "f" else value
    except (ValueError, KeyError):
        message = f"--where {column.name}={shown(text)}: the column is {column.type}"
        raise ValueError(message) from None
