"""All-reduce of ours, Gloo and Open MPI: on loopback, and over links of a given rate.

Ranks are processes that stay; in each round every arm reduces the same arrays in them. A second is
the slowest rank's; Open MPI starts its own ranks. Shaped links are veth pairs from namespaces into
one bridge, each limited by `tbf` in both directions; the bound is 2 (n - 1) / n times the bytes
over the rate that iperf3 finds there in the same round.

`ddp` trains models by DistributedDataParallel through our hook and by Gloo; what is exposed is the
part of a step that the same step without averaging does not take. `steps` is a test of the link
alone: arrays of the sizes of a model's buckets come at the times of its backward pass, nothing is
computed meanwhile, and the cost is what that takes more than buckets that move one after another
at the bound.

Rails are four streams between two ranks, each shaped by its port (`htb`); one of them is slowed ten
times and back in each round, and the ideal is what the four carry, less what that one lost. The
tuner is compared with every setting of a grid, all in the same processes.
"""

import argparse
import contextlib
import dataclasses
import itertools
import pathlib
import signal
import statistics
import sys
from collections.abc import Iterator
from typing import Any

import harness

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "arms"))

import open_mpi
import picture
from links import iperf_bytes_per_s, shaped, stream_ports, tc
from rank_group import Group

HERE = pathlib.Path(__file__).resolve().parent
SMALL = (4 << 10, 64 << 10)
LOOPBACK_BYTES = 64 << 20


@dataclasses.dataclass(frozen=True)
class Shape:
    """Ranks, each behind a link of its own."""

    ranks: int
    mbit: int
    size_bytes: int

    @property
    def size(self) -> str:
        """Such as "16 MiB"."""
        kib = self.size_bytes >> 10
        return f"{kib} KiB" if kib % 1024 else f"{kib >> 10} MiB"

    @property
    def key(self) -> str:
        """Such as "4x1000m"."""
        return f"{self.ranks}x{self.mbit}m"

    @property
    def name(self) -> str:
        """Such as "4 ranks, 1000 Mbit/s, 16 MiB"."""
        return f"{self.ranks} ranks, {self.mbit} Mbit/s, {self.size}"


SHAPES = (Shape(4, 1000, 16 << 20), Shape(2, 1000, 64 << 20), Shape(3, 100, 1 << 20))
QUICK_SHAPES = (Shape(4, 1000, 16 << 20),)
# The plots: over sizes, and over ranks. Smaller sizes are left out: too much of them goes through
# at once, which `tbf` lets pass at any rate.
SIZES = [Shape(4, 1000, size) for size in (1 << 20, 4 << 20, 16 << 20, 64 << 20)]
RANKS = [Shape(ranks, 1000, 16 << 20) for ranks in (2, 3, 4)]
# Buckets in the order of backward, in MiB, a sixteenth of the real ones, and the share of the
# computing before each. VGG-16: dense layers, most of the bytes and next to none of the work, then
# the convolutions. BERT: twelve equal layers, then the embeddings.
STEPS = {
    "vgg": [(5.0, 0.02), (24.5, 0.02), (1.75, 0.16), (1.375, 0.3), (0.375, 0.5)],
    "bert": [(1.75, 0.08)] * 12 + [(6.0, 0.04)],
}
RAILS = range(1, 5)  # As many as rank.py has streams; classes of htb.
RAILS_MBIT = 250
RAILS_SLOWED = 10
RAILS_BYTES = 64 << 20
TUNED_BYTES = [2 << 20] * 4
GRID = {
    "algorithm": ["ring", "double_tree", "halving_doubling"],
    "streams": [1, 2, 4],
    "chunk_size_bytes": [64 << 10, 256 << 10, 1 << 20],
}
STEP_SHAPE = Shape(2, 1000, 0)
TRAINED_STEPS = 3


