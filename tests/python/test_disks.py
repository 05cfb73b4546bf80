"""Goal: a daemon with two disks loses neither data nor its head when one of them is not as it was.

Method: a real daemon with two data folders; one is emptied, swapped, taken away, made read-only or
full between starts, or while it runs, in a mount namespace of the daemon's own.
"""

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ffrecord
from cli import ok
from daemon import Daemon, program
from eventually import eventually

SIZE = 3 << 20


def files_on(folder: Path) -> list[Path]:
    return [path for path in (folder / "extents").rglob("*") if path.is_file()]


@pytest.fixture
def sources(tmp_path: Path) -> list[Path]:
    """Eight files, which eight extents hold."""
    paths = [tmp_path / f"{i}.ffr" for i in range(8)]
    for number, path in enumerate(paths):
        with ffrecord.Writer(path) as writer:
            for i in range(16):
                data = np.random.default_rng(100 * number + i).integers(0, 256, SIZE // 16, "u1")
                writer.write(data.tobytes())
    return paths


def daemon_of(first: Path, second: Path, *flags: str, prefix: tuple[str, ...] = ()) -> Daemon:
    return Daemon(first, "--data", str(second), "--admin", "127.0.0.1:0", *flags, prefix=prefix)


def refusal(*flags: str | Path) -> str:
    done = subprocess.run(
        [program(), "--listen", "127.0.0.1:0", *map(str, flags)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 4, done.stderr
    return done.stderr


def admin_of(daemon: Daemon) -> str:
    return next(match[1] for line in daemon.log if (match := re.search(r"admin=(\S+)", line)))


def status(daemon: Daemon) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(ok("ffrecord", "status", admin_of(daemon), "--json"))
    return facts


def readable(daemon: Daemon, sources: list[Path], timeout_s: float = 60) -> list[bool]:
    """Which datasets can be read, byte for byte; the others are unavailable, no other error."""
    found = []
    for path in sources:
        reader = ffrecord.open(daemon.address(path.stem), timeout_s=timeout_s)
        try:
            served = reader.read(range(16))
        except (ConnectionError, TimeoutError):
            found.append(False)
            continue
        np.testing.assert_array_equal(served.data, ffrecord.open(path).read(range(16)).data)
        found.append(True)
    return found


def publish(daemon: Daemon, sources: list[Path]) -> None:
    for path in sources:
        ffrecord.publish(path, daemon.address(path.stem), replace=True)


def test_both_disks_hold_their_part_and_an_empty_one_stops_the_start(
    tmp_path: Path, sources: list[Path]
) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    with daemon_of(a, b) as daemon:
        publish(daemon, sources)
        assert readable(daemon, sources) == [True] * 8
        disks = status(daemon)["disks"]
    assert len(files_on(a)) == len(files_on(b)) == 4
    assert {name: facts["extents"] for name, facts in disks.items()} == {str(a): 4, str(b): 4}

    b.rename(tmp_path / "unmounted")
    b.mkdir()
    said = refusal("--data", a, "--data", b)
    assert "has no file 'identity'" in said
    assert "--missing-disks 1" in said

    with daemon_of(a, b, "--missing-disks", "1") as daemon:
        assert any("event=disk_missing" in line for line in daemon.log)

        def half() -> list[bool] | None:
            """Each is asked for a second; one that is there may be late."""
            seen = readable(daemon, sources, 1)
            return seen if sum(seen) == 4 else None

        seen = eventually(half)
        assert seen is not None
        gone = sources[seen.index(False)]
        ffrecord.remove_published(daemon.address(gone.stem))  # Its extent is on the other disk.
        extra, brief = tmp_path / "extra.ffr", tmp_path / "brief.ffr"
        shutil.copy(sources[0], extra)
        shutil.copy(sources[1], brief)
        publish(daemon, [extra, brief])
        assert status(daemon)["missing_disks"] == 1
        ffrecord.remove_published(daemon.address("brief"))
        # It collects what was removed; what is on the other disk waits for that.
        eventually(lambda: any("event=collected" in line for line in daemon.log))
    assert not list(b.iterdir())

    # It is back, with all that was on it but what was removed.
    b.rmdir()
    (tmp_path / "unmounted").rename(b)
    with daemon_of(a, b) as daemon:
        left = [path for path in sources if path != gone]
        assert readable(daemon, left) == [True] * 7
        eventually(lambda: len(files_on(b)) == 3)
        assert "extent_unexplained" not in "".join(daemon.log)


def test_swapped_and_foreign_disks_are_told(tmp_path: Path, sources: list[Path]) -> None:
    a, b, c, d = (tmp_path / name for name in "abcd")
    with daemon_of(a, b) as daemon:
        publish(daemon, sources[:2])
    with daemon_of(c, d):
        pass
    assert "another daemon" in refusal("--data", a, "--data", d)
    assert "has the metadata of a daemon" in refusal("--data", b, "--data", a)
    assert "whose metadata is not in" in refusal("--data", b)
    assert "not given as --data" in refusal("--data", a)
    # The two mount points swapped are the same disks.
    a.rename(tmp_path / "x")
    b.rename(a)
    (tmp_path / "x").rename(b)
    with daemon_of(b, a) as daemon:
        assert readable(daemon, sources[:2]) == [True, True]
        assert "another ffrecordd uses" in refusal("--data", b, "--data", a)


def test_a_store_of_one_folder_grows_by_a_disk(tmp_path: Path, sources: list[Path]) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    with Daemon(a) as daemon:
        publish(daemon, sources[:4])
    (a / "identity").unlink()  # As before disks had identities.
    with sqlite3.connect(a / "metadata.sqlite") as metadata:
        metadata.execute("DELETE FROM entries WHERE key = ?", [b"daemon"])
        metadata.execute("DELETE FROM entries WHERE substr(key, 1, 6) = ?", [b"disks/"])
    metadata.close()
    with Daemon(a) as daemon:
        assert readable(daemon, sources[:4]) == [True] * 4
    assert (a / "identity").read_text().startswith("ffrecord disk 1\n")
    with daemon_of(a, b) as daemon:
        publish(daemon, sources[4:])
        assert readable(daemon, sources) == [True] * 8
    assert len(files_on(b)) >= 2


def test_a_disk_that_is_lost_is_forgotten_and_replaced(tmp_path: Path, sources: list[Path]) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    with daemon_of(a, b) as daemon:
        publish(daemon, sources)
    shutil.rmtree(b)
    said = refusal("--data", a, "--data", b)
    found = re.search(r"--forget-disk ([0-9a-f]{32})", said)
    assert found is not None, said
    with daemon_of(a, b, "--forget-disk", found[1]) as daemon:
        lost = []
        for path in sources:
            try:
                ffrecord.open(daemon.address(path.stem)).read(range(16))
            except FileNotFoundError:
                lost.append(path)
        assert len(lost) == 4
        publish(daemon, lost)
        assert readable(daemon, sources) == [True] * 8
    with daemon_of(a, b):
        pass


def test_a_disk_is_drained_while_it_is_read_and_then_taken_out(
    tmp_path: Path, sources: list[Path]
) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    with daemon_of(a, b) as daemon:
        publish(daemon, sources)
        log = "".join(daemon.log)
    found = re.search(rf"event=disk id=([0-9a-f]{{32}}) data={b} ", log)
    assert found is not None, log
    assert "no such disk" in refusal("--data", a, "--data", b, "--drain-disk", "0" * 32)

    with daemon_of(a, b, "--drain-disk", found[1]) as daemon:
        held = ffrecord.open(daemon.address(sources[0].stem))  # Holds up nothing.
        held.read(range(16))
        assert readable(daemon, sources) == [True] * 8
        while status(daemon)["disks"][str(b)]["extents"]:
            assert readable(daemon, sources) == [True] * 8
        held.read(range(16))
        extra = tmp_path / "extra.ffr"
        shutil.copy(sources[0], extra)
        publish(daemon, [extra])
        eventually(lambda: not files_on(b))
        held.read(range(16))
        eventually(lambda: status(daemon)["disks"][str(b)]["state"] == "drained")
        assert any("event=disk_drained" in line for line in daemon.log)
    assert len(files_on(a)) == 9
    shutil.rmtree(b)
    with Daemon(a, "--forget-disk", found[1]) as daemon:
        assert readable(daemon, sources) == [True] * 8


@pytest.mark.parametrize("kill_at", range(1, 34))
def test_a_start_that_is_killed_anywhere_is_begun_again(tmp_path: Path, kill_at: int) -> None:
    if shutil.which("strace") is None:
        pytest.skip("no strace here")
    a, b = tmp_path / "a", tmp_path / "b"
    flags = ["--data", str(a), "--data", str(b), "--listen", "127.0.0.1:0", "--cores", "1"]
    inject = f"inject=fsync,fdatasync,linkat,mkdir:signal=SIGKILL:when={kill_at}"
    command = ["strace", "-f", "-o", "/dev/null", "-e", inject, program(), *flags]
    killed = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert killed.stderr is not None
    for line in killed.stderr:
        if "event=ready" in line:
            os.killpg(killed.pid, signal.SIGKILL)
    killed.wait(30)
    killed.stderr.close()
    for _ in range(2):
        with daemon_of(a, b) as daemon:
            assert len([line for line in daemon.log if "event=disk " in line]) == 2
    assert (a / "identity").exists()
    assert (b / "identity").exists()


def in_namespace(commands: str, *folders: Path) -> tuple[str, ...]:
    """Run the daemon where `commands` have mounted something; skip where that is not allowed."""
    script = f'{commands} && shift {len(folders)} && exec "$@"'
    prefix = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh")
    full = (*prefix, *map(str, folders))
    if subprocess.run([*full, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no mounts in a user namespace here")
    return full


def test_a_full_disk_sends_what_is_new_to_the_other(tmp_path: Path, sources: list[Path]) -> None:
    a, small = tmp_path / "a", tmp_path / "small"
    a.mkdir()
    small.mkdir()
    command = 'mount -t tmpfs -o size=100m tmpfs "$1" && mount -t tmpfs -o size=20m tmpfs "$2"'
    prefix = in_namespace(command, a, small)
    with daemon_of(a, small, prefix=prefix) as daemon:
        publish(daemon, sources)
        assert readable(daemon, sources) == [True] * 8
        inside, other = (Path(f"/proc/{daemon.process.pid}/root{path}") for path in (small, a))
        assert 1 <= len(files_on(inside)) <= 3  # By the room that each has.
        filler = inside / "filler"
        with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="space"):
            while True:
                file.write(bytes(1 << 16))
        for number in range(3):
            ffrecord.publish(sources[0], daemon.address(f"more{number}"))
        assert status(daemon)["writes"] == "good"
        assert len(files_on(other)) >= 8
        assert status(daemon)["disks"][str(small)]["state"] == "full"


def test_a_daemon_whose_disk_is_full_starts_with_another(tmp_path: Path) -> None:
    a, full, b = tmp_path / "a", tmp_path / "full", tmp_path / "b"
    with Daemon(a):
        pass
    full.mkdir()
    command = (
        'mount -t tmpfs -o size=8m tmpfs "$1" && mkdir "$1/extents" && '
        'cp "$2/metadata.sqlite" "$2/identity" "$1" && fallocate -l 131072 "$1/reserve" && '
        '{ dd if=/dev/zero of="$1/filler" bs=4096 2>/dev/null || true; }'
    )
    with daemon_of(full, b, prefix=in_namespace(command, full, a)) as daemon:
        assert set(status(daemon)["disks"]) == {str(full), str(b)}
    assert (b / "identity").exists()


def test_a_read_only_disk_is_read_and_not_written(tmp_path: Path, sources: list[Path]) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    with daemon_of(a, b) as daemon:
        publish(daemon, sources)
    command = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1"'
    prefix = in_namespace(command, b)
    with daemon_of(a, b, prefix=prefix) as daemon:
        assert readable(daemon, sources) == [True] * 8
        for number in range(4):
            ffrecord.publish(sources[0], daemon.address(f"more{number}"))
        assert status(daemon)["writes"] == "good"
        with pytest.raises(FileNotFoundError):
            ffrecord.remove_published(daemon.address("none"))
    assert len(files_on(a)) == 8
    assert len(files_on(b)) == 4


def test_bytes_that_a_disk_has_lost_are_an_error_of_their_dataset_only(
    tmp_path: Path, sources: list[Path]
) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    with daemon_of(a, b) as daemon:
        publish(daemon, sources)
        for path in files_on(b):
            path.chmod(0)
            os.truncate(path, 100)
        good = bad = 0
        for path in sources:
            try:
                ffrecord.open(daemon.address(path.stem)).read(range(16))
                good += 1
            except ffrecord.CorruptionError:
                bad += 1
        assert (good, bad) == (4, 4)


@pytest.mark.parametrize("name", ["metadata.sqlite", "metadata.sqlite-wal"])
def test_nothing_is_acknowledged_into_metadata_that_is_gone(
    tmp_path: Path, sources: list[Path], name: str
) -> None:
    data = tmp_path / "data"
    with Daemon(data, "--admin", "127.0.0.1:0") as daemon:
        publish(daemon, sources[:2])
        (data / name).unlink()
        with pytest.raises(OSError, match=f"{name} was removed under the running daemon"):
            publish(daemon, sources[2:3])
        assert readable(daemon, sources[:2]) == [True, True]
        with pytest.raises(OSError, match="read-only"):
            ffrecord.remove_published(daemon.address(sources[0].stem))
        assert status(daemon)["disks"][str(data)]["state"] == "failed"
        daemon.kill()
    # As the error says.
    for left in ("metadata.sqlite", "metadata.sqlite-wal"):
        (data / left).unlink(missing_ok=True)
    (data / "metadata.sqlite.rescued").rename(data / "metadata.sqlite")
    with Daemon(data) as daemon:
        assert readable(daemon, sources[:2]) == [True, True]
        publish(daemon, sources[2:])
