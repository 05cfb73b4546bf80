"""Why steps take as long as they do: what they would take without each cause.

A step is as long as that of the slowest rank: its own work, plus the communication that no rank can
hide. A cause is worth what steps get shorter when its time is taken out of this model. A gain of
less than 5 % is noise; 10 % is worth a warning, 20 % is critical. A rank, a stage or a place is
named only if it explains 80 % of its cause.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from ffrecord._base.recording import (
    COLLATE,
    DAEMON_READ,
    DECODE,
    LOAD,
    READ,
    SAVE,
    SOURCE,
    STAGE,
    SUBMIT,
    TRANSFER,
)
from ffrecord._profile.ranks import Rank
from ffrecord._profile.steps import Seconds, Steps

DEAD_BAND, WARNING, CRITICAL = 0.05, 0.10, 0.20
EXPLAINS = 0.80
# A loss is "once" if so few steps have nearly all of it.
_FEW_STEPS = 0.05
_CAUSES_MAX = 3

Kind = Literal["data", "compute", "communication", "checkpoint", "other"]
Level = Literal["healthy", "note", "warning", "critical"]


@dataclasses.dataclass(frozen=True)
class Cause:
    """One reason why steps are long."""

    kind: Kind
    rank: int | None
    """The rank that it is at; None if it is at all of them."""
    host: str
    stage: str
    """The part of the loader, or of a save; empty if no part explains it, or there are none."""
    stages: dict[str, float]
    """The share of each part."""
    place: str
    """The daemon, the folder."""
    disk: str
    """The disk of the daemon."""
    saving: float
    """The share of the time of all steps that would be saved without it."""
    without_s: float
    """How long a step would take without it, and without the causes before."""
    steps: int
    """How many steps have it."""
    when: tuple[int, ...]
    """The steps that have it, if they are few; counted from 0."""

    @property
    def level(self) -> Level:
        """How bad it is."""
        return level_of(self.saving)


@dataclasses.dataclass(frozen=True)
class Findings:
    """All of it."""

    steps: int
    step_s: float
    """How long a step took, on average."""
    causes: tuple[Cause, ...]
    """The most costly first."""

    @property
    def level(self) -> Level:
        """How bad it is in all."""
        return level_of(sum(cause.saving for cause in self.causes))


def level_of(saving: float) -> Level:
    """How bad it is that so much could be saved."""
    if saving < DEAD_BAND:
        return "healthy"
    return "note" if saving < WARNING else "warning" if saving < CRITICAL else "critical"


# --- The model -----------------------------------------------------------------------------------

# The time to take out of the model: a kind, and the row of a rank; -1 is all.
_Take = tuple[Kind, int]


class _Model:
    """How long steps are without some of what they do."""

    def __init__(self, steps: Steps) -> None:
        """The model of these steps."""
        parts = steps.phases
        compute = parts["forward"] + parts["backward"] + parts["optimizer"]
        self._parts: dict[Kind, Seconds] = {
            "data": parts["data"],
            "checkpoint": parts["checkpoint"],
            "other": parts["other"],
            "compute": compute,
        }
        self._excess = compute - _usual(compute)
        self._communication = parts["communication"].min(axis=0)
        self.rank_count = len(compute)

    def seconds(self, taken: Sequence[_Take]) -> Seconds:
        """By step, without what is `taken`."""
        parts = {kind: each.copy() for kind, each in self._parts.items()}
        communication = self._communication
        for kind, row in taken:
            rows = slice(None) if row < 0 else row
            if kind == "communication":
                communication = np.zeros_like(communication)
            elif kind == "compute":
                parts[kind][rows] -= np.maximum(self._excess[rows], 0)
            else:
                parts[kind][rows] = 0
        return np.asarray(sum(parts.values()).max(axis=0) + communication)  # type: ignore[union-attr]

    def takes(self) -> list[_Take]:
        """All that may be taken."""
        rows = [*range(self.rank_count)] if self.rank_count > 1 else []
        found: list[_Take] = [("data", -1), ("checkpoint", -1), ("other", -1)]
        if rows:
            found.append(("communication", -1))
        for kind in ("data", "compute", "checkpoint"):
            found += [(kind, row) for row in rows]
        return found


def _usual(compute: Seconds) -> Seconds:
    """By step what a usual rank takes; of two ranks it is the faster one."""
    ordered = np.sort(compute, axis=0)
    return np.asarray(ordered[(len(ordered) - 1) // 2])


def findings_of(steps: Steps) -> Findings:
    """Find the causes, the most costly first, each after those before it are taken out."""
    model = _Model(steps)
    full = model.seconds([])
    total = float(full.sum())
    taken: list[_Take] = []
    causes: list[Cause] = []
    while len(causes) < _CAUSES_MAX and total > 0:
        found = _next(model, taken, total)
        if not found:
            break
        after = model.seconds([*taken, *found])
        # If two only gain together, each has half.
        gain = (model.seconds(taken) - after) / len(found)
        causes += [_cause(steps, take, gain, total, float(after.mean())) for take in found]
        taken += found
    causes.sort(key=lambda cause: -cause.saving)
    return Findings(steps.count, total / steps.count, tuple(causes))


def _next(model: _Model, taken: list[_Take], total: float) -> list[_Take]:
    """The times to take next: one if that is worth it, or two that only gain together."""
    left = [take for take in model.takes() if take not in taken and (take[0], -1) not in taken]
    before = float(model.seconds(taken).sum())

    def gain(more: list[_Take]) -> float:
        return (before - float(model.seconds([*taken, *more]).sum())) / total

    gains = {take: gain([take]) for take in left}
    if not gains:
        return []
    best = max(gains, key=lambda take: gains[take])
    if gains[best] >= DEAD_BAND:
        kind, row = best
        own = {take: gains[take] for take in left if take[0] == kind and take[1] >= 0}
        if row < 0 and own:
            at_one = max(own, key=lambda take: own[take])
            if own[at_one] >= EXPLAINS * gains[best]:
                return [at_one]
        return [best]
    rows = [take for take in left if take[1] >= 0]
    pairs = [[one, other] for one, other in itertools.combinations(rows, 2) if one[1] != other[1]]
    worth = [pair for pair in pairs if gain(pair) >= 2 * DEAD_BAND]
    return max(worth, key=gain, default=[])


# --- What a cause is -----------------------------------------------------------------------------


def _cause(steps: Steps, take: _Take, gain: Seconds, total: float, without_s: float) -> Cause:
    kind, row = take
    # A time that all ranks have may still be of one: a rank that comes last to everything.
    rank = steps.ranks[row] if row >= 0 else (steps.ranks[0] if len(steps.ranks) == 1 else None)
    about = [rank] if rank is not None else steps.ranks
    window = int(steps.begin_ns.min()), int(steps.end_ns.max())
    stages: dict[str, float] = {}
    place = disk = ""
    if kind == "data":
        stages, place = _loading(about, window)
        disk = _disk_of(about, window)
    elif kind == "checkpoint":
        stages, place = _saving(about, window)
    stage = next((name for name, share in stages.items() if share >= EXPLAINS), "")
    having = np.flatnonzero(gain > DEAD_BAND * total / steps.count)
    few = max(1, int(_FEW_STEPS * steps.count))
    order = np.argsort(-gain)
    is_once = len(having) > 0 and steps.count > 2 * few
    is_once = is_once and float(gain[order[:few]].sum()) >= EXPLAINS * float(gain.sum())
    enough = int(np.searchsorted(np.cumsum(gain[order]), EXPLAINS * float(gain.sum()))) + 1
    when = tuple(sorted(order[:enough].tolist())) if is_once else ()
    return Cause(
        kind=kind,
        rank=rank.rank if rank is not None and len(steps.ranks) > 1 else None,
        host=rank.host if rank is not None else "",
        stage=stage,
        stages=stages,
        place=place,
        disk=disk,
        saving=float(gain.sum()) / total,
        without_s=without_s,
        steps=len(having),
        when=when,
    )


def _in(events: npt.NDArray[np.void], window: tuple[int, int]) -> npt.NDArray[np.void]:
    return events[(events["end_ns"] > window[0]) & (events["begin_ns"] < window[1])]


def _seconds(events: npt.NDArray[np.void]) -> float:
    return float((events["end_ns"] - events["begin_ns"]).sum()) / 1e9


def _shares(seconds: dict[str, float]) -> dict[str, float]:
    """The share of each, the largest first."""
    total = sum(seconds.values())
    if total <= 0:
        return {}
    ordered = sorted(seconds.items(), key=lambda item: -item[1])
    return {name: each / total for name, each in ordered if each > 0}


def _loading(ranks: Sequence[Rank], window: tuple[int, int]) -> tuple[dict[str, float], str]:
    """The stages in which the loaders of some ranks spend their time, and where records are."""
    of: dict[str, float] = dict.fromkeys(
        ("disk", "queue", "network", "storage", "check", "order", "decode", "collate", "transfer"),
        0.0,
    )
    for rank in ranks:
        reads, orders = _in(rank.of(READ), window), _in(rank.of(SUBMIT), window)
        waits = float(reads["first"].sum() + orders["first"].sum()) / 1e6
        submits = float(reads["second"].sum()) / 1e6
        of["check"] += max(_seconds(reads) - float(reads["first"].sum()) / 1e6 - submits, 0)
        of["order"] += submits + max(_seconds(orders) - float(orders["first"].sum()) / 1e6, 0)
        of["decode"] += _seconds(_in(rank.of(DECODE), window))
        of["collate"] += _seconds(_in(rank.of(COLLATE), window))
        of["transfer"] += _seconds(_in(rank.of(TRANSFER), window))
        answers = _in(rank.of(DAEMON_READ), window)
        if len(answers):
            disk, queue = float(answers["first"].sum()) / 1e6, float(answers["second"].sum()) / 1e6
            parts = _shares(
                {
                    "disk": disk,
                    "queue": queue,
                    "network": max(_seconds(answers) - disk - queue, 0),
                }
            )
            for name, share in parts.items():
                of[name] += share * waits
        else:
            of["storage"] += waits
    return _shares(of), _place_of(ranks, window)


def _place_of(ranks: Sequence[Rank], window: tuple[int, int]) -> str:
    """The daemon that explains the time of daemons; without daemons, where records are."""
    by_daemon: dict[str, float] = {}
    places: list[str] = []
    for rank in ranks:
        for event in _in(rank.of(DAEMON_READ), window):
            name = _daemon_and_disk(rank.names[int(event["name"])])[0]
            spent = int(event["end_ns"]) - int(event["begin_ns"])
            by_daemon[name] = by_daemon.get(name, 0.0) + spent / 1e9
        places += [rank.names[int(event["name"])] for event in rank.of(SOURCE)]
    shares = _shares(by_daemon)
    if shares:
        name, share = next(iter(shares.items()))
        return name if share >= EXPLAINS else ""
    return places[-1] if len(set(places)) == 1 else ""


def _disk_of(ranks: Sequence[Rank], window: tuple[int, int]) -> str:
    """The disk that explains the time of the disks of daemons."""
    by_disk: dict[str, float] = {}
    for rank in ranks:
        for event in _in(rank.of(DAEMON_READ), window):
            name = rank.names[int(event["name"])]
            by_disk[name] = by_disk.get(name, 0.0) + float(event["first"])
    name, share = next(iter(_shares(by_disk).items()), ("", 0.0))
    return _daemon_and_disk(name)[1] if share >= EXPLAINS else ""


def _daemon_and_disk(name: str) -> tuple[str, str]:
    """Both parts of the name of a read's place; the disk is empty if the daemon told none."""
    daemon, _, disk = name.partition(" disk ")
    return daemon, disk


def _saving(ranks: Sequence[Rank], window: tuple[int, int]) -> tuple[dict[str, float], str]:
    """The saves and loads that block training."""
    of: dict[str, float] = dict.fromkeys(("stage", "write", "load"), 0.0)
    for rank in ranks:
        saves = _in(rank.own(SAVE), window)
        stages = _in(rank.own(STAGE), window)
        of["stage"] += _seconds(stages)
        of["write"] += max(_seconds(saves) - _seconds(stages), 0)
        of["load"] += _seconds(_in(rank.own(LOAD), window))
    return _shares(of), ""
