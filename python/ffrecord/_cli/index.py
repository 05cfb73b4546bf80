"""ffrecord index: read files of other kinds where they are."""

import dataclasses
import json

import click

from ffrecord._cli.console import progress_bar
from ffrecord._cli.options import json_option
from ffrecord._cli.text import shown
from ffrecord._cli.units import show_size
from ffrecord.pack._in_place import index as make_index


@click.command()
@click.argument("sources", type=click.Path(), nargs=-1, required=True, metavar="SOURCE...")
@click.option(
    "--index-dir",
    type=click.Path(file_okay=False),
    metavar="FOLDER",
    help="Put the indexes there; open that folder then.",
)
@json_option()
def index(sources: tuple[str, ...], index_dir: str | None, as_json: bool) -> None:
    """Index files, which are then read where they are.

    SOURCE is a plain tar (also of WebDataset), a TFRecord file, a JSON lines file, a .bin of
    Megatron, a folder or glob of these, or a folder of uncompressed MDS shards. The index of FILE
    is FILE.ffindex; files whose index fits are left out. ffrecord.open reads the files then as it
    reads record files.
    """
    with progress_bar("indexing") as show:
        made = make_index(sources, index_dir=index_dir, progress=show)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(made)))
        return
    for path in made.left_out:
        click.echo(f"left out {shown(path)}: it is about the data")
    for path in made.indexed:
        click.echo(f"indexed {shown(path)}")
    click.echo(
        f"{made.record_count} records in {len(made.indexed) + len(made.unchanged)} files, "
        f"{len(made.unchanged)} of them indexed before; {show_size(made.index_bytes)} of indexes"
    )
