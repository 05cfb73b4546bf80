"""Random batches from the daemon, by shared memory and TCP, against the embedded reader, iperf3.

In parts, of which --part runs one. One daemon on loopback serves two files: records of 110 KB
(log-normal), batches of 128, and records of 4 KiB, batches of 256. Clients are one process, one
thread, one call at a time, and verify every record's checksum. The embedded arms read the same
files without a daemon. Limits in the same rounds: iperf3 with one stream over loopback, memcpy out
of the mapped file, and two processes that do nothing but send and receive as many bytes as a batch
of small records. Two peers are asked for as many: redis, MGET of 256 values, and nginx, one request
of 256 ranges, if it is installed. CPU seconds are those of both sides. The tail of TCP batches of
4 KiB is that of calls at 70 % of the rate that the same round reached, over the bare exchange's
tail at that very rate. Then up to 64 clients at one time, processes of their own, and a bare
exchange with 64 (bare_exchange.h says what it leaves out); 9,900 connections that say nothing; a
start with 100,000 extents; four ranks that read one epoch from a cold disk, with and without
prefetch hints; and two simulated disks against one of the same speed (slow_disks.cpp).
"""

import argparse
import contextlib
import pathlib
import sys
import tempfile
from collections.abc import Callable, Iterator

import harness

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "arms"))

import crowd
import peers
from prefetch_hints import PrefetchHints
from slow_disks import SlowDisks

LARGE_BYTES, LARGE_BATCH = 110_000, 128
SMALL_BYTES, SMALL_BATCH = 4096, 256
SEED = 11
LOAD = 0.7


class Daemon:
    """A running ffrecordd, and what its clients measure."""

    def __init__(self, settings: harness.Settings, pid: int, port: int, admin_port: int) -> None:
        """Take a daemon that runs already."""
        self.settings = settings
        self.pid = pid
        self.port, self.admin_port = port, admin_port
        self.address = f"ffrecord://127.0.0.1:{port}"
        self.program = harness.program(settings, "daemon-arm")
        self.cost: dict[str, list[float]] = {}  # CPU seconds for each GB.
        self.batches_per_s: dict[str, list[float]] = {}
        self.p99_s: dict[str, list[float]] = {}

    def read(self, name: str, what: str, location: str, batches: int, batch: int) -> harness.Arm:
        """Make an arm: records per second from `location`."""

        def run(number: int) -> float:
            before = crowd.cpu_seconds(self.pid)
            done = harness.run_json(self.program, "read", location, batches, batch, SEED + number)
            cpu = crowd.cpu_seconds(self.pid) - before + done["cpu_seconds"]
            self.cost.setdefault(name, []).append(cpu / (done["bytes"] / 1e9))
            self.batches_per_s.setdefault(name, []).append(batches / done["seconds"])
            return float(done["records"] / done["seconds"])

        return harness.Arm(name, what, run)

    def exchange(self, name: str, batches: int, batch: int, size: int) -> harness.Arm:
        """Make an arm: records per second of two processes that do nothing but send them."""

        def run(number: int) -> float:
            done = harness.run_json(self.program, "exchange", batches, batch, size)
            self.batches_per_s.setdefault(name, []).append(batches / done["seconds"])
            return float(done["records"] / done["seconds"])

        return harness.Arm(name, "bytes sent, received, not looked at", run)

    def tail(self, name: str, of: str, *words: object) -> harness.Arm:
        """Make an arm: p99 over p50 of a batch, at LOAD of what arm `of` has reached."""

        def run(number: int) -> float:
            rate = self.batches_per_s[of][number] * LOAD
            done = harness.run_json(self.program, *words, f"{rate:.3f}")
            self.p99_s.setdefault(name, []).append(done["p99_s"])
            return float(done["p99_s"] / done["p50_s"])

        return harness.Arm(name, f"p99 / p50 of a batch at {LOAD:.0%} load", run)


def make(
    settings: harness.Settings, name: str, count: int, size: int, sigma: float
) -> pathlib.Path:
    """Make a file of records, or take the one of the last run."""
    path = settings.scratch / f"daemon-{name}-{count}.ffr"
    if not path.exists():
        harness.run_json(
            harness.program(settings, "read-arm"), "make", path, count, size, sigma, SEED
        )
    return path


