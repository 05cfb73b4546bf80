"""Goal: `tools/demo` does what its arguments say, and starts nothing for those it does not know.

Method: a copy of the script beside a `setup` that fails, so that whatever starts the demo is seen.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

DEMO = Path(__file__).resolve().parents[2] / "tools" / "demo"
STARTED = 99


def demo(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    tools = folder / "tools"
    tools.mkdir()
    shutil.copy(DEMO, tools / "demo")
    (tools / "setup").write_text(f"#!/bin/sh\nexit {STARTED}\n")
    (tools / "setup").chmod(0o755)
    command = [str(tools / "demo"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["--cluster", "--help"]])
def test_help_is_printed_and_nothing_is_started(tmp_path: Path, arguments: list[str]) -> None:
    done = demo(tmp_path, *arguments)
    assert done.returncode == 0
    assert done.stdout.startswith("Usage: tools/demo [--cluster]\n")


def test_an_unknown_argument_is_refused_before_anything_starts(tmp_path: Path) -> None:
    done = demo(tmp_path, "--clutser")
    assert done.returncode == 2
    assert "unknown argument --clutser" in done.stderr


@pytest.mark.parametrize("arguments", [[], ["--cluster"]])
def test_without_help_the_demo_starts(tmp_path: Path, arguments: list[str]) -> None:
    assert demo(tmp_path, *arguments).returncode == STARTED
