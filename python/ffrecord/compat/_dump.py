"""Writing a whole dataset, under the name that code for HFAiLab/ffrecord knows."""

import concurrent.futures
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ffrecord.compat._fileio import FileWriter

_PROCESSES_MAX = 16
_REPORT_EVERY = 1000

# The dataset of a writing process; set once in each, so that it is not pickled for each part.
_dataset: Sequence[Any] = ()


def dump(
    dataset: Sequence[Any], fname: str | os.PathLike[str], nfiles: int, verbose: bool = False
) -> None:
    """Write all items of `dataset`, as bytes or arrays, to version 1 files.

    Args:
        dataset: anything with `[]` and `len()`.
        fname: the file, or, with more than one, the folder of PART_00000.ffr and so on.
        nfiles: number of files; fewer are written, with a warning, if that leaves none empty.
        verbose: report progress on standard error.

    Raises:
        ValueError: `nfiles` is below 1.
        Exception: any error of the dataset, in any process; that part is not published.
        BrokenProcessPool: a writing process was killed.
    """
    if nfiles < 1:
        raise ValueError(f"nfiles is {nfiles}; at least one file is needed")
    count = len(dataset)
    if nfiles == 1:
        _write(dataset, 0, count, fname, verbose)
        return
    folder = Path(fname)
    folder.mkdir(parents=True, exist_ok=True)
    size = max(1, -(-count // nfiles))
    starts = range(0, count, size)
    if len(starts) != nfiles:
        warnings.warn(f"Split into {len(starts)} files rather than {nfiles} files", stacklevel=2)
    with concurrent.futures.ProcessPoolExecutor(
        max(1, min(_PROCESSES_MAX, len(starts))), initializer=_take, initargs=(dataset,)
    ) as pool:
        parts = [
            pool.submit(_write_part, start, min(size, count - start), path, verbose)
            for start in starts
            for path in [folder / f"PART_{start // size:05d}.ffr"]
        ]
        for part in parts:
            part.result()


def _take(dataset: Sequence[Any]) -> None:
    global _dataset
    _dataset = dataset


def _write_part(first: int, count: int, path: Path, verbose: bool) -> None:
    _write(_dataset, first, count, path, verbose)


def _write(
    dataset: Sequence[Any],
    first: int,
    count: int,
    path: str | os.PathLike[str],
    verbose: bool,
) -> None:
    with FileWriter(path, count) as writer:
        for number in range(count):
            writer.write_one(dataset[first + number])
            if verbose and (number + 1) % _REPORT_EVERY == 0:
                print(f"{os.fspath(path)}: {number + 1}/{count}", file=sys.stderr, flush=True)
