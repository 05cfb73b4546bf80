"""`ffrecord cluster up` and `down`: a cluster on hosts that are reached over ssh."""

import json
import pathlib
from typing import Any

import click

from ffrecord._cli.bring_up import BringUp, Change
from ffrecord._cli.console import say
from ffrecord._cli.hosts_file import HostEntry, HostsFile, read_hosts_file
from ffrecord._cli.remote_host import SshHost
from ffrecord._cli.units import Timeout

_hosts = click.option(
    "--hosts",
    "file",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=pathlib.Path),
    help="File with the hosts of the cluster.",
)
_ssh_config = click.option(
    "--ssh-config", type=click.Path(exists=True), help="File with settings for ssh."
)
_as_json = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object at the end; steps go to stderr."
)


@click.command()
@_hosts
@click.option("--dry-run", is_flag=True, help="Check, print what would be done, change nothing.")
@click.option(
    "--options",
    default="",
    metavar="KEY=VALUE&...",
    help="Options of the cluster's address: a token with the right `admin`, certificates.",
)
@_ssh_config
@click.option("--timeout", "timeout_s", type=Timeout(), default=120.0, show_default=True)
@_as_json
def up(
    file: pathlib.Path,
    dry_run: bool,
    options: str,
    ssh_config: str,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Bring a cluster up on the hosts in a file, over ssh, with systemd.

    It checks all hosts first, and changes nothing if a check fails. Run it again to continue after
    an error, to add hosts, or to change settings: it does only what is left to do.
    """
    cluster = read_hosts_file(file)
    hosts = _connect(cluster, ssh_config)
    tell = say if as_json else click.echo
    bring_up = BringUp(cluster, hosts, tell, options=options, timeout_s=timeout_s)
    steps = bring_up.plan(bring_up.check())
    if dry_run and not as_json:
        click.echo("\n".join(_describe(steps)) or "nothing to do")
        return
    if not dry_run:
        bring_up.apply(steps)
    if as_json:
        facts = {"address": bring_up.address, "dry_run": dry_run, "changes": _list(steps)}
        click.echo(json.dumps(facts))
        return
    click.echo(f"{'ready' if steps else 'nothing to do'}: {bring_up.address}")


@click.command()
@_hosts
@_ssh_config
@click.option("--timeout", "timeout_s", type=Timeout(), default=120.0, show_default=True)
@_as_json
def down(file: pathlib.Path, ssh_config: str, timeout_s: float, as_json: bool) -> None:
    """Stop the cluster that `up` has brought up on the hosts in a file.

    No data is removed: `up` brings the same cluster back.
    """
    cluster = read_hosts_file(file)
    tell = say if as_json else click.echo
    bring_up = BringUp(cluster, _connect(cluster, ssh_config), tell, timeout_s=timeout_s)
    bring_up.down()
    if as_json:
        click.echo(json.dumps({"down": [entry.name for entry in cluster.hosts]}))


def _connect(cluster: HostsFile, ssh_config: str | None) -> dict[str, SshHost]:
    return {
        entry.name: SshHost(entry.name, entry.ssh, sudo=cluster.sudo, config=ssh_config)
        for entry in cluster.hosts
    }


def _describe(steps: list[tuple[HostEntry, Change]]) -> list[str]:
    lines = []
    for entry, change in steps:
        lines += [f"{entry.name}: make {folder}" for folder in change.folders]
        for path, text in change.files.items():
            lines += [f"{entry.name}: write {path}", *(f"    {line}" for line in text.splitlines())]
        if change.start:
            lines.append(f"{entry.name}: {change.start} {change.service.unit}")
    return lines


def _list(steps: list[tuple[HostEntry, Change]]) -> list[dict[str, Any]]:
    """For programs: the same."""
    return [
        {
            "host": entry.name,
            "unit": change.service.unit,
            "folders": change.folders,
            "files": change.files,
            "action": change.start or None,
        }
        for entry, change in steps
    ]
