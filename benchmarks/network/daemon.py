"""Random batches from the daemon, by shared memory and TCP, against the embedded reader, iperf3.

One daemon on loopback serves two files: records of 110 KB (log-normal), batches of 128, and records
of 4 KiB, batches of 256. Clients are one process, one thread, one call at a time, and verify every
record's checksum. The embedded arms read the same files without a daemon. Limits in the same
rounds: iperf3 with one stream over loopback, memcpy out of the mapped file, and redis MGET of
256 values of 4 KiB through its own client protocol. CPU seconds are those of both sides.
"""

import contextlib
import os
import pathlib
import random
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator

import harness

LARGE_BYTES, LARGE_BATCH = 110_000, 128
SMALL_BYTES, SMALL_BATCH = 4096, 256
SEED = 11
LOAD = 0.7
GIB = 1 << 30


def unused_port() -> int:
    """Find a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def process(*command: object, log: pathlib.Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server until the block is left."""
    with log.open("wb") as output:
        running = subprocess.Popen(
            [str(word) for word in command], stdout=output, stderr=output, stdin=subprocess.DEVNULL
        )
        try:
            yield running
        finally:
            running.terminate()
            running.wait(20)


def wait_for(port: int) -> None:
    """Wait until somebody listens there."""
    for _ in range(400):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise harness.Unable(f"nothing listens on port {port} after 20 s")


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


def iperf(port: int, seconds: int, cost: list[float]) -> harness.Arm:
    """Make the arm of iperf3: records of the mean size per second in one stream."""
    program = harness.foreign("iperf3", "iperf3")

    def run(_: int) -> float:
        done = harness.run_json(
            program, "-c", "127.0.0.1", "-p", port, "-t", seconds, "-J", "--length", "128K"
        )["end"]
        received = done["sum_received"]
        cpu = done["cpu_utilization_percent"]
        used = (cpu["host_total"] + cpu["remote_total"]) / 100 * received["seconds"]
        cost.append(used / (received["bytes"] / 1e9))
        return float(received["bytes"] / received["seconds"] / LARGE_BYTES)

    return harness.Arm("iperf3", "iperf3, one stream, as records of 110 KB", run)


def mget_reply(connection: socket.socket, buffer: bytearray, size: int) -> None:
    """Take `size` bytes off a connection."""
    view, done = memoryview(buffer), 0
    while done < size:
        got = connection.recv_into(view[done:size])
        if got == 0:
            raise harness.Unable("redis has closed the connection")
        done += got


def redis(port: int, batches: int) -> harness.Arm:
    """Make the arm of redis: MGET of 256 values of 4 KiB; replies are received, not looked into."""
    keys = 20_000
    value = os.urandom(SMALL_BYTES)
    # *256, then each value as $4096, the bytes, and an end of line.
    reply = len(b"*%d\r\n" % SMALL_BATCH) + SMALL_BATCH * (len(b"$4096\r\n\r\n") + SMALL_BYTES)

    def bulk(words: list[bytes]) -> bytes:
        return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)

    with socket.create_connection(("127.0.0.1", port)) as connection:
        for key in range(keys):
            connection.sendall(bulk([b"SET", b"%d" % key, value]))
            mget_reply(connection, bytearray(5), 5)

    def run(number: int) -> float:
        source = random.Random(number)
        requests = [
            bulk([b"MGET", *(b"%d" % source.randrange(keys) for _ in range(SMALL_BATCH))])
            for _ in range(batches)
        ]
        buffer = bytearray(reply)
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            start = time.monotonic()
            for request in requests:
                connection.sendall(request)
                mget_reply(connection, buffer, reply)
            seconds = time.monotonic() - start
        return batches * SMALL_BATCH / seconds

    return harness.Arm("redis_4k", "redis, MGET of 256 values of 4 KiB", run)


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


def start_ms(log: pathlib.Path) -> float:
    """Tell how long the daemon took from its first line to being ready, by its own clock."""
    times = re.findall(
        r"time=\S*T\d\d:\d\d:(\d\d\.\d\d\d)\S* level=info event=(\w+)", log.read_text()
    )
    first, ready = float(times[0][0]), float(dict((event, t) for t, event in times)["ready"])
    return (ready - first) % 60 * 1000


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
        ports = [unused_port() for _ in range(3)]
        daemon_program = settings.programs.parent / "server" / "ffrecordd"
        if not daemon_program.exists():
            raise harness.Unable(
                f"{daemon_program} is not built: the server's packages are missing"
            )
        running = stack.enter_context(
            process(
                daemon_program,
                "--data",
                folder / "data",
                "--listen",
                f"127.0.0.1:{ports[0]}",
                log=folder / "daemon.log",
            )
        )
        stack.enter_context(
            process(
                harness.foreign("iperf3", "iperf3"),
                "-s",
                "-B",
                "127.0.0.1",
                "-p",
                ports[1],
                log=folder / "iperf.log",
            )
        )
        stack.enter_context(
            process(
                harness.foreign("redis-server", "redis-server"),
                "--port",
                ports[2],
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--appendonly",
                "no",
                "--dir",
                folder,
                log=folder / "redis.log",
            )
        )
        for port in ports:
            wait_for(port)
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
        iperf_cost: list[float] = []
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
            iperf(ports[1], 1 if settings.quick else 4, iperf_cost),
            redis(ports[2], few),
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
        started = start_ms(folder / "daemon.log")
    return harness.Outcome(
        unit="records/s",
        arms=[*colds, *warms, copy],
        values=values,
        ratios={
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
        },
        notes=[
            f"{count:,} records of 110 KB in batches of {LARGE_BATCH}, 100,000 of 4 KiB in batches "
            f"of {SMALL_BATCH}, {settings.rounds} rounds; costs are lower the better",
            f"start to ready with an empty folder: {started:.0f} ms",
        ],
    )
