"""ffrecord: look at record files, check them, and serve them from a daemon."""

import dataclasses
import importlib
import json
import pathlib
import sys
from typing import Any

import click

import ffrecord
from ffrecord._base import clock
from ffrecord._cli.config import config
from ffrecord._cli.console import EXIT_DAMAGE, progress_bar, run
from ffrecord._cli.net import net
from ffrecord._cli.options import (
    json_option,
    overwrite_named,
    timeout_option,
)
from ffrecord._cli.text import safe_lines, shown
from ffrecord._cli.tokens import make_token, read_key
from ffrecord._cli.units import Name, Number, show_size

# Imported on use: they would take a quarter of every start.
_LOOKING = "ffrecord._cli.data.looking"
_LATE = {
    "checkpoint": "ffrecord._cli.checkpoint",
    "cluster": "ffrecord._cli.cluster",
    "doctor": "ffrecord._cli.doctor_command",
    "index": "ffrecord._cli.index",
    **dict.fromkeys(("prof", "why"), "ffrecord._cli.profile"),
    **dict.fromkeys(("diff", "ls", "search", "show", "tag"), "ffrecord._cli.catalogue"),
    **dict.fromkeys(("evict", "pull", "push"), "ffrecord._cli.archiving"),
    **dict.fromkeys(("publish", "remove"), "ffrecord._cli.publishing"),
    **dict.fromkeys(("status", "top"), "ffrecord._cli.watching"),
    "topology": "ffrecord._cli.topology",
    **dict.fromkeys(("cat", "find", "head", "sample"), _LOOKING),
    **dict.fromkeys(("merge", "shuffle", "split"), "ffrecord._cli.data.rewrite_commands"),
    **dict.fromkeys(("completion", "man"), "ffrecord._cli.data.manual"),
    "export": "ffrecord._cli.data.export_command",
    "stats": "ffrecord._cli.data.stats_command",
    "view": "ffrecord._cli.data.view_command",
}


class _Commands(click.Group):
    """The commands, some of which are imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All of them, by name."""
        return sorted([*super().list_commands(ctx), *_LATE])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """One command; None if there is none of this name."""
        if cmd_name not in _LATE:
            return super().get_command(ctx, cmd_name)
        command: click.Command = getattr(importlib.import_module(_LATE[cmd_name]), cmd_name)
        return command


@click.group(cls=_Commands)
@click.version_option(package_name="ffrecord")
def cli() -> None:
    """Inspect, verify and publish training data in record files."""


_as_json = json_option()
# A name is never cut: Linux has no longer paths.
_PATH_MAX = 4096


@cli.command()
@click.argument("where", nargs=-1, required=True, type=click.Path())
@click.option("--stored", is_flag=True, help="Show the columns that store those of tables, too.")
@timeout_option()
@_as_json
def inspect(where: tuple[str, ...], stored: bool, timeout_s: float, as_json: bool) -> None:
    """Describe the record files at WHERE: files, folders, globs, or ffrecord://HOST/NAME."""
    with ffrecord.open(where, timeout_s=timeout_s) as reader:
        facts = {
            "record_count": len(reader),
            "size_bytes": sum(file.size_bytes for file in reader.files),
            "fingerprint": reader.fingerprint,
            "schema": reader.schema,
            "files": [dataclasses.asdict(file) for file in reader.files],
        }
        if stored:
            facts["stored"] = reader.logical.raw.schema
    click.echo(json.dumps(facts) if as_json else "\n".join(_describe(facts)))


