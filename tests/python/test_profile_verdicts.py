"""Goal: the verdict names what holds steps up, where, and no more than that.

Method: profiles of runs that never were, with one or two causes put in or none, with seeded noise;
what is found is compared with what was put in, and the confusion table is printed.
"""

import dataclasses
import itertools
import random

import numpy as np
import pytest

from ffrecord._base import recording
from ffrecord._profile import report
from ffrecord._profile.causes import Findings
from ffrecord._profile.files import EVENT, Process
from ffrecord._profile.steps import PHASES
from ffrecord._profile.verdict import sentence
from profiled_runs import DAEMONS, DISK, FOLDER, Injected, profiles

_ONE = [
    Injected("data", "storage"),
    Injected("data", "decode"),
    Injected("data", "decode", rank=2),
    Injected("data", "check"),
    Injected("data", "collate"),
    Injected("data", "transfer", rank=1),
    Injected("compute", rank=0),
    Injected("compute", rank=3, size=0.25),
    Injected("communication"),
    Injected("checkpoint", "write"),
    Injected("checkpoint", "stage"),
    Injected("checkpoint", "write", rank=1),
    Injected("other"),
]
_AT_DAEMONS = [
    Injected("data", "disk"),
    Injected("data", "queue"),
    Injected("data", "network"),
    Injected("data", "disk", rank=3),
]
_TWO = [
    (Injected("data", "decode"), Injected("checkpoint", "write")),
    (Injected("data", "storage", rank=1), Injected("communication")),
    (Injected("compute", rank=2), Injected("communication")),
    (Injected("compute", rank=2, size=0.6), Injected("data", "decode", rank=2, size=0.3)),
    (Injected("compute", rank=0), Injected("data", "collate", rank=3)),
    (Injected("communication"), Injected("checkpoint", "stage")),
]


def findings(causes: tuple[Injected, ...] = (), **options: object) -> Findings:
    """What is found in a run with these causes."""
    return report.run_of(profiles(causes=causes, **options)).findings  # type: ignore[arg-type]


def labels(found: Findings) -> set[tuple[str, str, int | None]]:
    """What is found, as it is put in."""
    return {(cause.kind, cause.stage, cause.rank) for cause in found.causes}


def _runs() -> list[tuple[tuple[Injected, ...], dict[str, object]]]:
    runs: list[tuple[tuple[Injected, ...], dict[str, object]]] = []
    for seed in range(2):
        runs += [((cause,), {"seed": seed}) for cause in _ONE]
        runs += [((cause,), {"seed": seed, "by_daemons": True}) for cause in _AT_DAEMONS]
        runs += [(pair, {"seed": seed}) for pair in _TWO]
        runs += [((), {"seed": seed + 10 * n, "by_daemons": n % 2 == 0}) for n in range(8)]
    return runs


def test_causes_are_found_with_their_rank_and_stage_and_nothing_else() -> None:
    right, missed, wrong = [], [], []
    for causes, options in _runs():
        found, put_in = labels(findings(causes, **options)), {cause.label for cause in causes}
        right += sorted(map(str, found & put_in))
        missed += sorted(map(str, put_in - found))
        wrong += sorted(map(str, found - put_in))
    kinds = sorted({*right, *missed, *wrong})
    print(f"{'cause':<40}{'found':>7}{'missed':>7}{'wrong':>7}")
    for kind in kinds:
        print(f"{kind:<40}{right.count(kind):>7}{missed.count(kind):>7}{wrong.count(kind):>7}")
    precision = len(right) / (len(right) + len(wrong))
    recall = len(right) / (len(right) + len(missed))
    print(f"precision {precision:.3f}, recall {recall:.3f} over {len(_runs())} runs")
    assert precision >= 0.95, wrong
    assert recall >= 0.95, missed


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_a_healthy_run_has_no_cause(ranks: int) -> None:
    found = findings(ranks=ranks)
    assert found.causes == ()
    assert found.level == "healthy"
    assert sentence(found).startswith("healthy: a step takes 6")


