"""Goal: a dataset of class `origin` is published by command and read as its files are.

Method: real processes on loopback; a folder of the test is what all nodes share.
"""

from pathlib import Path

import numpy as np
import pytest

import ffrecord
from cli import ok, run
from cluster import cluster_in
from daemon import Daemon

COUNT = 200


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


def test_a_daemon_by_itself_has_no_origins(tmp_path: Path, shared: Path) -> None:
    with Daemon(tmp_path / "data") as daemon:
        with pytest.raises(ValueError, match="nodes of a cluster"):
            ffrecord.publish(shared, daemon.address("x"), durability="origin")
        with pytest.raises(ValueError, match="durability is"):
            ffrecord.publish(shared, daemon.address("x"), durability="orign")  # type: ignore[arg-type]
        assert ffrecord.list_published(daemon.address()) == []
