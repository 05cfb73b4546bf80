"""Goal: a step of a staged target is soon whole at every place, and found wherever it is whole.

Method: folders and moto's store; places that are lost, damaged or of another node. Places that
fail, or have too much to do: test_checkpoint_staged_places.py. Kills:
test_checkpoint_staged_kills.py.
"""

import logging
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cli
import ffrecord.checkpoint as ckpt
from eventually import eventually
from ffrecord.checkpoint import _staged
from ffrecord.errors import CorruptionError, UnavailableError
from object_store import Store
from saved_at_a_store import state
from staged_runs import GONE_S, far_run, flip, gone, steps_at
from thread_ranks import ThreadRank, ThreadRanks, same


@pytest.fixture
def run(request: pytest.FixtureRequest, store: Store) -> Iterator[str]:
    """A run at the store."""
    yield from far_run(request, store)


# --- The way of a step ---------------------------------------------------------------------------


def test_a_save_is_at_the_first_place_and_goes_on_to_the_others(run: str, tmp_path: Path) -> None:
    target = ckpt.stage(tmp_path / "near", tmp_path / "far", run)
    commits = [ckpt.save(target, step, state(step)) for step in (1, 2)]
    assert ckpt.list(tmp_path / "near") == commits
    target.flush()
    for place in (tmp_path / "near", tmp_path / "far", run, target):
        assert ckpt.list(place) == commits
        assert ckpt.verify(place) == []
        assert same(ckpt.load(place, resume=False), state(2))
    assert [(each.copied, each.waiting, each.error) for each in target.stats()] == [(2, 0, "")] * 2
    assert ckpt.latest(target.address) == commits[-1]


def test_every_kind_of_save_goes_on(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    import torch.distributed.checkpoint as dcp

    from ffrecord.torch import CheckpointReader, CheckpointWriter

    target = ckpt.stage(tmp_path / "near", tmp_path / "far")
    ckpt.async_save(target, 1, state(1), incremental=True).result()

    def save(rank: ThreadRank) -> object:
        return ckpt.save(target, 2, state(2), group=rank)

    ThreadRanks(2).must(save)
    tensors = {"w": torch.arange(9.0)}
    dcp.save(tensors, storage_writer=CheckpointWriter(target.address, step=3), no_dist=True)
    ckpt.export_safetensors(tmp_path / "near", tmp_path / "file", step=1)
    ckpt.import_safetensors(tmp_path / "file", target, 4)
    target.flush()
    assert steps_at(tmp_path / "far") == [1, 2, 3, 4]
    back = {"w": torch.zeros(9)}
    dcp.load(back, storage_reader=CheckpointReader(target.address, step=3), no_dist=True)
    assert torch.equal(back["w"], tensors["w"])


def test_each_byte_is_read_once_at_the_first_place(tmp_path: Path) -> None:
    """Nor is one read again by a flush that has nothing to do."""
    target = ckpt.stage(tmp_path / "near", tmp_path / "far")
    weights = {"w": np.arange(4 << 20, dtype="float64")}

    def read_bytes() -> int:
        lines = Path("/proc/self/io").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("rchar")).split()[1])

    ckpt.save(tmp_path / "near", 1, weights)
    size = 32 << 20
    before = read_bytes()
    target.flush()
    between = read_bytes()
    target.flush()
    assert between - before < 1.2 * size
    assert read_bytes() - between < 0.1 * size


def test_a_process_that_ends_copies_the_rest_first(tmp_path: Path) -> None:
    address = f"stage:{tmp_path}/near>{tmp_path}/far"
    code = (
        "import ffrecord.checkpoint as ckpt; "
        f"ckpt.async_save({address!r}, 1, {{'w': 1}}); ckpt.save({address!r}, 2, {{'w': 2}})"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert steps_at(tmp_path / "far") == [1, 2]


def test_a_process_ends_though_a_place_is_gone(tmp_path: Path) -> None:
    """It says what is left, and the next one copies it."""
    (tmp_path / "far").touch()  # No folder can be there.
    address = f"stage:{tmp_path}/near>{tmp_path}/far"
    code = f"import ffrecord.checkpoint as ckpt; ckpt.save({address!r}, 1, {{'w': 1}})"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, check=True, timeout=60, capture_output=True, text=True)
    assert "the program ends" in done.stderr and "ffrecord checkpoint flush" in done.stderr
    (tmp_path / "far").unlink()
    ckpt.stage(tmp_path / "near", tmp_path / "far").flush()
    assert steps_at(tmp_path / "far") == [1]


