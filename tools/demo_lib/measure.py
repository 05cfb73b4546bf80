"""One pass of random batches: our file, ours through the daemon, and the pictures one by one.

All arms read every picture once, in the same random order, batches of 128. Cold means that nothing
of the data is in the page cache before the pass, warm that all of it is; both are checked. The
folder's names and inodes stay in the kernel's memory in both cases, which is kind to the folder.
"""

import os
import pathlib
import statistics
import subprocess
import time
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import report

import ffrecord

BATCH = 128
ROUNDS = 5
SEED = 11
COLD_SHARE_MAX, WARM_SHARE_MIN = 0.01, 0.99


def cached_share(files: list[pathlib.Path]) -> float:
    """Which share of the bytes of some files is in the page cache."""
    command = ["fincore", "--bytes", "--noheadings", "--raw", "--output", "RES,SIZE"]
    listing = subprocess.run(
        [*command, *map(str, files)], capture_output=True, text=True, check=True
    )
    numbers = np.array(listing.stdout.split(), np.int64).reshape(-1, 2)
    size = numbers[:, 1]
    return float(np.minimum(numbers[:, 0], size).sum() / size.sum())


def cool(files: list[pathlib.Path]) -> None:
    """Put files out of the page cache."""
    for path in files:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def warm(files: list[pathlib.Path]) -> None:
    """Put files into the page cache."""
    for path in files:
        path.read_bytes()


class Pass:
    """One pass over the data in random order, by one way of reading."""

    def __init__(self, order: npt.NDArray[np.int64]) -> None:
        """Cut the order into batches."""
        self.batches = np.array_split(order, range(BATCH, len(order), BATCH))

    def ours(self, where: pathlib.Path | str, image: str) -> int:
        """Open, read batches, one submission each, and close; return the bytes.

        A reader that stays open maps its file, and what is mapped cannot be made cold.
        """
        with ffrecord.open(where) as reader:
            return sum(
                sum(picture.nbytes for picture in reader.read(batch)[image])
                for batch in self.batches
            )

    def folder(self, names: list[pathlib.Path]) -> int:
        """Open, read and close one file after the other, as a folder dataset does."""
        return sum(
            sum(len(names[i].read_bytes()) for i in batch.tolist()) for batch in self.batches
        )


def digest(pictures: Callable[[int], bytes], count: int) -> int:
    """Checksum of all pictures in order."""
    value = 0
    for index in range(count):
        value = zlib.crc32(pictures(index), value)
    return value


def names_of(reader: ffrecord.Reader, folder: pathlib.Path) -> list[pathlib.Path]:
    """The file that each record was packed from."""
    return [folder / name for batch in reader.batches(1024) for name in batch["name"]]


def compare(packed: pathlib.Path, folder: pathlib.Path, remote: str) -> dict[str, Any]:
    """Time the passes, arms taking turns; return pictures a second, medians and rounds."""
    with ffrecord.open(packed) as local:
        image, _ = report.columns_of(local)
        names = names_of(local, folder)
        by_us = digest(lambda i: local.read([i])[image][0].tobytes(), len(local))
    by_folder = digest(lambda i: names[i].read_bytes(), len(names))
    order = np.random.default_rng(SEED).permutation(len(names)).astype(np.int64)
    one = Pass(order)
    arms: dict[str, tuple[list[pathlib.Path], bool, Callable[[], int]]] = {
        "ffrecord_warm": ([packed], True, lambda: one.ours(packed, image)),
        "folder_warm": (names, True, lambda: one.folder(names)),
        "daemon_warm": ([packed], True, lambda: one.ours(remote, image)),
        "ffrecord_cold": ([packed], False, lambda: one.ours(packed, image)),
        "folder_cold": (names, False, lambda: one.folder(names)),
    }
    rounds: dict[str, list[float]] = {name: [] for name in arms}
    sizes = set()
    for number in range(ROUNDS):
        shift = number % len(arms)
        for name in [*list(arms)[shift:], *list(arms)[:shift]]:
            files, is_warm, read = arms[name]
            (warm if is_warm else cool)(files)
            share = cached_share(files)
            if share < WARM_SHARE_MIN if is_warm else share > COLD_SHARE_MAX:
                raise OSError(f"{name}: {share:.1%} of the data is in the page cache")
            start = time.monotonic()
            sizes.add(read())
            rounds[name].append(len(order) / (time.monotonic() - start))

    medians = {name: statistics.median(values) for name, values in rounds.items()}
    return {
        "unit": "images/s",
        "batch": BATCH,
        "images_per_s": medians,
        "rounds": rounds,
        "warm_vs_folder": medians["ffrecord_warm"] / medians["folder_warm"],
        "cold_vs_folder": medians["ffrecord_cold"] / medians["folder_cold"],
        "same_bytes": len(sizes) == 1 and by_us == by_folder,
    }