class Programs:
    """What is run and read, made when it is first needed."""

    def __init__(self, settings: harness.Settings, folder: pathlib.Path) -> None:
        """Take a folder that is empty."""
        self.settings = settings
        self.folder = folder
        self.count = 4_000 if settings.quick else 20_000
        self.large = make(settings, "large", self.count, LARGE_BYTES, 0.5)
        self.small = make(settings, "small", 100_000, SMALL_BYTES, 0.001)
        self.server = settings.programs.parent / "server" / "ffrecordd"
        if not self.server.exists():
            raise harness.Unable(f"{self.server} is not built: the server's packages are missing")

    @contextlib.contextmanager
    def daemon(self) -> Iterator[Daemon]:
        """Run a daemon that serves both files."""
        port, admin = peers.unused_port(), peers.unused_port()
        data = self.folder / "data"
        is_fresh = not data.exists()
        words = [self.server, "--data", data, "--listen", f"127.0.0.1:{port}"]
        words += ["--admin", f"127.0.0.1:{admin}"]
        with peers.process(*words, log=self.folder / "daemon.log") as running:
            peers.wait_for(port)
            daemon = Daemon(self.settings, running.pid, port, admin)
            for name, file in (("large", self.large), ("small", self.small)) if is_fresh else ():
                harness.run_json(daemon.program, "publish", file, f"{daemon.address}/{name}")
            yield daemon

    def data(self) -> pathlib.Path:
        """Find the daemon's folder, in which both files are published."""
        if not (self.folder / "data").exists():
            with self.daemon():
                pass
        return self.folder / "data"

    def extents(self) -> list[pathlib.Path]:
        """List what is published, as it lies on the disk."""
        return [path for path in (self.folder / "data" / "extents").rglob("*") if path.is_file()]


