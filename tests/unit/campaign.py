"""Draw fresh seeds for the random C++ tests, for half an hour or as long as wanted.

    tests/unit/campaign
    tests/unit/campaign --minutes 240 --seed 7

Those tests are found by their asking for a seed. They take turns, one seed for each; a test that
fails is left out of the rest, and printed with its seed: FFRECORD_TEST_SEED repeats it. Exits 1 if
any failed. `tools/test` draws the same seed every time, so this is where others are looked for.
"""

import argparse
import os
import pathlib
import random
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "dev"))
import builds  # noqa: E402  (the build folder is described there, once)

TIMEOUT_S = 300


def run(program: pathlib.Path, test: str, seed: int) -> tuple[bool, str]:
    """Run one test, or all for `*`; whether it passed, and what it printed."""
    try:
        done = subprocess.run(
            [program, f"--gtest_filter={test}"],
            env=os.environ | {"FFRECORD_TEST_SEED": str(seed)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False, f"not done after {TIMEOUT_S} s"
    return done.returncode == 0, done.stdout + done.stderr


def names(program: pathlib.Path) -> list[str]:
    """Every test of a program, by its full name."""
    listed = subprocess.run(
        [program, "--gtest_list_tests"], capture_output=True, text=True, check=True
    ).stdout
    found, suite = [], ""
    for line in listed.splitlines():
        name = line.partition("#")[0].rstrip()
        if name.startswith("  "):
            found.append(suite + name.strip())
        elif name.endswith("."):
            suite = name
    return found


def random_tests(build: builds.Build) -> list[tuple[pathlib.Path, str]]:
    """The tests that ask for a seed, of the programs that do."""
    found = []
    for program in build.programs("unit", "conformance"):
        if "FFRECORD_TEST_SEED=" in run(program, "*", seed=1)[1]:
            found += [
                (program, test)
                for test in names(program)
                if "FFRECORD_TEST_SEED=" in run(program, test, seed=1)[1]
            ]
    return found


def main() -> int:
    """Build, draw until the time is over, report; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="tests/unit/campaign",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32), help="of the seeds")
    arguments = parser.parse_args()
    os.environ["PATH"] = f"{builds.BIN}:{os.environ['PATH']}"
    if not builds.PLAIN.make(*builds.EVERYTHING):
        return 1
    tests = random_tests(builds.PLAIN)
    end = time.monotonic() + arguments.minutes * 60
    print(f"{len(tests)} random tests, --seed {arguments.seed}", flush=True)
    chance = random.Random(arguments.seed)
    failed: set[str] = set()
    runs = 0
    while time.monotonic() < end and tests:
        for program, test in tests:
            if test in failed or time.monotonic() >= end:
                continue
            seed = chance.randrange(2**32)
            passed, said = run(program, test, seed)
            runs += 1
            if not passed:
                failed.add(test)
                print(f"FFRECORD_TEST_SEED={seed} {program} --gtest_filter={test}\n{said}")
    print(f"{runs} runs of {len(tests)} tests, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
