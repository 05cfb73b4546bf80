"""ffrecord prof and ffrecord why: what training waits for."""

import datetime
import json
import os
import shutil
import signal
from pathlib import Path

import click

from ffrecord import _ffrecord
from ffrecord._base import clock, recording
from ffrecord._cli.console import say
from ffrecord._cli.data.new_file import check_vacant_file, new_file
from ffrecord._cli.options import json_option
from ffrecord._cli.text import safe_lines
from ffrecord._cli.units import Number
from ffrecord._profile import exports, files, report
from ffrecord._profile import timeline as timelines
from ffrecord.errors import CorruptionError

# Signals for a launcher, such as torchrun, are passed on; it passes them to its ranks. Schedulers
# announce the end of a job by SIGUSR1 or SIGUSR2.
_PASSED_ON = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP),
    *(signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2),
)
# A terminal sends these to all processes of its group: then the program has got it already.
_TYPED = (signal.SIGINT, signal.SIGQUIT)
_EXIT_OF_SIGNAL = 128


# Options behind COMMAND are its own.
@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "--out",
    type=click.Path(file_okay=False),
    metavar="RUN",
    help="Folder for the profile; by default ffrecord-profile-DATE-TIME here. All hosts of a run "
    "need the same, on a file system that they share, or copy their files together afterwards.",
)
@click.option(
    "--watchdog",
    "limit_s",
    type=Number(1, 86400),
    default=600.0,
    show_default=True,
    help="Report a rank that makes no progress for so many seconds, with stacks of its threads.",
)
@click.option("--no-watchdog", is_flag=True, help="Never report that.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def prof(out: str | None, limit_s: float, no_watchdog: bool, command: tuple[str, ...]) -> None:
    """Run COMMAND and profile its training: ffrecord prof -- torchrun train.py.

    The program needs no change if it imports ffrecord. Prints a table and a verdict when it ends;
    `ffrecord why RUN` tells more. Exits as COMMAND does.
    """
    folder = Path(out or _new_name()).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    settings = {recording.FOLDER_VARIABLE: str(folder)}
    if not no_watchdog:
        settings[recording.WATCHDOG_VARIABLE] = str(limit_s)
    code = _run(command, settings)
    try:
        lines = report.closing(files.read_run(folder))
    except (OSError, ValueError, CorruptionError) as error:
        say(f"no profile: {error}")
    else:
        click.echo(safe_lines("\n".join(lines)), err=True)
        say(f"profile in {folder}; `ffrecord why {folder}` tells more")
    if code:
        raise click.exceptions.Exit(code)


def _new_name() -> str:
    now = datetime.datetime.fromtimestamp(clock.calendar_now())
    return now.strftime("ffrecord-profile-%Y%m%d-%H%M%S")


def _run(command: tuple[str, ...], settings: dict[str, str]) -> int:
    """Run it with these variables; return its exit code.

    It has the descriptors, the terminal and the signals that it would have without us.
    """
    noted = {*_PASSED_ON, signal.SIGCHLD}
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # Ignored, it would take the exit code with it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, noted)
    try:
        child = os.posix_spawnp(
            command[0],
            command,
            {**os.environ, **settings},
            setsigmask=before,
            setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),  # Python ignores them, for itself.
        )
        status = _wait(child, noted)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else _EXIT_OF_SIGNAL - code


def _wait(child: int, noted: set[signal.Signals]) -> int:
    """Pass signals on until the child ends; return its status.

    The kernel may give a signal to any thread, such as those of NumPy. So a handler notes it, with
    its sender.
    """
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    _ffrecord.note_signals(sorted(noted), writes)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, noted)
        while True:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                return status
            number, is_kernels = os.read(reads, 2)
            if number != signal.SIGCHLD and not (is_kernels and number in _TYPED):
                os.kill(child, number)
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, noted)
        _ffrecord.forget_signals()
        os.close(reads)
        os.close(writes)


@click.command()
@click.argument("run", type=click.Path())
@click.option("--timeline", is_flag=True, help="Print the timeline of one usual step, too.")
@click.option("--html", "page", type=click.Path(dir_okay=False), help="Write a page about RUN.")
@click.option(
    "--trace", type=click.Path(dir_okay=False), help="Write a trace for https://ui.perfetto.dev."
)
@click.option(
    "--prometheus", type=click.Path(dir_okay=False), help="Write the figures for Prometheus."
)
@click.option("--overwrite", is_flag=True, help="Replace files that exist.")
@json_option("Print one JSON object.")
def why(
    run: str,
    timeline: bool,
    page: str | None,
    trace: str | None,
    prometheus: str | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Say why the steps of the profile in RUN take as long as they do.

    RUN is the folder of `ffrecord prof` or `ffrecord.profile`, or one file of it. The program may
    still be running, or have been killed.
    """
    for path in filter(None, (page, trace, prometheus)):
        check_vacant_file(Path(path), overwrite)
    if timeline and as_json:
        raise click.UsageError("--timeline is for people, --json for programs: choose one")
    found = report.run_of(files.read_run(run))
    if as_json:
        click.echo(json.dumps(report.facts(found)))
    else:
        lines = report.why(found)
        if timeline:
            lines += ["", *timelines.text(found.steps, shutil.get_terminal_size().columns)]
        click.echo(safe_lines("\n".join(lines)))
    if page:
        from ffrecord._cli.profile_page import page as made

        _write(page, made(found, f"Profile of {run}"), overwrite)
    if trace:
        _write(trace, json.dumps(exports.trace(found)), overwrite)
    if prometheus:
        _write(prometheus, exports.prometheus(found), overwrite)


def _write(path: str, text: str, overwrite: bool) -> None:
    with new_file(Path(path), overwrite) as file:
        file.write(text.encode())
