"""Stands for systemctl where no systemd runs: starts and stops what units say, and nothing else.

    fake_systemctl.py UNITS RUNNING [OPTION...] COMMAND [UNIT]

UNITS is the folder with the units, RUNNING one for their processes: UNIT.pid, UNIT.log and, while
it is enabled, UNIT.enabled. A unit of `Type=notify` has started once it says READY=1. Options are
those that the project uses: --quiet, --now, --no-block.
"""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_READY_S = 60.0


def pid_of(unit: str, running: Path) -> int | None:
    """Its process, if it runs."""
    path = running / f"{unit}.pid"
    if not path.exists():
        return None
    pid = int(path.read_text())
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return None
    return None if state == "Z" else pid


def start(unit: str, units: Path, running: Path, waits: bool) -> int:
    """Start it unless it runs; return the exit code."""
    if pid_of(unit, running) is not None:
        return 0
    text = (units / unit).read_text().replace("\\\n", " ")
    found = re.search(r"^ExecStart=(.*)$", text, re.MULTILINE)
    assert found, text
    with (
        tempfile.TemporaryDirectory() as short,  # The path of a socket has 107 characters at most.
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told,
    ):
        address = f"{short}/notify"
        told.bind(address)
        told.settimeout(0.1)
        with (running / f"{unit}.log").open("ab") as log:
            process = subprocess.Popen(
                shlex.split(found[1]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "NOTIFY_SOCKET": address},
            )
        (running / f"{unit}.pid").write_text(str(process.pid))
        end = time.monotonic() + _READY_S
        while waits and time.monotonic() < end:
            if process.poll() is not None:
                print(f"Job for {unit} failed", file=sys.stderr)
                return 1
            try:
                if b"READY=1" in told.recv(4096):
                    return 0
            except TimeoutError:
                continue
    return 0


def stop(unit: str, running: Path) -> None:
    """SIGTERM, and wait."""
    pid = pid_of(unit, running)
    if pid is None:
        return
    os.kill(pid, signal.SIGTERM)
    while pid_of(unit, running) is not None:
        time.sleep(0.02)


def main() -> int:
    """Do what the command line says; return the exit code."""
    units, running = Path(sys.argv[1]), Path(sys.argv[2])
    options = {one for one in sys.argv[3:] if one.startswith("-")}
    command, *names = (one for one in sys.argv[3:] if not one.startswith("-"))
    with (running / "calls.log").open("a") as calls:
        calls.write(f"{command} {' '.join(names)}\n")
    if command == "is-system-running":
        print("running")
    if command in ("daemon-reload", "is-system-running"):
        return 0
    (unit,) = names
    enabled = running / f"{unit}.enabled"
    if command == "is-active":
        return 0 if pid_of(unit, running) is not None else 3
    if command == "is-failed":
        was_started = (running / f"{unit}.pid").exists()
        return 0 if was_started and pid_of(unit, running) is None else 1
    if command == "enable":
        enabled.touch()
    if command in ("stop", "restart") or (command == "disable" and "--now" in options):
        stop(unit, running)
        (running / f"{unit}.pid").unlink(missing_ok=True)
    if command == "disable":
        enabled.unlink(missing_ok=True)
    if command in ("start", "restart"):
        return start(unit, units, running, "--no-block" not in options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
