"""Reading the files of a profile; docs/internals/profile-format.md describes them."""

import dataclasses
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ffrecord._base.recording import SUFFIX
from ffrecord.errors import CorruptionError

_MAGIC = b"FFRPROF\n"
_VERSION = 1
_HEADER_BYTES = 4096
_NAMES, _NAME_BYTES = 512, 128
_OPEN_SLOTS = 128
_WORDS = 8
_EVENTS_MAX = 1 << 24
_FACTOR = np.uint64(0x9E3779B97F4A7C15)

EVENT = np.dtype(
    [
        ("begin_ns", "<i8"),
        ("end_ns", "<i8"),
        ("size_bytes", "<u8"),
        ("detail", "<u8"),
        ("first", "<u4"),
        ("second", "<u4"),
        ("kind", "<u2"),
        ("name", "<u2"),
        ("thread", "<u4"),
    ]
)
Events = npt.NDArray[np.void]
_HEADER = np.dtype(
    {
        "names": [
            *("version", "event_bytes", "coarse", "fine", "pid", "parent_pid"),
            *("rank", "local_rank", "world_size", "has_ended"),
            *("steady_ns", "calendar_ns", "began_ns"),
            *("coarse_count", "fine_count", "names_count"),
        ],
        "formats": [*["<u4"] * 6, *["<i4"] * 3, "<u4", *["<i8"] * 3, "<u8", "<u8", "<u4"],
        "offsets": [8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 56, 64, 128, 192, 256],
        "itemsize": _HEADER_BYTES,
    }
)
_TEXTS = {"host": (512, 256), "boot": (768, 64), "command": (1024, 1024)}


@dataclasses.dataclass
class Process:
    """The profile of one process. Times are of its machine's steady clock, in nanoseconds."""

    path: str
    pid: int
    parent_pid: int
    rank: int
    """-1 if it did not say."""
    world_size: int
    host: str
    boot: str
    """The boot of the machine: where it is equal, clocks are."""
    command: str
    steady_ns: int
    """When the profile began,"""
    calendar_ns: int
    """and by the calendar, since 1970."""
    began_ns: int
    """When the process began; 0 if that is unknown."""
    has_ended: bool
    """Whether it ended before anything killed it."""
    events: Events
    """Sorted by their begin."""
    unfinished: Events
    """Events that had begun and not ended; without an end."""
    names: list[str]
    """By number; the first is empty."""
    overwritten: int = 0
    """Events that later ones have pushed out."""
    torn: int = 0
    """Events that were being written when the process died."""

    def name(self, event: Any) -> str:  # noqa: ANN401 - a row of `Events`
        """The name of an event."""
        number = int(event["name"])
        return self.names[number] if number < len(self.names) else ""


def read(path: str | os.PathLike[str]) -> Process:
    """Read one file; its process may be writing to it.

    Raises:
        CorruptionError: it is not a whole profile that this version can read.
    """
    data = Path(path).read_bytes()
    shown = os.fsdecode(path)
    if len(data) < _HEADER_BYTES or data[: len(_MAGIC)] != _MAGIC:
        raise CorruptionError(f"{shown}: not a profile of ffrecord: it begins otherwise")
    header = np.frombuffer(data, _HEADER, 1)[0]
    if header["version"] != _VERSION or header["event_bytes"] != 8 * _WORDS:
        raise CorruptionError(
            f"{shown}: a profile of version {header['version']}, and this ffrecord reads "
            f"version {_VERSION}: use the ffrecord that wrote it"
        )
    coarse, fine = int(header["coarse"]), int(header["fine"])
    opened = _HEADER_BYTES + _NAMES * _NAME_BYTES
    first = opened + _OPEN_SLOTS * 8 * _WORDS
    expected = first + (coarse + fine) * 8 * _WORDS
    sizes_fit = all(0 < n <= _EVENTS_MAX and n & (n - 1) == 0 for n in (coarse, fine))
    if not sizes_fit or len(data) != expected:
        raise CorruptionError(
            f"{shown}: {len(data)} bytes, where its header says {expected}: it is damaged or was "
            "not copied whole"
        )
    words = np.frombuffer(data, "<u8", offset=opened).reshape(-1, _WORDS)
    rings = [
        _ring(words[_OPEN_SLOTS : _OPEN_SLOTS + coarse], int(header["coarse_count"])),
        _ring(words[_OPEN_SLOTS + coarse :], int(header["fine_count"])),
    ]
    begun = words[:_OPEN_SLOTS]
    begun = begun[(begun[:, 0] == 1) & _are_whole(begun)]
    texts = {name: _text(data[at : at + size]) for name, (at, size) in _TEXTS.items()}
    return Process(
        path=shown,
        pid=int(header["pid"]),
        parent_pid=int(header["parent_pid"]),
        rank=int(header["rank"]),
        world_size=int(header["world_size"]),
        steady_ns=int(header["steady_ns"]),
        calendar_ns=int(header["calendar_ns"]),
        began_ns=int(header["began_ns"]),
        has_ended=bool(header["has_ended"]),
        events=_sorted(np.concatenate([_events(ring) for ring, _, _ in rings])),
        unfinished=_sorted(_events(begun)),
        names=_names(data, int(header["names_count"])),
        overwritten=sum(over for _, over, _ in rings),
        torn=sum(torn for _, _, torn in rings),
        **texts,
    )


