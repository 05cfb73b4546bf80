"""The processors that the control groups leave this process."""

from collections.abc import Callable, Iterator
from pathlib import Path


def cpu_limit(proc: Path = Path("/proc/self")) -> float | None:
    """The least limit of the control groups, of version 1 or 2, that this process is in.

    In seconds of processor time in each second; None if there is no limit.
    """
    cpus: list[float] = []
    for folder in _groups(proc):
        match _numbers(folder / "cpu.max"):
            case [quota, period] if period > 0:
                cpus.append(quota / period)
        match _numbers(folder / "cpu.cfs_quota_us") + _numbers(folder / "cpu.cfs_period_us"):
            case [quota, period] if quota > 0 and period > 0:
                cpus.append(quota / period)
    return min(cpus, default=None)


def _groups(proc: Path) -> Iterator[Path]:
    """The folders of the groups of processors, each before the one that it is in."""
    for path, is_mount in _paths(proc):
        for root, point in _mounts(proc, is_mount):
            below = Path()  # In another namespace only the mounted part can be seen.
            if Path(path).is_relative_to(root) and ".." not in Path(path).parts:
                below = Path(path).relative_to(root)
            for parts in range(len(below.parts), -1, -1):
                yield point.joinpath(*below.parts[:parts])


_IsMount = Callable[[str, list[str]], bool]


def _paths(proc: Path) -> Iterator[tuple[str, _IsMount]]:
    """The path of each group, and a test of the type and options of a mount that may have it."""
    for line in _lines(proc / "cgroup"):
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if line.startswith("0::"):
            yield path, lambda kind, options: kind == "cgroup2"
        elif "cpu" in controllers.split(","):
            yield path, lambda kind, options: kind == "cgroup" and "cpu" in options


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
