"""A daemon with two datasets, and what is measured of it, for the benchmark `daemon`."""

import contextlib
import pathlib
from collections.abc import Iterator

import crowd
import harness
import peers

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
        """Make an arm: records/s from `location`."""

        def run(number: int) -> float:
            before = crowd.cpu_seconds(self.pid)
            done = harness.run_json(self.program, "read", location, batches, batch, SEED + number)
            cpu = crowd.cpu_seconds(self.pid) - before + done["cpu_seconds"]
            self.cost.setdefault(name, []).append(cpu / (done["bytes"] / 1e9))
            self.batches_per_s.setdefault(name, []).append(batches / done["seconds"])
            return float(done["records"] / done["seconds"])

        return harness.Arm(name, what, run)

    def at(self, dataset: str, transport: str) -> str:
        """Name a dataset to read by that transport."""
        return f"{self.address}/{dataset}?transport={transport}"

    def exchange(self, name: str, batches: int, batch: int, size: int) -> harness.Arm:
        """Make an arm: records/s of two processes that do nothing but send them."""

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
    """The daemon's program and its two files, each made at its first use."""

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


def over(ours: list[float], theirs: list[float]) -> list[float]:
    """Divide round by round."""
    return [one / other for one, other in zip(ours, theirs, strict=True)]
