"""A list of 100,000 files under a limit of 1,024 descriptors: time to open it and to read from it.

The files are small and real: each has an inode of its own. Records are drawn at random from all of
them, 256 to a batch, so nearly every record lies in another file, and most have to be opened again:
a reader keeps no more of them open than it may. The other arm reads as many records out of one
file, which is the limit.
"""

import concurrent.futures
import pathlib
import resource
import shutil

import harness

FILES = 100_000
FILES_QUICK = 10_000
DESCRIPTORS = 1024
RECORD_BYTES = 1000
RECORDS_IN_FILE = 4
READS = 20_000
BATCH = 256
SEED = 11


def prepare(settings: harness.Settings, count: int) -> tuple[pathlib.Path, ...]:
    """Make the folder of files, and the folder with one file that holds as many records."""
    folder = settings.scratch / f"files-{count}"
    one = settings.scratch / f"files-{count}-in-one"
    if (one / "0.ffr").exists():
        return folder, one
    for made in (folder, one):
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir()
    arm = harness.program(settings, "read-arm")
    template = settings.scratch / "files-template.ffr"
    template.unlink(missing_ok=True)
    harness.run_json(arm, "make-equal", template, RECORDS_IN_FILE, RECORD_BYTES, 1, SEED)
    content = template.read_bytes()
    template.unlink()
    if harness.free_bytes(settings.scratch) < count * (len(content) + 4096) * 2:
        raise harness.Unable(f"{settings.scratch}: {count:,} files do not fit")

    def write(number: int) -> None:
        (folder / f"{number:06}.ffr").write_bytes(content)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(count), chunksize=1000))
    harness.run_json(
        arm, "make-equal", one / "0.ffr", RECORDS_IN_FILE * count, RECORD_BYTES, 1, SEED
    )
    return folder, one


def bench(settings: harness.Settings) -> harness.Outcome:
    """Open and read, many files against one."""
    count = FILES_QUICK if settings.quick else FILES
    folder, one = prepare(settings, count)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, hard))
    figures: dict[str, list[float]] = {}

    def arm(name: str, what: str, where: pathlib.Path) -> harness.Arm:
        def run(number: int) -> float:
            found = harness.run_json(
                harness.program(settings, "read-arm"), "files", where, READS, BATCH, SEED + number
            )
            figures.setdefault(f"{name}_open_s", []).append(found["open_seconds"])
            figures.setdefault(f"{name}_peak_bytes", []).append(found["peak_bytes"])
            return float(found["records"] / found["second_seconds"])

        return harness.Arm(name, what, run)

    parts = [
        arm("many", f"{count:,} files of {RECORDS_IN_FILE} records", folder),
        arm("one", "one file of as many records", one),
    ]
    try:
        values = harness.interleave(parts, settings.rounds)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return harness.Outcome(
        unit="records/s",
        arms=parts,
        values=values,
        ratios={"many_vs_one": ("many", "one")},
        figures=figures,
        notes=[f"{DESCRIPTORS:,} descriptors; {READS:,} records at random, batches of {BATCH}"],
    )
