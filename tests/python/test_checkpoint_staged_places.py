"""Goal: a place that fails, is slow or full stops no other, and each keeps what it is to keep.

Method: moto's store, which is slow, refuses, or is gone; damaged steps.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

import ffrecord.checkpoint as ckpt
from eventually import eventually
from ffrecord.errors import CorruptionError
from object_store import Store
from saved_at_a_store import client_of_store, keys_of, state
from staged_runs import GONE_S, far_run, flip, gone, steps_at
from thread_ranks import same


@pytest.fixture
def run(request: pytest.FixtureRequest, store: Store) -> Iterator[str]:
    """A run at the store."""
    yield from far_run(request, store)


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


class Watched:
    """A rank alone, that sees what its save does."""

    def __init__(self) -> None:
        self.rank, self.size = 0, 1
        self.activity: Any = None

    def all_gather(self, mine: bytes) -> list[bytes]:
        """Its own alone."""
        return [mine]

    def watch(self, activity: object) -> AbstractContextManager[None]:
        """Keep it."""
        self.activity = activity
        return nullcontext()


def test_a_save_that_waits_for_room_tells_the_ranks_that_wait_for_it(
    run: str, store: Store, tmp_path: Path
) -> None:
    gate, rank = Gate(store), Watched()
    target = ckpt.stage(tmp_path, run, waiting_steps_max=2, on_full="wait", timeout_s=60)
    for step in (1, 2):
        ckpt.save(tmp_path, step, state(step))
    saver = threading.Thread(target=ckpt.save, args=(target, 3, state(3)), kwargs={"group": rank})
    saver.start()
    waits = f"waits for room at {run}, for which 2 steps wait"
    eventually(lambda: rank.activity is not None and rank.activity.says()[0] == waits)
    before = rank.activity.says()[1]
    gate.open.set()
    saver.join()
    assert rank.activity.says()[1] > before
    target.flush()
    assert steps_at(run) == [1, 2, 3]


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


@pytest.fixture(autouse=True)
def _told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "ffrecord.checkpoint")
