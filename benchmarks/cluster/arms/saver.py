"""Saves one checkpoint of so many bytes: saver.py ADDRESS STEP BYTES; prints seconds as JSON.

A first, small step is not timed: it imports and connects.
"""

import json
import sys
import time

import numpy as np

import ffrecord.checkpoint as ckpt


def main() -> None:
    """Save."""
    address, step, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    state = {"w": np.random.default_rng(step).integers(0, 255, size, dtype=np.uint8)}
    ckpt.save(address, 2 * step, {"w": state["w"][:1000]})
    start = time.monotonic()
    ckpt.save(address, 2 * step + 1, state)
    print(json.dumps({"seconds": time.monotonic() - start}))


if __name__ == "__main__":
    main()
