"""A cluster for tests: an etcd and daemons on this machine, which can be killed and stopped."""

import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from daemon import program
from ffrecord._cli.local_cluster import LocalCluster


@contextmanager
def cluster_in(
    folder: Path, node_count: int = 3, replicas: int = 2, lease_s: int = 3
) -> Iterator[LocalCluster]:
    """It runs until the block is left; skips the test if etcd or the daemon is not installed."""
    if shutil.which("etcd") is None:
        pytest.skip("no etcd here: the package etcd-server is not installed")
    program()
    with LocalCluster(folder, node_count, replicas, repair_after_s=2, lease_s=lease_s) as running:
        yield running


def kill(cluster: LocalCluster, name: str) -> None:
    """As a power cut would, but for the disk."""
    cluster.stop(name, signal.SIGKILL)


@contextmanager
def stopped(cluster: LocalCluster, name: str) -> Iterator[None]:
    """The process does nothing in the block, and goes on afterwards."""
    cluster.process(name).send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        cluster.process(name).send_signal(signal.SIGCONT)
