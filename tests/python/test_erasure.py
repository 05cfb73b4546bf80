"""Goal: a name with an erasure code outlives its nodes, with daemons and etcd that are processes.

Method: six daemons, of which two are killed in the middle of an epoch.
"""

import json
from pathlib import Path

import numpy as np
import pytest

import ffrecord
from cli import ok, run
from cluster import cluster_in, kill
from ffrecord.torch import DataLoader, Dataset, Sampler


def written(folder: Path, files: int = 6, records: int = 300) -> list[Path]:
    """Files whose records are their indices."""
    paths = []
    for i in range(files):
        path = folder / f"{i:03}.ffr"
        with ffrecord.Writer(path, {"label": "i64", "x": "bytes"}) as writer:
            for j in range(records):
                label = i * records + j
                writer.write({"label": label, "x": bytes([label % 251]) * (label % 700)})
        paths.append(path)
    return paths


def test_two_of_six_nodes_may_be_killed_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    paths = written(tmp_path)
    with cluster_in(tmp_path / "cluster", node_count=6) as cluster:
        address = f"{cluster.address}/train"
        ok("ffrecord", "publish", *map(str, paths), address, "--durability", "ec:4+2")
        dataset = Dataset(address)
        loader = DataLoader(
            dataset, batch_sampler=Sampler(dataset, 60), mode="threads", num_workers=2
        )
        seen = []
        for step, batch in enumerate(loader):
            seen += batch["label"].tolist()
            if step == 3:
                kill(cluster, "n2")
            if step == 9:
                kill(cluster, "n5")
        assert sorted(seen) == list(range(1800))
        whole = ffrecord.open(address).read(range(1800))
        for i in (0, 299, 777, 1799):
            assert bytes(whole["x"][i]) == bytes([i % 251]) * (i % 700)
        loader.close()


def test_classes_are_chosen_by_name_and_refused_by_name(tmp_path: Path) -> None:
    paths = written(tmp_path, files=2, records=20)
    with cluster_in(tmp_path / "cluster") as cluster:
        base = cluster.address
        for durability in ("r1", "r3", "ec:2+1"):
            name = durability.replace(":", "-").replace("+", "-")
            ffrecord.publish(paths, f"{base}/{name}", durability=durability)
            labels = ffrecord.open(f"{base}/{name}").read(range(40))["label"]
            assert np.array_equal(labels, np.arange(40))
        ffrecord.publish(paths, f"{base}/replicas")
        known = {one.name: one.durability for one in ffrecord.list_published(base)}
        assert known == {"ec-2-1": "ec:2+1", "r1": "r1", "r3": "r3", "replicas": "r2"}
        told = json.loads(ok("ffrecord", "list", base, "--json"))
        assert {one["name"]: one["durability"] for one in told} == known
        lines = [line.split()[-2:] for line in ok("ffrecord", "list", base).splitlines()]
        assert lines == [[durability, name] for name, durability in sorted(known.items())]
        with pytest.raises(ValueError, match="5 failure domains, and the cluster has 3"):
            ffrecord.publish(paths, f"{base}/x", durability="ec:2+4")
        refused = run("ffrecord", "publish", *map(str, paths), f"{base}/x", "--durability", "ec:9")
        assert refused.returncode == 2
        assert "ec:4+2" in refused.stderr
