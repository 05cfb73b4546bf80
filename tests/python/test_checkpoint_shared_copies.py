"""Goal: an incremental save sends what has changed to every place, and each copy stays whole alone.

Method: replicated and staged targets of folders: inodes tell what is shared; then steps, or a
place, are removed or damaged, and the others are loaded.
"""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ffrecord.checkpoint as ckpt
from staged_runs import flip
from test_checkpoint_incremental import MIB, assert_holds, new_bytes, state_of
from thread_ranks import ThreadRank, ThreadRanks


def changed(state: dict[str, Any], row: int) -> dict[str, Any]:
    state["table"][row] ^= 1
    return {**state, "table": state["table"].copy()}


@pytest.mark.parametrize("count", [2, 3])
def test_replicas_share_with_the_step_before(tmp_path: Path, count: int) -> None:
    places = [tmp_path / str(i) for i in range(count)]
    target = ckpt.replicated_target(places)
    states = [changed(state_of(size_mib=40), row) for row in (7, 9000)]
    for step, state in enumerate(states):

        def save(rank: ThreadRank, step: int = step, state: dict[str, Any] = state) -> object:
            return ckpt.save(target, step, state, group=rank, replicated="split", incremental=True)

        ThreadRanks(2).must(save)
    assert 2 * MIB <= sum(new_bytes(place, 1) for place in places) < 8 * MIB
    for lost in places:
        shutil.move(lost, tmp_path / "away")
        loaded: Any = ckpt.load(target, step=1, resume=False)
        assert np.array_equal(loaded["table"], states[1]["table"])
        shutil.move(tmp_path / "away", lost)
    ckpt.remove(target, 0)
    assert ckpt.verify(target) == []


@pytest.mark.parametrize("how", ["flipped", "gone", "step removed"])
@pytest.mark.parametrize("ill", [0, 1])
def test_what_one_place_cannot_share_is_sent_to_both(tmp_path: Path, how: str, ill: int) -> None:
    """A segment is kept at both of its places, or written at both: its links are not written to."""
    places = [tmp_path / "a", tmp_path / "b"]
    target = ckpt.replicated_target(places)
    first, second = (changed(state_of(size_mib=6), row) for row in (7, 9))
    ckpt.save(target, 1, first, incremental=True)
    segment = places[ill] / "step-000000001/part-00000/seg-0000"
    if how == "flipped":
        flip(segment)
    elif how == "gone":
        segment.unlink()
    else:
        ckpt.remove(places[ill], 1)
    ckpt.save(target, 2, second, incremental=True)
    assert ckpt.verify(target, 2) == []
    ckpt.remove(places[1 - ill], 1)
    for place in places:
        loaded: Any = ckpt.load(place, step=2, resume=False)
        assert np.array_equal(loaded["table"], second["table"])
        assert [each for each in place.iterdir() if each.name.startswith(".")] == []


def test_copies_share_with_the_copy_before(tmp_path: Path) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    target = ckpt.stage(near, far)
    states = [changed(state_of(size_mib=40), row) for row in (7, 9000, 11)]
    for step, state in enumerate(states):
        ckpt.save(target, step, state, incremental=True)
        target.flush()
    assert all(new_bytes(far, step) == new_bytes(near, step) < 4 * MIB for step in (1, 2))
    ckpt.remove(far, 0)
    for step in (1, 2):
        assert_holds(far, step, states[step])


@pytest.mark.parametrize("how", ["flipped", "gone", "manifest", "other run"])
def test_a_copy_shares_nothing_that_is_damaged_or_another_s(tmp_path: Path, how: str) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    first, second = (changed(state_of(size_mib=6), row) for row in (7, 9))
    ckpt.save(near, 1, first, incremental=True)
    if how == "other run":
        ckpt.save(far, 1, second, incremental=True)
    else:
        ckpt.copy(near, far, 1)
    segment = far / "step-000000001/part-00000/seg-0000"
    if how == "flipped":
        flip(segment)
    elif how == "gone":
        segment.unlink()
    elif how == "manifest":
        flip(far / "step-000000001/part-00000.manifest")
    ckpt.save(near, 2, second, incremental=True)
    ckpt.copy(near, far, 2)
    assert_holds(far, 2, second)


def test_a_compressed_copy_shares_nothing(tmp_path: Path) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    first, second = (changed(state_of(size_mib=6), row) for row in (7, 9))
    for step, state, compress in ((1, first, True), (2, second, False)):
        ckpt.save(near, step, state, incremental=True)
        ckpt.copy(near, far, step, compress=compress)
    ckpt.save(near, 3, first, incremental=True)
    ckpt.copy(near, far, 3, compress=True)
    for step, state in ((1, first), (2, second), (3, first)):
        assert_holds(far, step, state)
