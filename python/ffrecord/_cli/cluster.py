"""`ffrecord cluster`: clusters of daemons."""

import itertools
import json
import pathlib
import time
from typing import Any

import click

from ffrecord import _ffrecord
from ffrecord._cli import cluster_backup, cluster_moves, cluster_nodes, cluster_up
from ffrecord._cli.admin import fetch_cluster
from ffrecord._cli.console import confirm
from ffrecord._cli.local_cluster import LocalCluster
from ffrecord._cli.options import json_option, timeout_option
from ffrecord._cli.text import shown
from ffrecord._cli.units import Name, show_size
from ffrecord.errors import UnavailableError


@click.group()
def cluster() -> None:
    """Work with a cluster of daemons, or run one on this machine."""


for _command in (
    cluster_backup.backup,
    cluster_backup.restore,
    cluster_backup.rebuild,
    cluster_backup.confirm,
    cluster_moves.repair,
    cluster_moves.rebalance,
    cluster_nodes.approve,
    cluster_nodes.drain,
    cluster_nodes.undrain,
    cluster_nodes.remove,
    cluster_up.up,
    cluster_up.down,
):
    cluster.add_command(_command)

_timeout = timeout_option(30.0, "Time limit in seconds of each request.")
_as_json = json_option()
_token_file = click.option(
    "--token-file", type=click.Path(), help="File with the token of the admin port."
)
_admin = click.argument("admin", type=Name(), default="http://127.0.0.1:9401")
_address = click.argument("address", type=Name())


@cluster.command()
@_admin
@_token_file
@_timeout
@_as_json
def status(admin: str, token_file: str | None, timeout_s: float, as_json: bool) -> None:
    """Show the state of a cluster, as seen by the node with the admin port ADMIN.

    The first lines give the state; if it is not "well", they say what is wrong.
    """
    facts = fetch_cluster(admin, timeout_s, token_file)
    facts["state"], remarks = assess(facts)
    click.echo(json.dumps(facts) if as_json else "\n".join([*remarks, *_describe(facts)]))


def assess(facts: dict[str, Any]) -> tuple[str, list[str]]:
    """The state of a cluster as one node sees it, in a word, and lines for people.

    "well": nothing is to be done. "degraded": nodes are down and no data moves yet. "repairing":
    extents are copied. "damaged": some are on no node. "cut off": the node takes no part.
    """
    found: dict[str, list[str]] = {}
    if not facts["leased"]:
        why = facts["trouble"] or "its lease is not renewed"
        found["cut off"] = [f"{facts['node']} takes no part: {why}"]
    if facts["unheld"]:
        found["damaged"] = [
            f"{facts['unheld']} extents are on no node that answers: ffrecord cluster lost"
        ]
    if facts["incomplete"]:
        found["repairing"] = [
            f"the files of {facts['incomplete']} names are not known to {facts['node']} yet"
        ]
    copied = facts["missing"] - facts["unheld"]
    if copied > 0:
        left = f"{copied} extents, {show_size(facts['missing_bytes'])}, are left to copy"
        found.setdefault("repairing", []).append(f"{left} to {facts['node']}")
    down = [node for node in facts["nodes"] if not node["is_up"] and _counts(node)]
    waited = [node["id"] for node in down if node["slots"] > 0]
    lost = [node["id"] for node in down if node["slots"] == 0]
    if facts["moving"] and copied <= 0:
        found.setdefault("repairing", []).append(
            f"other nodes copy extents; {facts['node']} has all of its own"
        )
    if facts["lacking"] and not waited:
        found["degraded"] = [
            f"{facts['lacking']} extents have a replica less:"
            f" {facts['trouble'] or 'there are too few nodes for all replicas'}"
        ]
    if waited:
        found["degraded"] = [
            f"{_list(waited)} down: no data moves yet, {facts['lacking']} extents have a replica"
            f" less, {facts['alone']} of them none"
        ]
    if lost:
        found.setdefault("degraded", []).append(f"{_list(lost)} down for long: others take over")
    if refused := [one["node"] for one in facts["refusals"]]:
        found.setdefault("degraded", []).append(
            f"{facts['node']} and {_list(refused)} refuse each other: see `refused` below"
        )
    lines = [f"{state:<12} {line}" for state, all in found.items() for line in all]
    return next(iter(found), "well"), lines or ["well         all nodes are up, nothing moves"]


def _counts(node: dict[str, Any]) -> bool:
    return node["state"] in ("in", "draining")


def _list(nodes: list[str]) -> str:
    return ", ".join(nodes)


