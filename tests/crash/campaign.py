"""Kill 10,000 savers of checkpoints at random times; count what was torn or lost: nothing may be.

    tests/crash/campaign                    10,000 kills, about 20 minutes
    tests/crash/campaign --kills 500 --seed 7

One, two or three ranks save step after step, at once, asynchronously or incrementally. After each
kill every step that the saver had promised must be there and load, and no other but the one that it
was about to promise. Works on a folder of its own in --folder. Exits 1 at the first finding, whose
folder it leaves and names.
"""

import argparse
import concurrent.futures
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "python"), str(ROOT / "tools" / "dev")]
import builds  # noqa: E402  (the build folder is described there, once)
from random_kills import kill_savers  # noqa: E402

import conftest  # noqa: E402, F401  (the built package is put in front)

_TURN = 250  # Kills of one folder in a row.


def _turn(folder: str, seed: int, kills: int) -> tuple[int, int]:
    run = Path(tempfile.mkdtemp(dir=folder)) / "run"
    try:
        found = kill_savers(run, kills, random.Random(seed))
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
    parser.add_argument("--kills", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    arguments = parser.parse_args()
    if not builds.PLAIN.make("tests/crash/checkpoint-saver"):
        return 1
    print(f"seed {arguments.seed}", flush=True)
    begins = range(0, arguments.kills, _TURN)
    done = in_the_midst = promises = 0
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count()) as pool:
        turns = {
            pool.submit(
                _turn,
                str(arguments.folder),
                arguments.seed + begin,
                min(_TURN, arguments.kills - begin),
            ): begin
            for begin in begins
        }
        for turn in concurrent.futures.as_completed(turns):
            try:
                midst, promised = turn.result()
            except AssertionError as error:
                print(f"FAILED: {error}")
                pool.shutdown(cancel_futures=True)
                return 1
            done += min(_TURN, arguments.kills - turns[turn])
            in_the_midst += midst
            promises += promised
            print(f"{done} kills, {in_the_midst} in the midst of a save", flush=True)
    print(f"{done} kills, {promises} promised steps, none torn, none lost")
    return 0


if __name__ == "__main__":
    sys.exit(main())
