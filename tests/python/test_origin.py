"""Goal: a dataset of class `origin` is published by command and read as its files are.

Method: real processes on loopback; a folder of the test is what all nodes share.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ffrecord
from cli import ok, run
from cluster import cluster_in, kill, stopped
from daemon import Daemon
from eventually import eventually
from ffrecord.errors import ConflictError
from object_store import Store, serve

COUNT = 200


@pytest.fixture
def store() -> Iterator[Store]:
    yield from serve()


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    folder = tmp_path / "shared"
    folder.mkdir()
    random = np.random.default_rng(5)
    for number in range(4):
        with ffrecord.Writer(folder / f"{number}.ffr") as writer:
            for _ in range(COUNT):
                writer.write(random.bytes(int(random.integers(0, 4000))))
    return folder


def test_a_folder_is_published_in_place_and_read_through_the_nodes(
    tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text(f'origins = "{shared}"\norigin_cache_mib = 2048\n')
    monkeypatch.setenv("FFRECORD_CONFIG", str(settings))
    expected = [bytes(record) for record in ffrecord.open(shared)]
    outside = tmp_path / "outside.ffr"
    with ffrecord.Writer(outside) as writer:
        writer.write(b"x")
    with cluster_in(tmp_path / "cluster") as cluster:
        address = f"{cluster.address}/train"
        ok("ffrecord", "publish", str(shared), address, "--durability", "origin")
        assert [bytes(record) for record in ffrecord.open(address)] == expected
        shared.rename(tmp_path / "away")
        assert [bytes(record) for record in ffrecord.open(address)] == expected

        refused = run("ffrecord", "publish", str(outside), f"{address}2", "--durability", "origin")
        assert refused.returncode == 4
        assert "origins" in refused.stderr
        ok("ffrecord", "remove", address, "--yes")
    assert sorted(path.name for path in (tmp_path / "away").iterdir()) == [
        f"{number}.ffr" for number in range(4)
    ]


def test_nodes_with_another_setting_are_told_and_cost_no_read(
    tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text(f'origins = "{shared}"\n')
    monkeypatch.setenv("FFRECORD_CONFIG", str(settings))
    expected = [bytes(record) for record in ffrecord.open(shared)]
    with cluster_in(tmp_path / "cluster") as cluster:
        address = f"{cluster.address}/train"
        ffrecord.publish(shared, address, durability="origin")
        first, second, _ = cluster.nodes
        assert "may fetch" not in ok("ffrecord", "cluster", "status", f"http://{first.admin}")
        settings.write_text('origins = "/elsewhere"\n')
        cluster.stop(second.name)
        cluster.start(second.name)
        cluster.wait_ready()
        wanted = f"{second.name} may fetch from other places than {first.name}"
        status = ("ffrecord", "cluster", "status", f"http://{first.admin}")
        eventually(lambda: wanted in ok(*status))  # The first node hears of the new start.
        assert [bytes(record) for record in ffrecord.open(address)] == expected


def test_a_daemon_by_itself_has_no_origins(tmp_path: Path, shared: Path) -> None:
    with Daemon(tmp_path / "data") as daemon:
        with pytest.raises(ValueError, match="nodes of a cluster"):
            ffrecord.publish(shared, daemon.address("x"), durability="origin")
        with pytest.raises(ValueError, match="durability is"):
            ffrecord.publish(shared, daemon.address("x"), durability="orign")  # type: ignore[arg-type]
        assert ffrecord.list_published(daemon.address()) == []


def test_a_node_that_hangs_or_dies_costs_no_read_while_it_still_has_its_lease(
    tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text(f'origins = "{shared}"\n')
    monkeypatch.setenv("FFRECORD_CONFIG", str(settings))
    expected = [bytes(record) for record in ffrecord.open(shared)]
    # Nobody waits so long for a read.
    with cluster_in(tmp_path / "cluster", lease_s=300) as cluster:
        address = f"{cluster.address}/train"
        ffrecord.publish(shared, address, durability="origin")
        served = ffrecord.open(address)
        # Of what is not cached and of what is.
        for node in cluster.nodes:
            with stopped(cluster, node.name):
                assert [bytes(record) for record in served] == expected
        kill(cluster, cluster.nodes[1].name)
        assert [bytes(record) for record in ffrecord.open(address)] == expected


def test_local_files_are_copied_to_a_bucket_and_published_from_there(
    tmp_path: Path, shared: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text('origins = "s3://bucket/data"\n')
    monkeypatch.setenv("FFRECORD_CONFIG", str(settings))
    expected = [bytes(record) for record in ffrecord.open(shared)]
    steps: list[tuple[int, int]] = []
    with cluster_in(tmp_path / "cluster", node_count=2) as cluster:
        address = f"{cluster.address}/train"
        place = "s3://bucket/data/train"
        ffrecord.publish(
            shared,
            address,
            durability="origin",
            copy_to=place,
            progress=lambda done, total: steps.append((done, total)),
        )
        assert steps == sorted(steps)
        assert steps[-1][0] == steps[-1][1]
        assert [bytes(record) for record in ffrecord.open(address)] == expected

        # Again: what is there is used.
        ok(
            "ffrecord",
            "publish",
            shared,
            f"{address}2",
            "--durability",
            "origin",
            "--copy-to",
            place,
        )
        assert [bytes(record) for record in ffrecord.open(f"{address}2")] == expected

        # Another file of that name is not replaced.
        with ffrecord.Writer(shared / "0.ffr", replace=True) as writer:
            writer.write(b"other")
        with pytest.raises(ConflictError, match=r"0\.ffr exists with other bytes"):
            ffrecord.publish(shared, f"{address}3", durability="origin", copy_to=place)
        assert [bytes(record) for record in ffrecord.open(address)] == expected


def test_a_lost_answer_of_the_bucket_is_not_taken_for_a_conflict(
    tmp_path: Path, shared: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text('origins = "s3://bucket/data"\n')
    monkeypatch.setenv("FFRECORD_CONFIG", str(settings))
    with cluster_in(tmp_path / "cluster", node_count=1, replicas=1) as cluster:
        lost: set[str] = set()

        def door(number: int, method: str, path: str) -> str:
            if method != "PUT" or path in lost:
                return "serve"
            lost.add(path)
            return "lose"

        store.set_door(door)
        address = f"{cluster.address}/train"
        ffrecord.publish(shared, address, durability="origin", copy_to="s3://bucket/data")
        assert len(lost) == 4
        assert len(ffrecord.open(address)) == 4 * COUNT


def test_copies_are_for_the_class_origin_alone(shared: Path) -> None:
    with pytest.raises(ValueError, match="copy_to is for"):
        ffrecord.publish(shared, "ffrecord://localhost/x", copy_to="/mnt")
    refused = run("ffrecord", "publish", shared, "ffrecord://localhost/x", "--copy-to", "/mnt")
    assert refused.returncode == 2
    assert "--durability origin" in refused.stderr