def _describe(facts: dict[str, Any]) -> list[str]:
    down = [node["id"] for node in facts["nodes"] if not node["is_up"] and _counts(node)]
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
        f"names        {facts['names']}; without a durability class: {facts['replicas']} replicas",
        f"level        {_describe_levels(facts)}",
        f"nodes        {len(facts['nodes'])}, {len(down)} down"
        + (f": {', '.join(down)}" if down else ""),
        f"extents      {facts['missing']} missing here, {facts['surplus']} surplus,"
        f" {facts['unexplained']} unexplained, {facts['damaged']} damaged",
        f"copied here  {facts['pulled']} extents, {show_size(facts['pulled_bytes'])};"
        f" {facts['healed']} in place of damaged ones",
    ]
    if facts["adopting"]:
        trouble = f": {facts['adoption_trouble']}" if facts["adoption_trouble"] else ""
        lines.append(f"adopting     {facts['adopting']} names are not in the cluster yet{trouble}")
    lines += _describe_drains(facts)
    lines += _list_waiting(facts)
    lines += [f"refused      {one['node']}: {one['why']}" for one in facts["refusals"]]
    if facts.get("other_origins"):
        lines.append(
            f"origins      {_list(facts['other_origins'])} may fetch from other places than"
            f" {facts['node']}: give all nodes the same setting `origins`"
        )
    if facts["frozen"]:
        lines.append(
            f"metadata     put back to an older state, not confirmed: nothing is removed;"
            f" {facts['names_lost']} names that this node has known are not there"
        )
        lines.append(f"             {facts['why_frozen']}")
        if facts.get("may_lack_names"):  # Earlier daemons do not say it.
            lines.append("             names cannot be listed before `ffrecord cluster rebuild`")
    if facts["trouble"]:
        lines.append(f"trouble      {facts['trouble']}")
    if facts["refused"]:
        lines.append(f"no room for  {facts['refused']} extents{cluster_moves.show_room(facts)}")
    return lines


def _list_waiting(facts: dict[str, Any]) -> list[str]:
    waiting = [node for node in facts["nodes"] if node["state"] == "waiting"]
    return [
        f"waiting      {_describe_waiting(node['id'], **(node.get('waiting') or {}))}:"
        f" ffrecord cluster approve ADDRESS {node['id']}"
        for node in waiting
    ]


def _describe_waiting(
    node: str, *, address: str = "", daemon: str = "", since_unix_ms: int = 0
) -> str:
    """The facts for an operator's decision; a node of an earlier version has none."""
    if not daemon:
        return node
    since = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(min(since_unix_ms / 1000, 1e11)))
    return f"{node} at {shown(address)} since {since}, daemon {shown(daemon)}"


def _describe_drains(facts: dict[str, Any]) -> list[str]:
    """A line for each node that drains and runs: whether the others have all that it holds."""
    lines = []
    for node in facts["nodes"]:
        if node["state"] != "draining" or not node["is_up"]:
            continue
        try:
            is_drained = facts["leased"] and cluster_nodes.is_drained(facts, node["id"])
        except UnavailableError as error:
            lines.append(f"draining     {error}")
            continue
        if is_drained:
            lines.append(f"drained      {node['id']}: it may be stopped")
        else:
            lines.append(
                f"draining     {node['id']}: others copy what it holds; do not stop it yet"
            )
    return lines


def _describe_levels(facts: dict[str, Any]) -> str:
    known = {node["id"]: node["level"] for node in facts["nodes"] if node["level"]}
    above = [level for level in known.values() if level > facts["level"]]
    if not above:
        return f"{facts['level']}"
    behind = [name for name, level in known.items() if level == facts["level"]]
    if behind:
        return f"{facts['level']}; of an earlier version: {_list(behind)}"
    return f"{facts['level']}; all nodes know {min(above)}: ffrecord cluster upgrade ADDRESS"


