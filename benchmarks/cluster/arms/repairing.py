"""How a node that has lost its data gets it back, for the benchmark `cluster`."""

import shutil
import statistics
import time

import harness
from bed import Bed, Shape, readers
from faults import BATCH, BATCHES_PER_S, READERS, say, serving

RATE_MIB = 8
CALM_S = 2.0
WIPED = "n4"


def run_repair(settings: harness.Settings, count: int) -> harness.Outcome:
    """A node comes back with empty disks and pulls what it should hold, at a capped rate."""
    rates: list[float] = []
    costs: list[float] = []
    shape = Shape(nodes=4, members=1, more=("--repair-mib-s", str(RATE_MIB)))
    with serving(settings, shape) as (bed, address, _):
        for number in range(count):
            rate, cost = one_repair(bed, address, number)
            rates.append(rate / (RATE_MIB << 20))
            costs.append(cost)
            say(
                f"repair {number + 1}/{count}: {rates[-1]:.2f} of the rate, latency cost {cost:.2f}"
            )
    note = (
        f"repair: {count} times one node of 4 comes back empty and pulls at {RATE_MIB} MiB/s; the "
        "latency cost is the median time of a batch meanwhile by that before"
    )
    figures = {"repair_vs_rate": rates, "repair_latency_cost": costs}
    return harness.Outcome("", [], {}, {}, figures, [note])


def one_repair(bed: Bed, address: str, seed: int) -> tuple[float, float]:
    """Bytes per second of the pulls, and what batches cost meanwhile."""
    bed.wait_ready()
    with readers(bed, address, READERS, BATCH, seed, BATCHES_PER_S) as running:
        time.sleep(CALM_S)
        killed_ns = time.monotonic_ns()
        bed.kill(WIPED)
        shutil.rmtree(bed.folder / WIPED / "extents")
        bed.start(WIPED)
        first, last = watch_pulls(bed)
        batches = [one.stop() for one in running]
    calm = [value for one in batches for value in one.within(0, killed_ns)]
    pulling = int(first[0] * 1e9), int(last[0] * 1e9)
    under = [value for one in batches for value in one.within(*pulling)]
    rate = (last[1] - first[1]) / (last[0] - first[0])
    return rate, statistics.median(under) / statistics.median(calm)


def watch_pulls(bed: Bed) -> tuple[tuple[float, float], tuple[float, float]]:
    """Time and pulled bytes, when the first extent had come and when the last one had."""
    seen: list[tuple[float, float]] = []

    def is_done() -> bool:
        facts = bed.facts(WIPED)
        pulled = float(str(facts["pulled_bytes"]))
        if pulled and (not seen or pulled > seen[-1][1]):
            seen.append((time.monotonic(), pulled))
        return bool(seen) and bool(facts["leased"]) and not facts["missing"]

    bed.wait_until(is_done, f"{WIPED} has all its extents again", 120, pause_s=0.02)
    if len(seen) < 2:
        raise harness.Unable("the pulls took no time: there are too few extents")
    return seen[0], seen[-1]
