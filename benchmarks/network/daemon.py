"""Random batches from the daemon, by shared memory and TCP, against the embedded reader, iperf3.

One daemon on loopback serves two files: records of 110 KB (log-normal), batches of 128, and records
of 4 KiB, batches of 256. Clients are one process, one thread, one call at a time, and verify every
record's checksum. The embedded arms read the same files without a daemon. Limits in the same
rounds: iperf3 with one stream over loopback, memcpy out of the mapped file, and two peers that are
asked for as many bytes as a batch of small records: redis, MGET of 256 values, and nginx, one
request of 256 ranges, if it is installed. CPU seconds are those of both sides. Then up to 64
clients at one time, processes of their own; 9,900 connections that say nothing; and a start with
100,000 extents.
"""

import contextlib
import os
import pathlib
import tempfile

import daemon_crowd
import daemon_peers as peers
import harness

LARGE_BYTES, LARGE_BATCH = 110_000, 128
SMALL_BYTES, SMALL_BATCH = 4096, 256
SEED = 11
LOAD = 0.7
GIB = 1 << 30


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used so far."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Daemon:
    """A running ffrecordd, and what its clients measure."""

    def __init__(self, settings: harness.Settings, pid: int, port: int) -> None:
        """Take a daemon that runs already."""
        self.settings = settings
        self.pid = pid
        self.address = f"ffrecord://127.0.0.1:{port}"
        self.program = harness.program(settings, "daemon-arm")
        self.cost: dict[str, list[float]] = {}  # CPU seconds for each GB.
        self.batches_per_s: dict[str, list[float]] = {}

    def read(self, name: str, what: str, location: str, batches: int, batch: int) -> harness.Arm:
        """Make an arm: records per second from `location`."""

        def run(number: int) -> float:
            before = cpu_seconds(self.pid)
            done = harness.run_json(self.program, "read", location, batches, batch, SEED + number)
            cpu = cpu_seconds(self.pid) - before + done["cpu_seconds"]
            self.cost.setdefault(name, []).append(cpu / (done["bytes"] / 1e9))
            self.batches_per_s.setdefault(name, []).append(batches / done["seconds"])
            return float(done["records"] / done["seconds"])

        return harness.Arm(name, what, run)

    def tail(self, name: str, of: str, location: str, batches: int, batch: int) -> harness.Arm:
        """Make an arm: p99 over p50 of a batch, at LOAD of what arm `of` has reached."""

        def run(number: int) -> float:
            rate = self.batches_per_s[of][-1] * LOAD
            done = harness.run_json(
                self.program, "read", location, batches, batch, SEED + number, f"{rate:.3f}"
            )
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


