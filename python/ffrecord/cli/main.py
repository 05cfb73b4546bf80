"""ffrecord: look at record files, check them, and serve them from a daemon."""

import dataclasses
import json
import sys
from typing import Any

import click

import ffrecord
from ffrecord.cli.console import EXIT_DAMAGE, progress_bar, run
from ffrecord.cli.doctor import examine, show_findings
from ffrecord.cli.units import show_size


@click.group()
@click.version_option(package_name="ffrecord")
def cli() -> None:
    """Training data in record files: look, check, publish."""


_as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@cli.command()
@click.argument("where", nargs=-1, required=True)
@_as_json
def inspect(where: tuple[str, ...], as_json: bool) -> None:
    """Show what WHERE holds: files, folders, globs, or ffrecord://HOST/NAME."""
    with ffrecord.open(where) as reader:
        facts = {
            "record_count": len(reader),
            "size_bytes": sum(file.size_bytes for file in reader.files),
            "fingerprint": reader.fingerprint,
            "schema": reader.schema,
            "files": [dataclasses.asdict(file) for file in reader.files],
        }
    click.echo(json.dumps(facts) if as_json else "\n".join(_describe(facts)))


def _describe(facts: dict[str, Any]) -> list[str]:
    lines = [
        f"records      {facts['record_count']}",
        f"size         {show_size(facts['size_bytes'])}",
        f"fingerprint  {facts['fingerprint']}",
    ]
    schema = facts["schema"] or {"(bytes)": "no schema"}
    lines += [
        f"{'schema' if number == 0 else '':<13}{name}: {spelling}"
        for number, (name, spelling) in enumerate(schema.items())
    ]
    lines += [f"{'format':<8}{'records':>12}{'size':>12}  file"]
    for file in facts["files"]:
        count, size = file["record_count"], show_size(file["size_bytes"])
        lines.append(f"v{file['format_version']:<7}{count:>12}{size:>12}  {file['name']}")
        lines += [f"{'':<8}warning: {warning}" for warning in file["warnings"]]
    return lines


@cli.command()
@click.argument("where", nargs=-1, required=True)
@_as_json
def verify(where: tuple[str, ...], as_json: bool) -> None:
    """Read every record of WHERE and check it; exit 3 if one is damaged."""
    with ffrecord.open(where, salvage=True) as reader, progress_bar("verifying") as show:
        total = sum(file.size_bytes for file in reader.files)
        done = 0
        for batch in reader.batches(on_corrupt="keep"):
            done += len(batch.slab)
            if show is not None:
                show(done, total)
        count = len(reader)
        damaged = reader.stats()["damaged"]
    if as_json:
        found = [{"index": index, "reason": reason} for index, reason in damaged.items()]
        click.echo(json.dumps({"record_count": count, "size_bytes": total, "damaged": found}))
    else:
        for index, reason in damaged.items():
            click.echo(f"{index}: {reason}")
        click.echo(f"{count} records, {show_size(total)}: {len(damaged) or 'none'} damaged")
    if damaged:
        raise click.exceptions.Exit(EXIT_DAMAGE)


@cli.command()
@click.argument("files", nargs=-1, required=True, type=click.Path())
@click.argument("address")
@click.option("--replace", is_flag=True, help="Replace what has that name.")
@click.option("--timeout", "timeout_s", type=float, default=30.0, show_default=True)
def publish(files: tuple[str, ...], address: str, replace: bool, timeout_s: float) -> None:
    """Upload FILES and serve them as one dataset, ADDRESS: ffrecord://HOST[:PORT]/NAME."""
    with progress_bar("publishing") as show:
        ffrecord.publish(files, address, replace=replace, timeout_s=timeout_s, progress=show)
    click.echo(f"published {address}")


@cli.command(name="list")
@click.argument("address", default="ffrecord://localhost/")
@click.option("--timeout", "timeout_s", type=float, default=30.0, show_default=True)
@_as_json
def list_(address: str, timeout_s: float, as_json: bool) -> None:
    """List the datasets of the daemon at ADDRESS."""
    published = ffrecord.list_published(address, timeout_s=timeout_s)
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(dataset) for dataset in published]))
        return
    for dataset in published:
        size = show_size(dataset.size_bytes)
        click.echo(f"{size:>10}  {dataset.file_count:>6} files  {dataset.name}")


@cli.command()
@click.argument("address")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--timeout", "timeout_s", type=float, default=30.0, show_default=True)
def remove(address: str, yes: bool, timeout_s: float) -> None:
    """Remove the dataset ADDRESS from its daemon."""
    if not yes:
        click.confirm(f"remove {address}?", abort=True, err=True)
    ffrecord.remove_published(address, timeout_s=timeout_s)
    click.echo(f"removed {address}")


@cli.command()
@_as_json
def doctor(as_json: bool) -> None:
    """Show what this machine gives to the library, and what holds it back."""
    findings = examine()
    if as_json:
        click.echo(json.dumps(findings))
    else:
        click.echo(show_findings(findings))


def main() -> int:
    """Run the command line; return the exit code."""
    return run(cli)


if __name__ == "__main__":
    sys.exit(main())
