"""Model of runs that go back: what is the latest, at every kind of target.

Goal: `latest`, `list`, `prune`, backups and copies follow the run, not the number; no save that was
not given up is replaced; a load that is only a look changes nothing. Method: one run and its
backup, each at a kind of target; processes that load any step, to go on from it, to look at it or
without a word, save any number, and end, one beside another. The truth is which generations are on
the line of a place.
"""

import dataclasses
import itertools
import logging
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from torch.distributed.checkpoint.api import CheckpointException

import ffrecord.checkpoint as ckpt
from checkpoint_places import far_target
from ffrecord import _ffrecord
from ffrecord.torch import CheckpointReader, CheckpointWriter

# Generations, the oldest first, and up to which step each is on the line; None: the newest.
Line = list[tuple[int, int | None]]
WAYS = st.sampled_from(["save", "async", "incremental", "dcp"])


@dataclasses.dataclass
class Save:
    """A committed step. Generations are counted by the model."""

    step: int
    value: int
    attempt: str
    generation: int
    is_torchs: bool  # Saved by torch's planner.


@dataclasses.dataclass(frozen=True)
class Origin:
    """A save that a process may go on from."""

    save: Save
    number: int  # How often the run had gone back when it was loaded or saved.
    is_load: bool
    is_newest: bool
    is_certain: bool


@dataclasses.dataclass
class Place:
    """A target, and which of its steps are on the line: up to which step of which generations."""

    address: str
    saves: dict[int, Save] = dataclasses.field(default_factory=dict)
    line: Line = dataclasses.field(default_factory=lambda: [(0, None)])
    known: set[int] = dataclasses.field(default_factory=lambda: {0})  # Generations of its lines.
    number: int = 0  # How often it has gone back.

    def has(self, save: Save) -> bool:
        """Whether a save is on the line."""
        return any(
            save.generation == generation and (last is None or save.step <= last)
            for generation, last in self.line
        )

    def on_line(self) -> list[int]:
        """The steps that are not given up."""
        return sorted(step for step, save in self.saves.items() if self.has(save))


