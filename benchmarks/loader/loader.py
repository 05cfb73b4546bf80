"""The PyTorch loader against other loaders, warm and cold: `--table` chooses, `--docs` records.

Every arm is a process that loads whole epochs in batches with two workers; each loads the same
records, which a digest over all of them proves, else the run is void. Peers are installed from the
package index into an environment of their own, and run at their defaults and as their documentation
advises for speed. Who cannot shuffle globally is compared apart. Payload is random. Ours verifies
every record's checksum. Who cannot be run is told with the reason.
"""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence

import harness

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "arms"))

import environment
import processes
import results
from workloads import WORKLOADS, payloads

# The arms of each table; of those, who shuffles globally, and who goes through files in turn.
OURS = ["ours_threads", "ours_workers"]
ROW_WISE = ["array_record", "array_record_default", "grain", "grain_default"]
ROW_WISE += ["streaming", "datasets_default", "lance_default"]
COLUMNS = ["datasets", "lance"]
SEQUENTIAL = ["streaming_default", "litdata", "webdataset", "webdataset_default", "tfrecord"]
FOLDER = ["folder", "folder_default"]
SHUFFLED = {
    "images": [*FOLDER, *ROW_WISE, *COLUMNS],
    "tokens": [*ROW_WISE, *COLUMNS],
    "tabular": [*ROW_WISE, *COLUMNS],
}
COLD = [*OURS, "folder", "array_record", "grain", "lance", "datasets", "streaming", "webdataset"]
COLD += ["litdata", "tfrecord"]
COST = ["ours_threads", "ours_workers", "folder", "array_record", "grain", "lance", "datasets"]
COST += ["streaming"]
WHAT = {
    "ours_threads": "ffrecord, mode='threads', checksums on",
    "ours_workers": "ffrecord, worker processes, checksums on",
    "folder": "torch over a folder of files; one tensor handed over for a batch, prefetch 4",
    "folder_default": "torch over a folder of files",
    "memmap": "no peer: torch over rows that NumPy maps, no checks",
    "array_record": "array-record, group_size 1, no read-ahead, one read for each batch",
    "array_record_default": "array-record at its defaults",
    "grain": "grain's MapDataset over array-record, threads",
    "grain_default": "grain's DataLoader over array-record, processes",
    "lance": "Lance, one take for each batch, its column in memory",
    "lance_default": "Lance's SafeLanceDataset",
    "datasets": "Hugging Face datasets, a batch as an Arrow table",
    "datasets_default": "Hugging Face datasets at their defaults",
    "streaming": "mosaicml-streaming, shuffle_algo='naive', which is global",
    "streaming_default": "mosaicml-streaming, shuffle=True: shards, then a window",
    "webdataset": "webdataset, shards of 500 shuffled",
    "webdataset_default": "webdataset, shards of 500 shuffled, then a window of 1000",
    "litdata": "litdata, shuffle=True: chunks, then within a chunk",
    "tfrecord": "tfrecord with an index, in order",
    "fio": "fio, io_uring, O_DIRECT, depth 64, the same sizes at random",
}
FORM = {
    **dict.fromkeys(OURS, "ffr"),
    **dict.fromkeys(FOLDER, "files"),
    **dict.fromkeys(["array_record", "grain", "grain_default"], "array_record_1"),
    **dict.fromkeys(["lance", "lance_default"], "lance"),
    **dict.fromkeys(["datasets", "datasets_default"], "arrow"),
    **dict.fromkeys(["streaming", "streaming_default"], "mds"),
    **dict.fromkeys(["webdataset", "webdataset_default"], "tar"),
    "memmap": "flat",
    "array_record_default": "array_record",
    "litdata": "litdata",
    "tfrecord": "tfrecord",
}
NOT_RUN = {"ffcv": "its source is all that the index has, and needs OpenCV to be compiled"}
TABLES = ["images", "images_cold", "tokens", "tabular", "cost", "start"]
WORKERS = 2
BATCHES_MIN = 8
DRAIN_BATCHES, COLD_BATCHES = 9, 25  # More than any arm reads ahead of two batches; then those.
BLOCK, DEPTH = 4096, 64
START_COUNT = 10**8
METHODS = ["fork", "spawn", "forkserver"]


