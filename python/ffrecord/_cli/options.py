"""Options that mean the same in every command."""

from collections.abc import Callable
from typing import Any

import click

from ffrecord._cli.units import Timeout


def timeout_option(
    default: float = 30.0,
    help_: str = "Time limit in seconds of each request to a daemon or store.",
) -> Callable[[Any], Any]:
    """The option --timeout, passed as `timeout_s`."""
    return click.option(
        "--timeout",
        "timeout_s",
        type=Timeout(),
        default=default,
        show_default=True,
        help=help_,
    )


def json_option(help_: str = "Print one JSON object.") -> Callable[[Any], Any]:
    """The option --json, passed as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help=help_)
