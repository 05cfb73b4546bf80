"""Two files, or two tables: one dataset if they have one schema, refused if their types differ."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import ffrecord
from files_commands import done, run
from files_paths import Kept, check_rows, check_table, demand
from files_rewriting import check_file
from table_values import Differs


def check_together(one: Kept, other: Kept, work: Path) -> None:
    """Two files of one schema are one dataset, whatever nulls they hold."""
    both = Kept(work / "both", one.columns, [*one.rows, *other.rows])
    with ffrecord.open([one.path, other.path]) as reader:
        check_rows(one.columns, reader, both.rows, "open of two files")
        check_table(both, reader.read(range(len(both.rows))).to_arrow(), both.rows, "two files")
    with ffrecord.open(one.path) as first, ffrecord.open(other.path) as second:
        joined = ffrecord.concat([first, second])
        check_rows(one.columns, joined, both.rows, "concat of two files")
        views = ffrecord.concat([first.subset(slice(None)), second.subset(slice(None))])
        check_rows(one.columns, views, both.rows, "concat of two views")
        check_table(both, views.read(range(len(both.rows))).to_arrow(), both.rows, "two views")
    check_table(both, ffrecord.read_table([one.path, other.path]), both.rows, "read_table of two")
    alike = one.options.get("metadata") == other.options.get("metadata")
    alike = alike and (one.keys is None) == (other.keys is None)
    if alike and not one.is_torn and not other.is_torn:
        done("ffrecord", "merge", one.path, other.path, work / "o.ffr")
        check_file(both, work / "o.ffr", range(len(both.rows)), "merge of two files")


def check_apart(one: Kept, other: Kept, work: Path) -> None:
    """Two files of other types are refused together, by every path."""
    rows = [*one.rows, *other.rows]
    what = f"{one.columns.arrow()} and {other.columns.arrow()}".replace("\n", ", ")
    for name, made in _ways_together(one, other, work).items():
        try:
            batch = made()
        except (ValueError, TypeError):
            continue
        raise Differs(f"{name} of {len(rows)} records takes {what} together: {batch!r:.100}")


def _ways_together(one: Kept, other: Kept, work: Path) -> dict[str, Callable[[], Any]]:
    names = [str(one.path), str(other.path)]
    at = [0, len(one.rows)]

    def merged() -> None:
        code, _, err = run("ffrecord", "merge", *names, work / "o.ffr")
        if code:
            raise ValueError(err)

    def packed() -> None:
        code, _, err = run("ffrecord-pack", *names, work / "p.ffr")
        if code:
            raise ValueError(err)

    first, second = ffrecord.open(names[0]), ffrecord.open(names[1])
    return {
        "open": lambda: ffrecord.open(names).read(at),
        "concat": lambda: ffrecord.concat([first, second]).read(at),
        "concat of views": lambda: ffrecord.concat([first.subset([0]), second.subset([0])]).read(
            [0, 1]
        ),
        "mix": lambda: ffrecord.mix([first, second], [1, 1]).read([0, 1]),
        "read_table": lambda: ffrecord.read_table(names),
        "merge": merged,
        "ffrecord-pack": packed,
    }


def check_parquet_together(one: Any, other: Any, work: Path) -> None:  # noqa: ANN401
    """Two tables as Parquet, packed together: exact, or refused."""
    shutil.rmtree(work)
    work.mkdir()
    paths = [work / "a.parquet", work / "b.parquet"]
    for table, path in zip((one, other), paths, strict=True):
        pq.write_table(table, path)
    code, _, err = run("ffrecord-pack", *paths, work / "o.ffr")
    if code == 2:
        demand("column" in err, f"ffrecord-pack of two Parquet files: {err.strip()[-200:]}")
        return
    demand(code == 0, f"ffrecord-pack of two Parquet files: {code}: {err.strip()[-200:]}")
    # Parquet has not all types: what pyarrow reads is what is packed.
    wanted = [pq.read_table(path) for path in paths]
    found = ffrecord.read_table(work / "o.ffr")
    demand(found.schema.types == wanted[0].schema.types, f"Parquet files: {found.schema.types}")
    rows = [row for table in wanted for row in table.to_pylist()]
    demand(repr(found.to_pylist()) == repr(rows), f"Parquet files: {found.to_pylist()!r:.300}")
