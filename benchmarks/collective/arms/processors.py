"""The share of the processors that is busy, and whether others than the benchmark use them."""

import pathlib
import time

BUSY_SHARE_MAX = 0.6
FOREIGN_SHARE_MAX = 0.1
_LOOK_S = 2.0
_IDLE_FIELDS = (3, 4)  # Fields of /proc/stat: idle, and waiting for a disk.


class Busy:
    """The share of all processors that was busy since it was made."""

    def __init__(self) -> None:
        """Begin now."""
        self._before = _ticks()

    def share(self) -> float:
        """From 0 to 1."""
        idle, total = (now - then for now, then in zip(_ticks(), self._before, strict=True))
        return 1 - idle / total if total else 0.0


def foreign_share() -> float:
    """The share that others use while this program sleeps."""
    busy = Busy()
    time.sleep(_LOOK_S)
    return busy.share()


def _ticks() -> tuple[int, int]:
    """Idle, and in all."""
    first = pathlib.Path("/proc/stat").read_text().splitlines()[0]
    fields = [int(each) for each in first.split()[1:9]]
    return sum(fields[i] for i in _IDLE_FIELDS), sum(fields)