def arms_of(
    group: Group,
    label: str,
    size_bytes: int,
    repeats: int,
    cpu: dict[str, list[float]],
    arms: tuple[str, ...] = ("ours", "gloo"),
) -> list[harness.Arm]:
    """Ours and Gloo's; CPU seconds are appended to `cpu` by arm."""

    def run(arm: str) -> harness.Arm:
        name = f"{arm} {label}"

        def once(number: int) -> float:
            del number
            found = group.reduce(arm, [size_bytes], repeats, [0.0])
            cpu.setdefault(name, []).append(found["cpu_seconds"])
            return size_bytes / found["seconds"] / 1e3

        return harness.Arm(name, f"{repeats} in each round", once)

    return [run(arm) for arm in arms]


def quotient(values: dict[str, list[float]], above: str, below: str) -> list[float]:
    """One arm over another, by round."""
    return [a / b for a, b in zip(values[above], values[below], strict=True)]


def on_loopback(settings: harness.Settings, outcome: harness.Outcome) -> None:
    """Two ranks without any link between them."""
    group = Group(["127.0.0.1"] * 2, [[], []], "lo")
    cpu: dict[str, list[float]] = {}
    arms = arms_of(group, "64 MiB", LOOPBACK_BYTES, 4, cpu)
    for size_bytes in SMALL:
        arms += arms_of(group, f"{size_bytes >> 10} KiB", size_bytes, 200, cpu)
    peers = {"gloo"}
    with open_mpi_if_any(outcome):
        mpi = open_mpi.on_this_machine(settings.scratch, 2)
        arms.append(mpi.arm("openmpi 64 MiB", LOOPBACK_BYTES, 4))
        for size_bytes in SMALL:
            arms.append(mpi.arm(f"openmpi {size_bytes >> 10} KiB", size_bytes, 200))
        peers.add("openmpi")
    try:
        outcome.values |= harness.interleave(arms, settings.rounds)
    finally:
        group.close()
    outcome.arms += arms
    outcome.figures["cpu_vs_gloo_cost"] = quotient(cpu, "ours 64 MiB", "gloo 64 MiB")
    for peer in sorted(peers):
        outcome.ratios[f"loopback_vs_{peer}"] = ("ours 64 MiB", f"{peer} 64 MiB")
        for size_bytes in SMALL:
            label = f"{size_bytes >> 10} KiB"
            outcome.figures[f"small_{size_bytes >> 10}k_vs_{peer}_cost"] = quotient(
                outcome.values, f"{peer} {label}", f"ours {label}"
            )


@contextlib.contextmanager
def open_mpi_if_any(outcome: harness.Outcome) -> Iterator[None]:
    """Note what Open MPI lacks; the other arms go on."""
    try:
        yield
    except harness.Missing:
        pass  # The report says so.
    except harness.Unable as error:
        outcome.notes.append(f"without Open MPI: {error}")


def on_links(
    settings: harness.Settings,
    outcome: harness.Outcome,
    shapes: list[Shape],
    ours: tuple[str, ...] = ("ours", "ours f16"),
) -> None:
    """Arrays over links of one rate; all shapes have the same."""
    ranks, mbit = shapes[0].ranks, shapes[0].mbit
    with shaped(ranks, mbit) as names:
        hosts = [f"10.77.0.{rank + 1}" for rank in range(ranks)]
        prefixes = [["ip", "netns", "exec", name] for name in names]
        group = Group(hosts, prefixes, "eth0", ours)
        arms, peers = [], ["gloo"]
        for shape in shapes:
            arms += arms_of(group, shape.name, shape.size_bytes, 3, {}, (*ours, "gloo"))
        with open_mpi_if_any(outcome):
            mpi = open_mpi.on_links(settings.scratch, hosts, prefixes)
            arms += [mpi.arm(f"openmpi {shape.name}", shape.size_bytes, 3) for shape in shapes]
            peers.append("openmpi")

        def bound(number: int) -> float:
            del number
            return iperf_bytes_per_s(names) / (2 * (ranks - 1) / ranks) / 1e3

        arms.append(harness.Arm(f"bound {shapes[0].key}", "by iperf3's one stream", bound))
        try:
            outcome.values |= harness.interleave(arms, settings.rounds)
        finally:
            group.close()
    outcome.arms += arms
    for shape in shapes:
        key = f"shaped_{shape.key}"
        outcome.ratios[f"{key}_vs_bound"] = (f"ours {shape.name}", f"bound {shapes[0].key}")
        for peer in peers:
            outcome.ratios[f"{key}_vs_{peer}"] = (f"ours {shape.name}", f"{peer} {shape.name}")
        if "ours f16" in ours:
            outcome.ratios[f"{key}_f16_gain"] = (f"ours f16 {shape.name}", f"ours {shape.name}")


