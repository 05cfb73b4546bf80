"""Versions of datasets: `ls`, `show`, `search`, `diff` and `tag`."""

import dataclasses
import json
import time
from collections.abc import Iterable
from typing import Any

import click

from ffrecord import catalogue
from ffrecord._cli.options import dry_run_option, json_option, timeout_option
from ffrecord._cli.text import safe_lines, shown
from ffrecord._cli.units import Target, show_size

_PLACE = "ffrecord://localhost/"


def as_facts(version: catalogue.Version) -> dict[str, Any]:
    """A version for JSON, without what only `pull` needs."""
    facts = dataclasses.asdict(dataclasses.replace(version, stored={}))
    return {name: value for name, value in facts.items() if name != "stored"}


@click.command()
@click.argument("place", type=Target(), default=_PLACE)
@timeout_option()
@json_option("Print a JSON array with an object for each dataset.")
def ls(place: str, timeout_s: float, as_json: bool) -> None:
    """List the datasets with versions at PLACE: a daemon, s3://BUCKET/PREFIX or a folder.

    `list` shows everything that a daemon has, also datasets without versions.
    """
    found = catalogue.ls(place, timeout_s=timeout_s)
    if as_json:
        click.echo(json.dumps([_dataset_facts(dataset) for dataset in found]))
        return
    for dataset in found:
        count = len(dataset.versions)
        note = f": {shown(dataset.problem)}" if dataset.problem else ""
        if not count and not note:
            note = ": all were removed; the list of their names stays, so that none is used again"
        click.echo(f"{shown(dataset.address)}  {count} version{'s'[: count != 1]}{note}")
        for version in reversed(dataset.versions):
            click.echo(f"  {_line(version)}")


def _dataset_facts(dataset: catalogue.Dataset) -> dict[str, Any]:
    facts = dataclasses.asdict(dataclasses.replace(dataset, versions=()))
    return {**facts, "versions": [as_facts(version) for version in dataset.versions]}


def _line(version: catalogue.Version, name: str | None = None) -> str:
    tags = f"  [{', '.join(version.tags)}]" if version.tags else ""
    text = f"  {shown(version.description, 80)}" if version.description else ""
    size = show_size(version.size_bytes)
    name = name or version.version
    return f"{name:<16} {_day(version)} {version.record_count:>12} records {size:>10}{tags}{text}"


def _day(version: catalogue.Version) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(version.created_s))


@click.command()
@click.argument("address", type=Target())
@timeout_option()
@json_option()
def show(address: str, timeout_s: float, as_json: bool) -> None:
    """Show the card and the facts of a version: PLACE@VERSION, PLACE@TAG, or PLACE: the newest."""
    version = catalogue.show(address, timeout_s=timeout_s)
    if as_json:
        click.echo(json.dumps(as_facts(version)))
        return
    click.echo(safe_lines("\n".join(_facts_for_people(version))))


def _facts_for_people(version: catalogue.Version) -> Iterable[str]:
    facts = {
        "address": version.address,
        "published": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(version.created_s)),
        "parent": version.parent or "none",
        "description": version.description,
        "licence": version.licence,
        "tags": ", ".join(version.tags),
        "records": str(version.record_count),
        "size": show_size(version.size_bytes),
        "fingerprint": version.fingerprint,
    }
    yield from (f"{name:<13}{value}" for name, value in facts.items() if value)
    for number, (name, spelling) in enumerate((version.schema or {"(bytes)": "no schema"}).items()):
        yield f"{'' if number else 'schema':<13}{name}: {spelling}"
    for number, file in enumerate(version.files):
        head = "" if number else "files"
        yield f"{head:<13}{file.name}: {file.record_count} records, {show_size(file.size_bytes)}"
    if version.card:
        yield ""
        yield version.card.rstrip("\n")


@click.command()
@click.argument("text")
@click.argument("place", type=Target(), default=_PLACE)
@timeout_option()
@json_option("Print a JSON array with an object for each version.")
def search(text: str, place: str, timeout_s: float, as_json: bool) -> None:
    """Find versions at PLACE whose name, card, tags or columns have all words of TEXT."""
    found = catalogue.search(text, place, timeout_s=timeout_s)
    if as_json:
        click.echo(json.dumps([as_facts(version) for version in found]))
        return
    for version in found:
        click.echo(_line(version, shown(version.label)))


@click.command()
@click.argument("before", type=Target())
@click.argument("after", type=Target())
@timeout_option()
@json_option()
def diff(before: str, after: str, timeout_s: float, as_json: bool) -> None:
    """Compare two versions, PLACE@VERSION each: columns, files, records and sizes."""
    found = catalogue.diff(before, after, timeout_s=timeout_s)
    if as_json:
        facts = {name: value for name, value in vars(found).items() if name not in _SIDES}
        sides = {name: as_facts(getattr(found, name)) for name in _SIDES}
        click.echo(json.dumps({**sides, **facts}))
        return
    click.echo(safe_lines("\n".join(_changes(found))))


_SIDES = ("before", "after")


def _changes(found: catalogue.Difference) -> Iterable[str]:
    yield f"{found.before.label} -> {found.after.label}"
    if found.is_same:
        yield "the same records in the same order"
    yield f"records  {found.before.record_count} -> {found.after.record_count}"
    sizes = show_size(found.before.size_bytes), show_size(found.after.size_bytes)
    yield f"size     {sizes[0]} -> {sizes[1]}; {show_size(found.shared_bytes)} stored once for both"
    yield from (f"+ column {name}: {kind}" for name, kind in found.columns_added.items())
    yield from (f"- column {name}: {kind}" for name, kind in found.columns_removed.items())
    for name, (old, new) in found.columns_changed.items():
        yield f"~ column {name}: {old} -> {new}"
    yield from (f"+ file {name}" for name in found.files_added)
    yield from (f"- file {name}" for name in found.files_removed)
    yield from (f"~ file {name}" for name in found.files_changed)
    yield f"{len(found.files_same)} files are the same"


@click.command()
@click.argument("address", type=Target())
@click.argument("name", required=False)
@click.option("--remove", is_flag=True, help="Remove the tag ADDRESS: PLACE@TAG.")
@dry_run_option("Check the arguments, and change nothing.")
@timeout_option()
@json_option()
def tag(
    address: str, name: str | None, remove: bool, dry_run: bool, timeout_s: float, as_json: bool
) -> None:
    """Let the tag NAME stand for the version ADDRESS: PLACE@VERSION.

    If the tag stood for another version, it moves. No data is changed.
    """
    if remove == (name is not None):
        raise click.UsageError("give NAME, or --remove to remove the tag in ADDRESS")
    if name is None:
        catalogue.untag(address, dry_run=dry_run, timeout_s=timeout_s)
        facts, text = {"removed": address}, f"the tag {address}"
        done = "would remove" if dry_run else "removed"
    else:
        found = catalogue.tag(address, name, dry_run=dry_run, timeout_s=timeout_s)
        facts = {"tag": name, "version": found.version, "address": found.address}
        text, done = f"{found.address} as {name}", "would tag" if dry_run else "tagged"
    click.echo(json.dumps({**facts, "dry_run": dry_run}) if as_json else f"{done} {text}")
