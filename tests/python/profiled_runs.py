"""Runs that never were: the profiles of ranks that train, with causes put in, for the analysis."""

import dataclasses
import random
from collections.abc import Sequence

import numpy as np

from ffrecord._base import recording
from ffrecord._profile.files import EVENT, Process

_MS = 1_000_000
_TRAINING, _LOADING, _PUMP = 1, 2, 3  # Threads.
_BUCKETS = 4
DAEMONS = ("10.0.0.1:9400", "10.0.0.2:9400")
FOLDER = "/data/train"
DISK = "/data/disk3"
"""Of the first daemon."""
_AT_DISK = f"{DAEMONS[0]} disk {DISK}"
_NAMES = ["", *DAEMONS, FOLDER, "ffrecord group 0", _AT_DISK]
_NUMBER = {name: number for number, name in enumerate(_NAMES)}


@dataclasses.dataclass(frozen=True)
class Injected:
    """A cause that is put in, and as what it is to be found."""

    kind: str
    stage: str = ""
    rank: int | None = None
    size: float = 0.4
    """Of a step without it."""
    only_at: tuple[int, ...] = ()
    """Steps; all if empty."""

    def at(self, rank: int, step: int) -> bool:
        """Whether it strikes there."""
        return self.rank in (None, rank) and (not self.only_at or step in self.only_at)

    @property
    def label(self) -> tuple[str, str, int | None]:
        """As findings name it."""
        return self.kind, self.stage, self.rank


def profiles(
    *,
    causes: Sequence[Injected] = (),
    ranks: int = 4,
    steps: int = 40,
    seed: int = 0,
    by_daemons: bool = False,
    records_collectives: bool = True,
    clock_offsets_ns: Sequence[int] = (),
) -> list[Process]:
    """The profiles of a run with these causes.

    Args:
        causes: that are put in.
        ranks: how many.
        steps: how many, besides the first.
        seed: of the noise, 2 % of each duration.
        by_daemons: records come from DAEMONS, and not from FOLDER.
        records_collectives: whether collectives are in the profiles.
        clock_offsets_ns: of each rank's machine; by default they are on one.
    """
    chance = random.Random(seed)
    made = [_Maker(rank, by_daemons) for rank in range(ranks)]
    ready = [10_000 * _MS] * ranks
    for step in range(steps + 1):
        arrived = []
        for rank, maker in enumerate(made):
            striking = [cause for cause in causes if cause.at(rank, step - 1)]
            arrived.append(maker.until_collectives(ready[rank], striking, chance))
        together = max(times[-1] for times in arrived)
        slow = sum(c.size for c in causes if c.kind == "communication" and c.at(0, step - 1))
        ended = together + round((1 + 60 * slow) * _MS)
        for rank, maker in enumerate(made):
            if records_collectives:
                maker.collectives(step, arrived[rank], arrived, ended)
            ready[rank] = maker.after(arrived[rank], ended, chance)
    offsets = list(clock_offsets_ns) or [0] * ranks
    return [
        maker.profile(ranks, offset, bool(clock_offsets_ns))
        for maker, offset in zip(made, offsets, strict=True)
    ]


