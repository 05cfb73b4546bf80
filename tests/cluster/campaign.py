"""Run a simulation from many seeds, in as many processes as there are cores.

    tests/cluster/campaign
    tests/cluster/campaign --seeds 1000000 --first 1 --minutes 60
    tests/cluster/campaign --plants --seeds 1000 --only promise
    tests/cluster/campaign --of collective --seeds 100000

Prints each seed that violates something, with the violation, and exits 1 if there was any. With
--plants it puts bugs into a copy of the tree, one after another, and exits 1 if one survives.
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
sys.path.insert(0, str(ROOT / "tests" / "cluster"))
import builds  # noqa: E402  (the build folder is described there, once)
import planting  # noqa: E402  (beside this file)

SEEDS_AT_A_TIME = 200
TIMEOUT_S = 1200


def violations(program: str, first: int, count: int) -> list[str]:
    """Run those seeds; what they violate, a line for each."""
    found = []
    end = first + count
    while first < end:
        done = subprocess.run(
            [ROOT / builds.PLAIN.folder / program],
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
    parser.add_argument("--of", choices=planting.SIMULATIONS, default="cluster")
    parser.add_argument("--seeds", type=int, help="how many (20,000; with --plants 3,000 each)")
    parser.add_argument("--first", type=int, default=1, help="the first one (1)")
    parser.add_argument("--minutes", type=float, help="begin no more seeds after so long")
    parser.add_argument("--plants", action="store_true", help="plant bugs, and see each caught")
    parser.add_argument("--only", default="", help="the planted bugs with this in their name")
    arguments = parser.parse_args()
    simulation = planting.SIMULATIONS[arguments.of]
    first = arguments.first
    if arguments.plants:
        survived = planting.run(simulation, arguments.seeds or 3_000, first, arguments.only)
        return 1 if survived else 0
    return run(simulation.program, first, arguments.seeds or 20_000, arguments.minutes)


def run(program: str, first: int, seeds: int, minutes: float | None) -> int:
    """Run the seeds, as far as the time allows; return the exit code."""
    if not builds.PLAIN.make(program):
        return 1
    start = time.monotonic()
    end = first + seeds
    failed = done = 0

    def part(at: int) -> tuple[int, list[str]]:
        if minutes is not None and time.monotonic() - start > minutes * 60:
            return 0, []
        count = min(SEEDS_AT_A_TIME, end - at)
        return count, violations(program, at, count)

    with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        for count, found in pool.map(part, range(first, end, SEEDS_AT_A_TIME)):
            done += count
            for line in found:
                failed += 1
                print(line, flush=True)
    seconds = time.monotonic() - start
    print(f"{done} seeds in {seconds:.0f} s ({done / seconds:.0f}/s), {failed} violations")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
