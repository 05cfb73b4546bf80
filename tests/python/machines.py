"""Hosts for tests of `ffrecord cluster up`: folders of this machine, without systemd."""

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fake_systemctl
from daemon import program
from eventually import eventually
from ffrecord._cli.remote_host import Done


class Machines:
    """A folder that stands for some hosts: units, settings, data, and programs in `bin`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin, self.units, self.running = folder / "bin", folder / "units", folder / "running"
        for one in (self.bin, self.units, self.running, folder / "disks"):
            one.mkdir(parents=True)
        self.refuse("")
        self.add_program("ffrecordd", f'exec {program()} "$@"')
        self.path = f"{self.bin}:{os.environ['PATH']}"
        self._ports: dict[str, int] = {}

    def add_program(self, name: str, script: str) -> None:
        """Put a script where the hosts look first."""
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def refuse(self, command: str) -> None:
        """Have systemctl refuse a command line; "": none."""
        fails = f'[ "$*" = "{command}" ] && {{ echo refused >&2; exit 1; }}\n' if command else ""
        self.add_program(
            "systemctl",
            f"{fails}exec {sys.executable} {fake_systemctl.__file__}"
            f' {self.units} {self.running} "$@"',
        )

    def port(self, of: str) -> int:
        """A port that was free, the same one for the same name."""
        if of not in self._ports:
            with socket.socket() as one:
                one.bind(("127.0.0.1", 0))
                self._ports[of] = one.getsockname()[1]
        return self._ports[of]

    def hosts_file(self, names: list[str], *, more: str = "", ssh: str = "host-{}") -> Path:
        """A file for these hosts; the first one runs etcd."""
        user = pwd.getpwuid(os.getuid()).pw_name
        lines = [
            'cluster = "t"',
            f'user = "{user}"',
            f'config_folder = "{self.folder / "etc"}"',
            f'unit_folder = "{self.units}"',
            "[settings]",
            "lease_s = 3",
            more,
        ]
        for number, name in enumerate(names):
            lines += [
                f"[hosts.{name}]",
                f'ssh = "{ssh.format(name)}"',
                f'data = ["{self.folder / "disks" / name}"]',
                f'listen = "127.0.0.1:{self.port(name)}"',
                f'admin = "127.0.0.1:{self.port(f"{name} admin")}"',
            ]
            if number == 0:
                lines += [
                    f'etcd = "{self.folder / "disks" / "etcd"}"',
                    f'etcd_client = "127.0.0.1:{self.port("etcd client")}"',
                    f'etcd_peer = "127.0.0.1:{self.port("etcd peer")}"',
                ]
        path = self.folder / "hosts.toml"
        path.write_text("\n".join(lines) + "\n")
        return path

    def tree(self) -> dict[str, str]:
        """What hosts keep: settings, units, data folders; not the calls of systemctl."""
        found = {}
        for top in (self.folder / "etc", self.units, self.folder / "disks"):
            for path in sorted(top.rglob("*")) if top.exists() else []:
                small = path.is_file() and path.suffix in (".toml", ".service")
                found[str(path)] = path.read_text() if small else ""
        return found

    def calls(self) -> list[str]:
        """What systemctl was told that changes anything, since the last call of this."""
        log = self.running / "calls.log"
        lines = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return [line for line in lines if not line.startswith("is-")]

    def stop_all(self) -> None:
        """End whatever still runs."""
        for path in self.running.glob("*.pid"):
            fake_systemctl.stop(path.stem, self.running)


class LocalHost:
    """One of them, without ssh."""

    def __init__(self, name: str, machines: Machines) -> None:
        self.name = name
        self._path = machines.path

    def run(self, script: str, *, text: str = "", timeout_s: float = 60.0) -> Done:
        """As over ssh."""
        done = subprocess.run(
            ["sh", "-c", script],
            input=text,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            env={**os.environ, "PATH": self._path},
        )
        return Done(done.returncode, done.stdout, done.stderr)


@contextlib.contextmanager
def sshd(folder: Path, path: str) -> Iterator[Path]:
    """A server of ssh on loopback, whose sessions have this PATH; yields the file for `ssh -F`.

    The name of any host leads to it. Skips the test if there is none.
    """
    server = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin")
    if server is None or shutil.which("ssh") is None:
        pytest.skip("no sshd here: the package openssh-server is not installed")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # Where it lives without privileges.
    folder.mkdir(mode=0o700)
    for name in ("host", "user"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True
        )
    shutil.copy(folder / "user.pub", folder / "authorized")
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder / 'host'}\n"
        f"AuthorizedKeysFile {folder / 'authorized'}\nStrictModes no\nUsePAM no\n"
        f"PermitRootLogin prohibit-password\nPidFile none\nMaxStartups 100\nSetEnv PATH={path}\n"
    )
    public = (folder / "host.pub").read_text()
    (folder / "known").write_text(f"* {public}")
    config = folder / "ssh_config"
    config.write_text(
        f"Host *\n  HostName 127.0.0.1\n  Port {port}\n  IdentityFile {folder / 'user'}\n"
        f"  IdentitiesOnly yes\n  UserKnownHostsFile {folder / 'known'}\n"
    )
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [server, "-D", "-e", "-f", str(folder / "sshd_config")], stdout=log, stderr=log
        )
    try:
        said = (folder / "log").read_text
        eventually(lambda: f"port {port}" in said(), process, said)
        yield config
    finally:
        process.terminate()
        process.wait()
