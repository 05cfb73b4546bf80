"""Model of the loader: the sequence of the samples is the truth, on every path that leads to them.

Goal: each rank's batches put together are the order that the format describes, or that torch's own
loader has; a run that is resumed, at any world size and in any mode, goes on with the next sample;
damage costs only its own records. Method: make views of views of small files, and loaders over
them; take steps, leave iterations, resume, copy, go to other epochs, change weights, in any order.
Records hold their own numbers, so plain lists say what must come.
"""

import dataclasses
import gc
import warnings
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import loader_changes  # noqa: F401  (its scenes)
import loader_deaths  # noqa: F401  (its scenes)
import loader_scenes as scenes
import loader_values  # noqa: F401  (its scenes)
import loader_views as views
from ffrecord.torch import DataLoader, Dataset, Sampler
from loader_rules import MODES, PLANS, POLICIES, SCENES, SEEDS, SIZES, WEIGHTS, WORLDS
from loader_runs import MODES as MODES_OF_RUNS
from loader_runs import ORDERS, PLAIN, WAYS, PlainRun, Run, check_adapters, fits
from loader_truth import MixTruth, Place, Plan
from loader_views import View

LONGEST = 40  # Records of a view.
WHICH = st.integers(0, 3)  # Of the views or runs, from the newest on.
FILES = st.sampled_from([*views.FILES, "folder"])
PLAIN_MODES = st.sampled_from(["caller", "threads", "one thread"] * 8 + ["auto"] * 4 + ["workers"])
KINDS = st.sampled_from(["plain", "augmented", *views.KINDS])  # The first kinds keep a mix as one.
STEPS = st.sampled_from([1, 2, 3, 5, 8, 50])  # 50 are more than an epoch has.

Scenes = type("Scenes", (), SCENES)


