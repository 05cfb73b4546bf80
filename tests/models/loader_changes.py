"""Scenes of what a program changes beside a loop: its place, its settings, its data, its chance."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch.utils import data

import ffrecord
import loader_views as views
from ffrecord.decode import Image
from ffrecord.errors import CorruptionError
from ffrecord.torch import ConcatDataset, DataLoader, Dataset, Sampler, Subset
from loader_rules import GOOD_FILES, MODES, PLANS, SCENE_MODES, SIZES, WORLDS, scene, several
from loader_runs import MODES as MODES_OF_RUNS
from loader_runs import Run, allowed, fits
from loader_scenes import go
from loader_truth import Place, Plan
from table_values import KINDS as VALUES


def run_of(view: views.View, kind: str, policy: str, mode: str, plan: Plan) -> Run | None:
    """Make a run of a view; None if the Sampler does not take the plan."""
    made = views.dataset_of(view, kind, policy)
    plan = dataclasses.replace(plan, labels=made.labels, mix=made.mix)
    if not fits(plan):
        return None
    return Run(view, kind, policy, mode if allowed(mode, policy) else "caller", plan, made)


@scene(
    beside=st.sampled_from(["nothing", "a", "twice", "mixed"]),
    kind=st.sampled_from([kind for kind in views.KINDS if kind not in views.ONE_BY_ONE]),
    policy=st.sampled_from(["skip", "replace"]),
    mode=SCENE_MODES,
    plan=PLANS,
)
def damage(beside: str, kind: str, policy: str, mode: str, plan: Plan) -> None:
    """Two epochs with damaged records, which the policy of the dataset handles."""
    ill = views.opened("ill")
    view = {
        "nothing": lambda: ill,
        "a": lambda: views.joined([views.opened("a"), ill]),
        "twice": lambda: views.joined([ill, ill]),
        "mixed": lambda: views.mixed([views.opened("c"), ill], [2, 1], 5),
    }[beside]()
    run = run_of(view, kind, policy, mode, plan)
    if run is not None:
        try:
            go(run, 2 * run.plan.steps(0) + 2)
        finally:
            run.close()


@scene(
    name=GOOD_FILES,
    kind=st.sampled_from(views.AUGMENTED),
    plan=PLANS,
    modes=several(MODES, 2),
    steps=st.integers(0, 9),
    world=WORLDS,
    size=SIZES,
)
def chance(
    name: str, kind: str, plan: Plan, modes: list[str], steps: int, world: int, size: int
) -> None:
    """Augment, and go on elsewhere to the end of the epoch after: the same chance."""
    view = views.opened(name)
    if plan.seed == 2**64 - 1:
        view = views.mixed([view, views.opened("ill" if name == "a" else "a")], [2, 1], 5)
        view = view if not view.is_bad else views.opened(name)
    if any(mode == "torch" and kind in views.ONE_BY_ONE for mode in modes):
        modes = ["caller", "threads"]
    run = run_of(view, kind, "raise", modes[0], plan)
    if run is None:
        return
    try:
        go(run, steps)
        made = run.resumed("json", modes[1], world, size)
        if made is not None:
            run.close()
            run = made
        go(run, 2 * run.plan.steps(0))
    finally:
        run.close()


@scene(
    name=GOOD_FILES,
    mode=MODES,
    plan=PLANS,
    steps=several(st.integers(0, 5), 4),
    how=st.sampled_from(["epoch", "state"]),
    epoch=st.integers(0, 3),
)
def jump(name: str, mode: str, plan: Plan, steps: list[int], how: str, epoch: int) -> None:
    """Set the position in a loop that goes on: the loop keeps its order, the state its place."""
    run = run_of(views.opened(name), "plain", "raise", mode, plan)
    if run is None:
        return
    try:
        go(run, steps[0])
        state, place = run.check_states(), run.state
        go(run, steps[1])
        if how == "epoch":
            run.set_epoch(epoch)
        else:
            run.load_again(state, place, None)
        run.check_states()
        if not run.iterations:
            run.begin()
        _take(run, 0, steps[2] + 1)
        run.begin()
        for which in (-1, 0, -1, 0):
            _take(run, which, steps[3])
        go(run, 2 * run.plan.steps(0))
    finally:
        run.close()


def _take(run: Run, which: int, steps: int) -> None:
    if run.iterations:
        run.take(which, steps)
        run.check_states()


# What a program sets between two epochs, and how a batch shows it.

_PICTURE = VALUES["png"].values[0]
_COUNT = 24


@functools.cache
def _pictures() -> str:
    path = views.folder() / "pictures.ffr"
    with ffrecord.Writer(path, {"id": "i64", "p": "bytes"}) as writer:
        for label in range(_COUNT):
            writer.write({"id": label, "p": _PICTURE})
    return str(path)


def _marked(mark: int) -> Callable[[Any], Any]:
    return lambda sample: {**sample, "mark": mark}


def _set_transform(dataset: Any, number: int) -> None:  # noqa: ANN401
    dataset.transform = _marked(number) if number % 2 else None


def _set_columns(dataset: Any, number: int) -> None:  # noqa: ANN401
    dataset.columns = ("id", "p") if dataset.columns == ("id",) else ("id",)


def _set_decoder(dataset: Any, number: int) -> None:  # noqa: ANN401
    dataset.decode = {"p": Image(2 + number % 3)}


def _change_decoder(dataset: Any, number: int) -> None:  # noqa: ANN401
    dataset.decode["p"] = Image(2 + number % 3)


_SETTINGS: dict[str, Callable[[Any, int], None]] = {
    "transform": _set_transform,
    "columns": _set_columns,
    "decoder": _set_decoder,
    "decoder in place": _change_decoder,
    "nothing": lambda _, __: None,
}
_WRAPPED: dict[str, Callable[[Any], Any]] = {
    "plain": lambda dataset: dataset,
    "subset": lambda dataset: Subset(dataset, range(_COUNT)),
    "torch subset": lambda dataset: data.Subset(dataset, list(range(_COUNT))),
    "concat": lambda dataset: ConcatDataset([dataset]),
    "torch concat": lambda dataset: data.ConcatDataset([dataset]),
}


@scene(
    kind=st.sampled_from(sorted(_WRAPPED)),
    mode=st.sampled_from(["caller", "threads", "one thread", "auto"] * 6 + ["workers"]),
    changes=several(st.tuples(st.sampled_from(sorted(_SETTINGS)), st.sampled_from([2, 100])), 4),
    size=SIZES,
    is_plain=st.booleans(),
)
def settings(
    kind: str, mode: str, changes: list[tuple[str, int]], size: int, is_plain: bool
) -> None:
    """Change a dataset between epochs: it is as it was set when an iteration began."""
    dataset: Any = Dataset(_pictures(), decode={"p": Image(2)})
    whole = _WRAPPED[kind](dataset)
    given: dict[str, Any] = {"batch_size": size}
    if not is_plain:
        given = {"batch_sampler": Sampler(whole, size, last="short", shuffle=False)}
    loader = DataLoader(whole, **given, **MODES_OF_RUNS[mode])
    try:
        for number, (what, steps) in enumerate(changes):
            _SETTINGS[what](dataset, number)
            labels: list[int] = []
            for batch in loader:
                labels += views.labels_of(batch)
                _check_shown(dataset, batch, f"{what} {number}, {loader.stats()['engine']}")
                steps -= 1
                if not steps:
                    break
            assert labels == list(range(len(labels)))
            assert steps <= 0 or len(labels) == _COUNT
    finally:
        loader.close()


def _check_shown(dataset: Any, batch: Any, where: str) -> None:  # noqa: ANN401
    names = [*(dataset.columns or ("id", "p")), *(["mark"] if dataset.transform else [])]
    assert list(batch) == names, f"{where}: the columns {list(batch)}, not {names}"
    if "p" in names:
        size, shape = dataset.decode["p"].size, tuple(batch["p"].shape[1:3])
        assert shape == size, f"{where}: pictures of {shape}, not {size}"
    if dataset.transform:
        wanted = dataset.transform({})["mark"]
        assert batch["mark"].unique().tolist() == [wanted], f"{where}: marks {batch['mark']}"


@scene(
    name=GOOD_FILES,
    mode=MODES,
    plan=PLANS,
    epochs=several(st.integers(0, 9), 4),
    saved=st.integers(0, 20),
)
def named(name: str, mode: str, plan: Plan, epochs: list[int], saved: int) -> None:
    """Follow a framework that takes steps in epochs of its own, perhaps none, and resume in one."""
    run = run_of(views.opened(name), "plain", "raise", mode, plan)
    if run is None or mode in ("torch", "by sampler"):
        return
    try:
        for epoch, steps in enumerate(epochs):
            _name(run, epoch)
            first = run.next.epoch
            for left in range(steps, -1, -1):
                if saved == 0:
                    made = run.resumed("json", mode, run.plan.world, run.plan.size)
                    assert made is not None
                    run.close()
                    run = made
                    _name(run, epoch)
                saved -= 1
                if not left:
                    break
                if not run.iterations:
                    run.begin()
                run.take(-1, 1)
                if run.iterations and run.iterations[-1].at.epoch != run.iterations[-1].epoch:  # type: ignore[union-attr]
                    run.take(-1, 1)  # It ends.
                run.check_states()
            while run.iterations:
                run.drop(-1)
            if run.state.epoch > first:  # It goes on, also in the middle.
                run.next = run.state
            else:
                run.next = run.state = Place(first + 1, 0)
    finally:
        run.close()


def _name(run: Run, epoch: int) -> None:
    for loader in run.loaders:
        loader.set_epoch(epoch)
    run.check_states()


class _Asked(data.Sampler[Any]):
    """Asks for the same steps in each epoch, in one form."""

    def __init__(self, steps: list[Any]) -> None:
        self.steps = steps

    def __iter__(self) -> Any:  # noqa: ANN401 - an iterator
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)


_FORMS: dict[str, Callable[[list[int]], Any]] = {
    "list": list,
    "tuple": tuple,
    "array": np.array,
    "tensor": torch.tensor,
    "alone": lambda step: step[0],
    "alone, of torch": lambda step: torch.tensor(step[0]),
}


@scene(
    name=GOOD_FILES,
    kind=st.sampled_from(views.AUGMENTED),
    mode=st.sampled_from(["caller", "threads", "workers"]),
    steps=st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=4), min_size=1, max_size=6),
    form=st.sampled_from(sorted(_FORMS)),
)
def forms(name: str, kind: str, mode: str, steps: list[list[int]], form: str) -> None:
    """Ask for samples as a program's sampler does: each draw has a chance of its own."""
    made = views.dataset_of(views.opened(name), kind, "raise")
    alone = form.startswith("alone")
    if alone and mode == "threads":
        mode = "caller"
    asked = _Asked([_FORMS[form](step) for step in steps])
    how: dict[str, Any] = {"batch_sampler": asked}
    if alone:
        how = {"batch_size": None, "sampler": asked}
    loader = DataLoader(made.dataset, **how, **MODES_OF_RUNS[mode])
    flat = [index for step in steps for index in (step[:1] if alone else step)]
    seen: list[int] = []
    try:
        for _ in range(2):
            labels: list[int] = []
            for batch in loader:
                labels += np.atleast_1d(batch["id"]).tolist()
                seen += np.atleast_1d(batch["draw"]).tolist()
            assert labels == [made.labels[index] for index in flat]
    finally:
        loader.close()
    assert len(set(seen)) == len(seen), f"draws of {flat} share their chance: {seen}"