def test_two_processes_may_flush_at_once(tmp_path: Path) -> None:
    target = ckpt.stage(tmp_path / "near", tmp_path / "far")
    commits = [ckpt.save(tmp_path / "near", step, state(step)) for step in range(1, 9)]
    command = [sys.executable, "-m", "ffrecord._cli.main", "checkpoint", "flush", target.address]
    others = [subprocess.Popen(command) for _ in range(2)]
    target.flush()
    assert [other.wait(120) for other in others] == [0, 0]
    assert ckpt.list(tmp_path / "far") == commits
    for commit in commits:
        assert ckpt.verify(tmp_path / "far", commit.step) == []
    ckpt.save(target, 9, state(9))  # What one of them has left is removed by the next copy.
    target.flush()
    assert list((tmp_path / "far").glob(".attempt-*")) == []


def test_what_an_earlier_process_left_is_copied(tmp_path: Path) -> None:
    """The places say what it is: here by the command, and by the next save."""
    target = ckpt.stage(tmp_path / "near", tmp_path / "far")
    for step in (1, 2):
        ckpt.save(tmp_path / "near", step, state(step))
    cli.ok("ffrecord", "checkpoint", "flush", target.address)
    assert steps_at(tmp_path / "far") == [1, 2]
    for step in (3, 4):
        ckpt.save(tmp_path / "near", step, state(step))
    ckpt.save(target, 5, state(5))
    eventually(lambda: steps_at(tmp_path / "far") == [1, 2, 3, 4, 5])


# --- Loading -------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["all", "newest", "old node"])
def test_a_load_takes_the_newest_step_of_all_places(run: str, tmp_path: Path, lost: str) -> None:
    near = tmp_path / "near"
    target = ckpt.stage(near, run)
    for step in (1, 2, 3):
        ckpt.save(target, step, state(step))
    target.flush()
    if lost == "all":
        shutil.rmtree(near)
    for step in {"all": (), "newest": (3,), "old node": (2, 3)}[lost]:
        shutil.rmtree(near / f"step-{step:09}")
    assert same(ckpt.load(target, resume=True), state(3))
    commit = ckpt.save(target, 4, state(4))
    target.flush()
    assert ckpt.latest(run) == ckpt.latest(near) == commit
    assert steps_at(target) == [1, 2, 3, 4]


@pytest.mark.parametrize("how", ["flipped", "gone", "unreadable"])
@pytest.mark.parametrize("name", ["root.manifest", "part-00000.manifest", "part-00000/seg-0000"])
def test_what_is_damaged_at_one_place_is_read_at_the_next(
    run: str, tmp_path: Path, name: str, how: str
) -> None:
    near = tmp_path / "near"
    target = ckpt.stage(near, f"{run}/{name}".replace("/part", "part"))
    for step in (1, 2):
        ckpt.save(target, step, state(step))
    target.flush()
    path = near / "step-000000002" / name
    if how == "flipped":
        flip(path)
    else:
        path.unlink()
    if how == "unreadable":
        path.mkdir()
    assert same(ckpt.load(target, resume=False), state(2))
    assert [(each.step, each.damage) for each in ckpt.list(target)] == [(1, ""), (2, "")]
    assert ckpt.copy(target, tmp_path / "back", 2).step == 2
    assert same(ckpt.load(tmp_path / "back", resume=False), state(2))


