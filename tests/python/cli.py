"""Runs the commands as processes: their exit codes and what they print are the interface."""

import os
import subprocess
import sys
from pathlib import Path

# Another Python with other versions of click and rich, whose run-time needs nothing else.
PYTHON = os.environ.get("FFRECORD_TEST_PYTHON", sys.executable)
MODULES = {"ffrecord": "ffrecord._cli.main", "ffrecord-pack": "ffrecord._cli.pack"}


def run(
    command: str, *arguments: str | Path, env: dict[str, str] | None = None, timeout_s: float = 180
) -> subprocess.CompletedProcess[str]:
    """Run one to its end. Text in both streams is kept; nothing in it may be a traceback."""
    done = subprocess.run(
        [PYTHON, "-m", MODULES[command], *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
        env={**os.environ, **(env or {})},
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def ok(command: str, *arguments: str | Path) -> str:
    """What a command prints that must succeed."""
    done = run(command, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout
