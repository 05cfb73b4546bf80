"""The gain of a second disk, for the benchmark `daemon`: simulated disks, equally slow."""

import contextlib
import pathlib
from collections.abc import Iterator

import harness
import peers

READS_PER_S = 2_000
CLIENTS, BATCH = 4, 256


class SlowDisks:
    """A daemon with that many disks; each disk answers READS_PER_S reads/s."""

    def __init__(
        self, settings: harness.Settings, folder: pathlib.Path, file: pathlib.Path
    ) -> None:
        """Take an empty folder, and a file of small records."""
        self.settings = settings
        self.folder = folder
        self.file = file

    @contextlib.contextmanager
    def running(self, disk_count: int) -> Iterator[str]:
        """Run it; yield the address of a dataset that lies on all of its disks."""
        port = peers.unused_port()
        home = self.folder / f"disks-{disk_count}"
        is_fresh = not home.exists()
        disks = [home / str(i) for i in range(disk_count)]
        program = harness.program(self.settings, "slow-disks")
        words = [program, port, READS_PER_S, *disks]
        with peers.process(*words, log=self.folder / "slow_disks.log"):
            peers.wait_for(port)
            address = f"ffrecord://127.0.0.1:{port}/small"
            if is_fresh:
                arm = harness.program(self.settings, "daemon-arm")
                harness.run_json(arm, "publish", self.file, address)
            yield f"{address}?transport=tcp"

    def arm(self, disk_count: int) -> harness.Arm:
        """Make an arm: records/s of all clients together."""
        seconds = 4 if self.settings.quick else 6

        def run(number: int) -> float:
            with self.running(disk_count) as location:
                arm = harness.program(self.settings, "daemon-arm")
                done = harness.run_json(arm, "crowd", location, CLIENTS, seconds, BATCH, number)
            return float(done["records"] / done["seconds"])

        what = f"{CLIENTS} clients, {disk_count} disk(s) of {READS_PER_S:,} reads/s each"
        return harness.Arm(f"slow_disks_{disk_count}", what, run)