@pytest.mark.parametrize(
    ("size", "level"), [(0.03, "healthy"), (0.08, "note"), (0.15, "warning"), (0.5, "critical")]
)
def test_the_level_follows_what_could_be_saved(size: float, level: str) -> None:
    assert findings((Injected("data", "decode", size=size),)).level == level


def test_the_verdict_tells_what_a_step_would_take_without_the_cause() -> None:
    healthy = findings().step_s
    found = findings((Injected("compute", rank=1, size=0.5),))
    assert found.causes[0].without_s == pytest.approx(healthy, rel=0.05)
    assert found.causes[0].saving == pytest.approx(1 - healthy / found.step_s, rel=0.1)


def test_a_cause_in_one_step_is_not_chronic() -> None:
    once = findings((Injected("data", "storage", size=30, only_at=(17,)),)).causes[0]
    always = findings((Injected("data", "storage"),)).causes[0]
    assert once.when == (17,)
    assert always.when == ()
    assert always.steps == 40
    assert "not chronic: only in step 18" in sentence(
        findings((Injected("data", "storage", size=30, only_at=(17,)),))
    )


def test_saves_every_ten_steps_are_a_cause_that_comes_again_and_again() -> None:
    every = tuple(range(9, 40, 10))
    found = findings((Injected("checkpoint", "write", size=3.0, only_at=every),))
    (cause,) = found.causes
    assert (cause.kind, cause.stage) == ("checkpoint", "write")
    assert cause.steps == len(every)
    assert f"again and again: in {len(every)} of 40 steps" in sentence(found)


@pytest.mark.parametrize(
    ("cause", "by_daemons", "place"),
    [
        (Injected("data", "disk"), True, DAEMONS[0]),
        (Injected("data", "queue"), True, DAEMONS[0]),
        (Injected("data", "storage"), False, FOLDER),
    ],
)
def test_the_verdict_names_where_the_records_are(
    cause: Injected, by_daemons: bool, place: str
) -> None:
    found = findings((cause,), by_daemons=by_daemons)
    assert found.causes[0].place == place
    assert place in sentence(found)


def test_the_verdict_names_the_slow_disk_of_a_daemon() -> None:
    found = findings((Injected("data", "disk"),), by_daemons=True)
    assert (found.causes[0].place, found.causes[0].disk) == (DAEMONS[0], DISK)
    assert f": disk {DISK} of the daemon {DAEMONS[0]}" in sentence(found)


def test_no_stage_is_named_that_does_not_explain_most_of_the_wait() -> None:
    causes = (Injected("data", "decode", size=0.3), Injected("data", "storage", size=0.3))
    run = profiles(causes=causes[:1], seed=1)
    both = profiles(causes=causes[1:], seed=1)
    mixed = [one if one.rank % 2 else other for one, other in zip(run, both, strict=True)]
    found = report.run_of(mixed).findings
    assert [(cause.kind, cause.stage) for cause in found.causes] == [("data", "")]
    assert set(found.causes[0].stages) >= {"decode", "storage"}


def test_the_rank_that_comes_last_is_named_although_all_steps_are_alike() -> None:
    run = report.run_of(profiles(causes=(Injected("compute", rank=2),)))
    durations = run.steps.seconds.mean(axis=1)
    assert durations.max() == pytest.approx(durations.min(), rel=0.05)
    assert (run.steps.last == 2).all()
    assert "last at collectives: rank 2 in 40 of 40 steps" in "\n".join(report.why(run))


def test_without_collectives_a_longer_backward_pass_counts_as_waiting() -> None:
    found = findings((Injected("data", "decode", rank=1),), records_collectives=False)
    assert labels(found) == {("data", "decode", 1)}


def test_clocks_of_machines_are_aligned_by_their_collectives() -> None:
    offsets = (0, 11_560_000_000, -7_000_000, 3_600_000_000_000)
    slow = (Injected("compute", rank=3),)
    run = report.run_of(profiles(causes=slow, clock_offsets_ns=offsets))
    assert (run.steps.last == 3).all()
    assert labels(run.findings) == {("compute", "", 3)}
    true_ns = [each.begin_ns for each in report.run_of(profiles(causes=slow)).ranks]
    for rank, begin_ns in zip(run.ranks, true_ns, strict=True):
        assert abs(rank.begin_ns - begin_ns) <= min(rank.clock_error_ns, 1_000_000)


