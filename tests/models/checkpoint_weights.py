"""Rules of weights: read by name, exported, staged and published, of any step and in any order."""

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.stateful import rule
from safetensors.numpy import load_file

import ffrecord.checkpoint as ckpt
import ffrecord.weights as weights
from checkpoint_truth import TABLE_ROWS, Content, Step
from ffrecord.errors import CorruptionError
from ffrecord.torch import Stager
from ffrecord.weights import _export
from thread_ranks import ThreadRank, ThreadRanks, same

_RUNS = st.sampled_from(["first", "second", "far"])
_WHICH = st.integers(0, 4)
_ACTIONS = st.sampled_from(["publish", "publish", "pull", "hold", "release", "killed"])


def named(step: Step) -> dict[str, Any]:
    """The tensors of a step by their names in `ffrecord.weights`."""
    arrays = step.content.arrays()
    return arrays if step.flat else {**arrays, "again": arrays["head"]}


def _fail(state: object) -> None:
    raise OSError(f"the disk is full for {len(str(type(state)))} bytes")


@contextlib.contextmanager
def _late_rank(work: Callable[[], object]) -> Iterator[None]:
    """`work` exports and fails; one of its ranks writes its file again and again in the block."""
    write_file, late = _export._write_file, []

    def end(*args: Any) -> None:  # noqa: ANN401
        late.append(args)
        raise OSError("this rank ends here")

    def write(*args: Any) -> None:  # noqa: ANN401
        write_file(*args)
        for each in late:
            with contextlib.suppress(FileNotFoundError, CorruptionError):
                write_file(*each)

    try:
        _export._write_file = end
        with contextlib.suppress(OSError, CorruptionError):
            work()
        _export._write_file = write
        yield
    finally:
        _export._write_file = write_file


