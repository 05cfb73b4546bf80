"""ffrecord: look at record files, check them, and serve them from a daemon."""

import dataclasses
import importlib
import itertools
import json
import pathlib
import sys
from typing import Any

import click

import ffrecord
from ffrecord import archive
from ffrecord._base import clock
from ffrecord._cli.accelerator import examine_accelerator
from ffrecord._cli.admin import activity, fetch, show_activity, show_status
from ffrecord._cli.admin import status as status_of
from ffrecord._cli.checkpoint import checkpoint
from ffrecord._cli.config import config
from ffrecord._cli.console import EXIT_DAMAGE, Panel, progress_bar, run
from ffrecord._cli.doctor import examine, examine_rdma, show_findings, show_rdma
from ffrecord._cli.net import net
from ffrecord._cli.options import (
    check_can_hold,
    dry_run_option,
    json_option,
    overwrite_named,
    timeout_option,
)
from ffrecord._cli.text import safe_lines, shown
from ffrecord._cli.tokens import make_token, read_key
from ffrecord._cli.units import Name, Number, Size, Target, show_size
from ffrecord._store import eviction

# Imported on use: they would take a tenth of every start.
_LOOKING = "ffrecord._cli.data.looking"
_LATE = {
    "cluster": "ffrecord._cli.cluster",
    "index": "ffrecord._cli.index",
    **dict.fromkeys(("prof", "why"), "ffrecord._cli.profile"),
    **dict.fromkeys(("diff", "ls", "search", "show", "tag"), "ffrecord._cli.catalogue"),
    **dict.fromkeys(("publish", "remove"), "ffrecord._cli.publishing"),
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


@cli.command()
@click.argument("files", nargs=-1, required=True, type=click.Path())
@click.argument("target", type=Target())
@dry_run_option("Show which files would be uploaded, and upload nothing.")
@timeout_option()
@_as_json
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


@cli.command()
@click.argument("target", type=Target())
@click.argument("folder", type=click.Path(file_okay=False))
@click.option("--version", help="A version or tag of the dataset; otherwise the newest.")
@dry_run_option("Show which files would be downloaded, and download nothing.")
@timeout_option()
@_as_json
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


@cli.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False))
@click.argument("target", type=Target())
@click.option(
    "--keep", type=Size(0), default=0, show_default=True, help="Files of this size stay: 100GiB."
)
@click.option("--dry-run", is_flag=True, help="Show what would be removed, and remove nothing.")
@timeout_option()
@_as_json
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


@cli.command()
@click.argument("address", type=Name(), required=False)
@timeout_option()
@click.option(
    "--tls",
    "tls_folder",
    type=click.Path(),
    help="Folder of certificates to check, as in ?tls=FOLDER.",
)
@click.option(
    "--seconds",
    type=Number(0.1, 600),
    default=3.0,
    show_default=True,
    help="Time to measure a file, a folder, a dataset or an accelerator.",
)
@click.option(
    "--write", is_flag=True, help="Measure a folder by a temporary file of 128 MiB, also writing."
)
@_as_json
def doctor(
    address: str | None,
    timeout_s: float,
    tls_folder: str | None,
    seconds: float,
    write: bool,
    as_json: bool,
) -> None:
    """Show which features of this machine the library uses, and how to enable more.

    With a local file or folder as ADDRESS, also measure random reads of 4 KiB and 128 KiB and reads
    in order, direct and through the page cache, and say what that means. A folder is measured by
    its largest file. With the address of a daemon, also show which transport reaches it, and why;
    with that of a dataset, read some of it. With the address of record files at an object store,
    read some records and show requests and times. With the word `rdma` instead, list the ports of
    RDMA devices, and why some are not used; with the word `accelerator`, measure copies to the
    device that PyTorch finds. Exits with status 0 whatever it finds, and with 4 if ADDRESS cannot
    be reached or read.
    """
    if address in ("rdma", "accelerator") and (write or tls_folder):
        raise click.UsageError(f"--write and --tls have no meaning with {address}")
    if address == "rdma":
        findings, show = examine_rdma(), show_rdma
    elif address == "accelerator":
        findings, show = examine_accelerator(seconds), show_findings
    else:
        if write and (address is None or "://" in address):
            raise click.UsageError("--write needs a local folder as ADDRESS")
        findings = examine(address, timeout_s, tls_folder, seconds=seconds, may_write=write)
        show = show_findings
    click.echo(json.dumps(findings) if as_json else show(findings))


_admin_address = click.argument("address", type=Name(), default="http://127.0.0.1:9401")
_admin_token = click.option(
    "--token-file", type=click.Path(), help="File with the token of the admin port."
)


@cli.command()
@_admin_address
@timeout_option(10.0, "Time limit in seconds of each request to the admin port.")
@_admin_token
@_as_json
def status(address: str, timeout_s: float, token_file: str | None, as_json: bool) -> None:
    """Show the state of the daemon whose admin port is at ADDRESS."""
    facts = status_of(fetch(address, timeout_s, token_file))
    click.echo(json.dumps(facts) if as_json else safe_lines(show_status(facts)))


@cli.command()
@_admin_address
@click.option(
    "--interval",
    "interval_s",
    type=Number(0.1, 3600),
    default=1.0,
    show_default=True,
    help="Seconds between two updates.",
)
@click.option("--count", type=click.IntRange(1), help="Number of updates; until Ctrl-C by default.")
@timeout_option(10.0, "Time limit in seconds of each request to the admin port.")
@_admin_token
@json_option("Print a JSON object for each update, one a line.")
def top(
    address: str,
    interval_s: float,
    count: int | None,
    timeout_s: float,
    token_file: str | None,
    as_json: bool,
) -> None:
    """Show the load of the daemon whose admin port is at ADDRESS, updated regularly."""
    before = fetch(address, timeout_s, token_file)
    panel = Panel()
    for number in itertools.count(1):
        clock.sleep(interval_s)
        now = fetch(address, timeout_s, token_file)
        rates = activity(before, now)
        if as_json:
            click.echo(json.dumps(rates))
        else:
            panel.show(show_activity(rates))
        if number == count:
            return
        before = now


cli.add_command(net)
cli.add_command(config)
cli.add_command(checkpoint)


def main() -> int:
    """Run the command line; return the exit code."""
    return run(cli)


if __name__ == "__main__":
    sys.exit(main())
