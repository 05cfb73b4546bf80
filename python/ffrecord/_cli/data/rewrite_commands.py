"""ffrecord merge, split, shuffle: new record files of the same records."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import click

from ffrecord import Reader
from ffrecord._base import clock
from ffrecord._base.destination import destination_path
from ffrecord._cli.console import progress_bar
from ffrecord._cli.data.looking import DRY_RUN_HELP, timeout
from ffrecord._cli.data.records import in_order, shuffled
from ffrecord._cli.data.rewriting import (
    IsFull,
    MetadataOf,
    Rewriting,
    Written,
    by_parts,
    by_records,
    by_size,
    form_of,
    key_of_all,
    opened_whole,
)
from ffrecord._cli.data.values import dumps
from ffrecord._cli.options import PART_BYTES, check_parts
from ffrecord._cli.units import Size, show_size
from ffrecord._order.epoch_order import Indices
from ffrecord._write.new_folder import check_vacant
from ffrecord.pack import DICTIONARY_BYTES

_COUNT_MAX = 1 << 40

_OPTIONS = (
    click.option("--overwrite", is_flag=True, help="Replace DESTINATION if it exists."),
    click.option(
        "--compress/--no-compress",
        default=None,
        help="Compress each record with zstd; by default if FILE is smaller than its records.",
    ),
    click.option(
        "--dictionary",
        type=Size(*DICTIONARY_BYTES),
        metavar="SIZE",
        help="Compress with a new dictionary of this size, such as 110KiB.",
    ),
    click.option(
        "--metadata",
        "metadata_of",
        type=click.Choice(["all", "first", "none"]),
        default="all",
        show_default=True,
        help="Whose metadata to keep: of all files, which must have the same, or of the first.",
    ),
    click.option("--dry-run", is_flag=True, help=DRY_RUN_HELP),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
    timeout,
)
_part_size = click.option(
    "--part-size",
    type=Size(),
    metavar="SIZE",
    help="Size of each part of a folder, 1GiB by default.",
)


@dataclasses.dataclass(frozen=True)
class _Wanted:
    """The options that the three commands share."""

    overwrite: bool
    compress: bool | None
    dictionary: int | None
    metadata_of: MetadataOf
    dry_run: bool
    as_json: bool
    timeout_s: float


def _options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the shared options, as one argument `wanted`."""

    def collected(**given: Any) -> None:  # noqa: ANN401 - as click says
        names = [field.name for field in dataclasses.fields(_Wanted)]
        shared = {name: given.pop(name) for name in names}
        command(**given, wanted=_Wanted(**shared))

    collected.__doc__, collected.__name__ = command.__doc__, command.__name__
    decorated = collected
    # As decorators are applied: the parameters of the command itself come first.
    parameters = getattr(command, "__click_params__", [])
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    decorated.__click_params__ += parameters  # type: ignore[attr-defined]
    return decorated


@click.command()
@_options
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path())
@click.argument("destination", type=click.Path())
@_part_size
def merge(files: tuple[str, ...], destination: str, part_size: int | None, wanted: _Wanted) -> None:
    """Write the records of all FILEs, in this order, to DESTINATION.

    DESTINATION is one file if it ends in .ffr, else a folder of parts. It appears only once it is
    complete. Keeps keys, schema and metadata; refuses files whose columns or metadata differ.
    """
    check_parts(destination, part_size)
    with opened_whole(files, wanted.timeout_s) as reader:
        pieces = in_order(0, len(reader))
        _write(reader, pieces, destination, by_size(part_size or PART_BYTES), wanted, "merged")


@click.command()
@_options
@click.argument("file", metavar="FILE", type=click.Path())
@click.argument("folder", type=click.Path())
@click.option("--parts", type=click.IntRange(1, _COUNT_MAX), help="So many parts.")
@click.option(
    "--part-records", type=click.IntRange(1, _COUNT_MAX), help="So many records in each part."
)
@click.option("--part-size", type=Size(), metavar="SIZE", help="Parts of this size: 1GiB.")
def split(
    file: str,
    folder: str,
    parts: int | None,
    part_records: int | None,
    part_size: int | None,
    wanted: _Wanted,
) -> None:
    """Write the records of FILE, in their order, to parts in a new FOLDER.

    Give one of --parts, --part-records, and --part-size. FOLDER appears only once it is complete.
    Keeps keys, schema and metadata.
    """
    if sum(option is not None for option in (parts, part_records, part_size)) != 1:
        raise click.UsageError("give one of --parts, --part-records, and --part-size")
    if folder.endswith(".ffr"):
        raise click.UsageError(f"{folder} has the name of a file; name a folder for the parts")
    with opened_whole([file], wanted.timeout_s) as reader:
        if parts is not None:
            if parts > len(reader):
                raise ValueError(f"--parts {parts}: {file} has only {len(reader)} records")
            is_full = by_parts(parts, len(reader))
        elif part_records is not None:
            is_full = by_records(part_records)
        else:
            is_full = by_size(part_size or 1)
        _write(reader, in_order(0, len(reader)), folder, is_full, wanted, "split")


@click.command()
@_options
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path())
@click.argument("destination", type=click.Path())
@click.option(
    "--seed",
    type=click.IntRange(0, (1 << 64) - 1),
    required=True,
    help="The same seed gives the same order.",
)
@_part_size
def shuffle(
    files: tuple[str, ...],
    destination: str,
    seed: int,
    part_size: int | None,
    wanted: _Wanted,
) -> None:
    """Write the records of all FILEs in the random order of --seed to DESTINATION.

    The order is that of a Sampler in epoch 0 with this seed. Records are read where they are, some
    thousands at a time: memory stays the same, and a disk that seeks slowly takes long.
    DESTINATION is one file if it ends in .ffr, else a folder of parts. It appears only once it is
    complete. Keeps keys, schema and metadata.
    """
    check_parts(destination, part_size)
    with opened_whole(files, wanted.timeout_s) as reader:
        pieces = shuffled(len(reader), seed)
        _write(reader, pieces, destination, by_size(part_size or PART_BYTES), wanted, "shuffled")


def _write(
    reader: Reader,
    pieces: Iterable[Indices],
    destination: str,
    is_full: IsFull,
    wanted: _Wanted,
    done: str,
) -> None:
    begin = clock.now()
    path = destination_path(destination)
    check_vacant(path, wanted.overwrite)
    form = form_of(reader, wanted.compress, wanted.dictionary or 0, wanted.metadata_of)
    if wanted.dry_run:
        key_of_all(reader)
        _say_dry(reader, destination, form.compress, wanted)
        return
    with progress_bar("writing") as show:
        written = Rewriting(reader, form, show).write(pieces, path, is_full, wanted.overwrite)
    seconds = clock.now() - begin
    if wanted.as_json:
        click.echo(dumps({**dataclasses.asdict(written), "seconds": round(seconds, 3)}))
    else:
        click.echo(_line(written, destination, done, seconds))


def _say_dry(reader: Reader, destination: str, compress: bool, wanted: _Wanted) -> None:
    facts = {"dry_run": True, "record_count": len(reader), "compress": compress}
    if wanted.as_json:
        click.echo(dumps(facts))
    else:
        how = "compressed" if compress else "not compressed"
        click.echo(f"would write {len(reader)} records, {how}, to {destination}")


def _line(written: Written, destination: str, done: str, seconds: float) -> str:
    files = f" in {len(written.files)} files" if len(written.files) > 1 else ""
    return (
        f"{done} {written.record_count} records, {show_size(written.raw_size_bytes)}, into "
        f"{destination}{files}, {show_size(written.file_size_bytes)}; {seconds:.1f} s"
    )
