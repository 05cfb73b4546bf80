"""Loaders of one run, each beside the truth about its order and its position."""

import copy
import dataclasses
import functools
import json
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import data
from torch.utils.data.distributed import DistributedSampler

from ffrecord.errors import CorruptionError
from ffrecord.torch import DataLoader, Sampler, collate
from loader_truth import MixTruth, Place, Plan
from loader_views import (
    AUGMENTED,
    BAD,
    TRANSFORMED,
    Data,
    View,
    dataset_of,
    label_of,
    labels_of,
    same,
)

MODES: dict[str, dict[str, Any]] = {
    "caller": {},
    "auto": {"num_workers": 2},
    "one thread": {"mode": "threads", "num_workers": 1},
    "threads": {"mode": "threads", "num_workers": 2},
    "workers": {"num_workers": 2, "multiprocessing_context": "fork", "timeout": 120},
    "persistent": {
        "num_workers": 1,
        "timeout": 120,
        "persistent_workers": True,
        "multiprocessing_context": "fork",
    },
}
# What must load, by mode; None: what the default chooses.
ENGINES = {
    **dict.fromkeys(["caller", "by sampler"], "caller"),
    **dict.fromkeys(["one thread", "threads"], "threads"),
    **dict.fromkeys(["workers", "persistent"], "processes"),
    "auto": None,
}
WAYS: dict[str, Callable[[Any], Any]] = {
    "json": lambda state: json.loads(json.dumps(state)),
    "pickle": lambda state: pickle.loads(pickle.dumps(state)),
    "deepcopy": copy.deepcopy,
}
ORDERS: dict[str, dict[str, Any]] = {
    "shuffled": {},
    "in order": {"shuffle": False},
    "blocks": {"block": 3, "window": 2},
    "weights": {},
}


def is_bad(label: int) -> bool:
    """Whether the record is damaged."""
    return label in BAD


def check_engine(loader: Any, mode: str, kind: str) -> None:  # noqa: ANN401 - ours or torch's
    """Check that the iteration that began last has the engine that it must have."""
    if mode in ENGINES:
        chosen = "processes" if kind in TRANSFORMED else "threads"
        found = loader.stats()["engine"]
        assert found == (ENGINES[mode] or chosen), f"{found} load a {kind} dataset with {mode}"


def plain(state: Any) -> Any:  # noqa: ANN401 - a state
    """Check that a state is plain JSON."""
    assert json.loads(json.dumps(state)) == state, f"{state} is no plain JSON"
    return state


@dataclasses.dataclass
class Iteration:
    """Iterators of all ranks, which take the same steps."""

    iterators: list[Iterator[Any]]
    at: Place | None = None  # None: it has not begun.
    jumps: int = 0
    mix: MixTruth | None = None
    epoch: int = -1