class Lines(RuleBasedStateMachine):
    """Rules are calls of the library; the places say what they must have led to."""

    def __init__(self) -> None:
        """Begin without a checkpoint."""
        super().__init__()
        warnings.simplefilter("ignore")
        self.folder = Path(tempfile.mkdtemp(prefix="ffrecord-model-"))
        self.turns, self.generations = itertools.count(1), itertools.count(1)
        self.lines: dict[int, Line] = {0: [(0, None)]}
        self.run = self.backup = Place("")
        self.origins: list[Origin] = []  # What this process may go on from; one unless unclear.

    def teardown(self) -> None:
        """Leave nothing."""
        shutil.rmtree(self.folder)

    @initialize(
        kind=st.sampled_from(["folder", "replicated", "daemon", "store"]),
        backup=st.sampled_from(["folder", "daemon", "store"]),
        count=st.integers(0, 5),
    )
    def begin(self, kind: str, backup: str, count: int) -> None:
        """Have some steps of a run."""
        self.run, self.backup = Place(self.address(kind, "run")), Place(self.address(backup, "far"))
        _ffrecord.forget_where_runs_go_on()
        for step in range(count):
            self.save(10 * step, "save", overwrite=False)

    def address(self, kind: str, name: str) -> str:
        """Return a target that nobody has used."""
        if kind in ("daemon", "store"):
            return far_target(kind)
        places = [self.folder / f"{name}-{i}" for i in range(3)]
        return ckpt.replicated_target(places) if kind == "replicated" else str(places[0])

    # A process.

    @rule()
    def end(self) -> None:
        """Go on in a new process."""
        _ffrecord.forget_where_runs_go_on()
        self.origins = []

    @rule(which=st.integers(0, 7), resume=st.sampled_from([True, False, None]))
    def load(self, which: int, resume: bool | None) -> None:
        """Load a step, given up or not; mostly the latest, and mostly to go on from there."""
        assume(self.run.saves)
        on_line, steps = self.run.on_line(), sorted(self.run.saves)
        assume(which or on_line)
        step = steps[which % len(steps)] if which else on_line[-1]
        save = self.run.saves[step]
        number = step if which else None
        found = read(self.run.address, number, is_torchs=save.is_torchs, resume=resume)
        assert found == save.value
        if resume is False:
            return
        is_newest = self.run.has(save) and on_line[-1] == step
        before = [] if resume else self.origins
        self.origins = [*before, Origin(save, self.run.number, True, is_newest, resume is True)]

    @rule(which=st.integers(0, 7))
    def look_at_the_backup(self, which: int) -> None:
        """Load a step there, only to look."""
        assume(self.backup.saves)
        save = self.backup.saves[sorted(self.backup.saves)[which % len(self.backup.saves)]]
        address, is_torchs = self.backup.address, save.is_torchs
        assert read(address, save.step, is_torchs=is_torchs, resume=False) == save.value

    @rule(which=st.integers(0, 7), step=st.integers(0, 60))
    def another_process(self, which: int, step: int) -> None:
        """Have another process go back while this one goes on."""
        assume(self.run.saves)
        mine, self.origins = self.origins, []
        self.load_in_child(which, step)
        self.origins = mine

    def load_in_child(self, which: int, step: int) -> None:
        """Load without a word, and save, in a process that has done nothing before."""
        saves = self.run.saves
        save = saves[sorted(saves)[which % len(saves)]]
        is_newest = self.run.has(save) and self.run.on_line()[-1] == save.step
        self.origins = [Origin(save, self.run.number, True, is_newest, False)]
        outcome, line = self.outcome(step, overwrite=False)
        value = next(self.turns)

        def child() -> None:
            _ffrecord.forget_where_runs_go_on()
            read(self.run.address, save.step, is_torchs=save.is_torchs, resume=None)
            write(self.run.address, step, value, "save", overwrite=False)

        assert in_child(child) == (outcome or "saved")
        if outcome is None:
            self.saved(step, value, "save", line)
        self.ask()

    @rule(step=st.integers(0, 60), way=WAYS, overwrite=st.booleans())
    def save(self, step: int, way: str, overwrite: bool) -> None:
        """Save a number; what it replaces was given up, or meant."""
        expected, line = self.outcome(step, overwrite=overwrite)
        value = next(self.turns)
        try:
            write(self.run.address, step, value, way, overwrite=overwrite)
        except FileExistsError as error:
            assert said(error) == expected, f"{error}, expected is {expected}"
        else:
            assert expected is None, f"expected is {expected}"
            self.saved(step, value, way, line)
        self.ask()

    def outcome(self, step: int, *, overwrite: bool) -> tuple[str | None, Line]:
        """How a save must end, and the line after it: the old one, or a new one."""
        found = [self.line_from(origin, step) for origin in self.origins]
        if not found or (overwrite and not self.origins[0].is_certain):
            found.append(self.run.line)  # An `overwrite` alone does not say that the run goes back.
        if any(line != found[-1] for line in found):
            return "nobody has said", self.run.line
        if found[-1] is None:
            return "gone back", self.run.line
        line = found[-1]
        if line is not self.run.line:
            line = [*line, (next(self.generations), None)]
        there = self.run.saves.get(step)
        is_refused = there is not None and Place("", line=line).has(there) and not overwrite
        return "exists" if is_refused else None, line

    def line_from(self, origin: Origin, step: int) -> Line | None:
        """The line of a save, but for a new generation at its end; None: another has gone back."""
        run, at = self.run, origin.save
        if step <= at.step:
            return run.line
        is_current = origin.number == run.number
        if not run.has(at) and (not origin.is_load or not is_current):
            return None
        later = [each for each in run.on_line() if each >= step]
        if origin.is_newest or (run.has(at) and not later):
            return run.line
        there = run.saves.get(at.step)
        if not is_current or (there is not None and there.attempt != at.attempt):
            return None
        before = itertools.takewhile(lambda part: part[0] != at.generation, self.parts(at))
        return [*before, (at.generation, at.step)]

    def saved(self, step: int, value: int, way: str, line: Line) -> None:
        """Note what a save has led to."""
        run = self.run
        if line is not run.line:
            run.line = self.lines[line[-1][0]] = line
            run.known.add(line[-1][0])
            run.number += 1
        (attempt,) = [each.attempt for each in ckpt.list(run.address) if each.step == step]
        generation = next(g for g, last in line if last is None or step <= last)
        run.saves[step] = Save(step, value, attempt, generation, way == "dcp")
        if any(
            each.save.generation == generation and step < each.save.step for each in self.origins
        ):
            return  # A save of an earlier step is none to go on from.
        # Saving a loaded step again does not give up the steps behind it yet.
        is_newest = all(each.is_newest or each.save.step != step for each in self.origins)
        self.origins = [Origin(run.saves[step], run.number, False, is_newest, True)]

    def parts(self, at: Save) -> Line:
        """The line on which a save is, if it is on one that there was."""
        is_on_line = any(generation == at.generation for generation, _ in self.run.line)
        return self.run.line if is_on_line else self.lines[at.generation]

    # What follows the run.

    @rule(keep_last=st.integers(1, 3), keep_every=st.sampled_from([None, 2, 20]))
    def prune(self, keep_last: int, keep_every: int | None) -> None:
        """Remove what is old, and what was given up."""
        run = self.run
        on_line = run.on_line()
        given_up = set(run.saves) - set(on_line)
        old = {step for step in on_line[:-keep_last] if not keep_every or step % keep_every}
        removed = ckpt.prune(run.address, keep_last=keep_last, keep_every=keep_every)
        expected = (old | given_up) if len(on_line) >= keep_last else set()
        assert {commit.step for commit in removed} == expected
        for step in expected:
            del run.saves[step]
        self.ask()

    @rule()
    def flush(self) -> None:
        """Bring the backup to where the run is."""
        run, backup = self.run, self.backup
        on_line = run.on_line()
        wanted = {step for step in on_line if not is_same(run, backup, step)}
        rivals = [backup.saves[n] for n in wanted if n in backup.saves]
        # What a user has replaced looks like another run's.
        assume(not any(map(run.has, rivals)))
        ckpt.stage(run.address, backup.address).flush()
        for step in sorted(wanted):
            self.copied(step)
        self.ask()
        assert {step for step in backup.saves if is_same(run, backup, step)} >= set(on_line)

    def copied(self, step: int) -> None:
        """A step has come to the backup, and its line."""
        save, newest = self.run.saves[step], self.run.line[-1][0]
        self.backup.saves[step] = save
        if save.generation == newest and newest not in self.backup.known:
            self.backup.line = self.run.line
            self.backup.known.add(newest)

    # Questions.

    def ask(self) -> None:
        """Ask both places what there is, and what is the latest."""
        for place in (self.run, self.backup):
            on_line = place.on_line()
            listed = {commit.step: commit for commit in ckpt.list(place.address, given_up=True)}
            assert {n: each.attempt for n, each in listed.items()} == {
                n: each.attempt for n, each in place.saves.items()
            }
            shown = [commit.step for commit in ckpt.list(place.address)]
            assert shown == on_line, f"{shown} are shown, on the line are {on_line}"
            try:
                latest = ckpt.latest(place.address)
            except ValueError:
                assert place.saves and not on_line
            else:
                assert (latest and latest.step) == (on_line[-1] if on_line else None)
        # What is looked at, and not loaded, is nothing to go on from.
        for step in self.run.on_line()[-2:]:
            assert ckpt.verify(self.run.address, step) == []