@pytest.mark.parametrize("names", [("root",), ("root", "part-00000")])
@pytest.mark.parametrize("went_back", [True, False])
def test_another_save_of_a_damaged_step_is_not_taken_for_it(
    tmp_path: Path, went_back: bool, names: tuple[str, ...]
) -> None:
    """A farther place still has the save that this one has replaced or given up."""
    near, far = tmp_path / "near", tmp_path / "far"
    target = ckpt.stage(near, far)
    for step in (1, 3):
        ckpt.save(target, step, state(step))
    target.flush()
    if went_back:
        ckpt.load(near, step=1, resume=True)
        ckpt.save(near, 2, state(12))
    ckpt.save(near, 3, state(13), overwrite=not went_back)
    for name in names:
        flip(near / "step-000000003" / f"{name}.manifest")
    if went_back or len(names) == 1:
        assert same(ckpt.load(target, resume=False), state(12 if went_back else 1))
        assert ckpt.latest(target) != ckpt.latest(far)
        assert [each.step for each in ckpt.list(target) if each.damage] == [3]
    else:
        assert same(ckpt.load(target, resume=False), state(3))  # Nothing says that it is another.


def test_each_place_gives_what_the_others_have_damaged(tmp_path: Path) -> None:
    """No place has the step whole, and all of it is there."""
    places = [tmp_path / name for name in "abc"]
    target = ckpt.stage(*places)

    def save(rank: ThreadRank) -> object:
        return ckpt.save(target, 1, state(1), group=rank, replicated="split")

    ThreadRanks(3).must(save)
    target.flush()
    for number, place in enumerate(places):
        for part in range(3):
            segments = list(place.glob(f"step-*/part-{part:05}/seg-*"))
            for segment in segments if part != number else ():
                flip(segment)
    assert same(ckpt.load(target), state(1))
    for place in places:
        with pytest.raises(CorruptionError):
            ckpt.load(place)


def test_the_nearest_place_is_read(run: str, store: Store, tmp_path: Path) -> None:
    target = ckpt.stage(tmp_path, run)
    ckpt.save(target, 1, state(1))
    target.flush()
    store.serve_all()
    assert same(ckpt.load(target), state(1))
    assert [each for each in store.seen if "seg-" in each] == []


def test_where_nothing_is_near_a_place_that_is_gone_is_an_error(
    run: str, store: Store, tmp_path: Path
) -> None:
    target = ckpt.stage(tmp_path, run, timeout_s=GONE_S)
    store.set_door(gone)
    with pytest.raises((UnavailableError, TimeoutError)):
        ckpt.latest(target, timeout_s=GONE_S)


# --- Verifying -----------------------------------------------------------------------------------


@pytest.mark.wrong_data
def test_every_place_can_be_verified(run: str, store: Store, tmp_path: Path) -> None:
    target = ckpt.stage(tmp_path / "near", tmp_path / "mid", run, timeout_s=GONE_S)
    for step in (1, 2):
        ckpt.save(target, step, state(step))
    target.flush()
    assert ckpt.verify(target, every_place=True) == []
    flip(tmp_path / "mid/step-000000002/part-00000/seg-0000")
    assert ckpt.verify(target) == []
    (message,) = ckpt.verify(target, every_place=True)
    assert str(tmp_path / "mid") in message
    assert ckpt.verify(target, 1, every_place=True) == []
    told = cli.run("ffrecord", "checkpoint", "verify", "--every-place", target.address)
    assert (told.returncode, told.stdout.strip()) == (3, message)

    ckpt.remove(tmp_path / "mid", 2)  # As `keep` does: no damage.
    assert ckpt.verify(target, every_place=True) == []
    ckpt.save(tmp_path / "mid", 2, state(12))
    (message,) = ckpt.verify(target, every_place=True)
    assert "another save of step 2" in message
    store.set_door(gone)
    told_of = ckpt.verify(target, 1, every_place=True, timeout_s=GONE_S)
    assert len(told_of) == 1 and "cannot be verified" in told_of[0] and run in told_of[0]
    store.serve_all()
    with pytest.raises(FileNotFoundError):
        ckpt.verify(target, 7, every_place=True)
    assert ckpt.verify(tmp_path / "near", every_place=True) == []


