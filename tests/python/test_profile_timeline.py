"""Goal: the timeline of a step in a terminal shows what ran when, to the character.

Method: profiles of runs that never were, with a millisecond for each character.
"""

import dataclasses

import numpy as np
import pytest

from ffrecord._base import recording
from ffrecord._cli import profile_page
from ffrecord._profile import report, timeline
from ffrecord._profile.files import EVENT, Process
from profiled_runs import profiles

_MS = 1_000_000
_STEP_MS, _STEPS = 100, 6
_COLUMNS = 22 + _STEP_MS
_TRAINING, _OTHER = 1, 2  # Threads.

Row = tuple[int, float, float, int]  # Kind, begin and end in ms, thread.


def _of_step(begin_ms: float) -> list[Row]:
    def row(kind: int, begin: float, end: float, thread: int = _TRAINING) -> Row:
        return kind, begin_ms + begin, begin_ms + end, thread

    return [
        row(recording.WAIT, 0, 10),
        row(recording.BACKWARD, 40, 90),
        row(recording.OPTIMIZER, 90, 100),
        row(recording.COLLECTIVE, 50, 85, _OTHER),
    ]


def _process(more: list[Row]) -> Process:
    """One rank with steps of 100 ms, and these events."""
    rows = [row for step in range(_STEPS + 1) for row in _of_step(step * _STEP_MS)] + more
    (process,) = profiles(ranks=1, steps=2)
    events = np.zeros(len(rows), EVENT)
    for event, (kind, begin, end, thread) in zip(events, sorted(rows, key=_begin), strict=True):
        event["kind"], event["thread"] = kind, thread
        event["begin_ns"], event["end_ns"] = round(begin * _MS), round(end * _MS)
    return dataclasses.replace(process, events=events, steady_ns=0, began_ns=0)


def _begin(row: Row) -> float:
    return row[1]


def lanes(*more: Row, columns: int = _COLUMNS) -> list[str]:
    """The timeline of that rank."""
    return timeline.text(report.run_of([_process(list(more))]).steps, columns)


def test_a_step_is_its_phases_and_what_ran_beside_them() -> None:
    title, steps, collectives, key = lanes()
    assert title == "step 4 of 6, a usual one: 100 ms; a character is 1 ms"
    assert steps == "rank 0    steps       " + "d" * 10 + "f" * 30 + "b" * 50 + "o" * 10
    assert collectives == " " * 10 + "collectives " + " " * 50 + "=" * 35
    assert key == "d data | f forward | b backward | o optimizer | = collective"


def test_the_bytes_of_a_save_stand_in_the_gaps_between_collectives() -> None:
    begin = 2 * _STEP_MS  # The second step, for the first is left out.
    saved = [
        (recording.COMMIT, begin + 5, begin + 3 * _STEP_MS, _OTHER),
        (recording.UPLOAD, begin + 20, begin + 30, _OTHER),
        (recording.UPLOAD, begin + 86, begin + 86.1, _OTHER),  # Less than a character.
    ]
    title, _, _, saves, *_ = lanes(*saved)
    assert title.startswith("step 2 of 6, a usual one with a save beside it: ")
    line = " " * 5 + "-" * 15 + "#" * 10 + "-" * 56 + "#" + "-" * 13
    assert saves == " " * 10 + "saves       " + line


def test_other_threads_do_not_stand_in_the_lane_of_the_one_that_trains() -> None:
    begins = [step * _STEP_MS for step in range(_STEPS + 1)]
    others = [(recording.SAVE, begin + 10, begin + 40, _OTHER) for begin in begins]
    assert lanes(*others) == lanes()


@pytest.mark.parametrize("columns", [1, 40, 80, 100_000])
def test_it_fits_any_terminal(columns: int) -> None:
    found = lanes(columns=columns)
    assert max(map(len, found[1:3])) <= max(min(columns, 160), 40)


def test_of_many_ranks_those_with_the_most_work_are_shown() -> None:
    found = timeline.text(report.run_of(profiles(ranks=7)).steps, 80)
    assert sum(line.startswith("rank ") for line in found) == 4
    assert "and 3 ranks with less work in this step" in found


def test_the_page_draws_the_same_events() -> None:
    begin = 2 * _STEP_MS
    uploads = [(recording.UPLOAD, begin + n, begin + n + 0.5, _OTHER) for n in range(10, 40)]
    run = report.run_of([_process([*uploads, (recording.COMMIT, begin, begin + 90, _OTHER)])])
    drawn = profile_page._events(run.steps.ranks[0], begin * _MS, (begin + 100) * _MS, 1e-5, 0, 100)
    assert sum("<title>upload" in each for each in drawn) == 30
    assert sum("save: write and commit" in each for each in drawn) == 1