@cluster.command()
@_address
@click.option(
    "--level", type=click.IntRange(min=1), help="By default the highest that all nodes support."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@_timeout
@_as_json
def upgrade(address: str, level: int | None, yes: bool, timeout_s: float, as_json: bool) -> None:
    """Let the cluster at ADDRESS use the features of the version that all its nodes run.

    This is the last step of an upgrade. Afterwards, daemons of earlier versions are refused.
    Before it, you can put each daemon back to the earlier version.
    """
    if not yes:
        confirm("raise the feature level? Daemons of earlier versions are refused from then on")
    raised = _ffrecord.raise_feature_level(address, level or 0, timeout_s=timeout_s)
    click.echo(json.dumps({"level": raised}) if as_json else f"feature level {raised}")


@cluster.command()
@_address
@_timeout
@_as_json
def nodes(address: str, timeout_s: float, as_json: bool) -> None:
    """List the nodes of the cluster at ADDRESS: ffrecord://HOST[:PORT], of any of them.

    A node that waits for approval has: its address, since when it has waited, and the id of its
    daemon, which is also in the file `identity` in its data folder, and in its log.
    """
    facts = _ffrecord.describe_cluster(address, timeout_s=timeout_s)
    if as_json:
        click.echo(json.dumps(facts))
        return
    click.echo(f"{'node':<20} {'address':<22} {'domain':<16} {'weight':>6} {'slots':>6}  state")
    for node in facts["nodes"]:
        # One that waits has no lease: whether it runs, nobody knows.
        is_down = not node["is_up"] and node["state"] != "waiting"
        state = f"{node['state']}, down" if is_down else node["state"]
        click.echo(
            f"{node['id']:<20} {node['address'] or '-':<22} {node['domain']:<16}"
            f" {node['weight']:>6} {node['slot_count']:>6}  {state}"
        )
    for node in facts["nodes"]:
        if node["state"] == "waiting" and node["daemon"]:
            since = node["waiting_since_unix_ms"]
            told = {"daemon": node["daemon"], "since_unix_ms": since}
            click.echo(f"waiting: {_describe_waiting(node['id'], address=node['address'], **told)}")


@cluster.command()
@_admin
@click.option("--lacking", is_flag=True, help="List the slots with extents that lack replicas.")
@_token_file
@_timeout
@_as_json
def slots(
    admin: str, lacking: bool, token_file: str | None, timeout_s: float, as_json: bool
) -> None:
    """Show which nodes own which of the 4,096 slots, as seen by the node with admin port ADMIN.

    An extent lacks replicas if a node that should hold it is down, or if there are too few nodes.
    """
    facts = fetch_cluster(admin, timeout_s, token_file, "/slots")
    if as_json:
        click.echo(json.dumps(facts))
        return
    click.echo("\n".join(_list_slots(facts, lacking)))


def _list_slots(facts: dict[str, Any], lacking: bool) -> list[str]:
    rows = list(enumerate(facts["slots"]))
    if lacking:
        rows = [row for row in rows if row[1]["lacking"]]
    lines = []
    for nodes, same in itertools.groupby(rows, key=lambda row: row[1]["nodes"]):
        numbers = list(same)
        first, last = numbers[0][0], numbers[-1][0]
        named = f"{first}" if first == last else f"{first}-{last}"
        extents, bytes_, less, alone = (
            sum(row[key] for _, row in numbers) for key in ("extents", "bytes", "lacking", "alone")
        )
        lines.append(
            f"{named:<10} {_list(nodes):<30} {extents:>9} {show_size(bytes_):>10}"
            f" {less:>8} {alone:>6}"
        )
    total = {
        key: sum(row[key] for row in facts["slots"]) for key in ("extents", "lacking", "alone")
    }
    header = f"{'slots':<10} {'nodes':<30} {'extents':>9} {'bytes':>10} {'lacking':>8} {'alone':>6}"
    moving = ", moving" if facts["moving"] else ""
    return [
        f"slot map {facts['map_version']}{moving}: {total['extents']} extents,"
        f" {total['lacking']} lack replicas, {total['alone']} have none that is up",
        *([header, *lines] if lines else []),
    ]


@cluster.command()
@_admin
@_token_file
@_timeout
@_as_json
def lost(admin: str, token_file: str | None, timeout_s: float, as_json: bool) -> None:
    """List names with extents that no node holds undamaged, by the node with admin port ADMIN.

    A node knows only the extents that it should hold itself: ask each node. The nodes keep all data
    of these names.
    """
    facts = fetch_cluster(admin, timeout_s, token_file, "/lost")
    if as_json:
        click.echo(json.dumps(facts))
        return
    for name in facts["names"]:
        click.echo(f"{name['name']}: {name['extents']} extents")
    if not facts["names"]:
        click.echo("none")


@cluster.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=pathlib.Path))
@click.option(
    "-n",
    "--nodes",
    "node_count",
    type=click.IntRange(1, 64),
    default=5,
    show_default=True,
    help="Number of daemons.",
)
@click.option(
    "--replicas",
    type=click.IntRange(1, 8),
    default=2,
    show_default=True,
    help="Replicas of each extent.",
)
@click.option(
    "--repair-after",
    "repair_after_s",
    type=click.IntRange(0),
    default=600,
    show_default=True,
    help="Seconds after which the others copy the data of a node that is down.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object once all serve.")
def local(
    folder: pathlib.Path, node_count: int, replicas: int, repair_after_s: int, as_json: bool
) -> None:
    """Run a cluster on this machine, with its data in FOLDER, until Ctrl-C.

    Starts one etcd and --nodes daemons on loopback. To restart the same cluster, give the same
    FOLDER.
    """
    running = LocalCluster(folder, node_count, replicas, repair_after_s=repair_after_s)
    with running.until_stopped(), running:
        click.echo(json.dumps(running.facts()) if as_json else running.describe())
        running.watch(click.echo)
