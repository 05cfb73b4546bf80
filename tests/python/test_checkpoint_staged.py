"""Goal: a step of a staged target is soon whole at every place, and found wherever it is whole.

Method: folders and moto's store, which is slow, refuses, or is gone; places that are lost, damaged
or of another node. Kills: test_checkpoint_staged_kills.py.
"""

import logging
import shutil
import subprocess
import sys
import threading
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
from saved_at_a_store import client_of_store, keys_of, run_of, state
from thread_ranks import ThreadRank, ThreadRanks, same

GONE_S = 1.0  # Patience with a place that is gone; a busy machine answers within it.


@pytest.fixture
def run(request: pytest.FixtureRequest, store: Store) -> Iterator[str]:
    """A run at the store, for the far place; whoever still tries to reach it gets through."""
    yield run_of(request, store).replace("[", ".").replace("]", "")
    store.serve_all()


def steps_at(place: object) -> list[int]:
    return [commit.step for commit in ckpt.list(str(place)) if not commit.damage]


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)


def gone(number: int, method: str, path: str) -> str:
    return "hang up"


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


# --- A place that fails --------------------------------------------------------------------------


def test_a_place_that_is_gone_stops_no_save_and_catches_up(
    run: str, store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target = ckpt.stage(tmp_path / "near", run, tmp_path / "far", retry_s=0.05, timeout_s=GONE_S)
    with ckpt.monitor() as saves:
        store.set_door(gone)
        commits = [ckpt.save(target, step, state(step), timeout_s=GONE_S) for step in (1, 2)]
        with pytest.raises(ckpt.FlushError, match="s3://bucket"):
            target.flush()
        assert ckpt.list(tmp_path / "far") == commits  # Not held up by the other place.
        with pytest.warns(UserWarning, match="may be a newer checkpoint"):
            assert same(ckpt.load(target, timeout_s=GONE_S, resume=False), state(2))
        assert target.stats()[0].failures > 0 and target.stats()[0].error != ""
        store.serve_all()
        eventually(lambda: ckpt.list(run) == commits)
        target.flush()
    figures = saves.report().figures()
    assert [each.copied for each in target.stats()] == [2, 2]
    # Lanes of other tests may still be at work in this process.
    assert figures["checkpoint/flushes"] >= 4 and figures["checkpoint/failures"] == 0
    assert figures["checkpoint/flush_failures"] > 0
    assert "steps cannot be copied to s3://bucket" in caplog.text
    assert target.stats()[0].error == ""


def test_with_raise_the_next_save_fails_once(run: str, store: Store, tmp_path: Path) -> None:
    target = ckpt.stage(tmp_path, run, on_failure="raise", timeout_s=GONE_S)
    store.set_door(gone)
    ckpt.save(target, 1, state(1), timeout_s=GONE_S)
    with pytest.raises(ckpt.FlushError):
        target.flush()
    with pytest.raises(ckpt.FlushError, match="lacks steps"):
        ckpt.save(target, 2, state(2), timeout_s=GONE_S)
    store.serve_all()
    ckpt.save(target, 2, state(2))
    target.flush()
    assert steps_at(run) == [1, 2]


def test_with_wait_a_place_that_is_gone_lets_a_save_go_on_if_it_only_warns(
    run: str, store: Store, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"on_full": "wait", "on_failure": "warn", "waiting_steps_max": 1}
    target = ckpt.stage(tmp_path, run, **options, timeout_s=GONE_S)
    store.set_door(gone)
    for step in (1, 2, 3):
        ckpt.save(target, step, state(step), timeout_s=GONE_S)
    store.serve_all()
    target.flush()
    assert steps_at(run) == [1, 2, 3]


def test_a_damaged_step_is_told_and_keeps_no_other_from_its_copy(tmp_path: Path) -> None:
    target = ckpt.stage(tmp_path / "near", tmp_path / "far")
    for step in (1, 2, 3):
        ckpt.save(tmp_path / "near", step, state(step))
    (tmp_path / "near/step-000000002/part-00000.manifest").unlink()
    flip(tmp_path / "near/step-000000001/part-00000/seg-0000")
    with pytest.raises(ckpt.FlushError) as failed:
        target.flush()
    assert isinstance(failed.value.__cause__, CorruptionError)
    assert steps_at(tmp_path / "far") == [3]
    assert target.stats()[0].failures == 2


def test_another_run_s_save_is_not_replaced(tmp_path: Path) -> None:
    ckpt.save(tmp_path / "far", 1, state(11))
    for step in (1, 2):
        ckpt.save(tmp_path / "near", step, state(step))
    with pytest.raises(ckpt.FlushError) as failed:
        ckpt.stage(tmp_path / "near", tmp_path / "far").flush()
    assert isinstance(failed.value.__cause__, FileExistsError)
    assert same(ckpt.load(tmp_path / "far", step=1), state(11))
    assert steps_at(tmp_path / "far") == [1, 2]


def test_a_late_save_of_an_old_node_does_not_replace_a_newer_one(
    run: str, store: Store, tmp_path: Path
) -> None:
    """The run went on at another node while the first one could not reach the far place."""
    old = ckpt.stage(tmp_path / "old", run, on_failure="warn", timeout_s=GONE_S)
    ckpt.save(old, 1, state(1))
    old.flush()
    store.set_door(gone)
    ckpt.save(old, 2, state(2))
    eventually(lambda: old.stats()[0].failures > 0)
    store.serve_all()
    new = ckpt.stage(tmp_path / "new", run)
    ckpt.load(new, resume=True)
    commit = ckpt.save(new, 2, state(12))
    new.flush()
    with pytest.raises(ckpt.FlushError, match="another save of step 2"):
        old.flush()
    assert ckpt.latest(run) == commit
    assert same(ckpt.load(run, resume=False), state(12))


def test_a_save_that_replaces_one_replaces_its_copy(run: str, store: Store, tmp_path: Path) -> None:
    target = ckpt.stage(tmp_path, run)
    ckpt.save(target, 1, state(1))
    target.flush()
    commit = ckpt.save(target, 1, state(2), overwrite=True)
    target.flush()
    assert ckpt.latest(run) == commit


def test_going_back_replaces_nothing_of_another_run(tmp_path: Path) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    others = [ckpt.save(far, step, state(10 + step)) for step in (1, 2, 3, 4)]
    for step in (1, 2, 3):
        ckpt.save(near, step, state(step))
    ckpt.load(near, step=2, resume=True)
    ckpt.save(near, 3, state(23))
    with pytest.raises(ckpt.FlushError):
        ckpt.stage(near, far, on_failure="warn").flush()
    assert ckpt.list(far, given_up=True) == others


def test_a_run_that_has_gone_back_twice_is_flushed_at_once(tmp_path: Path) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    for step in (1, 2, 3, 4):
        ckpt.save(near, step, state(step))
    target = ckpt.stage(near, far, on_failure="warn")
    target.flush()
    for origin in (1, 2):
        ckpt.load(near, step=origin, resume=True)
        for step in (origin + 1, origin + 2):
            ckpt.save(near, step, state(10 * origin + step))
    target.flush()
    assert ckpt.list(far) == ckpt.list(near)
    assert same(ckpt.load(far, resume=False), state(24))


# --- What waits is bounded -----------------------------------------------------------------------


class Gate:
    """A store that takes nothing until it opens."""

    def __init__(self, store: Store) -> None:
        self.open = threading.Event()
        store.set_door(self)

    def __call__(self, number: int, method: str, path: str) -> str:
        """Hold writes up."""
        if method in ("PUT", "POST"):
            assert self.open.wait(60)
        return "serve"


@pytest.mark.parametrize("by", ["steps", "bytes"])
def test_of_too_many_the_oldest_are_passed_over(
    run: str, store: Store, tmp_path: Path, by: str, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate(store)
    size = ckpt.save(tmp_path / "other", 1, state(1)).size_bytes
    limit: dict[str, Any] = {"waiting_steps_max": 2}
    if by == "bytes":
        limit = {"waiting_bytes_max": 2 * size, "waiting_steps_max": 100}
    target = ckpt.stage(tmp_path / "near", run, **limit, timeout_s=60)
    ckpt.save(target, 1, state(1))
    eventually(lambda: any("PUT" in each for each in store.seen))  # It is on its way.
    for step in range(2, 6):
        ckpt.save(target, step, state(step))
    with ckpt.monitor() as saves:
        gate.open.set()
        target.flush()
        roots = [each for each in store.seen if each.startswith("PUT") and ".root" in each]
        steps = [int(each.split("step-")[1][:9]) for each in roots]
        # Then there is time for the others, too: they are still here.
        assert steps == [1, 4, 5, 2, 3]
        assert steps_at(run) == [1, 2, 3, 4, 5]
        assert saves.report().flush_skips == 2
    assert "step 2 of" in caplog.text and "is passed over" in caplog.text


def test_with_wait_a_save_waits_until_there_is_room(run: str, store: Store, tmp_path: Path) -> None:
    gate = Gate(store)
    target = ckpt.stage(tmp_path, run, waiting_steps_max=1, on_full="wait", timeout_s=60)
    ckpt.save(target, 1, state(1))
    second = threading.Thread(target=ckpt.save, args=(target, 2, state(2)))
    second.start()
    eventually(lambda: any("PUT" in each for each in store.seen))
    assert steps_at(tmp_path) == [1]
    assert second.is_alive()
    gate.open.set()
    second.join()
    assert steps_at(run)[:1] == [1]
    target.flush()
    assert steps_at(run) == steps_at(tmp_path) == [1, 2]


# --- Retention -----------------------------------------------------------------------------------


def test_each_place_keeps_its_own_number_of_steps(run: str, tmp_path: Path) -> None:
    target = ckpt.stage(tmp_path / "near", tmp_path / "mid", run, keep=(1, None, 3))
    for step in range(1, 7):
        ckpt.save(target, step, state(step))
        target.flush()
    target.flush()
    assert steps_at(tmp_path / "near") == [6]
    assert steps_at(tmp_path / "mid") == [1, 2, 3, 4, 5, 6]
    assert steps_at(run) == [4, 5, 6]
    assert steps_at(target) == [1, 2, 3, 4, 5, 6]
    for step in range(1, 7):
        assert same(ckpt.load(target, step=step, resume=False), state(step))


@pytest.mark.wrong_data
@pytest.mark.parametrize("name", ["root.manifest", "part-00000/seg-0000"])
def test_a_damaged_step_takes_no_other_s_place_among_the_newest(tmp_path: Path, name: str) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    for step in (1, 2, 3):
        ckpt.save(near, step, state(step))
    flip(near / "step-000000003" / name)
    with pytest.raises(ckpt.FlushError):
        ckpt.stage(near, far, keep=(None, 1), on_failure="warn").flush()
    assert steps_at(far) == [2]


def test_the_only_whole_copy_stays(run: str, store: Store, tmp_path: Path) -> None:
    target = ckpt.stage(tmp_path, run, keep=(1, None), retry_s=0.05, timeout_s=GONE_S)
    store.set_door(lambda number, method, path: "503" if method == "PUT" else "serve")
    for step in (1, 2, 3):
        ckpt.save(target, step, state(step))
    with pytest.raises(ckpt.FlushError):
        target.flush()
    assert steps_at(tmp_path) == [1, 2, 3]
    store.serve_all()
    target.flush()
    assert steps_at(run) == [1, 2, 3]
    assert steps_at(tmp_path) == [3]


@pytest.mark.wrong_data
def test_a_step_leaves_only_when_its_copy_was_read_and_is_whole(run: str, tmp_path: Path) -> None:
    for step in (1, 2):
        ckpt.save(tmp_path, step, state(step))
    ckpt.stage(tmp_path, run).flush()
    key = next(each for each in keys_of(run) if "step-000000001" in each and "seg-" in each)
    client = client_of_store()
    body = bytearray(client.get_object(Bucket="bucket", Key=key)["Body"].read())
    body[100] ^= 1
    client.put_object(Bucket="bucket", Key=key, Body=bytes(body))
    target = ckpt.stage(tmp_path, run, keep=(1, None))
    target.flush()
    assert ckpt.verify(tmp_path, 1) == [] or ckpt.verify(run, 1) == []
    target.flush()
    target.flush()
    assert ckpt.verify(run, 1) == []
    assert steps_at(tmp_path) == [2]


def test_steps_that_were_passed_over_do_not_fill_the_first_place(
    run: str, store: Store, tmp_path: Path
) -> None:
    target = ckpt.stage(
        tmp_path, run, keep=(1, None), waiting_steps_max=2, on_failure="warn", timeout_s=GONE_S
    )
    store.set_door(lambda number, method, path: "503" if method == "PUT" else "serve")
    for step in range(1, 7):
        ckpt.save(target, step, state(step))
        with pytest.raises(ckpt.FlushError):
            target.flush()
    assert steps_at(tmp_path) == [5, 6]
    store.set_door(gone)
    for step in (7, 8, 9):
        ckpt.save(target, step, state(step), timeout_s=GONE_S)
        with pytest.raises(ckpt.FlushError):
            target.flush()
    assert steps_at(tmp_path)[-2:] == [8, 9] and len(steps_at(tmp_path)) <= 5
    store.serve_all()
    target.flush()
    assert steps_at(run)[-2:] == [8, 9]


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


# --- Going back, replacing, removing -------------------------------------------------------------


@pytest.mark.parametrize("near_is_lost", [False, True])
def test_a_run_that_goes_back_goes_back_everywhere(
    run: str, tmp_path: Path, near_is_lost: bool
) -> None:
    target = ckpt.stage(tmp_path / "near", run)
    for step in (1, 2, 3):
        ckpt.save(target, step, state(step))
    target.flush()
    if near_is_lost:
        shutil.rmtree(tmp_path / "near")
    ckpt.load(target, step=1, resume=True)
    commit = ckpt.save(target, 2, state(12))
    target.flush()
    for place in (tmp_path / "near", run, target):
        assert ckpt.latest(place) == commit
        assert same(ckpt.load(place, resume=False), state(12))
    assert steps_at(target) == [1, 2]


def test_an_old_node_s_save_of_a_step_gives_way_to_the_one_on_the_line(
    run: str, tmp_path: Path
) -> None:
    """The run went back while it was on another node, and came back to this one."""
    here, there = tmp_path / "here", tmp_path / "there"
    ckpt.stage(here, run)
    for step in (1, 2):
        ckpt.save(here, step, state(step))
    ckpt.stage(here, run).flush()
    ckpt.load(ckpt.stage(there, run), step=1, resume=True)
    commit = ckpt.save(ckpt.stage(there, run), 2, state(12))
    ckpt.stage(there, run).flush()
    target = ckpt.stage(here, run)
    assert ckpt.latest(target) == commit
    assert same(ckpt.load(target, resume=False), state(12))
    target.flush()
    assert ckpt.latest(run) == commit


def test_a_step_that_a_farther_place_has_is_committed(run: str, tmp_path: Path) -> None:
    target = ckpt.stage(tmp_path, run)
    ckpt.save(target, 1, state(1))
    target.flush()
    shutil.rmtree(tmp_path / "step-000000001")
    with pytest.raises(FileExistsError):
        ckpt.save(target, 1, state(11))
    commit = ckpt.save(target, 1, state(11), overwrite=True)
    assert same(ckpt.load(run, resume=False), state(1))
    target.flush()
    assert ckpt.list(run) == [commit]
    assert same(ckpt.load(run, resume=False), state(11))


def test_a_removed_step_is_gone_at_every_place(run: str, tmp_path: Path) -> None:
    target = ckpt.stage(tmp_path, run)
    for step in (1, 2, 3):
        ckpt.save(target, step, state(step))
    target.flush()
    ckpt.remove(target, 2)
    target.flush()
    assert steps_at(run) == steps_at(tmp_path) == [1, 3]
    ckpt.prune(target, keep_last=1)
    assert steps_at(run) == steps_at(tmp_path) == [3]
    with pytest.raises(FileNotFoundError):
        ckpt.remove(target, 2)


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
