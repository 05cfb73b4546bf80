"""Where a loader spends its time, and one sentence about it."""

import json
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ffrecord._base import clock, recording

_EVENTS_MAX = 1 << 16
# A consumer that waits less than this is not held up.
_KEEPS_UP_SHARE = 0.05

# In the order in which a batch passes them; loading.md defines each.
STAGES = (
    "submit",
    "device",
    "verify",
    "decompress",
    "decode",
    "collate",
    "queue",
    "handover",
    "user",
)

# Their names in a profile. It has waits of its own, and reads by the extension.
_KINDS = {
    "submit": recording.SUBMIT,
    "fetch": recording.FETCH,
    "decode": recording.DECODE,
    "collate": recording.COLLATE,
    "handover": recording.TRANSFER,
}

_ADVICE = {
    "device": "the device (or the daemon) is the bottleneck: more num_workers overlap more "
    "reads; `ffrecord doctor` measures the device",
    "verify": "checksums and copies: raise num_workers while there are free cores",
    "decompress": "decompression: raise num_workers while there are free cores",
    "decode": "transform: raise num_workers, or make it cheaper",
    "collate": "collate: select only the needed columns=, or use typed ones",
    "handover": "passing batches from the workers: mode='threads' avoids it",
    "submit": "order, index and requests: use ffrecord.torch.Sampler, and larger batches",
}


class Stages:
    """Sums of time by stage, and a log of events. Thread-safe, and usable after a fork."""

    def __init__(self) -> None:
        """Start with nothing recorded."""
        self._lock = threading.Lock()
        _all.add(self)
        self._sums: dict[str, float] = {}
        self._events: deque[tuple[str, int, int, int]] = deque(maxlen=_EVENTS_MAX)

    def timed(self, stage: str) -> "_Timed":
        """Count the time of the block to `stage`."""
        return _Timed(self, stage)

    def add(self, stage: str, begin_ns: int, end_ns: int) -> None:
        """Count [begin_ns, end_ns) of `time.perf_counter_ns` to `stage`, in this thread."""
        with self._lock:
            self._sums[stage] = self._sums.get(stage, 0.0) + (end_ns - begin_ns) / 1e9
            thread = threading.current_thread().native_id or 0  # Without a system call.
            self._events.append((stage, begin_ns, end_ns, thread))
        if recording.on and (kind := _KINDS.get(stage)) is not None:
            recording.record(kind, begin_ns, end_ns)

    def count(self, stage: str, seconds: float) -> None:
        """Add `seconds` to `stage`, of which there is no event."""
        with self._lock:
            self._sums[stage] = self._sums.get(stage, 0.0) + seconds

    def sums(self) -> dict[str, float]:
        """Seconds by stage."""
        with self._lock:
            return dict(self._sums)

    def events(self) -> list[tuple[str, int, int, int]]:
        """The last 65,536 events: stage, begin and end in ns, thread."""
        with self._lock:
            return list(self._events)

    def __reduce__(self) -> tuple[Any, ...]:
        return Stages, ()  # In another process nothing happened yet.


_all: "weakref.WeakSet[Stages]" = weakref.WeakSet()


def _unlock() -> None:
    """In a forked child: no thread that held a lock in the parent will release it here."""
    for stages in list(_all):
        stages._lock = threading.Lock()


os.register_at_fork(after_in_child=_unlock)


class _Timed:
    """A block whose time is counted.

    A class, because the context manager of a generator costs twice as much, which matters for small
    batches.
    """

    __slots__ = ("_begin_ns", "_stage", "_stages")

    def __init__(self, stages: Stages, stage: str) -> None:
        self._stages = stages
        self._stage = stage

    def __enter__(self) -> None:
        self._begin_ns = clock.now_ns()

    def __exit__(self, *_: object) -> None:
        self._stages.add(self._stage, self._begin_ns, clock.now_ns())


def write_trace(path: str | os.PathLike[str], stages: Iterable[Stages]) -> None:
    """Write the events as JSON for chrome://tracing and Perfetto."""
    rows = [
        {
            "name": stage,
            "ph": "X",
            "ts": begin / 1e3,
            "dur": (end - begin) / 1e3,
            "pid": os.getpid(),
            "tid": thread,
        }
        for each in stages
        for stage, begin, end, thread in each.events()
    ]
    Path(path).write_text(json.dumps({"traceEvents": rows, "displayTimeUnit": "ms"}))


def verdict(
    stages: Mapping[str, float],
    wait_s: float,
    size_bytes: int,
    limit: float = 0.0,
) -> str:
    """One sentence: does the loader keep up, and if not, which stage takes the time.

    Args:
        stages: seconds by stage, summed over threads and processes.
        wait_s: time that the consumer waited.
        size_bytes: bytes read.
        limit: bytes/s that the source can give, if that was probed.
    """
    total_s = wait_s + stages.get("user", 0.0)
    if total_s == 0:
        return "Nothing was loaded yet."
    share = wait_s / total_s
    rate = f"{size_bytes / total_s / 1e6:.0f} MB/s"
    if limit:
        used = size_bytes / total_s / limit
        rate += f" ({used:.0%} of the {limit / 1e6:.0f} MB/s that its source can give)"
    if share < _KEEPS_UP_SHARE:
        return f"The loader keeps up: its consumer waited {share:.0%} of the time, at {rate}."
    known = {stage: seconds for stage, seconds in stages.items() if stage in _ADVICE}
    if not any(known.values()):
        return f"The consumer waited {share:.0%} of the time, at {rate}; no stage was measured."
    worst = max(known, key=lambda stage: known[stage])
    part = known[worst] / sum(known.values())
    return (
        f"The consumer waited {share:.0%} of the time, at {rate}; {part:.0%} of the loader's own "
        f"time goes into {worst}: {_ADVICE[worst]}."
    )


def figures(stats: Mapping[str, Any], prefix: str) -> dict[str, float]:
    """The numbers of `DataLoader.stats` as one level of names, as loggers take them.

    metrics.md lists the names, which do not depend on what has happened so far.
    """
    stages: Mapping[str, float] = stats["stages"]
    total_s = stats["wait_s"] + stages["user"]
    numbers = {name: value for name, value in numbers_of(stats).items() if name != "limit"}
    numbers |= {f"stage_{stage}_s": seconds for stage, seconds in stages.items()}
    numbers["wait_share"] = stats["wait_s"] / total_s if total_s else 0.0
    numbers["bytes_per_s"] = stats["size_bytes"] / total_s if total_s else 0.0
    return {f"{prefix}{name}": float(value) for name, value in numbers.items()}


def summed(each: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Statistics added up, number by number."""
    sums: dict[str, float] = {}
    for stats in each:
        for name, value in numbers_of(stats).items():
            sums[name] = sums.get(name, 0) + value
    return sums


def since(now: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    """The increase of sums since `before`."""
    return {name: value - before.get(name, 0) for name, value in now.items()}


def numbers_of(stats: Mapping[str, Any]) -> dict[str, float]:
    """The part of some statistics that can be summed."""
    return {
        name: value
        for name, value in stats.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
