"""The gain of a prefetch hint, for the benchmark `daemon`: four ranks, a cold disk."""

import contextlib
import pathlib
import re
from collections.abc import Iterator

import crowd
import harness
import peers

RANKS, BATCH = 4, 64
# Steps have 256 records each, over all ranks: half of an epoch of what daemon.py makes.
STEPS = {"large": (8, 39), "small": (195, 195)}  # Quick, and else.


class PrefetchHints:
    """Ranks that read one epoch of a dataset of a daemon that is started anew for each.

    Pages that are mapped in a running daemon stay in memory: a fresh one has none.
    """

    def __init__(
        self, settings: harness.Settings, program: pathlib.Path, data: pathlib.Path
    ) -> None:
        """Take a folder in which datasets are published."""
        self.settings = settings
        self.program = program
        self.data = data
        self.read_share: dict[str, list[float]] = {}  # Share of the bytes that were asked for.
        self.wasted: list[float] = []  # Bytes that were read ahead for nothing.

    @contextlib.contextmanager
    def running(self) -> Iterator[tuple[int, int, int]]:
        """Its process, its port and its admin port."""
        port, admin = peers.unused_port(), peers.unused_port()
        words = [self.program, "--data", self.data, "--listen", f"127.0.0.1:{port}"]
        words += ["--admin", f"127.0.0.1:{admin}"]
        with peers.process(*words, log=self.settings.scratch / "prefetch_hints.log") as daemon:
            peers.wait_for(port)
            yield daemon.pid, port, admin

    def arm(self, dataset: str, hints: bool) -> harness.Arm:
        """Make an arm: records/s of all ranks together."""
        name = f"ranks_{dataset}_{'hinted' if hints else 'unhinted'}"
        steps = STEPS[dataset][0 if self.settings.quick else 1]

        def run(number: int) -> float:
            for path in (self.data / "extents").rglob("*"):
                if path.is_file():
                    harness.make_cold(path)
            with self.running() as (pid, port, admin):
                before = disk_bytes(pid)
                location = f"ffrecord://127.0.0.1:{port}/{dataset}?transport=tcp"
                arm = harness.program(self.settings, "daemon-arm")
                done = harness.run_json(
                    arm, "ranks", location, RANKS, steps, BATCH, number, int(hints)
                )
                share = (disk_bytes(pid) - before) / done["bytes"]
                self.read_share.setdefault(name, []).append(share)
                if hints:
                    outcome = "ffrecord_read_ahead_outcome_bytes_total"
                    self.wasted.append(crowd.metric(admin, outcome, outcome="lost|unused"))
            return float(done["records"] / done["seconds"])

        what = f"4 ranks, batches of 64, cold, {'with' if hints else 'without'} a prefetch hint"
        return harness.Arm(name, what, run)


def disk_bytes(pid: int) -> int:
    """Bytes that a process had the disk read so far."""
    text = pathlib.Path(f"/proc/{pid}/io").read_text()
    found = re.search(r"^read_bytes: (\d+)", text, re.MULTILINE)
    return int(found[1]) if found else 0
