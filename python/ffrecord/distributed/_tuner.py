"""The settings of a group's all-reduces, found during training.

hook = ffrecord.distributed.CommHook(streams=4, autotune=True)
...
print(hook.tuner.decisions)
"""

import dataclasses
import statistics
from collections.abc import Generator, Sequence
from typing import Any

import torch

from ffrecord.distributed._group import Algorithm, Group
from ffrecord.distributed._pump import Transfer

# Steps that each setting is tried for, and those that the best ones are tried once more.
_STEPS = 2
_LAST_STEPS = 4
_LAST = 3
# A setting is left for one that takes so much less.
_GAIN = 0.02
# Once settled: steps that are looked at together, and by how much they may differ from the first
# ones before all is tried again.
_WATCHED_STEPS = 10
_DRIFT = 0.10
_DRIFT_MIN_S = 2e-3
_CHUNKS = (64 << 10, 256 << 10, 1 << 20, 4 << 20)


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """The settings for arrays."""

    algorithm: Algorithm | None = None
    """None: by what the ranks measured when they met."""
    streams: int = 1
    chunk_size_bytes: int = 512 << 10
    bucket_cap_mb: float | None = None
    """The size for `overlap`; DistributedDataParallel cuts its buckets itself."""


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """A line of the log."""

    step: int
    setting: Setting
    """In force from this step on."""
    seconds: float | None
    """The time of a step by the setting before, on the rank that waited least for others."""
    why: str


Axes = dict[str, Sequence[Any]]


def search(start: Setting, axes: Axes) -> Generator[Setting, float, Setting]:
    """Yields settings to try, is sent the seconds of a step with them, and returns the best.

    Tries one axis after the other, each from the best of the earlier ones; then compares the best
    of all once more. The same seconds give the same trials.
    """
    found: dict[Setting, list[float]] = {}

    def tried(setting: Setting, steps: int) -> Generator[Setting, float, float]:
        seconds = found.setdefault(setting, [])
        for _ in range(steps):
            seconds.append((yield setting))
        return min(seconds)

    best, best_s = start, (yield from tried(start, _STEPS))
    for axis, values in axes.items():
        for value in values:
            setting = dataclasses.replace(best, **{axis: value})
            if setting in found:
                continue
            seconds = yield from tried(setting, _STEPS)
            if seconds < best_s * (1 - _GAIN):
                best, best_s = setting, seconds
    finalists = sorted(found, key=lambda setting: min(found[setting]))[:_LAST]
    if start not in finalists:
        finalists.append(start)
    for _ in range(_LAST_STEPS if len(finalists) > 1 else 0):
        for setting in finalists:
            yield from tried(setting, 1)
    # One lucky step is no reason; nor is a gain that is none.
    typical = {setting: statistics.median(found[setting]) for setting in finalists}
    chosen = min(typical, key=lambda setting: typical[setting])
    return start if typical[chosen] > typical[start] * (1 - _GAIN) else chosen


def axes_of(group: Group, bucket_caps_mb: Sequence[float] = ()) -> Axes:
    """The settings that may be varied in this group."""
    algorithms: list[Algorithm | None] = [None, "ring", "double_tree"]
    if group.wire is not torch.float16:
        algorithms.append("halving_doubling")
    streams = [1 << i for i in range(5) if 1 << i < group.streams]
    chunks = [chunk for chunk in _CHUNKS if chunk < group.chunk_size_bytes]
    axes: Axes = {}
    # Two ranks exchange halves by any of them.
    if group.world_size > 2:
        axes["algorithm"] = algorithms
    if group.streams > 1:
        axes["streams"] = [*streams, group.streams]
    axes["chunk_size_bytes"] = [*chunks, group.chunk_size_bytes]
    if bucket_caps_mb:
        axes["bucket_cap_mb"] = bucket_caps_mb
    return axes


class Tuner:
    """Tries settings of a group in the first steps, keeps the best, and tries again on drift.

    All ranks make it, and call `step` at the same point of every step, when nothing of the previous
    step is in progress. The ranks agree on the seconds of the step, those of the rank that waited
    least for others; so they make the same trials and change at the same step. `decisions` tells
    what was tried and why. For one thread.
    """

    def __init__(self, group: Group, bucket_caps_mb: Sequence[float] = ()) -> None:
        """The first of `bucket_caps_mb` applies at the start."""
        self.decisions: list[Decision] = []
        self.setting = Setting(
            None,
            group.streams,
            group.chunk_size_bytes,
            bucket_caps_mb[0] if bucket_caps_mb else None,
        )
        self._group = group
        self._axes = axes_of(group, bucket_caps_mb)
        self._step = 0
        self._seen_ns = 0
        self._search: Generator[Setting, float, Setting] | None = None
        self._watched: list[float] = []
        self._expected: float | None = None

    @property
    def is_settled(self) -> bool:
        """Whether no trial is running."""
        return self._search is None and self._step > 0

    def step(self, seconds: float | None = None) -> Setting:
        """Begin a step: account for the last one, and return the settings of this one.

        Args:
            seconds: the time of the last one; by default the time in which any of its arrays was
                being sent.

        Raises:
            ConnectionError, TimeoutError: the group has failed.
        """
        measured = self._busy_s() if seconds is None else seconds
        if self._step == 0:
            self._begin("the first steps")
        elif self._search is not None:
            self._advance(self._agree([measured])[0])
        else:
            self._watched.append(measured)
            if len(self._watched) == _WATCHED_STEPS:
                self._watch(statistics.median(self._agree(self._watched)))
                self._watched.clear()
        self._step += 1
        return self.setting

    def _begin(self, why: str) -> None:
        self._search = search(self.setting, self._axes)
        self._change(next(self._search), None, f"{why}: trying")

    def _advance(self, seconds: float) -> None:
        assert self._search is not None
        try:
            self._change(self._search.send(seconds), seconds, "trying")
        except StopIteration as end:
            self._search, self._expected = None, None
            self._change(end.value, seconds, "the best that was found")

    def _watch(self, seconds: float) -> None:
        if self._expected is None:
            self._expected = seconds
        elif abs(seconds - self._expected) > max(_DRIFT * self._expected, _DRIFT_MIN_S):
            change = f"{self._expected * 1e3:.2f} to {seconds * 1e3:.2f} ms"
            self._begin(f"steps went from {change}")

    def _change(self, setting: Setting, seconds: float | None, why: str) -> None:
        if setting != self.setting or why != "trying":
            self.decisions.append(Decision(self._step, setting, seconds, why))
        self.setting = setting
        self._group.tune(
            chunk_size_bytes=setting.chunk_size_bytes,
            algorithm=setting.algorithm,
            streams=setting.streams,
        )

    def _agree(self, seconds: Sequence[float]) -> list[float]:
        """For each, the time of the rank that came last: other times include the wait for it."""
        agreed = torch.tensor(seconds, dtype=torch.float64)
        self._group.all_reduce(agreed, "min", bucket=-1).wait()
        return agreed.tolist()

    def _busy_s(self) -> float:
        """The time in which any array was being sent since the last call."""
        transfers = self._group.transfers_since(self._seen_ns)
        if transfers:
            self._seen_ns = transfers[-1].ended_ns
        return busy_ns([t for t in transfers if t.bucket >= 0]) / 1e9


def busy_ns(transfers: Sequence[Transfer]) -> int:
    """The time in which at least one of them was running."""
    total = until = 0
    for transfer in sorted(transfers, key=lambda t: t.began_ns):
        total += max(0, transfer.ended_ns - max(until, transfer.began_ns))
        until = max(until, transfer.ended_ns)
    return total
