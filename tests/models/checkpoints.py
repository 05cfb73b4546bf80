"""Model of checkpoints: steps and their contents are the truth, at every kind of target.

Goal: what was acknowledged is loaded bit for bit, or an error names what is gone; damage is seen by
every question that claims to look, costs only what it touched, and is replaced by saving again.
Method: save in each way, damage, copy, flush, prune, remove; then ask the target everything.
"""

import itertools
import logging
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from torch.distributed.checkpoint.api import CheckpointException

import checkpoint_kills as kills
import checkpoint_ranks as ranks
import checkpoint_truth as truth
import ffrecord.checkpoint as ckpt
from checkpoint_places import far_target
from checkpoint_several import SeveralPlaces
from checkpoint_truth import (
    Content,
    Position,
    Step,
    compare_digests,
)
from checkpoint_weights import WeightsOut
from ffrecord.errors import ConflictError, CorruptionError
from ffrecord.torch import CheckpointReader, CheckpointWriter
from thread_ranks import AfterARound, ThreadRank, ThreadRanks, same

RUNS = st.sampled_from(["first", "second"])
WAYS = st.sampled_from(["save", "async", "incremental", "incremental async"])
WHICH = st.integers(0, 4)  # Of the steps of a run, from the newest on.
DAMAGE = st.sampled_from(sorted(truth.FILES))


