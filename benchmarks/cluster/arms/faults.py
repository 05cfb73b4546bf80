"""The cost of faults of daemons and of etcd for clients, for the benchmark `cluster`."""

import contextlib
import itertools
import json
import pathlib
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import harness
from bed import Batches, Bed, Shape, folder_in, readers

RECORD_BYTES = 16_384
RECORDS, FILES = 64, 192  # In each file, and files: each is one extent, many share the load evenly.
READERS, BATCH, BATCHES_PER_S = 2, 64, 40
CALM_S, FAULT_S, AFTER_S = 1.0, 2.0, 0.7
OUTAGE_S = 4.0  # Longer than the leases of 3 s.
PUBLISH_S = 60
NODE_KINDS = ("none", "kill", "stop", "cut")


@contextlib.contextmanager
def serving(settings: harness.Settings, shape: Shape) -> Iterator[tuple[Bed, str, pathlib.Path]]:
    """A cluster with a dataset: it, the dataset's address and one of its files."""
    file = record_file(settings, RECORDS)
    with folder_in(settings.scratch) as folder, Bed(settings, folder, shape) as bed:
        yield bed, bed.publish("data", file, FILES), file


def record_file(settings: harness.Settings, count: int) -> pathlib.Path:
    """A file of so many records, made once."""
    file = settings.scratch / f"cluster-{count}-{RECORD_BYTES}.ffr"
    if not file.exists():
        program = harness.program(settings, "read-arm")
        harness.run_json(program, "make", file, count, RECORD_BYTES, 0.001, 11)
    return file


def fault(bed: Bed, kind: str, names: list[str]) -> tuple[Callable[[], None], Callable[[], None]]:
    """How a fault of those processes begins and how it ends."""

    def each(do: Callable[[str], None]) -> Callable[[], None]:
        def run() -> None:
            for name in names:
                do(name)

        return run

    if kind == "kill":
        return each(bed.kill), each(bed.start)
    if kind == "stop":
        return (
            each(lambda name: bed.signal(name, signal.SIGSTOP)),
            each(lambda name: bed.signal(name, signal.SIGCONT)),
        )
    if kind == "cut":
        return each(bed.network.cut), each(bed.network.mend)
    return each(lambda _: None), each(lambda _: None)


def kinds_for(bed: Bed, kinds: tuple[str, ...], notes: list[str]) -> list[str]:
    """Those that can be had here; the notes tell of the others."""
    if bed.network.is_real:
        return list(kinds)
    notes.append("no namespaces here (root, ip, tc): all on loopback, links of any rate, no cuts")
    return [kind for kind in kinds if kind != "cut"]


