"""Let faults loose on a daemon and its clients for as long as wanted; say what came of it.

    tests/chaos/campaign
    tests/chaos/campaign --seconds 600 --seed 7

It is killed, stopped, cut off and its disk filled, at random: tests/chaos/test_chaos.py. Link cuts
and full disks want the rights to make network namespaces and to mount. Exits 1 if a batch was
wrong, a call late, or something that was acknowledged is gone.
"""

import argparse
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "dev"))
import run_tests  # noqa: E402  (the build folder is described there, once)


def main() -> int:
    """Build, run, return the exit code."""
    parser = argparse.ArgumentParser(
        prog="tests/chaos/campaign",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--seed", type=int, help="of the order of the faults; random by default")
    arguments = parser.parse_args()
    os.environ["PATH"] = f"{run_tests.BIN}:{os.environ['PATH']}"
    if arguments.seed is not None:
        os.environ["FFRECORD_TEST_SEED"] = str(arguments.seed)
    counts = run_tests.chaos_suite("-s", f"--seconds={arguments.seconds}")
    return 1 if counts.failed else 0


if __name__ == "__main__":
    sys.exit(main())
