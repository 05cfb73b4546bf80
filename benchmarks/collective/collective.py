"""All-reduce of ours and of Gloo: on loopback, and over links of a given rate between namespaces.

Ranks are processes that stay; in each round every arm reduces the same arrays in them. A second is
the slowest rank's. Shaped links are veth pairs into one bridge, each limited by `tbf` in both
directions; the bound is 2 (n - 1) / n times the bytes over the rate that iperf3 finds there in the
same round. A step of training is its buckets, in the order of backward: each comes when its share
of the computing is done, and the step ends when all are averaged. Its cost is what that takes more
than buckets that move one after another at the bound.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import harness

HERE = pathlib.Path(__file__).resolve().parent
PORT = 29_400
SMALL = (4 << 10, 64 << 10)
LOOPBACK_BYTES = 64 << 20
IPERF_SECONDS = 1


@dataclasses.dataclass(frozen=True)
class Shape:
    """Ranks, each behind a link of its own."""

    ranks: int
    mbit: int
    size_bytes: int

    @property
    def name(self) -> str:
        """Such as "4 ranks, 1000 Mbit/s, 16 MiB"."""
        return f"{self.ranks} ranks, {self.mbit} Mbit/s, {self.size_bytes >> 20} MiB"


SHAPES = (Shape(4, 1000, 16 << 20), Shape(2, 1000, 64 << 20), Shape(3, 100, 1 << 20))
QUICK_SHAPES = (Shape(4, 1000, 16 << 20),)
# Buckets in the order of backward, in MiB, an eighth of the real ones, and the share of the
# computing before each. VGG-16: dense layers, most of the bytes and next to none of the work, then
# the convolutions. BERT: twelve equal layers, then the embeddings.
STEPS = {
    "vgg": [(10.0, 0.02), (49.0, 0.02), (3.5, 0.16), (2.75, 0.3), (0.75, 0.5)],
    "bert": [(3.5, 0.08)] * 12 + [(12.0, 0.04)],
}
STEP_SHAPE = Shape(2, 1000, 0)


class Group:
    """Processes as ranks, which do what they are told."""

    def __init__(self, hosts: list[str], prefixes: list[list[str]], interface: str) -> None:
        """Start them, each behind its command prefix."""
        environment = os.environ | {
            "MASTER_ADDR": hosts[0],
            "MASTER_PORT": str(PORT),
            "WORLD_SIZE": str(len(hosts)),
            "GLOO_SOCKET_IFNAME": interface,
            "OMP_NUM_THREADS": "1",
        }
        self.ranks = [
            subprocess.Popen(
                [*prefix, sys.executable, str(HERE / "rank" / "rank.py"), host],
                env=environment | {"RANK": str(rank)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank, (host, prefix) in enumerate(zip(hosts, prefixes, strict=True))
        ]

    def reduce(
        self, arm: str, sizes_bytes: list[int], repeats: int, computing_s: list[float]
    ) -> dict[str, float]:
        """Seconds of all-reducing these arrays, and processor seconds of all ranks for it."""
        order = json.dumps(
            {"arm": arm, "sizes_bytes": sizes_bytes, "repeats": repeats, "computing_s": computing_s}
        )
        for rank in self.ranks:
            assert rank.stdin is not None
            print(order, file=rank.stdin, flush=True)
        found: list[dict[str, Any]] = []
        for rank in self.ranks:
            assert rank.stdout is not None
            line = rank.stdout.readline()
            if not line:
                raise harness.Unable(f"a rank has ended during {order}; its message stands above")
            found.append(json.loads(line))
        if len({each["digest"] for each in found}) != 1:
            raise harness.Unable(f"the ranks' results differ: {order}")
        slowest = [max(each["seconds"][i] for each in found) for i in range(repeats)]
        return {
            "seconds": statistics.median(slowest),
            "cpu_seconds": sum(each["cpu_seconds"] for each in found) / repeats,
        }

    def close(self) -> None:
        """End the ranks."""
        for rank in self.ranks:
            assert rank.stdin is not None
            rank.stdin.close()
        for rank in self.ranks:
            with contextlib.suppress(subprocess.TimeoutExpired):
                rank.wait(10)
            rank.kill()
            rank.wait()


def ip(*words: str) -> None:
    """Run `ip`."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise harness.Unable(
            f"ip {' '.join(words)}: {done.stderr.strip()}; namespaces need root and iproute2"
        )


