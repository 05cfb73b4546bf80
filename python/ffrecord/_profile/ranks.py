"""From the files of a run to its ranks, on one clock."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from ffrecord._base.recording import BACKWARD, COLLECTIVE, OPTIMIZER, WAIT
from ffrecord._profile.files import Events, Process, merged

_TRAINING = (OPTIMIZER, BACKWARD, WAIT)  # Events that show that a process trains, best first.
# With so many collectives in common the clocks of two machines are well known.
_COLLECTIVES_MAX = 20_000


@dataclasses.dataclass
class Rank:
    """One rank, with the processes that work for it. Times are of the clock of all ranks, in ns."""

    rank: int
    host: str
    events: Events
    names: list[str]
    thread: int
    """The thread that trains."""
    unfinished: Events
    begin_ns: int
    """When its process began,"""
    end_ns: int
    """and when the last event of it ended."""
    has_ended: bool
    calendar_ns: int = 0
    """The difference to add to a time for one since 1970."""
    overwritten: int = 0
    torn: int = 0
    attempt: int = 0
    """How many processes have been this rank before."""
    clock_error_ns: int = 0

    def own(self, kind: int) -> Events:
        """Events of a kind in the thread that trains."""
        at = (self.events["kind"] == kind) & (self.events["thread"] == self.thread)
        found: Events = self.events[at]
        return found

    def of(self, kind: int) -> Events:
        """Events of a kind in all threads and processes."""
        found: Events = self.events[self.events["kind"] == kind]
        return found


def ranks_of(processes: Sequence[Process]) -> list[Rank]:
    """The ranks of a run, in order; of a rank that was started again, all attempts in order.

    Raises:
        ValueError: no process has trained or loaded anything.
    """
    trainers = [each for each in processes if _kind_of(each) == _best(processes)]
    if not trainers:
        raise ValueError(
            "nothing is recorded in this profile: no process has taken a batch from "
            "ffrecord.torch.DataLoader, run a backward pass or stepped an optimizer"
        )
    trainers.sort(key=lambda each: each.calendar_ns)
    helpers = _helpers(processes, trainers)
    offsets = _clocks(trainers)
    attempts: dict[int, int] = {}
    ranks = []
    for trainer, rank in zip(trainers, _numbers(trainers), strict=True):
        attempt = attempts.get(rank, 0)
        attempts[rank] = attempt + 1
        offset, error = offsets[trainer.boot]
        ranks.append(_rank(trainer, helpers[id(trainer)], rank, attempt, offset, error))
    return sorted(ranks, key=lambda each: (each.rank, each.attempt))


def latest(ranks: Sequence[Rank]) -> list[Rank]:
    """The last attempt of each rank, but for ranks that were gone before the last one began.

    A run may go on with fewer ranks than it had before, or be another one in the same folder.
    """
    last = {each.rank: each for each in ranks}.values()
    began = max((each.begin_ns for each in last), default=0)
    return [each for each in last if each.end_ns >= began]


def others_of(own: Process, processes: Sequence[Process]) -> list[Process]:
    """The last attempt of each other rank of a process's run."""
    world_size = own.world_size if own.world_size > 0 else 1 << 31
    ordered = sorted(processes, key=lambda each: each.calendar_ns)
    last = {each.rank: each for each in ordered if 0 <= each.rank < world_size}
    return [last[rank] for rank in sorted(last) if rank != own.rank]


def _lifetime(process: Process) -> tuple[int, int]:
    """From the begin of its profile to the last that is known of it, by the calendar."""
    ahead = process.calendar_ns - process.steady_ns
    known = [process.steady_ns]
    for events, field in ((process.events, "end_ns"), (process.unfinished, "begin_ns")):
        if len(events):
            known.append(int(events[field].max()))
    return process.calendar_ns, max(known) + ahead


def _overlaps(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]


def _numbers(trainers: Sequence[Process]) -> list[int]:
    """The rank of each. One that did not say is the first that nobody else is at that time."""
    taken: list[tuple[int, tuple[int, int]]] = [
        (each.rank, _lifetime(each)) for each in trainers if each.rank >= 0
    ]
    numbers = []
    for trainer in trainers:
        rank = trainer.rank
        if rank < 0:
            own = _lifetime(trainer)
            beside = {number for number, each in taken if _overlaps(own, each)}
            rank = next(number for number in range(len(taken) + 1) if number not in beside)
            taken.append((rank, own))
        numbers.append(rank)
    return numbers


