"""What one release does to a cluster, for `upgrade.py`: run by the Python of that release.

client.py publish ADDRESS FOLDER      the record files of FOLDER, in place of what is there
client.py check ADDRESS FOLDER        every record of ADDRESS is that of FOLDER
client.py save ADDRESS STEP           a checkpoint
client.py load ADDRESS STEP           it is what `save` wrote
client.py read ADDRESS FOLDER         random batches, compared, until the input ends; a dot for each
"""

import pathlib
import sys
import threading
from typing import Any

import numpy as np

import ffrecord
import ffrecord.checkpoint as ckpt

BATCH = 64


def files_of(folder: str) -> list[pathlib.Path]:
    """The record files, in their order."""
    return sorted(pathlib.Path(folder).glob("*.ffr"))


def compare(theirs: ffrecord.Reader, mine: ffrecord.Reader, order: np.ndarray) -> None:
    """Raise if these records differ."""
    np.testing.assert_array_equal(theirs.read(order).data, mine.read(order).data)


def state_of(step: int) -> dict[str, Any]:
    """What the checkpoint of a step holds."""
    return {"w": np.random.default_rng(step).random((300, 700)), "step": step}


def read_until_told(address: str, folder: str) -> None:
    """Compare random batches until standard input ends."""
    is_over = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        is_over.set()

    threading.Thread(target=wait, daemon=True).start()
    random = np.random.default_rng(3)
    with ffrecord.open(address) as served, ffrecord.open(files_of(folder)) as local:
        while not is_over.is_set():
            compare(served, local, random.integers(0, len(local), BATCH))
            sys.stdout.write(".")
            sys.stdout.flush()


def main() -> None:
    """Do what the arguments say; an exception says that it went wrong."""
    what, address, rest = sys.argv[1:4]
    if what == "publish":
        ffrecord.publish(files_of(rest), address, replace=True)
    elif what == "check":
        with ffrecord.open(address) as served, ffrecord.open(files_of(rest)) as local:
            compare(served, local, np.random.default_rng(1).permutation(len(local)))
    elif what == "save":
        ckpt.save(address, int(rest), state_of(int(rest)))
    elif what == "load":
        loaded: Any = ckpt.load(address, state_of(0), step=int(rest))
        np.testing.assert_array_equal(loaded["w"], state_of(int(rest))["w"])
    elif what == "read":
        read_until_told(address, rest)
    else:
        raise ValueError(f"{what} is no command")


if __name__ == "__main__":
    main()
