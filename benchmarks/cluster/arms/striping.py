"""The cost of an erasure code beside two replicas, for the benchmark `cluster`."""

import itertools
import pathlib
import time

import harness
from bed import CLIENT, Bed, Shape, folder_in
from capped import LARGE_RECORDS, need_namespaces
from faults import RECORD_BYTES, record_file, say

NODES, CODE = 7, "ec:4+2"  # One more than a stripe has members.
NODE_MBIT, WRITE_MBIT, WIDE_MBIT = 200, 200, 10_000  # The client's link is narrow or wide.
RANKS, BATCH = 4, 64
COPIES_QUICK, COPIES = 8, 24  # Stripes of four files: of 64 MiB.
PUBLISH_S = 120


class Names:
    """Publishes names of one file's copies, and reads epochs of them."""

    def __init__(self, bed: Bed, file: pathlib.Path, copies: int) -> None:
        """Nothing is published yet."""
        self.bed, self.file, self.copies = bed, file, copies
        self.size = copies * file.stat().st_size

    def publish(self, name: str, durability: str) -> float:
        """Publish; return the bytes of the dataset per second."""
        address = f"{self.bed.address}/{name}"
        arm = self.bed.program("cluster-arm")
        start = time.monotonic()
        self.bed.run_json(arm, "publish", self.file, address, PUBLISH_S, self.copies, durability)
        return self.size / (time.monotonic() - start)

    def epoch(self, name: str, seed: int) -> float:
        """Read all records in random order; return bytes/s."""
        address = f"{self.bed.address}/{name}"
        steps = self.copies * LARGE_RECORDS // (RANKS * BATCH)
        words = [self.bed.program("cluster-arm"), "epoch", address, RANKS, steps, BATCH, seed]
        found = self.bed.run_json(*words)
        count, took = found["records"], found["seconds"]
        assert isinstance(count, int) and isinstance(took, float)
        return count * RECORD_BYTES / took


def run_erasure(settings: harness.Settings) -> harness.Outcome:
    """Publish and read both classes by turns, then read while a node is away."""
    file = record_file(settings, LARGE_RECORDS)
    copies = COPIES_QUICK if settings.quick else COPIES
    shape = Shape(nodes=NODES, members=1)
    with folder_in(settings.scratch) as folder, Bed(settings, folder, shape) as bed:
        need_namespaces(bed)
        names = Names(bed, file, copies)
        for node in bed.nodes:
            bed.network.shape(node, NODE_MBIT)
        arms = both_classes(names)
        values = harness.interleave(arms, settings.rounds)
        figures = without_a_node(names, settings.rounds)
    ratios = {
        "ec_publish_vs_r2": ("publish_ec", "publish_two"),
        "ec_read_vs_r2": ("read_ec", "read_two"),
    }
    note = (
        f"erasure: {CODE}, {NODES} nodes with links of {NODE_MBIT} Mbit/s, names of {copies} files "
        f"of {file.stat().st_size / 1e6:.0f} MB; the client's link has {WRITE_MBIT} Mbit/s while "
        f"it publishes; {RANKS} ranks, batches of {BATCH} records of {RECORD_BYTES} B; opening is "
        "timed too"
    )
    return harness.Outcome("bytes/s", arms, values, ratios, figures, [note])


def both_classes(names: Names) -> list[harness.Arm]:
    """Publications over the client's narrow link, and epochs over a wide one."""

    def publish(name: str, durability: str) -> float:
        names.bed.network.shape(CLIENT, WRITE_MBIT)
        rate = names.publish(name, durability)
        names.bed.network.shape(CLIENT, WIDE_MBIT)
        return rate

    return [
        harness.Arm("publish_two", "two replicas", lambda _: publish("two", "r2")),
        harness.Arm("publish_ec", CODE, lambda _: publish("ec", CODE)),
        harness.Arm("read_two", "an epoch of two replicas", lambda n: names.epoch("two", n)),
        harness.Arm("read_ec", f"an epoch of {CODE}", lambda n: names.epoch("ec", n)),
    ]


def without_a_node(names: Names, rounds: int) -> dict[str, list[float]]:
    """Epochs after a node was killed, the next ones, by those before."""
    bed = names.bed
    figures: dict[str, list[float]] = {"ec_degraded_vs_healthy": [], "ec_next_vs_healthy": []}
    for number, victim in zip(range(rounds), itertools.cycle(bed.nodes), strict=False):
        healthy = names.epoch("ec", number)
        bed.kill(victim)
        found = [names.epoch("ec", number) / healthy for _ in figures]
        for values, value in zip(figures.values(), found, strict=True):
            values.append(value)
        bed.start(victim)
        bed.wait_ready()
        say(
            f"erasure {number + 1}/{rounds}: without {victim} {found[0]:.2f} of the rate with all "
            f"nodes, then {found[1]:.2f}"
        )
    return figures
