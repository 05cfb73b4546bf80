"""Options that mean the same in every command."""

from collections.abc import Callable
from typing import Any

import click

from ffrecord._cli.units import Timeout

# Of the parts of a folder, if nothing else is asked for.
PART_BYTES = 1 << 30


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


def check_parts(destination: str, part_size: int | None) -> None:
    """Refuse --part-size for a destination that has no parts.

    Raises:
        click.UsageError: the destination is one file.
    """
    if part_size is not None and destination.endswith(".ffr"):
        raise click.UsageError(f"--part-size: {destination} is one file; name a folder for parts")
