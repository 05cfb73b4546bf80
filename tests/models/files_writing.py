"""What users do to write files, right and wrong, for the model of files."""

import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

import ffrecord
from files_paths import Kept
from table_values import Columns, Differs, Kind, as_given

CHILD_S = 60.0
REFUSALS = (ValueError, TypeError, OverflowError, ffrecord.ConflictError)


class GivenUpError(Exception):
    """The user's own."""


def named(what: str, check: Callable[..., None], *arguments: Any) -> None:  # noqa: ANN401
    """Run a check; an error of the product where there is none to expect is a difference."""
    try:
        check(*arguments)
    except Differs as error:
        raise Differs(f"[{what}] {error}") from None
    except (
        *(ValueError, TypeError, LookupError, OSError, AttributeError, AssertionError),
        *(RuntimeError, pa.ArrowException, ffrecord.CorruptionError),
    ) as error:
        raise Differs(f"[{what}] {type(error).__name__}: {error}") from error


def can_be_key(kind: Kind) -> bool:
    """Whether it is text or bytes, and short."""
    types, is_short = pa.types, max(map(len_of, kind.values)) < 65536
    is_text = types.is_string(kind.arrow) or types.is_large_string(kind.arrow)
    return is_short and (is_text or types.is_binary(kind.arrow))


def len_of(value: Any) -> int:  # noqa: ANN401
    """The length of text or bytes."""
    return len(value) if isinstance(value, str | bytes) else 0


def keys_with(file: Kept, rows: Sequence[Any]) -> list[bytes | None] | None:
    """The keys of the file when these rows have been added."""
    if file.keys is None:
        return None
    first = len(file.keys)
    if file.key_column is None:
        return [*file.keys, *(_key_of(first + number) for number in range(len(rows)))]
    values = (row[file.key_column] for row in rows)
    return [*file.keys, *((as_key(value) or None) for value in values)]


def as_key(value: str | bytes | None) -> bytes | None:
    """The key of a record whose key column has that value; "" is none."""
    return value.encode() if isinstance(value, str) else value


def _key_of(number: int) -> bytes | None:
    """Every fifth record has none."""
    return b"key-%d" % number if number % 5 != 4 else None


def give_each(writer: ffrecord.Writer, file: Kept, rows: Sequence[Any]) -> None:
    """Write rows one by one, with their keys if these are no column."""
    own = file.keys is not None and file.key_column is None
    for number, row in enumerate(rows):
        key = _key_of(len(file.keys or ()) + number) if own else None
        writer.write(as_given(row, file.columns), key=key)


def write_each(writer: ffrecord.Writer, file: Kept, rows: Sequence[Any]) -> None:
    """Write rows, and remember them."""
    give_each(writer, file, rows)
    file.keys = keys_with(file, rows)
    file.rows = [*file.rows, *rows]


def write_much(writer: ffrecord.Writer, file: Kept, megabytes: int) -> None:
    """Write so much that bytes reach the file before any commit."""
    spelled = [each.rstrip("?") for each in file.columns.spelled]
    if megabytes and (not spelled or ("bytes" in spelled and file.key_column is None)):
        data = bytes(range(256)) * 4096
        row = file.columns.rows(1, 0)[0]
        for _ in range(megabytes):
            if spelled:
                row = {**row, file.columns.names[spelled.index("bytes")]: data}
            writer.write(as_given(row, file.columns) if spelled else data)


def opened_to_append(file: Kept, how: str, says_key: bool) -> ffrecord.Writer:
    """A writer that adds to the file."""
    key: Any = None
    if says_key and file.keys is not None:
        key = file.key_column or True
    schema = file.columns.arrow() if file.columns.is_table else None
    if how == "rows without a schema":
        schema = None
    return ffrecord.Writer(file.path, schema, append=True, key=key)


def write_rows_of_table(file: Kept, how: str, **options: Any) -> None:  # noqa: ANN401
    """Write all rows of a file of tables, in one of the forms of a table."""
    columns = file.columns
    table = columns.table(file.rows)
    if how == "rows":
        with ffrecord.Writer(file.path, columns.arrow(), **options) as writer:
            for row in file.rows:
                writer.write(as_given(row, columns))
        return
    forms: dict[str, Callable[[], Any]] = {
        "table": lambda: table,
        "batch": lambda: table.combine_chunks().to_batches()[0],
        "stream": lambda: table.to_reader(max_chunksize=2),
        "chunks": lambda: pa.concat_tables([table[:1], table[1:1], table[1:]]),
        "slice": lambda: pa.concat_tables([table, table, table])[len(table) : 2 * len(table)],
        "capsule": lambda: _Capsule(table),
    }
    how = how if file.rows else "table"
    ffrecord.write_table(forms[how](), file.path, **options)


class _Capsule:
    """A table of somebody else's, who speaks Arrow's protocol."""

    def __init__(self, table: Any) -> None:  # noqa: ANN401 - pyarrow has no types
        self._table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:  # noqa: ANN401
        return self._table.__arrow_c_stream__(requested_schema)


def failing_table(columns: Columns, count: int, how: str, big: bool = False) -> Any:  # noqa: ANN401
    """A table, or a stream, that cannot be written to its end."""
    rows = columns.rows(count, 3)
    if big:
        name = columns.names[columns.spelled.index("bytes")]
        rows = [{**row, name: bytes(300_000)} for row in rows]
    table = columns.table(rows)
    if how == "another schema":
        return table.append_column("zz", pa.array(range(count)))
    if how == "a null":
        last = columns.names[-1]
        missing = pa.nulls(1, table.schema.field(last).type)
        ends = [*(table[name][:1] for name in columns.names[:-1]), missing]
        return pa.concat_tables([table, pa.Table.from_arrays(ends, schema=table.schema)])

    def batches() -> Iterator[Any]:
        yield from table.to_batches()
        raise GivenUpError

    return pa.RecordBatchReader.from_batches(table.schema, batches())


def fail_to_write(writer: ffrecord.Writer, columns: Columns, count: int, how: str) -> None:
    """Give a writer a table that it cannot write."""
    try:
        writer.write_table(failing_table(columns, count, how))
    except (*REFUSALS, pa.ArrowException, GivenUpError, OSError):
        return
    raise Differs(f"a table that fails ({how}) is taken")


def ignored_bytes(file: Kept) -> int:
    """The bytes behind the last commit, as readers tell of them."""
    with ffrecord.open(file.path) as reader:
        said = " ".join(text for each in reader.files for text in each.warnings)
    found = re.search(r"last (\d+) bytes are ignored", said)
    return int(found[1]) if found else 0


def in_child(work: Callable[[Callable[[], None]], None]) -> int:
    """Fork, and do the work there; return how often it said something before it ended."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read)
            work(lambda: (os.write(write, b"."), None)[1])
        except Exception as error:  # The parent tells of it.
            os.write(write, f"!{type(error).__name__}: {error!s:.300}".encode())
        finally:
            os._exit(0)
    os.close(write)
    end = time.monotonic() + CHILD_S
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(read)
            raise Differs(f"a child of a fork hangs: {CHILD_S:.0f} s")
        time.sleep(0.001)
    with os.fdopen(read, "rb") as pipe:
        said, failed, why = pipe.read().partition(b"!")
    if failed:
        raise Differs(f"in a child of a fork: {why.decode()}")
    return len(said)
