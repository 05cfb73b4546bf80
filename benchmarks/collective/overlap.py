"""Collectives beside checkpoint uploads and prefetch on one link: paced, unpaced, capped.

Two ranks and a daemon in namespaces; the links of the ranks are limited, so that they are the
bottleneck. A step is one all-reduce, whose time is the *burst*, and a sleep. Meanwhile each rank
saves checkpoints to the daemon: the *bulk*. Inflation is the time of a burst over that of a burst
alone in the same round; bulk is what a rank sends to the daemon. Arms take turns: collective alone,
bulk alone, both without pacing, both under the kernel's strict priority (HTB), both paced, paced
with late, lost and false signals, several static limits of the bulk, and the bulk on another link.
Then steps with checkpoints and prefetch beside them, by our collectives and by Gloo's; what signals
cost the training's thread, and what a profile costs steps; and 16 ranks that burst to one daemon.

The run is void, and has no figures, if the link is not the bottleneck by three times, if processors
are busy for 60 % of the time, or if others use them. Needs root, `ip` and `tc`.
"""

import argparse
import dataclasses
import itertools
import pathlib
import shutil
import signal
import statistics
import sys
import tempfile
from typing import Any

import harness

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "arms"))

import hook_cost
import incast
import processors
import scatter
from contended import NETWORKS, STORE, WIDE_MBIT, Links, contended, daemon
from rank_group import Group

PROGRAM = pathlib.Path(__file__).resolve().parent / "rank" / "sharing.py"
RANKS = 2
MBIT = 400
BURST_BYTES = 2 << 20
COMPUTE_S = 0.06
WARM_UP = 3  # The gaps are predicted from the last steps.
STEPS, QUICK_STEPS = 20, 6
WIRE_LIMIT_MIN = 3.0
CAPS, QUICK_CAPS = (0.1, 0.2, 0.4, 0.6), (0.1, 0.4)  # Shares of the link.
BATCH, RECORD_BYTES, RECORDS = 16, 16 << 10, 2000
# A chunk takes 1.3 ms of the link.
PACING = {"link_bytes_per_s": MBIT * 125_000, "chunk_size_bytes": 64 << 10}
FLOORS = (0.1, 0.3)  # Shares of the link: other points of the paced curve.


@dataclasses.dataclass(frozen=True)
class Case:
    """The programs that run at one time, and how the link treats them."""

    name: str
    what: str
    kind: str | None = "ours"  # Of the collective: ours, gloo, or none.
    saves: bool = True
    reads: bool = False
    network: int = 0  # Over which the bulk travels.
    pacing: dict[str, Any] | None = None
    disturbs: bool = False
    prefers: bool = False
    cap: float = 0.0  # Share of the link; 0: none.
    profiles: bool = False


ALONE = Case("alone", "all-reduce, no bulk", saves=False)
BULK = Case("bulk", "checkpoint uploads, no collective", kind=None)
UNPACED = Case("unpaced", "both, one queue")
PRIORITY = Case("priority", "both, the kernel's strict priority", prefers=True)
PACED = Case("paced", "both, paced", pacing=PACING)
DISTURBED = Case("disturbed", "paced by late, lost, false signals", pacing=PACING, disturbs=True)
OTHER = Case("other link", "bulk on another link", network=1)


def cap_case(share: float) -> Case:
    """Both, with a limit for the bulk."""
    return Case(f"cap {share:.0%}", "both, the bulk limited by the kernel", cap=share)


def floor_case(share: float) -> Case:
    """Paced, with a higher least rate of the bulk."""
    floor = int(share * MBIT * 125_000)
    what = f"paced, the bulk gets {share:.0%} at least"
    return Case(f"floor {share:.0%}", what, pacing=PACING | {"checkpoint_floor_bytes_per_s": floor})


@dataclasses.dataclass
class Round:
    """The measurements of one arm in one round."""

    bursts_s: list[float]  # The slowest rank's.
    steps_s: list[float]
    window_s: float
    sent: dict[str, float]  # By a rank, on each of its links, in bytes.
    stalls: int
    busy_share: float
    counters: list[dict[str, Any]]  # One dict for each rank's pacer.


