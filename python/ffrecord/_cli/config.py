"""The daemon's settings: ffrecordd itself checks a file."""

import json
import pathlib
import shutil
import subprocess
import sys

import click


def find_daemon() -> str:
    """The path of ffrecordd: beside this Python, where a wheel puts it, or in the PATH.

    Raises:
        FileNotFoundError: it is in neither.
    """
    found = shutil.which("ffrecordd") or shutil.which(
        "ffrecordd", path=str(pathlib.Path(sys.executable).parent)
    )
    if found is None:
        raise FileNotFoundError(
            None, "ffrecordd is neither in PATH nor beside Python; add its folder to PATH"
        )
    return found


@click.group()
def config() -> None:
    """Work with the settings of a daemon."""


@config.command()
@click.argument("file", type=click.Path(path_type=pathlib.Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def check(context: click.Context, file: pathlib.Path, as_json: bool) -> None:
    """Check whether ffrecordd would start with the settings in FILE."""
    done = subprocess.run(
        [find_daemon(), "--config", str(file), "--check-config"],
        check=False,
        capture_output=as_json,
        text=True,
        errors="backslashreplace",
    )
    if as_json:
        message = (done.stderr or done.stdout).strip()
        click.echo(json.dumps({"ok": done.returncode == 0, "message": message}))
    if done.returncode != 0:
        context.exit(done.returncode)
