"""ffrecord export: records as files of other kinds."""

import click

from ffrecord._base.destination import destination_path
from ffrecord._cli.console import progress_bar
from ffrecord._cli.data.exporting import FORMATS, Export, format_of
from ffrecord._cli.data.looking import DRY_RUN_HELP, column_option, timeout
from ffrecord._cli.data.records import selected
from ffrecord._cli.data.rewriting import opened_whole
from ffrecord._cli.data.values import dumps

_INDEX_MAX = (1 << 63) - 1


@click.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path())
@click.argument("destination", type=click.Path())
@click.option(
    "--format",
    "asked",
    type=click.Choice(FORMATS),
    help="By default as DESTINATION ends: .tar, .jsonl, .parquet; without an ending a folder.",
)
@column_option
@click.option(
    "--start", type=click.IntRange(0, _INDEX_MAX), default=0, help="Index of the first record."
)
@click.option("--count", type=click.IntRange(1, _INDEX_MAX), help="So many records at most.")
@click.option(
    "--plain", is_flag=True, help="JSON lines: the columns alone, as ffrecord-pack reads them."
)
@click.option("--overwrite", is_flag=True, help="Replace the file DESTINATION if it exists.")
@click.option("--dry-run", is_flag=True, help=DRY_RUN_HELP)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@timeout
def export(
    files: tuple[str, ...],
    destination: str,
    asked: str | None,
    names: tuple[str, ...],
    start: int,
    count: int | None,
    plain: bool,
    overwrite: bool,
    dry_run: bool,
    as_json: bool,
    timeout_s: float,
) -> None:
    """Write the records of FILE as a folder, a tar, JSON lines, or Parquet.

    A folder has a file for each value of bytes or text, and a line for each record in
    records.jsonl. A tar has the form of WebDataset: a file for each column. In JSON lines,
    bytes that are no UTF-8 are {"base64": ...}. A value that is missing is null; in a tar, its file
    is not there. Dates, times and decimals are text, which needs pyarrow, as Parquet does.
    DESTINATION appears only once it is complete; a folder that exists is not replaced.
    """
    path = destination_path(destination)
    format_ = format_of(path, asked)
    if plain and format_ != "jsonl":
        raise click.UsageError("--plain is for JSON lines")
    with opened_whole(files, timeout_s) as reader:
        if start >= len(reader):
            raise ValueError(f"--start {start}: there are {len(reader)} records")
        stop = len(reader) if count is None else min(len(reader), start + count)
        columns = selected(reader, names)
        if dry_run:
            Export(reader, columns, None, plain=plain).check(path, format_, overwrite)
            written = stop - start
        else:
            with progress_bar("exporting") as show:
                made = Export(reader, columns, show, plain=plain)
                written = made.write(range(start, stop), path, format_, overwrite)
    if as_json:
        facts = {"record_count": written, "format": format_, "dry_run": dry_run}
        click.echo(dumps({**facts, "destination": str(path)}))
    else:
        done = "would export" if dry_run else "exported"
        click.echo(f"{done} {written} records to {destination} ({format_})")
