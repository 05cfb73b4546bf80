"""The memory and the processors that the machine and its control groups leave this process."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

# Version 1 has no word for "no limit": it says the largest multiple of a page that it can.
_MEMORY_NONE_BYTES = 1 << 62


class Limits(NamedTuple):
    """None where there is no limit."""

    memory_bytes: int | None
    cpus: float | None
    """Seconds of processor time in each second."""


def limits(proc: Path = Path("/proc/self")) -> Limits:
    """The least limits of the control groups, of version 1 or 2, that this process is in."""
    memory: list[int] = []
    cpus: list[float] = []
    for folder in _groups(proc, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            memory += [size for size in _numbers(folder / name) if size < _MEMORY_NONE_BYTES]
    for folder in _groups(proc, "cpu"):
        match _numbers(folder / "cpu.max"):
            case [quota, period] if period > 0:
                cpus.append(quota / period)
        match _numbers(folder / "cpu.cfs_quota_us") + _numbers(folder / "cpu.cfs_period_us"):
            case [quota, period] if quota > 0 and period > 0:
                cpus.append(quota / period)
    return Limits(min(memory, default=None), min(cpus, default=None))


def memory_bytes(meminfo: Path = Path("/proc/meminfo")) -> tuple[int, int]:
    """The machine's memory, and how much of it processes can still take; 0 if unknown."""
    found = {}
    for line in _lines(meminfo):
        name, _, rest = line.partition(":")
        match rest.split():
            case [kib, "kB"] if kib.isdecimal():
                found[name] = int(kib) << 10
    return found.get("MemTotal", 0), found.get("MemAvailable", 0)


def free_in_groups_bytes(proc: Path = Path("/proc/self")) -> int | None:
    """The memory that the group with the least left still allows; None if none has a limit.

    Pages of files do not count as used: a group drops them when it needs memory.
    """
    left = []
    for folder in _groups(proc, "memory"):
        for limit, usage, pages in (
            ("memory.max", "memory.current", ("active_file", "inactive_file")),
            (
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                ("total_active_file", "total_inactive_file"),
            ),
        ):
            match _numbers(folder / limit), _numbers(folder / usage):
                case [most], [used] if most < _MEMORY_NONE_BYTES:
                    words = [line.split() for line in _lines(folder / "memory.stat")]
                    files = sum(int(word[1]) for word in words if word[0] in pages)
                    left.append(max(0, most - max(0, used - files)))
    return min(left, default=None)


def _groups(proc: Path, controller: str) -> Iterator[Path]:
    """The folders of the groups with this controller, each before the one that it is in."""
    for path, is_mount in _paths(proc, controller):
        for root, point in _mounts(proc, is_mount):
            below = Path()  # In another namespace only the mounted part can be seen.
            if Path(path).is_relative_to(root) and ".." not in Path(path).parts:
                below = Path(path).relative_to(root)
            for parts in range(len(below.parts), -1, -1):
                yield point.joinpath(*below.parts[:parts])


_IsMount = Callable[[str, list[str]], bool]


def _paths(proc: Path, controller: str) -> Iterator[tuple[str, _IsMount]]:
    """The path of each group, and a test of the type and options of a mount that may have it."""
    for line in _lines(proc / "cgroup"):
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if line.startswith("0::"):
            yield path, lambda kind, options: kind == "cgroup2"
        elif controller in controllers.split(","):
            yield path, lambda kind, options: kind == "cgroup" and controller in options


def _mounts(proc: Path, is_mount: _IsMount) -> Iterator[tuple[str, Path]]:
    """The root within its file system, and the place, of each such mount."""
    for line in _lines(proc / "mountinfo"):
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(" "), after.split(" ")
        if len(fields) > 4 and len(kinds) > 2 and is_mount(kinds[0], kinds[2].split(",")):
            yield fields[3], Path(fields[4])


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []


def _numbers(path: Path) -> list[int]:
    """The numbers in a file; none if one of its words is no number, such as "max"."""
    words = " ".join(_lines(path)).split()
    try:
        return [int(word) for word in words]
    except ValueError:
        return []
