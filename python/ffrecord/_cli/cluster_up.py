"""`ffrecord cluster up` and `down`: a cluster on hosts that are reached over ssh."""

import json
import pathlib
from typing import Any

import click

from ffrecord._cli.bring_up import BringUp, Change
from ffrecord._cli.console import say
from ffrecord._cli.hosts_file import HostEntry, HostsFile, read_hosts_file
from ffrecord._cli.options import dry_run_option, json_option, timeout_option
from ffrecord._cli.remote_host import SshHost

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
_timeout = timeout_option(
    120.0, "Time limit in seconds of each command on a host, and of the wait for the nodes."
)
_as_json = json_option("Print one JSON object at the end; steps go to stderr.")


@click.command()
@_hosts
@dry_run_option("Check, print what would be done, change nothing.")
@click.option(
    "--options",
    default="",
    metavar="KEY=VALUE&...",
    help="Options of the cluster's address: a token with the right `admin`, certificates.",
)
@_ssh_config
@_timeout
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
@dry_run_option("Print which hosts would be stopped, and stop nothing.")
@_ssh_config
@_timeout
@_as_json
def down(
    file: pathlib.Path, dry_run: bool, ssh_config: str, timeout_s: float, as_json: bool
) -> None:
    """Stop the cluster that `up` has brought up on the hosts in a file.

    No data is removed: `up` brings the same cluster back.
    """
    cluster = read_hosts_file(file)
    names = [entry.name for entry in cluster.hosts]
    if dry_run:
        text = f"would stop {', '.join(names)}"
        click.echo(json.dumps({"down": names, "dry_run": True}) if as_json else text)
        return
    tell = say if as_json else click.echo
    bring_up = BringUp(cluster, _connect(cluster, ssh_config), tell, timeout_s=timeout_s)
    bring_up.down()
    if as_json:
        click.echo(json.dumps({"down": names, "dry_run": False}))


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