class Bed:
    """The ranks and the daemon, and what they have done."""

    def __init__(self, settings: harness.Settings, links: Links, port: int, group: Group) -> None:
        """Take what runs already."""
        self.settings, self.links, self.port, self.group = settings, links, port, group
        self.rounds: dict[str, list[Round]] = {}

    def run(self, case: Case) -> Round:
        """Run the steps of a case once, on all ranks."""
        if case.cap:
            self.links.cap(case.cap * self.links.mbit)
        elif case.prefers:
            self.links.prefer_collectives()
        else:
            self.links.share()
        store = f"ffrecord://{NETWORKS[case.network]}.{STORE}:{self.port}"
        order = {
            "kind": case.kind,
            "size_bytes": BURST_BYTES,
            "burst_s": BURST_BYTES / (MBIT * 125_000),
            "compute_s": COMPUTE_S,
            "warm_up": WARM_UP,
            "steps": QUICK_STEPS if self.settings.quick else STEPS,
            "saves": store if case.saves else None,
            "reads": f"{store}/records?transport=tcp" if case.reads else None,
            "batch": BATCH,
            "pacing": case.pacing,
            "disturbs": case.disturbs,
            "profiles": case.profiles,
        }
        busy = processors.Busy()
        found = self.group.order(order)
        share = busy.share()
        return Round(
            [max(each) for each in zip(*(one["bursts_s"] for one in found), strict=True)],
            [max(each) for each in zip(*(one["steps_s"] for one in found), strict=True)],
            statistics.mean(one["window_s"] for one in found),
            {
                card: statistics.mean(one["sent"][card] for one in found)
                for card in found[0]["sent"]
            },
            sum(one["stalls"] for one in found),
            share,
            [one["counters"] for one in found],
        )

    def arm(self, case: Case) -> harness.Arm:
        """An arm whose value is the collective's rate in its bursts, or else the bulk's."""

        def once(number: int) -> float:
            del number
            done = self.run(case)
            self.rounds.setdefault(case.name, []).append(done)
            if case.kind is None:
                return done.sent["eth0"] / done.window_s / 1e3
            return BURST_BYTES / statistics.median(done.bursts_s) / 1e3

        return harness.Arm(case.name, case.what, once)

    def wire_limit(self) -> float:
        """How many times slower than without limits the link makes collectives and bulk."""
        slow = {case.name: self.run(case) for case in (ALONE, BULK)}
        self.links.limit(WIDE_MBIT)
        fast = {case.name: self.run(case) for case in (ALONE, BULK)}
        self.links.limit(self.links.mbit)
        bursts = [statistics.median(each["alone"].bursts_s) for each in (slow, fast)]
        rates = [each["bulk"].sent["eth0"] / each["bulk"].window_s for each in (slow, fast)]
        return min(bursts[0] / bursts[1], rates[1] / rates[0])


class Figures:
    """The results of the rounds."""

    def __init__(self, rounds: dict[str, list[Round]]) -> None:
        """Take the rounds of all arms."""
        self.rounds = rounds

    def inflation(self, name: str, alone: str = "alone") -> list[float]:
        """The median burst over that of bursts alone, by round."""
        return [
            statistics.median(one.bursts_s) / statistics.median(other.bursts_s)
            for one, other in zip(self.rounds[name], self.rounds[alone], strict=True)
        ]

    def tail(self, name: str, alone: str = "alone") -> list[float]:
        """The 99th percentile of all bursts over that of bursts alone."""
        pooled = [
            sorted(burst for one in self.rounds[each] for burst in one.bursts_s)
            for each in (name, alone)
        ]
        tails = [each[min(len(each) - 1, int(len(each) * 0.99))] for each in pooled]
        return [tails[0] / tails[1]]

    def bulk(self, name: str, card: str = "eth0") -> list[float]:
        """Return what a rank sends to the daemon, in bytes/s, by round."""
        alone = self.rounds["alone"]
        rates = []
        for one, other in zip(self.rounds[name], alone, strict=True):
            own = other.sent["eth0"] if card == "eth0" and name != "bulk" else 0.0
            rates.append((one.sent[card] - own) / one.window_s)
        return rates

    def of_idle(self, name: str) -> list[float]:
        """The bulk over what the link carries beside the collectives, by round."""
        shares = []
        alone, whole = self.rounds["alone"], self.bulk("bulk")
        for i, rate in enumerate(self.bulk(name)):
            left = whole[i] - alone[i].sent["eth0"] / self.rounds[name][i].window_s
            shares.append(rate / left)
        return shares

    def removed(self) -> list[float]:
        """Which share of the inflation on the wire pacing removes, by round."""
        names = ("unpaced", "paced", "other link")
        return [
            (unpaced - paced) / (unpaced - other)
            for unpaced, paced, other in zip(*map(self.inflation, names), strict=True)
        ]

    def point(self, name: str) -> tuple[float, float]:
        """Bulk and inflation, medians over the rounds."""
        return statistics.median(self.bulk(name)), statistics.median(self.inflation(name))

    def caps(self) -> list[tuple[float, float]]:
        """The points of the static limits, from no bulk to no limit."""
        names = [name for name in self.rounds if name.startswith("cap ")]
        return [(0.0, 1.0), *sorted(map(self.point, names)), self.point("unpaced")]

    def against_caps(self) -> dict[str, list[float]]:
        """Paced against a static limit, at equal inflation and at equal bulk."""
        bulk, inflation = self.point("paced")
        points = self.caps()
        equal = between([(up, across) for across, up in points], inflation)
        return {
            "bulk_vs_cap_at_equal_inflation": [bulk / equal if equal > 0 else float("inf")],
            "cap_inflation_at_equal_bulk": [between(points, bulk)],
        }