def run_reads(settings: harness.Settings, programs: Programs) -> harness.Outcome:
    """Compare the daemon's transports with what they replace, cold and warm."""
    many, few = (40, 300) if settings.quick else (150, 1500)
    with contextlib.ExitStack() as stack:
        folder, large, small = programs.folder, programs.large, programs.small
        ports = {name: peers.unused_port() for name in ("iperf3", "redis", "nginx")}
        iperf_cost: list[float] = []
        programs.data()
        others: list[harness.Arm] = []
        with contextlib.suppress(harness.Missing):
            stack.enter_context(peers.iperf_server(ports["iperf3"], folder))
            peers.wait_for(ports["iperf3"])
            seconds = 1 if settings.quick else 4
            others.append(peers.iperf(ports["iperf3"], seconds, LARGE_BYTES, iperf_cost))
        with contextlib.suppress(harness.Missing):
            stack.enter_context(peers.nginx_server(ports["nginx"], small, folder))
            peers.wait_for(ports["nginx"])
            others.append(peers.nginx(ports["nginx"], small, few, SMALL_BATCH, SMALL_BYTES))
        with contextlib.suppress(harness.Missing):
            stack.enter_context(peers.redis_server(ports["redis"], folder))
            peers.wait_for(ports["redis"])
            others.append(peers.redis(ports["redis"], few, SMALL_BATCH, SMALL_BYTES))

        def on(
            arms: list[harness.Arm], prepare: Callable[[pathlib.Path], None]
        ) -> list[harness.Arm]:
            def prepared(arm: harness.Arm) -> harness.Arm:
                def run(number: int) -> float:
                    for path in [large, small, *programs.extents()]:
                        prepare(path)
                    return arm.run(number)

                return harness.Arm(arm.name, arm.what, run)

            return [prepared(arm) for arm in arms]

        def cold_run(location: str) -> Callable[[int], float]:
            # By a daemon of its own: what one has mapped stays in memory while it runs.
            def run(number: int) -> float:
                with programs.daemon() as fresh:
                    place = location.format(fresh.address)
                    return fresh.read("cold", "", place, many // 4, LARGE_BATCH).run(number)

            return run

        colds = [
            harness.Arm("cold_embedded", "no daemon, cold", cold_run(str(large))),
            harness.Arm("cold_shm", "shared memory, cold", cold_run("{}/large?transport=shm")),
        ]
        values = harness.interleave(on(colds, harness.make_cold), settings.rounds)

        # What was read at random lies in the page cache in single pages: all warm arms begin with
        # files that were read from front to back.
        for path in [large, small, *programs.extents()]:
            harness.make_cold(path)
        daemon = stack.enter_context(programs.daemon())

        def address(name: str, transport: str) -> str:
            return f"{daemon.address}/{name}?transport={transport}"

        read = daemon.read
        warms = [
            read("warm_embedded", "no daemon, warm", str(large), many, LARGE_BATCH),
            read("warm_shm", "shared memory, warm", address("large", "shm"), many, LARGE_BATCH),
            read("warm_tcp", "TCP, warm", address("large", "tcp"), many, LARGE_BATCH),
            read("tcp_4k", "TCP, 4 KiB", address("small", "tcp"), few, SMALL_BATCH),
            daemon.exchange("bare_4k", few, SMALL_BATCH, SMALL_BYTES),
            read("shm_4k", "shared memory, 4 KiB", address("small", "shm"), few, SMALL_BATCH),
            *others,
        ]

        def copy_run(number: int) -> float:
            done = harness.run_json(
                daemon.program, "memcpy", large, many, LARGE_BATCH, LARGE_BYTES, SEED + number
            )
            return float(done["records"] / done["seconds"])

        copy = harness.Arm("memcpy", "memcpy out of the mapped file", copy_run)
        values |= harness.interleave(on([*warms, copy], harness.make_warm), settings.rounds)
        # Enough of them for a hundredth to be many.
        often = 2_000
        bare = ("exchange", often, SMALL_BATCH, SMALL_BYTES)
        tails = [
            daemon.tail(
                "tcp_4k_tail", "tcp_4k", "read", address("small", "tcp"), often, SMALL_BATCH, SEED
            ),
            daemon.tail("bare_4k_tail", "bare_4k", *bare),
            # As many batches a second as of the daemon: what it adds to their tail.
            daemon.tail("bare_4k_same_rate_tail", "tcp_4k", *bare),
        ]
        tail_values = harness.interleave(on(tails, harness.make_warm), settings.rounds)
        p99_s = daemon.p99_s
    return harness.Outcome(
        unit="records/s",
        arms=[*colds, *warms, copy],
        values=values,
        ratios={
            "shm_cold_vs_embedded": ("cold_shm", "cold_embedded"),
            "shm_warm_vs_embedded": ("warm_shm", "warm_embedded"),
            "tcp_vs_iperf3": ("warm_tcp", "iperf3"),
            "tcp_4k_vs_redis": ("tcp_4k", "redis_4k"),
            "tcp_4k_vs_nginx": ("tcp_4k", "nginx_4k"),
            "tcp_4k_vs_bare": ("tcp_4k", "bare_4k"),
            "shm_warm_vs_memcpy": ("warm_shm", "memcpy"),
        },
        figures={
            "shm_warm_cpu_vs_embedded_cost": [
                ours / theirs
                for ours, theirs in zip(
                    daemon.cost["warm_shm"], daemon.cost["warm_embedded"], strict=True
                )
            ],
        }
        | (
            {
                "tcp_cpu_vs_iperf3_cost": [
                    ours / theirs
                    for ours, theirs in zip(daemon.cost["warm_tcp"], iperf_cost, strict=True)
                ]
            }
            if iperf_cost
            else {}
        )
        | {
            "tcp_p99_over_p50_cost": tail_values["tcp_4k_tail"],
            "bare_p99_over_p50_cost": tail_values["bare_4k_tail"],
            "tcp_p99_ms": [value * 1e3 for value in p99_s["tcp_4k_tail"]],
            "bare_p99_ms": [value * 1e3 for value in p99_s["bare_4k_same_rate_tail"]],
            "tcp_p99_vs_bare_cost": [
                ours / theirs
                for ours, theirs in zip(
                    p99_s["tcp_4k_tail"], p99_s["bare_4k_same_rate_tail"], strict=True
                )
            ],
        },
    )


def run_crowd(settings: harness.Settings, programs: Programs) -> harness.Outcome:
    """See what many clients are given."""
    with programs.daemon() as daemon:
        location = f"{daemon.address}/small?transport=tcp"
        asked = daemon.program, daemon.pid, location
        figures = crowd.clients(asked, SMALL_BATCH, SMALL_BYTES, 2, settings.rounds)
    return harness.Outcome("records/s", [], {}, {}, figures)


def run_idle(settings: harness.Settings, programs: Programs) -> harness.Outcome:
    """See what those cost who say nothing."""
    with programs.daemon() as daemon:
        rounds = 2 if settings.quick else 5
        figures = crowd.idle(daemon.pid, daemon.port, daemon.admin_port, rounds)
    return harness.Outcome("records/s", [], {}, {}, figures)


def run_start(settings: harness.Settings, programs: Programs) -> harness.Outcome:
    """See how soon a daemon with many extents answers."""
    figures = crowd.start(settings, programs.server, 3 if settings.quick else 7)
    return harness.Outcome("records/s", [], {}, {}, figures)


def run_plans(settings: harness.Settings, programs: Programs) -> harness.Outcome:
    """See what a prefetch hint of an epoch is worth."""
    ranks = PrefetchHints(settings, programs.server, programs.data())
    arms = [ranks.arm(dataset, plan) for dataset in ("large", "small") for plan in (True, False)]
    values = harness.interleave(arms, settings.rounds)
    extra = {
        f"plan_ahead_{dataset}_read_ratio": [
            ours / theirs
            for ours, theirs in zip(
                ranks.read_share[f"ranks_{dataset}_hinted"],
                ranks.read_share[f"ranks_{dataset}_unhinted"],
                strict=True,
            )
        ]
        for dataset in ("large", "small")
    }
    return harness.Outcome(
        unit="records/s",
        arms=arms,
        values=values,
        ratios={
            "plan_ahead_gain": ("ranks_small_hinted", "ranks_small_unhinted"),
            "plan_ahead_large_gain": ("ranks_large_hinted", "ranks_large_unhinted"),
        },
        figures=extra | {"plan_ahead_wasted_bytes": ranks.wasted},
    )


def run_disks(settings: harness.Settings, programs: Programs) -> harness.Outcome:
    """See what a second disk is worth."""
    disks = SlowDisks(settings, programs.folder, programs.small)
    arms = [disks.arm(2), disks.arm(1)]
    return harness.Outcome(
        unit="records/s",
        arms=arms,
        values=harness.interleave(arms, settings.rounds),
        ratios={"two_disks_gain": ("slow_disks_2", "slow_disks_1")},
        figures={},
    )


PARTS: dict[str, Callable[[harness.Settings, Programs], harness.Outcome]] = {
    "reads": run_reads,
    "crowd": run_crowd,
    "disks": run_disks,
    "idle": run_idle,
    "start": run_start,
    "plans": run_plans,
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Take --part."""
    parser.add_argument("--part", choices=sorted(PARTS), help="Run only this part; all by default.")


def bench(settings: harness.Settings) -> harness.Outcome:
    """Run all parts, or one, one after the other."""
    wanted = settings.options.part
    with tempfile.TemporaryDirectory(dir=settings.scratch) as name:
        programs = Programs(settings, pathlib.Path(name))
        found = [run(settings, programs) for part, run in PARTS.items() if wanted in (None, part)]
    whole = found[0]
    for part in found[1:]:
        whole.arms += part.arms
        whole.values |= part.values
        whole.ratios |= part.ratios
        whole.figures |= part.figures
        whole.notes += part.notes
    whole.notes.append(
        f"{programs.count:,} records of 110 KB in batches of {LARGE_BATCH}, 100,000 of 4 KiB in "
        f"batches of {SMALL_BATCH}, {settings.rounds} rounds; costs are lower the better"
    )
    return whole
