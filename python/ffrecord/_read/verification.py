"""Checking whole files: every byte, not only the records that a caller reads."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace

from ffrecord import _ffrecord
from ffrecord._read.locations import (
    Where,
    expand,
    is_address,
    is_file_system,
    is_in_place,
    normalise,
)
from ffrecord._read.reader import Reader
from ffrecord.errors import ConflictError, CorruptionError

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class FileReport:
    """Findings in one file; sizes in bytes."""

    name: str
    record_count: int
    bad_record_count: int
    size_bytes: int
    problem_count: int
    problems: tuple[str, ...]
    """In file order; the first hundred."""


def verify(
    where: Where, *, timeout_s: float = 30.0, progress: Progress | None = None
) -> list[FileReport]:
    """Check every byte of local files, or every record at a daemon or store, or read in place.

    A record file that passes is bit for bit the file that was written. Damage is reported, not
    raised.

    Args:
        where: as for `ffrecord.open`.
        timeout_s: time limit of each call to a daemon or store.
        progress: called with bytes done and bytes in all.

    Raises:
        OSError: a file is missing or cannot be read.
        ValueError: a file is no record file, by its first bytes and its end.
        UnavailableError: the daemon does not answer.
    """
    names = normalise(where)
    if any(is_address(name) or is_file_system(name) for name in names):
        return [_verify_served(Reader(names, timeout_s=timeout_s), progress)]
    files = expand(names)
    sizes = [os.stat(file).st_size for file in files]
    reports = []
    for number, file in enumerate(files):
        before = sum(sizes[:number])
        verify_one = _verify_in_place if is_in_place(os.fsdecode(file)) else _verify_file
        reports.append(verify_one(file, sizes[number], _part_of(progress, before, sum(sizes))))
    return reports


def _part_of(progress: Progress | None, before: int, total: int) -> Progress | None:
    if progress is None:
        return None
    return lambda done, _: progress(before + done, total)


def _verify_file(file: bytes, size: int, progress: Progress | None) -> FileReport:
    name = os.fsdecode(file)
    try:
        found = _ffrecord.verify_file(file, progress=progress)
    except CorruptionError as error:  # It cannot even be opened.
        return FileReport(name, 0, 0, size, 1, (str(error),))
    return FileReport(
        name=name,
        record_count=found["record_count"],
        bad_record_count=found["bad_record_count"],
        size_bytes=found["size_bytes"],
        problem_count=found["problem_count"],
        problems=tuple(found["problems"]),
    )


def _verify_in_place(file: bytes, size: int, progress: Progress | None) -> FileReport:
    """Check every record of a file of another kind, by its index."""
    name = os.fsdecode(file)
    try:
        reader = Reader(name)
        source = reader.files[0].name
        found = _verify_served(reader, progress)
    except (ConflictError, CorruptionError) as error:
        return FileReport(name, 0, 0, size, 1, (str(error),))
    return replace(found, name=source, size_bytes=os.stat(source).st_size)


def _verify_served(reader: Reader, progress: Progress | None) -> FileReport:
    with reader:
        total = sum(file.size_bytes for file in reader.files)
        done = 0
        for batch in reader.batches(on_corrupt="keep"):
            done += len(batch.slab)
            if progress is not None:
                progress(done, total)
        problems = tuple(reader.stats()["damaged"].values())
        count = len(reader)
    shown = problems[:100]
    return FileReport(reader.where[0], count, len(problems), total, len(problems), shown)