def between(points: list[tuple[float, float]], at: float) -> float:
    """The curve through some points, at one place; flat outside of them."""
    points = sorted(points)
    for (left, low), (right, high) in itertools.pairwise(points):
        if left <= at <= right and right > left:
            return low + (high - low) * (at - left) / (right - left)
    return points[0][1] if at < points[0][0] else points[-1][1]


def bursts(bed: Bed, outcome: harness.Outcome) -> None:
    """The arms that share a link, and the curve of inflation over bulk."""
    quick = bed.settings.quick
    cases = [ALONE, BULK, UNPACED, PRIORITY, PACED, DISTURBED, OTHER]
    cases += map(cap_case, QUICK_CAPS if quick else CAPS)
    if not quick:
        cases += map(floor_case, FLOORS)
    arms = [bed.arm(case) for case in cases]
    outcome.values |= harness.interleave(arms, bed.settings.rounds)
    outcome.arms += arms
    figures = Figures(bed.rounds)
    for case in (UNPACED, PRIORITY, PACED, DISTURBED, OTHER):
        key = case.name.replace(" ", "_")
        outcome.figures[f"inflation_p50_{key}"] = figures.inflation(case.name)
        outcome.figures[f"inflation_p99_{key}"] = figures.tail(case.name)
        if case.network == 0:
            outcome.figures[f"bulk_of_idle_{key}"] = figures.of_idle(case.name)
    outcome.figures["wire_inflation_removed"] = figures.removed()
    outcome.figures |= figures.against_caps()
    whole = statistics.median(figures.bulk("bulk"))
    curves = {
        "static limits": figures.caps(),
        "paced": [figures.point(c.name) for c in cases if c.pacing and not c.disturbs],
        "unpaced": [figures.point("unpaced")],
        "strict priority": [figures.point("priority")],
    }
    shares = {
        name: [(across / whole, up) for across, up in sorted(points)]
        for name, points in curves.items()
    }
    path = bed.settings.scratch / "overlap.svg"
    path.write_text(
        scatter.draw("Inflation of bursts over bulk", "bulk, share of the link", shares)
    )
    outcome.notes.append(f"the curve is in {path}")


def training(bed: Bed, outcome: harness.Outcome) -> None:
    """Steps with checkpoints and prefetch beside them."""
    cases = []
    for kind in ("ours", "gloo"):
        # Alone, the loader prefetches as well: no storage traffic but what a step needs.
        plain = Case(f"{kind} steps", "with prefetch alone", kind, saves=False, reads=True)
        free = Case(f"{kind} steps, unpaced", "with saves", kind, reads=True)
        held = Case(f"{kind} steps, paced", "with saves", kind, reads=True, pacing=PACING)
        cases += [plain, free, held]
    arms = [bed.arm(case) for case in cases]
    outcome.values |= harness.interleave(arms, bed.settings.rounds)
    outcome.arms += arms
    for kind in ("ours", "gloo"):
        alone = bed.rounds[f"{kind} steps"]
        for way in ("unpaced", "paced"):
            rounds = bed.rounds[f"{kind} steps, {way}"]
            outcome.figures[f"step_time_{way}_{kind}"] = [
                statistics.median(one.steps_s) / statistics.median(other.steps_s)
                for one, other in zip(rounds, alone, strict=True)
            ]
            outcome.figures[f"loader_stalls_{way}_{kind}"] = [
                float(one.stalls - other.stalls) for one, other in zip(rounds, alone, strict=True)
            ]