def is_same(one: Place, other: Place, step: int) -> bool:
    """Whether both have the same save of a step."""
    saves = one.saves.get(step), other.saves.get(step)
    return saves[0] is not None and saves[1] is not None and saves[0].attempt == saves[1].attempt


def arrays(value: int) -> dict[str, Any]:
    """A state that says which one it is."""
    return {"w": np.full(300, value), "frozen": np.arange(5000)}


def write(target: str, step: int, value: int, way: str, *, overwrite: bool) -> None:
    """Save in one of the ways."""
    state = {**arrays(value), "value": value}
    if way == "dcp":
        tensors = {key: torch.from_numpy(each) for key, each in arrays(value).items()}
        writer = CheckpointWriter(target, step=step, overwrite=overwrite)
        try:
            dcp.save(tensors, storage_writer=writer, no_dist=True)
        except CheckpointException as error:  # torch's, around what the rank raised.
            raise error.failures[0][0] from None
    elif way == "async":
        ckpt.async_save(target, step, state, overwrite=overwrite).result()
    else:
        ckpt.save(target, step, state, incremental=way == "incremental", overwrite=overwrite)


def said(error: FileExistsError) -> str:
    """Which of the reasons an error tells."""
    reasons = ("nobody has said", "gone back", "saved again since")
    reason = next((each for each in reasons if each in str(error)), "exists")
    return "gone back" if reason == "saved again since" else reason


def in_child(work: Callable[[], None]) -> str:
    """Do `work` in a forked process; return how it ended."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        text = "died"
        try:
            work()
            text = "saved"
        except FileExistsError as error:
            text = said(error)
        except BaseException as error:  # Nothing of the parent's may run here.
            text = repr(error)
        finally:
            os.write(writer, text.encode())
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return text


def read(target: str, step: int | None, *, is_torchs: bool, resume: bool | None) -> int:
    """Load a step, or the latest, as it was saved; return what it says it is."""
    into: dict[str, Any]
    if is_torchs:
        into = {key: torch.from_numpy(each) for key, each in arrays(-1).items()}
        dcp.load(
            into, storage_reader=CheckpointReader(target, step=step, resume=resume), no_dist=True
        )
    else:
        into = ckpt.load(target, step="latest" if step is None else step, resume=resume)
    assert np.array_equal(into["frozen"], arrays(-1)["frozen"])  # Incremental saves share it.
    return int(into["w"][7])


for name in ("ffrecord.checkpoint", "torch.distributed.checkpoint.state_dict_loader"):
    logging.getLogger(name).setLevel(logging.CRITICAL)  # Failures are expected.

MODEL = Lines
