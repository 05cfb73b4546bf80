"""What both commands share: exit codes, messages, and the progress bar."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from ffrecord.errors import CorruptionError

EXIT_USAGE, EXIT_DAMAGE, EXIT_ENVIRONMENT, EXIT_INTERRUPTED = 2, 3, 4, 130

Progress = Callable[[int, int], None]


def run(command: click.Command) -> int:
    """Run a command line; return the exit code. The only place that catches."""
    try:
        return command.main(standalone_mode=False) or 0
    except click.ClickException as error:
        error.show()
        return EXIT_USAGE
    except (click.Abort, KeyboardInterrupt):
        say("interrupted: nothing was left behind")
        return EXIT_INTERRUPTED
    except CorruptionError as error:
        say(f"damaged: {error}")
        return EXIT_DAMAGE
    except OSError as error:
        say(f"failed: {_reason(error)}")
        return EXIT_ENVIRONMENT
    except ImportError as error:
        say(f"failed: {error}")
        return EXIT_ENVIRONMENT
    except ValueError as error:
        say(f"wrong: {error}")
        return EXIT_USAGE


def say(message: str) -> None:
    """To people, on stderr; red on a terminal that wants colour."""
    click.secho(message, fg="red" if _fancy() else None, err=True)


@contextmanager
def progress_bar(what: str) -> Iterator[Progress | None]:
    """A bar with rate and time left, fed with bytes done and in all; None off a terminal."""
    if not _fancy():
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _fancy() -> bool:
    return sys.stderr.isatty() and "NO_COLOR" not in os.environ


def _reason(error: OSError) -> str:
    """The message without Python's `[Errno 2]`, and with the file if Python knows it."""
    text = error.strerror or str(error)
    return f"{text}: {error.filename}" if error.filename is not None else text
