"""Batches by each transport against what it replaces, for the benchmark `daemon`."""

import contextlib
import pathlib
from collections.abc import Callable

import harness
import peers
from served import (
    LARGE_BATCH,
    LARGE_BYTES,
    SEED,
    SMALL_BATCH,
    SMALL_BYTES,
    Daemon,
    Programs,
    over,
)

# Enough of them for a hundredth to be many.
TAIL_BATCHES = 2_000

RATIOS = {
    "shm_cold_vs_embedded": ("cold_shm", "cold_embedded"),
    "shm_warm_vs_embedded": ("warm_shm", "warm_embedded"),
    "tcp_vs_iperf3": ("warm_tcp", "iperf3"),
    "tcp_4k_vs_redis": ("tcp_4k", "redis_4k"),
    "tcp_4k_vs_nginx": ("tcp_4k", "nginx_4k"),
    "tcp_4k_vs_bare": ("tcp_4k", "bare_4k"),
    "shm_warm_vs_memcpy": ("warm_shm", "memcpy"),
}


class Reads:
    """The arms of reads, cold, warm, and at a part of the daemon's rate."""

    def __init__(self, settings: harness.Settings, programs: Programs) -> None:
        """Take two files and a folder in which both are published."""
        self.settings = settings
        self.programs = programs
        self.many, self.few = (40, 300) if settings.quick else (150, 1500)
        self.iperf_cost: list[float] = []  # CPU seconds for each GB.

    def outcome(self) -> harness.Outcome:
        """Run all arms, those of one kind by turns."""
        programs, rounds = self.programs, self.settings.rounds
        programs.data()
        with contextlib.ExitStack() as stack:
            others = self.start_peers(stack)
            colds = self.colds()
            values = harness.interleave(self.on(colds, harness.make_cold), rounds)
            # Random reads leave single pages in the page cache, not runs: all warm arms begin
            # with files that were read from front to back.
            for path in self.paths():
                harness.make_cold(path)
            daemon = stack.enter_context(programs.daemon())
            warms = [*self.warms(daemon), *others, self.copy(daemon)]
            values |= harness.interleave(self.on(warms, harness.make_warm), rounds)
            tails = harness.interleave(self.on(self.tails(daemon), harness.make_warm), rounds)
        return harness.Outcome(
            unit="records/s",
            arms=[*colds, *warms],
            values=values,
            ratios=RATIOS,
            figures=self.costs(daemon) | tail_figures(daemon, tails),
        )

    def start_peers(self, stack: contextlib.ExitStack) -> list[harness.Arm]:
        """Start the peers that are installed, and make their arms."""
        folder, small = self.programs.folder, self.programs.small
        found: list[harness.Arm] = []
        port = peers.unused_port()
        with contextlib.suppress(harness.Missing):
            stack.enter_context(peers.iperf_server(port, folder))
            peers.wait_for(port)
            seconds = 1 if self.settings.quick else 4
            found.append(peers.iperf(port, seconds, LARGE_BYTES, self.iperf_cost))
        port = peers.unused_port()
        with contextlib.suppress(harness.Missing):
            stack.enter_context(peers.nginx_server(port, small, folder))
            peers.wait_for(port)
            found.append(peers.nginx(port, small, self.few, SMALL_BATCH, SMALL_BYTES))
        port = peers.unused_port()
        with contextlib.suppress(harness.Missing):
            stack.enter_context(peers.redis_server(port, folder))
            peers.wait_for(port)
            found.append(peers.redis(port, self.few, SMALL_BATCH, SMALL_BYTES))
        return found

    def paths(self) -> list[pathlib.Path]:
        """List all that is read, as files and as extents."""
        return [self.programs.large, self.programs.small, *self.programs.extents()]

    def on(
        self, arms: list[harness.Arm], prepare: Callable[[pathlib.Path], None]
    ) -> list[harness.Arm]:
        """Make the arms again; each prepares all files before it runs."""

        def prepared(arm: harness.Arm) -> harness.Arm:
            def run(number: int) -> float:
                for path in self.paths():
                    prepare(path)
                return arm.run(number)

            return harness.Arm(arm.name, arm.what, run)

        return [prepared(arm) for arm in arms]

    def colds(self) -> list[harness.Arm]:
        """Make the arms that the disk decides."""

        def run_at(location: str) -> Callable[[int], float]:
            # By a daemon of its own: what one has mapped stays in memory while it runs.
            def run(number: int) -> float:
                with self.programs.daemon() as fresh:
                    place = location.format(fresh.address)
                    arm = fresh.read("cold", "", place, self.many // 4, LARGE_BATCH)
                    return arm.run(number)

            return run

        return [
            harness.Arm("cold_embedded", "no daemon, cold", run_at(str(self.programs.large))),
            harness.Arm("cold_shm", "shared memory, cold", run_at("{}/large?transport=shm")),
        ]

    def warms(self, daemon: Daemon) -> list[harness.Arm]:
        """Make the arms of the page cache."""
        read, large, many, few = daemon.read, self.programs.large, self.many, self.few
        return [
            read("warm_embedded", "no daemon, warm", str(large), many, LARGE_BATCH),
            read("warm_shm", "shared memory, warm", daemon.at("large", "shm"), many, LARGE_BATCH),
            read("warm_tcp", "TCP, warm", daemon.at("large", "tcp"), many, LARGE_BATCH),
            read("tcp_4k", "TCP, 4 KiB", daemon.at("small", "tcp"), few, SMALL_BATCH),
            daemon.exchange("bare_4k", few, SMALL_BATCH, SMALL_BYTES),
            read("shm_4k", "shared memory, 4 KiB", daemon.at("small", "shm"), few, SMALL_BATCH),
        ]

    def copy(self, daemon: Daemon) -> harness.Arm:
        """Make the arm of a program that only copies."""

        def run(number: int) -> float:
            words = ("memcpy", self.programs.large, self.many, LARGE_BATCH, LARGE_BYTES)
            done = harness.run_json(daemon.program, *words, SEED + number)
            return float(done["records"] / done["seconds"])

        return harness.Arm("memcpy", "memcpy out of the mapped file", run)

    def tails(self, daemon: Daemon) -> list[harness.Arm]:
        """Make the arms of batches that are asked for at a part of the rate."""
        ours = ("read", daemon.at("small", "tcp"), TAIL_BATCHES, SMALL_BATCH, SEED)
        bare = ("exchange", TAIL_BATCHES, SMALL_BATCH, SMALL_BYTES)
        return [
            daemon.tail("tcp_4k_tail", "tcp_4k", *ours),
            daemon.tail("bare_4k_tail", "bare_4k", *bare),
            # As many batches/s as the daemon's: the difference is what the daemon adds to their
            # tail.
            daemon.tail("bare_4k_same_rate_tail", "tcp_4k", *bare),
        ]

    def costs(self, daemon: Daemon) -> dict[str, list[float]]:
        """Compare processor times."""
        cost = daemon.cost
        found = {"shm_warm_cpu_vs_embedded_cost": over(cost["warm_shm"], cost["warm_embedded"])}
        if self.iperf_cost:
            found["tcp_cpu_vs_iperf3_cost"] = over(cost["warm_tcp"], self.iperf_cost)
        return found


def tail_figures(daemon: Daemon, tails: dict[str, list[float]]) -> dict[str, list[float]]:
    """Compare the slowest hundredth of the batches."""
    ours, same_rate = daemon.p99_s["tcp_4k_tail"], daemon.p99_s["bare_4k_same_rate_tail"]
    return {
        "tcp_p99_over_p50_cost": tails["tcp_4k_tail"],
        "bare_p99_over_p50_cost": tails["bare_4k_tail"],
        "tcp_p99_ms": [value * 1e3 for value in ours],
        "bare_p99_ms": [value * 1e3 for value in same_rate],
        "tcp_p99_vs_bare_cost": over(ours, same_rate),
    }
