"""Kill savers of checkpoints, or packings, at random times; nothing may be torn, lost or changed.

    tests/crash/campaign                    10,000 kills of savers, about 20 minutes
    tests/crash/campaign --of packing       1,000 kills of packings, about 15 minutes
    tests/crash/campaign --kills 500 --seed 7

checkpoints: one, two or three ranks save step after step, at once, asynchronously or incrementally.
After each kill every step that the saver had promised must be there and load, and no other but the
one that it was about to promise.

packing: one or two runs, with one to three workers, pack sources of each kind, through functions,
shuffled, compressed, or in place of another result. All processes are killed, or one of them. After
each kill the destination is not there, or whole; at the end it has the bytes of an undisturbed run.

Works on a folder of its own in --folder. Exits 1 at the first finding, whose folder it leaves and
names.
"""

import argparse
import concurrent.futures
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "python"), str(ROOT / "tools" / "dev")]
import builds  # noqa: E402  (the build folder is described there, once)
from random_kills import kill_savers  # noqa: E402

import conftest  # noqa: E402, F401  (the built package is put in front)
from packing_kills import SCENES, kill_packings  # noqa: E402

# What a campaign counts, by its name in the report: "kills", "promised steps".
Found = Mapping[str, int]


def _savers(run: Path, kills: int, seed: int) -> Found:
    midst, promised = kill_savers(run, kills, random.Random(seed))
    return {"kills": kills, "in the midst of a save": midst, "promised steps": promised}


def _packings(run: Path, kills: int, seed: int) -> Found:
    draws = random.Random(seed)
    name = sorted(SCENES)[seed % len(SCENES)]
    try:
        found = kill_packings(SCENES[name], run, kills, draws)
    except AssertionError as error:
        raise AssertionError(f"{name}: {error}") from None
    return {"kills": found.kills, "results": found.results}


class Campaign(NamedTuple):
    """Which processes are killed."""

    turn: Callable[[Path, int, int], Found]
    """Kills in a folder of its own."""
    kills: int
    """How many there are, unless the command says it."""
    each: int
    """Those of one turn."""
    target: str
    """To build before."""


CAMPAIGNS = {
    "checkpoints": Campaign(_savers, 10_000, 250, "tests/crash/checkpoint-saver"),
    "packing": Campaign(_packings, 1_000, 20, "all"),
}


def _turn(of: str, folder: str, seed: int, kills: int) -> Found:
    run = Path(tempfile.mkdtemp(dir=folder)) / "run"
    try:
        found = CAMPAIGNS[of].turn(run, kills, seed)
    except AssertionError as error:
        raise AssertionError(f"{error}; seed {seed}, see {run}") from None
    shutil.rmtree(run.parent)
    return found


def main() -> int:
    """Share the kills out to all processors; report; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="tests/crash/campaign",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--of", choices=CAMPAIGNS, default="checkpoints")
    parser.add_argument("--kills", type=int)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    arguments = parser.parse_args()
    campaign = CAMPAIGNS[arguments.of]
    kills = arguments.kills or campaign.kills
    if not builds.PLAIN.make(campaign.target):
        return 1
    print(f"seed {arguments.seed}", flush=True)
    done: Counter[str] = Counter()
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count()) as pool:
        turns = [
            pool.submit(
                _turn,
                arguments.of,
                str(arguments.folder),
                arguments.seed + number,
                min(campaign.each, kills - begin),
            )
            for number, begin in enumerate(range(0, kills, campaign.each))
        ]
        for turn in concurrent.futures.as_completed(turns):
            try:
                done.update(turn.result())
            except AssertionError as error:
                print(f"FAILED: {error}")
                pool.shutdown(cancel_futures=True)
                return 1
            print(", ".join(f"{count} {what}" for what, count in done.items()), flush=True)
    print("nothing torn, lost or changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