def read_run(folder: str | os.PathLike[str]) -> list[Process]:
    """Read all files of a run.

    Raises:
        FileNotFoundError: there is no such folder, or no profile in it.
        CorruptionError: as `read`; foreign files are left alone.
    """
    root = Path(folder)
    if root.is_file():
        return [read(root)]
    if not root.is_dir():
        raise FileNotFoundError(
            f"{root}: there is no such folder; `ffrecord prof --out {root} -- COMMAND` makes one"
        )
    paths = sorted(root.glob(f"*{SUFFIX}"))
    if not paths:
        raise FileNotFoundError(
            f"{root}: holds no profile (*{SUFFIX}): did the program import ffrecord?"
        )
    # A process that was killed while it made its file has left an empty or unnamed one.
    found = [read(path) for path in paths if _has_begun(path)]
    if not found:
        raise CorruptionError(f"{root}: every profile in it is empty: no process has got that far")
    return found


def _has_begun(path: Path) -> bool:
    with path.open("rb") as file:
        return any(file.read(len(_MAGIC)))


def _are_whole(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    check = np.zeros(len(words), np.uint64)
    for column in range(_WORDS - 1):
        check = (check ^ words[:, column]) * _FACTOR
    whole: npt.NDArray[np.bool_] = check == words[:, _WORDS - 1]
    return whole


def _ring(slots: npt.NDArray[np.uint64], count: int) -> tuple[npt.NDArray[np.uint64], int, int]:
    """Its whole events, how many were overwritten, and how many are torn."""
    used = slots[: min(count, len(slots))]
    stamps = used[:, 0] - np.uint64(1)
    places = np.arange(len(used), dtype=np.uint64)
    size = np.uint64(len(slots))
    good = (used[:, 0] != 0) & (stamps % size == places) & _are_whole(used)
    return used[good], max(count - len(slots), 0), len(used) - int(good.sum())


def _events(words: npt.NDArray[np.uint64]) -> Events:
    made = np.zeros(len(words), EVENT)
    made["begin_ns"], made["end_ns"] = words[:, 1].astype("<i8"), words[:, 2].astype("<i8")
    made["size_bytes"], made["detail"] = words[:, 3], words[:, 4]
    made["first"], made["second"] = words[:, 5] & 0xFFFFFFFF, words[:, 5] >> np.uint64(32)
    made["kind"], made["name"] = words[:, 6] & 0xFFFF, (words[:, 6] >> np.uint64(16)) & 0xFFFF
    made["thread"] = words[:, 6] >> np.uint64(32)
    return made


def _sorted(events: Events) -> Events:
    return events[np.argsort(events["begin_ns"], kind="stable")]


def _text(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode(errors="backslashreplace")


def _names(data: bytes, count: int) -> list[str]:
    names = [""]
    for number in range(min(count, _NAMES)):
        at = _HEADER_BYTES + number * _NAME_BYTES
        size = min(int.from_bytes(data[at : at + 2], "little"), _NAME_BYTES - 2)
        names.append(data[at + 2 : at + 2 + size].decode(errors="backslashreplace"))
    return names


def merged(processes: Iterable[Process]) -> tuple[Events, list[str]]:
    """The events of several processes of a machine, with names of one numbering."""
    numbers: dict[str, int] = {"": 0}
    parts = []
    for process in processes:
        table = [numbers.setdefault(name, len(numbers)) for name in process.names]
        events = process.events.copy()
        known = np.minimum(events["name"], len(table) - 1)
        events["name"] = np.asarray(table, "<u2")[known]
        parts.append(events)
    return _sorted(np.concatenate(parts)) if parts else np.zeros(0, EVENT), list(numbers)
