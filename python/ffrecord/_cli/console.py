"""The code that both commands share: exit codes, messages, and the progress bar."""

import errno
import io
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import click

from ffrecord._base import clock
from ffrecord._cli.text import safe_lines
from ffrecord._cli.units import show_size
from ffrecord.errors import CorruptionError

EXIT_DECLINED = 1
EXIT_USAGE, EXIT_DAMAGE, EXIT_ENVIRONMENT, EXIT_INTERRUPTED = 2, 3, 4, 130

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Between two lines of progress off a terminal.
_INTERVAL_S = 10.0

Progress = Callable[[int, int], None]


def run(command: click.Command) -> int:
    """Run a command line; return the exit code. The only place that catches."""
    _show_any_name()
    try:
        with _quiet_if_closed(), _warnings_said():
            return command.main(standalone_mode=False) or 0
    except click.ClickException as error:
        text = io.StringIO()
        error.show(file=text)
        _print(safe_lines(text.getvalue().rstrip("\n")))
        return EXIT_USAGE
    except SystemExit as end:
        # click's, once it has completed a line for a shell; or when nobody reads standard output
        # any more, whose 1 would promise that nothing was changed.
        return 0 if end.code == 0 else EXIT_ENVIRONMENT
    except (click.Abort, KeyboardInterrupt) as error:
        # click has made its own of the interrupt.
        say(f"interrupted{_notes(error.__cause__ or error)}")
        return EXIT_INTERRUPTED
    except CorruptionError as error:
        say(f"damaged: {error}{_notes(error)}")
        return EXIT_DAMAGE
    except OSError as error:
        say(f"failed: {_reason(error)}{_notes(error)}")
        _drop_output()
        return EXIT_ENVIRONMENT
    except ImportError as error:
        say(f"failed: {error}")
        return EXIT_ENVIRONMENT
    except ValueError as error:
        say(f"wrong: {error}{_notes(error)}")
        return EXIT_USAGE
    except MemoryError:
        say("failed: out of memory")
        return EXIT_ENVIRONMENT
    except RecursionError:
        say("wrong: JSON or text in the input is nested more deeply than Python can read")
        return EXIT_USAGE
    except RuntimeError as error:
        say(
            f"failed: {error}{_notes(error)}"
        )  # Such as "can't start new thread", or another rank's error.
        return EXIT_ENVIRONMENT


@contextmanager
def _warnings_said() -> Iterator[None]:
    """Show warnings of the library as messages, not as lines of its source."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: say(f"warning: {message}")
        yield


@contextmanager
def _quiet_if_closed() -> Iterator[None]:
    """Let what is printed go nowhere if standard output was closed before the start.

    click 8.1.3, which Debian 12 has, cannot print to it.
    """
    if sys.stdout is not None:
        yield
        return
    with open(os.devnull, "w", encoding="utf-8") as sys.stdout:
        try:
            yield
        finally:
            sys.stdout = None  # As it was.


def _show_any_name() -> None:
    """Print names that are not UTF-8, or that the terminal cannot show, with backslashes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def confirm(question: str) -> None:
    """Continue if a person says yes.

    Raises:
        click.UsageError: standard input is not a terminal, and has no answer.
        click.exceptions.Exit: the answer is no.
    """
    nobody = click.UsageError(
        "this command asks first, and standard input is no terminal: add --yes"
    )
    if sys.stdin is None:
        raise nobody
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        raise nobody from None
    if not agreed:
        say("nothing was removed")
        raise click.exceptions.Exit(EXIT_DECLINED)


def say(message: str) -> None:
    """Print for people, on stderr; red on a terminal with colour.

    Names of strangers in it cannot steer a terminal. If stderr cannot be written to, the exit code
    still tells.
    """
    _print(safe_lines(message), "red" if _has_colour() else None)


def _print(message: str, colour: str | None = None) -> None:
    if sys.stderr is None:
        return
    with suppress(OSError):
        # Styled text without a colour would still end with a code.
        click.echo(click.style(message, fg=colour) if colour else message, err=True)


class Panel:
    """Lines that replace those shown before, on a terminal; elsewhere they follow them."""

    def __init__(self) -> None:
        """Nothing is shown yet."""
        self._line_count = 0

    def show(self, text: str) -> None:
        """Show `text`; on a terminal cut to its width, since a line that wraps is two."""
        if not sys.stdout.isatty():
            click.echo(text)
            return
        width = shutil.get_terminal_size().columns - 1
        lines = [f"{line[:width]}\x1b[K" for line in text.splitlines()]
        back = f"\x1b[{self._line_count}A" if self._line_count else ""
        click.echo(back + "\n".join(lines))
        self._line_count = len(lines)


class _Lines:
    """Progress where there is no terminal: a line each ten seconds, so that a log stays short."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._begin = self._last = clock.now()

    def __call__(self, done: int, total: int) -> None:
        now = clock.now()
        if now - self._last < _INTERVAL_S:
            return
        self._last = now
        rate = done / max(now - self._begin, 1e-9)
        share = f", {100 * done // total} %" if total else ""
        _print(f"{self._what}: {show_size(done)} of {show_size(total)}{share}, {show_size(rate)}/s")


@contextmanager
def progress_bar(what: str) -> Iterator[Progress | None]:
    """Progress on stderr, given bytes done and in all: a bar, or lines off a terminal.

    The bar has no colour if NO_COLOR says so. Yields None if there is no stderr.
    """
    if not _is_terminal() or os.environ.get("TERM") == "dumb":
        yield None if sys.stderr is None else _Lines(what)
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
    with Bar(
        *columns, console=Console(stderr=True, no_color=not _has_colour()), transient=True
    ) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _notes(error: BaseException) -> str:
    """Return the notes of an error, which say what to do next, as the end of its message."""
    return "".join(f"; {note}" for note in getattr(error, "__notes__", ()))


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def _has_colour() -> bool:
    """On a terminal, unless NO_COLOR is set to anything."""
    return _is_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _drop_output() -> None:
    """Let what cannot be printed go nowhere: Python would try again and exit with 120."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _reason(error: OSError) -> str:
    """The message without Python's `[Errno 2]`, and with the file if Python knows it."""
    text = error.strerror or str(error)
    name = error.filename
    if name is None and error.errno in _NO_SPACE and text == os.strerror(error.errno):
        return f"standard output: {text}"  # All other files are named where they are written.
    return (
        text
        if name is None
        else f"{text}: {os.fsdecode(name) if isinstance(name, bytes) else name}"
    )