def test_steps_are_matched_although_a_ring_has_lost_the_first_ones_of_a_rank() -> None:
    made = profiles(causes=(Injected("data", "decode", rank=0),))
    for process, gone in zip(made, (0, 90, 31, 7), strict=True):
        process.events = process.events[gone:]
        process.overwritten = gone
    run = report.run_of(made)
    assert abs(run.steps.end_ns - run.steps.end_ns[0]).max() < 5_000_000
    assert labels(run.findings) == {("data", "decode", 0)}
    assert "the oldest events were overwritten" in "\n".join(report.notes(run))


def test_several_optimizer_steps_for_a_batch_are_one_step() -> None:
    (process,) = profiles(ranks=1)
    again = process.events[process.events["kind"] == recording.OPTIMIZER].copy()
    again["begin_ns"] = again["end_ns"] + 1000
    again["end_ns"] = again["begin_ns"] + 2000
    joined = sorted(itertools.chain(process.events.tolist(), again.tolist()))
    process.events = type(process.events)(len(joined), process.events.dtype)
    process.events[:] = joined
    assert report.run_of([process]).steps.count == 40


def test_batches_without_an_optimizer_step_belong_to_the_next_step() -> None:
    (process,) = profiles(ranks=1)
    optimizers = process.events["kind"] == recording.OPTIMIZER
    every_fourth = optimizers.cumsum() % 4 == 0
    process.events = process.events[~optimizers | every_fourth]
    assert report.run_of([process]).steps.count == 9


def test_too_little_is_said_to_be_too_little() -> None:
    with pytest.raises(ValueError, match="less than two whole steps"):
        report.run_of(profiles(steps=0))
    (process,) = profiles(ranks=1)
    process.events = process.events[process.events["kind"] == recording.READ]
    with pytest.raises(ValueError, match="nothing is recorded"):
        report.run_of([process])


def test_a_rank_that_was_started_again_counts_its_earlier_attempt_as_lost_time() -> None:
    (before,) = profiles(ranks=1, steps=5)
    (now,) = profiles(ranks=1, clock_offsets_ns=(20_000_000_000,))
    before.boot = now.boot
    before.has_ended = False
    before.calendar_ns -= 20_000_000_000
    run = report.run_of([now, before])
    assert [rank.attempt for rank in run.ranks] == [0, 1]
    parts = report.spent(run)
    assert parts["earlier attempts"] == pytest.approx(20.0)
    total = (run.ranks[-1].end_ns - run.ranks[0].begin_ns) / 1e9
    assert sum(parts.values()) == pytest.approx(total)
    assert any(line.startswith("effective training time:") for line in report.why(run))


_HOUR_NS = 3_600_000_000_000


def an_hour_later(made: list[Process]) -> list[Process]:
    """The same, as other processes of the same machines, an hour later."""
    late = []
    for process in made:
        events = process.events.copy()
        events["begin_ns"] += _HOUR_NS
        events["end_ns"] += _HOUR_NS
        late.append(
            dataclasses.replace(
                process,
                path=f"later-{process.path}",
                pid=process.pid + 5000,
                events=events,
                steady_ns=process.steady_ns + _HOUR_NS,
                calendar_ns=process.calendar_ns + _HOUR_NS,
                began_ns=process.began_ns + _HOUR_NS,
            )
        )
    return late


def test_ranks_that_a_smaller_run_no_longer_has_are_not_taken_for_ranks_of_it() -> None:
    before = profiles(ranks=4, causes=[Injected("compute", rank=3)])
    now = an_hour_later(profiles(ranks=2, steps=30))
    run = report.run_of([*before, *now])
    assert [rank.rank for rank in run.steps.ranks] == [0, 1]
    assert run.steps.count == 30
    assert run.findings.causes == ()
    assert any("earlier attempts" in line for line in report.notes(run))


def test_a_program_without_ranks_that_runs_again_is_the_same_rank_again() -> None:
    alone = [dataclasses.replace(each, rank=-1, world_size=-1) for each in profiles(ranks=1)]
    run = report.run_of([*an_hour_later(alone), *alone])
    assert [(rank.rank, rank.attempt) for rank in run.ranks] == [(0, 0), (0, 1)]
    assert len(run.steps.ranks) == 1


