"""Reads' questions to etcd, the cost of large maps, the simulator's speed: `cluster`."""

import re
import time

import harness
from bed import Bed, Shape, readers
from faults import BATCH, say, serving

# The calls that read and write keys. Leases and watches of the daemons go on without them.
KEY_CALLS = ("Range", "Put", "DeleteRange", "Txn")
OPENS = 20
NODES, EXTENTS = 1_000, 10_000_000
FIRST_SEED = 1


def run_operations(settings: harness.Settings) -> harness.Outcome:
    """Calls of etcd's keys per record that is read, and per dataset that is opened."""
    per_read: list[float] = []
    per_open: list[float] = []
    seconds = 2.0
    with serving(settings, Shape(nodes=3)) as (bed, address, _):
        for number in range(settings.rounds):
            idle_per_s = calls_in(bed, seconds) / seconds
            with readers(bed, address, 1, BATCH, number, 0) as running:
                before, start = key_calls(bed), time.monotonic()
                time.sleep(seconds)
                calls, took = key_calls(bed) - before, time.monotonic() - start
                read = len(running[0].stop().end_ns) * BATCH
            per_read.append(max(0.0, calls - idle_per_s * took) / read)
            before, start = key_calls(bed), time.monotonic()
            bed.run_json(bed.program("cluster-arm"), "open", address, OPENS)
            calls, took = key_calls(bed) - before, time.monotonic() - start
            per_open.append(max(0.0, calls - idle_per_s * took) / OPENS)
            say(
                f"operations {number + 1}/{settings.rounds}: idle {idle_per_s:.2f}/s, "
                f"{per_read[-1]:.6f} per record, {per_open[-1]:.2f} per opening"
            )
    figures = {"metadata_ops_per_record": per_read, "metadata_ops_per_open": per_open}
    note = "operations: calls of etcd's keys by its own counters, less those of an idle cluster"
    return harness.Outcome("", [], {}, {}, figures, [note])


def calls_in(bed: Bed, seconds: float) -> float:
    """How many calls of keys an idle cluster makes in that time."""
    before = key_calls(bed)
    time.sleep(seconds)
    return key_calls(bed) - before


def key_calls(bed: Bed) -> float:
    """Calls of keys that all members of etcd have begun so far."""
    names = "|".join(KEY_CALLS)
    wanted = re.compile(
        rf'^grpc_server_started_total\{{grpc_method="(?:{names})",grpc_service="etcdserverpb.KV"'
        r"[^}]*\} (\S+)$",
        re.MULTILINE,
    )
    texts = [bed.fetch(member, member.port, "/metrics") for member in bed.members.values()]
    counts = [float(count) for text in texts for count in wanted.findall(text)]
    if not counts:
        raise harness.Unable("etcd counts no calls: its /metrics has no grpc_server_started_total")
    return sum(counts)


def run_placement(settings: harness.Settings) -> harness.Outcome:
    """A slot map of many nodes and extents."""
    figures: dict[str, list[float]] = {}
    for _ in range(settings.rounds):
        found = harness.run_json(harness.program(settings, "placement-arm"), NODES, EXTENTS)
        for key, value in {
            "placement_lookup_ns": found["lookup_ns"],
            "placement_map_bytes": found["map_bytes"],
            "placement_loss_plan_s": found["plan_s"],
        }.items():
            figures.setdefault(key, []).append(float(value))
    note = f"placement: {NODES:,} nodes in 40 domains, {EXTENTS:,} extents, 3 replicas"
    return harness.Outcome("", [], {}, {}, figures, [note])


def run_simulator(settings: harness.Settings) -> harness.Outcome:
    """Seeds of the simulated cluster of five nodes, in one thread."""
    count = 60 if settings.quick else 200
    rates: list[float] = []
    alone: list[float] = []
    for number in range(settings.rounds):
        words = [harness.program(settings, "simulator-arm"), FIRST_SEED + number * count, count]
        found = harness.run_json(*words)
        rates.append(found["seeds"] / found["seconds"])
        alone.append(found["seeds"] / found["cpu_seconds"])
    note = "simulator: one thread; the campaign runs as many as there are cores"
    figures = {"simulator_seeds_per_s": rates, "simulator_seeds_per_cpu_s": alone}
    return harness.Outcome("", [], {}, {}, figures, [note])