class _Maker:
    """Makes the events of one rank."""

    def __init__(self, rank: int, by_daemons: bool) -> None:
        self._rank, self._by_daemons = rank, by_daemons
        self._rows: list[tuple[int, ...]] = []
        if not by_daemons:
            self._add(recording.SOURCE, 9_999 * _MS, 9_999 * _MS, name=FOLDER)

    def _add(
        self,
        kind: int,
        begin: int,
        end: int,
        *,
        thread: int = _TRAINING,
        name: str = "",
        detail: int = 0,
        first: int = 0,
        second: int = 0,
    ) -> None:
        self._rows.append((begin, end, 0, detail, first, second, kind, _NUMBER[name], thread))

    def until_collectives(
        self, now: int, causes: Sequence[Injected], chance: random.Random
    ) -> list[int]:
        """Data, forward and backward; when the buckets are ready."""
        extra = {cause.kind: cause.size * 60 for cause in causes}
        stage = next((cause.stage for cause in causes if cause.kind == "data"), "")
        saving = next((cause.stage for cause in causes if cause.kind == "checkpoint"), "")

        def lasting(ms: float) -> int:
            return round(ms * _MS * chance.uniform(0.98, 1.02))

        if "checkpoint" in extra:
            end = now + lasting(extra["checkpoint"])
            if saving == "stage":
                self._add(recording.STAGE, now, end - _MS // 10)
            self._add(recording.SAVE, now, end)
            now = end
        now += lasting(extra.get("other", 0) + 0.2)
        waited = lasting(0.5 + extra.get("data", 0))
        self._load(now, waited, stage, extra.get("data", 0))
        self._add(recording.WAIT, now, now + waited)
        now += waited + lasting(20 + 0.3 * extra.get("compute", 0))
        self._backward = now
        length = lasting(35 + 0.7 * extra.get("compute", 0))
        return [now + length * part // _BUCKETS for part in range(1, _BUCKETS + 1)]

    def _load(self, now: int, waited: int, stage: str, extra_ms: float) -> None:
        """What the loader's thread does meanwhile: its stages, one of which may be slow."""
        usual = {"storage": 2.0, "check": 1.0, "decode": 2.0, "collate": 0.5, "transfer": 0.3}
        parts = {name: round(ms * _MS) for name, ms in usual.items()}
        daemon_parts = {"disk": 0.4, "queue": 0.1, "network": 0.3}
        slow = round(extra_ms * 3 * _MS)  # Its threads work on several batches at once.
        if stage in daemon_parts:
            parts["storage"] += slow
        elif stage:
            parts[stage] += slow
        begin = now - sum(parts.values())
        read_end = begin + parts["storage"] + parts["check"]
        waiting_us = parts["storage"] // 1000
        self._add(recording.READ, begin, read_end, thread=_LOADING, first=waiting_us)
        if self._by_daemons:
            answered = {name: round(ms * _MS) for name, ms in daemon_parts.items()}
            if stage in answered:
                answered[stage] += slow
            self._add(
                recording.DAEMON_READ,
                begin,
                begin + sum(answered.values()),
                thread=_LOADING,
                name=_AT_DISK if stage == "disk" else DAEMONS[0],
                first=answered["disk"] // 1000,
                second=answered["queue"] // 1000,
            )
        at = read_end
        for kind, name in (
            (recording.DECODE, "decode"),
            (recording.COLLATE, "collate"),
            (recording.TRANSFER, "transfer"),
        ):
            self._add(kind, at, at + parts[name], thread=_LOADING)
            at += parts[name]

    def collectives(
        self, step: int, own: list[int], all_ranks: list[list[int]], ended: int
    ) -> None:
        """One per bucket; each ends once all ranks have come to it."""
        for bucket, at in enumerate(own):
            others = max(times[bucket] for times in all_ranks)
            end = ended if bucket == len(own) - 1 else max(others + _MS // 2, at)
            self._add(
                recording.COLLECTIVE,
                at,
                end,
                thread=_PUMP,
                name="ffrecord group 0",
                detail=step * _BUCKETS + bucket + 1,
            )

    def after(self, arrived: list[int], ended: int, chance: random.Random) -> int:
        """The end of backward, and the optimizer."""
        self._add(recording.BACKWARD, self._backward, max(ended, arrived[-1]))
        now = max(ended, arrived[-1])
        end = now + round(5 * _MS * chance.uniform(0.98, 1.02))
        self._add(recording.OPTIMIZER, now, end)
        return end

    def profile(self, world_size: int, offset: int, own_machine: bool) -> Process:
        """All of it; the machine's clock is ahead of the true one by `offset`."""
        events = np.array(sorted(self._rows), EVENT)
        events["begin_ns"] += offset
        events["end_ns"] += offset
        return Process(
            path=f"rank{self._rank}.ffrprof",
            pid=100 + self._rank,
            parent_pid=1,
            rank=self._rank,
            world_size=world_size,
            host=f"host{self._rank}",
            boot=f"boot{self._rank}" if own_machine else "boot",
            command="python train.py",
            steady_ns=9_000 * _MS + offset,
            calendar_ns=1_700_000_000_000_000_000,
            began_ns=8_000 * _MS + offset,
            has_ended=True,
            events=events,
            unfinished=np.zeros(0, EVENT),
            names=list(_NAMES),
        )