def _describe(facts: dict[str, Any]) -> list[str]:
    lines = [
        f"records      {facts['record_count']}",
        f"size         {show_size(facts['size_bytes'])}",
        f"fingerprint  {facts['fingerprint']}",
    ]
    schema = facts["schema"] or {"(bytes)": "no schema"}
    lines += [
        f"{'schema' if number == 0 else '':<13}{shown(name)}: {spelling}"
        for number, (name, spelling) in enumerate(schema.items())
    ]
    lines += [
        f"{'stored' if number == 0 else '':<13}{shown(name)}: {spelling}"
        for number, (name, spelling) in enumerate(facts.get("stored", {}).items())
    ]
    lines += [f"{'format':<8}{'records':>12}{'size':>12}  file"]
    for file in facts["files"]:
        count, size = file["record_count"], show_size(file["size_bytes"])
        name = shown(file["name"], _PATH_MAX)
        lines.append(f"v{file['format_version']:<7}{count:>12}{size:>12}  {name}")
        lines += [f"{'':<8}warning: {shown(text, _PATH_MAX)}" for text in file["warnings"]]
    return lines


@cli.command()
@click.argument("where", nargs=-1, required=True, type=click.Path())
@click.option(
    "--source",
    "with_source",
    is_flag=True,
    help="Read the source of the packed folder WHERE again, and compare every record with it.",
)
@click.option(
    "--map",
    "functions",
    multiple=True,
    metavar="MODULE:FUNCTION",
    help="With --source: the functions given to ffrecord-pack, if they have arguments; repeatable.",
)
@timeout_option()
@json_option("Print a JSON array with an object for each file; with --source, one object.")
def verify(
    where: tuple[str, ...],
    with_source: bool,
    functions: tuple[str, ...],
    timeout_s: float,
    as_json: bool,
) -> None:
    """Verify every byte of WHERE; exit with status 3 if any is damaged.

    With --source, also if a record is not what the source makes, or the source is gone.
    """
    if functions and not with_source:
        raise click.UsageError("--map says what was packed, which only --source compares")
    if with_source:
        _verify_source(where, functions, as_json)
        return
    with progress_bar("verifying") as show:
        reports = ffrecord.verify(where, timeout_s=timeout_s, progress=show)
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(report) for report in reports]))
    else:
        for report in reports:
            click.echo("\n".join(_verdict(report)))
    if any(report.problem_count for report in reports):
        raise click.exceptions.Exit(EXIT_DAMAGE)


def _verify_source(where: tuple[str, ...], functions: tuple[str, ...], as_json: bool) -> None:
    from ffrecord.pack import verify_source

    if len(where) != 1:
        raise click.UsageError("--source compares one packed folder at a time")
    with progress_bar("comparing") as show:
        report = verify_source(where[0], map=list(functions) or None, progress=show)
    if as_json:
        click.echo(json.dumps({**dataclasses.asdict(report), "is_same": report.is_same}))
    else:
        lines = [f"{path} is gone" for path in report.gone]
        lines += [f"{path}: size, time or version differ" for path in report.changed]
        lines += report.differences
        if report.difference_count > len(report.differences):
            lines.append(f"and {report.difference_count - len(report.differences)} more")
        verdict = "as their source" if report.is_same else f"{report.difference_count} differences"
        lines.append(f"{where[0]}: {report.record_count} records compared: {verdict}")
        click.echo("\n".join(shown(line, len(line)) for line in lines))
    if not report.is_same:
        raise click.exceptions.Exit(EXIT_DAMAGE)


def _verdict(report: ffrecord.FileReport) -> list[str]:
    """One line for a good file; for a bad one, one for each problem before it."""
    name = shown(report.name, _PATH_MAX)
    problems = [problem.removeprefix(f"{report.name}: ") for problem in report.problems]
    lines = [f"{name}: {shown(problem, _PATH_MAX)}" for problem in problems]
    if report.problem_count > len(report.problems):
        lines.append(f"{name}: and {report.problem_count - len(report.problems)} more")
    verdict = "good"
    if report.problem_count:
        verdict = f"{report.problem_count} problems, {report.bad_record_count} damaged records"
    size = show_size(report.size_bytes)
    return [*lines, f"{name}: {report.record_count} records, {size}: {verdict}"]


