"""Goal: a profile names the daemon of each read, with its times there, and the one that hangs.

Method: read from a daemon, then stop its process and read again; shared memory is off, since pages
that were read before would need no daemon.
"""

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import ffrecord
from daemon import Daemon
from eventually import eventually
from ffrecord import runtime
from ffrecord._base import recording
from ffrecord._profile import files, watchdog


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Daemon, str]]:
    """A daemon with a dataset; its address."""
    path = tmp_path / "train.ffr"
    with ffrecord.Writer(path) as writer:
        for number in range(64):
            writer.write(bytes([number]) * 1000)
    with Daemon(tmp_path / "data") as daemon:
        address = f"ffrecord://{daemon.listen}/train?transport=tcp"
        ffrecord.publish(path, f"ffrecord://{daemon.listen}/train")
        yield daemon, address


def test_reads_name_their_daemon_and_what_was_not_answered_is_unfinished(
    served: tuple[Daemon, str], tmp_path: Path
) -> None:
    daemon, address = served
    path = recording.begin(str(tmp_path / "run"))
    try:
        with ffrecord.open(address) as reader:
            reader.read(range(10))
            before = files.read(path)
            daemon.freeze()
            reading = threading.Thread(target=lambda: reader.read(range(20, 30)))
            reading.start()
            during = eventually(lambda: _unfinished(path))
            told = watchdog.stuck(during, [], 60.0, int(during.unfinished["begin_ns"][0]))
            daemon.thaw()
            reading.join()
            after = files.read(path)
    finally:
        recording.end()
    asked = before.events[before.events["kind"] == recording.DAEMON_READ]
    assert len(asked) > 0
    # What lies in the daemon's memory is read from no disk.
    names = {before.name(event) for event in asked}
    assert names <= {daemon.listen, f"{daemon.listen} disk {daemon.data}"}
    assert sum(asked["size_bytes"].tolist()) >= 10_000
    took_us = (asked["end_ns"] - asked["begin_ns"]) // 1000 + 1
    assert (asked["first"] + asked["second"] <= took_us).all()
    assert re.search(rf"read at a daemon {re.escape(daemon.listen)} \d+ for 0 us", told)
    assert len(after.unfinished) == 0
    answered = after.events[after.events["kind"] == recording.DAEMON_READ]
    assert len(answered) > len(asked)
    assert sum(answered["size_bytes"].tolist()) >= 20_000


def _unfinished(path: str) -> files.Process | None:
    found = files.read(path)
    return found if len(found.unfinished) else None


@pytest.mark.parametrize("transport", ["tcp", "shm"])
@pytest.mark.parametrize("is_paced", [False, True])
def test_the_bytes_of_an_upload_are_in_the_profile_when_they_leave(
    transport: str, is_paced: bool, tmp_path: Path
) -> None:
    path = tmp_path / "train.ffr"
    with ffrecord.Writer(path) as writer:
        writer.write(bytes(3_000_000))
    if is_paced:
        runtime.start_pacing()
    try:
        with Daemon(tmp_path / "data") as daemon:
            profile = recording.begin(str(tmp_path / "run"))
            ffrecord.publish(path, f"ffrecord://{daemon.listen}/a?transport={transport}")
            recording.end()
            found = files.read(profile)
    finally:
        recording.end()
        runtime.stop_pacing()
    uploads = found.events[found.events["kind"] == recording.UPLOAD]
    assert {found.name(event) for event in uploads} == {daemon.listen}
    assert sum(uploads["size_bytes"].tolist()) == path.stat().st_size
    if is_paced and transport == "tcp":
        assert max(uploads["size_bytes"].tolist()) <= 256 << 10
    assert (uploads["end_ns"] >= uploads["begin_ns"]).all()
