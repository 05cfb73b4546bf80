"""The PyTorch loader against other loaders, warm and cold: `--table` chooses.

Every arm is a process that loads whole epochs in batches with two workers; each loads the same
records, which a digest over all of them proves, else the run is void. Peers are installed from the
package index into an environment of their own, and run at their defaults and as their documentation
advises for speed. Peers that cannot shuffle globally are compared apart. Payload is random. Ours
verifies every record's checksum. The report names arms that cannot run, with the reason.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import harness

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "arms"))

import processes
import results
from field import Field
from lineup import COLD, COLUMNS, COST, DEFAULT, OURS, ROW_WISE, SEQUENTIAL, SHUFFLED, THREADS, WHAT
from workloads import WORKLOADS, payloads

Taken = defaultdict[str, list[float]]  # Figures of an arm, one for each round.

TABLES = ["images", "images_cold", "tokens", "tabular", "cost", "start"]
WORKERS = 2
DRAIN_BATCHES, COLD_BATCHES = 9, 25  # More than any arm reads ahead of two batches; then those.
BLOCK, DEPTH = 4096, 64
START_COUNT = 10**8
COLD_S, START_S = 60.0, 120.0
METHODS = ["fork", "spawn", "forkserver"]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--table", action="append", choices=TABLES, help="Run only this table; all by default."
    )
    parser.add_argument("--arms", help="Run only these arms, separated by commas, and ours.")
    parser.add_argument("--records", type=int, default=0, help="Number of records.")
    parser.add_argument(
        "--seconds", type=float, default=0, help="Seconds of each arm in each round."
    )


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


def compare_cpu(
    outcome: harness.Outcome, key: str, ours: Sequence[str], others: Sequence[str]
) -> None:
    """Compare the processor's time for a record: our fastest way's, and the least of the others."""
    cpu_us = {name: outcome.figures[f"{name}_cpu_us"] for name in outcome.values}
    ours, others = ([name for name in names if name in cpu_us] for names in (ours, others))
    if not others or not ours:
        outcome.notes.append(f"{key}: no arm to compare with was run")
        return
    mine = max(ours, key=lambda name: statistics.median(outcome.values[name]))
    best = min(others, key=lambda name: statistics.median(cpu_us[name]))
    outcome.figures[key] = [a / b for a, b in zip(cpu_us[mine], cpu_us[best], strict=True)]
    outcome.notes.append(f"{key}: {mine} over {best}, lower is better")


def measure(
    field: Field, unit: str, arms: Sequence[harness.Arm], taken: Mapping[str, Taken]
) -> harness.Outcome:
    """Let the arms take turns; arms that were lost on the way have only a note."""
    values = harness.interleave(arms, field.settings.rounds)
    left = [arm for arm in arms if arm.name in values]
    figures = {f"{arm.name}_{key}": found for arm in left for key, found in taken[arm.name].items()}
    return harness.Outcome(unit, left, values, {}, figures)


def finish(field: Field, outcome: harness.Outcome) -> harness.Outcome:
    """Add what all tables tell."""
    outcome.notes += field.notes
    if field.settings.quick and not field.options.arms:
        outcome.notes.append("--quick: without peers that have been the fastest of no table")
    outcome.notes += [f"not run: {name}: {reason}" for name, reason in field.failed.items()]
    return outcome


def warm(settings: harness.Settings, workload: str) -> harness.Outcome:
    """Compare loaders of what is in memory."""
    field = Field(settings)
    names = [*OURS, DEFAULT, *SHUFFLED[workload]]
    names += SEQUENTIAL if workload == "images" else ["memmap"]
    names = field.prepare(workload, field.wanted(names))
    field.make_warm(workload, names)
    taken: defaultdict[str, Taken] = defaultdict(lambda: defaultdict(list))
    with field.running(workload, names, WORKERS) as running:

        def arm(name: str) -> harness.Arm:
            def run(_: int) -> float:
                found = field.window(name, running[name], workload)
                each = taken[f"{workload}_{name}"]
                each["cpu_us"].append(found["cpu_seconds"] / found["records"] * 1e6)
                each["p99_ms"].append(found["p99_ms"])
                return float(found["records"] / found["seconds"])

            return harness.Arm(f"{workload}_{name}", WHAT[name], run)

        outcome = measure(field, "samples/s", [arm(name) for name in running], taken)

    def named(names: Sequence[str]) -> list[str]:
        return [f"{workload}_{name}" for name in names]

    peers = named([*ROW_WISE, *THREADS] if workload == "tabular" else SHUFFLED[workload])
    if workload == "images":
        compare(outcome, "images_vs_best_shuffled", named(OURS), peers)
        compare(outcome, "images_vs_best_sequential", named(OURS), named(SEQUENTIAL))
    else:
        compare(outcome, f"{workload}_vs_best", named(OURS), peers)
        compare(outcome, f"{workload}_vs_memmap", named(OURS), named(["memmap"]))
    if workload == "tabular":
        compare(outcome, "tabular_vs_best_columns", named(OURS), named(COLUMNS))
    compare(outcome, f"{workload}_default_vs_threads", named([DEFAULT]), named(OURS[:1]))
    compare_cpu(outcome, f"{workload}_cpu_vs_best_cost", named(OURS), peers)
    outcome.notes.append(
        f"{field.count(workload):,} {workload}, batch {WORKLOADS[workload].batch}, {WORKERS} "
        f"workers, {settings.rounds} rounds of {field.seconds} s"
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
    taken: defaultdict[str, Taken] = defaultdict(lambda: defaultdict(list))

    def arm(name: str) -> harness.Arm:
        def run(_: int) -> float:
            try:
                field.make_cold("images", name)
                with field.start("images", name, WORKERS) as process:
                    process.ask("take", 2, within_s=COLD_S)
                    field.make_cold("images", name, in_use=True)
                    process.ask("take", drain, within_s=COLD_S)
                    found = process.ask("cold", batches * batch, within_s=COLD_S)
            except (processes.Failed, harness.Unable) as error:
                field.lose(name, str(error))
                raise harness.Lost(str(error)) from error
            cost = found["cpu_seconds"] / found["bytes"] * 1e9
            taken[f"images_cold_{name}"]["cpu_s_per_gb"].append(cost)
            return float(found["records"] / found["seconds"])

        return harness.Arm(f"images_cold_{name}", WHAT[name], run)

    arms = [fio(field, batches * batch), *(arm(name) for name in names)]
    outcome = measure(field, "samples/s", arms, taken)
    ours = [f"images_cold_{name}" for name in OURS]
    compare(outcome, "images_cold_vs_fio", ours, ["images_cold_fio"])
    peers = [f"images_cold_{name}" for name in COLD if name not in OURS]
    compare(outcome, "images_cold_vs_best", ours, peers)
    outcome.notes.append(
        f"{field.count('images'):,} images, batch {batch}, {WORKERS} workers, {settings.rounds} "
        f"rounds of {batches} batches after {drain} that drain the read-ahead"
    )
    return finish(field, outcome)


def cost(settings: harness.Settings) -> harness.Outcome:
    """Compare what loaders take of processor and memory."""
    field = Field(settings)
    names = field.prepare("images", field.wanted(COST))
    field.make_warm("images", names)
    outcome = harness.Outcome("samples/s", [], {}, {})
    workers = [0, 2] if settings.quick else [0, 2, 4]
    for number in workers:  # In turn: all at once would not leave the files in memory.
        part = cost_of(field, names, number)
        outcome.arms += part.arms
        outcome.values |= part.values
        outcome.figures |= part.figures
    for key, unit in (("cpu", "cpu_s_per_gb"), ("rss", "rss_mb"), ("own", "own_mb")):
        for number in workers:
            compare_cost(outcome, f"{key}_vs_best_cost_{number}", number, unit)
        shares = [outcome.figures.get(f"{key}_vs_best_cost_{number}") for number in workers]
        if all(shares):
            rounds = zip(*shares, strict=True)  # type: ignore[arg-type]
            outcome.figures[f"{key}_vs_best_cost"] = [max(found) for found in rounds]
    outcome.notes += [
        "our cost over the lowest of a peer, lower is better; without a number, the worst of "
        f"{workers} workers. rss is Pss, including pages of mapped files; own is private memory "
        "without them",
    ]
    return finish(field, outcome)


def cost_of(field: Field, names: Sequence[str], workers: int) -> harness.Outcome:
    """The costs of loaders with so many workers."""
    taken: defaultdict[str, Taken] = defaultdict(lambda: defaultdict(list))
    with field.running("images", names, workers) as running:

        def arm(name: str) -> harness.Arm:
            key = f"cost_{name}_{workers}"

            def run(_: int) -> float:
                found = field.window(name, running[name], "images")
                taken[key]["cpu_s_per_gb"].append(found["cpu_seconds"] / found["bytes"] * 1e9)
                taken[key]["rss_mb"].append(found["pss"] / 1e6)
                taken[key]["own_mb"].append(found["own"] / 1e6)
                return float(found["records"] / found["seconds"])

            return harness.Arm(key, f"{WHAT[name]}; {workers} workers", run)

        return measure(field, "samples/s", [arm(name) for name in running], taken)


def compare_cost(outcome: harness.Outcome, key: str, number: int, unit: str) -> None:
    """Add a figure: the cost of our threads over the lowest of a peer."""
    figures = outcome.figures
    costs = {name: figures.get(f"cost_{name}_{number}_{unit}") for name in COST if name not in OURS}
    found = {name: values for name, values in costs.items() if values}
    ours = figures.get(f"cost_ours_threads_{number}_{unit}")
    if not found or not ours:
        return
    best = min(found, key=lambda name: statistics.median(found[name]))
    figures[key] = [mine / other for mine, other in zip(ours, found[best], strict=True)]
    outcome.notes.append(f"{key}: ours_threads over {best}")


def start(settings: harness.Settings) -> harness.Outcome:
    """How soon the first batch is there, of many records."""
    field = Field(settings)
    count, path = START_COUNT, settings.scratch / f"open-{START_COUNT}.ffr"
    if settings.quick and not path.exists():
        count = START_COUNT // 10
        path = settings.scratch / f"open-{count}.ffr"
    if not path.exists():
        if harness.free_bytes(settings.scratch) < 75 * count:
            raise harness.Unable(f"{settings.scratch}: {75 * count / 1e9:.0f} GB do not fit")
        harness.run_json(harness.program(settings, "open-arm"), "make", path, count)
    harness.make_warm(path)
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
                timeout=START_S,
                check=False,
            )
            if done.returncode:
                raise harness.Unable(f"start {what} {method}: {done.stderr[-300:]}")
            for key, value in json.loads(done.stdout).items():
                taken.setdefault(f"{what}_{method}_{key}", []).append(value)
            return 1e3 / taken[f"{what}_{method}_first_batch_ms"][-1]

        about = "ffrecord" if what == "ours" else "torch's loader over an empty dataset"
        return harness.Arm(f"start_{what}_{method}", f"{about}, {method}, 2 workers", run)

    arms = [arm(what, method) for method in METHODS for what in ("ours", "empty")]
    values = harness.interleave(arms, settings.rounds)
    figures = {}
    for method in METHODS:
        ours, empty = (taken[f"{what}_{method}_first_batch_ms"] for what in ("ours", "empty"))
        figures[f"first_batch_{method}_ms"] = [a - b for a, b in zip(ours, empty, strict=True)]
    # Figures of the slowest method: the slowest of each round would show the disturbance of that
    # round.
    figures["first_batch_ms"] = max(figures.values(), key=statistics.median)
    figures["pickle_bytes"] = taken["ours_fork_pickle_bytes"]
    # In a process that has read nothing itself, whatever its workers do.
    figures["resume_ms"] = [ms for method in METHODS for ms in taken[f"ours_{method}_resume_ms"]]
    outcome = harness.Outcome("starts/s", arms, values, {}, figures)
    outcome.notes.append(
        f"{count:,} records, warm; first_batch is the time to a batch in a Python that has "
        "imported torch, minus that with torch's loader over an empty dataset, of the slowest "
        "method; resume is the time from a state to a batch halfway through the epoch"
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