def add_options(parser: argparse.ArgumentParser) -> None:
    """What only this benchmark takes."""
    parser.add_argument("--table", action="append", choices=TABLES, help="which; all by default")
    parser.add_argument("--arms", help="only those, by comma, and ours")
    parser.add_argument("--records", type=int, default=0, help="how many, instead of the usual")
    parser.add_argument("--seconds", type=float, default=0, help="of each arm in each round")
    parser.add_argument(
        "--docs", action="store_true", help="write the table and plot into docs/performance.md"
    )


class Field:
    """The records in every form, and who loads them."""

    def __init__(self, settings: harness.Settings) -> None:
        """Install the peers."""
        self.settings = settings
        self.options = settings.options
        self.python = environment.install(settings.scratch)
        self.variables = environment.variables(settings.scratch)
        self.failed: dict[str, str] = dict(NOT_RUN)
        self.notes: list[str] = []

    @property
    def seconds(self) -> float:
        """Of a window."""
        return float(self.options.seconds or (0.3 if self.settings.quick else 1.5))

    def wanted(self, names: Sequence[str]) -> list[str]:
        """Those that the command line leaves."""
        if not self.options.arms:
            return list(names)
        chosen = self.options.arms.split(",")
        if unknown := sorted(set(chosen) - set(WHAT)):
            raise harness.Unable(f"--arms {unknown[0]}: there are {', '.join(WHAT)}")
        return [name for name in names if name in chosen or name in OURS]

    def count(self, workload: str) -> int:
        """Records of a workload."""
        usual = WORKLOADS[workload]
        plain = usual.quick_count if self.settings.quick else usual.count
        return int(self.options.records or plain)

    def folder(self, workload: str) -> pathlib.Path:
        """Where its forms are."""
        return self.settings.scratch / "loader" / f"{workload}-{self.count(workload)}"

    def files(self, workload: str, name: str) -> list[pathlib.Path]:
        """What an arm reads."""
        found = self.folder(workload) / FORM[name]
        return [path for path in found.rglob("*") if path.is_file() and path.stat().st_size]

    def prepare(self, workload: str, names: Sequence[str]) -> list[str]:
        """Write what is missing; return who can be run."""
        able = []
        for name in names:
            target = self.folder(workload) / FORM[name]
            stamp = target.with_suffix(".done")
            if not stamp.exists():
                shutil.rmtree(target, ignore_errors=True)
                target.mkdir(parents=True)
                print(f"writing {workload} as {FORM[name]}", file=sys.stderr)
                words = [FORM[name], workload, self.count(workload), target]
                if reason := processes.convert(self.python, self.variables, words):
                    self.failed[name] = reason
                    continue
                stamp.touch()
            able.append(name)
        return able

    def start(self, workload: str, name: str, workers: int) -> processes.Process:
        """An arm that answers."""
        return processes.Process(
            self.python, self.variables, name, workload, self.folder(workload), workers
        )

    @contextlib.contextmanager
    def running(
        self, workload: str, names: Sequence[str], workers: Sequence[int]
    ) -> Iterator[dict[tuple[str, int], processes.Process]]:
        """All arms at once, of which all load the same."""
        with contextlib.ExitStack() as stack:
            running, digests = {}, {}
            for name in names:
                for number in workers:
                    try:
                        arm = stack.enter_context(self.start(workload, name, number))
                        found = arm.ask("digest")
                        digests[f"{name}, {number} workers"] = found["records"], found["digest"]
                        arm.ask("go", 0, WORKLOADS[workload].batch)
                        running[name, number] = arm
                    except processes.Failed as error:
                        self.failed[name] = str(error)
            expected = digests.get(f"{OURS[0]}, {workers[0]} workers")
            for who, digest in digests.items():
                if digest != expected or digest[0] != self.count(workload):
                    raise harness.Unable(f"void: {who} loads other {workload}: {digests}")
            self.notes.append(f"{workload}: digests of {len(digests)} arms agree")
            yield running

    def make_warm(self, workload: str, names: Sequence[str]) -> None:
        """Put all that the arms read into the page cache, and see that it stays."""
        files = sorted({path for name in names for path in self.files(workload, name)})
        for path in files:
            path.read_bytes()
        if (share := cached_share(files)) < harness.WARM_SHARE_MIN:
            raise harness.Unable(f"{workload}: {share:.1%} stays in the page cache; see --records")

    def make_cold(self, workload: str, name: str) -> None:
        """Put what an arm reads out of it."""
        files = self.files(workload, name)
        for path in files:
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if (share := cached_share(files)) > harness.COLD_SHARE_MAX:
            raise harness.Unable(f"{workload} as {FORM[name]}: {share:.1%} stays in the page cache")


