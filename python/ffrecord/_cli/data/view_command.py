"""ffrecord view: one page about record files."""

import os
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np

from ffrecord import Batch, Reader
from ffrecord._base.destination import destination_path
from ffrecord._cli.console import progress_bar
from ffrecord._cli.data.looking import count_option, files, seed_option, timeout
from ffrecord._cli.data.new_file import check_no_source, check_vacant_file, new_file
from ffrecord._cli.data.page import Page
from ffrecord._cli.data.records import Keys, batches, opened, shuffled
from ffrecord._cli.data.stats_command import examined
from ffrecord._cli.data.values import dumps
from ffrecord._cli.units import Size, show_size

# Keys of more records would take long to list for a few that are shown.
_KEYS_RECORDS_MAX = 1_000_000
_TOKENS = {"u16": "<u2", "u32": "<u4", "i32": "<i4", "i64": "<i8"}


@click.command()
@files
@click.option(
    "--output",
    type=click.Path(dir_okay=False),
    metavar="PAGE",
    help="The page; by default the name of FILE with .html, in this folder.",
)
@count_option(100, "Show so many random records.")
@seed_option
@click.option(
    "--examine",
    type=click.IntRange(1, (1 << 63) - 1),
    default=10_000,
    show_default=True,
    help="Read so many random records for the distributions.",
)
@click.option("--all", "everything", is_flag=True, help="Read all records for the distributions.")
@click.option(
    "--tokens",
    type=click.Choice(list(_TOKENS)),
    help="Records without columns are tokens of this type.",
)
@click.option(
    "--max-size",
    type=Size(1 << 16, 1 << 30),
    default="16MiB",
    show_default=True,
    help="Add no more records once the page has this size.",
)
@click.option("--overwrite", is_flag=True, help="Replace PAGE if it exists.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@timeout
def view(
    where: tuple[str, ...],
    output: str | None,
    count: int,
    seed: int,
    examine: int,
    everything: bool,
    tokens: str | None,
    max_size: int,
    overwrite: bool,
    as_json: bool,
    timeout_s: float,
) -> None:
    """Make one page of HTML that shows what is in FILE.

    It has pictures, sounds, text and tokens of random records, the distributions of sizes, labels
    and other numbers, and the damaged records among those read. It can be searched by key, and
    needs nothing from elsewhere. Nothing in a record can run in it.
    """
    path = destination_path(output if output is not None else _name(where[0]), "the page")
    check_vacant_file(path, overwrite)
    with opened(where, timeout_s) as reader:
        check_no_source(path, reader)
        if tokens is not None and reader.columns:
            raise ValueError(f"--tokens is for records without columns, and {where[0]} has some")
        with progress_bar("reading") as show:
            found = examined(reader, None if everything else examine, seed, show)
        keys = Keys(reader) if len(reader) <= _KEYS_RECORDS_MAX else None
        page = Page(
            reader,
            found,
            keys=keys,
            size_max_bytes=max_size,
            tokens=None if tokens is None else np.dtype(_TOKENS[tokens]),
        )
        with new_file(path, overwrite) as file:
            for piece in page.pieces(_chosen(reader, seed, count, page)):
                file.write(piece.encode())
        if keys is not None:
            keys.close()
    size = path.stat().st_size
    if as_json:
        facts = {"page": str(path), "size_bytes": size, "records_shown": page.record_count}
        click.echo(dumps({**facts, "damaged_count": found.damaged_count}))
    else:
        click.echo(f"{path}: {page.record_count} records shown, {show_size(size)}")


def _chosen(reader: Reader, seed: int, count: int, page: Page) -> Iterator[Batch]:
    """Batches of random records, until the page is full."""
    for batch in batches(reader, shuffled(len(reader), seed, count), keep=True):
        if page.is_full:
            return
        yield batch


def _name(where: str) -> str:
    """The name of the page about `where`."""
    name = where.split("?")[0].rstrip("/").rsplit("/", 1)[-1]
    if name in (".", ".."):
        name = Path(os.getcwd(), where).resolve().name
    return f"{name.replace('*', '_') or 'records'}.html"
