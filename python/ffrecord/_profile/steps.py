"""The steps of a run, and what each spent its time on."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ffrecord._base.recording import (
    BACKWARD,
    COLLECTIVE,
    LOAD,
    OPTIMIZER,
    SAVE,
    WAIT,
)
from ffrecord._profile.files import Events
from ffrecord._profile.ranks import Rank

PHASES = ("data", "forward", "backward", "optimizer", "communication", "checkpoint", "other")
"""data: waiting for a batch. communication: waiting for other ranks and the network, in so far as
no computation hides it. checkpoint: blocked by saves and loads. other: between the phases."""
Seconds = npt.NDArray[np.float64]
Spans = list[tuple[int, int]]
# Ranks are matched by time with at most so many steps between them.
_SHIFT_MAX = 8


@dataclasses.dataclass
class Steps:
    """The steps of all ranks, of those that each of them has."""

    ranks: list[Rank]
    begin_ns: npt.NDArray[np.int64]
    """By rank and step,"""
    end_ns: npt.NDArray[np.int64]
    phases: dict[str, Seconds]
    """Seconds by rank and step, for each of PHASES."""
    last: npt.NDArray[np.int64]
    """By step the rank that came last to most of its collectives; -1 if there were none."""
    late_s: Seconds
    """By step how much later it came than the median rank, summed over its collectives."""
    infers_waits: bool = False
    """Collectives were not recorded: a backward pass longer than other ranks' is taken to wait."""

    @property
    def count(self) -> int:
        """How many."""
        return int(self.begin_ns.shape[1])

    @property
    def seconds(self) -> Seconds:
        """By rank and step."""
        return (self.end_ns - self.begin_ns) / 1e9


def steps_of(ranks: Sequence[Rank]) -> Steps:
    """Divide the events of the ranks into steps; the first, which warms up, is left out.

    Raises:
        ValueError: there are less than two steps.
    """
    edges = _matched([_edges(rank) for rank in ranks])
    count = min(len(each) for each in edges) - 1
    if count < 1:
        raise ValueError(
            "this profile has less than two whole steps: nothing can be said about them yet"
        )
    tables = {phase: np.zeros((len(ranks), count)) for phase in PHASES}
    for row, (rank, edge) in enumerate(zip(ranks, edges, strict=True)):
        _fill(tables, row, rank, edge)
    begin = np.asarray([edge[:-1] for edge in edges], np.int64)
    end = np.asarray([edge[1:] for edge in edges], np.int64)
    infers = len(ranks) > 1 and not any(len(rank.of(COLLECTIVE)) for rank in ranks)
    if infers:
        waits = tables["backward"] - tables["backward"].min(axis=0)
        tables["backward"] -= waits
        tables["communication"] += waits
    last, late = _latecomers(ranks, begin, end)
    return Steps(list(ranks), begin, end, tables, last, late, infers)


def _edges(rank: Rank) -> npt.NDArray[np.int64]:
    """Where steps end: with the optimizer's last step before the next batch, or before anything."""
    optimizers, waits = rank.own(OPTIMIZER), rank.own(WAIT)
    if not len(optimizers):
        return np.asarray(waits["begin_ns"], np.int64)
    ends = np.sort(optimizers["end_ns"])
    # Something else must begin before the next of them: it may step several, or one within another.
    others = waits["begin_ns"] if len(waits) else rank.own(BACKWARD)["begin_ns"]
    if not len(others):
        return np.asarray(ends, np.int64)
    others = np.sort(others)
    following = np.append(ends[1:], np.iinfo(np.int64).max)
    begun = np.searchsorted(others, following) > np.searchsorted(others, ends)
    begun[-1] = True
    return np.asarray(ends[begun], np.int64)


def _matched(edges: list[npt.NDArray[np.int64]]) -> list[npt.NDArray[np.int64]]:
    """Those of the same steps in all ranks: rings may have lost the first ones of some.

    A step ends at about the same time on all ranks, since they wait for each other.
    """
    if min(map(len, edges)) == 0:
        return edges
    shortest = min(edges, key=len)
    begins = []
    for each in edges:
        shifts = range(len(each) - len(shortest) + 1)
        near = [s for s in shifts if s <= _SHIFT_MAX or s >= len(shifts) - _SHIFT_MAX]
        away = [float(np.median(np.abs(each[s : s + len(shortest)] - shortest))) for s in near]
        begins.append(near[int(np.argmin(away))])
    return [each[b : b + len(shortest)] for b, each in zip(begins, edges, strict=True)]


def _fill(tables: dict[str, Seconds], row: int, rank: Rank, edges: npt.NDArray[np.int64]) -> None:
    own = {kind: _Within(rank.own(kind)) for kind in (WAIT, BACKWARD, OPTIMIZER, SAVE, LOAD)}
    collectives = _Within(rank.of(COLLECTIVE))
    for step in range(len(edges) - 1):
        begin, end = int(edges[step]), int(edges[step + 1])
        spans = {kind: _union(events.spans(begin, end)) for kind, events in own.items()}
        exchanges = collectives.spans(begin, end)
        for phase, seconds in _phases(spans, exchanges, begin, end).items():
            tables[phase][row, step] = seconds


