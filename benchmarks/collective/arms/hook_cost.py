"""The cost of signals: medians of calls in the thread that makes them."""

import pathlib
import sys

import harness

PROGRAM = pathlib.Path(__file__).resolve().parents[1] / "rank" / "signalling.py"


def figures(rounds: int) -> dict[str, list[float]]:
    """In microseconds for each collective, and Python objects that are left by each."""
    found = [harness.run_json(sys.executable, PROGRAM) for _ in range(rounds)]
    return {key: [one[key] for one in found] for key in found[0]}