def test_all_steps_can_be_verified_until_one_is_damaged(tmp_path: Path) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    address = f"stage:{near}>{far}"
    for step in (1, 2, 3):
        ckpt.save(near, step, state(step))
    ckpt.flush(address)
    command = ["ffrecord", "checkpoint", "verify", "--all"]
    told = cli.ok(*command, "--every-place", address)
    assert told.splitlines() == [f"step {step}: no damage found" for step in (1, 2, 3)]
    flip(far / "step-000000002/part-00000/seg-0000")
    assert cli.run(*command, "--repeat", "0.01", "--json", far).returncode == 3
    done = cli.run(*command, "--every-place", address)
    assert done.returncode == 3 and "step 2: " in done.stdout and str(far) in done.stdout
    assert cli.run(*command, "--step", "1", far).returncode == 2
    assert cli.run(*command[:-1], "--repeat", "9", far).returncode == 2


@pytest.mark.wrong_data
def test_a_place_that_is_no_folder_at_all_is_told(tmp_path: Path) -> None:
    ckpt.save(tmp_path / "near", 1, state(1))
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (message,) = ckpt.verify(f"stage:{tmp_path}/near>{tmp_path}/loop", every_place=True)
    assert f"{tmp_path}/loop cannot be verified" in message


def test_a_push_goes_on_to_the_places_behind(tmp_path: Path) -> None:
    for step in (1, 2):
        ckpt.save(tmp_path / "run", step, state(step))
    cli.ok("ffrecord", "checkpoint", "push", tmp_path / "run", f"stage:{tmp_path}/a>{tmp_path}/b")
    assert steps_at(tmp_path / "a") == [1, 2]
    eventually(lambda: steps_at(tmp_path / "b") == [1, 2])


# --- Addresses -----------------------------------------------------------------------------------


@pytest.mark.parametrize("places", [["a"], ["a", "a"], ["a", "b>c"], ["a", "stage:b>c"], []])
def test_what_is_no_way_is_refused(places: list[str]) -> None:
    with pytest.raises(ValueError, match="place"):
        ckpt.stage(*places)
    if places != ["a", "b>c"]:  # Which is three places.
        with pytest.raises(ValueError, match="place"):
            ckpt.latest("stage:" + ">".join(places))


@pytest.mark.parametrize(
    "options",
    [
        {"keep": (1,)}, {"keep": (0, None)}, {"waiting_steps_max": 0}, {"waiting_bytes_max": 0},
        {"on_full": "stop"}, {"on_failure": "ignore"}, {"retry_s": 0},
    ],
)  # fmt: skip
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        ckpt.stage("a", "b", **options)


def test_the_first_place_may_be_a_replicated_target(tmp_path: Path) -> None:
    near = ckpt.replicated_target([tmp_path / "a", tmp_path / "b"])
    target = ckpt.stage(near, tmp_path / "far", keep=(1, None))
    for step in (1, 2):
        ckpt.save(target, step, state(step))
        target.flush()
    target.flush()
    assert steps_at(near) == [2]
    assert same(ckpt.load(target, step=1, resume=False), state(1))
    shutil.rmtree(tmp_path / "a")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert same(ckpt.load(target, resume=False), state(2))


def test_flush_needs_later_places(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="later places"):
        ckpt.flush(tmp_path)
    assert cli.run("ffrecord", "checkpoint", "flush", tmp_path).returncode == 2


def test_options_stay_in_a_forked_child(tmp_path: Path) -> None:
    target = ckpt.stage(tmp_path / "near", tmp_path / "far", waiting_steps_max=7)
    _staged._flushers.clear()  # As after a fork.
    assert _staged._flusher(target.address).way.waiting_steps_max == 7


@pytest.fixture(autouse=True)
def _told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "ffrecord.checkpoint")
