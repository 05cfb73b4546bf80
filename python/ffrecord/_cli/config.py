"""The daemon's settings: ffrecordd itself checks a file."""

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
@click.pass_context
def check(context: click.Context, file: pathlib.Path) -> None:
    """Check whether ffrecordd would start with the settings in FILE."""
    done = subprocess.run([find_daemon(), "--config", str(file), "--check-config"], check=False)
    if done.returncode != 0:
        context.exit(done.returncode)
