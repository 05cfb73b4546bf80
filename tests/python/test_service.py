"""Goal: the daemon is a good service: it says when it is ready, and its unit keeps it in bounds.

Method: a socket in the part of systemd; the unit as it would be installed, rated by
systemd-analyze and compared with the flags that the daemon knows.
"""

import contextlib
import errno
import os
import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

import ffrecord
from conftest import ROOT
from daemon import Daemon, program
from eventually import eventually

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


def test_a_full_disk_is_emptied_through_the_daemon(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = 'mount -t tmpfs -o size=24m tmpfs "$0" && exec "$@"'
    prefix = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, str(disk)]
    if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no mounts in a user namespace here")
    for name, size in (("some.ffr", 4 << 20), ("less.ffr", 1 << 20)):
        with ffrecord.Writer(tmp_path / name) as writer:
            writer.write(os.urandom(size))
    with Daemon(disk / "data", prefix=prefix) as daemon:
        for name in "ab":
            ffrecord.publish(tmp_path / "some.ffr", daemon.address(name))
        filler = Path(f"/proc/{daemon.process.pid}/root{disk}/filler")
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        # The daemon looks at the room of its disks twice a second: until then a write finds out.
        with pytest.raises(OSError, match=r"room for|is full") as refused:
            ffrecord.publish(tmp_path / "some.ffr", daemon.address("c"))
        assert refused.value.errno == errno.ENOSPC

        ffrecord.remove_published(daemon.address("a"))
        assert [one.name for one in ffrecord.list_published(daemon.address())] == ["b"]

        # The room that the removal made is there once its extents are unlinked.
        def has_room() -> bool:
            try:
                ffrecord.publish(tmp_path / "less.ffr", daemon.address("c"))
            except OSError as error:
                assert error.errno == errno.ENOSPC
                return False
            return True

        eventually(has_room)
        with ffrecord.open(daemon.address("c")) as read:
            assert len(read[0]) == 1 << 20


def test_a_file_size_limit_refuses_an_upload_and_does_not_end_the_daemon(tmp_path: Path) -> None:
    limit = ["prlimit", f"--fsize={40 << 20}"]  # The reserve fits, a whole extent does not.
    if shutil.which(limit[0]) is None:
        pytest.skip("no prlimit here")
    for name, size in (("large.ffr", 60 << 20), ("small.ffr", 1 << 20)):
        with ffrecord.Writer(tmp_path / name) as writer:
            writer.write(os.urandom(size))
    with Daemon(tmp_path / "data", prefix=limit) as daemon:
        with pytest.raises(OSError, match="file size limit") as refused:
            ffrecord.publish(tmp_path / "large.ffr", daemon.address("large"))
        assert refused.value.errno == errno.EFBIG
        ffrecord.publish(tmp_path / "small.ffr", daemon.address("small"))
        with ffrecord.open(daemon.address("small")) as read:
            assert len(read[0]) == 1 << 20
    # Not even the reserve: nothing can be stored, and it says so.
    with (
        Daemon(tmp_path / "less", prefix=["prlimit", f"--fsize={16 << 20}"]) as daemon,
        pytest.raises(OSError, match="cannot reserve the room that deletions need"),
    ):
        ffrecord.publish(tmp_path / "small.ffr", daemon.address("small"))


def test_tokens_that_cross_a_network_in_plaintext_are_warned_of(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("0123456789abcdef" * 4)
    keys.chmod(0o600)
    admin = ("--admin-token-file", str(keys), "--admin")
    for host, admin_host, count in (("127.0.0.1", "127.0.0.1", 0), ("0.0.0.0", "0.0.0.0", 2)):
        flags = ("--token-keys", str(keys), *admin, f"{admin_host}:0")
        with Daemon(tmp_path / "data", *flags, host=host) as daemon:
            warnings = [line for line in daemon.log if "event=secrets_in_plaintext" in line]
        assert len(warnings) == count
        assert all("without TLS" in line and "0.0.0.0:0" in line for line in warnings)