class Run:
    """Loaders with a `Sampler` each, one for each rank."""

    def __init__(
        self, view: View, kind: str, policy: str, mode: str, plan: Plan, data_of_it: Data
    ) -> None:
        """Begin at the start of epoch 0."""
        self.view, self.kind, self.policy, self.mode, self.plan = view, kind, policy, mode, plan
        self.truth = data_of_it
        self.mix = None if data_of_it.mix is None else data_of_it.mix.copy()
        self.next = self.state = Place(0, 0)
        self.jumps = 0
        self.iterations: list[Iteration] = []
        self.draws: dict[tuple[int, int, int], int] = {}
        self.drawn: dict[int, tuple[int, int]] = {}
        self.loaders = [self._loader(rank) for rank in range(plan.world)]
        self.met: list[set[int]] = [set() for _ in self.loaders]  # Damaged records, by rank.

    def _loader(self, rank: int) -> Any:  # noqa: ANN401 - ours or torch's
        made = dataset_of(self.view, self.kind, self.policy).dataset
        plan = self.plan
        sampler = Sampler(
            made,
            **{"batch_size" if plan.is_per_rank else "global_batch": plan.size},
            seed=plan.seed,
            rank=rank,
            world_size=plan.world,
            last=plan.last,  # type: ignore[arg-type]
            uneven=True,
            weights=plan.weights if plan.how == "weights" else None,
            **ORDERS[plan.how],
        )
        if self.mode == "torch":
            return data.DataLoader(made, batch_sampler=sampler, collate_fn=collate)
        if self.mode == "by sampler":
            return DataLoader(made, None, sampler=sampler, collate_fn=collate)
        return DataLoader(made, batch_sampler=sampler, **MODES[self.mode])

    @staticmethod
    def sampler(loader: Any) -> Sampler:  # noqa: ANN401 - ours or torch's
        """Return the `Sampler` of a loader."""
        named = isinstance(loader.batch_sampler, Sampler)
        found: Sampler = loader.batch_sampler if named else loader.sampler
        return found

    def close(self) -> None:
        """End all threads and workers."""
        for iteration in self.iterations:
            for each in iteration.iterators:
                getattr(each, "close", lambda: None)()
        self.iterations = []
        for loader in self.loaders:
            if isinstance(loader, DataLoader):
                loader.close()

    def begin(self) -> None:
        """Ask for iterators; the order is asked at the first batch."""
        self.iterations.append(Iteration([iter(loader) for loader in self.loaders]))

    def drop(self, which: int) -> None:
        """Leave an iteration."""
        iteration = self.iterations.pop(which)
        for each in iteration.iterators:
            getattr(each, "close", lambda: None)()

    def take(self, which: int, steps: int) -> bool:
        """Take steps of an iteration; returns whether the run can go on."""
        iteration = self.iterations[which]
        for _ in range(steps):
            if iteration.at is None:
                iteration.at = self.next
                iteration.jumps, iteration.mix = self.jumps, self.mix
                iteration.epoch = self.next.epoch
                self.state = self.next
            if iteration.at.epoch != iteration.epoch:
                self._check_end(iteration)
                self.drop(which)
                return True
            if not self._step(iteration):
                return False
        return True

    def _check_end(self, iteration: Iteration) -> None:
        for rank, each in enumerate(iteration.iterators):
            more = next(each, None)
            assert more is None, f"rank {rank} has {labels_of(more)} after its epoch's end"

    def _step(self, iteration: Iteration) -> bool:
        at = iteration.at
        assert at is not None
        shares, after = self.plan.step(at)
        is_whole = True
        for rank, (places, each) in enumerate(zip(shares, iteration.iterators, strict=True)):
            expected = self.plan.share(iteration.mix, at.epoch, places, is_bad, self.policy)
            where = f"rank {rank} of {self.plan.world}, epoch {at.epoch}, position {at.position}"
            try:
                batch = next(each)
            except CorruptionError as error:
                assert expected is None, f"{where}: {expected}, but {error}"
                is_whole = False
                continue
            except StopIteration:
                raise AssertionError(f"{where}: the epoch ends before {expected}") from None
            found = labels_of(batch)
            check_engine(self.loaders[rank], self.mode, self.kind)
            assert found == expected, f"{where}: {found} instead of {expected}"
            self._meet(rank, at.epoch, places)
            if self.kind in AUGMENTED and not self.view.is_bad:
                self._check_draws(at.epoch, places, found, batch["draw"].tolist())
        if not is_whole:
            return False
        iteration.at = after
        if iteration.jumps == self.jumps:
            self.state, self.next = after, Place(after.epoch, 0)
        return True

    def _meet(self, rank: int, epoch: int, places: range) -> None:
        """Check that the damage that was met is counted, and nothing else."""
        if not self.view.is_bad or self.view.mix or "torch " in self.kind:
            return
        labels = self.plan.labels
        met = {self.plan.index(epoch, place) for place in places}
        self.met[rank] |= {index for index in met if is_bad(labels[index])}
        counted = set(self.loaders[rank].dataset.stats()["damaged"])
        bad = {index for index, label in enumerate(labels) if is_bad(label)}
        assert self.met[rank] <= counted <= bad, f"{counted} is counted; {self.met[rank]} was met"

    def _check_draws(self, epoch: int, places: range, labels: list[int], draws: list[int]) -> None:
        """Check that chance depends on seed, epoch and place alone, and differs for each place."""
        distinct = {place % self.plan.count for place in places}
        assert len(set(draws)) >= len(distinct), f"{labels} share draws: {draws}"
        for place, label, draw in zip(places, labels, draws, strict=True):
            before = self.draws.setdefault((epoch, place, label), draw)
            assert before == draw, f"record {label} of epoch {epoch} is augmented in two ways"
            place = place % self.plan.count
            first = self.drawn.setdefault(draw, (epoch, place))
            assert first == (epoch, place), f"record {label} at {epoch, place} draws as at {first}"

    def check_states(self) -> dict[str, Any]:
        """Check that the states are the truth, and one; returns it."""
        samplers = [self.sampler(loader) for loader in self.loaders]
        states: list[dict[str, Any]] = [
            (loader if isinstance(loader, DataLoader) else sampler).state_dict()
            for loader, sampler in zip(self.loaders, samplers, strict=True)
        ]
        for state in states:
            place = Place(state["epoch"], state["position"])
            assert place == self.state, f"the state is {place}, not {self.state}"
            assert plain(state) == states[0]
        for loader, sampler in zip(self.loaders, samplers, strict=True):
            assert len(loader) == self.plan.steps(0)
            assert sampler.epoch == self.next.epoch
            assert sampler.step == self.plan.steps(0) - self.plan.steps(self.next.position)
        return states[0]

    def resumed(self, way: str, mode: str, world: int, size: int) -> "Run | None":
        """Return a run that goes on from the state of this one, at another world size."""
        plan = dataclasses.replace(self.plan, world=world, size=size)
        if not fits(plan):
            return None
        state = WAYS[way](self.check_states())
        mode = mode if allowed(mode, self.policy) else "caller"
        made = Run(self.view, self.kind, self.policy, mode, plan, self.truth)
        made.mix = None if self.mix is None else self.mix.copy()
        made.draws, made.drawn = self.draws, self.drawn
        refused = plan.refuses(self.state.position)
        for loader in made.loaders:
            target = loader if isinstance(loader, DataLoader) else self.sampler(loader)
            try:
                target.load_state_dict(state)
            except ValueError:
                assert refused, "a state that fits is refused"
                return None
            assert not refused, "a state with too few records for the ranks is taken"
        made._go_to(self.state)
        return made

    def load_again(self, state: dict[str, Any], place: Place, mix: MixTruth | None) -> None:
        """Load a state of this run, perhaps in the middle of an iteration."""
        for loader in self.loaders:
            target = loader if isinstance(loader, DataLoader) else self.sampler(loader)
            target.load_state_dict(state)
        self.jumps += 1
        self.mix = mix
        self._go_to(place)

    def _go_to(self, place: Place) -> None:
        there = self.plan.steps(place.position)
        self.next = self.state = place if there else Place(place.epoch + 1, 0)

    def set_epoch(self, epoch: int) -> None:
        """Go to an epoch."""
        for loader in self.loaders:
            self.sampler(loader).set_epoch(epoch)
        if epoch != self.next.epoch:
            self.next = self.state = Place(epoch, 0)
            self.jumps += 1

    def set_weights(self, weights: list[int]) -> None:
        """Change the proportions of a mix."""
        assert self.mix is not None
        for loader in self.loaders:
            self.sampler(loader).set_weights(weights)
        for which in reversed(range(len(self.iterations))):
            each = self.iterations[which]
            if each.at is not None and each.jumps != self.jumps:
                each.mix = None if each.mix is None else each.mix.copy()
        self.mix.change(weights, self.state.epoch * self.plan.count + self.state.position)
        self.next = self.state

    def retransform(self) -> None:
        """Set a transform that changes nothing, or take it away; the default changes its engine."""
        for which in reversed(range(len(self.iterations))):
            self.drop(which)
        self.kind = "plain" if self.kind == "transform" else "transform"
        for loader in self.loaders:
            loader.dataset.transform = same if self.kind == "transform" else None

    def over(self, view: View, made: Data) -> Any:  # noqa: ANN401 - ours
        """Return the loader of a first rank as these, over another view."""
        plan = dataclasses.replace(self.plan, labels=made.labels, mix=made.mix)
        return Run(view, self.kind, self.policy, "caller", plan, made).loaders[0]

    def check_copy(self, how: str) -> None:
        """Check that a copy, or a child process, begins where this would, and leaves this alone."""
        if how == "fork":
            in_child(lambda: self._check_twin(self.loaders))
            return
        copies: dict[str, Callable[[Any], Any]] = {
            "deepcopy": copy.deepcopy,
            "pickle": lambda loader: pickle.loads(pickle.dumps(loader)),
        }
        self._check_twin([copies[how](loader) for loader in self.loaders])

    def _check_twin(self, loaders: list[Any]) -> None:
        twin = Run.__new__(Run)
        vars(twin).update(vars(self))
        twin.loaders, twin.iterations, twin.met = loaders, [], [set() for _ in loaders]
        twin.begin()
        twin.take(0, 1000)
        twin.close()

    def close_loaders(self) -> None:
        """Close the loaders in the middle of what they do: their threads end, their places stay."""
        for loader in self.loaders:
            if isinstance(loader, DataLoader):
                loader.close()
        for which in reversed(range(len(self.iterations))):
            self.drop(which)


