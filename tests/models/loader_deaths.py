"""Scene of workers that end under a run, killed or by Ctrl-C: no batch is lost, and it goes on."""

import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from hypothesis import strategies as st

import loader_views as views
from ffrecord.errors import DeadlineExceeded
from loader_changes import run_of
from loader_rules import GOOD_FILES, PLANS, scene
from loader_runs import Run, is_bad
from loader_scenes import go
from loader_truth import Place, Plan


@scene(
    name=GOOD_FILES,
    kind=st.sampled_from(["plain", "augmented", "nested"]),
    plan=PLANS,
    how=st.sampled_from([None, None, "workers", "persistent", "interrupted"]),
    steps=st.integers(0, 9),
)
def deaths(name: str, kind: str, plan: Plan, how: str | None, steps: int) -> None:
    """End all workers in an epoch, or between two: torch's error, the place of the last batch."""
    mode = "persistent" if how == "interrupted" else how
    run = None if mode is None else run_of(views.opened(name), kind, "raise", mode, plan)
    if run is None:
        return
    others = set(multiprocessing.active_children())
    try:
        run.begin()
        run.take(0, steps + 1)
        state, place = run.check_states(), run.state
        _end({*multiprocessing.active_children()} - others, how == "interrupted")
        for rank, loader in enumerate(run.loaders):
            at = _drained(run, rank) if run.iterations else place
            _check_place(loader, at)
        run.close()
        run.load_again(state, place, None)
        for loader in run.loaders:
            _check_told_once(loader, may_tell=how == "persistent")
        run.load_again(state, place, None)
        go(run, 2 * run.plan.steps(0))
    finally:
        run.close()


def _end(workers: set[Any], is_interrupt: bool) -> None:
    """End them; one that Ctrl-C ends has not come to it yet."""
    if is_interrupt:
        for each in workers:
            with suppress(ProcessLookupError):
                os.kill(each.pid, signal.SIGINT)
        return
    # The signal of a death would raise torch's error at any line of the model: here it comes once
    # for each loader, when all workers are dead.
    handler = signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        for each in workers:
            with suppress(ProcessLookupError):
                os.kill(each.pid, signal.SIGKILL)
        for each in workers:
            each.join()
    finally:
        signal.signal(signal.SIGCHLD, handler)
    for _ in workers:
        with suppress(RuntimeError):
            signal.raise_signal(signal.SIGCHLD)


def _drained(run: Run, rank: int) -> Place:
    """Take the batches that an iteration still has; returns the place behind the last one."""
    iteration = run.iterations[0]
    iterator: Iterator[Any] = iteration.iterators[rank]
    at = iteration.at
    assert at is not None
    while at.epoch == iteration.epoch:
        shares, after = run.plan.step(at)
        try:
            batch = next(iterator)
        except RuntimeError as error:
            assert "worker" in str(error), f"{error} is not of the death"
            assert not isinstance(error, DeadlineExceeded), "the death is not noticed"
            return at
        expected = run.plan.share(run.mix, at.epoch, shares[rank], is_bad, run.policy)
        found = views.labels_of(batch)
        assert found == expected, f"beside a death, {found} comes at {at} instead of {expected}"
        at = after
    return at


def _check_place(loader: Any, at: Place) -> None:  # noqa: ANN401 - ours
    state = loader.state_dict()
    found = Place(state["epoch"], state["position"])
    assert found == at, f"after a death the state is {found}, and {at} was delivered"


def _check_told_once(loader: Any, *, may_tell: bool) -> None:  # noqa: ANN401 - ours
    """Check that an iteration begins at once; but workers that persist may have to tell of it."""
    try:
        next(iter(loader))
    except RuntimeError as error:
        assert may_tell, f"an iteration does not begin after the workers' end: {error}"
        next(iter(loader))
