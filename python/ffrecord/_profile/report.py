"""Tables about a run, for a terminal."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from ffrecord._base.recording import LOAD, WAIT
from ffrecord._profile.causes import Findings, findings_of
from ffrecord._profile.files import Process
from ffrecord._profile.ranks import Rank, latest, ranks_of
from ffrecord._profile.steps import PHASES, Steps, steps_of
from ffrecord._profile.verdict import explained, headline, seconds, sentence

_RANKS_MAX = 16  # In a table: the slowest.


@dataclasses.dataclass
class Run:
    """The contents of a profile."""

    ranks: list[Rank]
    """With all attempts."""
    steps: Steps
    findings: Findings


def run_of(processes: Sequence[Process]) -> Run:
    """Analyse a run.

    Raises:
        ValueError: nothing is recorded, or less than two steps.
    """
    ranks = ranks_of(processes)
    steps = steps_of(latest(ranks))
    return Run(ranks, steps, findings_of(steps))


def closing(processes: Sequence[Process]) -> list[str]:
    """The table at the end of a run, and the verdict."""
    run = run_of(processes)
    return [*step_table(run.steps), "", sentence(run.findings), *notes(run)]


def why(run: Run) -> list[str]:
    """The verdict, each cause in detail, and the effective training time."""
    lines = [sentence(run.findings)]
    for cause in run.findings.causes:
        first, *others = explained(cause, run.findings)
        lines += ["", first, *(f"  {line}" for line in others)]
    return [*lines, "", *stragglers(run.steps), *time_table(run), *notes(run)]


def facts(run: Run) -> dict[str, Any]:
    """All of it, for programs."""
    steps = run.steps
    return {
        "verdict": sentence(run.findings),
        "level": run.findings.level,
        "steps": run.findings.steps,
        "step_s": run.findings.step_s,
        "causes": [
            {**dataclasses.asdict(cause), "level": cause.level} for cause in run.findings.causes
        ],
        "ranks": [
            {
                "rank": rank.rank,
                "host": rank.host,
                "attempts": rank.attempt + 1,
                "phases_s": {p: float(steps.phases[p][row].mean()) for p in PHASES},
                "came_last": int((steps.last == row).sum()),
            }
            for row, rank in enumerate(steps.ranks)
        ],
        "time_s": spent(run),
        "headline": headline(run.findings),
    }


def step_table(steps: Steps) -> list[str]:
    """One row per rank: how long its steps are, and what they are made of."""
    means = {phase: steps.phases[phase].mean(axis=1) for phase in PHASES}
    total = steps.seconds.mean(axis=1)
    own = total - means["communication"]
    rows = np.argsort(-own)[:_RANKS_MAX]
    lines = [f"{'rank':>5} {'step':>9} " + " ".join(f"{_title(p):>9}" for p in PHASES) + "  host"]
    for row in sorted(rows.tolist()):
        cells = " ".join(f"{seconds(means[phase][row]):>9}" for phase in PHASES)
        rank = steps.ranks[row]
        lines.append(f"{rank.rank:>5} {seconds(total[row]):>9} {cells}  {rank.host}")
    if len(total) > _RANKS_MAX:
        lines.append(f"and {len(total) - _RANKS_MAX} ranks with less work per step")
    return lines


def _title(phase: str) -> str:
    return {"communication": "exposed", "checkpoint": "ckpt"}.get(phase, phase)


def stragglers(steps: Steps) -> list[str]:
    """The ranks that come last to collectives."""
    came = steps.last[steps.last >= 0]
    if not len(came):
        return []
    rows, counts = np.unique(came, return_counts=True)
    order = np.argsort(-counts)[:3]
    told = [
        f"rank {steps.ranks[int(rows[n])].rank} in {counts[n]} of {steps.count} steps, "
        f"{seconds(float(np.median(steps.late_s[steps.last == rows[n]])))} late"
        for n in order.tolist()
    ]
    return ["last at collectives: " + "; ".join(told), ""]


# --- Effective training time ---------------------------------------------------------------------


def spent(run: Run) -> dict[str, float]:
    """Where the time of rank 0 went, from the begin of its first process on, in seconds.

    `training` is what makes a model better: forward, backward and optimizer.
    """
    first_rank = run.steps.ranks[0]
    attempts = [rank for rank in run.ranks if rank.rank == first_rank.rank]
    row = {phase: float(run.steps.phases[phase][0].sum()) for phase in PHASES}
    begin, end = attempts[0].begin_ns, attempts[-1].end_ns
    last = attempts[-1]
    between = last.begin_ns - begin
    waits = last.own(WAIT)
    first_step = int(run.steps.begin_ns[0, 0])
    loads = last.of(LOAD)
    loads = loads[loads["begin_ns"] < first_step]
    loading = float((loads["end_ns"] - loads["begin_ns"]).sum()) / 1e9
    first_batch = float((waits["end_ns"] - waits["begin_ns"])[:1].sum()) / 1e9
    before = (first_step - last.begin_ns) / 1e9
    parts = {
        "training": row["forward"] + row["backward"] + row["optimizer"],
        "data": row["data"],
        "communication": row["communication"],
        "checkpoint": row["checkpoint"],
        "other": row["other"],
        "restore": loading,
        "first batch": min(first_batch, max(before - loading, 0.0)),
        "earlier attempts": between / 1e9,
    }
    parts["start"] = max(before - parts["restore"] - parts["first batch"], 0.0)
    parts["end"] = max((end - int(run.steps.end_ns[0, -1])) / 1e9, 0.0)
    return parts


def time_table(run: Run) -> list[str]:
    """How much of the time of the run was training."""
    parts = spent(run)
    total = sum(parts.values())
    if total <= 0:
        return []
    lines = [f"effective training time: {parts['training'] / total:.1%} of {seconds(total)}"]
    for name, value in sorted(parts.items(), key=lambda item: -item[1]):
        if value > 0:
            lines.append(f"  {name:<18}{seconds(value):>10}  {value / total:6.1%}")
    return lines


def notes(run: Run) -> list[str]:
    """Remarks that a reader of these numbers has to know."""
    lines = []
    killed = [str(rank.rank) for rank in run.ranks if not rank.has_ended]
    if killed:
        lines.append(f"killed, or still running: ranks {', '.join(killed[:16])}")
    again = [rank for rank in run.ranks if rank.attempt]
    if again:
        lines.append(
            f"this folder has {len(again)} earlier attempts of ranks, or other runs: the steps are "
            "of the last"
        )
    following = zip(run.ranks, run.ranks[1:], strict=False)
    if any(one.rank == next.rank and one.end_ns > next.begin_ns for one, next in following):
        lines.append(
            "several processes were the same rank at the same time: two runs write to this folder, "
            "and each needs its own"
        )
    if sum(rank.overwritten for rank in run.ranks):
        lines.append("the oldest events were overwritten: the figures are of the last steps")
    if run.steps.infers_waits:
        lines.append(
            "collectives were not recorded: the part of a backward pass that is longer than on "
            "the fastest rank counts as waiting"
        )
    unknown = [rank for rank in run.ranks if rank.clock_error_ns < 0]
    if unknown:
        lines.append("clocks of several machines were compared by their calendars only")
    return lines