def in_child(call: Callable[[], None]) -> None:
    """Call in a forked process, which has this one's threads no more."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if not pid:
        status = 1
        try:
            signal.alarm(120)  # Else a child that hangs would never end.
            call()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status == 0, f"in a forked process: {status}, which it has told above"


def fits(plan: Plan) -> bool:
    """Whether the Sampler takes these numbers."""
    if plan.global_batch < plan.world or plan.refuses(0):
        return False
    return plan.steps(0) > 0


def allowed(mode: str, policy: str) -> bool:
    """Whether the mode takes the policy."""
    return mode != "torch" or policy == "raise"


PLAIN = (
    "in order",
    "shuffle",
    "sequential",
    "random",
    "replacement",
    "fewer",
    "more",
    "subset random",
    "weighted",
    "distributed",
)


CHOOSING = ("subset random", "weighted")  # They may leave out records.


def _weight(index: int) -> float:
    return float((index + 1) % 3)


class PlainRun:
    """A loader with an order of torch's, beside torch's own over a list."""

    def __init__(
        self,
        view: View,
        kind: str,
        policy: str,
        mode: str,
        order: str,
        size: int,
        own: bool,
        drop_last: bool,
    ) -> None:
        """Make the loader and its twin."""
        self.view, self.kind, self.policy = view, kind, policy
        self.mode, self.order = mode, order
        self.size, self.own, self.drop_last = size, own, drop_last
        self.made = dataset_of(view, kind, policy)
        self.generators = [torch.Generator().manual_seed(5) if own else None for _ in range(2)]
        count = len(self.made.labels)
        self.twin = self._of(data.DataLoader, list(range(count)), 0, collate_fn=list)
        self.loader = self._of(DataLoader, self.made.dataset, 1, **MODES[mode])
        self.iterator: Any = None
        self.left: list[list[int]] = []
        self.is_new = True
        self.before: Any = None  # Of the twin's generator, where the epoch begins.
        self.taken = 0  # Batches of it.

    def _of(self, loader: Any, dataset: Any, which: int, **options: Any) -> Any:  # noqa: ANN401
        generator, count = self.generators[which], len(dataset)
        samplers: dict[str, Callable[[], Any]] = {
            "sequential": lambda: data.SequentialSampler(dataset),
            "random": lambda: data.RandomSampler(dataset, generator=generator),
            "replacement": lambda: data.RandomSampler(dataset, True, generator=generator),
            "fewer": lambda: data.RandomSampler(
                dataset, num_samples=max(1, count // 2), generator=generator
            ),
            "more": lambda: data.RandomSampler(
                dataset, num_samples=count * 2 + 3, generator=generator
            ),
            "subset random": lambda: data.SubsetRandomSampler(range(0, count, 2), generator),
            "weighted": lambda: data.WeightedRandomSampler(
                [*map(_weight, range(count))], count, generator=generator
            ),
            "distributed": lambda: DistributedSampler(dataset, 2, 1, seed=3),
        }
        if self.order in samplers:
            options["sampler"] = samplers[self.order]()
        elif self.order == "shuffle":
            options |= {"shuffle": True, "generator": generator}
        return loader(dataset, self.size, drop_last=self.drop_last, **options)

    def over(self, view: View, made: Data) -> Any:  # noqa: ANN401 - ours
        """Return a loader as this one, over another view."""
        options = (self.order, self.size, self.own, self.drop_last)
        assert len(made.labels) == len(self.made.labels)
        return PlainRun(view, self.kind, self.policy, "caller", *options).loader

    def close(self) -> None:
        """End all threads and workers."""
        if self.iterator is not None:
            self.iterator.close()
        self.iterator = None
        self.loader.close()

    def begin(self, seed: int) -> bool:
        """Begin an iteration, and take its first batch; returns whether the run can go on."""
        is_resumed = bool(self.left) and self.is_new
        if self.iterator is not None:
            self.iterator.close()
        for each in (self.loader, self.twin):
            if self.order == "distributed" and not is_resumed:
                each.sampler.set_epoch(seed)
        if not is_resumed:
            if self.left and self.order == "replacement" and self.before is not None:
                # Torch draws as many as are asked for; the twin has drawn all of the epoch.
                self.generators[0].set_state(self.before)  # type: ignore[union-attr]
                twins = iter(self.twin)
                for _ in range(self.taken):
                    next(twins)
            self.before = self.generators[0].get_state() if self.generators[0] else None
            self.taken = 0
            torch.manual_seed(seed)
            self.left = list(self.twin)
        torch.manual_seed(seed)
        self.is_new = False
        self.iterator = iter(self.loader)
        return self.take(1)

    def take(self, steps: int) -> bool:
        """Take steps of the iteration; returns whether the run can go on."""
        for _ in range(steps):
            if not self.left:
                more = next(self.iterator, None)
                assert more is None, f"{labels_of(more)} after the epoch's end"
                self.iterator = None
                return True
            indices = self.left.pop(0)
            self.taken += 1
            expected = self._after_policy(indices)
            try:
                found = labels_of(next(self.iterator))
            except CorruptionError as error:
                assert expected is None, f"{expected}, but {error}"
                return False
            except StopIteration:
                raise AssertionError(f"the epoch ends before {expected}") from None
            if self.order in CHOOSING and expected is not None:
                expected = self._of_the_choice(indices, expected, found)
            assert found == expected, f"{found} instead of {expected}, of {indices}"
            check_engine(self.loader, self.mode, self.kind)
        return True

    def _choice(self) -> list[int]:
        """The indices that the sampler chooses from."""
        count = len(self.made.labels)
        if self.order == "subset random":
            return list(range(0, count, 2))
        return [index for index in range(count) if _weight(index)]

    def _of_the_choice(
        self, indices: list[int], expected: list[int], found: list[int]
    ) -> list[int]:
        """Return what is expected, where any record of the choice takes a damaged one's place."""
        labels = self.made.labels
        chosen = {labels[index] for index in self._choice()}
        if len(expected) < len(indices) and not all(is_bad(labels[i]) for i in indices):
            return expected  # The rest was skipped.
        return [
            new if is_bad(labels[index]) and new in chosen and not is_bad(new) else old
            for index, old, new in zip(indices, expected, found, strict=False)
            if not is_bad(labels[index]) or new in chosen
        ]

    def _after_policy(self, indices: list[int]) -> list[int] | None:
        labels = self.made.labels
        bad = [index for index in indices if is_bad(labels[index])]
        if bad and self.policy == "raise":
            return None

        def good(index: int) -> int:
            following = labels[index:] + labels[:index]
            return next(label for label in following if not is_bad(label))

        if len(bad) == len(indices):
            return [good(index) for index in indices[: 1 if self.policy == "skip" else None]]
        if self.policy == "skip":
            return [labels[index] for index in indices if index not in bad]
        return [good(index) for index in indices]

    def resumed(self, way: str, mode: str) -> "PlainRun":
        """Return a run that goes on from the state of this one."""
        state = WAYS[way](plain(self.loader.state_dict()))
        how = self.view, self.kind, self.policy, mode, self.order, self.size
        made = PlainRun(*how, self.own, self.drop_last)
        made.loader.load_state_dict(state)
        if self.own and made.generators[0] is not None and self.generators[0] is not None:
            made.generators[0].set_state(self.generators[0].get_state())
        made.left = list(self.left)
        made.before, made.taken = self.before, self.taken
        return made


