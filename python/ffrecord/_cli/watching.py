"""ffrecord status and top: a daemon, as its admin port tells of it."""

import itertools
import json

import click

from ffrecord._base import clock
from ffrecord._cli.admin import activity, fetch, show_activity, show_status
from ffrecord._cli.admin import status as status_of
from ffrecord._cli.console import Panel
from ffrecord._cli.options import json_option, timeout_option
from ffrecord._cli.text import safe_lines
from ffrecord._cli.units import Name, Number

_admin_address = click.argument("address", type=Name(), default="http://127.0.0.1:9401")
_admin_token = click.option(
    "--token-file", type=click.Path(), help="File with the token of the admin port."
)


@click.command()
@_admin_address
@timeout_option(10.0, "Time limit in seconds of each request to the admin port.")
@_admin_token
@json_option()
def status(address: str, timeout_s: float, token_file: str | None, as_json: bool) -> None:
    """Show the state of the daemon whose admin port is at ADDRESS."""
    facts = status_of(fetch(address, timeout_s, token_file))
    click.echo(json.dumps(facts) if as_json else safe_lines(show_status(facts)))


@click.command()
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