@contextlib.contextmanager
def shaped(ranks: int, mbit: int) -> Iterator[list[str]]:
    """Namespaces joined by a bridge, each link limited both ways; yields their names."""
    tag = f"ffr{os.getpid() % 100_000}"
    names = [f"{tag}-{rank}" for rank in range(ranks)]
    limit = ["root", "tbf", "rate", f"{mbit}mbit", "burst", "128kb", "latency", "30ms"]
    try:
        ip("netns", "add", tag)
        ip("-n", tag, "link", "add", "bridge", "type", "bridge")
        ip("-n", tag, "link", "set", "bridge", "up")
        for rank, name in enumerate(names):
            ip("netns", "add", name)
            port = f"port{rank}"
            ip("-n", tag, "link", "add", port, "type", "veth", "peer", "eth0", "netns", name)
            ip("-n", tag, "link", "set", port, "master", "bridge", "up")
            ip("-n", name, "addr", "add", f"10.77.0.{rank + 1}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", "eth0", "up")
            for space, device in ((name, "eth0"), (tag, port)):
                subprocess.run(
                    ["tc", "-n", space, "qdisc", "add", "dev", device, *limit], check=True
                )
        yield names
    finally:
        for name in [*names, tag]:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def iperf_bytes_per_s(names: list[str]) -> float:
    """What one stream carries from the first rank's namespace to the second's."""
    iperf = harness.foreign("iperf3", "iperf3")
    inside = ["ip", "netns", "exec"]
    with subprocess.Popen(
        [*inside, names[1], iperf, "-s", "-1", "--forceflush"], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        while "listening" not in server.stdout.readline():
            pass
        client = [*inside, names[0], iperf, "-c", "10.77.0.2", "-t", str(IPERF_SECONDS), "-J"]
        found = harness.run_json(*client)
    return float(found["end"]["sum_received"]["bits_per_second"]) / 8


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
    try:
        outcome.values |= harness.interleave(arms, settings.rounds)
    finally:
        group.close()
    outcome.arms += arms
    outcome.ratios["loopback_vs_gloo"] = ("ours 64 MiB", "gloo 64 MiB")
    outcome.figures["cpu_vs_gloo_cost"] = quotient(cpu, "ours 64 MiB", "gloo 64 MiB")
    for size_bytes in SMALL:
        label = f"{size_bytes >> 10} KiB"
        outcome.figures[f"small_{size_bytes >> 10}k_vs_gloo_cost"] = quotient(
            outcome.values, f"gloo {label}", f"ours {label}"
        )


def on_links(settings: harness.Settings, outcome: harness.Outcome, shape: Shape) -> None:
    """Ranks behind links of one rate."""
    with shaped(shape.ranks, shape.mbit) as names:
        hosts = [f"10.77.0.{rank + 1}" for rank in range(shape.ranks)]
        group = Group(hosts, [["ip", "netns", "exec", name] for name in names], "eth0")
        arms = arms_of(group, shape.name, shape.size_bytes, 3, {}, ("ours", "ours f16", "gloo"))

        def bound(number: int) -> float:
            del number
            share = 2 * (shape.ranks - 1) / shape.ranks
            return iperf_bytes_per_s(names) / share / 1e3

        arms.append(harness.Arm(f"bound {shape.name}", "by iperf3's one stream", bound))
        try:
            outcome.values |= harness.interleave(arms, settings.rounds)
        finally:
            group.close()
    outcome.arms += arms
    key = f"shaped_{shape.ranks}x{shape.mbit}m"
    outcome.ratios[f"{key}_vs_bound"] = (f"ours {shape.name}", f"bound {shape.name}")
    outcome.ratios[f"{key}_vs_gloo"] = (f"ours {shape.name}", f"gloo {shape.name}")
    outcome.ratios[f"{key}_f16_gain"] = (f"ours f16 {shape.name}", f"ours {shape.name}")


def least_seconds(computing_s: list[float], moving_s: list[float]) -> float:
    """Of a step whose buckets move one after another, none before it is computed."""
    computed = moved = 0.0
    for compute_s, move_s in zip(computing_s, moving_s, strict=True):
        computed += compute_s
        moved = max(moved, computed) + move_s
    return moved


def steps_on_links(settings: harness.Settings, outcome: harness.Outcome) -> None:
    """Steps whose computing takes as long as their bytes take at the bound."""
    shape = STEP_SHAPE
    with shaped(shape.ranks, shape.mbit) as names:
        hosts = [f"10.77.0.{rank + 1}" for rank in range(shape.ranks)]
        group = Group(hosts, [["ip", "netns", "exec", name] for name in names], "eth0")
        share = 2 * (shape.ranks - 1) / shape.ranks
        try:
            rate = iperf_bytes_per_s(names)
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
                for arm, key in (("ours", "ddp"), ("ours f16", "ddp_f16")):
                    outcome.ratios[f"{key}_{model}_vs_gloo"] = (
                        f"{arm} {model} step",
                        f"gloo {model} step",
                    )
                outcome.figures[f"ddp_{model}_exposed_cost"] = [
                    found / least - 1 for found in seconds["ours"]
                ]
        finally:
            group.close()


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


def bench(settings: harness.Settings) -> harness.Outcome:
    """Compare on loopback, then on each shape of links."""
    # Ended from outside, it still takes its namespaces with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    outcome = harness.Outcome(unit="kB/s", arms=[], values={}, ratios={})
    on_loopback(settings, outcome)
    for shape in QUICK_SHAPES if settings.quick else SHAPES:
        on_links(settings, outcome, shape)
    steps_on_links(settings, outcome)
    outcome.notes.append("float32 sums; a cost is ours over Gloo's, lower is better")
    return outcome