def check_adapters(view: View, size: int, seed: int, shuffle: bool, drop_last: bool) -> None:
    """Check that the sources for Grain and TensorFlow have the order of the `Sampler`."""
    import ffrecord.grain
    import ffrecord.tensorflow

    how = "shuffled" if shuffle else "in order"
    plan = Plan(view.labels, how, seed, size, False, "drop" if drop_last else "short", 1, view.mix)
    mix = None if view.mix is None else view.mix.copy()
    expected = [
        plan.share(mix, epoch, plan.step(Place(epoch, step * size))[0][0], is_bad, "raise")
        for epoch in range(2)
        for step in range(plan.steps(0))
    ]
    records = view.records
    order: dict[str, Any] = {"seed": seed, "epochs": 2, "shuffle": shuffle}
    source = ffrecord.grain.BatchSource(records, size, drop_last=drop_last, **order)
    assert len(source) == len(expected)
    assert [labels_of(source[step]) for step in range(len(source))] == expected
    whole = ffrecord.grain.DataSource(records)
    assert [label_of(whole[i]) for i in range(len(whole))] == view.labels
    if plan.steps(0):
        batches = functools.partial(
            ffrecord.tensorflow.Batches, records, size, drop_remainder=drop_last, **order
        )
        assert [labels_of(batch) for batch in batches()] == expected
        assert [labels_of(batch) for batch in batches(skip=1)] == expected[1:]
