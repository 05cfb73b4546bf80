"""Goal: a node with a full disk serves again once there is room, and keeps no reader waiting.

Method: real processes; the disk of one node is a small file system of its own, which a file of
somebody else's fills, and leaves again.
"""

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ffrecord
from cluster import cluster_in
from eventually import eventually
from ffrecord._cli.local_cluster import LocalCluster


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "cluster" / "n1"
    disk.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("this user may not mount a file system")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def fill(disk: Path) -> Path:
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(1 << 16)):
            pass
    return filler


def wait_for_log(cluster: LocalCluster, node: str, text: str) -> None:
    log = cluster.folder / f"{node}.log"
    eventually(lambda: text in log.read_text(), why=log.read_text)


def names_at(address: str) -> list[str]:
    return [found.name for found in ffrecord.list_published(address)]


def test_a_disk_that_was_full_takes_data_and_names_again(tmp_path: Path, small_disk: Path) -> None:
    records = tmp_path / "x.ffr"
    with ffrecord.Writer(records, {"x": "i64", "body": "bytes"}) as writer:
        for number in range(200):
            writer.write({"x": number, "body": bytes(10_000)})
    many = [tmp_path / f"small-{number:03}.ffr" for number in range(100)]
    for small in many:
        with ffrecord.Writer(small, {"x": "i64"}) as writer:
            writer.write({"x": 1})
    with cluster_in(tmp_path / "cluster") as cluster:
        ffrecord.publish([records], f"{cluster.address}/before")

        filler = fill(small_disk)
        # On the other nodes: the full one knows the name, and cannot write it down.
        ffrecord.publish([records], f"{cluster.address}/meanwhile")
        wait_for_log(cluster, "n1", "event=cluster_not_saved")
        cluster.stop("n2")
        with pytest.raises(OSError, match=f"the disk of {small_disk}/extents has room") as refused:
            ffrecord.publish([records], f"{cluster.address}/after", timeout_s=3)
        assert refused.value.errno == errno.ENOSPC
        # A long list of files has two places, and there is one that is up and has room.
        with pytest.raises(OSError, match="its list of files could be stored in 1 of 2") as refused:
            ffrecord.publish(many, f"{cluster.address}/one", durability="r1")
        assert refused.value.errno == errno.ENOSPC
        assert str(small_disk) in str(refused.value)
        for name in ("before", "meanwhile"):
            with ffrecord.open(f"{cluster.address}/{name}") as served:
                np.testing.assert_array_equal(served.read(range(200))["x"], np.arange(200))

        filler.unlink()
        ffrecord.publish([records], f"{cluster.address}/after", timeout_s=120)
        wait_for_log(cluster, "n1", "event=cluster_saved")

        # The names are on its disk, also of what was published while that was full.
        cluster.stop("n1")
        cluster.stop("etcd")
        cluster.start("n1")
        alone = f"ffrecord://{cluster.nodes[0].listen}/?old_names=accept"
        assert names_at(alone) == ["after", "before", "meanwhile"]


@pytest.fixture
def origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that nodes may fetch from; its file has more than a small disk has room for.

    Its records are 40 numbers from 0, and large bodies.
    """
    shared = tmp_path / "shared"
    shared.mkdir()
    settings = tmp_path / "settings.toml"
    settings.write_text(f'origins = "{shared}"\n')
    monkeypatch.setenv("FFRECORD_CONFIG", str(settings))
    body = os.urandom(1 << 20)
    with ffrecord.Writer(shared / "x.ffr", {"x": "i64", "body": "bytes"}) as writer:
        for number in range(40):
            writer.write({"x": number, "body": body})
    return shared


@pytest.mark.usefixtures("small_disk")
def test_readers_of_a_node_without_room_for_its_cache_get_an_error(
    tmp_path: Path, origin: Path
) -> None:
    with cluster_in(tmp_path / "cluster", node_count=1, replicas=1) as cluster:
        ffrecord.publish(origin, f"{cluster.address}/x", durability="origin")
        # Not at its timeout.
        with (
            ffrecord.open(f"{cluster.address}/x", timeout_s=120) as served,
            pytest.raises(OSError, match="no room on their disks"),
        ):
            served.read(range(40))


@pytest.mark.usefixtures("small_disk")
def test_another_node_fetches_if_one_has_no_room_for_its_cache(
    tmp_path: Path, origin: Path
) -> None:
    with cluster_in(tmp_path / "cluster", node_count=2, replicas=1) as cluster:
        ffrecord.publish(origin, f"{cluster.address}/x", durability="origin")
        with ffrecord.open(f"{cluster.address}/x", timeout_s=120) as served:
            np.testing.assert_array_equal(served.read(range(40))["x"], np.arange(40))
