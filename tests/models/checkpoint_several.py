"""Rules of several places: staged and replicated targets, and copies of another run."""

import contextlib
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.stateful import rule

import checkpoint_ranks as ranks
import checkpoint_truth as truth
import ffrecord.checkpoint as ckpt
from checkpoint_places import an_old_save, damaged_place, spellings
from checkpoint_truth import Content, Step, copies_of, gives_way, has_same
from ffrecord.checkpoint import _staged
from ffrecord.errors import ConflictError, CorruptionError
from thread_ranks import same

_WHICH = st.integers(0, 4)
# Of the second save at a replicated target, and whether the first is one to share with.
_WAYS = ["whole", "after incremental", "incremental"]
# Of a place of several.
ILLNESSES = ["spelling", "file", "gone", *(each for each in truth.FILES if each != "torn")]


class SeveralPlaces:
    """The rules. The machine that has them holds the runs."""

    folder: Path
    runs: dict[str, dict[int, Step]]
    path: Any
    pick: Any
    content: Any
    ask: Any
    load_flat: Any
    load_fresh: Any

    def staged(self, keep: int | None = None) -> ckpt.Staged:
        """The first run with the far place behind it, in a process that has just begun."""
        _staged._flushers.clear()
        places = self.path("first"), self.path("far")
        return ckpt.stage(*places, keep=(keep, None), on_failure="warn")

    @rule(keep=st.sampled_from([None, 1, 2]))
    def flush(self, keep: int | None = None) -> None:
        """Copy what the far place lacks: whole steps, even if others are not."""
        mine, theirs = self.runs["first"], self.runs["far"]
        lacking = {n for n, each in mine.items() if not has_same(theirs.get(n), each)}
        able = {n for n in lacking if mine[n].is_whole and gives_way(theirs.get(n), mine[n])}
        nameless = {n for n, each in mine.items() if "root" in each.damage}
        try:
            self.staged(keep).flush()
        except ckpt.FlushError as error:
            assert lacking - able | nameless, f"all of it can be copied, and {error}"
        else:
            assert lacking == able, f"{lacking - able} cannot be copied: no word of it"
        for number in able:
            theirs[number] = Step(
                mine[number].content, mine[number].attempt, flat=mine[number].flat
            )
        for number in mine.keys() - truth.steps_of(self.path("first")):
            left = mine.pop(number)
            copy = theirs.get(number)
            is_there = copy is not None and copy.attempt == left.attempt and copy.is_whole
            assert keep is not None and is_there, f"the only whole copy of step {number} is gone"
        self.ask("far")
        self.ask_staged()

    def ask_staged(self) -> None:
        """Ask both places together: what is whole at one of them is there."""
        target, near, far = self.staged(), self.runs["first"], self.runs["far"]
        found = {n: copies_of(near.get(n), far.get(n)) for n in near.keys() | far.keys()}
        complete = [n for n, each in found.items() if any(copy.looks_whole for copy in each)]
        try:
            newest = ckpt.latest(target)
        except CorruptionError:
            assert found and not complete
        else:
            assert (newest and newest.step) == max(complete, default=None)
        for number, copies in found.items():
            way = self.load_flat if copies and copies[0].flat else self.load_fresh
            content = copies[0].content if copies else Content(0, 0)
            try:
                loaded, expected = way(target.address, number, content)
            except (CorruptionError, FileNotFoundError):
                assert not any(each.is_readable for each in copies), f"step {number} is whole"
            else:
                assert copies and same(loaded, expected), f"step {number} has other values"

    @rule(which=_WHICH)
    def another_run_at_the_far_place(self, which: int) -> None:
        """Another run's save takes the place of a copy: it is not replaced, until it is removed."""
        step, content = self.pick("first", which), self.content()
        assume(self.runs["first"][step].is_whole)
        self.flush()
        ckpt.remove(self.path("far"), step)
        ckpt.save(self.path("far"), step, content.state())
        try:
            self.staged().flush()
        except ckpt.FlushError:
            pass  # Of one of the steps; others may be damaged.
        else:
            raise AssertionError(f"step {step} at the far place is another run's: no word of it")
        assert same(ckpt.load(self.path("far"), step=step, resume=False), content.stored())
        ckpt.remove(self.path("far"), step)
        del self.runs["far"][step]
        self.ask("far")

    @rule(what=st.sampled_from(ILLNESSES), which=st.integers(0, 5), way=st.sampled_from(_WAYS))
    def replicated(self, what: str, which: int, way: str) -> None:
        """Two places: they are two, and one that is ill is named, and stops no load."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        places, content = [folder / "a", folder / "b"], self.content()
        if what == "spelling":
            places = spellings(places[0], which)
        else:
            ckpt.save(
                ckpt.replicated_target(places), 1, content.state(), incremental=way != "whole"
            )
        try:
            target = ckpt.replicated_target(places)
            if what == "spelling":
                commits = ranks.within_s(
                    20, lambda: ckpt.save(target, 1, content.state(), timeout_s=2)
                )
                raise AssertionError(f"{places} are one place, and {commits} was saved")
        except ValueError:
            assert what == "spelling", "two places are refused"
            return
        damaged_place(places[which % 2], what, which)
        assert same(ckpt.load(target, resume=False), content.stored())
        assert (latest := ckpt.latest(target)) is not None and latest.step == 1
        assert ckpt.verify(target) != [], f"verify has no word of a place that is {what}"
        self.save_next_to(target, places, way)

    def save_next_to(self, target: str, places: list[Path], way: str) -> None:
        """Save another step, which may share with one that is ill at one place: both have it."""
        content = self.content()
        try:
            ckpt.save(target, 2, content.state(), incremental=way == "incremental")
        except OSError:
            assert any(place.is_file() for place in places), "a save needs places, and has them"
            return
        assert ckpt.verify(target, 2) == [], "what one place could not share is not at both"
        for place in places:
            with contextlib.suppress(FileNotFoundError):
                ckpt.remove(place, 1)
        for place in places:
            assert same(ckpt.load(place, step=2, resume=False), content.stored())

    @rule(order=st.permutations([0, 1, 2]))
    def an_old_save_comes_back(self, order: list[int]) -> None:
        """A place was away while a step was replaced: no load takes its save for the new one."""
        folder, content = Path(tempfile.mkdtemp(dir=self.folder)), self.content()
        old, target = an_old_save(folder, order, self.content(), content)
        try:
            loaded = ckpt.load(target, resume=False)
        except ConflictError:
            ckpt.remove(old, 1)
            loaded = ckpt.load(target, resume=False)
        assert same(loaded, content.stored()), "an old save of a step is loaded"