def curves(
    settings: harness.Settings, outcome: harness.Outcome, name: str, shapes: list[Shape]
) -> None:
    """Measure some shapes, and draw what share of the bound each arm reached."""
    own = harness.Outcome(outcome.unit, [], {}, {})
    for _, alike in itertools.groupby(shapes, lambda shape: shape.key):
        on_links(settings, own, list(alike), ("ours",))
    outcome.notes += own.notes
    if any(f"bound {shape.key}" not in own.values for shape in shapes):
        outcome.notes.append(f"no curves of {name}: without iperf3 there is no bound")
        return
    found = {
        arm: [quotient(own.values, f"{arm} {each.name}", f"bound {each.key}") for each in shapes]
        for arm in ("ours", "gloo", "openmpi")
        if f"{arm} {shapes[0].name}" in own.values
    }
    for arm, shares in found.items():
        for shape, rounds in zip(shapes, shares, strict=True):
            size = shape.size.replace(" ", "").lower()
            outcome.figures[f"{arm}_{shape.key}_{size}_vs_bound"] = rounds
    of = shapes[0]
    same_ranks = len({shape.ranks for shape in shapes}) == 1
    cases = [each.size if same_ranks else f"{each.ranks} ranks" for each in shapes]
    what = f"{of.ranks} ranks" if same_ranks else of.size
    drawn = picture.draw(f"All-reduce, {what}, {of.mbit} Mbit/s: share of the bound", cases, found)
    (settings.scratch / f"collective-{name}.svg").write_text(drawn)


def least_seconds(computing_s: list[float], moving_s: list[float]) -> float:
    """Time of a step whose buckets move one after another, none before it is computed."""
    computed = moved = 0.0
    for compute_s, move_s in zip(computing_s, moving_s, strict=True):
        computed += compute_s
        moved = max(moved, computed) + move_s
    return moved


