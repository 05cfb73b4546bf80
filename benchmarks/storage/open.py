"""Opening a file of 10^8 records against one of 10^4: time, private memory, reads.

Both are real files of 4-byte records; the large one takes 6 GB, is kept between runs, and is 10^7
records where the disk has no room or with --quick. Warm: the files' ends are in the page cache.
Reads are those of the file, counted by strace: preads and requests given to io_uring.
"""

import contextlib
import pathlib
import re
import subprocess

import harness

SMALL = 10**4
RECORD_BYTES = 4 + 32 + 24.1  # The record, its header, its place in the index.
OPENS = 20


def prepare(settings: harness.Settings, count: int) -> pathlib.Path:
    """Make the file of `count` records, or take the one of the last run."""
    path = settings.scratch / f"open-{count}.ffr"
    if not path.exists():
        harness.run_json(harness.program(settings, "open-arm"), "make", path, count)
    return path


def large_count(settings: harness.Settings) -> int:
    """How many records the large file has."""
    wanted = 10**7 if settings.quick else 10**8
    if (settings.scratch / f"open-{wanted}.ffr").exists():
        return wanted
    if harness.free_bytes(settings.scratch) < wanted * RECORD_BYTES * 1.2:
        return 10**7
    return wanted


def reads(settings: harness.Settings, path: pathlib.Path) -> int:
    """Count the reads of the file while it is opened once."""
    trace = settings.scratch / "open.strace"
    program = harness.program(settings, "open-arm")
    done = subprocess.run(
        [
            *(harness.foreign("strace", "strace"), "-f", "-y", "-o", trace),
            *("-e", "trace=read,readv,pread64,preadv,preadv2,io_uring_enter"),
            *(program, "open", path, "0"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise harness.Unable(f"strace of open-arm failed: {done.stderr.strip()}")
    calls = trace.read_text()
    trace.unlink()
    plain = len(re.findall(rf"\b(?:p?readv?2?|pread64)\(\d+<{re.escape(str(path))}>", calls))
    submitted = sum(int(n) for n in re.findall(r"io_uring_enter\([^,]+, (\d+),", calls))
    if plain + submitted == 0:
        raise harness.Unable("strace saw no read at all: is the ring polled by the kernel?")
    return plain + submitted


def bench(settings: harness.Settings) -> harness.Outcome:
    """Compare the two files."""
    counts = {SMALL: "1e4"}
    large = large_count(settings)
    counts[large] = f"1e{len(str(large)) - 1}"
    paths = {name: prepare(settings, count) for count, name in counts.items()}
    program = harness.program(settings, "open-arm")
    figures: dict[str, list[float]] = {}

    def arm(name: str, path: pathlib.Path) -> harness.Arm:
        def run(_: int) -> float:
            done = harness.run_json(program, "open", path, OPENS)
            for key, value in (
                (f"open_{name}_ms", done["seconds"] * 1e3),
                (f"open_{name}_first_ms", done["first_seconds"] * 1e3),
                (f"open_{name}_private_bytes", done["bytes"]),
            ):
                figures.setdefault(key, []).append(value)
            return float(1 / done["seconds"])

        return harness.Arm(f"open_{name}", f"RecordReader::Open, {name} records, warm", run)

    arms = [arm(name, path) for name, path in paths.items()]
    values = harness.interleave(arms, settings.rounds)
    for name, path in paths.items():
        with contextlib.suppress(harness.Missing):
            figures[f"open_{name}_reads"] = [float(reads(settings, path))] * settings.rounds
    large_name = counts[large]
    return harness.Outcome(
        unit="opens/s",
        arms=arms,
        values=values,
        ratios={f"open_{large_name}_vs_1e4": (f"open_{large_name}", "open_1e4")},
        figures=figures,
        notes=[
            *(f"{path.name}: {path.stat().st_size / 1e9:.2f} GB" for path in paths.values()),
            f"median of {OPENS} opens in each of {settings.rounds} processes; `first` is the first "
            "open of a process, and private memory what that adds",
        ],
    )