def test_two_programs_without_ranks_at_the_same_time_are_two_ranks() -> None:
    made = [dataclasses.replace(each, rank=-1, world_size=-1) for each in profiles(ranks=2)]
    assert len(report.run_of(made).steps.ranks) == 2


def test_two_runs_in_one_folder_at_the_same_time_are_said_to_be_so() -> None:
    other = [dataclasses.replace(each, pid=each.pid + 9) for each in profiles(ranks=2, seed=4)]
    told = report.closing([*profiles(ranks=2), *other])
    assert any("two runs write to this folder" in line for line in told)


def test_clocks_of_machines_are_compared_by_collectives_of_the_same_attempt() -> None:
    offset = 7_000_000_000
    before = profiles(ranks=2, clock_offsets_ns=(0, 0))
    now = an_hour_later(profiles(ranks=2, seed=2, clock_offsets_ns=(0, offset)))
    now[1].boot = "another machine"
    run = report.run_of([*before, *now])
    late = [rank for rank in run.ranks if rank.rank == 1][-1]
    assert abs(late.end_ns - run.steps.ranks[0].end_ns) < offset / 100
    assert late.clock_error_ns >= 0


def _rank_of(*rows: tuple[int, float, float]) -> Process:
    """One rank that does this: kind, and from when to when in seconds."""
    (process,) = profiles(ranks=1)
    events = np.zeros(len(rows), EVENT)
    for number, (kind, begin, end) in enumerate(sorted(rows, key=lambda row: row[1])):
        events[number]["kind"], events[number]["thread"] = kind, 1
        events[number]["begin_ns"], events[number]["end_ns"] = begin * 1e9, end * 1e9
    return dataclasses.replace(process, events=events)


def _step(begin: float) -> list[tuple[int, float, float]]:
    """A second of waiting, forward, backward and optimizer, a quarter each."""
    return [
        (recording.WAIT, begin, begin + 0.25),
        (recording.BACKWARD, begin + 0.5, begin + 0.75),
        (recording.OPTIMIZER, begin + 0.75, begin + 1),
    ]


def test_an_evaluation_between_steps_is_other_work_and_not_forward() -> None:
    evaluation = [(recording.WAIT, at, at + 0.5) for at in (20.0, 21.0, 22.0)]
    training = [row for at in (*range(10, 20), *range(23, 30)) for row in _step(at)]
    steps = report.run_of([_rank_of(*training, *evaluation)]).steps
    step = int(np.argmax(steps.seconds[0]))
    assert steps.phases["forward"][0, step] == pytest.approx(0.25)
    assert steps.phases["other"][0, step] == pytest.approx(1.5)
    assert steps.phases["data"][0, step] == pytest.approx(1.75)


def test_accumulated_and_repeated_backward_passes_have_a_forward_each() -> None:
    rows = []
    for at in range(10, 40, 3):
        rows += _step(at)[:2]  # Two batches, then a second backward pass of the last.
        rows += _step(at + 1)[:2]
        rows += [
            (recording.BACKWARD, at + 2.25, at + 2.5),
            (recording.OPTIMIZER, at + 2.75, at + 3),
        ]
    steps = report.run_of([_rank_of(*rows)]).steps
    assert steps.phases["forward"] == pytest.approx(0.25 + 0.25 + 0.5)
    assert steps.phases["other"] == pytest.approx(0.25 + 0.25)


def test_waiting_for_others_between_phases_is_not_taken_from_forward() -> None:
    rows = []
    for at in range(10, 20):
        rows += _step(at)[:2]
        rows += [
            (recording.COLLECTIVE, at + 0.8, at + 0.9),  # The norm of all gradients, say.
            (recording.OPTIMIZER, at + 0.9, at + 1),
        ]
    steps = report.run_of([_rank_of(*rows)]).steps
    assert steps.phases["forward"] == pytest.approx(0.25)
    assert steps.phases["communication"] == pytest.approx(0.1)
    assert steps.phases["other"] == pytest.approx(0.05)


