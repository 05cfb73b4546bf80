"""Tables as files of other kinds, packed: the same table, or refused by name.

The truth of a file of another kind is what pyarrow reads from it.
"""

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import ffrecord
from ffrecord.pack import TableSource, pack
from files_paths import Kept, demand


def _stream(table: Any, path: Path) -> Any:  # noqa: ANN401 - pyarrow has no types
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return pa.ipc.open_stream(path).read_all()


def _file(table: Any, path: Path) -> Any:  # noqa: ANN401
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return pa.ipc.open_file(path).read_all()


def _parquet(table: Any, path: Path) -> Any:  # noqa: ANN401
    pq.write_table(table, path, row_group_size=2)
    return pq.read_table(path)


FORMS: dict[str, Callable[[Any, Path], Any]] = {
    "Arrow stream": _stream,
    "Arrow file": _file,
    "Parquet": _parquet,
}


def check_packed(file: Kept, form: str, work: Path) -> None:
    """A table of a file's rows, in another form, packed; joined to itself, it is refused."""
    if not file.rows:
        return
    shutil.rmtree(work)
    work.mkdir()
    source = work / "source"
    table = FORMS[form](file.columns.table(file.rows), source)
    pack(source, work / "o.ffr")
    _check_same(ffrecord.read_table(work / "o.ffr"), table, f"packed from {form}")

    source.write_bytes(source.read_bytes() * 2)
    with suppress(ffrecord.CorruptionError, ValueError):
        pack(source, work / "p.ffr")
    demand(not (work / "p.ffr").exists(), f"{form}: two files in one are packed as one")


def check_mapped(file: Kept, work: Path) -> None:
    """A function that returns what it gets makes the same table of it."""
    if not file.rows:
        return
    shutil.rmtree(work)
    work.mkdir()
    table = file.columns.table(file.rows)
    pack(TableSource(table), work / "t.ffr", map=returned)
    _check_same(ffrecord.read_table(work / "t.ffr"), table, "a table through a function")
    before = ffrecord.read_table(file.path)
    pack(str(file.path), work / "o.ffr", map=returned)
    _check_same(ffrecord.read_table(work / "o.ffr"), before, "a record file through a function")


def returned(sample: Any) -> Any:  # noqa: ANN401 - of any columns
    """For `map`."""
    return sample


def _check_same(found: Any, wanted: Any, where: str) -> None:  # noqa: ANN401
    demand(found.column_names == wanted.column_names, f"{where}: columns {found.column_names}")
    for name in wanted.column_names:
        kinds = found.schema.field(name).type, wanted.schema.field(name).type
        demand(kinds[0] == kinds[1], f"{where}: '{name}' is {kinds[0]}, was {kinds[1]}")
        values = found[name].to_pylist(), wanted[name].to_pylist()
        # NaN is not equal to itself.
        demand(repr(values[0]) == repr(values[1]), f"{where}: '{name}': {values[0]!r:.200}")
