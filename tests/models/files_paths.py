"""Every way to read a record file, by name; each compares what it gives with the truth.

`Differs` is raised where a path gives anything else, and whatever the product raises passes: for a
whole file, a path has no reason to fail.
"""

import asyncio
import os
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import ffrecord
from table_values import Columns, Differs, Kind, as_bytes, is_missing, same


@dataclass
class Kept:
    """A file as its user knows it."""

    path: Path | str
    """An address, where it is not a file."""
    columns: Columns
    rows: list[Any]
    keys: list[bytes | None] | None = None
    """None: the file has none."""
    key_column: str | None = None
    is_torn: bool = False
    """An append was killed: bytes that no commit has lie at the end."""
    options: dict[str, Any] = field(default_factory=dict)

    def copy(self) -> "Kept":
        """What is known of it now."""
        return replace(self)

    def __repr__(self) -> str:
        kind = "table" if self.columns.is_table else "rows"
        name, count = os.path.basename(self.path), len(self.rows)
        return f"{name}: {count} records, {kind} of {self.columns.spelled}"


Reading = Callable[[Kept, ffrecord.Records], None]
READINGS: dict[str, Reading] = {}
LOADING: dict[str, Reading] = {}
"""These make tensors."""


def reading(function: Reading) -> Reading:
    """Name a way to read after its function."""
    READINGS[function.__name__.replace("_", " ")] = function
    return function


def loading(function: Reading) -> Reading:
    """Name a way to load after its function."""
    LOADING[function.__name__.replace("_", " ")] = function
    return function


def demand(holds: bool, what: str) -> None:
    """Raise `Differs` unless it holds."""
    if not holds:
        raise Differs(what)


def check_row(columns: Columns, seen: Any, truth: Any, where: str) -> None:  # noqa: ANN401
    """One sample against one row."""
    if not columns.spelled:
        demand(as_bytes(seen) == truth, f"{where}: {seen!r:.90}, not {truth!r:.90}")
        return
    demand(isinstance(seen, Mapping), f"{where}: a {type(seen).__name__}, not a dict of columns")
    names = list(columns.names)
    demand(list(seen) == names, f"{where}: the columns {list(seen)}, not {names}")
    for name, kind in columns.kinds.items():
        check_value(kind, seen[name], truth[name], f"{where}, column {name}")


def check_value(kind: Kind, seen: Any, truth: Any, where: str) -> None:  # noqa: ANN401
    """One value of a column."""
    try:
        is_same = same(kind, seen, truth)
    except Differs as error:
        raise Differs(f"{where}: {error}") from None
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise Differs(f"{where}: {seen!r:.150} is no {kind.arrow}: {error!r}") from None
    demand(is_same, f"{where}: {seen!r:.150}, not {truth!r:.150} ({kind.arrow})")


def check_rows(columns: Columns, seen: Iterable[Any], truth: Sequence[Any], where: str) -> None:
    """Samples in their order."""
    samples = list(seen)
    demand(len(samples) == len(truth), f"{where}: {len(samples)} records, not {len(truth)}")
    for number, (one, other) in enumerate(zip(samples, truth, strict=True)):
        check_row(columns, one, other, f"{where}, record {number}")


def check_column(kind: Kind, seen: Any, truth: Sequence[Any], where: str) -> None:  # noqa: ANN401
    """All values of a column, in any form of a batch."""
    values = values_of(seen, len(truth))
    demand(len(values) == len(truth), f"{where}: {len(values)} values, not {len(truth)}")
    for number, (one, other) in enumerate(zip(values, truth, strict=True)):
        check_value(kind, one, other, f"{where}[{number}]")


def values_of(form: Any, count: int) -> list[Any]:  # noqa: ANN401
    """One value for each row of a column that is an array, a list, a tensor, or a dict of these."""
    if isinstance(form, pa.Array | pa.ChunkedArray):
        return list(form.to_pylist())
    if isinstance(form, Mapping):
        if set(form) == {"values", "valid"}:
            pairs = zip(form["values"], form["valid"], strict=True)
            return [value if bool(valid) else None for value, valid in pairs]
        parts = {name: values_of(part, count) for name, part in form.items()}
        rows = [dict(zip(parts, row, strict=True)) for row in zip(*parts.values(), strict=True)]
        return [None if row and all(map(is_missing, row.values())) else row for row in rows]
    return list(form)


