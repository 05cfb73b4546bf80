"""The cost of reads here: of a local file or folder, and of a dataset of a daemon."""

import os
import pathlib
import shlex
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from ffrecord import _ffrecord
from ffrecord._base import clock
from ffrecord._cli.units import show_size
from ffrecord._read.reader import Reader
from ffrecord.errors import DeadlineExceeded

# Size of the file in an empty folder, if that may be written to; and how much of a file is read in
# each way.
_SIZE_BYTES = 128 << 20
_PIECE_BYTES = 4 << 20
# A device that has not answered so long after the end of its time does not answer.
_GRACE_S = 5.0
# Below this, random reads of 4 KiB are those of a disk that turns, or of a far file system.
_RANDOM_READS_ENOUGH = 2000
# Rates differ from run to run: one that is higher by this factor is said to be faster.
_CLEARLY = 1.25
# Reads through the page cache say something of the device if at most this share was there.
_CACHED_MOST = 0.1
_KEPT_ENOUGH = 0.9
# If the page cache held less of the file before, it was the measurement that filled it.
_RESIDENT_LITTLE = 0.5
# Share of a file's size. The rest are holes, which no device is asked for.
_STORED_ENOUGH = 0.5

Facts = dict[str, Any]
_Found = TypeVar("_Found")


def examine_place(where: str, seconds: float, *, may_write: bool) -> Facts:
    """Measure a file, or the largest file of a folder; return facts and verdicts.

    Args:
        where: the path of a file or folder.
        seconds: for all reads together.
        may_write: use a temporary file of a folder; it is removed.

    Raises:
        OSError: there is no such file, or it cannot be read.
        ValueError: the folder has no file, or `where` is a device.
        DeadlineExceeded: a read takes much longer than `seconds`.
    """
    if not where:
        raise ValueError("the ADDRESS is empty: name a file, a folder, a daemon or a store")
    path = pathlib.Path(where)
    if path.is_block_device():
        raise ValueError(_instead_of_device(path))
    if may_write:
        with _temporary_file(path, seconds / 4) as (descriptor, written):
            facts = _measure(pathlib.Path(f"/proc/self/fd/{descriptor}"), seconds * 3 / 4)
        return {"measured": where, **written, **facts, "verdicts": verdicts(facts)}
    file = _largest_file(path) if path.is_dir() else path
    record_rate = {}
    facts = _measure(file, seconds)
    if file.suffix == ".ffr" and (facts["rates"] or not facts["size_bytes"]):
        with Reader(file) as reader:
            if len(reader):
                record_rate["record_read_bytes_per_s"] = round(reader.probe(seconds / 8))
    return {"measured": os.fspath(file), **facts, **record_rate, "verdicts": verdicts(facts)}


def examine_dataset(address: str, seconds: float, timeout_s: float) -> Facts:
    """Read random records of a daemon's dataset; return the rate."""
    with Reader(address, timeout_s=timeout_s) as reader:
        count = len(reader)
        rate = round(reader.probe(seconds)) if count else None
    return {"dataset_records": count, "dataset_read_bytes_per_s": rate}


def _instead_of_device(path: pathlib.Path, mounts: str = "/proc/self/mountinfo") -> str:
    """The place to measure instead of a device: a folder on it."""
    number = path.stat().st_rdev
    wanted = f"{os.major(number)}:{os.minor(number)}"
    lines = [line.split() for line in pathlib.Path(mounts).read_text().splitlines()]
    places = [line[4].replace("\\040", " ") for line in lines if line[2:3] == [wanted]]
    # Containers have single files of a device, too.
    where = next((shlex.quote(place) for place in places if os.path.isdir(place)), "FOLDER")
    return (
        f"{path} is a device, which is measured through a file system on it: run ffrecord doctor"
        f" {where} --write"
    )


def _measure(file: pathlib.Path, seconds: float) -> Facts:
    found = in_time(
        lambda: _ffrecord.probe_file(
            os.fsencode(file), seconds=seconds, read_bytes_max=_SIZE_BYTES
        ),
        seconds + _GRACE_S,
        f"{file}: the device has not answered a read",
    )
    found["stored_bytes"] = file.stat().st_blocks * 512
    for rate in found["rates"]:
        rate["read_bytes_per_s"] = round(rate["read_bytes"] / rate["duration_s"])
        rate["reads_per_s"] = round(rate["reads"] / rate["duration_s"])
    return found


def in_time(work: Callable[[], _Found], limit_s: float, trouble: str) -> _Found:
    """Return the result of `work`, which runs in a thread of its own.

    A read of a network file system whose server is gone can be neither stopped nor waited for: the
    thread is then left behind.

    Raises:
        DeadlineExceeded: it is not done after `limit_s`.
    """
    results: list[_Found] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    clock.join(thread, limit_s)
    if errors:
        raise errors[0]
    if not results:
        raise DeadlineExceeded(f"{trouble} after {limit_s:.0f} s; see the kernel's log")
    return results[0]


def _largest_file(folder: pathlib.Path) -> pathlib.Path:
    files = [one for one in folder.iterdir() if one.is_file() and not one.is_symlink()]
    records = [one for one in files if one.suffix == ".ffr"]
    largest = max(records or files, key=lambda one: one.stat().st_size, default=None)
    if largest is None or largest.stat().st_size == 0:
        raise ValueError(
            f"{folder} has no file to read: name a file, or add --write to measure a temporary file"
            f" of {show_size(_SIZE_BYTES)}"
        )
    return largest


