"""Upgrade a cluster from an earlier commit to this tree, and back, under load.

The earlier commit is built in a worktree of its own (build/earlier). Three nodes begin with its
daemon. Then each is restarted with this tree's, back with the earlier one, and with this tree's
again; one of them is also killed while both run. A reader of each release compares random batches
all the time. After each restart, each release publishes a dataset and saves a checkpoint, and the
other one reads them. At the end the feature level is raised, and all that was published is read.

    tests/compat/upgrade COMMIT

Exits 0 if no batch failed and nothing was lost. Ten minutes, once the earlier commit is built.
"""

import argparse
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np

import ffrecord
from ffrecord._cli.admin import fetch_cluster
from ffrecord._cli.local_cluster import LocalCluster

ROOT = pathlib.Path(__file__).resolve().parents[2]
CLIENT = pathlib.Path(__file__).resolve().parent / "client.py"
NODES = 3
BATCHES = 20  # Of each reader, before the next step.
WAIT_S = 120.0
COUNT = 1000


class Release:
    """The programs of one tree."""

    def __init__(self, name: str, root: pathlib.Path) -> None:
        """Built by tools/setup in `root`."""
        self.name, self.bin = name, root / ".venv" / "bin"
        self.daemon = str(self.bin / "ffrecordd")

    def client(self, *words: str | pathlib.Path) -> None:
        """Run client.py. Raises if it fails."""
        command = [self.bin / "python", CLIENT, *words]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd="/", timeout=WAIT_S
        )
        if done.returncode:
            raise RuntimeError(f"{self.name}: {' '.join(map(str, words))}: {done.stderr}")


class ReaderProcess:
    """Reads batches until it is stopped."""

    def __init__(
        self, release: Release, address: str, folder: pathlib.Path, log: pathlib.Path
    ) -> None:
        """Begins at once. What it prints goes beside `log`."""
        self._name = release.name
        self._said, self._complaint = log.with_suffix(".dots"), log.with_suffix(".err")
        with self._said.open("wb") as said, self._complaint.open("wb") as complaint:
            self._process = subprocess.Popen(
                [str(release.bin / "python"), str(CLIENT), "read", address, str(folder)],
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=complaint,
                cwd="/",
            )

    def count(self) -> int:
        """Batches so far. Raises if one has failed."""
        if self._process.poll() is not None:
            raise RuntimeError(f"{self._name}: a batch failed: {self._complaint.read_text()}")
        return self._said.stat().st_size

    def wait_for_more(self) -> None:
        """Return after some more batches."""
        wanted, end = self.count() + BATCHES, time.monotonic() + WAIT_S
        while self.count() < wanted:
            if time.monotonic() > end:
                raise RuntimeError(f"{self._name}: the reader stands still")
            time.sleep(0.05)

    def stop(self) -> int:
        """End it; return its batches."""
        count = self.count()
        assert self._process.stdin is not None
        self._process.stdin.close()
        if self._process.wait(WAIT_S):
            raise RuntimeError(f"{self._name}: the reader failed at its end")
        return count