class WeightsOut:
    """Rules for `Checkpoints`."""

    folder: Path
    runs: dict[str, dict[int, Step]]
    path: Any
    pick: Any
    content: Any

    @rule(run=_RUNS, which=_WHICH, begin=st.integers(0, TABLE_ROWS), rows=st.integers(0, 300))
    def read_weights(self, run: str, which: int, begin: int, rows: int) -> None:
        """Read tensors by name, and rows of one: those of the step, or damage is told."""
        number = self.pick(run, which)
        step = self.runs[run][number]
        expected = named(step)
        part = np.zeros((len(expected["table"][begin : begin + rows]), 4096), np.uint8)
        head = np.zeros_like(expected["head"])
        try:
            found = weights.open(self.path(run), step=number, prefix="state" if step.flat else "")
            assert list(found) == list(expected)
            shard = ckpt.Shard(part, shape=(TABLE_ROWS, 4096), offset=(begin, 0))
            found.fill({"table": shard, "head": head})
            whole = dict(found.read())
        except (CorruptionError, FileNotFoundError):
            assert not step.is_whole, f"step {number} is whole and its weights cannot be read"
            return
        assert same(part, expected["table"][begin : begin + rows]) and same(head, expected["head"])
        assert all(same(whole[name], expected[name]) for name in expected), "other weights are read"
        assert step.is_whole, f"weights are read in spite of {step.damage}"

    @rule(
        run=_RUNS,
        which=_WHICH,
        size=st.sampled_from([1, 1 << 20, 1 << 30]),
        two=st.booleans(),
        late=st.sampled_from([None, "same", "float16"]),
    )
    def export_weights(self, run: str, which: int, size: int, two: bool, late: str | None) -> None:
        """Export a step, on one rank or two: all of it, or damage is told and nothing is there.

        With `late`, after one that failed, of which a rank goes on.
        """
        number = self.pick(run, which)
        step, out = self.runs[run][number], Path(tempfile.mkdtemp(dir=self.folder)) / "out"
        prefix = "state" if step.flat else ""

        def work(rank: ThreadRank) -> weights.Export:
            return weights.export(
                self.path(run), out, step=number, prefix=prefix, file_bytes_max=size, group=rank
            )

        failing = contextlib.nullcontext()
        if late is not None:
            dtype = None if late == "same" else late
            failing = _late_rank(
                lambda: weights.export(
                    self.path(run),
                    out,
                    step=number,
                    prefix=prefix,
                    dtype=dtype,
                    file_bytes_max=size,
                    group="alone",
                )
            )
        with failing:
            results = ThreadRanks(2 if two else 1).run(work)
        if isinstance(results[0], Exception):
            kinds = (CorruptionError, FileNotFoundError, ckpt.PeerError)
            assert all(isinstance(each, kinds) for each in results), results
            assert not step.is_whole, f"step {number} is whole and cannot be exported: {results}"
            assert not out.exists(), "half an export is there"
            return
        assert step.is_whole, f"step {number} was exported in spite of {step.damage}"
        found: dict[str, Any] = {}
        for path in out.glob("*.safetensors"):
            found |= load_file(path)
        expected = named(step)
        assert found.keys() == expected.keys()
        assert all(same(found[name], expected[name]) for name in expected), (
            "others read other bytes"
        )
        shutil.rmtree(out)

    @rule(
        actions=st.lists(_ACTIONS, min_size=1, max_size=12),
        spelled=st.sampled_from(["versions", "versions/.", "link", "../{}/versions"]),
    )
    def publish_and_pull(self, actions: list[str], spelled: str) -> None:
        """Publish, pull and hold versions in any order: a held one stays, and no two are mixed."""
        parent = Path(tempfile.mkdtemp(dir=self.folder))
        run, other = parent / "versions", f"{parent}/{spelled.format(parent.name)}"
        (parent / "link").symlink_to("versions")
        run.mkdir()
        publisher, source = weights.Publisher(run), weights.Subscriber(other)
        contents: dict[int, Content] = {}
        held: list[tuple[contextlib.ExitStack, weights.Weights, int]] = []
        for action in actions:
            if action == "publish":
                contents[len(contents) + 1] = content = self.content(new_table=True)
                publisher.publish(len(contents), content.arrays())
                there = {commit.step for commit in ckpt.list(run)}
                assert there == {len(contents), *(version for *_, version in held)}
            elif action == "killed":  # A publisher that comes back.
                publisher = weights.Publisher(run)
            elif contents and action == "hold":
                stack = contextlib.ExitStack()
                held.append((stack, stack.enter_context(source.open()), len(contents)))
            elif held and action == "release":
                held.pop(0)[0].close()
            elif contents and action == "pull":
                into = Content(-1 % 1000, 0).arrays()
                assert source.pull(into, group="alone") == len(contents)
                assert same(into, contents[len(contents)].arrays()), "a pull mixes versions"
        for stack, found, version in held:
            assert same(dict(found.read()), contents[version].arrays())
            stack.close()
        if contents:
            publisher.retire()
            assert [commit.step for commit in ckpt.list(run)] == [len(contents)]
            assert ckpt.list(f"{run}.readers") == []

    @rule(room=st.sampled_from([0, 1 << 20, 8 << 20]), fails=st.booleans())
    def stage_for_dcp(self, room: int, fails: bool) -> None:
        """Stage a state in so much memory: a copy of it, whatever becomes of the state.

        With `fails`, after a save that failed and whose error is kept.
        """
        content = self.content(new_table=True)
        live = {key: torch.from_numpy(each) for key, each in content.arrays().items()}
        stager, errors = Stager(room, spill=self.folder, wait_s=20), []
        if fails:
            try:
                _fail(stager.stage({"model": live}))
            except OSError as error:
                errors.append(error)
        staged = stager.stage({"model": live})
        assert len(errors) == fails
        for tensor in live.values():
            tensor.zero_()
        copies = {key: each.numpy() for key, each in staged["model"].items()}
        assert same(copies, content.arrays()), "a staged tensor is not what it was"
