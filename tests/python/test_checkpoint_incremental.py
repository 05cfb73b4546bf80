"""Goal: an incremental save writes what has changed, and every step stays whole by itself.

Method: inodes and link counts tell what is shared; steps are loaded after all others, or bytes of
them, are gone; random changes and removals against copies that are kept in memory.
"""

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ffrecord.checkpoint as ckpt
from thread_ranks import ThreadRank, ThreadRanks

MIB = 1 << 20


def state_of(seed: int = 0, size_mib: int = 8) -> dict[str, Any]:
    """One tensor of several slices, and a few small ones."""
    chance = np.random.default_rng(seed)
    return {
        "table": chance.integers(0, 256, (size_mib * 256, 4096), np.uint8),
        "bias": chance.random(1000, np.float32),
        "step": np.int64(seed),
        "name": "x",
    }


def new_bytes(run: Path, step: int) -> int:
    """What a step has for itself alone."""
    files = (run / f"step-{step:09}").rglob("seg-*")
    return sum(file.stat().st_size for file in files if file.stat().st_nlink == 1)


def assert_holds(run: Path, step: int, state: dict[str, Any]) -> None:
    loaded: Any = ckpt.load(run, step=step)
    assert ckpt.verify(run, step) == []
    assert loaded.keys() == state.keys()
    for key, value in state.items():
        assert np.array_equal(loaded[key], value), key


def test_what_has_not_changed_is_not_written_again(tmp_path: Path) -> None:
    state = state_of()
    ckpt.save(tmp_path, 1, state, incremental=True)
    ckpt.save(tmp_path, 2, state, incremental=True)

    first, second = (sorted(tmp_path.glob(f"step-00000000{i}/*/seg-*")) for i in (1, 2))
    assert [path.stat().st_ino for path in first] == [path.stat().st_ino for path in second]
    assert_holds(tmp_path, 2, state)


def test_a_changed_row_costs_its_neighbourhood(tmp_path: Path) -> None:
    state = state_of(size_mib=40)
    ckpt.save(tmp_path, 1, state, incremental=True)
    state["table"][7] ^= 1
    ckpt.save(tmp_path, 2, state, incremental=True)

    assert MIB <= new_bytes(tmp_path, 2) < 2 * MIB
    assert_holds(tmp_path, 2, state)


def test_a_whole_save_shares_nothing_and_is_no_base(tmp_path: Path) -> None:
    state = state_of()
    ckpt.save(tmp_path, 1, state)
    ckpt.save(tmp_path, 2, state, incremental=True)
    ckpt.save(tmp_path, 3, state)

    assert all(path.stat().st_nlink == 1 for path in tmp_path.glob("*/*/seg-*"))


def test_a_step_outlives_those_that_it_shares_files_with(tmp_path: Path) -> None:
    state = state_of()
    for step in range(1, 5):
        state["table"][step * 100] = step
        ckpt.save(tmp_path, step, state, incremental=True)

    removed = ckpt.prune(tmp_path, keep_last=1)

    assert [commit.step for commit in removed] == [1, 2, 3]
    assert_holds(tmp_path, 4, state)
    assert all(path.stat().st_nlink == 1 for path in tmp_path.glob("*/*/seg-*"))


def test_a_file_of_which_half_is_out_of_use_is_written_anew(tmp_path: Path) -> None:
    state = state_of(size_mib=16)
    ckpt.save(tmp_path, 1, state, incremental=True)
    state["table"][: 9 * 256] ^= 1
    ckpt.save(tmp_path, 2, state, incremental=True)

    assert new_bytes(tmp_path, 2) >= 16 * MIB
    ckpt.prune(tmp_path, keep_last=1)
    assert_holds(tmp_path, 2, state)


def test_the_same_bytes_in_another_shape_or_type_are_another_tensor(tmp_path: Path) -> None:
    table = state_of()["table"]
    ckpt.save(tmp_path, 1, {"t": table}, incremental=True)
    for step, other in ((2, table.reshape(-1, 2048)), (3, table.view(np.int8)), (4, table[:-1])):
        ckpt.save(tmp_path, step, {"t": other}, incremental=True)
        assert_holds(tmp_path, step, {"t": other})


@pytest.mark.parametrize("damage", ["manifest", "missing", "short"])
def test_a_step_that_is_damaged_is_no_base(tmp_path: Path, damage: str) -> None:
    state = state_of()
    ckpt.save(tmp_path, 1, state, incremental=True)
    segment = next(tmp_path.glob("step-*/part-*/seg-*"))
    if damage == "manifest":
        manifest = next(tmp_path.glob("step-*/part-*.manifest"))
        manifest.write_bytes(manifest.read_bytes()[:-1])
    elif damage == "missing":
        segment.unlink()
    else:
        os.truncate(segment, segment.stat().st_size - 4096)

    ckpt.save(tmp_path, 2, state, incremental=True)

    assert_holds(tmp_path, 2, state)


def test_a_pending_save_can_be_incremental(tmp_path: Path) -> None:
    state = state_of()
    ckpt.save(tmp_path, 1, state, incremental=True)
    before = {**state, "table": state["table"].copy()}
    # Room for half: the rest is read in place, and may change when async_save returns.
    pending = ckpt.async_save(tmp_path, 2, state, incremental=True, stage_bytes_max=4 * MIB)
    state["table"][:] = 0
    pending.result(60)

    assert new_bytes(tmp_path, 2) == 0
    assert_holds(tmp_path, 2, before)


def test_ranks_share_each_for_itself_and_other_ranks_load(tmp_path: Path) -> None:
    state = state_of()

    def save(rank: ThreadRank) -> object:
        for step in (1, 2):
            ckpt.save(tmp_path, step, state, group=rank, replicated="split", incremental=True)
        return None

    assert ThreadRanks(2).run(save) == [None, None]
    assert new_bytes(tmp_path, 2) == 0
    # Of three ranks the first two know shares of others.
    grown = ThreadRanks(3).run(
        lambda rank: (
            ckpt.save(tmp_path, 3, state, group=rank, replicated="split", incremental=True).step
        )
    )
    assert grown == [3, 3, 3]
    ckpt.prune(tmp_path, keep_last=1)
    assert_holds(tmp_path, 3, state)


def test_random_changes_and_removals_leave_every_step_as_it_was_saved(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    state = {str(i): np.full((chance.randrange(1, 900), 4099), i, np.uint8) for i in range(6)}
    saved: dict[int, dict[str, Any]] = {}
    for step in range(12):
        for key in chance.sample(sorted(state), chance.randrange(4)):
            begin = chance.randrange(max(1, len(state[key])))  # Some are empty.
            state[key][begin : begin + chance.randrange(1, 50)] ^= 1 + step
        if chance.random() < 0.2:
            state[str(chance.randrange(10))] = np.full((chance.randrange(900), 4099), 9, np.uint8)
        ckpt.save(tmp_path, step, state, incremental=chance.random() < 0.85)
        saved[step] = {key: value.copy() for key, value in state.items()}
        if len(saved) > 3:
            gone = chance.choice(sorted(saved))
            ckpt.remove(tmp_path, gone)
            del saved[gone]

    for step, expected in saved.items():
        assert_holds(tmp_path, step, expected)