def earlier_release(commit: str) -> Release:
    """Build that commit, unless it was built before."""
    full = subprocess.run(
        ["git", "rev-parse", "--verify", f"{commit}^{{commit}}"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    ).stdout.strip()
    folder = ROOT / "build" / "earlier" / full[:12]
    if not folder.exists():
        subprocess.run(["git", "worktree", "prune"], check=True, cwd=ROOT)
        add = ["git", "worktree", "add", "--detach", folder, full]
        subprocess.run([str(word) for word in add], check=True, cwd=ROOT)
    subprocess.run([str(folder / "tools" / "setup")], check=True, cwd=folder)
    return Release(f"earlier ({full[:12]})", folder)


def write_files(folder: pathlib.Path, seed: int) -> pathlib.Path:
    """Six record files that nobody has published yet."""
    random = np.random.default_rng(seed)
    folder.mkdir()
    for number in range(6):
        path = folder / f"{number}.ffr"
        with ffrecord.Writer(path, {"label": "i64", "image": "bytes"}) as writer:
            for i in range(number, COUNT, 6):
                size = int(random.integers(0, 4000))
                writer.write({"label": i, "image": random.bytes(size)})
    return folder


class Campaign:
    """The cluster, what was put into it, and who reads."""

    def __init__(self, cluster: LocalCluster, earlier: Release, ours: Release) -> None:
        """Publishes with the earlier release, and lets both read."""
        self._cluster = cluster
        self._releases = (earlier, ours)
        self._step = 0
        self._published: dict[str, pathlib.Path] = {}
        self._publish(earlier, "data/first")
        address = self._address("data/first")
        self._readers = [
            ReaderProcess(
                release, address, self._published["data/first"], cluster.folder / f"reader-{number}"
            )
            for number, release in enumerate(self._releases)
        ]

    def restart(self, node: str, release: Release, number: int = signal.SIGTERM) -> None:
        """Stop a node, use the cluster without it, start it with that release, use it again."""
        print(f"{node}: {'killed' if number == signal.SIGKILL else 'stopped'}", flush=True)
        self._cluster.stop(node, number)
        self._wait_for_readers()
        print(f"{node}: started, {release.name}", flush=True)
        self._cluster.start(node, program=release.daemon)
        self._cluster.wait_ready()
        self._wait_until_filled()
        self._exercise()

    def finish(self) -> None:
        """Raise the level, read all that was published, stop the readers."""
        command = [str(self._releases[1].bin / "ffrecord"), "cluster", "upgrade", "--yes"]
        subprocess.run([*command, self._cluster.address], check=True)
        self._wait_for_readers()
        for name, folder in self._published.items():
            self._releases[1].client("check", self._address(name), folder)
        for step in range(1, self._step + 1):
            self._releases[1].client("load", self._address("runs/a"), str(step))
        batches = [reader.stop() for reader in self._readers]
        print(f"passed: {len(self._published)} datasets, {self._step} checkpoints; batches of the")
        print(f"earlier client: {batches[0]}, of this one: {batches[1]}; none failed")

    def _exercise(self) -> None:
        pairs = [self._releases, self._releases[::-1]]
        for writer, reader in pairs:
            self._step += 1
            name = f"data/{self._step}"
            self._publish(writer, name)
            reader.client("check", self._address(name), self._published[name])
            writer.client("save", self._address("runs/a"), str(self._step))
            reader.client("load", self._address("runs/a"), str(self._step))
        self._wait_for_readers()

    def _publish(self, release: Release, name: str) -> None:
        folder = self._cluster.folder / name.replace("/", "-")
        self._published[name] = write_files(folder, len(self._published))
        release.client("publish", self._address(name), folder)

    def _address(self, name: str) -> str:
        return f"{self._cluster.address}/{name}"

    def _wait_for_readers(self) -> None:
        for reader in self._readers:
            reader.wait_for_more()

    def _wait_until_filled(self) -> None:
        end = time.monotonic() + WAIT_S
        while True:
            facts = [fetch_cluster(node.admin, 5.0) for node in self._cluster.nodes]
            if not any(one["missing"] or one["moving"] for one in facts):
                return
            if time.monotonic() > end:
                raise RuntimeError(f"the nodes do not get what they lack: {facts}")
            time.sleep(0.1)


def main() -> int:
    """Upgrade, downgrade, upgrade."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commit", help="the earlier one")
    earlier, ours = earlier_release(parser.parse_args().commit), Release("this tree", ROOT)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="upgrade-"))
    cluster = LocalCluster(folder, NODES, 2, repair_after_s=2, lease_s=3, program=earlier.daemon)
    with cluster:
        campaign = Campaign(cluster, earlier, ours)
        names = [node.name for node in cluster.nodes]
        for name in names:
            campaign.restart(name, ours)
            if name == names[0]:
                campaign.restart(names[1], earlier, signal.SIGKILL)  # While both run.
        for name in names:
            campaign.restart(name, earlier)
        for name in names:
            campaign.restart(name, ours)
        campaign.finish()
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
