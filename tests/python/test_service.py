"""Goal: the daemon is a good service: it says when it is ready, and its unit keeps it in bounds.

Method: a socket in the part of systemd; the unit as it would be installed, rated by
systemd-analyze and compared with the flags that the daemon knows.
"""

import os
import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from conftest import ROOT
from daemon import Daemon, program

EXPOSURE_MAX_TENTHS = 15


def unit_text() -> str:
    text = (ROOT / "server" / "ffrecordd.service.in").read_text()
    return text.replace("@bindir@", str(Path(program()).parent))


def test_the_service_manager_is_told_of_the_start_and_of_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(20)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        with Daemon(tmp_path / "data") as daemon:
            assert manager.recv(100) == b"READY=1"
            daemon.stop()
        assert manager.recv(100) == b"STOPPING=1"


def test_a_service_manager_that_is_gone_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (str(tmp_path / "nobody"), "@" + "n" * 200, "relative", ""):
        monkeypatch.setenv("NOTIFY_SOCKET", path)
        with Daemon(tmp_path / "data") as daemon:
            assert daemon.stop() == 0


def test_the_unit_is_rated_as_safe(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd-analyze here")
    unit = tmp_path / "ffrecordd.service"
    unit.write_text(unit_text())
    limit = f"--threshold={EXPOSURE_MAX_TENTHS}"

    rated = subprocess.run(
        [analyze, "security", "--offline=true", limit, unit],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
    )

    assert rated.returncode == 0, rated.stdout[-500:] + rated.stderr
    assert "Overall exposure level" in rated.stdout


def test_every_flag_in_the_unit_is_one_that_the_daemon_knows() -> None:
    help_text = subprocess.run(
        [program(), "--help"], capture_output=True, text=True, check=True
    ).stdout
    flags = set(
        re.findall(
            r"(?<=\s)--[a-z-]+",
            "\n".join(line for line in unit_text().splitlines() if "ExecStart=" in line),
        )
    )

    assert flags >= {"--data", "--listen", "--token-keys"}
    assert all(flag in help_text for flag in flags)
