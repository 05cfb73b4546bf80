"""Model of runs that go back: what is the latest, at every kind of target.

Goal: `latest`, `list`, `prune`, mirrors and copies follow the run, not the number; no save that was
not given up is replaced. Method: one run and its backup, each at a kind of target; processes that
load any step, save any number, and end. The truth is which generations are on the line of a place.
"""

import dataclasses
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

import ffrecord.checkpoint as ckpt
from checkpoint_places import far_target
from ffrecord import _ffrecord
from ffrecord.errors import ConflictError
from ffrecord.torch import CheckpointReader, CheckpointWriter

WAYS = st.sampled_from(["save", "async", "incremental", "dcp"])


@dataclasses.dataclass
class Save:
    """A committed step. Generations are counted by the model."""

    step: int
    value: int
    attempt: str
    generation: int
    is_torchs: bool  # Saved by torch's planner.


@dataclasses.dataclass
class Place:
    """A target, and which of its steps are on the line: up to which step of which generations."""

    address: str
    saves: dict[int, Save] = dataclasses.field(default_factory=dict)
    line: list[tuple[int, int | None]] = dataclasses.field(default_factory=lambda: [(0, None)])
    known: set[int] = dataclasses.field(default_factory=lambda: {0})  # Generations of its lines.

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
        self.lines: dict[int, list[tuple[int, int | None]]] = {0: [(0, None)]}
        self.run = self.backup = Place("")
        self.position: Save | None = None  # What this process goes on from,
        self.is_load = self.is_newest = False  # and how it came there.

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
        self.position = None

    @rule(which=st.integers(0, 7))
    def load(self, which: int) -> None:
        """Load a step, given up or not, and go on from there; mostly the latest."""
        assume(self.run.saves)
        on_line, steps = self.run.on_line(), sorted(self.run.saves)
        assume(which or on_line)
        step = steps[which % len(steps)] if which else on_line[-1]
        save = self.run.saves[step]
        found = read(self.run.address, step if which else None, is_torchs=save.is_torchs)
        assert found == save.value
        self.position, self.is_load = save, True
        self.is_newest = self.run.has(save) and on_line[-1] == step

    @rule(step=st.integers(0, 60), way=WAYS, overwrite=st.booleans())
    def save(self, step: int, way: str, overwrite: bool) -> None:
        """Save a number; what it replaces was given up, or meant."""
        run, at = self.run, self.position
        goes_back = False
        if at is not None and step > at.step:
            assert run.has(at) or self.is_load, "a process goes on from what itself gave up"
            later = [each for each in run.on_line() if each >= step]
            goes_back = not self.is_newest and (not run.has(at) or bool(later))
        line = run.line
        if goes_back and at is not None:
            before = itertools.takewhile(lambda part: part[0] != at.generation, self.parts(at))
            generation = next(self.generations)
            line = [*before, (at.generation, at.step), (generation, None)]
        before_it, after = run.saves.get(step), Place("", line=line)
        is_refused = before_it is not None and after.has(before_it) and not overwrite
        value = next(self.turns)
        try:
            write(run.address, step, value, way, overwrite=overwrite)
        except FileExistsError as error:
            assert not isinstance(error, ConflictError) or "gone back" not in str(error)
            assert is_refused, f"step {step} was given up, and is not replaced"
            self.ask()
            return
        assert not is_refused, f"step {step} was not given up, and is replaced"
        run.line = line
        if goes_back:
            self.lines[line[-1][0]] = line
            run.known.add(line[-1][0])
        (attempt,) = [each.attempt for each in ckpt.list(run.address) if each.step == step]
        generation = next(g for g, last in line if last is None or step <= last)
        run.saves[step] = Save(step, value, attempt, generation, way == "dcp")
        if at is None or at.generation != generation or step >= at.step:
            is_again = at is not None and step == at.step  # What is behind it is not given up yet.
            self.is_newest = self.is_newest if is_again else True
            self.position, self.is_load = run.saves[step], False
        self.ask()

    def parts(self, at: Save) -> list[tuple[int, int | None]]:
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
    def mirror(self) -> None:
        """Bring the backup to where the run is."""
        run, backup = self.run, self.backup
        on_line = run.on_line()
        wanted = {step for step in on_line if not is_same(run, backup, step)}
        rivals = [backup.saves[n] for n in wanted if n in backup.saves]
        # What a user has replaced looks like another run's, where no MIRROR says whose it was.
        has_record = "://" not in run.address and not run.address.startswith("buddies:")
        assume(has_record or not any(map(run.has, rivals)))
        mirror = ckpt.Mirror(run.address, backup.address)
        assert {commit.step for commit in mirror.lacking()} == wanted
        assert {commit.step for commit in mirror.sync()} == wanted
        for step in sorted(wanted):
            self.copied(step, has_record=has_record)
        self.ask()
        assert {step for step in backup.saves if is_same(run, backup, step)} >= set(on_line)
        assert mirror.sync() == []

    def copied(self, step: int, *, has_record: bool) -> None:
        """A step has come to the backup, and its line if the backup is known to be of the run."""
        save, newest = self.run.saves[step], self.run.line[-1][0]
        common = any(is_same(self.run, self.backup, each) for each in self.backup.saves)
        is_of_run = has_record or common or not self.backup.saves
        self.backup.saves[step] = save
        if save.generation == newest and newest not in self.backup.known and is_of_run:
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


def read(target: str, step: int | None, *, is_torchs: bool) -> int:
    """Load a step, or the latest, as it was saved; return what it says it is."""
    if is_torchs:
        into = {key: torch.from_numpy(each) for key, each in arrays(-1).items()}
        dcp.load(into, storage_reader=CheckpointReader(target, step=step), no_dist=True)
        return int(into["w"][7])
    loaded: Any = ckpt.load(target, step="latest" if step is None else step)
    return int(loaded["w"][7])


for name in ("ffrecord.checkpoint", "torch.distributed.checkpoint.state_dict_loader"):
    logging.getLogger(name).setLevel(logging.CRITICAL)  # Failures are expected.

MODEL = Lines
