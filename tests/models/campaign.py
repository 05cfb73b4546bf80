"""Run the models with fresh seeds, for an hour or as long as wanted; print what they find.

    tests/models/campaign
    tests/models/campaign files loader --minutes 240 --seed 7

The models take turns, two minutes each. A model that finds a difference is left out of the rest;
the difference is printed as a program of a few lines. Exits 1 if there was any.
"""

import argparse
import itertools
import os
import pathlib
import subprocess
import sys
import time

import driver

ROOT = pathlib.Path(__file__).resolve().parents[2]
TURN_S = 120.0


def turn(name: str, seconds: float, seed: int) -> str:
    """Let a model look for a time, in a process of its own; return what it found.

    A model that crashes the interpreter has found something as well.
    """
    done = subprocess.run(
        [sys.executable, __file__, "--turn", name, str(seconds), str(seed)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode in (0, 1):
        return done.stdout.strip()
    return f"model {name}, seed {seed}: exit code {done.returncode}\n{done.stdout}"


def take_turn(name: str, seconds: float, seed: int) -> int:
    """Do what `turn` asks for; return the exit code."""
    finding = driver.explore(name, seconds, seed)
    print(finding or "")
    return 1 if finding else 0


def main() -> int:
    """Run the campaign; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="tests/models/campaign",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(driver.names()))
    parser.add_argument("--minutes", type=float, default=60.0, help="for all models together")
    parser.add_argument("--seed", type=int, help="of the first turn; random by default")
    parser.add_argument("--turn", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.turn:
        name, seconds, seed = arguments.turn
        return take_turn(name, float(seconds), int(seed))
    unknown = set(arguments.models) - set(driver.names())
    if unknown:
        parser.error(f"no such model: {', '.join(sorted(unknown))}; see --help")
    # The package and the programs that setup has installed.
    os.environ["FFRECORD_TEST_INSTALLED"] = "1"
    os.environ["PATH"] = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"

    waiting = list(arguments.models or driver.names())
    first = driver.fresh_seed() if arguments.seed is None else arguments.seed
    end = time.monotonic() + 60 * arguments.minutes
    found = 0
    for number in itertools.count():
        left = end - time.monotonic()
        if left <= 0 or not waiting:
            break
        name = waiting.pop(0)
        # Runs of Hypothesis count their seeds from that of their turn.
        finding = turn(name, min(TURN_S, left), first + 1000 * number)
        print(finding or f"model {name}, seed {first + 1000 * number}: nothing found", flush=True)
        found += bool(finding)
        if not finding:
            waiting.append(name)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