@cli.command()
@click.argument("source", type=click.Path())
@click.argument("destination", type=click.Path())
@click.option("--overwrite", "replace", is_flag=True, help="Replace DESTINATION if it exists.")
@_as_json
def repair(source: str, destination: str, replace: bool, as_json: bool) -> None:
    """Copy the intact records of the damaged file SOURCE to DESTINATION.

    Needs neither index nor footer. Keeps the order, keys, schema, metadata, dictionaries and column
    copies. Exits with status 3 if any record is lost.
    """
    with overwrite_named(destination, replace), progress_bar("repairing") as show:
        report = ffrecord.repair(source, destination, replace=replace, progress=show)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(report)))
    else:
        click.echo(safe_lines("\n".join(_account(report))))
    if not report.lost_nothing:
        raise click.exceptions.Exit(EXIT_DAMAGE)


def _account(report: ffrecord.RepairReport) -> list[str]:
    """The records that were kept, and those that were not."""
    lines = [f"kept: {part}" for part in report.kept_parts]
    lines += [f"rebuilt: {part}" for part in report.rebuilt_parts]
    lines += [f"lost: {loss}" for loss in report.other_losses]
    ranges = [
        f"{first}" if end == first + 1 else f"{first} to {end - 1}" for first, end in report.lost
    ]
    listed = sum(end - first for first, end in report.lost)
    if report.lost_count > listed:
        ranges.append(f"and {report.lost_count - listed} more")
    if ranges:
        skipped = show_size(report.skipped_bytes)
        lines.append(f"lost: records {', '.join(ranges)}: {skipped} skipped")
    lost = f"lost {report.lost_count}"
    if not report.record_count_is_known:
        lines.append("the file no longer says how many records it had: more may be lost")
        lost = f"lost at least {report.lost_count}" if report.lost_count else "lost: unknown"
    size = show_size(report.size_bytes)
    return [*lines, f"kept {report.kept_count} records, {lost}, {size}"]


@cli.command(name="list")
@click.argument("address", type=Name(), default="ffrecord://localhost/")
@timeout_option()
@json_option("Print a JSON array with an object for each dataset.")
def list_(address: str, timeout_s: float, as_json: bool) -> None:
    """List the datasets of the daemon at ADDRESS; in a cluster, with their durability classes."""
    published = ffrecord.list_published(address, timeout_s=timeout_s)
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(dataset) for dataset in published]))
        return
    width = max((len(dataset.durability or "") for dataset in published), default=0)
    for dataset in published:
        size = show_size(dataset.size_bytes)
        name = shown(dataset.name, _PATH_MAX)
        kept = f"{dataset.durability or '?':<{width}}  " if width else ""
        click.echo(f"{size:>10}  {dataset.file_count:>6} files  {kept}{name}")


@cli.command()
@click.argument("keys", type=click.Path(exists=True, dir_okay=False, path_type=pathlib.Path))
@click.option("--prefix", default="", help="Only names with this prefix; end it with /.")
@click.option("--rights", default="read", show_default=True, help="Any of read,write,delete,admin.")
@click.option(
    "--hours",
    type=Number(0, 24 * 366, min_open=True),
    default=12.0,
    show_default=True,
    help="Hours until it expires.",
)
@click.option("--client", default="", help="The name of the client in the daemon's log.")
@_as_json
def token(
    keys: pathlib.Path, prefix: str, rights: str, hours: float, client: str, as_json: bool
) -> None:
    """Print a token signed with the first key in the file KEYS.

    Write it to a file that only its user can read, and name that in addresses:
    ffrecord://HOST/NAME?token_file=PATH.
    """
    expires_s = int(clock.calendar_now() + hours * 3600)
    made = make_token(
        read_key(keys),
        prefix=prefix,
        rights=[right.strip() for right in rights.split(",")],
        expires_s=expires_s,
        client=client,
    )
    click.echo(json.dumps({"token": made, "expires_s": expires_s}) if as_json else made)


cli.add_command(net)
cli.add_command(config)


def main() -> int:
    """Run the command line; return the exit code."""
    return run(cli)


if __name__ == "__main__":
    sys.exit(main())
