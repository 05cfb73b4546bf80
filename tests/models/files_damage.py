"""Damage to a record file, and what it may cost: what it touched, by name, and nothing else.

The places of records come from the format's own page: a header `e5 REC`, with the index, directly
before the bytes of the record.
"""

import os
import shutil
import tempfile
import warnings
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import ffrecord
from files_paths import Kept, check_row, demand
from table_values import Differs

PAGE, SECTOR = 4096, 512
PARTS = (
    *("header of a record", "bytes of a record", "first page", "last page", "page before the last"),
    *("any page", "the last two pages", "header of the file"),
)
HOWS = (
    *("flip a bit", "zero it", "zero a sector", "swap it with another", "copy another over it"),
    "write the front of another file over it",
)
_MAGIC = b"\xe5REC"
_HEADER = 32
_FILE_HEADER = 128


@dataclass(frozen=True)
class Place:
    """Where a record is: its header, its bytes, and where these end."""

    header: int
    begin: int
    end: int


def places(data: bytes, count: int) -> list[Place]:
    """Where the records of a file are, in their order."""
    found: list[Place] = []
    at = _FILE_HEADER
    while len(found) < count:
        at = data.find(_MAGIC, at)
        if at < 0:
            break
        index = int.from_bytes(data[at + 16 : at + 22], "little")
        size = int.from_bytes(data[at + 22 : at + 27], "little")
        if index == len(found) and at + _HEADER + size <= len(data):
            found.append(Place(at, at + _HEADER, at + _HEADER + size))
            at += _HEADER + size
        else:
            at += 1
    assert len(found) == count, f"{len(found)} of {count} record headers are in the file"
    return found


