"""`ffrecord cluster repair` and `rebalance`: what is left to copy, and waiting for its end."""

import json
import urllib.parse
from collections.abc import Callable
from typing import Any

import click

from ffrecord._base import clock
from ffrecord._cli.admin import check_one_cluster, fetch_cluster
from ffrecord._cli.options import json_option, timeout_option
from ffrecord._cli.units import Name, Timeout, show_size
from ffrecord.errors import CorruptionError, DeadlineExceeded

_LOOK_S = 0.5

_admins = click.argument("admins", metavar="[ADMIN]...", type=Name(), nargs=-1)
_plan = click.option(
    "--plan", "--dry-run", is_flag=True, help="Print what would be copied; change nothing."
)
_without = click.option(
    "--without", multiple=True, metavar="NODE", help="As if NODE were drained; several times."
)
_wait = click.option(
    "--wait", "wait_s", type=Timeout(), metavar="SECONDS", help="Wait so long for the end."
)
_token_file = click.option(
    "--token-file", type=click.Path(), help="File with the token of the admin port."
)
_timeout = timeout_option(30.0, "Time limit in seconds of each request.")
_as_json = json_option()

Facts = dict[str, Any]


@click.command()
@_admins
@_plan
@_wait
@_token_file
@_timeout
@_as_json
def repair(
    admins: tuple[str, ...],
    plan: bool,
    wait_s: float | None,
    token_file: str | None,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Show which extents lack replicas, by the nodes with the admin ports ADMIN.

    Repair needs no command: nodes copy what they lack at once, and take over what a node holds
    once it has been down for `repair_after_s`, or at once after `ffrecord cluster remove`. With
    --wait, the command returns when every extent has its replicas. Each node knows what it lacks
    itself: give the admin ports of all.
    """
    ask = _asker(admins, timeout_s, token_file)
    if plan:
        show_plan(ask("/plan?down=lost")[0], ask(""), as_json)
        return
    _follow(ask, unrepaired, wait_s, as_json, "every extent has its replicas")


@click.command()
@_admins
@_plan
@_without
@_wait
@_token_file
@_timeout
@_as_json
def rebalance(
    admins: tuple[str, ...],
    plan: bool,
    without: tuple[str, ...],
    wait_s: float | None,
    token_file: str | None,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Show what is left to move between nodes, by the nodes with the admin ports ADMIN.

    Data moves without a command when nodes join, drain, are removed or change their weight. With
    --wait, the command returns when each node has its share. --plan shows what a change would copy.
    """
    ask = _asker(admins, timeout_s, token_file)
    if without and not plan:
        raise click.UsageError("--without needs --plan; to move data, `ffrecord cluster drain`")
    if plan:
        query = urllib.parse.urlencode([("without", node) for node in without])
        show_plan(ask(f"/plan?{query}")[0], ask(""), as_json)
        return
    _follow(ask, unbalanced, wait_s, as_json, "each node has its share")


def unrepaired(facts: Facts) -> list[str]:
    """The extents that lack replicas, as one node knows it; nothing if all is repaired."""
    lines = _uncopied(facts)
    for node in facts["nodes"]:
        if node["slots"] > 0 and not node["is_up"]:
            lines.append(
                f"{node['id']} is down: the others copy what it holds after `repair_after_s`, or at"
                f" once after `ffrecord cluster remove ADDRESS {node['id']}`"
            )
    if facts["lacking"] > 0:
        lines.append(
            f"{facts['lacking']} extents have a replica less, {facts['alone']} of them none"
        )
    return lines


def unbalanced(facts: Facts) -> list[str]:
    """The extents left to move, as one node knows it; nothing if each node has its share."""
    lines = _uncopied(facts)
    for node in facts["nodes"]:
        if node["state"] == "draining" and node["slots"] > 0:
            lines.append(f"{node['id']} drains: {node['slots']} slots are left")
        elif node["state"] == "in" and node["is_up"] and node["slots"] == 0:
            lines.append(f"{node['id']} has no slots yet")
    return lines


def _uncopied(facts: Facts) -> list[str]:
    lines = []
    if not facts["leased"]:
        why = facts["trouble"] or "its lease is not renewed"
        lines.append(f"{facts['node']} takes no part: {why}")
    if facts["from_cache"]:
        lines.append(f"{facts['node']} has not seen the metadata since its start")
    if facts["incomplete"]:
        lines.append(f"{facts['node']} does not know the files of {facts['incomplete']} names yet")
    if copied := facts["missing"] - facts["unheld"]:
        left = show_size(facts["missing_bytes"])
        lines.append(f"{copied} extents, {left}, are left to copy to {facts['node']}")
    if facts["unheld"]:
        lines.append(f"{facts['unheld']} extents of {facts['node']} are on no node that answers")
    if facts["refused"]:
        lines.append(
            f"{facts['node']} has no room for {facts['refused']} extents{show_room(facts)}"
        )
    if facts["moving"]:
        lines.append("nodes copy what the new slot map gives them")
    return lines


def show_room(facts: Facts) -> str:
    """How much more a node copies; daemons of earlier versions do not tell."""
    if "room_bytes" not in facts:
        return ""
    return (
        f": repair may take {show_size(facts['room_bytes'])} more of its disks, and leaves"
        f" {show_size(facts['kept_bytes'])} free"
    )


def short_of_room(moves: list[Facts], nodes: list[Facts]) -> list[str]:
    """Which of the nodes that were asked have no room for what a change gives them."""
    lines = []
    for facts in nodes:
        wanted = sum(move["bytes"] for move in moves if move["to"] == facts["node"])
        if wanted > facts.get("room_bytes", wanted):
            lines.append(f"{facts['node']} has no room for {show_size(wanted)}{show_room(facts)}")
    return lines


def _asker(
    admins: tuple[str, ...], timeout_s: float, token_file: str | None
) -> Callable[[str], list[Facts]]:
    """Asks each node for one page."""
    asked = admins or ("http://127.0.0.1:9401",)

    def ask(page: str) -> list[Facts]:
        all_facts = [fetch_cluster(one, timeout_s, token_file, page) for one in asked]
        check_one_cluster(
            (one, facts.get("cluster", "")) for one, facts in zip(asked, all_facts, strict=True)
        )
        return all_facts

    return ask


def _follow(
    ask: Callable[[str], list[Facts]],
    find: Callable[[Facts], list[str]],
    wait_s: float | None,
    as_json: bool,
    done: str,
) -> None:
    """Print what is left; with `wait_s`, whenever that changes, until nothing is.

    Raises:
        CorruptionError: The time is up, and some extents are on no node.
        DeadlineExceeded: The time is up.
    """
    end = clock.now() + (wait_s or 0)
    shown: list[str] | None = None
    while True:
        all_facts = ask("")
        left = list(dict.fromkeys(line for facts in all_facts for line in find(facts)))
        is_over = not left or clock.now() >= end
        if as_json:
            if is_over:
                click.echo(json.dumps({"done": not left, "left": left}))
        elif left != shown:
            click.echo("\n".join(left) or done)
            shown = left
        if is_over:
            break
        clock.sleep(_LOOK_S)
    if left and wait_s is not None:
        if unheld := sum(facts["unheld"] for facts in all_facts):
            raise CorruptionError(
                f"{unheld} extents are on no node that answers; start nodes that are down, then see"
                " `ffrecord cluster lost`"
            )
        raise DeadlineExceeded(f"not done after {wait_s:g} s: {left[0]}")


def _source(move: Facts) -> str:
    """Where a move comes from; daemons of earlier versions do not tell of stripes."""
    if move["from"]:
        return str(move["from"])
    members = move.get("members", 0)
    return f"computed from {members} members" if members else "no node that is up"


def show_plan(facts: Facts, nodes: list[Facts], as_json: bool) -> None:
    """Print what a change would copy, and which of `nodes` have no room for it."""
    moves = facts["moves"]
    short = short_of_room(moves, nodes)
    if as_json:
        click.echo(json.dumps({**facts, "short_of_room": short}))
        return
    if moves:
        click.echo(f"{'from':<24} {'to':<20} {'extents':>9} {'bytes':>10}")
    for move in moves:
        click.echo(
            f"{_source(move):<24} {move['to']:<20} {move['extents']:>9}"
            f" {show_size(move['bytes']):>10}"
        )
    extents, bytes_ = (sum(move[key] for move in moves) for key in ("extents", "bytes"))
    click.echo(
        f"{extents} extents, {show_size(bytes_)}, would be copied;"
        f" {facts['slot_places']} places of slots change"
    )
    if facts["too_few_domains"]:
        click.echo("there would be fewer failure domains than nodes for each slot")
    if short:
        click.echo("\n".join(short))