def _kind_of(process: Process) -> int | None:
    """The best sign that a process trains."""
    kinds = set(np.unique(process.events["kind"]).tolist())
    return next((kind for kind in _TRAINING if kind in kinds), None)


def _best(processes: Sequence[Process]) -> int:
    found = {_kind_of(process) for process in processes}
    return next((kind for kind in _TRAINING if kind in found), 0)


def _helpers(processes: Sequence[Process], trainers: Sequence[Process]) -> dict[int, list[Process]]:
    """For each trainer the processes below it, by id(): workers that were spawned."""
    by_pid = {(each.boot, each.pid): each for each in processes}
    own: dict[int, list[Process]] = {id(trainer): [] for trainer in trainers}
    for process in processes:
        above: Process | None = process
        for _ in range(len(processes)):
            if above is None or id(above) in own:
                break
            above = by_pid.get((above.boot, above.parent_pid))
        if above is not None and above is not process and id(above) in own:
            own[id(above)].append(process)
    return own


def _rank(
    trainer: Process, helpers: list[Process], rank: int, attempt: int, offset: int, error: int
) -> Rank:
    events, names = merged([trainer, *helpers])
    events["begin_ns"] += offset
    events["end_ns"] += offset
    unfinished = trainer.unfinished.copy()
    unfinished["begin_ns"] += offset
    kind = _kind_of(trainer)
    threads, counts = np.unique(
        trainer.events["thread"][trainer.events["kind"] == kind], return_counts=True
    )
    begin = (trainer.began_ns or trainer.steady_ns) + offset
    ends = events["end_ns"]
    return Rank(
        rank=rank,
        host=trainer.host,
        events=events,
        names=names,
        thread=int(threads[np.argmax(counts)]),
        unfinished=unfinished,
        begin_ns=min(begin, int(events["begin_ns"].min())),
        end_ns=int(ends.max()),
        has_ended=trainer.has_ended,
        calendar_ns=trainer.calendar_ns - trainer.steady_ns - offset,
        overwritten=trainer.overwritten,
        torn=trainer.torn,
        attempt=attempt,
        clock_error_ns=error,
    )


# --- Clocks --------------------------------------------------------------------------------------


def _clocks(trainers: Sequence[Process]) -> dict[str, tuple[int, int]]:
    """For each machine what to add to its clock, and how wrong that may be.

    Machines are compared with that of the first rank, by what was there at the same time: attempts
    of a run count their collectives anew. Their calendars tell roughly. Collectives
    tell better: they end at about the same time on all ranks, and none ends on any rank before it
    has begun on all. So each of them bounds the offset from both sides, and the narrowest bounds
    count, as of the fastest of many round trips.
    """
    first = min(trainers, key=lambda each: each.rank if each.rank >= 0 else 1 << 30)
    clocks = {first.boot: (0, 0)}
    there = [each for each in reversed(trainers) if each.boot == first.boot]
    for process in reversed(trainers):
        if clocks.get(process.boot, (0, -1))[1] >= 0:
            continue
        guess = (process.calendar_ns - process.steady_ns) - (first.calendar_ns - first.steady_ns)
        own = _lifetime(process)
        beside = (each for each in there if _overlaps(_lifetime(each), own))
        found = next(filter(None, (_offset(each, process) for each in beside)), None)
        clocks[process.boot] = found or (guess, -1)
    return clocks


def _offset(one: Process, other: Process) -> tuple[int, int] | None:
    """The difference to the clock of `other`, and its error; None if nothing tells."""
    ours, theirs = _collectives(one), _collectives(other)
    common = sorted(ours.keys() & theirs.keys())[-_COLLECTIVES_MAX:]
    if not common:
        return None
    low = max(ours[key][0] - theirs[key][1] for key in common)
    high = min(ours[key][1] - theirs[key][0] for key in common)
    if low > high:
        return None
    likely = int(np.median([ours[key][1] - theirs[key][1] for key in common]))
    offset = min(max(likely, low), high)
    return offset, max(offset - low, high - offset)


def _collectives(process: Process) -> dict[tuple[str, int], tuple[int, int]]:
    events = process.events[process.events["kind"] == COLLECTIVE]
    return {
        (process.name(event), int(event["detail"])): (
            int(event["begin_ns"]),
            int(event["end_ns"]),
        )
        for event in events
    }
