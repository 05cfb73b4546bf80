"""How the model of daemons reads, damages and waits until damage is healed."""

import time
from collections.abc import Callable
from pathlib import Path

import ffrecord
from daemons_places import SETTLE_S, World
from daemons_truth import RECORDS
from ffrecord import _ffrecord

Hosts = tuple[str, ...]
# Lists of addresses that stand for the cluster: most of them are its nodes.
CLUSTER: list[Hosts] = [
    ("n1", "n2", "n3"),
    ("n3", "n1", "n2"),
    ("n1",),
    ("n2",),
    ("dead", "n3"),
    ("n2", "dead", "n1"),
    ("n1", "alone", "n3"),
    ("other", "n3", "n2"),
    ("n2", "n1", "dead", "other", "n3"),
]
# Over TCP no daemon is nearer than others: of the owners of an extent, a reader asks by turns.
BY_TURNS = "&transport=tcp"
TRAILER = 64  # Bytes behind the data of an extent.


def place_of(hosts: Hosts) -> str:
    """Return the place that these addresses stand for."""
    return hosts[0] if len(hosts) == 1 and hosts[0] in ("alone", "other") else "cluster"


def strangers(hosts: Hosts) -> int:
    """Return how many of the addresses are no nodes of the cluster, and answer."""
    return sum(each in ("alone", "other") for each in hosts)


def by_records(address: str, timeout_s: float) -> bytes:
    """Return the records of a name."""
    with ffrecord.open(address, timeout_s=timeout_s) as reader:
        return bytes(reader.read(range(RECORDS)).data)


def by_bytes(address: str, timeout_s: float) -> bytes:
    """Return the file behind a name."""
    files = _ffrecord.ServedFiles.open(address, timeout_s=timeout_s)
    ((_, size_bytes, _),) = files.files
    return files.read([(0, 0, size_bytes)])[0]


def damage(path: Path, size_bytes: int, every: int = 61) -> None:
    """Flip bytes in each record, or all of them."""
    bytes_ = bytearray(path.read_bytes())
    for at in range(size_bytes // RECORDS // 3, size_bytes, every):
        bytes_[at] ^= 1
    with path.open("r+b") as file:
        file.write(bytes_)


def heal(world: World, node: str, path: Path, good: bytes, read: Callable[[], None]) -> None:
    """Read until the damage was met and is healed; each read gives the right bytes."""
    end = time.monotonic() + SETTLE_S
    while True:
        read()
        if path.exists() and path.read_bytes() == good:
            return
        found = world.metrics(node).sum("ffrecord_cluster_doubted_damaged_total")
        assert time.monotonic() < end, (
            f"damage at {node} is read by turns and not healed after {SETTLE_S} s; the node has"
            f" found {found} damaged extents"
        )
        time.sleep(0.05)
