"""Start of a program: what `import ffrecord` takes beyond NumPy's import, and the size of a wheel.

Each round starts a process of each kind. `import_ms` is the import of ffrecord in a process that
has imported NumPy; `first_read_ms` is that with opening a file and reading its first record, which
shows what the import has put off. Both are processor time of the process, so that a busy machine
does not count, and wall time stands beside. `--wheel FILE` adds `wheel_bytes`.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

import harness

PROGRAM = """
import json, sys, time
import numpy
wall, processor = time.perf_counter(), time.process_time()
import ffrecord
if sys.argv[2:]:
    with ffrecord.open(sys.argv[1]) as reader:
        assert bytes(reader[0]) == b"x"
processor, wall = time.process_time() - processor, time.perf_counter() - wall
print(json.dumps({"processor": processor, "wall": wall}))
"""
# A process each; the median of a round is that of several, for each is short.
STARTS = 7


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--wheel", type=pathlib.Path, help="A wheel, for wheel_bytes.")


def bench(settings: harness.Settings) -> harness.Outcome:
    import ffrecord  # This module is imported to list it, too.

    path = settings.scratch / "startup.ffr"
    path.unlink(missing_ok=True)
    with ffrecord.Writer(path) as writer:
        writer.write(b"x")
    figures: dict[str, list[float]] = {}

    def arm(name: str, what: str, *arguments: str) -> harness.Arm:
        def run(_: int) -> float:
            found = [start(path, *arguments) for _ in range(STARTS)]
            for key, kind in ((f"{name}_ms", "processor"), (f"{name}_wall_ms", "wall")):
                value = statistics.median(each[kind] for each in found) * 1e3
                figures.setdefault(key, []).append(value)
            return 1e3 / figures[f"{name}_ms"][-1]

        return harness.Arm(name, what, run)

    arms = [
        arm("import", "import ffrecord, after NumPy"),
        arm("first_read", "that, and the first record of a file", "read"),
    ]
    values = harness.interleave(arms, settings.rounds)
    if wheel := getattr(settings.options, "wheel", None):
        figures["wheel_bytes"] = [float(wheel.stat().st_size)]
    return harness.Outcome(
        unit="starts/s",
        arms=arms,
        values=values,
        ratios={},
        figures=figures,
        notes=[f"median of {STARTS} processes in each of {settings.rounds} rounds"],
    )


def start(path: pathlib.Path, *arguments: str) -> dict[str, float]:
    """Start a program that imports; return its seconds."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, path, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise harness.Unable(f"the program failed: {done.stderr.strip()}")
    return dict(json.loads(done.stdout))