def check_batch(file: Kept, batch: Any, truth: Sequence[Any], where: str) -> None:  # noqa: ANN401
    """A batch of ours or of a loader, column by column."""
    columns = file.columns
    if not columns.spelled:
        check_rows(columns, batch, truth, where)
        return
    for name, kind in columns.kinds.items():
        check_column(kind, batch[name], [row[name] for row in truth], f"{where}, column {name}")


def check_table(file: Kept, table: Any, truth: Sequence[Any], where: str) -> None:  # noqa: ANN401
    """A table of Arrow, with its types."""
    columns = file.columns
    if not columns.spelled:
        demand(table.column_names == ["record"], f"{where}: the columns {table.column_names}")
        check_rows(columns, table["record"].to_pylist(), truth, where)
        return
    names = list(columns.names)
    demand(table.column_names == names, f"{where}: columns {table.column_names}, not {names}")
    for name, kind in columns.kinds.items():
        check_type(file, kind, table.schema.field(name), where)
        column = table[name]
        if kind.is_bf16:
            column = numbers_of_bf16(column, table.schema.field(name))
        check_column(kind, column, [row[name] for row in truth], f"{where}, column {name}")


def check_type(file: Kept, kind: Kind, found: Any, where: str) -> None:  # noqa: ANN401
    """The type of Arrow of a column."""
    if kind.is_bf16:
        return  # Arrow has none: the values tell.
    columns = file.columns
    wanted = kind.arrow if columns.is_table else kind.as_row
    demand(found.type.equals(wanted), f"{where}, column {found.name}: {found.type}, not {wanted}")
    nullable = columns.nullable[found.name]
    if columns.is_table or nullable:
        if not columns.is_table:  # Nothing says it but the values.
            nullable = any(row[found.name] is None for row in file.rows)
        demand(
            found.nullable == nullable,
            f"{where}, column {found.name}: nullable is {found.nullable}, not {nullable}",
        )


def numbers_of_bf16(column: Any, found: Any) -> Any:  # noqa: ANN401
    """The numbers of bf16 in a table: as floats, or as bits in a field that says so."""
    pa_type = column.type
    if isinstance(pa_type, pa.BaseExtensionType):
        says = "bf" in pa_type.extension_name
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], pa_type.storage_type)
    else:
        says = (found.metadata or {}).get(b"ffrecord.type", b"").startswith(b"bf16")
    if not pa.types.is_uint16(column.type):
        return column
    demand(says, f"column {found.name} is uint16, and nothing says that these are bits of bf16")
    bits = [None if each is None else np.uint32(each << 16) for each in column.to_pylist()]
    return [None if each is None else each.view(np.float32) for each in bits]


def check_file_quickly(file: Kept, what: str) -> None:
    """The rows and the table of a local file."""
    try:
        with ffrecord.open(file.path) as reader:
            check_rows(file.columns, reader, file.rows, "iterating")
            READINGS["find"](file, reader)
        check_table(file, ffrecord.read_table(file.path), file.rows, "read_table")
    except Differs as error:
        raise Differs(f"{what}: {error}") from None


def orders(count: int) -> list[int]:
    """Indices out of order, some twice, some from the end."""
    if not count:
        return []
    return [*range(count - 1, -1, -1), 0, -1, *range(0, count, 3)]


# The readings. `reader` may be a reader of the file, or any view with the same records.


