"""Run the simulated cluster from many seeds, in as many processes as there are cores.

    tests/cluster/campaign
    tests/cluster/campaign --seeds 1000000 --first 1

Prints each seed that violates something, with the violation, and exits 1 if there was any.
FFRECORD_SIM_SEED=N FFRECORD_SIM_COUNT=1 FFRECORD_SIM_TRACE=1 repeats one and prints its events.
"""

import argparse
import concurrent.futures
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "dev"))
import run_tests  # noqa: E402  (the build folder is described there, once)

PROGRAM = "tests/cluster/cluster-simulation"
SEEDS_AT_A_TIME = 200
TIMEOUT_S = 1200


def violations(first: int, count: int) -> list[str]:
    """Run those seeds; what they violate, a line for each."""
    found = []
    end = first + count
    while first < end:
        done = subprocess.run(
            [ROOT / run_tests.PLAIN.folder / PROGRAM],
            env=os.environ
            | {"FFRECORD_SIM_SEED": str(first), "FFRECORD_SIM_COUNT": str(end - first)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        if done.returncode == 0:
            return found
        lines = [line for line in done.stdout.splitlines() if "FFRECORD_SIM_SEED=" in line]
        if not lines:  # It died: nobody knows of which seed.
            return [*found, f"one of the seeds {first} to {end - 1}: exit {done.returncode}"]
        found.append(lines[0])
        first = int(lines[0].split("FFRECORD_SIM_SEED=")[1].split(":")[0]) + 1
    return found


def main() -> int:
    """Run the campaign; return the exit code."""
    parser = argparse.ArgumentParser(prog="tests/cluster/campaign", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20_000, help="how many (20,000)")
    parser.add_argument("--first", type=int, default=1, help="the first one (1)")
    arguments = parser.parse_args()
    if not run_tests.PLAIN.make(PROGRAM):
        return 1
    start = time.monotonic()
    end = arguments.first + arguments.seeds
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        parts = [
            pool.submit(violations, first, min(SEEDS_AT_A_TIME, end - first))
            for first in range(arguments.first, end, SEEDS_AT_A_TIME)
        ]
        for part in concurrent.futures.as_completed(parts):
            for line in part.result():
                failed += 1
                print(line, flush=True)
    seconds = time.monotonic() - start
    rate = arguments.seeds / seconds
    print(f"{arguments.seeds} seeds in {seconds:.0f} s ({rate:.0f}/s), {failed} violations")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
