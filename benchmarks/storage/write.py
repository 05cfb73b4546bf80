"""A stream of 110 KB records, synced, against fio's sequential write of as many bytes.

Both write with O_DIRECT, as many bytes in flight, and sync once at the end, which is timed:
RecordWriter's Close, fio's fsync. fio_buffered is fio through the page cache. Records are
log-normal in size and random in content. Peak memory is that of two files of tiny records, one with
many times as many.
"""

import harness

MEAN_BYTES = 110_000
SIGMA = 0.5
TINY_BYTES = 16
FIO_BLOCK = 2 << 20  # In each write, as RecordWriter has.
FIO_DEPTH = 4  # Writes in flight, as RecordWriter has.


class Arms:
    """How each arm runs one round."""

    def __init__(self, settings: harness.Settings, count: int) -> None:
        """Write `count` records in each arm."""
        self.settings = settings
        self.count = count
        self.path = settings.scratch / "write.tmp"
        self.program = harness.program(settings, "write-arm")
        self.cpu: dict[str, list[float]] = {}  # Seconds for each GB.
        self.bytes = 0

    def ours(self) -> harness.Arm:
        """Write records."""

        def run(_: int) -> float:
            done = harness.run_json(self.program, self.path, self.count, MEAN_BYTES, SIGMA)
            self.bytes = int(done["bytes"])
            cost = done["cpu_seconds"] / done["bytes"] * 1e9
            self.cpu.setdefault("write_cpu_s_per_gb", []).append(cost)
            return float(done["bytes"] / done["seconds"] / 1e6)

        return harness.Arm("ours", "RecordWriter, O_DIRECT, checksums and fingerprint, fsync", run)

    def fio(self, name: str, direct: bool) -> harness.Arm:
        """Write as many bytes with fio."""

        def run(_: int) -> float:
            size = (self.bytes or self.count * MEAN_BYTES) // FIO_BLOCK * FIO_BLOCK
            options = {
                "name": "write",
                "filename": self.path,
                "rw": "write",
                "ioengine": "io_uring",
                "direct": int(direct),
                "bs": FIO_BLOCK,
                "iodepth": FIO_DEPTH,
                "size": size,
                "fallocate": "none",
                "end_fsync": 1,
                "refill_buffers": 1,
                "output-format": "json",
            }
            done = harness.run_json(
                harness.foreign("fio", "fio"),
                *(f"--{key}={value}" for key, value in options.items()),
            )
            self.path.unlink(missing_ok=True)
            job = done["jobs"][0]
            seconds = job["job_runtime"] / 1000
            cpu = (job["usr_cpu"] + job["sys_cpu"]) / 100 * seconds
            self.cpu.setdefault(f"{name}_cpu_s_per_gb", []).append(cpu / size * 1e9)
            return float(size / seconds / 1e6)

        how = "O_DIRECT" if direct else "page cache"
        return harness.Arm(name, f"fio, io_uring, {how}, as many in flight, fsync", run)

    def peak(self, count: int) -> float:
        """Peak memory of a program that writes `count` tiny records."""
        done = harness.run_json(self.program, self.path, count, TINY_BYTES, 0)
        return float(done["peak_bytes"])


def bench(settings: harness.Settings) -> harness.Outcome:
    """Compare writing."""
    count = 5_000 if settings.quick else 20_000
    tiny = (10**5, 10**6) if settings.quick else (10**5, 10**7)
    need = max(count * MEAN_BYTES, tiny[1] * 100) * 1.2
    if harness.free_bytes(settings.scratch) < need:
        raise harness.Unable(f"{settings.scratch}: {need / 2**30:.1f} GiB do not fit")
    arms = Arms(settings, count)
    parts = [arms.ours(), arms.fio("fio", True), arms.fio("fio_buffered", False)]
    values = harness.interleave(parts, settings.rounds)
    figures = dict(arms.cpu)
    for records in tiny:
        name = f"write_1e{len(str(records)) - 1}_peak_bytes"
        figures[name] = [arms.peak(records)] * settings.rounds
    return harness.Outcome(
        unit="MB/s",
        arms=parts,
        values=values,
        ratios={"write_vs_fio": ("ours", "fio"), "write_vs_fio_buffered": ("ours", "fio_buffered")},
        figures=figures,
        notes=[
            f"{count:,} records, mean {MEAN_BYTES:,} bytes, {arms.bytes / 1e9:.2f} GB; "
            f"{settings.rounds} rounds; peak memory with records of {TINY_BYTES} bytes, 16 MiB of "
            "it the source of the records"
        ],
    )
