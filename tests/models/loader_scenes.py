"""Scenes from trainings: what meets rarely by chance, played in one go.

Each takes steps of loaders beside the truth, as the rules do, but in an order that leads to where
two features meet: weights that change in a loop and an epoch that begins again; a state of one
world size in another; a worker that dies; a framework that gathers what ranks have.
"""

import dataclasses
import functools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from hypothesis import strategies as st

import loader_views as views
from ffrecord.torch import DataLoader, Dataset, Sampler
from loader_rules import GOOD_FILES, PLANS, SCENE_MODES, SIZES, WEIGHTS, WORLDS, scene, several
from loader_runs import Run, fits
from loader_truth import Place, Plan
from loader_views import View

_KILLED_S = 30.0  # Until an error must come; the promise is 10 s, of a machine that is not busy.


def _run(view: View, mode: str, plan: Plan) -> Run:
    return Run(view, "plain", "raise", mode, plan, views.dataset_of(view, "plain", "raise"))


def go(run: Run, steps: int) -> None:
    """Take steps, of new iterations where one ends."""
    while steps > 0:
        if not run.iterations:
            run.begin()
        at = run.iterations[-1]
        left = run.plan.steps((at.at or run.next).position)
        run.take(-1, min(steps, left + 1))
        run.check_states()
        steps -= left + 1


@scene(
    files=several(GOOD_FILES, 2, unique=True),
    weights=WEIGHTS,
    plan=PLANS,
    mode=SCENE_MODES,
    changes=st.lists(
        st.tuples(
            WEIGHTS, st.integers(0, 6), st.sampled_from(["on", "on", "on", "again", "resume"])
        ),
        min_size=2,
        max_size=24,
    ),
)
def reweigh(
    files: Sequence[str],
    weights: Sequence[int],
    plan: Plan,
    mode: str,
    changes: Sequence[tuple[Sequence[int], int, str]],
) -> None:
    """Change the weights of a mixture in a running loop, again and again."""
    view = views.mixed([views.opened(name) for name in files], list(weights), 3)
    plan = dataclasses.replace(plan, labels=view.labels, mix=view.mix)
    if not fits(plan):
        return
    run = _run(view, mode, plan)
    try:
        for other, many, end in changes:
            go(run, many)
            run.set_weights(list(other))
            run.check_states()
            go(run, 1)
            if end == "again" and run.iterations:
                run.drop(-1)
                go(run, many + 1)
            elif end == "resume":
                made = run.resumed("json", mode, plan.world, plan.size)
                run.close()
                if made is None:
                    return
                run = made
        go(run, 50)
    finally:
        run.close()


@scene(
    name=GOOD_FILES,
    plan=PLANS,
    modes=several(SCENE_MODES, 3),
    worlds=several(st.tuples(WORLDS, SIZES), 3),
)
def resize(name: str, plan: Plan, modes: Sequence[str], worlds: Sequence[tuple[int, int]]) -> None:
    """Go on at other world sizes and with other steps, until the epoch after ends."""
    view = views.opened(name)
    plan = dataclasses.replace(plan, labels=view.labels)
    if not fits(plan):
        return
    run = _run(view, modes[0], plan)
    try:
        for mode, (world, size) in zip(modes, worlds, strict=True):
            go(run, 2)
            made = run.resumed("json", mode, world, size)
            if made is None:
                return
            run.close()
            run = made
        go(run, run.plan.steps(0) * 2)
    finally:
        run.close()


# Each costs a second or more, and the first of a fork server some more, so they are rare.
@scene(
    name=GOOD_FILES,
    dice=st.integers(0, 30),
    method=st.sampled_from(["fork"] * 6 + ["forkserver"] * 6 + ["spawn"]),
    in_thread=st.booleans(),
    persistent=st.booleans(),
    steps=st.integers(0, 2),
)
def kill(name: str, dice: int, method: str, in_thread: bool, persistent: bool, steps: int) -> None:
    """Kill a worker in the loop: an error comes soon, and the state goes on."""
    if dice != 7:
        return
    view = views.opened(name)
    made = views.dataset_of(view, "transform", "raise").dataset
    sampler = Sampler(made, 1, last="short")
    loader = DataLoader(
        made,
        batch_sampler=sampler,
        num_workers=1,
        multiprocessing_context=method,
        persistent_workers=persistent,
        prefetch_factor=1,
    )
    plan = Plan(view.labels, "shuffled", 0, 1, False, "short", 1, view.mix)
    others = set(multiprocessing.active_children())

    def loop() -> Place:
        iterator = iter(loader)
        place = Place(0, 0)
        for _ in range(steps + 1):
            assert views.labels_of(next(iterator)) == [plan.label(view.mix, 0, place.position)]
            place = Place(0, place.position + 1)
        try:
            for worker in {*multiprocessing.active_children()} - others:
                os.kill(worker.pid, signal.SIGKILL)  # type: ignore[arg-type]
            for batch in iterator:
                assert views.labels_of(batch) == [plan.label(view.mix, 0, place.position)]
                place = plan.step(place)[1]
        except RuntimeError:
            pass
        else:
            assert place.epoch == 1, "a killed worker ends the epoch"
        return place

    place = _soon(loop, in_thread)
    state = loader.state_dict()
    assert (state["epoch"], state["position"]) == (place.epoch, place.position)
    rest = [views.labels_of(batch) for batch in _restored(made, state)]
    following = Place(place.epoch, place.position)
    assert rest == [
        [plan.label(view.mix, following.epoch, position)]
        for position in range(following.position, plan.count)
    ]


