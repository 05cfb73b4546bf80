"""`ffrecord cluster approve|drain|undrain|remove`: which part a node takes."""

import json
from typing import Any

import click

from ffrecord import _ffrecord
from ffrecord._base import clock
from ffrecord._cli.admin import check_one_cluster, fetch_cluster
from ffrecord._cli.console import confirm
from ffrecord._cli.options import json_option, timeout_option
from ffrecord._cli.units import Name, Timeout
from ffrecord.errors import DeadlineExceeded, UnavailableError

_LOOK_S = 1.0

_timeout = timeout_option(30.0, "Time limit in seconds of each request.")
_as_json = json_option()
_dry_run = click.option(
    "--dry-run", is_flag=True, help="Check, print what would change, and change nothing."
)
_address = click.argument("address", type=Name())
_node = click.argument("node")


@click.command()
@_address
@_node
@_dry_run
@_timeout
@_as_json
def approve(address: str, node: str, dry_run: bool, timeout_s: float, as_json: bool) -> None:
    """Let NODE, which waits for approval, join the cluster at ADDRESS.

    Approve a node only if you know which daemon it is: it gets a share of the data.
    """
    known = _nodes(address, timeout_s)
    if known.get(node, {}).get("state") != "waiting":
        waiting = [one for one, facts in known.items() if facts["state"] == "waiting"]
        asks = ", ".join(waiting) or "none"
        raise FileNotFoundError(None, f"{node} does not wait for approval; waiting: {asks}")
    _set(address, known[node], "in", timeout_s, dry_run=dry_run)
    _show(known[node], "in", f"{node} joins", as_json, dry_run=dry_run)


@click.command()
@_address
@_node
@click.option(
    "--wait",
    "admin",
    metavar="ADMIN",
    help="Wait until the others have all data of NODE. ADMIN: the admin port of any node.",
)
@click.option(
    "--wait-limit",
    "limit_s",
    type=Timeout(),
    metavar="SECONDS",
    help="With --wait: exit with status 4 after so long; NODE still drains.",
)
@click.option("--token-file", type=click.Path(), help="File with the token of the admin port.")
@_dry_run
@_timeout
@_as_json
def drain(
    address: str,
    node: str,
    admin: str | None,
    limit_s: float | None,
    token_file: str | None,
    dry_run: bool,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Move the data of NODE to the other nodes of the cluster at ADDRESS.

    NODE serves reads meanwhile. Stop it once `ffrecord cluster status` shows no move. To see how
    much is copied, `ffrecord cluster rebalance --plan --without NODE ADMIN`.
    """
    if limit_s is not None and admin is None:
        raise click.UsageError("--wait-limit needs --wait")
    before = _find(address, node, timeout_s)
    _set(address, before, "draining", timeout_s, dry_run=dry_run)
    if admin is None or dry_run:
        text = f"{node} drains; it may be stopped once nothing moves any more"
        _show(before, "draining", text, as_json, dry_run=dry_run, drained=False)
        return
    end = clock.now() + limit_s if limit_s is not None else None
    cluster = _ffrecord.describe_cluster(address, timeout_s=timeout_s)["id"]
    while True:
        facts = fetch_cluster(admin, timeout_s, token_file)
        check_one_cluster([(address, cluster), (admin, facts["cluster"])])
        if is_drained(facts, node):
            break
        if end is not None and clock.now() >= end:
            raise DeadlineExceeded(
                f"{node} still drains after {limit_s:.0f} s: do not stop it yet; run the command"
                " again to wait, or `ffrecord cluster undrain`"
            )
        clock.sleep(_LOOK_S)
    text = f"{node} is drained: it may be stopped"
    _show(before, "draining", text, as_json, dry_run=False, drained=True)


def is_drained(facts: dict[str, Any], node: str) -> bool:
    """Whether the others have all that `node` holds.

    Raises:
        UnavailableError: Others were lost meanwhile, and those that are left are too few.
    """
    slots = sum(one["slots"] for one in facts["nodes"] if one["id"] == node)
    # Without a lease it may not know the newest slot map.
    if slots > 0 or facts["moving"] or facts["from_cache"] or not facts["leased"]:
        return False
    domains = {one["domain"] for one in facts["nodes"] if one["slots"] > 0}
    if len(domains) < facts["replicas"]:
        raise UnavailableError(
            f"{node} is not drained, and must not be stopped: {len(domains)} failure domains are"
            f" left for {facts['replicas']} replicas; start or add nodes"
        )
    return True


@click.command()
@_address
@_node
@_dry_run
@_timeout
@_as_json
def undrain(address: str, node: str, dry_run: bool, timeout_s: float, as_json: bool) -> None:
    """Let NODE of the cluster at ADDRESS take part again, after `drain` or `remove`."""
    before = _find(address, node, timeout_s)
    if before["state"] == "waiting":
        raise FileExistsError(
            None,
            f"{node} has never taken part: it waits for approval; if it is yours,"
            f" `ffrecord cluster approve ADDRESS {node}`",
        )
    _set(address, before, "in", timeout_s, dry_run=dry_run)
    _show(before, "in", f"{node} takes part", as_json, dry_run=dry_run)


@click.command()
@_address
@_node
@click.option("--yes", is_flag=True, help="Do not ask.")
@_dry_run
@_timeout
@_as_json
def remove(
    address: str, node: str, yes: bool, dry_run: bool, timeout_s: float, as_json: bool
) -> None:
    """Remove NODE from the cluster at ADDRESS: it is lost, or drained and stopped.

    The other nodes at once copy its data from the remaining replicas.
    """
    before = _find(address, node, timeout_s)
    if not yes and not dry_run:
        confirm(f"remove {node}? Data that only this node holds is lost to the cluster")
    _set(address, before, "out", timeout_s, dry_run=dry_run)
    _show(before, "out", f"{node} is out", as_json, dry_run=dry_run)


def _nodes(address: str, timeout_s: float) -> dict[str, dict[str, Any]]:
    known = _ffrecord.describe_cluster(address, timeout_s=timeout_s)["nodes"]
    return {one["id"]: one for one in known}


def _find(address: str, node: str, timeout_s: float) -> dict[str, Any]:
    known = _nodes(address, timeout_s)
    if node not in known:
        raise FileNotFoundError(
            None, f"the cluster has no node {node}; its nodes are {', '.join(known)}"
        )
    return known[node]


def _set(
    address: str, before: dict[str, Any], state: str, timeout_s: float, *, dry_run: bool
) -> None:
    if not dry_run:
        _ffrecord.set_node_state(address, before["id"], state, timeout_s=timeout_s)


def _show(
    before: dict[str, Any],
    state: str,
    text: str,
    as_json: bool,
    *,
    dry_run: bool,
    **more: object,
) -> None:
    """Print what has changed, or would change."""
    facts = {
        "node": before["id"],
        "state_before": before["state"],
        "state": state,
        "slot_count": before["slot_count"],
        "dry_run": dry_run,
        **more,
    }
    if dry_run:
        text = (
            f"{before['id']}, which holds {before['slot_count']} slots, would change from"
            f" {before['state']} to {state}"
        )
    click.echo(json.dumps(facts) if as_json else text)