def percentile(values: list[float], share: float) -> float:
    """The value that this share of all does not pass."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


# --- A daemon -----------------------------------------------------------------------------------


def failover_ms(all_batches: list[Batches], begun_ns: int) -> float:
    """The longest batch since the fault, less the median of those before it."""
    calm = [value for batches in all_batches for value in batches.within(0, begun_ns)]
    since = [value for batches in all_batches for value in batches.within(begun_ns, 1 << 63)]
    return (max(since) - statistics.median(calm)) / 1e6


def run_failover(settings: harness.Settings, count: int) -> harness.Outcome:
    """One of three daemons fails while clients read."""
    notes: list[str] = []
    found: dict[str, list[float]] = {}
    failed = 0
    with serving(settings, Shape(nodes=3)) as (bed, address, _):
        kinds = kinds_for(bed, NODE_KINDS, notes)
        for name in bed.nodes if bed.network.is_real else ():
            bed.network.shape(name, 1_000)
        nodes = itertools.cycle(bed.nodes)
        for number in range(count):
            shift = number % len(kinds)
            for kind in [*kinds[shift:], *kinds[:shift]]:
                name = next(nodes)
                value, lost = one_failover(bed, address, kind, name, number)
                found.setdefault(kind, []).append(value)
                failed += lost
                say(f"fault {number + 1}/{count} {kind} of {name}: {value:.0f} ms, {lost} failed")
    faults = [value for kind in kinds if kind != "none" for value in found[kind]]
    figures = {
        "failover_p50_ms": faults,
        "failover_p95_ms": [percentile(faults, 0.95)],
        "failover_worst_ms": [max(faults)],
        "failover_failed_batches": [float(failed)],
    }
    for kind in kinds:
        figures[f"failover_{kind}_p50_ms"] = found[kind]
        figures[f"failover_{kind}_worst_ms"] = [max(found[kind])]
    notes.append(
        f"failover: {count} faults of each kind; {READERS} clients with {BATCHES_PER_S} batches/s "
        f"of {BATCH} records of {RECORD_BYTES} B each; `none` is the same without a fault"
    )
    return harness.Outcome("", [], {}, {}, figures, notes)


def one_failover(bed: Bed, address: str, kind: str, name: str, seed: int) -> tuple[float, int]:
    """One fault: the failover in milliseconds, and how many batches have failed."""
    begin, end = fault(bed, kind, [name])
    with readers(bed, address, READERS, BATCH, seed, BATCHES_PER_S) as running:
        time.sleep(CALM_S)
        begun_ns = time.monotonic_ns()
        begin()
        try:
            time.sleep(FAULT_S)
        finally:
            end()
        time.sleep(AFTER_S)
        batches = [one.stop() for one in running]
    bed.wait_ready()
    return failover_ms(batches, begun_ns), sum(one.failed_since(begun_ns) for one in batches)


# --- etcd ---------------------------------------------------------------------------------------

ETCD_KINDS = ("kill", "stop", "cut")


def run_metadata(settings: harness.Settings, count: int) -> harness.Outcome:
    """Stop etcd's leader, then all of etcd, while clients read and one publishes."""
    notes: list[str] = []
    cost: list[float] = []
    control: list[float] = []
    resumes: dict[str, list[float]] = {}
    failed = 0
    with serving(settings, Shape(nodes=3)) as (bed, address, file):
        cases = [(kind, True) for kind in kinds_for(bed, ETCD_KINDS, notes)]
        cases += [("kill", False), ("stop", False)]
        for number in range(count):
            for kind, is_leader in [*cases, ("none", True)]:
                names = [bed.leader()] if is_leader else list(bed.members)
                what = f"{kind} of {'its leader' if is_leader else 'all of etcd'}"
                value, resumed, lost = one_outage(bed, address, file, kind, names, number)
                (control if kind == "none" else cost).append(value)
                if kind != "none":
                    resumes.setdefault("leader" if is_leader else "all", []).append(resumed)
                failed += lost
                say(
                    f"outage {number + 1}/{count} {what}: read cost {value:.2f}, "
                    f"publish {resumed:.0f} ms after quorum, {lost} failed"
                )
    every = [value for values in resumes.values() for value in values]
    figures = {
        "metadata_failover_read_cost": cost,
        "metadata_control_read_cost": control,
        "metadata_failover_failed_batches": [float(failed)],
        "publish_resumes_ms": every,
        "publish_resumes_worst_ms": [max(every)],
        **{f"publish_resumes_{which}_ms": values for which, values in resumes.items()},
    }
    notes.append(
        f"metadata: {count} faults of each kind, {OUTAGE_S:.0f} s each, leases of 3 s; the read "
        "cost is the median time of a batch under the fault by that before it; `control` is "
        "without one"
    )
    return harness.Outcome("", [], {}, {}, figures, notes)


def one_outage(
    bed: Bed, address: str, file: pathlib.Path, kind: str, names: list[str], seed: int
) -> tuple[float, float, int]:
    """One fault: the reads' cost, when a publication ends after the quorum, failed batches."""
    begin, end = fault(bed, kind, names)
    others = [name for name in bed.members if name not in names] or list(bed.members)
    with readers(bed, address, READERS, BATCH, seed, BATCHES_PER_S) as running:
        time.sleep(OUTAGE_S / 2)
        begun_ns = time.monotonic_ns()
        begin()
        words = [bed.program("cluster-arm"), "publish", file, f"{bed.address}/new", PUBLISH_S]
        with bed.client.inside():
            publishing = subprocess.Popen(
                [str(word) for word in words], stdout=subprocess.PIPE, start_new_session=True
            )
        try:
            # All of etcd has its quorum again only after the fault.
            is_whole = len(names) < len(bed.members)
            quorum_ns = bed.quorum_at(others) if is_whole else 0
            time.sleep(max(0.0, OUTAGE_S - (time.monotonic_ns() - begun_ns) / 1e9))
            ended_ns = time.monotonic_ns()
            end()
            quorum_ns = quorum_ns or bed.quorum_at(others)
            output, _ = publishing.communicate(timeout=PUBLISH_S + 10)
        finally:
            publishing.kill()
            publishing.wait()
        batches = [one.stop() for one in running]
    bed.wait_ready()
    if publishing.returncode:
        raise harness.Unable(f"{kind} of {names}: a publication failed; what it says stands above")
    calm = [value for one in batches for value in one.within(0, begun_ns)]
    under = [value for one in batches for value in one.within(begun_ns, ended_ns)]
    # One that ended before was not held up.
    resumed_ms = max(0.0, (json.loads(output)["end_ns"] - quorum_ns) / 1e6)
    cost = statistics.median(under) / statistics.median(calm)
    return cost, resumed_ms, sum(one.failed_since(begun_ns) for one in batches)


def say(line: str) -> None:
    """Print progress to stderr."""
    print(line, file=sys.stderr)