def test_an_exchange_that_outlasts_later_ones_counts_in_each_step_that_it_is_in() -> None:
    rows = [row for at in range(10, 20) for row in _step(at)]
    rows += [
        (recording.COLLECTIVE, 11.3, 13.4),
        (recording.COLLECTIVE, 11.35, 11.4),
        (recording.COLLECTIVE, 12.3, 12.35),
    ]
    steps = report.run_of([_rank_of(*rows)]).steps
    waited = steps.phases["communication"][0]  # The first step, which warms up, is left out.
    assert waited[:3] == pytest.approx([0.2, 0.25, 0.15])


def test_an_optimizer_that_runs_forward_and_backward_is_counted_without_them() -> None:
    rows = []
    for at in range(10, 20):
        rows += _step(at)[:2]
        rows.append((recording.OPTIMIZER, at + 0.3, at + 1))  # Calls a closure, as Lightning does.
        rows.append((recording.OPTIMIZER, at + 0.8, at + 0.9))  # Of the optimizer that it wraps.
    steps = report.run_of([_rank_of(*rows)]).steps
    for phase in ("data", "forward", "backward", "optimizer"):
        assert steps.phases[phase] == pytest.approx(0.25), phase


def _random_rank(chance: random.Random) -> Process:
    """Steps in ticks of a second, with saves, gaps, and collectives anywhere."""
    rows: list[tuple[int, float, float]] = []
    now = 100
    for _ in range(chance.randint(3, 6)):
        for kind in (recording.WAIT, None, recording.BACKWARD, None, recording.SAVE, None):
            begin, now = now, now + chance.randint(1, 9)
            if kind is not None and (kind != recording.SAVE or chance.random() < 0.3):
                rows.append((kind, begin, now))
        begin, now = now, now + chance.randint(1, 9)
        rows.append((recording.OPTIMIZER, begin, now))
    for _ in range(chance.randint(0, 8)):
        begin = chance.randint(100, now)
        rows.append((recording.COLLECTIVE, begin, begin + chance.randint(1, 40)))
    return _rank_of(*rows)


def _count_ticks(process: Process) -> list[dict[str, int]]:
    """The phases of each step, tick by tick."""
    of: dict[int, list[tuple[int, int]]] = {}
    for event in process.events:
        times = int(event["begin_ns"]) // 10**9, int(event["end_ns"]) // 10**9
        of.setdefault(int(event["kind"]), []).append(times)
    ends = [end for _, end in of[recording.OPTIMIZER]]
    exchanges = of.get(recording.COLLECTIVE, [])
    names = {
        recording.WAIT: "data",
        recording.BACKWARD: "backward",
        recording.OPTIMIZER: "optimizer",
        recording.SAVE: "checkpoint",
    }
    counted = []
    for begin, end in itertools.pairwise(ends):
        counts = dict.fromkeys(PHASES, 0)
        (batch,) = [b for b, _ in of[recording.WAIT] if begin <= b < end]
        ((backward, backward_end),) = [
            times for times in of[recording.BACKWARD] if begin <= times[0] < end
        ]
        begun = [times for times in exchanges if backward <= times[0] <= backward_end]
        last = max((b for b, _ in begun), default=end)
        for tick in range(begin, end):
            now = [
                name
                for kind, name in names.items()
                if any(b <= tick < e for b, e in of.get(kind, []))
            ]
            waits = [times for times in exchanges if times not in begun]
            if now == ["backward"] and tick >= last and any(b <= tick < e for b, e in begun):
                counts["communication"] += 1
            elif now:
                counts[now[0]] += 1
            elif any(b <= tick < e for b, e in waits):
                counts["communication"] += 1
            else:
                counts["forward" if batch <= tick < backward else "other"] += 1
        counted.append(counts)
    return counted


@pytest.mark.parametrize("seed", range(30))
def test_phases_are_what_a_count_of_moments_gives(seed: int) -> None:
    process = _random_rank(random.Random(seed))
    steps = report.run_of([process]).steps
    for step, counted in enumerate(_count_ticks(process)):
        found = {phase: steps.phases[phase][0, step] for phase in PHASES}
        assert found == pytest.approx(counted)
