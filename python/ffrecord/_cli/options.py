"""Options that mean the same in every command."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from ffrecord._base.addresses import is_folder
from ffrecord._cli.units import Timeout
from ffrecord._write.new_folder import check_can_be_made
from ffrecord.errors import ConflictError

# Size of the parts of a folder, if nothing else is asked for.
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


def dry_run_option(help_: str) -> Callable[[Any], Any]:
    """The option --dry-run, passed as `dry_run`."""
    return click.option("--dry-run", is_flag=True, help=help_)


@contextmanager
def overwrite_named(name: str, may_replace: bool) -> Iterator[None]:
    """Name --overwrite when `name` is taken: what the library says is for programs.

    Raises:
        ConflictError: it is, and `may_replace` is not set.
    """
    try:
        yield
    except FileExistsError as error:
        if may_replace or name not in str(error):
            raise
        raise ConflictError(errno.EEXIST, f"{name} exists; --overwrite replaces it") from error


def check_can_hold(target: str) -> None:
    """Check, for a dry run, that a target which is a folder can be made.

    Raises:
        OSError: it cannot.
    """
    if is_folder(target):
        check_can_be_made(Path(os.path.abspath(target)))


def check_parts(destination: str, part_size: int | None) -> None:
    """Refuse --part-size for a destination that has no parts.

    Raises:
        click.UsageError: the destination is one file.
    """
    if part_size is not None and destination.endswith(".ffr"):
        raise click.UsageError(f"--part-size: {destination} is one file; name a folder for parts")
