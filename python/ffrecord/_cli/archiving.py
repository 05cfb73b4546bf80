"""ffrecord push, pull and evict: datasets at stores, and what a folder holds of them."""

import json

import click

from ffrecord import archive
from ffrecord._cli.console import progress_bar
from ffrecord._cli.options import check_can_hold, dry_run_option, json_option, timeout_option
from ffrecord._cli.units import Size, Target
from ffrecord._store import eviction


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path())
@click.argument("target", type=Target())
@dry_run_option("Show which files would be uploaded, and upload nothing.")
@timeout_option()
@json_option()
def push(
    files: tuple[str, ...], target: str, dry_run: bool, timeout_s: float, as_json: bool
) -> None:
    """Upload sealed FILES as one dataset to TARGET, such as s3://BUCKET/NAME.

    Skips files that are already there: rerun a failed command to resume it.
    """
    if dry_run:
        check_can_hold(target)
    with progress_bar("pushing") as show:
        sent = archive.push(files, target, timeout_s=timeout_s, dry_run=dry_run, progress=show)
    text = f"{'would upload' if dry_run else 'uploaded'} {len(sent)} files to {target}"
    click.echo(json.dumps({"sent": sent, "dry_run": dry_run}) if as_json else text)


@click.command()
@click.argument("target", type=Target())
@click.argument("folder", type=click.Path(file_okay=False))
@click.option("--version", help="A version or tag of the dataset; otherwise the newest.")
@dry_run_option("Show which files would be downloaded, and download nothing.")
@timeout_option()
@json_option()
def pull(
    target: str,
    folder: str,
    version: str | None,
    dry_run: bool,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Download the dataset at TARGET, made by `push` or `publish --version`, to FOLDER.

    Files there that are the same stay; others of the same names are replaced.
    """
    if dry_run:
        check_can_hold(folder)
    with progress_bar("pulling") as show:
        brought = archive.pull(
            target, folder, version=version, timeout_s=timeout_s, dry_run=dry_run, progress=show
        )
    text = f"{'would download' if dry_run else 'downloaded'} {len(brought)} files to {folder}"
    click.echo(json.dumps({"brought": brought, "dry_run": dry_run}) if as_json else text)


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False))
@click.argument("target", type=Target())
@click.option(
    "--keep", type=Size(0), default=0, show_default=True, help="Files of this size stay: 100GiB."
)
@click.option("--dry-run", is_flag=True, help="Show what would be removed, and remove nothing.")
@timeout_option()
@json_option()
def evict(
    folder: str, target: str, keep: int, dry_run: bool, timeout_s: float, as_json: bool
) -> None:
    """Remove files of FOLDER that are at TARGET; opening FOLDER downloads them again.

    The least recently read go first, until FOLDER holds no more than --keep. Their copies at TARGET
    are read first, and compared.
    """
    gone = eviction.evict(folder, target, keep_bytes=keep, timeout_s=timeout_s, dry_run=dry_run)
    if as_json:
        click.echo(json.dumps({"evicted": gone, "dry_run": dry_run}))
    else:
        done = "would evict" if dry_run else "evicted"
        click.echo(f"{done} {len(gone)} files from {folder}; they remain at {target}")