@reading
def by_index(file: Kept, reader: ffrecord.Records) -> None:
    demand(len(reader) == len(file.rows), f"len is {len(reader)}, not {len(file.rows)}")
    for number in {0, len(file.rows) // 2, len(file.rows) - 1} if file.rows else ():
        check_row(file.columns, reader[number], file.rows[number], f"reader[{number}]")
        check_row(file.columns, reader[number - len(file.rows)], file.rows[number], "from the end")
        for name, kind in file.columns.kinds.items():
            value = reader[number][name]
            if pa.types.is_list(kind.arrow):
                demand(not isinstance(value, Mapping), f"{name} is {value!r:.90}, no list")


@reading
def iterating(file: Kept, reader: ffrecord.Records) -> None:
    check_rows(file.columns, reader, file.rows, "iterating")


@reading
def a_slice(file: Kept, reader: ffrecord.Records) -> None:
    check_rows(file.columns, reader[1:-1], file.rows[1:-1], "reader[1:-1]")
    check_batch(file, reader[::-1], file.rows[::-1], "reader[::-1]")


@reading
def columns_of_a_read(file: Kept, reader: ffrecord.Records) -> None:
    wanted = orders(len(file.rows))
    batch = reader.read(wanted)
    check_batch(file, batch, [file.rows[i] for i in wanted], "read(...)")
    copy = pickle.loads(pickle.dumps(batch))
    check_batch(file, copy[1:], [file.rows[i] for i in wanted[1:]], "a copy of read(...)")


@reading
def names_of_columns(file: Kept, reader: ffrecord.Records) -> None:
    names = [column.name for column in reader.columns]
    demand(names == list(file.columns.names), f"reader.columns are {names}")
    demand(list(reader.schema) == names, f"reader.schema has {list(reader.schema)}")
    seen = list(reader.read([]).columns)
    demand(seen == names, f"a batch has the columns {seen}")


@reading
def reader_column(file: Kept, reader: ffrecord.Records) -> None:
    if not hasattr(reader, "column"):
        return
    for name, kind in file.columns.kinds.items():
        truth = [row[name] for row in file.rows]
        try:
            seen = reader.column(name)
            some = reader.column(name, 1, 1) if len(truth) > 1 else None
        except (ValueError, TypeError) as error:  # Its values have no fixed width.
            demand(_is_wide(kind), f"column({name!r}): {error}")
            continue
        except KeyError as error:
            raise Differs(f"column({name!r}): {error}") from None
        check_column(kind, seen, truth, f"column({name!r})")
        if some is not None:
            check_column(kind, some, truth[1:2], f"column({name!r}, 1, 1)")


def _is_wide(kind: Kind) -> bool:
    types, arrow = pa.types, kind.arrow
    return not (types.is_integer(arrow) or types.is_floating(arrow) or types.is_boolean(arrow))


@reading
def format_bytes(file: Kept, reader: ffrecord.Records) -> None:
    seen = reader.with_format("bytes")
    check_rows(file.columns, seen, file.rows, "format bytes")
    batch = seen.read(orders(len(file.rows)))
    check_batch(file, batch, [file.rows[i] for i in orders(len(file.rows))], "format bytes")
    for sample in seen:
        _no_arrays_of_bytes(sample, file.columns)
        break


def _no_arrays_of_bytes(sample: Any, columns: Columns) -> None:  # noqa: ANN401
    values = sample.values() if columns.spelled else [sample]
    kinds = [kind.arrow for kind in columns.kinds.values()] or [pa.binary()]
    for value, kind in zip(values, kinds, strict=True):
        if pa.types.is_binary(kind) and value is not None:
            demand(isinstance(value, bytes), f"format bytes gives {type(value).__name__}")


@loading
def format_torch(file: Kept, reader: ffrecord.Records) -> None:
    seen = reader.with_format("torch")
    check_rows(file.columns, seen, file.rows, "format torch")
    wanted = orders(len(file.rows))
    check_batch(file, seen.read(wanted), [file.rows[i] for i in wanted], "format torch")


@reading
def format_arrow(file: Kept, reader: ffrecord.Records) -> None:
    seen = reader.with_format("arrow")
    for number, one in enumerate(seen):
        check_table(file, one, file.rows[number : number + 1], f"format arrow, record {number}")
        if number > 2:
            break
    batch = seen.read(orders(len(file.rows)))
    truth = [file.rows[i] for i in orders(len(file.rows))]
    for name, kind in file.columns.kinds.items():
        if not kind.is_bf16:
            check_column(kind, batch[name], [row[name] for row in truth], "format arrow")


@reading
def to_arrow(file: Kept, reader: ffrecord.Records) -> None:
    wanted = orders(len(file.rows))
    table = reader.read(wanted).to_arrow()
    check_table(file, table, [file.rows[i] for i in wanted], "to_arrow")
    if file.columns.spelled:
        name = file.columns.names[-1]
        only = reader.read(wanted).only([name]).to_arrow()
        demand(only.column_names == [name], f"only({name!r}) has {only.column_names}")


@reading
def find(file: Kept, reader: ffrecord.Records) -> None:
    if not isinstance(reader, ffrecord.Reader):
        return
    for number, key in enumerate(file.keys or ()):
        if key is not None and file.keys is not None and file.keys.count(key) == 1:
            found = reader.find(key)
            demand(found == number, f"find({key!r:.60}) is {found}, not {number}")
    if file.keys is not None and any(file.keys):
        demand(reader.find(b"no such key") is None, "a key is found that is nowhere")
        asked = [key for key in file.keys if key]
        demand(None not in reader.find_all(asked), f"find_all({asked!r:.90}) misses one")


@reading
def subset(file: Kept, reader: ffrecord.Records) -> None:
    wanted = orders(len(file.rows))
    truth = [file.rows[i] for i in wanted]
    view = reader.subset(wanted)
    check_rows(file.columns, view, truth, "subset")
    check_table(file, view.read(range(len(view))).to_arrow(), truth, "subset, to_arrow")


@reading
def filtering(file: Kept, reader: ffrecord.Records) -> None:
    view = reader.filter(lambda indices: indices % 2 == 1)
    check_rows(file.columns, view, file.rows[1::2], "filter")


@reading
def concatenating(file: Kept, reader: ffrecord.Records) -> None:
    both = ffrecord.concat([reader, reader.subset(slice(1, None)), reader])
    truth = [*file.rows, *file.rows[1:], *file.rows]
    check_rows(file.columns, both, truth, "concat")
    if truth:
        check_table(file, both.read(range(len(both))).to_arrow(), truth, "concat, to_arrow")


@reading
def queue(file: Kept, reader: ffrecord.Records) -> None:
    if not isinstance(reader, ffrecord.Reader) or not file.rows:
        return
    wanted = orders(len(file.rows))
    truth = [file.rows[i] for i in wanted]
    check_rows(file.columns, reader.submit(wanted).result(), truth, "submit")
    check_rows(file.columns, asyncio.run(reader.read_async(wanted)), truth, "read_async")


@loading
def decoding(file: Kept, reader: ffrecord.Records) -> None:
    from ffrecord.decode import Image, Text

    for name, spelling in zip(file.columns.names, file.columns.spelled, strict=True):
        kind, truth = file.columns.kinds[name], [row[name] for row in file.rows]
        if spelling.rstrip("?") in ("utf8", "large utf8"):
            seen = reader.read(range(len(truth)), decode={name: Text()})[name]
            check_column(kind, seen, truth, f"decode={{{name!r}: Text()}}")
        if spelling.rstrip("?") == "png":
            seen = reader.read(range(len(truth)), decode={name: Image(2)})[name]
            missing = [is_missing(value) for value in values_of(seen, len(truth))]
            right = [value is None for value in truth]
            demand(missing == right, f"decode={{{name!r}: Image(2)}}: missing are {missing[:30]}")


@loading
def loader(file: Kept, reader: ffrecord.Records) -> None:
    _loaded(file, reader, "loader")


@loading
def loader_with_an_identity_transform(file: Kept, reader: ffrecord.Records) -> None:
    _loaded(file, reader, "loader, identity transform", transform=_unchanged)


@loading
def loader_of_threads(file: Kept, reader: ffrecord.Records) -> None:
    _loaded(file, reader, "loader of threads", mode="threads", num_workers=2)


def _unchanged(sample: Any) -> Any:  # noqa: ANN401
    return sample


def _loaded(
    file: Kept,
    reader: ffrecord.Records,
    where: str,
    transform: Any = None,  # noqa: ANN401
    **options: Any,  # noqa: ANN401
) -> None:
    from ffrecord.torch import DataLoader, Dataset, Sampler

    if not file.rows:
        return
    source = str(file.path) if isinstance(reader, ffrecord.Reader) else reader
    dataset = Dataset(source, transform=transform)
    sampler = Sampler(dataset, 3, shuffle=False, last="short")
    at = 0
    for batch in DataLoader(dataset, batch_sampler=sampler, **options):
        truth = file.rows[at : at + 3]
        check_batch(file, batch, truth, f"{where}, records {at} to {at + len(truth) - 1}")
        at += len(truth)
    demand(at == len(file.rows), f"{where}: {at} records, not {len(file.rows)}")