def steps_on_links(settings: harness.Settings, outcome: harness.Outcome) -> None:
    """Buckets that come within as long as their bytes take at the bound; nothing is computed."""
    shape = STEP_SHAPE
    with shaped(shape.ranks, shape.mbit) as names:
        hosts = [f"10.77.0.{rank + 1}" for rank in range(shape.ranks)]
        group = Group(hosts, [["ip", "netns", "exec", name] for name in names], "eth0")
        share = 2 * (shape.ranks - 1) / shape.ranks
        try:
            rate = statistics.median(iperf_bytes_per_s(names) for _ in range(3))
            for model, buckets in STEPS.items():
                sizes = [int(mib * (1 << 20)) // 4 * 4 for mib, _ in buckets]
                moving_s = [size * share / rate for size in sizes]
                computing_s = [part * sum(moving_s) for _, part in buckets]
                seconds: dict[str, list[float]] = {}
                arms = [
                    step_arm(group, (arm, model), sizes, computing_s, seconds)
                    for arm in ("ours", "ours f16", "gloo")
                ]
                outcome.values |= harness.interleave(arms, settings.rounds)
                outcome.arms += arms
                least = least_seconds(computing_s, moving_s)
                for arm, key in (("ours", "link"), ("ours f16", "link_f16")):
                    outcome.ratios[f"{key}_{model}_vs_gloo"] = (
                        f"{arm} {model} step",
                        f"gloo {model} step",
                    )
                outcome.figures[f"link_{model}_exposed_cost"] = [
                    found / least - 1 for found in seconds["ours"]
                ]
        finally:
            group.close()


def training_on_links(settings: harness.Settings, outcome: harness.Outcome) -> None:
    """Models that are trained over links, by our hook and by Gloo."""
    shape = STEP_SHAPE
    with shaped(shape.ranks, shape.mbit) as names:
        hosts = [f"10.77.0.{rank + 1}" for rank in range(shape.ranks)]
        group = Group(hosts, [["ip", "netns", "exec", name] for name in names], "eth0")
        exposed: dict[str, list[float]] = {}

        def arm(model: str, name: str) -> harness.Arm:
            label = f"{name} {model} trained"

            def once(number: int) -> float:
                del number
                found = group.order({"trains": model, "arm": name, "repeats": TRAINED_STEPS})
                if len({each["digest"] for each in found}) != 1:
                    raise harness.Unable(f"the ranks' parameters differ after {label}")
                step_s, computing_s = (
                    statistics.median(map(max, zip(*(each[key] for each in found), strict=True)))
                    for key in ("seconds", "computing_s")
                )
                exposed.setdefault(label, []).append(1 - computing_s / step_s)
                return float(found[0]["gradient_bytes"] / step_s / 1e3)

            return harness.Arm(label, f"{shape.mbit} Mbit/s", once)

        arms = [arm(model, name) for model in STEPS for name in ("ours", "ours f16", "gloo")]
        try:
            outcome.values |= harness.interleave(arms, settings.rounds)
        finally:
            group.close()
    outcome.arms += arms
    for model in STEPS:
        for name, key in (("ours", "ddp"), ("ours f16", "ddp_f16"), ("gloo", "ddp_gloo")):
            outcome.figures[f"{key}_{model}_exposed_share_cost"] = exposed[
                f"{name} {model} trained"
            ]
            if name != "gloo":
                outcome.ratios[f"{key}_{model}_vs_gloo"] = (
                    f"{name} {model} trained",
                    f"gloo {model} trained",
                )


def step_arm(
    group: Group,
    names: tuple[str, str],
    sizes: list[int],
    computing_s: list[float],
    seconds: dict[str, list[float]],
) -> harness.Arm:
    """Steps of one arm; their seconds are appended to `seconds`."""
    arm, model = names

    def once(number: int) -> float:
        del number
        found = group.reduce(arm, sizes, 2, computing_s)["seconds"]
        seconds.setdefault(arm, []).append(found)
        return sum(sizes) / found / 1e3

    return harness.Arm(f"{arm} {model} step", f"{STEP_SHAPE.mbit} Mbit/s", once)


def make_rails(space: str) -> None:
    """Give each stream of this namespace a rail of its own."""
    tc(space, "qdisc replace dev eth0 root handle 1: htb default 99")
    tc(space, "class add dev eth0 parent 1: classid 1:99 htb rate 1gbit")
    for rail, port in zip(RAILS, stream_ports(space, len(RAILS)), strict=True):
        tc(space, f"class add dev eth0 parent 1: classid 1:{rail} htb rate {RAILS_MBIT}mbit")
        match = f"match ip sport {port} 0xffff flowid 1:{rail}"
        tc(space, f"filter add dev eth0 parent 1: protocol ip u32 {match}")


def on_rails(settings: harness.Settings, outcome: harness.Outcome) -> None:
    """Four streams of two ranks, one of which is slow every other time."""
    with shaped(2, 4 * RAILS_MBIT) as names:
        hosts = [f"10.77.0.{rank + 1}" for rank in range(2)]
        prefixes = [["ip", "netns", "exec", name] for name in names]
        group = Group(hosts, prefixes, "eth0", ("ours streams",))

        def rate(share: int) -> float:
            mbit = RAILS_MBIT // share
            for name in names:
                tc(name, f"class change dev eth0 classid 1:1 htb rate {mbit}mbit")
            found = group.reduce("ours streams", [RAILS_BYTES], 2, [0.0])
            return RAILS_BYTES / found["seconds"] / 1e3

        arms = [
            harness.Arm("four rails", f"{RAILS_MBIT} Mbit/s each", lambda _: rate(1)),
            harness.Arm("one slowed", f"{RAILS_SLOWED} times", lambda _: rate(RAILS_SLOWED)),
        ]
        try:
            # They are there when they have answered.
            group.reduce("ours streams", [1 << 20], 1, [0.0])
            for name in names:
                make_rails(name)
            outcome.values |= harness.interleave(arms, settings.rounds)
        finally:
            group.close()
    outcome.arms += arms
    left = (len(RAILS) - 1 + 1 / RAILS_SLOWED) / len(RAILS)
    outcome.figures["slow_stream_vs_ideal"] = [
        share / left for share in quotient(outcome.values, "one slowed", "four rails")
    ]
    outcome.figures["four_rails_mbit"] = [each * 8e-3 for each in outcome.values["four rails"]]


def on_grid(settings: harness.Settings, outcome: harness.Outcome) -> None:
    """A tuner's choice beside the best of all settings."""
    shape = Shape(4, 1000, sum(TUNED_BYTES))
    with shaped(shape.ranks, shape.mbit) as names:
        hosts = [f"10.77.0.{rank + 1}" for rank in range(shape.ranks)]
        prefixes = [["ip", "netns", "exec", name] for name in names]
        group = Group(hosts, prefixes, "eth0", ("ours tuned",))
        none = [0.0] * len(TUNED_BYTES)

        def rate(setting: dict[str, Any], repeats: int = 3) -> float:
            found = group.reduce("ours tuned", TUNED_BYTES, repeats, none, setting)
            return shape.size_bytes / found["seconds"] / 1e3

        try:
            grid = [
                dict(zip(GRID, values, strict=True)) for values in itertools.product(*GRID.values())
            ]
            best = max(grid, key=rate)
            found = group.order({"arm": "ours tuned", "sizes_bytes": TUNED_BYTES, "tunes": True})
            tuned = found[0]["setting"]
            if any(each != found[0] for each in found):
                raise harness.Unable(f"the ranks' tuners have come to different ends: {found}")
            arms = [
                harness.Arm("best of the grid", str(list(best.values())), lambda _: rate(best)),
                harness.Arm("tuned", str(list(tuned.values())), lambda _: rate(tuned)),
            ]
            outcome.values |= harness.interleave(arms, settings.rounds)
        finally:
            group.close()
    outcome.arms += arms
    outcome.ratios["tuned_vs_grid_best"] = ("tuned", "best of the grid")
    outcome.figures["tuned_steps"] = [float(found[0]["steps"])] * settings.rounds


PARTS = {
    "loopback": on_loopback,
    "links": lambda settings, outcome: [
        on_links(settings, outcome, [shape])
        for shape in (QUICK_SHAPES if settings.quick else SHAPES)
    ],
    "sizes": lambda settings, outcome: curves(settings, outcome, "sizes", SIZES),
    "ranks": lambda settings, outcome: curves(settings, outcome, "ranks", RANKS),
    "ddp": training_on_links,
    "steps": steps_on_links,
    "rails": on_rails,
    "tuner": on_grid,
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--part",
        action="append",
        choices=PARTS,
        help="Run only this part; repeatable; all by default.",
    )


def bench(settings: harness.Settings) -> harness.Outcome:
    """Run the parts that were asked for."""
    # Ended from outside, it still takes its namespaces with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    outcome = harness.Outcome(unit="kB/s", arms=[], values={}, ratios={})
    for part in settings.options.part or PARTS:
        with contextlib.suppress(harness.Missing):  # The report names the program.
            PARTS[part](settings, outcome)
    if not outcome.values:
        raise harness.Unable(f"no part can run without {', '.join(harness.missing)}")
    outcome.notes.append("float32 sums; a cost is ours over Gloo's, lower is better")
    return outcome
