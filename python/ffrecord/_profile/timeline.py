"""The events around a step in lanes, for a page and for a terminal."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from ffrecord._base import recording
from ffrecord._profile.files import Events
from ffrecord._profile.ranks import Rank
from ffrecord._profile.steps import Spans, Steps, forward_spans
from ffrecord._profile.verdict import seconds

LANES = ("steps", "collectives", "saves", "reads", "loader")
_RANKS_MAX = 4  # In a terminal: those with the most work of their own.
_INDENT = 22  # Before a lane: a rank and the name of the lane.
_COLUMNS_MIN, _COLUMNS_MAX = 40, 160


@dataclasses.dataclass(frozen=True)
class Mark:
    """How events of one kind are drawn."""

    lane: str
    phase: str
    letter: str
    """In a terminal."""
    name: str
    """In the key of a terminal."""
    is_behind: bool = False
    """Other events of the lane are drawn over it."""


MARKS = {
    recording.WAIT: Mark("steps", "data", "d", "data"),
    recording.BACKWARD: Mark("steps", "backward", "b", "backward"),
    recording.OPTIMIZER: Mark("steps", "optimizer", "o", "optimizer"),
    recording.SAVE: Mark("steps", "checkpoint", "c", "checkpoint"),
    recording.LOAD: Mark("steps", "checkpoint", "c", "checkpoint"),
    recording.COLLECTIVE: Mark("collectives", "communication", "=", "collective"),
    recording.COMMIT: Mark("saves", "checkpoint", "-", "a save is under way", is_behind=True),
    recording.STAGE: Mark("saves", "checkpoint", "s", "tensors are copied"),
    recording.UPLOAD: Mark("saves", "checkpoint", "#", "bytes of a save leave"),
    recording.READ: Mark("reads", "data", "r", "read"),
    recording.DAEMON_READ: Mark("reads", "data", "r", "read"),
    recording.DECODE: Mark("loader", "forward", "+", "decoding, collating"),
    recording.COLLATE: Mark("loader", "optimizer", "+", "decoding, collating"),
    recording.TRANSFER: Mark("loader", "other", "+", "decoding, collating"),
}
_FORWARD = Mark("steps", "forward", "f", "forward")


def events_between(rank: Rank, begin_ns: int, end_ns: int) -> Events:
    """The events of a rank that are drawn, of those that overlap a time; background first."""
    events = rank.events
    inside = events[(events["end_ns"] >= begin_ns) & (events["begin_ns"] < end_ns)]
    # Other threads than the one that trains save and wait, too.
    of_steps = [kind for kind, mark in MARKS.items() if mark.lane == "steps"]
    is_own = ~np.isin(inside["kind"], of_steps) | (inside["thread"] == rank.thread)
    drawn = inside[np.isin(inside["kind"], list(MARKS)) & is_own]
    is_front = np.isin(drawn["kind"], [kind for kind, mark in MARKS.items() if not mark.is_behind])
    found: Events = drawn[np.argsort(is_front, kind="stable")]
    return found


def rows_by_work(steps: Steps, step: int, count_max: int) -> list[int]:
    """The rows of the ranks with the most work of their own in a step, in order of ranks."""
    own = steps.seconds[:, step] - steps.phases["communication"][:, step]
    found: list[int] = sorted(np.argsort(-own)[:count_max].tolist())
    return found


def usual_step(steps: Steps, among: Sequence[int] = ()) -> int:
    """The step of median length, by the slowest rank; of all if `among` is empty."""
    numbers = np.asarray(among if len(among) else range(steps.count))
    return int(numbers[np.argsort(steps.seconds.max(axis=0)[numbers])[len(numbers) // 2]])


def text(steps: Steps, columns: int) -> list[str]:
    """A usual step as text, at most `columns` wide; one with a save beside it, if there is one."""
    saving = [step for step in range(steps.count) if _has_upload(steps, step)]
    step = usual_step(steps, saving)
    begin, end = int(steps.begin_ns[:, step].min()), int(steps.end_ns[:, step].max())
    width = min(max(columns, _COLUMNS_MIN), _COLUMNS_MAX) - _INDENT
    usual = "a usual one with a save beside it" if saving else "a usual one"
    each = seconds((end - begin) / 1e9 / width)
    lines = [
        f"step {step + 1} of {steps.count}, {usual}: {seconds((end - begin) / 1e9)}; a character is"
        f" {each}"
    ]
    shown: set[Mark] = set()
    for row in rows_by_work(steps, step, _RANKS_MAX):
        lanes = _Lanes(width, begin, end)
        lanes.draw(steps.ranks[row])
        shown |= lanes.marks
        title = f"rank {steps.ranks[row].rank}"
        for lane, cells in lanes.used():
            lines.append(f"{title:<9} {lane:<11} {cells}".rstrip())
            title = ""
    if len(steps.ranks) > _RANKS_MAX:
        lines.append(f"and {len(steps.ranks) - _RANKS_MAX} ranks with less work in this step")
    return [*lines, *_key(shown, columns)]


def _has_upload(steps: Steps, step: int) -> bool:
    for row, rank in enumerate(steps.ranks):
        uploads = rank.of(recording.UPLOAD)
        begin, end = steps.begin_ns[row, step], steps.end_ns[row, step]
        if bool(((uploads["end_ns"] > begin) & (uploads["begin_ns"] < end)).any()):
            return True
    return False


class _Lanes:
    """The lanes of one rank, a character for each part of the time."""

    def __init__(self, width: int, begin_ns: int, end_ns: int) -> None:
        """Empty lanes from one time to another."""
        self._begin_ns, self._end_ns = begin_ns, end_ns
        self._per_ns = width / max(end_ns - begin_ns, 1)
        self._cells = {lane: [" "] * width for lane in LANES}
        self.marks: set[Mark] = set()
        """The kinds of events that were drawn."""

    def draw(self, rank: Rank) -> None:
        """Draw the events of a rank, and its forward passes, which lie between others."""
        for span in self._forward(rank):
            self._fill(_FORWARD, *span)
        for event in events_between(rank, self._begin_ns, self._end_ns):
            self._fill(MARKS[int(event["kind"])], int(event["begin_ns"]), int(event["end_ns"]))

    def used(self) -> Iterator[tuple[str, str]]:
        """The lanes with something in them."""
        for lane, cells in self._cells.items():
            if any(cell != " " for cell in cells):
                yield lane, "".join(cells)

    def _forward(self, rank: Rank) -> Spans:
        spans = []
        for kind in (recording.WAIT, recording.BACKWARD):
            own = rank.own(kind)
            inside = own[(own["end_ns"] > self._begin_ns) & (own["begin_ns"] < self._end_ns)]
            spans.append([(int(each["begin_ns"]), int(each["end_ns"])) for each in inside])
        waits, backward = spans
        return forward_spans(waits, backward, self._begin_ns)

    def _fill(self, mark: Mark, begin_ns: int, end_ns: int) -> None:
        cells = self._cells[mark.lane]
        first = max(int((begin_ns - self._begin_ns) * self._per_ns), 0)
        behind = round((end_ns - self._begin_ns) * self._per_ns)
        for at in range(min(first, len(cells) - 1), min(max(behind, first + 1), len(cells))):
            cells[at] = mark.letter
        self.marks.add(mark)


def _key(marks: set[Mark], columns: int) -> list[str]:
    """The meaning of the letters, in the order of lanes."""
    every = [MARKS[recording.WAIT], _FORWARD, *MARKS.values()]
    parts = dict.fromkeys(f"{mark.letter} {mark.name}" for mark in every if mark in marks)
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + len(part) + 3 <= columns:
            lines[-1] += f" | {part}"
        else:
            lines.append(part)
    return lines