def bench(settings: harness.Settings) -> harness.Outcome:
    """Compare the daemon's transports with what they replace."""
    count = 4_000 if settings.quick else 20_000
    large = make(settings, "large", count, LARGE_BYTES, 0.5)
    small = make(settings, "small", 100_000, SMALL_BYTES, 0.001)
    many, few = (40, 300) if settings.quick else (150, 1500)
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(
            stack.enter_context(tempfile.TemporaryDirectory(dir=settings.scratch))
        )
        ports = [peers.unused_port() for _ in range(4)]
        iperf_cost: list[float] = []
        daemon_program = settings.programs.parent / "server" / "ffrecordd"
        if not daemon_program.exists():
            raise harness.Unable(
                f"{daemon_program} is not built: the server's packages are missing"
            )
        running = stack.enter_context(
            peers.process(
                daemon_program,
                "--data",
                folder / "data",
                "--listen",
                f"127.0.0.1:{ports[0]}",
                log=folder / "daemon.log",
            )
        )
        stack.enter_context(peers.iperf_server(ports[1], folder))
        stack.enter_context(peers.redis_server(ports[2], folder))
        others = [
            peers.iperf(ports[1], 1 if settings.quick else 4, LARGE_BYTES, iperf_cost),
        ]
        ratios: dict[str, tuple[str, str]] = {}
        notes: list[str] = []
        try:
            stack.enter_context(peers.nginx_server(ports[3], small, folder))
            others.append(peers.nginx(ports[3], small, few, SMALL_BATCH, SMALL_BYTES))
            ratios["tcp_4k_vs_nginx"] = ("tcp_4k", "nginx_4k")
        except harness.Unable as error:
            notes.append(f"without nginx: {error}")
            ports.pop()
        for port in ports:
            peers.wait_for(port)
        others.append(peers.redis(ports[2], few, SMALL_BATCH, SMALL_BYTES))
        daemon = Daemon(settings, running.pid, ports[0])
        for name, file in (("large", large), ("small", small)):
            harness.run_json(daemon.program, "publish", file, f"{daemon.address}/{name}")
        extents = [path for path in (folder / "data" / "extents").rglob("*") if path.is_file()]

        def cold(arm: harness.Arm) -> harness.Arm:
            def run(number: int) -> float:
                for path in [large, *extents]:
                    harness.make_cold(path)
                return arm.run(number)

            return harness.Arm(arm.name, arm.what, run)

        def warm(arm: harness.Arm) -> harness.Arm:
            def run(number: int) -> float:
                for path in [large, small, *extents]:
                    harness.make_warm(path)
                return arm.run(number)

            return harness.Arm(arm.name, arm.what, run)

        def address(name: str, transport: str) -> str:
            return f"{daemon.address}/{name}?transport={transport}"

        read = daemon.read
        colds = [
            read("cold_embedded", "no daemon, cold", str(large), many // 4, LARGE_BATCH),
            read(
                "cold_shm", "shared memory, cold", address("large", "shm"), many // 4, LARGE_BATCH
            ),
        ]
        warms = [
            read("warm_embedded", "no daemon, warm", str(large), many, LARGE_BATCH),
            read("warm_shm", "shared memory, warm", address("large", "shm"), many, LARGE_BATCH),
            read("warm_tcp", "TCP, warm", address("large", "tcp"), many, LARGE_BATCH),
            read("tcp_4k", "TCP, 4 KiB", address("small", "tcp"), few, SMALL_BATCH),
            read("shm_4k", "shared memory, 4 KiB", address("small", "shm"), few, SMALL_BATCH),
            *others,
        ]

        def copy_run(number: int) -> float:
            done = harness.run_json(
                daemon.program, "memcpy", large, many, LARGE_BATCH, LARGE_BYTES, SEED + number
            )
            return float(done["records"] / done["seconds"])

        copy = harness.Arm("memcpy", "memcpy out of the mapped file", copy_run)
        values = harness.interleave([cold(arm) for arm in colds], settings.rounds)
        values |= harness.interleave([warm(arm) for arm in [*warms, copy]], settings.rounds)
        tail = daemon.tail("tcp_4k_tail", "tcp_4k", address("small", "tcp"), few, SMALL_BATCH)
        tails = harness.interleave([warm(tail)], settings.rounds)
        seconds = 0.5 if settings.quick else 2
        crowd = daemon_crowd.clients(
            daemon.program, address("small", "tcp"), SMALL_BATCH, seconds, settings.rounds
        )
        crowd |= daemon_crowd.idle(running.pid, ports[0], 2 if settings.quick else 5)
    crowd |= daemon_crowd.start(settings, daemon_program, 2 if settings.quick else 5)
    return harness.Outcome(
        unit="records/s",
        arms=[*colds, *warms, copy],
        values=values,
        ratios=ratios
        | {
            "shm_cold_vs_embedded": ("cold_shm", "cold_embedded"),
            "shm_warm_vs_embedded": ("warm_shm", "warm_embedded"),
            "tcp_vs_iperf3": ("warm_tcp", "iperf3"),
            "tcp_4k_vs_redis": ("tcp_4k", "redis_4k"),
            "shm_warm_vs_memcpy": ("warm_shm", "memcpy"),
        },
        figures={
            "tcp_cpu_vs_iperf3_cost": [
                ours / theirs
                for ours, theirs in zip(daemon.cost["warm_tcp"], iperf_cost, strict=True)
            ],
            "tcp_p99_over_p50_cost": tails["tcp_4k_tail"],
            **crowd,
        },
        notes=[
            *notes,
            f"{count:,} records of 110 KB in batches of {LARGE_BATCH}, 100,000 of 4 KiB in batches "
            f"of {SMALL_BATCH}, {settings.rounds} rounds; costs are lower the better",
        ],
    )
