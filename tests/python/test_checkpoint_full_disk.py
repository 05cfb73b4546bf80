"""Goal: a full place is full for no longer than what fills it: what is dead there goes at once.

Method: a small tmpfs; savers and copies that fail for want of room, or are killed while they write.
"""

import contextlib
import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ffrecord.checkpoint as ckpt
import saving_to
from small_disks import small_disk
from thread_ranks import ThreadRank, ThreadRanks

_processes = multiprocessing.get_context("forkserver")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "small", "48m") as folder:
        yield folder


def state(mib: int, seed: int = 1) -> dict[str, Any]:
    return {"w": np.random.default_rng(seed).integers(0, 255, mib << 20, np.uint8)}


def room(disk: Path) -> int:
    status = os.statvfs(disk)
    return status.f_bavail * status.f_frsize >> 20


def kill_a_save(run: Path, step: int) -> None:
    """Of 32 MiB, when all of it is written."""
    here, there = _processes.Pipe()
    victim = _processes.Process(target=saving_to.save, args=(str(run), step, there))
    victim.start()
    assert here.recv() == "planned"
    here.send("go on")
    while here.recv() != "written":
        pass
    victim.kill()
    victim.join()


@pytest.mark.parametrize("next_step", [1, 2, 9])
def test_a_killed_save_leaves_room_for_the_next(small: Path, next_step: int) -> None:
    """Whatever its number: the next save of a run that went on elsewhere may have a smaller one."""
    kill_a_save(small, 5)
    assert room(small) < 20
    ckpt.save(small, next_step, state(30))
    assert [path.name for path in small.glob(".*")] == []
    assert ckpt.verify(small) == []


def test_a_save_that_goes_on_keeps_its_room(small: Path) -> None:
    here, there = _processes.Pipe()
    saver = _processes.Process(target=saving_to.save, args=(str(small), 5, there))
    saver.start()
    assert here.recv() == "planned"
    here.send("go on")
    while here.recv() != "written":
        pass
    with pytest.raises(OSError, match="No space left"):
        ckpt.save(small, 2, state(30))
    ckpt.save(small, 1, state(5))
    here.send("and on")
    while saver.is_alive():
        with contextlib.suppress(EOFError):
            if here.poll(0.1):
                here.recv()
    saver.join()
    assert saver.exitcode == 0
    assert [each.step for each in ckpt.list(small)] == [1, 5]
    assert ckpt.verify(small) == []


def test_a_copy_that_found_no_room_leaves_it_to_a_smaller_one(small: Path, tmp_path: Path) -> None:
    """The first file of the larger step fits, the second does not."""
    near, far = tmp_path / "near", small / "far"
    ckpt.save(near, 1, {"a": state(30)["w"]})
    large = {name: state(24, seed)["w"] for seed, name in enumerate("ab")}

    def save(rank: ThreadRank) -> object:
        return ckpt.save(near, 2, large, group=rank, replicated="split")

    ThreadRanks(2).must(save)
    with pytest.raises(OSError, match="No space left"):
        ckpt.copy(near, far, 2)
    assert room(small) < 30
    ckpt.copy(near, far, 1)
    assert ckpt.verify(far) == []
    assert [each.step for each in ckpt.list(far)] == [1]


def test_a_staged_target_goes_on_when_a_full_place_has_room(small: Path, tmp_path: Path) -> None:
    near, far = tmp_path / "near", small / "far"
    target = ckpt.stage(near, far, keep=(1, None), retry_s=0.05, waiting_steps_max=1)
    filler = small / "filler"
    filler.write_bytes(bytes(20 << 20))
    for step in (1, 2, 3):
        ckpt.save(target, step, state(20, step))
        with contextlib.suppress(ckpt.FlushError):
            target.flush()
    assert [each.step for each in ckpt.list(far)] == [1]
    filler.unlink()
    ckpt.remove(far, 1)
    target.flush()
    there = [each.step for each in ckpt.list(far)]
    assert there and there[-1] == 3
    assert ckpt.verify(far) == []
    assert all(not each.damage for each in ckpt.list(target))