class Checkpoints(SeveralPlaces, WeightsOut, RuleBasedStateMachine):
    """Rules are calls of the library; `runs` says what they must have led to."""

    def __init__(self) -> None:
        """Begin without a checkpoint."""
        super().__init__()
        warnings.simplefilter("ignore")
        self.folder = Path(tempfile.mkdtemp(prefix="ffrecord-model-"))
        self.runs: dict[str, dict[int, Step]] = {"first": {}, "second": {}, "far": {}}
        self.turns = itertools.count(1)

    def teardown(self) -> None:
        """Leave nothing."""
        shutil.rmtree(self.folder)

    # What the rules share.

    def path(self, run: str) -> Path:
        """Return the folder of a run."""
        return self.folder / run

    def pick(self, run: str, which: int) -> int:
        """Return one of the steps of a run."""
        steps = sorted(self.runs[run], reverse=True)
        assume(steps)
        return steps[which % len(steps)]

    def content(self, *, new_table: bool = False) -> Content:
        """Return a state that was never saved; its table has been, unless it is to be new."""
        turn = next(self.turns)
        return Content(turn if new_table else 0, turn)

    def new(self, content: Content, attempt: str, *, flat: bool = False) -> Step:
        """Return a step that has just come to its run."""
        return Step(content, attempt, flat=flat, since=next(self.turns))

    def save_to(self, run: str, step: int, way: str, content: Content) -> ckpt.Commit:
        """Save in one of the ways; returns when it is committed."""
        incremental = way.startswith("incremental")
        if way.endswith("async"):
            pending = ckpt.async_save(
                self.path(run), step, content.state(), incremental=incremental
            )
            return pending.result()
        return ckpt.save(self.path(run), step, content.state(), incremental=incremental)

    # Saving.

    @initialize(count=st.sampled_from([3, 2, 1, 0]))
    def begin(self, count: int) -> None:
        """Have some steps: most rules are of steps that are there."""
        for step in range(1, count + 1):
            content = self.content()
            commit = self.save_to("first", step, "save", content)
            self.runs["first"][step] = self.new(content, commit.attempt)

    @rule(run=RUNS, way=WAYS, new_table=st.booleans())
    def save(self, run: str, way: str, new_table: bool) -> None:
        """Save the next step."""
        step = max(self.runs[run], default=0) + 1
        content = self.content(new_table=new_table)
        commit = self.save_to(run, step, way, content)
        assert commit.step == step
        self.runs[run][step] = self.new(content, commit.attempt)
        self.ask(run)

    @rule(run=RUNS, way=WAYS, which=WHICH)
    def save_again(self, run: str, way: str, which: int) -> None:
        """Save a step that is there: refused if it is whole, replaced if its damage shows."""
        step = self.pick(run, which)
        old, content = self.runs[run][step], self.content()
        try:
            commit = self.save_to(run, step, way, content)
        except FileExistsError:
            assert old.is_whole, f"step {step} has damage {old.damage} and cannot be saved again"
        else:
            assert not old.is_whole, f"step {step} was whole and is replaced"
            self.runs[run][step] = self.new(content, commit.attempt)
        self.ask(run)

    @rule(run=RUNS, overwrite=st.booleans(), which=WHICH)
    def save_by_dcp(self, run: str, overwrite: bool, which: int) -> None:
        """Save by torch's planner: the step that it chooses, or one that is there."""
        step = self.pick(run, which) if overwrite else None
        content = self.content()
        tensors = {key: torch.from_numpy(each) for key, each in content.arrays().items()}
        writer = CheckpointWriter(self.path(run), step=step, overwrite=overwrite)
        dcp.save(tensors, storage_writer=writer, no_dist=True)
        new = {commit.step: commit for commit in ckpt.list(self.path(run))}
        old = {number: each.attempt for number, each in self.runs[run].items()}
        # The save of a step whose root is damaged is not known any more.
        (step,) = [n for n, each in new.items() if each.attempt not in ("", old.get(n))]
        if not overwrite:
            assert step > max(
                (n for n, each in self.runs[run].items() if each.is_whole), default=-1
            )
        self.runs[run][step] = self.new(content, new[step].attempt, flat=True)
        self.ask(run)

    @rule(run=RUNS, split=st.booleans())
    def save_what_each_rank_has(self, run: str, split: bool) -> None:
        """Save on two ranks whose dicts have other orders: each gets back what it has."""
        step, content = max(self.runs[run], default=0) + 1, self.content()
        ranks.save_and_load(self.path(run), step, content, split=split)
        alone = ranks.load_elastic(self.path(run), step, content)
        assert alone == {"at": -1}, f"elastic: what each rank had became {alone}"
        ckpt.remove(self.path(run), step)
        self.ask(run)

    @rule(run=RUNS, what=st.sampled_from(ranks.KINDS))
    def save_by_ranks(self, run: str, what: str) -> None:
        """Save on two ranks that are threads; ranks that disagree leave nothing."""
        step = max(self.runs[run], default=0) + 1
        content, other = self.content(), self.content(new_table=True)

        def work(rank: ThreadRank) -> ckpt.Commit:
            state, number = content.state(), step
            if what in ranks.DIVIDED:
                ranks.divide(state, what, rank.rank)
            elif what in ranks.NO_STATE:
                ranks.spoil(state, what, rank.rank)
            elif what == "differ" and rank.rank == 1:
                state["table"] = other.arrays()["table"]
            elif what == "raises" and rank.rank == 1:
                state["words"] = object()
            elif what == "steps" and rank.rank == 1:
                number += 1
            split: Any = "split" if what == "differ" else "rank0"
            return ckpt.save(self.path(run), number, state, group=rank, replicated=split)

        results = ThreadRanks(2).run(work)
        commits = [each for each in results if isinstance(each, ckpt.Commit)]
        if what in ("shards", "scattered"):
            assert len(commits) == 2, results
            ranks.load_scattered(self.path(run), step, content)
            self.runs[run][step] = self.new(content, commits[0].attempt)
        elif what in ("stages", "on ranks"):
            assert len(commits) == 2, results
            ranks.load_stages(self.path(run), step, content)
            ckpt.remove(self.path(run), step)
        else:
            assert not commits, f"ranks that disagree ({what}) have committed: {results}"
            kinds = (ValueError, TypeError, ckpt.PeerError)
            assert all(isinstance(each, kinds) for each in results), results
        self.ask(run)

    @rule(run=RUNS, which=WHICH)
    def save_again_twice_at_once(self, run: str, which: int) -> None:
        """Two savers of a damaged step: one of them succeeds, and its save stays."""
        step = self.pick(run, which)
        assume(not self.runs[run][step].is_whole)
        contents = [self.content(new_table=True) for _ in range(2)]

        def work(rank: ThreadRank) -> ckpt.Commit:
            return self.save_to(run, step, "save", contents[rank.rank])

        results = ThreadRanks(2).run(work)
        (winner,) = [i for i, each in enumerate(results) if isinstance(each, ckpt.Commit)]
        assert isinstance(results[1 - winner], FileExistsError), results
        commit: Any = results[winner]
        self.runs[run][step] = self.new(contents[winner], commit.attempt)
        self.ask(run)

    @rule(run=RUNS, which=WHICH, killed=st.booleans())
    def overwrite_without_exchange(self, run: str, which: int, killed: bool) -> None:
        """Replace a step in two renames; killed between them, the old one is still there."""
        step, content = self.pick(run, which), self.content()
        ended = kills.overwrite(self.path(run), step, content, kills=killed)
        assume(ended is not None)
        assert ended != killed, "the kill missed the save"
        if ended:
            (new,) = [each for each in ckpt.list(self.path(run)) if each.step == step]
            self.runs[run][step] = self.new(content, new.attempt, flat=True)
        self.ask(run)

    # Damage, and steps that go.

    @rule(run=st.sampled_from(["first", "second", "far"]), which=WHICH, kind=DAMAGE)
    def damage(self, run: str, which: int, kind: str) -> None:
        """Damage a file of a step, and with it all steps that share the file."""
        step = self.pick(run, which)
        found = truth.files(self.path(run), step, kind)
        assume(found and not (kind == "torn" and self.runs[run][step].damage))
        turn = next(self.turns)
        file = found[turn % len(found)]
        assume(file.stat().st_size > 0)
        for name, steps in self.runs.items():
            for number, each in steps.items():
                theirs = truth.files(self.path(name), number, kind)
                if file in theirs if kind == "gone" else any(map(file.samefile, theirs)):
                    each.damage.add(kind)
        truth.harm(file, kind, turn)
        self.ask(run)
        if run != "second" and turn % 2:
            self.flush()

    @rule(run=RUNS, which=WHICH)
    def remove(self, run: str, which: int) -> None:
        """Remove a step, in whatever state it is."""
        step = self.pick(run, which)
        ckpt.remove(self.path(run), step)
        del self.runs[run][step]
        self.ask(run)

    @rule(which=WHICH, way=WAYS)
    def save_anew(self, which: int, way: str) -> None:
        """Remove the newest steps of all places, and save the first of them anew."""
        step = self.pick("first", which)
        self.flush()
        for number in sorted((n for n in self.runs["first"] if n >= step), reverse=True):
            ckpt.remove(self.staged(), number)
            for run in ("first", "far"):
                self.runs[run].pop(number, None)
        content = self.content()
        commit = self.save_to("first", step, way, content)
        self.runs["first"][step] = self.new(content, commit.attempt)
        self.flush()

    @rule(run=RUNS, keep_last=st.integers(1, 3), how=st.tuples(*[st.booleans()] * 3))
    def prune(self, run: str, keep_last: int, how: tuple[bool, bool, bool]) -> None:
        """Keep some of the steps that count; damaged ones do not."""
        verify, dry_run, by_command = how
        steps = self.runs[run]
        assume(steps or not by_command)
        prune = truth.prune_by_command if by_command else truth.prune
        good = [n for n, each in steps.items() if (each.is_whole if verify else each.looks_whole)]
        counted = sorted(good)
        keep = counted[-keep_last:]
        removed = prune(self.path(run), keep_last, verify=verify, dry_run=dry_run)
        assert not removed & set(keep), f"removed {removed}, although {keep} are the last to keep"
        assert removed >= set(counted) - set(keep), f"removed {removed} of {counted}, kept {keep}"
        newest = max(counted, default=-1)
        assert all(number < newest for number in removed), f"removed {removed} beyond {newest}"
        if not dry_run:
            for number in removed:
                del steps[number]
        assert truth.steps_of(self.path(run)) == set(steps)
        self.ask(run)

    # Copies.

    @rule(source=RUNS, which=WHICH, compress=st.booleans())
    def copy(self, source: str, which: int, compress: bool) -> None:
        """Copy a step to the other run: only a whole one, and never over a whole one."""
        to = "second" if source == "first" else "first"
        step = self.pick(source, which)
        mine, theirs = self.runs[source][step], self.runs[to].get(step)
        try:
            ckpt.copy(self.path(source), self.path(to), step, compress=compress)
        except (CorruptionError, FileNotFoundError):
            assert not mine.is_whole, "a whole step cannot be copied"
        except FileExistsError:
            assert theirs is not None
        else:
            same_save = theirs is not None and theirs.attempt == mine.attempt
            assert mine.is_whole or same_save, f"damage ({mine.damage}) was copied without a word"
            assert theirs is None or not theirs.is_whole or same_save, "a whole step was replaced"
            if not same_save or not (theirs and theirs.looks_whole):
                self.runs[to][step] = self.new(mine.content, mine.attempt, flat=mine.flat)
        self.ask(to)

    @rule(missing=st.sampled_from(["dict", "list", "object"]))
    def load_into_placeholders(self, missing: str) -> None:
        """Load torch's tensors where the state has None: they are tensors, wherever they were."""
        run, saved = Path(tempfile.mkdtemp(dir=self.folder)), torch.arange(5)

        def state(tensor: torch.Tensor | None) -> Any:  # noqa: ANN401
            holders = {"dict": {"x": tensor}, "list": [1, tensor], "object": truth.Holder(tensor)}
            return {"holder": holders[missing], "other": np.arange(3)}

        ckpt.save(run, 1, state(saved))
        loaded: Any = ckpt.load(run, state(None), as_torch=True, resume=False)
        holder = loaded["holder"]
        held = {"dict": lambda: holder["x"], "list": lambda: holder[1]}.get(
            missing, lambda: holder.tensor
        )()
        assert isinstance(held, torch.Tensor), f"None in a {missing} became a {type(held)}"
        assert torch.equal(held, saved)

    @rule(run=RUNS, which=WHICH, place=st.sampled_from(["daemon", "store"]))
    def far(self, run: str, which: int, place: str) -> None:
        """Copy a step to a daemon or an object store, ask there, and copy it back."""
        step = self.pick(run, which)
        mine = self.runs[run][step]
        target = far_target(place)
        try:
            ckpt.copy(self.path(run), target, step)
        except (CorruptionError, FileNotFoundError):
            assert not mine.is_whole
            assert ckpt.list(target) == []
            return
        assert mine.is_whole, f"damage ({mine.damage}) was copied without a word"
        assert [commit.step for commit in ckpt.list(target)] == [step]
        assert ckpt.verify(target) == []
        self.check_content(target, step, mine)
        back = self.path("back")
        ckpt.copy(target, back, step)
        self.check_content(back, step, mine)
        ckpt.remove(target, step)
        assert ckpt.latest(target) is None
        shutil.rmtree(back)

    # Loading.

    @rule(run=RUNS, refusal=st.sampled_from(["object", "shape", "missing", "type"]))
    def load_that_is_refused(self, run: str, refusal: str) -> None:
        """Load into a state that does not fit: nothing of it changes."""
        whole = [n for n, each in self.runs[run].items() if each.is_whole and not each.flat]
        assume(whole)
        state: dict[str, Any] = Content(-1 % 1000, 0).state()
        if refusal == "object":
            state["position"] = Position(0, refuses=True)
        elif refusal == "shape":
            state["nothing"] = np.zeros((1, 3), np.int16)
        elif refusal == "missing":
            state["other"] = np.zeros(3)
        else:
            state["nothing"] = np.zeros((0, 3), np.float64)
        before = {key: state[key].copy() for key in ("table", "head")}
        try:
            ckpt.load(self.path(run), state, step=max(whole), resume=False)
        except ValueError:
            for key, value in before.items():
                assert same(state[key], value), f"load was refused, and {key} is overwritten"
        else:
            raise AssertionError(f"a load that does not fit ({refusal}) succeeds")

    @rule(run=RUNS)
    def load_or_the_step_before(self, run: str) -> None:
        """Load the newest step, or an older one if it is damaged."""
        steps = self.runs[run]
        whole = [n for n, each in steps.items() if each.is_readable]
        assume(not any(each.flat for each in steps.values()))
        try:
            found: Any = ckpt.load(self.path(run), on_corrupt="previous", resume=False)
        except (CorruptionError, FileNotFoundError):
            # One step back and no further: the one before may be damaged as well.
            newest = sorted(n for n, each in steps.items() if each.looks_whole)[-2:]
            assert not any(steps[n].is_readable for n in newest), "a whole step is there"
        else:
            assert same(found, steps[max(whole)].content.stored())

    @rule(run=RUNS, which=WHICH, round_of_load=st.integers(1, 5))
    def load_while_it_is_saved_again(self, run: str, which: int, round_of_load: int) -> None:
        """Load on two ranks, and save the step again meanwhile: no rank gets another save."""
        step = self.pick(run, which)
        old, content = self.runs[run][step], self.content(new_table=True)
        assume(old.is_whole and not old.flat)

        def save_again() -> None:
            ckpt.remove(self.path(run), step)
            commit = ckpt.save(self.path(run), step, content.state(), group="alone")
            self.runs[run][step] = self.new(content, commit.attempt)

        def work(rank: ThreadRank) -> Any:  # noqa: ANN401
            watched = AfterARound(rank, round_of_load, save_again)
            return ckpt.load(self.path(run), step=step, group=watched, resume=False)

        loaded = ThreadRanks(2).run(work)
        if round_of_load == 1:
            kinds = (ConflictError, ckpt.PeerError)
            assert all(isinstance(each, kinds) for each in loaded), loaded
        else:
            assert all(same(each, old.content.stored()) for each in loaded), loaded
        self.ask(run)

    # Questions; the model `lines` goes back, here nobody does: every load is a look.

    def ask(self, run: str) -> None:
        """Ask a run what there is, what is the newest, what is damaged, and what it holds."""
        path, steps = self.path(run), self.runs[run]
        complete = {n for n, each in steps.items() if each.looks_whole}
        listed = {commit.step for commit in ckpt.list(path) if not getattr(commit, "damage", "")}
        assert listed == complete, f"list has {listed}, complete are {complete} of {steps}"
        try:
            newest = ckpt.latest(path)
        except CorruptionError:  # Not None, with which a run would begin anew.
            assert steps and not complete, f"latest tells of damage; complete are {complete}"
        else:
            assert (newest and newest.step) == max(complete, default=None)
        for number, each in steps.items():
            messages = ckpt.verify(path, number)
            assert bool(messages) != each.is_whole, f"verify of step {number}: {messages}; {each}"
        if steps:
            assert bool(ckpt.verify(path)) != steps[max(steps)].is_whole, "verify without a step"
            self.check_content(path, max(steps), steps[max(steps)])
            compare_digests(path, steps)

    def check_content(self, target: Path | str, number: int, step: Step) -> None:
        """Load a step in each way; it is equal, or an error tells of the damage."""
        ways = [self.load_flat] if step.flat else [self.load_fresh, self.load_in_place]
        for way in ways:
            try:
                found, expected = way(target, number, step.content)
            except CorruptionError:
                assert not step.is_readable, f"step {number} is whole and cannot be loaded"
            else:
                assert same(found, expected), f"step {number} has other values; {step}"
                assert step.is_readable, f"step {number} was loaded in spite of {step.damage}"

    def load_fresh(self, target: Path | str, number: int, content: Content) -> tuple[Any, Any]:
        """Load without a state."""
        return ckpt.load(target, step=number, resume=False), content.stored()

    def load_in_place(self, target: Path | str, number: int, content: Content) -> tuple[Any, Any]:
        """Load into tensors and objects that exist."""
        state = Content(0, 0).state()
        loaded: Any = ckpt.load(target, state, step=number, resume=False)
        for key in ("table", "head"):
            assert loaded[key] is state[key], f"{key} is not the tensor that was given"
        return loaded, content.state()

    def load_flat(self, target: Path | str, number: int, content: Content) -> tuple[Any, Any]:
        """Load by torch's planner."""
        arrays = content.arrays()
        into = {key: torch.zeros_like(torch.from_numpy(each)) for key, each in arrays.items()}
        reader = CheckpointReader(f"{target}/step-{number:09}", resume=False)
        try:
            dcp.load(into, storage_reader=reader, no_dist=True)
        except CheckpointException as error:  # torch's, around what each rank raised.
            cause = error.failures[0][0]
            if "metadata is None" in str(cause):  # In place of what `read_metadata` raised.
                cause = CorruptionError(str(cause))
            raise cause from None
        return {key: each.numpy() for key, each in into.items()}, arrays


for name in ("ffrecord.checkpoint", "torch.distributed.checkpoint.state_dict_loader"):
    logging.getLogger(name).setLevel(logging.CRITICAL)  # Failures are expected.

MODEL = Checkpoints