def cached_share(files: Sequence[pathlib.Path]) -> float:
    """Which share of the bytes of files is in the page cache, 0 to 1."""
    fincore = harness.foreign("fincore", "util-linux-extra")
    words = [fincore, "--bytes", "--noheadings", "--output", "RES", *map(str, files)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    cached = sum(map(int, done.stdout.split()))
    return cached / sum(-(-path.stat().st_size // BLOCK) * BLOCK for path in files)


def compare(outcome: harness.Outcome, key: str, ours: Sequence[str], others: Sequence[str]) -> None:
    """Add a ratio: ours over the one of the others with the highest median."""
    values = outcome.values
    others = [name for name in others if name in values]
    ours = [name for name in ours if name in values]
    if not others or not ours:
        outcome.notes.append(f"{key}: no arm to compare with was run")
        return
    mine = max(ours, key=lambda name: statistics.median(values[name]))
    best = max(others, key=lambda name: statistics.median(values[name]))
    outcome.ratios[key] = mine, best
    outcome.notes.append(f"{key}: {mine} over {best}")


def finish(field: Field, outcome: harness.Outcome) -> harness.Outcome:
    """Add what all tables tell."""
    outcome.notes += field.notes
    outcome.notes += [f"not run: {name}: {reason}" for name, reason in field.failed.items()]
    return outcome


def warm(settings: harness.Settings, workload: str) -> harness.Outcome:
    """Compare loaders of what is in memory."""
    field = Field(settings)
    names = [*OURS, *SHUFFLED[workload]]
    names += SEQUENTIAL if workload == "images" else ["memmap"]
    names = field.prepare(workload, field.wanted(names))
    field.make_warm(workload, names)
    batch = WORKLOADS[workload].batch
    figures: dict[str, list[float]] = {}
    with field.running(workload, names, [WORKERS]) as running:

        def arm(name: str) -> harness.Arm:
            def run(_: int) -> float:
                found = running[name, WORKERS].ask("go", field.seconds, BATCHES_MIN * batch)
                for key, value in (
                    (f"{workload}_{name}_cpu_us", found["cpu_seconds"] / found["records"] * 1e6),
                    (f"{workload}_{name}_p99_ms", found["p99_ms"]),
                ):
                    figures.setdefault(key, []).append(value)
                return float(found["records"] / found["seconds"])

            return harness.Arm(f"{workload}_{name}", WHAT[name], run)

        arms = [arm(name) for name, _ in running]
        values = harness.interleave(arms, settings.rounds)
    outcome = harness.Outcome("samples/s", arms, values, {}, figures)

    def named(names: Sequence[str]) -> list[str]:
        return [f"{workload}_{name}" for name in names]

    if workload == "images":
        compare(outcome, "images_vs_best_shuffled", named(OURS), named(SHUFFLED[workload]))
        compare(outcome, "images_vs_best_sequential", named(OURS), named(SEQUENTIAL))
    else:
        compare(
            outcome,
            f"{workload}_vs_best",
            named(OURS),
            named(ROW_WISE if workload == "tabular" else SHUFFLED[workload]),
        )
        compare(outcome, f"{workload}_vs_memmap", named(OURS), named(["memmap"]))
    if workload == "tabular":
        compare(outcome, "tabular_vs_best_columns", named(OURS), named(COLUMNS))
    outcome.notes.append(
        f"{field.count(workload):,} {workload}, batch {batch}, {WORKERS} workers, "
        f"{settings.rounds} rounds of {field.seconds} s"
    )
    return finish(field, outcome)


def fio_trace(field: Field, count: int) -> str:
    """Reads of that many random records of ours, in whole blocks, as fio replays them."""
    import mmap
    import random

    path = field.folder("images") / "ffr" / "data.ffr"
    places, at = [], 0
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        for record in payloads("images", field.count("images")):
            at = mapped.find(record[:24], at)
            places.append((at, len(record)))
            at += len(record)
        mapped.close()
    lines = []
    for first, size in random.sample(places, count):
        begin, end = first // BLOCK * BLOCK, -(-(first + size) // BLOCK) * BLOCK
        lines.append(f"{path} read {begin} {end - begin}\n")
    return f"fio version 2 iolog\n{path} add\n{path} open\n{''.join(lines)}{path} close\n"


def fio(field: Field, count: int) -> harness.Arm:
    """The limit of cold reads."""
    trace = field.settings.scratch / "loader.trace"

    def run(_: int) -> float:
        trace.write_text(fio_trace(field, count))
        field.make_cold("images", "ours_threads")
        options = ["--name=read", "--ioengine=io_uring", "--direct=1", f"--iodepth={DEPTH}"]
        options += [f"--read_iolog={trace}", "--replay_no_stall=1", "--output-format=json"]
        done = harness.run_json(harness.foreign("fio", "fio"), *options)
        read = done["jobs"][0]["read"]
        return float(read["total_ios"] / (read["runtime"] / 1000))

    return harness.Arm("images_cold_fio", WHAT["fio"], run)


def images_cold(settings: harness.Settings) -> harness.Outcome:
    """Compare loaders of what is not in memory."""
    field = Field(settings)
    names = field.prepare("images", field.wanted(COLD))
    batch = WORKLOADS["images"].batch
    share = field.count("images") / batch / (DRAIN_BATCHES + COLD_BATCHES + 2)
    drain, batches = (int(number * min(1, share)) for number in (DRAIN_BATCHES, COLD_BATCHES))
    figures: dict[str, list[float]] = {}

    def arm(name: str) -> harness.Arm:
        def run(_: int) -> float:
            with field.start("images", name, WORKERS) as process:
                process.ask("take", 2)
                field.make_cold("images", name)
                process.ask("take", drain)
                found = process.ask("cold", batches * batch)
            key = f"images_cold_{name}_cpu_s_per_gb"
            figures.setdefault(key, []).append(found["cpu_seconds"] / found["bytes"] * 1e9)
            return float(found["records"] / found["seconds"])

        return harness.Arm(f"images_cold_{name}", WHAT[name], run)

    arms = [fio(field, batches * batch)]
    for name in names:
        try:
            arm(name).run(0)
            arms.append(arm(name))
        except (processes.Failed, harness.Unable) as error:
            if name in OURS:
                raise
            field.failed[name] = str(error)
    figures.clear()
    values = harness.interleave(arms, settings.rounds)
    outcome = harness.Outcome("samples/s", arms, values, {}, figures)
    ours = [f"images_cold_{name}" for name in OURS]
    compare(outcome, "images_cold_vs_fio", ours, ["images_cold_fio"])
    peers = [f"images_cold_{name}" for name in COLD if name not in OURS]
    compare(outcome, "images_cold_vs_best", ours, peers)
    outcome.notes.append(
        f"{field.count('images'):,} images, batch {batch}, {WORKERS} workers, {settings.rounds} "
        f"rounds of {batches} batches after {drain} that empty what was read ahead"
    )
    return finish(field, outcome)


def cost(settings: harness.Settings) -> harness.Outcome:
    """Compare what loaders take of processor and memory."""
    field = Field(settings)
    names = field.prepare("images", field.wanted(COST))
    field.make_warm("images", names)
    figures: dict[str, list[float]] = {}
    workers = [0, 2, 4]
    with field.running("images", names, workers) as running:

        def arm(name: str, number: int) -> harness.Arm:
            def run(_: int) -> float:
                batch = WORKLOADS["images"].batch
                found = running[name, number].ask("go", field.seconds, BATCHES_MIN * batch)
                for key, value in (
                    ("cpu_s_per_gb", found["cpu_seconds"] / found["bytes"] * 1e9),
                    ("rss_mb", found["pss"] / 1e6),
                    ("own_mb", found["own"] / 1e6),
                ):
                    figures.setdefault(f"{name}_{number}_{key}", []).append(value)
                return float(found["records"] / found["seconds"])

            what = f"{WHAT[name]}; {number} workers"
            return harness.Arm(f"cost_{name}_{number}", what, run)

        arms = [arm(name, number) for name, number in running]
        values = harness.interleave(arms, settings.rounds)
    outcome = harness.Outcome("samples/s", arms, values, {}, figures)
    for key, unit in (("cpu", "cpu_s_per_gb"), ("rss", "rss_mb"), ("own", "own_mb")):
        for number in workers:
            compare_cost(outcome, f"{key}_vs_best_cost_{number}", number, unit)
        shares = [outcome.figures.get(f"{key}_vs_best_cost_{number}") for number in workers]
        if all(shares):
            rounds = zip(*shares, strict=True)  # type: ignore[arg-type]
            outcome.figures[f"{key}_vs_best_cost"] = [max(found) for found in rounds]
    outcome.notes += [
        "costs of ours over the lowest of a peer, lower is better; without a number, the worst of "
        f"{workers} workers. rss is Pss, pages of mapped files in it; own is what is no file's",
    ]
    return finish(field, outcome)


def compare_cost(outcome: harness.Outcome, key: str, number: int, unit: str) -> None:
    """Add a figure: the cost of our threads over the lowest of a peer."""
    figures = outcome.figures
    costs = {name: figures.get(f"{name}_{number}_{unit}") for name in COST if name not in OURS}
    found = {name: values for name, values in costs.items() if values}
    ours = figures.get(f"ours_threads_{number}_{unit}")
    if not found or not ours:
        return
    best = min(found, key=lambda name: statistics.median(found[name]))
    figures[key] = [mine / other for mine, other in zip(ours, found[best], strict=True)]
    outcome.notes.append(f"{key}: ours_threads over {best}")


def start(settings: harness.Settings) -> harness.Outcome:
    """How soon the first batch is there, of many records."""
    field = Field(settings)
    count = START_COUNT // 10 if settings.quick else START_COUNT
    path = settings.scratch / f"open-{count}.ffr"
    if not path.exists():
        if harness.free_bytes(settings.scratch) < 75 * count:
            raise harness.Unable(f"{settings.scratch}: {75 * count / 1e9:.0f} GB do not fit")
        harness.run_json(harness.program(settings, "open-arm"), "make", path, count)
    script = pathlib.Path(__file__).resolve().parent / "arms" / "start.py"
    taken: dict[str, list[float]] = {}

    def arm(what: str, method: str) -> harness.Arm:
        def run(_: int) -> float:
            words = [field.python, script, what, method, path, count]
            done = subprocess.run(
                [str(word) for word in words],
                env=field.variables,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise harness.Unable(f"start {what} {method}: {done.stderr[-300:]}")
            for key, value in json.loads(done.stdout).items():
                taken.setdefault(f"{what}_{method}_{key}", []).append(value)
            return 1e3 / taken[f"{what}_{method}_first_batch_ms"][-1]

        about = "ffrecord" if what == "ours" else "torch's loader over nothing"
        return harness.Arm(f"start_{what}_{method}", f"{about}, {method}, 2 workers", run)

    arms = [arm(what, method) for method in METHODS for what in ("ours", "empty")]
    values = harness.interleave(arms, settings.rounds)
    figures = {}
    for method in METHODS:
        ours, empty = (taken[f"{what}_{method}_first_batch_ms"] for what in ("ours", "empty"))
        figures[f"first_batch_{method}_ms"] = [a - b for a, b in zip(ours, empty, strict=True)]
    figures["first_batch_ms"] = [max(row) for row in zip(*figures.values(), strict=True)]
    figures["pickle_bytes"] = taken["ours_fork_pickle_bytes"]
    figures["resume_ms"] = taken["ours_fork_resume_ms"]
    outcome = harness.Outcome("starts/s", arms, values, {}, figures)
    outcome.notes.append(
        f"{count:,} records; first_batch is from the start of Python to a batch, over that with "
        "torch's loader over nothing; resume from a state to a batch at half of the epoch"
    )
    return finish(field, outcome)


PARTS: dict[str, Callable[[harness.Settings], harness.Outcome]] = {
    "images": lambda settings: warm(settings, "images"),
    "images_cold": images_cold,
    "tokens": lambda settings: warm(settings, "tokens"),
    "tabular": lambda settings: warm(settings, "tabular"),
    "cost": cost,
    "start": start,
}


def bench(settings: harness.Settings) -> harness.Outcome:
    """Run the tables that are wanted, one after the other."""
    whole = harness.Outcome(unit="samples/s", arms=[], values={}, ratios={})
    for name in settings.options.table or TABLES:
        outcome = PARTS[name](settings)
        results.publish(name, harness.report(f"loader {name}", settings, outcome), settings)
        whole.arms.extend(outcome.arms)
        whole.values.update(outcome.values)
        whole.ratios.update(outcome.ratios)
        whole.figures.update(outcome.figures)
        whole.notes.extend(note for note in outcome.notes if note not in whole.notes)
    return whole
