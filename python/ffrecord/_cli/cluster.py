"""`ffrecord cluster`: clusters of daemons."""

import json
import pathlib
import time
from typing import Any

import click

from ffrecord import _ffrecord
from ffrecord._cli.admin import fetch_cluster
from ffrecord._cli.console import confirm
from ffrecord._cli.local_cluster import LocalCluster
from ffrecord._cli.units import Name, Timeout, show_size

_SLOT_COUNT = 4096


@click.group()
def cluster() -> None:
    """Work with a cluster of daemons, or run one on this machine."""


_timeout = click.option("--timeout", "timeout_s", type=Timeout(), default=30.0, show_default=True)
_as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
_address = click.argument("address", type=Name())
_node = click.argument("node")


@cluster.command()
@click.argument("address", type=Name(), default="http://127.0.0.1:9401")
@click.option("--token-file", type=click.Path(), help="File with the token of the admin port.")
@_timeout
@_as_json
def status(address: str, token_file: str | None, timeout_s: float, as_json: bool) -> None:
    """Show what the node whose admin port is at ADDRESS knows of its cluster."""
    facts = fetch_cluster(address, timeout_s, token_file)
    click.echo(json.dumps(facts) if as_json else "\n".join(_describe(facts)))


def _describe(facts: dict[str, Any]) -> list[str]:
    down = [node["id"] for node in facts["nodes"] if not node["is_up"] and node["state"] != "out"]
    coordinator = "answers"
    if facts["coordinator_silent_ms"]:
        coordinator = f"silent for {facts['coordinator_silent_ms'] / 1000:.0f} s"
    if facts["from_cache"]:
        coordinator += "; names and map are those of before the start"
    lines = [
        f"cluster      {facts['cluster']}",
        f"node         {facts['node']}{', which leads' if facts['leading'] else ''}",
        f"lease        {'held' if facts['leased'] else 'none: the node takes no changes'}",
        f"leader       {facts['leader'] or 'none'}",
        f"coordinator  {coordinator}",
        f"slot map     version {facts['map_version']}{', moving' if facts['moving'] else ''}",
        f"names        {facts['names']}, {facts['replicas']} replicas each",
        f"nodes        {len(facts['nodes'])}, {len(down)} down"
        + (f": {', '.join(down)}" if down else ""),
        f"extents      {facts['missing']} missing here, {facts['surplus']} surplus,"
        f" {facts['unexplained']} unexplained",
        f"copied here  {facts['pulled']} extents, {show_size(facts['pulled_bytes'])}",
    ]
    if facts["trouble"]:
        lines.append(f"trouble      {facts['trouble']}")
    if facts["refused"]:
        lines.append(f"no room for  {facts['refused']} extents")
    return lines


@cluster.command()
@_address
@_timeout
@_as_json
def nodes(address: str, timeout_s: float, as_json: bool) -> None:
    """List the nodes of the cluster at ADDRESS: ffrecord://HOST[:PORT], of any of them."""
    facts = _ffrecord.describe_cluster(address, timeout_s=timeout_s)
    if as_json:
        click.echo(json.dumps(facts))
        return
    click.echo(f"{'node':<20} {'address':<22} {'domain':<16} {'weight':>6} {'slots':>6}  state")
    for node in facts["nodes"]:
        state = node["state"] if node["is_up"] else f"{node['state']}, down"
        click.echo(
            f"{node['id']:<20} {node['address'] or '-':<22} {node['domain']:<16}"
            f" {node['weight']:>6} {node['slot_count']:>6}  {state}"
        )


@cluster.command()
@_address
@_node
@click.option(
    "--wait",
    "admin",
    metavar="ADMIN",
    help="Wait, by the admin port ADMIN of any node, until the others have all that NODE holds.",
)
@_timeout
def drain(address: str, node: str, admin: str | None, timeout_s: float) -> None:
    """Have the other nodes of the cluster at ADDRESS take over what NODE holds.

    NODE goes on serving reads. Stop it once `ffrecord cluster status` shows no move.
    """
    _ffrecord.set_node_state(address, node, "draining", timeout_s=timeout_s)
    if admin is None:
        click.echo(f"{node} drains; it may be stopped once nothing moves any more")
        return
    while not _is_drained(fetch_cluster(admin, timeout_s), node):
        time.sleep(1)
    click.echo(f"{node} is drained: it may be stopped")


def _is_drained(facts: dict[str, Any], node: str) -> bool:
    slots = sum(one["slots"] for one in facts["nodes"] if one["id"] == node)
    return slots == 0 and not facts["moving"] and not facts["from_cache"]


@cluster.command()
@_address
@_node
@_timeout
def undrain(address: str, node: str, timeout_s: float) -> None:
    """Let NODE of the cluster at ADDRESS take part again, after `drain` or `remove`."""
    _ffrecord.set_node_state(address, node, "in", timeout_s=timeout_s)
    click.echo(f"{node} takes part")


@cluster.command()
@_address
@_node
@click.option("--yes", is_flag=True, help="Do not ask.")
@_timeout
def remove(address: str, node: str, yes: bool, timeout_s: float) -> None:
    """Count NODE of the cluster at ADDRESS out: it is lost, or drained and stopped.

    The others copy what it held from the replicas that are left, at once.
    """
    if not yes:
        confirm(f"count {node} out? What only it holds is lost to the cluster")
    _ffrecord.set_node_state(address, node, "out", timeout_s=timeout_s)
    click.echo(f"{node} is out")


@cluster.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=pathlib.Path))
@click.option("-n", "--nodes", "node_count", type=click.IntRange(1, 64), default=5)
@click.option("--replicas", type=click.IntRange(1, 8), default=2, show_default=True)
@click.option(
    "--repair-after",
    "repair_after_s",
    type=click.IntRange(0),
    default=600,
    show_default=True,
    help="Seconds for which a node is down before the others copy what it holds.",
)
def local(folder: pathlib.Path, node_count: int, replicas: int, repair_after_s: int) -> None:
    """Run a cluster on this machine, with its data in FOLDER, until Ctrl-C.

    An etcd and --nodes daemons, on loopback. The same FOLDER brings the same cluster back.
    """
    running = LocalCluster(folder, node_count, replicas, repair_after_s=repair_after_s)
    with running:
        click.echo(running.describe())
        running.watch(click.echo)