def _phases(spans: dict[int, Spans], exchanges: Spans, begin: int, end: int) -> dict[str, float]:
    """The seconds of each phase of one step, which together are the step."""
    waits, backward = spans[WAIT], spans[BACKWARD]
    checkpoint = _union(spans[SAVE] + spans[LOAD])
    computing = _union(waits + backward + checkpoint)
    optimizer = _without(_behind_closures(spans[OPTIMIZER], backward), computing)
    exposed = _exposed(backward, exchanges)
    busy = _union(computing + optimizer)
    blocking = _union([e for e in exchanges if not _is_in(e[0], backward)])
    idle = _gaps(busy, begin, end)
    left = _without(idle, blocking)
    forward = _overlap(left, forward_spans(waits, backward, begin))
    return {
        "data": _sum(waits),
        "forward": forward,
        "backward": _sum(backward) - exposed,
        "optimizer": _sum(optimizer),
        "communication": exposed + _overlap(idle, blocking),
        "checkpoint": _sum(checkpoint),
        "other": _sum(left) - forward,
    }


def _behind_closures(optimizers: Spans, backward: Spans) -> Spans:
    """Steps of optimizers without the closures that they call, which run forward and backward."""
    found = []
    for begin, end in optimizers:
        closures = [e for b, e in backward if begin <= b < end]
        found.append((max([begin, *closures]), end))
    return [(b, e) for b, e in found if e > b]


def forward_spans(waits: Spans, backward: Spans, begin: int) -> Spans:
    """From a batch to its backward pass, or from one backward pass to the next.

    A batch without a backward pass before the next batch is one of an evaluation.
    """
    found: Spans = []
    from_ns = None if waits else begin
    starts = sorted([(b, True) for b, _ in waits] + [(b, False) for b, _ in backward])
    for at, is_batch in starts:
        if not is_batch and from_ns is not None:
            found.append((from_ns, at))
        from_ns = at
    return found


class _Within:
    """Events of one kind, to be asked which of them are in a step."""

    def __init__(self, events: Events) -> None:
        """`events` are sorted by their begin."""
        self._events = events
        # How far those up to each one reach: long ones reach past others that began later.
        self._reach = np.maximum.accumulate(events["end_ns"])

    def spans(self, begin: int, end: int) -> Spans:
        """The time of those that overlap [begin, end), cut there."""
        low = int(np.searchsorted(self._reach, begin, side="right"))
        high = int(np.searchsorted(self._events["begin_ns"], end))
        found = self._events[low:high]
        times = zip(found["begin_ns"].tolist(), found["end_ns"].tolist(), strict=True)
        cut = [(max(b, begin), min(e, end)) for b, e in times]
        return [(b, e) for b, e in cut if e > b]


def _union(spans: Spans) -> Spans:
    joined: Spans = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((begin, end))
    return joined


def _sum(spans: Spans) -> float:
    return sum(end - begin for begin, end in spans) / 1e9


def _gaps(spans: Spans, begin: int, end: int) -> Spans:
    edges = [begin, *(edge for span in spans for edge in span), end]
    return [(b, e) for b, e in zip(edges[::2], edges[1::2], strict=True) if e > b]


def _without(spans: Spans, others: Spans) -> Spans:
    """The time in none of the others; both are unions."""
    return [gap for begin, end in spans for gap in _gaps(_cut(others, begin, end), begin, end)]


def _cut(spans: Spans, begin: int, end: int) -> Spans:
    return [(max(b, begin), min(e, end)) for b, e in spans if b < end and begin < e]


def _overlap(one: Spans, other: Spans) -> float:
    return sum(_sum([(max(a, c), min(b, d))]) for a, b in one for c, d in other if a < d and c < b)


def _is_in(time: int, spans: Spans) -> bool:
    return any(begin <= time <= end for begin, end in spans)


def _exposed(backward: Spans, exchanges: Spans) -> float:
    """How long backward passes only wait: after they have begun their last exchange."""
    waited = 0.0
    for begin, end in backward:
        begun = [exchange for exchange in exchanges if begin <= exchange[0] <= end]
        if begun:
            last = max(exchange[0] for exchange in begun)
            waited += _overlap([(last, end)], _union(begun))
    return waited


def _latecomers(
    ranks: Sequence[Rank], begin: npt.NDArray[np.int64], end: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], Seconds]:
    """The ranks that came last to the collectives of each step, and how late."""
    count = begin.shape[1]
    last, late_s = np.full(count, -1, np.int64), np.zeros(count)
    if len(ranks) < 2:
        return last, late_s
    arrivals: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for number, rank in enumerate(ranks):
        for event in rank.of(COLLECTIVE):
            key = rank.names[int(event["name"])], int(event["detail"])
            arrivals.setdefault(key, []).append((int(event["begin_ns"]), number))
    lateness = np.zeros((count, len(ranks)))
    for came in arrivals.values():
        if len(came) != len(ranks):
            continue
        came.sort()
        at, who = came[-1]
        step = int(np.searchsorted(begin[who], at, side="right")) - 1
        if 0 <= step < count and at < end[who, step]:
            lateness[step, who] += (at - came[(len(came) - 1) // 2][0]) / 1e9
    has_come = lateness.sum(axis=1) > 0
    last[has_come] = lateness[has_come].argmax(axis=1)
    late_s[has_come] = lateness[has_come].max(axis=1)
    return last, late_s