# How a program says which records an epoch has.
_CHOSEN: dict[str, Callable[[list[int], int], dict[str, Any]]] = {
    "list": lambda chosen, size: {"sampler": chosen, "batch_size": size},
    "sampler": lambda chosen, size: {"sampler": _Asked(chosen), "batch_size": size},
    "steps": lambda chosen, size: {
        "batch_sampler": [chosen[at : at + size] for at in range(0, len(chosen), size)]
    },
    "random": lambda chosen, size: {
        "sampler": data.SubsetRandomSampler(chosen),
        "batch_size": size,
    },
}


@scene(
    beside=st.sampled_from(["nothing", "a", "twice"]),
    kind=st.sampled_from([kind for kind in views.KINDS if kind not in views.ONE_BY_ONE]),
    policy=st.sampled_from(["skip", "replace"]),
    mode=st.sampled_from(["caller", "threads"] * 6 + ["workers"]),
    chosen=st.lists(st.integers(0, 40), min_size=1, max_size=12),
    form=st.sampled_from(sorted(_CHOSEN)),
    size=SIZES,
)
def left_out(
    beside: str, kind: str, policy: str, mode: str, chosen: list[int], form: str, size: int
) -> None:
    """Choose records for two epochs, of which some are damaged: no other record ever comes."""
    ill = views.opened("ill")
    others = {"nothing": [], "a": [views.opened("a")], "twice": [ill]}[beside]
    made = views.dataset_of(views.joined([*others, ill]) if others else ill, kind, policy)
    chosen = [index % len(made.labels) for index in chosen]
    wanted = [made.labels[index] for index in chosen]
    good = [label for label in wanted if label not in views.BAD]
    loader = DataLoader(made.dataset, **_CHOSEN[form](chosen, size), **MODES_OF_RUNS[mode])
    try:
        for _ in range(2):
            seen: list[int] = []
            try:
                for batch in loader:
                    seen += views.labels_of(batch)
            except CorruptionError:
                # Of a sampler that is not known, nobody knows what it asks for later.
                assert not good or (form != "list" and not seen), f"{seen} of {wanted}"
                return
            assert set(seen) <= set(good), f"{seen} of {wanted}"
            assert len(seen) == len(wanted) or policy == "skip", f"{seen} of {wanted}"
            assert form == "random" or len(seen) >= len(good), f"{seen} of {wanted}"
    finally:
        loader.close()