def damaged(data: bytes, count: int, part: str, how: str, at: int) -> bytes:
    """The bytes with that part damaged; `at` chooses the record, the page, or the bit."""
    spots = places(data, count)
    pages = max(1, -(-len(data) // PAGE))
    page = at % pages
    if part == "header of a record" and spots:
        begin = spots[at % count].header
        span = begin, begin + _HEADER
    elif part == "bytes of a record" and spots:
        place = spots[at % count]
        span = place.begin, max(place.end, place.begin + 1)
    else:
        page = {"first page": 0, "last page": pages - 1}.get(part, page)
        page = max(0, pages - 2) if part == "page before the last" else page
        span = page * PAGE, min(len(data), (page + 1) * PAGE)
        if part == "header of the file":
            span = 0, min(len(data), _FILE_HEADER)
        if part == "the last two pages":
            span = max(0, (pages - 2) * PAGE), len(data)
    return _changed(data, span, how, at)


def _changed(data: bytes, span: tuple[int, int], how: str, at: int) -> bytes:
    begin, end = span
    made = bytearray(data)
    if how == "flip a bit":
        place = begin + (at * 37) % max(1, end - begin)
        made[place] ^= 1 << at % 8
    elif how == "zero it":
        made[begin:end] = bytes(end - begin)
    elif how == "zero a sector":
        first = begin - begin % SECTOR
        last = min(len(data), first + SECTOR)
        made[first:last] = bytes(last - first)
    elif how == "write the front of another file over it":
        made[begin:end] = _front_of_another(end - begin)
    else:
        _moved(made, data, begin - begin % PAGE, how, at)
    return bytes(made)


@lru_cache(maxsize=1)
def _another() -> bytes:
    """A file that is none of those that are damaged."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "another.ffr"
        with ffrecord.Writer(path, {"other": "i64"}) as writer:
            for number in range(200):
                writer.write({"other": number})
        return path.read_bytes()


def _front_of_another(size: int) -> bytes:
    return (_another() * (size // len(_another()) + 1))[:size]


def _moved(made: bytearray, data: bytes, page: int, how: str, at: int) -> None:
    """Whole pages, as a misplaced write leaves them."""
    pages = len(data) // PAGE
    if not pages or page + PAGE > len(data):
        return
    other = at * 5 % pages * PAGE
    made[page : page + PAGE] = data[other : other + PAGE]
    if how == "swap it with another":
        made[other : other + PAGE] = data[page : page + PAGE]


def untouched(before: bytes, after: bytes, spots: list[Place]) -> set[int]:
    """The records of which neither header nor bytes have changed."""
    return {
        number
        for number, place in enumerate(spots)
        if before[place.header : place.end] == after[place.header : place.end]
    }


def _outside(before: bytes, after: bytes, spots: list[Place]) -> bool:
    """Whether anything but records has changed."""
    kept = bytearray(after)
    for place in spots:
        kept[place.header : place.end] = before[place.header : place.end]
    return bytes(kept) != before


def check_damaged(file: Kept, path: Path, before: bytes, work: Path) -> None:
    """All that is promised of the damaged file at `path`, which was `before`."""
    after = path.read_bytes()
    if before == after:
        return
    spots = places(before, len(file.rows))
    whole = untouched(before, after, spots)
    has_all = not _outside(before, after, spots)
    readable = check_reading(file, path, whole, has_all)
    kept = check_repair(file, path, readable | whole, work, _front_is_lost(before, after, spots))
    problems = sum(report.problem_count for report in ffrecord.verify(path))
    demand(problems > 0, "verify finds no problem in a file of which bytes have changed")
    check_append(file, path, kept, work)


def _front_is_lost(before: bytes, after: bytes, spots: list[Place]) -> bool:
    """Whether the first page is damaged, and also what is no record behind it, such as its copy."""
    kept = before[:PAGE] + after[PAGE:]
    return before[:PAGE] != after[:PAGE] and _outside(before, kept, spots)


def check_reading(file: Kept, path: Path, whole: set[int], has_all: bool) -> set[int]:
    """Readers give the truth or an error, for each record; return those that are readable."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            reader = ffrecord.open(path, max_corrupt=1.0)
            count = len(reader)
            batch = reader.read(range(count), on_corrupt="keep")
        except (ffrecord.CorruptionError, OSError, ValueError) as error:
            demand(not has_all, f"only records were damaged, and the file cannot be read: {error}")
            return set()
    demand(count <= len(file.rows), f"{count} records, where {len(file.rows)} were written")
    if count < len(file.rows):
        demand(bool(said), f"{count} of {len(file.rows)} records, and nothing is said")
        demand(not has_all, f"only records were damaged, and {count} of {len(file.rows)} are there")
    readable = set()
    for row, status in enumerate(batch.status.tolist()):
        if status:
            is_right = row not in whole or not has_all
            demand(is_right, f"record {row} is whole, and cannot be read: {status}")
            continue
        check_row(file.columns, _sample(batch, row), file.rows[row], f"damaged file, record {row}")
        readable.add(row)
    return readable


def _sample(batch: Any, row: int) -> Any:  # noqa: ANN401
    try:
        return batch.select([row])[0]
    except (ffrecord.CorruptionError, ValueError) as error:
        raise Differs(f"record {row} is good by its status, and is not: {error}") from None


def check_repair(
    file: Kept, path: Path, wanted: set[int], work: Path, front_is_lost: bool
) -> int | None:
    """Repair keeps what can be read and what is whole; return how many, None if it fails."""
    made = work / "repaired.ffr"
    try:
        report = ffrecord.repair(path, made, replace=True)
    except ffrecord.CorruptionError as error:
        demand(front_is_lost, f"repair: {error}; {len(wanted)} records are whole or readable")
        return None
    with ffrecord.open(made) as reader:
        rows = list(reader) if len(reader) else []
        names = reader.read([]).columns
    demand(len(rows) == report.kept_count, f"repair kept {len(rows)}, says {report.kept_count}")
    if front_is_lost and names != file.columns.names:  # The schema is gone.
        return len(rows)
    kept = _kept(report, len(file.rows))
    for number, row in zip(kept, rows, strict=True):
        check_row(file.columns, row, file.rows[number], f"repaired record {number}")
    missing = wanted - set(kept)
    demand(not missing, f"repair drops the records {sorted(missing)[:9]}; it kept {len(rows)}")
    if len(rows) < len(file.rows):
        demand(not report.lost_nothing, f"repair kept {len(rows)}, and says that nothing is lost")
    return len(rows)


def _kept(report: ffrecord.RepairReport, count: int) -> list[int]:
    """Which records a repair says it kept. Values do not tell: several records may be equal."""
    lost = {number for begin, end in report.lost for number in range(begin, end)}
    demand(len(lost) == report.lost_count, f"{report.lost_count} are lost: {report.lost}")
    # If the end is damaged, more may be lost behind the last that it knows of.
    kept = [number for number in range(count) if number not in lost]
    demand(len(kept) >= report.kept_count, f"repair kept {report.kept_count}, lost {report.lost}")
    return kept[: report.kept_count]


def check_append(file: Kept, path: Path, kept: int | None, work: Path) -> None:
    """An append to a damaged file is refused, or costs no record that repair would have kept."""
    again = work / "appended.ffr"
    shutil.copyfile(path, again)
    size = os.path.getsize(again)
    try:
        add_row(file, again)
    except (ffrecord.CorruptionError, OSError, ValueError) as error:
        del error
        demand(again.read_bytes()[:size] == path.read_bytes(), "a refused append changes the file")
        return
    try:
        report = ffrecord.repair(again, work / "repaired.ffr", replace=True)
    except ffrecord.CorruptionError as error:
        raise Differs(f"an append was taken, and now repair fails: {error}") from None
    before = kept or 0
    demand(
        report.kept_count >= before + 1,
        f"an append was taken: {before} records before it, {report.kept_count - 1} of them after",
    )


def add_row(file: Kept, path: Path) -> None:
    """Append one record, as its user would."""
    columns = file.columns
    rows = columns.rows(1, 99)
    if columns.is_table:
        ffrecord.write_table(columns.table(rows), path, append=True, key=file.key_column)
        return
    with ffrecord.Writer(path, append=True, key=file.key_column) as writer:
        writer.write(rows[0])