class Loader(Scenes, RuleBasedStateMachine):  # type: ignore[misc, valid-type]
    """Rules are what a training script does."""

    def __init__(self) -> None:
        """Begin without a view."""
        super().__init__()
        warnings.simplefilter("ignore")
        self.views: list[View] = []
        self.runs: list[Run] = []
        self.plain: list[PlainRun] = []
        self.saved: dict[int, tuple[Any, Place, MixTruth | None]] = {}

    def teardown(self) -> None:
        """Leave no thread or process."""
        for run in (*self.runs, *self.plain):
            run.close()
        self.runs, self.plain = [], []
        gc.collect(0)

    # What the rules share.

    def view(self, which: int) -> View:
        """Return a view, the newest first."""
        return self.views[-1 - which % len(self.views)]

    def add(self, view: View) -> None:
        """Ask a new view everything."""
        views.check(view)
        self.views.append(view)

    def run_at(self, which: int) -> int:
        """Return where a run is in the list, the newest first."""
        return len(self.runs) - 1 - which % len(self.runs)

    def replace(self, at: int, run: Run | None) -> None:
        """Go on with another run, or none."""
        self.runs[at].close()
        self.saved.pop(id(self.runs[at]), None)
        if run is None:
            del self.runs[at]
        else:
            self.runs[at] = run
            run.check_states()

    # Views.

    @initialize(name=FILES, second=st.one_of(FILES, st.none()), weights=WEIGHTS)
    def first(self, name: str, second: str | None, weights: list[int]) -> None:
        """Open a file, or a mix of two."""
        self.add(views.opened(name))
        if second is not None:
            self.add(views.mixed([self.views[0], views.opened(second)], weights, 3))

    @rule(name=FILES, how=st.sampled_from(["as it is", *sorted(views.CHOICES)]))
    def open(self, name: str, how: str) -> None:
        """Open another file, or choose some of its records."""
        view = views.opened(name)
        self.add(view if how == "as it is" else views.chosen(view, how))

    @rule(which=WHICH, how=st.sampled_from(["blocks", *sorted(views.CHOICES)]))
    def choose(self, which: int, how: str) -> None:
        """Choose some records of a view, or cut their tokens into blocks."""
        view = self.view(which)
        if how == "listed twice" and not view.labels:
            return
        if how != "blocks":
            self.add(views.chosen(view, how))
        elif not view.is_tokens and not view.is_bad:
            self.add(views.blocked(view))

    @rule(which=WHICH, other=WHICH, weights=st.one_of(st.none(), WEIGHTS), seed=SEEDS)
    def join(self, which: int, other: int, weights: list[int] | None, seed: int) -> None:
        """Mix two views, or lay them end to end."""
        both = [self.view(which), self.view(other)]
        if both[0].is_tokens != both[1].is_tokens:
            return
        if sum(len(each.labels) for each in both) > LONGEST or not all(v.labels for v in both):
            return
        self.add(views.joined(both) if weights is None else views.mixed(both, weights, seed))

    @rule(which=WHICH, size=SIZES, seed=SEEDS, shuffle=st.booleans(), drop_last=st.booleans())
    def adapters(self, which: int, size: int, seed: int, shuffle: bool, drop_last: bool) -> None:
        """Read a view as Grain and TensorFlow do."""
        view = self.view(which)
        if view.is_bad or view.is_tokens:
            return
        check_adapters(view, size, seed, shuffle, drop_last)

    @rule(which=WHICH, kind=KINDS, policy=POLICIES)
    def samples(self, which: int, kind: str, policy: str) -> None:
        """Read the samples of a dataset one by one."""
        view = self.view(which)
        if (
            view.labels
            and sum(label in views.BAD for label in view.labels) <= len(view.labels) // 4
        ):
            views.check_samples(views.dataset_of(view, kind, policy), kind, policy)

    # Loaders with a `Sampler`.

    @rule(
        which=WHICH,
        kind=KINDS,
        policy=POLICIES,
        mode=MODES,
        order=st.sampled_from(sorted(ORDERS)),
        seed=SEEDS,
        size=SIZES,
        is_per_rank=st.booleans(),
        last=st.sampled_from(["exact", "drop", "pad", "short"]),
        world=WORLDS,
        steps=st.integers(0, 3),
    )
    def load(
        self,
        which: int,
        kind: str,
        policy: str,
        mode: str,
        order: str,
        seed: int,
        size: int,
        is_per_rank: bool,
        last: str,
        world: int,
        steps: int,
    ) -> None:
        """Make the loaders of a run, and take the first steps."""
        view = self.view(which)
        if view.is_bad and (kind in views.ONE_BY_ONE or mode == "torch"):
            policy = "raise"
        made = views.dataset_of(view, kind, policy)
        count = len(made.labels)
        bad = sum(label in views.BAD for label in made.labels)
        if not 0 < count <= 2 * LONGEST or bad > count // 3:
            return
        if made.mix is not None and order != "in order":
            order = "shuffled"
        if order == "in order":
            made.mix = None
        plan = Plan(made.labels, order, seed, size, is_per_rank, last, world, made.mix)
        if not fits(plan):
            plan = Plan(made.labels, order, seed, size, True, "short", world, made.mix)
        run = Run(view, kind, policy, mode, plan, made)
        if len(self.runs) == 3:
            self.replace(0, None)
        self.runs.append(run)
        run.check_states()
        self.step(0, steps, True)

    @precondition(lambda self: self.runs)
    @rule(which=WHICH, steps=STEPS, other=st.booleans())
    def step(self, which: int, steps: int, other: bool) -> None:
        """Take steps of an iteration, perhaps of a new one."""
        at = self.run_at(which)
        run = self.runs[at]
        if not run.iterations:
            run.begin()
        if run.take(0 if other else -1, steps):
            run.check_states()
        else:
            self.replace(at, None)

    @precondition(lambda self: self.runs)
    @rule(which=WHICH)
    def begin(self, which: int) -> None:
        """Begin an iteration, beside others."""
        run = self.runs[self.run_at(which)]
        if len(run.iterations) > (0 if run.mode == "persistent" else 1):
            return
        run.begin()

    @precondition(lambda self: any(run.iterations for run in self.runs))
    @rule(which=WHICH, steps=STEPS)
    def leave(self, which: int, steps: int) -> None:
        """Break out of a loop, and begin another."""
        at = self.run_at(which)
        run = self.runs[at]
        if not run.iterations:
            return
        run.drop(-1)
        run.begin()
        if run.take(-1, steps):
            run.check_states()
        else:
            self.replace(at, None)

    @precondition(lambda self: self.runs)
    @rule(which=WHICH, epoch=st.integers(0, 4))
    def set_epoch(self, which: int, epoch: int) -> None:
        """Go to an epoch."""
        run = self.runs[self.run_at(which)]
        if run.mix is not None and epoch * run.plan.count < run.mix.since:
            return  # The weights of then may be forgotten.
        run.set_epoch(epoch)
        run.check_states()

    @precondition(lambda self: any(run.kind in ("plain", "transform") for run in self.runs))
    @rule(which=WHICH, steps=STEPS)
    def retransform(self, which: int, steps: int) -> None:
        """Set a transform, or take it away, and go on in the epoch: in another engine, perhaps."""
        those = [at for at, run in enumerate(self.runs) if run.kind in ("plain", "transform")]
        at = those[which % len(those)]
        self.runs[at].retransform()
        self.runs[at].check_states()
        self.step(len(self.runs) - 1 - at, steps, True)

    @precondition(lambda self: any(run.mix for run in self.runs))
    @rule(which=WHICH, weights=WEIGHTS, steps=STEPS)
    def set_weights(self, which: int, weights: list[int], steps: int) -> None:
        """Change the proportions of a mix, perhaps in the loop, and go on."""
        of_mixes = [at for at, run in enumerate(self.runs) if run.mix is not None]
        at = of_mixes[which % len(of_mixes)]
        run = self.runs[at]
        if any(i.at is not None and i.at.epoch < run.state.epoch for i in run.iterations):
            return
        run.set_weights(weights)
        run.check_states()
        self.step(len(self.runs) - 1 - at, steps, False)

    @precondition(lambda self: self.runs)
    @rule(
        which=WHICH,
        way=st.sampled_from(sorted(WAYS)),
        mode=MODES,
        world=WORLDS,
        size=st.one_of(SIZES, st.none()),
        steps=STEPS,
    )
    def resume(
        self, which: int, way: str, mode: str, world: int, size: int | None, steps: int
    ) -> None:
        """Go on from the state of a run, on other ranks."""
        at = self.run_at(which)
        run = self.runs[at]
        if mode == "torch" and (run.policy != "raise" or "torch " in run.kind):
            mode = "caller"
        made = run.resumed(way, mode, world, size or run.plan.size)
        self.replace(at, made)
        if made is not None:
            self.step(len(self.runs) - 1 - at, steps, True)

    @precondition(lambda self: self.runs)
    @rule(which=WHICH)
    def save(self, which: int) -> None:
        """Keep a state."""
        run = self.runs[self.run_at(which)]
        mix = None if run.mix is None else run.mix.copy()
        self.saved[id(run)] = run.check_states(), run.state, mix

    @precondition(lambda self: self.saved)
    @rule(which=WHICH)
    def load_again(self, which: int) -> None:
        """Load the state that was kept, perhaps in the loop."""
        run = self.runs[self.run_at(which)]
        if id(run) not in self.saved:
            return
        state, place, mix = self.saved[id(run)]
        run.load_again(state, place, None if mix is None else mix.copy())
        run.check_states()

    @precondition(lambda self: self.runs)
    @rule(which=WHICH, how=st.sampled_from(["deepcopy", "pickle"] * 3 + ["fork"]))
    def copy(self, which: int, how: str) -> None:
        """Iterate over copies of the loaders, or in a child process."""
        run = self.runs[self.run_at(which)]
        run.check_copy(how)
        run.check_states()

    @precondition(lambda self: self.runs)
    @rule(which=WHICH, steps=STEPS)
    def close(self, which: int, steps: int) -> None:
        """Close the loaders, and iterate again."""
        at = self.run_at(which)
        self.runs[at].close_loaders()
        self.runs[at].check_states()
        self.step(len(self.runs) - 1 - at, steps, True)

    @rule(weights=WEIGHTS, seed=SEEDS, others=WEIGHTS, other_seed=SEEDS, swapped=st.booleans())
    def resume_another(
        self,
        weights: list[int],
        seed: int,
        others: list[int],
        other_seed: int,
        swapped: bool,
    ) -> None:
        """Go on from the state of another mix: refused, unless it is the same one."""
        both = [views.opened("a"), views.opened("b")]
        one = views.mixed(both, weights, seed)
        other = views.mixed(both[::-1] if swapped else both, others, other_seed)
        state = Sampler(Dataset(one.records), 2).state_dict()
        try:
            Sampler(Dataset(other.records), 2).load_state_dict(state)
        except ValueError:
            assert swapped or (weights, seed) != (others, other_seed), "the same mix is refused"
        else:
            assert not swapped, "the state of sources in another order is taken"
            assert (weights, seed) == (others, other_seed), "the state of another mix is taken"

    @precondition(lambda self: self.runs or self.plain)
    @rule(which=WHICH, of_plain=st.booleans())
    def resume_over_others(self, which: int, of_plain: bool) -> None:
        """Load a state over as many other samples, or over the same in another order: refused."""
        of_plain = bool(self.plain) and (of_plain or not self.runs)
        run: Any = self.plain[0] if of_plain else self.runs[self.run_at(which)]
        view = views.chosen(run.view, "backwards")
        made = views.dataset_of(view, run.kind, run.policy)
        if made.labels == views.dataset_of(run.view, run.kind, run.policy).labels:
            return
        loader = run.loader if of_plain else run.loaders[0]
        state = (loader if isinstance(loader, DataLoader) else run.sampler(loader)).state_dict()
        other = run.over(view, made)
        try:
            other.load_state_dict(state)
        except ValueError:
            return
        raise AssertionError(f"a state of a {run.kind} dataset is taken over other samples")

    # Loaders with an order of torch's.

    @rule(
        which=WHICH,
        kind=KINDS,
        policy=POLICIES,
        mode=PLAIN_MODES,
        order=st.sampled_from(PLAIN),
        size=SIZES,
        own=st.booleans(),
        drop_last=st.booleans(),
    )
    def load_plain(
        self,
        which: int,
        kind: str,
        policy: str,
        mode: str,
        order: str,
        size: int,
        own: bool,
        drop_last: bool,
    ) -> None:
        """Make a loader without a `Sampler`."""
        view = self.view(which)
        bad = sum(label in views.BAD for label in view.labels)
        if not view.labels or bad > len(view.labels) // 4:
            return
        if bad and kind in views.ONE_BY_ONE:
            policy = "raise"
        for run in self.plain:
            run.close()
        self.plain = [PlainRun(view, kind, policy, mode, order, size, own, drop_last)]
        self.resume_over_others(0, True)

    @precondition(lambda self: self.plain)
    @rule(seed=st.integers(0, 3))
    def begin_plain(self, seed: int) -> None:
        """Begin an iteration of it."""
        if not self.plain[0].begin(seed):
            self.plain.pop().close()

    @precondition(lambda self: self.plain and self.plain[0].iterator)
    @rule(steps=STEPS)
    def step_plain(self, steps: int) -> None:
        """Take steps."""
        if not self.plain[0].take(steps):
            self.plain.pop().close()

    @precondition(lambda self: self.plain)
    @rule(way=st.sampled_from(sorted(WAYS)), mode=PLAIN_MODES)
    def resume_plain(self, way: str, mode: str) -> None:
        """Go on from its state."""
        made = self.plain[0].resumed(way, mode)
        self.plain[0].close()
        self.plain = [made]

    @rule(which=WHICH, plan=PLANS, mode=st.sampled_from(["caller", "threads", "auto"]))
    def gather(self, which: int, plan: Plan, mode: str) -> None:
        """Gather the batches of all ranks with accelerate, if it is installed."""
        view = self.view(which)
        if 0 < len(view.labels) <= LONGEST:
            plan = dataclasses.replace(plan, labels=view.labels, mix=view.mix)
            scenes.gather(view, plan, MODES_OF_RUNS[mode])


MODEL = Loader
