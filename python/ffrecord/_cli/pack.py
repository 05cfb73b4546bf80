"""ffrecord-pack: datasets of other forms into record files."""

import dataclasses
import json
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TextIO

import click

from ffrecord._base import clock
from ffrecord._cli.console import progress_bar, run
from ffrecord._cli.options import check_parts
from ffrecord._cli.text import shown
from ffrecord._cli.units import Size, show_size
from ffrecord.pack import DICTIONARY_BYTES, SourceOptions, open_source, pack
from ffrecord.pack._kinds import listed

if TYPE_CHECKING:
    from ffrecord.pack import PackEstimate, PackSummary

_CLASSES_SHOWN_MAX = 30


@click.command(epilog=f"Kinds of sources: {listed()}.")
@click.version_option(package_name="ffrecord")
@click.argument("sources", type=click.Path(), nargs=-1, metavar="SOURCE...")
@click.argument("destination", type=click.Path())
@click.option(
    "--from",
    "listed_in",
    type=click.File(encoding="utf-8"),
    metavar="FILE",
    help="A text with a source on each line, behind those that are given; - is standard input.",
)
@click.option("--compress", is_flag=True, help="Compress each record with zstd.")
@click.option(
    "--dictionary",
    type=Size(*DICTIONARY_BYTES),
    metavar="SIZE",
    help="Compress with a dictionary of this size, such as 110KiB, trained on the first records: "
    "for small records that are alike.",
)
@click.option(
    "--part-size",
    type=Size(),
    metavar="SIZE",
    help="Size of each part of a folder: 64MiB to 1GiB by default, a 64th of the inputs.",
)
@click.option("--overwrite", "replace", is_flag=True, help="Replace DESTINATION if it exists.")
@click.option("--follow-links", is_flag=True, help="Follow symbolic links.")
@click.option(
    "--include", multiple=True, metavar="PATTERN", help="Only files that match, such as '*.png'."
)
@click.option("--nested", is_flag=True, help="Allow classes whose files are all in subfolders.")
@click.option(
    "--label-field", metavar="NAME", help="Field with the label of a JSON line that is kept whole."
)
@click.option(
    "--column", "columns", multiple=True, metavar="NAME", help="Pack only this column; repeatable."
)
@click.option("--drop", multiple=True, metavar="NAME", help="Leave this column out; repeatable.")
@click.option(
    "--cast",
    "casts",
    multiple=True,
    metavar="NAME=TYPE",
    help="Store a column of a table as this type, such as i64, utf8 or timestamp[us]; repeatable.",
)
@click.option("--key", metavar="NAME", help="Column by which records are found.")
@click.option(
    "--ragged",
    multiple=True,
    metavar="NAME",
    help="TFRecord feature whose number of values varies.",
)
@click.option(
    "--raw", is_flag=True, help="Pack TFRecords, files in tars, and JSON lines unchanged."
)
@click.option("--split", metavar="NAME", help="Of a folder with several splits, the one to pack.")
@click.option(
    "--tokens",
    metavar="TYPE[:END]",
    help="Type in a file of nothing but tokens: u16 or u32; and the token that ends a document.",
)
@click.option(
    "--map",
    "functions",
    multiple=True,
    metavar="MODULE:FUNCTION",
    help="Python function of a sample: returns None to leave it out, a dict, or several dicts; or "
    "one of ffrecord.pack.maps, such as 'resize(256)'. Repeatable: one after the other.",
)
@click.option(
    "--shuffle",
    type=click.IntRange(min=0),
    metavar="SEED",
    help="Put all records in an order that this number gives; needs the room of the result twice.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    metavar="N",
    help="Processes to use; 1 by default, with --ray one for each CPU. Others with the same "
    "command may join, on other hosts too.",
)
@click.option(
    "--ray",
    metavar="ADDRESS",
    help="Let tasks of this Ray cluster be the workers; auto is the one that this host is in. Its "
    "nodes share the folder of DESTINATION.",
)
@click.option(
    "--max-failures",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="How many samples may fail in the function; 0 by default.",
)
@click.option(
    "--retry-failed", is_flag=True, help="Do parts again in which samples failed; then continue."
)
@click.option(
    "--restart", is_flag=True, help="Begin anew instead of continuing an interrupted run."
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Convert the first samples for some seconds; show columns, sizes, rate and time of all.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    sources: tuple[str, ...],
    destination: str,
    listed_in: TextIO | None,
    compress: bool,
    dictionary: int | None,
    part_size: int | None,
    replace: bool,
    follow_links: bool,
    include: tuple[str, ...],
    nested: bool,
    label_field: str | None,
    columns: tuple[str, ...],
    drop: tuple[str, ...],
    casts: tuple[str, ...],
    key: str | None,
    ragged: tuple[str, ...],
    raw: bool,
    split: str | None,
    tokens: str | None,
    functions: tuple[str, ...],
    shuffle: int | None,
    workers: int | None,
    ray: str | None,
    max_failures: int,
    retry_failed: bool,
    restart: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Pack SOURCE into DESTINATION.

    SOURCE is one folder, or any number of files of one kind; the kinds are listed below. It is
    local, or s3://BUCKET/KEY, or http(s)://HOST/PATH; s3://BUCKET/a*.tar is a pattern.
    DESTINATION is one file if it ends in .ffr, else a folder of parts. DESTINATION appears only
    once it is complete. A folder that was interrupted is continued by the same command.
    """
    check_parts(destination, part_size)
    sources += _lines_of(listed_in)
    if not sources:
        raise click.UsageError("there is no SOURCE: name one before DESTINATION, or give --from")
    begin = clock.now()
    ahead = 0 if dry_run or ray is not None else workers or 1
    with _workers_ahead(ahead), progress_bar("packing") as show:
        samples = open_source(
            sources,
            SourceOptions(
                follow_links=follow_links,
                include=include,
                nested=nested,
                label_field=label_field,
                columns=columns,
                drop=drop,
                cast=tuple(_cast(text) for text in casts),
                ragged=ragged,
                raw=raw,
                split=split,
                tokens=tokens,
            ),
        )
        options: dict[str, Any] = {
            "compress": compress,
            "dictionary_bytes": dictionary or 0,
            "replace": replace,
            "key": key,
            "map": list(functions) or None,
            "max_failures": max_failures,
        }
        if dry_run:
            from ffrecord.pack import estimate_packing

            found = estimate_packing(samples, destination, workers=workers or 1, **options)
            _show_estimate(found, destination, as_json)
            return
        summary = pack(
            samples,
            destination,
            **options,
            workers=workers,
            ray=ray,
            part_size_bytes=part_size,
            shuffle=shuffle,
            retry_failed=retry_failed,
            restart=restart,
            progress=None if show is None else lambda done: show(done, samples.size_bytes),
        )
    seconds = clock.now() - begin
    if as_json:
        click.echo(json.dumps({**dataclasses.asdict(summary), "seconds": round(seconds, 3)}))
    else:
        click.echo(_line(destination, summary, seconds))


def _workers_ahead(count: int) -> AbstractContextManager[None]:
    """Workers that are forked while this process has nothing but the command in it."""
    if count <= 1:
        return nullcontext()
    from ffrecord.pack._worker_processes import workers_ahead  # Brings multiprocessing.

    return workers_ahead(count)


def _show_estimate(found: "PackEstimate", destination: str, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({**dataclasses.asdict(found), "dry_run": True}))
        return
    about = "" if found.is_whole else "about "
    lines = [f"{name}: {kind}" for name, kind in found.columns.items()]
    lines.append(
        f"would pack {about}{found.record_count} records, {show_size(found.raw_size_bytes)}, into "
        f"{destination}, {about}{show_size(found.file_size_bytes)}, in about {found.seconds:.1f} s "
        f"({show_size(found.bytes_per_second)}/s by one worker); {found.sample_count} samples were "
        "converted"
    )
    click.echo("\n".join(shown(line, len(line)) for line in lines))


def _lines_of(file: TextIO | None) -> tuple[str, ...]:
    """The sources in a text, without blank lines, and those that begin with #."""
    try:
        lines = [] if file is None else [line.strip() for line in file]
    except UnicodeDecodeError as error:
        raise click.BadParameter(f"it is not UTF-8: {error}", param_hint="--from") from None
    found = tuple(line for line in lines if line and not line.startswith("#"))
    if file is not None and not found:
        raise click.BadParameter("it names no source", param_hint="--from")
    return found


def _cast(text: str) -> tuple[str, str]:
    name, equals, kind = text.rpartition("=")
    if not (name and equals and kind):
        raise click.BadParameter(f"'{text}' is not NAME=TYPE", param_hint="--cast")
    return name, kind


def _line(destination: str, summary: "PackSummary", seconds: float) -> str:
    rate = summary.raw_size_bytes / max(seconds, 1e-9)
    parts = f" in {summary.file_count} files" if summary.file_count > 1 else ""
    line = (
        f"packed {summary.record_count} records, {show_size(summary.raw_size_bytes)}, into "
        f"{destination}{parts}, {show_size(summary.file_size_bytes)}; "
        f"{seconds:.1f} s, {show_size(rate)}/s"
    )
    for what, count in summary.skipped.items():
        line += f"; skipped {count} {what}"
    if summary.failures:
        line += f"; {len(summary.failures)} samples failed, the first: {summary.failures[0]}"
    if summary.classes:
        names = [f"{i} {name}" for i, name in enumerate(summary.classes[:_CLASSES_SHOWN_MAX])]
        more = ", ..." if len(summary.classes) > _CLASSES_SHOWN_MAX else ""
        line += f"; {len(summary.classes)} classes: {', '.join(names)}{more}"
    return shown(line, len(line))


def main() -> int:
    """Run the command line; return the exit code."""
    if any(word.partition("=")[0] == "--map" for word in sys.argv[1:]):
        from ffrecord._cli.guarded import guarded  # Brings ctypes.

        return guarded(lambda: run(command))
    return run(command)


if __name__ == "__main__":
    sys.exit(main())