def hooks(bed: Bed, outcome: harness.Outcome) -> None:
    """The cost of signals for the thread of the training."""
    outcome.figures |= hook_cost.figures(bed.settings.rounds)


def profiler(bed: Bed, outcome: harness.Outcome) -> None:
    """Steps with saves and prefetch, while a profile is recorded and without one."""
    plain = Case("not profiled", "with saves and prefetch, paced", reads=True, pacing=PACING)
    profiled = dataclasses.replace(plain, name="profiled", profiles=True)
    arms = [bed.arm(case) for case in (plain, profiled)]
    outcome.values |= harness.interleave(arms, bed.settings.rounds)
    outcome.arms += arms
    outcome.figures["step_time_profiled"] = [
        statistics.median(one.steps_s) / statistics.median(other.steps_s)
        for one, other in zip(bed.rounds["profiled"], bed.rounds["not profiled"], strict=True)
    ]


def bursts_to_one(bed: Bed, outcome: harness.Outcome) -> None:
    """Many ranks that upload to, and read from, one daemon at the same time."""
    outcome.figures |= incast.figures(bed.settings, MBIT)


PARTS = {
    "bursts": bursts,
    "training": training,
    "hooks": hooks,
    "profiler": profiler,
    "incast": bursts_to_one,
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--part", action="append", choices=PARTS, help="Run only this part; repeatable."
    )


def judge(outcome: harness.Outcome, bed: Bed, foreign: float, wire_limit: float) -> None:
    """Take all figures from a void run, and say why it is void."""
    busy = {
        name: statistics.median(one.busy_share for one in rounds)
        for name, rounds in bed.rounds.items()
    }
    most = max(busy, key=lambda name: busy[name], default="")
    reasons = []
    if foreign > processors.FOREIGN_SHARE_MAX:
        reasons.append(f"others used {foreign:.0%} of the processors before it began")
    if wire_limit < WIRE_LIMIT_MIN:
        reasons.append(
            f"the link slows them {wire_limit:.1f} times, not {WIRE_LIMIT_MIN:.0f} times"
        )
    if most and busy[most] > processors.BUSY_SHARE_MAX:
        reasons.append(f"processors were busy for {busy[most]:.0%} of the time in {most!r}")
    if reasons:
        outcome.figures.clear()
        outcome.notes.insert(0, f"VOID, run it on a quiet machine: {'; '.join(reasons)}")
    outcome.figures["wire_limit"] = [wire_limit]
    outcome.figures["processors_busy_share"] = [max(busy.values(), default=0.0)]
    outcome.figures["foreign_busy_share"] = [foreign]


def bench(settings: harness.Settings) -> harness.Outcome:
    """Set up links, daemon and ranks; run the parts that were asked for."""
    # Ended from outside, it still takes its namespaces with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    for name in ("ip", "tc"):
        if shutil.which(name) is None:
            raise harness.Unable(f"{name} is not installed: apt-get install iproute2")
    outcome = harness.Outcome(unit="kB/s", arms=[], values={}, ratios={})
    foreign = processors.foreign_share()
    with (
        tempfile.TemporaryDirectory(dir=settings.scratch) as folder,
        contended(RANKS, MBIT) as links,
        daemon(settings, links, pathlib.Path(folder)) as port,
    ):
        prefixes = [["ip", "netns", "exec", name] for name in links.ranks]
        group = Group(links.hosts(), prefixes, "eth0", (), PROGRAM)
        bed = Bed(settings, links, port, group)
        try:
            group.order(
                {
                    "publishes": f"ffrecord://{NETWORKS[0]}.{STORE}:{port}/records",
                    "count": RECORDS,
                    "size_bytes": RECORD_BYTES,
                }
            )
            wire_limit = bed.wire_limit()
            for part in settings.options.part or PARTS:
                PARTS[part](bed, outcome)
        finally:
            group.close()
    judge(outcome, bed, foreign, wire_limit)
    outcome.notes.append(
        f"{RANKS} ranks, links of {MBIT} Mbit/s, bursts of {BURST_BYTES >> 20} MiB,"
        f" {COMPUTE_S * 1e3:.0f} ms between them; inflation, step time: lower is better"
    )
    return outcome
