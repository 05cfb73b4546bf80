"""Publishing datasets and their versions, and removing them: `publish` and `remove`."""

import contextlib
import json
from pathlib import Path
from typing import Any

import click

import ffrecord
from ffrecord import catalogue
from ffrecord._base.addresses import SCHEME, split_version
from ffrecord._cli.catalogue import as_facts
from ffrecord._cli.console import confirm, progress_bar
from ffrecord._cli.options import (
    check_can_hold,
    dry_run_option,
    json_option,
    overwrite_named,
    timeout_option,
)
from ffrecord._cli.units import Name, Target, show_size
from ffrecord._store.catalogue import check_removable
from ffrecord._store.published import only_versions
from ffrecord.errors import CorruptionError


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path())
@click.argument("address", type=Target())
@click.option("--overwrite", "replace", is_flag=True, help="Replace a dataset of that name.")
@click.option(
    "--version",
    metavar="VERSION",
    help="Publish FILES as this version of the dataset, which never changes. ADDRESS may then also "
    "be s3://BUCKET/NAME, or a folder.",
)
@click.option("--description", default="", help="With --version: one line about it.")
@click.option("--licence", default="", help="With --version: such as CC-BY-4.0.")
@click.option(
    "--tag", "tags", multiple=True, help="With --version: a tag that stands for it; repeatable."
)
@click.option(
    "--card",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="With --version: a file with its card, in Markdown.",
)
@click.option(
    "--durability",
    metavar="CLASS",
    default="replicas",
    show_default=True,
    help="How a cluster stores FILES. replicas: as its setting says. r1, r2, r3: 1, 2, 3 replicas. "
    "ec:4+2: an erasure code that survives the loss of any 2 nodes. origin: the nodes fetch and "
    "cache FILES from where they are: s3://BUCKET/KEY, or a folder that all nodes share.",
)
@click.option(
    "--copy-to",
    metavar="PLACE",
    help="With --durability origin: copy local FILES to PLACE first, s3://BUCKET/PREFIX or a "
    "folder. Replaces nothing there; rerun a failed command to resume it.",
)
@dry_run_option("Check FILES and ADDRESS, and publish nothing.")
@timeout_option()
@json_option()
def publish(
    files: tuple[str, ...],
    address: str,
    replace: bool,
    version: str | None,
    description: str,
    licence: str,
    tags: tuple[str, ...],
    card: Path | None,
    durability: str,
    copy_to: str | None,
    dry_run: bool,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Publish FILES as the dataset ADDRESS: ffrecord://HOST[:PORT]/NAME."""
    if version is not None:
        if replace or copy_to is not None:
            raise click.UsageError("--version takes no --overwrite and no --copy-to")
        text = "" if card is None else _text_of(card)
        said = {"description": description, "licence": licence, "tags": tags, "card": text}
        options = {**said, "durability": durability, "timeout_s": timeout_s}
        _publish_version(files, address, version, options, dry_run, as_json)
        return
    if description or licence or tags or card is not None:
        raise click.UsageError("--description, --licence, --tag and --card need --version")
    if copy_to is not None and durability != "origin":
        raise click.UsageError("--copy-to needs --durability origin")
    showing = contextlib.nullcontext() if dry_run else progress_bar("publishing")
    with overwrite_named(address, replace), showing as show:
        ffrecord.publish(
            files,
            address,
            replace=replace,
            durability=durability,
            copy_to=copy_to,
            timeout_s=timeout_s,
            progress=show,
            dry_run=dry_run,
        )
    if dry_run:
        facts = _would_publish(files, address, replace, timeout_s)
        text = f"would publish {facts['record_count']} records, {show_size(facts['size_bytes'])},"
        text += f" as {address}" + (", and replace what is there" if facts["replaces"] else "")
        click.echo(json.dumps(facts) if as_json else text)
        return
    click.echo(json.dumps({"published": address}) if as_json else f"published {address}")


def _text_of(card: Path) -> str:
    """The text of a card.

    Raises:
        ValueError: it is not UTF-8.
    """
    try:
        return card.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{card} is not UTF-8 ({error}); a card is text in Markdown") from None


def _publish_version(
    files: tuple[str, ...],
    place: str,
    version: str,
    options: dict[str, Any],
    dry_run: bool,
    as_json: bool,
) -> None:
    if dry_run:
        check_can_hold(place)
    showing = contextlib.nullcontext() if dry_run else progress_bar("publishing")
    with showing as show:
        made = catalogue.publish(files, place, version, dry_run=dry_run, progress=show, **options)
    if as_json:
        click.echo(json.dumps({**as_facts(made), "dry_run": dry_run}))
        return
    done = "would publish" if dry_run else "published"
    size = show_size(made.size_bytes)
    click.echo(f"{done} {made.address}: {made.record_count} records, {size}")


def _would_publish(
    files: tuple[str, ...], address: str, replace: bool, timeout_s: float
) -> dict[str, Any]:
    """The work of `publish` for files that it accepts."""
    with ffrecord.open(files, timeout_s=timeout_s) as reader:
        count, size_bytes = len(reader), sum(file.size_bytes for file in reader.files)
    return {
        "would_publish": address,
        "record_count": count,
        "size_bytes": size_bytes,
        "replaces": replace and _is_published(address, timeout_s),
        "dry_run": True,
    }


def _is_published(address: str, timeout_s: float) -> bool:
    try:
        with ffrecord.open(address, timeout_s=timeout_s) as there:
            len(there)
    except FileNotFoundError:
        return False
    except CorruptionError:
        return True
    return True


@click.command()
@click.argument("address", type=Name())
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Show what would be removed, and remove nothing.")
@timeout_option()
@json_option()
def remove(address: str, yes: bool, dry_run: bool, timeout_s: float, as_json: bool) -> None:
    """Remove the dataset ADDRESS, or its version ADDRESS@VERSION, from its daemon."""
    _check_daemon_address(address)
    is_version = split_version(address)[1] is not None
    if dry_run:
        count = _count_of(address, is_version, timeout_s)
        facts = {"would_remove": address, "record_count": count, "dry_run": True}
        text = f"would remove {address}: {count} records"
        click.echo(json.dumps(facts) if as_json else text)
        return
    if not yes:
        confirm(f"remove {address}?")
    if is_version:
        catalogue.remove(address, timeout_s=timeout_s)
    else:
        ffrecord.remove_published(address, timeout_s=timeout_s)
    click.echo(json.dumps({"removed": address}) if as_json else f"removed {address}")


def _count_of(address: str, is_version: bool, timeout_s: float) -> int:
    if is_version:
        return check_removable(address, timeout_s=timeout_s).record_count
    with ffrecord.open(address, timeout_s=timeout_s) as reader:
        if reader.versions:
            raise only_versions(address)
        return len(reader)


def _check_daemon_address(address: str) -> None:
    """Refuse what `remove` refuses, which opening records does not."""
    if not address.startswith(SCHEME):
        example = "an address looks like ffrecord://host[:port]/name"
        raise ValueError(f"{address!r}: does not begin with ffrecord://; {example}")