@contextmanager
def _temporary_file(folder: pathlib.Path, seconds: float) -> Iterator[tuple[int, Facts]]:
    """A file without a name, written for at most `seconds`, and none of it in the page cache."""
    if not folder.is_dir():
        raise ValueError(f"--write: {folder} is no folder")
    piece = np.random.default_rng(1).bytes(_PIECE_BYTES)
    try:
        file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - closed below
    except OSError as error:  # It names a file that nobody knows.
        why = f"write to {folder}: {error.strerror}; choose another folder"
        raise OSError(error.errno, why) from error
    with file:
        begin = clock.now()
        size_bytes = 0
        while size_bytes < _SIZE_BYTES and (not size_bytes or clock.now() - begin < seconds):
            size_bytes += file.write(piece)
        os.fsync(file.fileno())
        rate = round(size_bytes / (clock.now() - begin))
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        yield file.fileno(), {"written_bytes": size_bytes, "write_bytes_per_s": rate}


def verdicts(found: Facts) -> list[str]:
    """A sentence for each finding, with what to do."""
    if not found["size_bytes"]:
        return ["nothing was read: the file is empty, or the kernel does not tell its size"]
    if found["stored_bytes"] < _STORED_ENOUGH * found["size_bytes"]:
        return [
            f"of {show_size(found['size_bytes'])}, only {show_size(found['stored_bytes'])} are"
            " stored, because of holes or compression: measure another file"
        ]
    by_way = {(one["direct"], one["random"], one["block_bytes"]): one for one in found["rates"]}
    lines = [_of_device(found, by_way), _of_direct(found, by_way), _of_cache(found)]
    return [line for line in lines if line]


def _why_cached(found: Facts) -> str:
    """Why reads through the page cache did not reach the device."""
    resident = found["resident_share"]
    if resident is None or resident > _RESIDENT_LITTLE:
        return "the page cache holds the file"
    return "the page cache soon held the file, which is small: measure a larger one"


def _of_device(found: Facts, by_way: dict[tuple[bool, bool, int], Facts]) -> str:
    small = by_way.get((True, True, 4096)) or by_way[False, True, 4096]
    if not small["direct"] and not _is_of_device(small):
        return f"device: not measured, because {_why_cached(found)}"
    per_s = small["reads_per_s"]
    if per_s < _RANDOM_READS_ENOUGH:
        return (
            f"device: slow at random, {per_s} reads/s of 4 KiB: shuffle in blocks with block= and"
            " window= of the sampler, or copy the data to a local SSD"
        )
    return f"device: fast at random, {per_s} reads/s of 4 KiB: any order will do"


def _of_direct(found: Facts, by_way: dict[tuple[bool, bool, int], Facts]) -> str:
    if found["why_not_direct"]:
        return f"direct I/O: not possible: {found['why_not_direct']}; direct=True changes nothing"
    at = found["direct_offset_alignment_bytes"]
    supported = f"direct I/O: supported, aligned to {at} bytes"
    direct, buffered = by_way[True, True, 128 << 10], by_way[False, True, 128 << 10]
    if not _is_of_device(buffered) or not buffered["read_bytes_per_s"]:
        return f"{supported}; not compared, because {_why_cached(found)}"
    ratio = direct["read_bytes_per_s"] / buffered["read_bytes_per_s"]
    if ratio > _CLEARLY:
        return f"{supported}; {ratio:.1f} times as fast as buffered: use direct=True for one epoch"
    if ratio < 1 / _CLEARLY:
        return f"{supported}; {ratio:.1f} times as fast as buffered: leave out direct=True"
    return f"{supported}; about as fast as buffered"


def _of_cache(found: Facts) -> str:
    resident, kept = found["resident_share"], found["kept_share"]
    if resident is None:
        return (
            "page cache: the kernel does not tell what it holds of another user's file: run as the"
            " owner"
        )
    line = f"page cache: it held {resident:.0%} of the file"
    if kept is not None and kept < _KEPT_ENOUGH:
        return (
            f"{line}; {1 - kept:.0%} of what was read is gone again after half a second: the next"
            " epoch reads the device again; raise the memory limit, or use direct=True"
        )
    if kept is None:
        return line
    return f"{line}; what is read stays there, so later epochs come from memory as far as it fits"


def _is_of_device(rate: Facts) -> bool:
    return bool(rate["cached_bytes"] <= _CACHED_MOST * rate["read_bytes"])


def show_rate(rate: Facts) -> str:
    """For people: one line."""
    way = "direct" if rate["direct"] else "buffered"
    order = "random" if rate["random"] else "in order"
    cached = rate["cached_bytes"] / rate["read_bytes"] if rate["read_bytes"] else 0
    note = "" if rate["direct"] else f", {cached:.0%} from the page cache"
    return (
        f"{way} {order}, {show_size(rate['block_bytes'])}, {rate['depth']} at a time:"
        f" {rate['reads_per_s']} reads/s, {show_size(rate['read_bytes_per_s'])}/s, median"
        f" {rate['latency_median_us']:.0f} us, p99 {rate['latency_p99_us']:.0f} us{note}"
    )