def _restored(dataset: Any, state: dict[str, Any]) -> DataLoader:  # noqa: ANN401 - any dataset
    sampler = Sampler(dataset, 1, last="short")
    sampler.load_state_dict(state)
    return DataLoader(dataset, batch_sampler=sampler)


def _soon(call: Callable[[], Place], in_thread: bool) -> Place:
    """Return what `call` returns, in this thread or in another, unless it waits for long."""

    def late(*_: object) -> None:
        raise AssertionError(f"no error within {_KILLED_S:.0f} s of a worker's death")

    if not in_thread:
        before = signal.signal(signal.SIGALRM, late)
        signal.setitimer(signal.ITIMER_REAL, _KILLED_S)
        try:
            return call()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
    found: list[Place | BaseException] = []

    def keep() -> None:
        try:
            found.append(call())
        except BaseException as error:  # Whatever it is: it is raised in the thread of the model.
            found.append(error)

    thread = threading.Thread(target=keep, daemon=True)
    thread.start()
    try:
        thread.join(_KILLED_S)
    except RuntimeError:  # Of the signal of the death, which the main thread gets.
        thread.join(_KILLED_S)
    if not found:
        late()
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


@scene(
    name=GOOD_FILES,
    plan=PLANS,
    mode=st.sampled_from(["caller", "caller", "threads", "one thread", "auto"] * 6 + ["workers"]),
    stops=st.lists(st.integers(1, 9), min_size=1, max_size=3),
)
def draw(name: str, plan: Plan, mode: str, stops: Sequence[int]) -> None:
    """Draw a number beside each batch, in a run that is resumed with its random numbers."""
    view = views.opened(name)
    plan = dataclasses.replace(plan, labels=view.labels, world=1)
    if not fits(plan):
        return
    torch.manual_seed(7)
    whole = _drawn(_run(view, mode, plan).loaders[0], sum(stops))
    torch.manual_seed(7)
    run = _run(view, mode, plan)
    drawn = []
    for stop in stops:
        drawn += _drawn(run.loaders[0], stop)
        state, numbers = run.loaders[0].state_dict(), torch.get_rng_state()
        run.close()
        torch.rand(5)
        run = _run(view, mode, plan)
        run.loaders[0].load_state_dict(state)
        torch.set_rng_state(numbers)
    run.close()
    assert drawn == whole, (drawn, whole)


def _drawn(loader: DataLoader, batches: int) -> list[float]:
    """One for each batch, over as many epochs as these take."""
    drawn: list[float] = []
    while len(drawn) < batches:
        for _ in loader:
            drawn.append(torch.rand(()).item())
            if len(drawn) == batches:
                break
    return drawn


@functools.cache
def accelerator() -> Any:  # noqa: ANN401 - accelerate's, if it is installed
    """Return an `Accelerator` of one process; None without accelerate."""
    try:
        from accelerate import Accelerator
    except ImportError:
        return None
    return Accelerator(cpu=True)


def gather(view: View, plan: Plan, mode: dict[str, Any]) -> None:
    """Gather an epoch of all ranks as accelerate does: each record once, or its shapes checked."""
    if view.is_bad or view.is_tokens or not fits(plan) or accelerator() is None:
        return
    from accelerate.state import PartialState

    made = [Dataset(view.records, columns=["id"]) for _ in range(plan.world)]
    loaders = []
    for rank, dataset in enumerate(made):
        sampler = Sampler(
            dataset,
            **{"batch_size" if plan.is_per_rank else "global_batch": plan.size},
            seed=plan.seed,
            rank=rank,
            world_size=plan.world,
            last=plan.last,  # type: ignore[arg-type]
            uneven=True,
        )
        loaders.append(accelerator().prepare(DataLoader(dataset, batch_sampler=sampler, **mode)))
    place = Place(0, 0)
    try:
        for batches in zip(*loaders, strict=True):
            shares, after = plan.step(place)
            there = [at for share in shares for at in share]
            if len({len(batch["id"]) for batch in batches}) > 1:
                assert PartialState().debug, f"unequal shares at {place} are gathered unchecked"
            else:
                whole = torch.cat([batch["id"] for batch in batches])
                accelerator().gather = lambda _, whole=whole: whole
                found = accelerator().gather_for_metrics(batches[-1]["id"]).tolist()
                once = [plan.label(view.mix, 0, at) for at in there if at < plan.count]
                assert found == once, f"{found} is gathered instead of {once} at {place}"
            place = after
        assert place.epoch == 1, f"the epoch ends at {place}"
    finally:
        for loader in loaders:
            loader.close()
