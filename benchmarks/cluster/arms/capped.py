"""Rates of a cluster over links of a given rate, for the benchmark `cluster`."""

import pathlib
import sys
import time
from collections.abc import Callable

import harness
from bed import CLIENT, Bed, Shape
from faults import RECORD_BYTES, record_file, serving

READ_MBIT, WRITE_MBIT = 100, 200  # Each daemon's link; the client's.
NODES_MAX = 8
CLIENTS, BATCH = 16, 64
IN_FLIGHT = 2  # Batches of each client: one link has these in less than the seconds below.
CAP_S = 1.0
LARGE_RECORDS = 1024  # Records of a file of one extent.
SAVER = pathlib.Path(__file__).with_name("saver.py")


def run_scaling(settings: harness.Settings) -> harness.Outcome:
    """Reads from one daemon and from eight whose links have the same rate."""
    seconds = 4 if settings.quick else 8  # Bytes that buffers hold beforehand count too.
    values: dict[str, list[float]] = {}
    arms: list[harness.Arm] = []
    for count in (1, NODES_MAX):
        shape = Shape(nodes=count, members=1, replicas=min(2, count))
        with serving(settings, shape) as (bed, address, _):
            need_namespaces(bed)
            for name in bed.nodes:
                bed.network.shape(name, READ_MBIT)
            mine = scaling_arms(bed, address, count, seconds)
            values |= harness.interleave(mine, settings.rounds)
            arms += mine
    ratios = {
        "read_scaling_vs_caps": (f"read_{NODES_MAX}", f"caps_{NODES_MAX}"),
        "read_1_vs_cap": ("read_1", "caps_1"),
        "waiting_scaling_vs_caps": (f"waiting_{NODES_MAX}", f"caps_{NODES_MAX}"),
        "waiting_1_vs_cap": ("waiting_1", "caps_1"),
    }
    note = (
        f"scaling: links of {READ_MBIT} Mbit/s, {CLIENTS} clients with {IN_FLIGHT} batches of "
        f"{BATCH} records of {RECORD_BYTES} B in flight, `waiting` with one; a cap is what iperf3 "
        "carries over one of the links"
    )
    return harness.Outcome("bytes/s", arms, values, ratios, {}, [note])


def scaling_arms(bed: Bed, address: str, count: int, seconds: int) -> list[harness.Arm]:
    """Reads from all daemons, and the sum of what their links carry."""

    def read(number: int, *in_flight: int) -> float:
        words = [bed.program("daemon-arm"), "crowd", address, CLIENTS, seconds, BATCH, number]
        found = bed.run_json(*words, *in_flight)
        records, took = found["records"], found["seconds"]
        assert isinstance(records, int) and isinstance(took, float)
        return records * RECORD_BYTES / took

    def caps(_: int) -> float:
        return count * bed.network.iperf_bytes_per_s("n1", CLIENT, CAP_S, CLIENTS)

    return [
        harness.Arm(
            f"read_{count}",
            f"random reads from {count} daemons, {IN_FLIGHT} batches in flight",
            lambda number: read(number, IN_FLIGHT),
        ),
        harness.Arm(f"waiting_{count}", f"random reads from {count} daemons, one batch", read),
        harness.Arm(
            f"caps_{count}", f"iperf3, {CLIENTS} streams over one link, times {count}", caps
        ),
    ]


def run_writing(settings: harness.Settings) -> harness.Outcome:
    """Publications and checkpoints over the client's link: each byte goes over it twice."""
    copies = 2 if settings.quick else 4
    large = record_file(settings, LARGE_RECORDS)
    with serving(settings, Shape(nodes=3)) as (bed, _, small):
        need_namespaces(bed)
        size = large.stat().st_size * copies
        bed.network.shape(CLIENT, WRITE_MBIT)

        def publisher(name: str, file: pathlib.Path) -> Callable[[int], float]:
            count = size // file.stat().st_size

            def publish(number: int) -> float:
                start = time.monotonic()
                bed.publish(f"{name}/{number}", file, count)
                return count * file.stat().st_size / (time.monotonic() - start)

            return publish

        def save(number: int) -> float:
            words = [sys.executable, SAVER, f"{bed.address}/runs/a", number + 1, size]
            seconds = bed.run_json(*words)["seconds"]
            assert isinstance(seconds, float)
            return size / seconds

        def half(_: int) -> float:
            return bed.network.iperf_bytes_per_s(CLIENT, "n1", CAP_S) / 2

        arms = [
            harness.Arm("publish_r2", "files of 16 MiB, two replicas", publisher("l", large)),
            harness.Arm("publish_small_r2", "files of 1 MiB, two replicas", publisher("s", small)),
            harness.Arm("save_r2", "a checkpoint, two replicas", save),
            harness.Arm("half_cap", "iperf3 over the client's link, by two", half),
        ]
        values = harness.interleave(arms, settings.rounds)
    ratios = {
        "publish_r2_vs_caps": ("publish_r2", "half_cap"),
        "publish_r2_small_files_vs_caps": ("publish_small_r2", "half_cap"),
        "cluster_save_vs_caps": ("save_r2", "half_cap"),
    }
    note = f"writing: {size / 1e6:.0f} MB over the client's link of {WRITE_MBIT} Mbit/s"
    return harness.Outcome("bytes/s", arms, values, ratios, {}, [note])


def need_namespaces(bed: Bed) -> None:
    """Without them no link has a cap.

    Raises:
        Unable: there are none.
    """
    if not bed.network.is_real:
        raise harness.Unable("caps need namespaces and shaped links: root, ip and tc (iproute2)")
