"""Goal: async_save stores the state as it was when it was called, whatever happens afterwards.

Method: states that change at once; failures of any rank, seen by all; more than there is room for;
forks, exits and interrupts while a save is under way. Ranks are threads, but in the last test.
"""

import concurrent.futures
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import ffrecord.checkpoint as ckpt
from eventually import eventually, until_idle
from ffrecord import _ffrecord
from ffrecord.checkpoint import _background, _staging
from ffrecord.checkpoint._background import Background
from ffrecord.checkpoint._saving import Order, flatten
from thread_ranks import ThreadRank, ThreadRanks, same
from virtual_clock import virtual_time


class Gate:
    """Ranks of one, whose first word waits: a save that stays under way."""

    def __init__(self) -> None:
        self.rank, self.size = 0, 1
        self.opened = threading.Event()

    def all_gather(self, mine: bytes) -> list[bytes]:
        """As soon as the gate is open."""
        assert self.opened.wait(60)
        return [mine]


def state_of(seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {
        "large": random.standard_normal(300_000),
        "small": random.standard_normal(3),
        "strided": random.standard_normal((40, 50)).T,
        "fortran": np.asfortranarray(random.standard_normal((7, 9))),
        "zero-d": np.array(1.5 + seed),
        "empty": np.empty((0, 3)),
        "list": [seed, "x"],
    }


def spoil(state: dict[str, Any]) -> None:
    for value in state.values():
        if isinstance(value, np.ndarray):
            value[...] = -1
    state["list"][0] = -1


@pytest.mark.parametrize("room", [0, 1000, 1 << 20, 64 << 20])
def test_what_is_changed_right_after_the_call_does_not_matter(tmp_path: Path, room: int) -> None:
    for step in range(20):
        state = state_of(step)
        pending = ckpt.async_save(tmp_path, step, state, stage_bytes_max=room)
        spoil(state)
        assert pending.staged_bytes <= room
        commit = pending.result(60)
        assert (commit.step, pending.exception(), pending.done()) == (step, None, True)
        loaded: Any = ckpt.load(tmp_path)
        want = {
            key: np.ascontiguousarray(value) if getattr(value, "ndim", 0) else value
            for key, value in state_of(step).items()
        }
        assert same(loaded, want), step


@pytest.mark.parametrize(
    ("launcher", "ranks", "copies"),
    [({}, 1, 4), ({"LOCAL_WORLD_SIZE": "4"}, 1, 1), ({"SLURM_NTASKS_PER_NODE": "2"}, 64, 2)],
)
def test_without_a_limit_copies_take_half_of_the_free_memory_between_the_ranks_of_a_machine(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    launcher: dict[str, str],
    ranks: int,
    copies: int,
) -> None:
    for name in _staging._LOCAL_SIZES:
        monkeypatch.delenv(name, raising=False)
    for name, value in launcher.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(_ffrecord, "memory_room", lambda: (20 << 20, None))
    assert _staging.room_for_copies(ranks) == (10 << 20) // int(next(iter(launcher.values()), 1))

    monkeypatch.setattr(_background, "_current", None)
    state = {str(i): np.full(1 << 18, i) for i in range(4)}  # Of 2 MiB each.
    state |= {"small": np.arange(100)}
    pending = ckpt.async_save(tmp_path, 1, state)
    assert pending.staged_bytes // (2 << 20) == copies
    pending.result(60)
    monkeypatch.setattr(_ffrecord, "memory_room", lambda: (0, None))
    pending = ckpt.async_save(tmp_path, 2, state)  # The limit of the first save stays.
    assert pending.staged_bytes // (2 << 20) == copies
    pending.result(60)
    assert same(ckpt.load(tmp_path), state)


def test_the_memory_for_copies_grows_with_the_state_up_to_its_limit(tmp_path: Path) -> None:
    saver = Background()
    sizes = []
    for count in (1, 3, 2, 8):
        state = {str(i): np.full(1 << 17, i) for i in range(count)}  # Of 1 MiB each.
        flat = flatten(Order(tmp_path, count, "rank0", True, 30.0), state, 0, 1)
        saver.start(count, lambda flat=flat: flat, None, 4 << 20, "wait").result(60)
        assert saver._arena is not None
        sizes.append(saver._arena.size_bytes >> 20)
        assert same(ckpt.load(tmp_path, step=count), state)
    assert sizes == [1, 3, 3, 4]


def test_without_room_the_call_returns_when_all_is_written_but_not_yet_committed(
    tmp_path: Path,
) -> None:
    calls = 0

    class Last(Gate):
        def all_gather(self, mine: bytes) -> list[bytes]:
            nonlocal calls
            calls += 1
            # Words of the state, intents, reports; only the fourth is for the commit.
            return super().all_gather(mine) if calls == 4 else [mine]

    gate = Last()
    state = {"w": np.arange(1_000_000)}
    pending = ckpt.async_save(tmp_path, 1, state, group=gate, stage_bytes_max=0)
    assert not pending.done()
    for wait in (pending.result, pending.exception):
        with virtual_time(), pytest.raises(TimeoutError, match="step 1"):
            wait(3600)
    state["w"][:] = 0
    gate.opened.set()
    pending.result(60)
    assert np.array_equal(ckpt.load(tmp_path)["w"], np.arange(1_000_000))  # type: ignore[index]


def test_a_save_waits_for_the_one_before_or_is_refused(tmp_path: Path) -> None:
    gate = Gate()
    first = ckpt.async_save(tmp_path, 1, {"w": np.ones(9)}, group=gate)
    refused = ckpt.async_save(tmp_path, 2, {"w": np.ones(9)}, on_busy="raise")
    threading.Timer(0.05, gate.opened.set).start()
    third = ckpt.async_save(tmp_path, 3, {"w": np.ones(9)})
    assert first.done()
    assert third.result(60).step == 3
    with pytest.raises(ckpt.BusyError, match="step 1"):
        refused.result(60)
    assert [commit.step for commit in ckpt.list(tmp_path)] == [1, 3]


def test_a_save_leaves_the_processors_to_training(tmp_path: Path) -> None:
    def nice() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    class Seen(Gate):
        def all_gather(self, mine: bytes) -> list[bytes]:
            seen.append(nice())
            return super().all_gather(mine)

    seen: list[int] = []
    mine = nice()
    gate = Seen()
    pending = ckpt.async_save(tmp_path, 1, {"w": np.ones(9)}, group=gate)
    gate.opened.set()
    pending.result(60)
    assert set(seen) == {min(19, mine + 15)}
    assert nice() == mine


def test_a_failure_of_any_rank_is_in_the_result_of_all(tmp_path: Path) -> None:
    def save(rank: ThreadRank) -> object:
        # Each rank is a thread here, so each needs a saver of its own.
        state = {"bad": object()} if rank.rank == 1 else {"w": np.ones(9)}
        order = Order(tmp_path, 1, "rank0", True, 30.0)
        saver = Background()
        pending = saver.start(
            order.step,
            lambda: flatten(order, state, rank.rank, rank.size),
            rank,
            1 << 20,
            "wait",
        )
        return pending.exception(60)

    outcomes = ThreadRanks(3).run(save)

    assert isinstance(outcomes[1], TypeError) and "bad" in str(outcomes[1])
    for other in (0, 2):
        assert isinstance(outcomes[other], ckpt.PeerError)
        assert "rank 1: TypeError" in str(outcomes[other])
    assert ckpt.list(tmp_path) == []


def test_ranks_stage_and_commit_together(tmp_path: Path) -> None:
    def save(rank: ThreadRank) -> object:
        saver = Background()
        for step in range(3):
            state = {
                "shared": np.arange(400_000) + step,
                "own": ckpt.Shard(np.full(10, rank.rank + step), (30,), (10 * rank.rank,)),
            }
            order = Order(tmp_path, step, "split", True, 30.0)
            pending = saver.start(
                order.step,
                lambda order=order, state=state: flatten(order, state, rank.rank, rank.size),
                rank,
                1 << 20,
                "wait",
            )
            state["shared"][:] = -1
            state["own"].data[:] = -1
        return pending.result(60)

    outcomes = ThreadRanks(3).run(save)

    assert outcomes[0] == outcomes[1] == outcomes[2]
    loaded: Any = ckpt.load(tmp_path)
    assert np.array_equal(loaded["shared"], np.arange(400_000) + 2)
    assert loaded["own"].tolist() == [2] * 10 + [3] * 10 + [4] * 10


def test_errors_of_the_target_come_out_of_the_result(tmp_path: Path) -> None:
    ckpt.save(tmp_path, 1, {"w": 1})
    pending = ckpt.async_save(tmp_path, 1, {"w": 1})
    with pytest.raises(FileExistsError):
        pending.result(60)
    with pytest.raises(ValueError, match="step is -1"):
        ckpt.async_save(tmp_path, -1, {"w": 1}).result(60)
    assert ckpt.async_save(tmp_path, 2, {"w": 1}).result(60).step == 2


class UnsayableError(ValueError):
    """An error without a message."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("failing", ["message", "handler"])
def test_a_failure_that_cannot_be_logged_is_the_result_all_the_same(
    tmp_path: Path, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Bad:
        def state_dict(self) -> dict[str, object]:
            raise UnsayableError if failing == "message" else ValueError("no state")

        def load_state_dict(self, _: object) -> None:
            pass

    def refuse(*_: object) -> None:
        raise RuntimeError("no log")

    if failing == "handler":
        monkeypatch.setattr(_background._log, "error", refuse)
    pending = ckpt.async_save(tmp_path, 1, {"bad": Bad()})
    assert isinstance(pending.exception(timeout_s=30), ValueError)


def test_a_failure_without_a_valid_step_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    step: Any = "twelve"
    with pytest.raises(ValueError, match="step is 'twelve'"):
        ckpt.async_save(tmp_path, step, {}).result()
    assert "the save of step twelve has failed: ValueError" in caplog.text


def test_a_relative_target_is_that_of_the_folder_it_was_given_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    has_moved, commit = threading.Event(), _background._saving.commit

    def late(*args: Any, **kwargs: Any) -> ckpt.Commit:  # noqa: ANN401
        assert has_moved.wait(60)
        return commit(*args, **kwargs)

    monkeypatch.setattr(_background._saving, "commit", late)
    staged = ckpt.stage("run", "s3://bucket/run")
    pending = ckpt.async_save("run", 1, {"w": 1})
    places = ckpt.replicated_target(["one", "two"])

    monkeypatch.chdir(tmp_path / "elsewhere")
    has_moved.set()
    pending.result(60)
    ckpt.save(places, 2, {"w": 2})

    assert os.listdir(".") == []
    assert [commit.step for commit in ckpt.list(tmp_path / "run")] == [1]
    assert staged.address == f"stage:{tmp_path}/run>s3://bucket/run"
    assert ckpt.load(ckpt.replicated_target([tmp_path / "two", tmp_path / "one"])) == {"w": 2}


def test_arguments_are_checked_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="on_busy"):
        ckpt.async_save(tmp_path, 1, {}, on_busy="drop")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="stage_bytes_max"):
        ckpt.async_save(tmp_path, 1, {}, stage_bytes_max=-1)


@pytest.mark.parametrize(("room", "on_busy"), [(-1, "wait"), ("much", "wait"), (0, "drop")])
def test_an_argument_that_is_wrong_on_one_rank_fails_the_save_of_all(
    tmp_path: Path,
    room: Any,  # noqa: ANN401
    on_busy: Any,  # noqa: ANN401
) -> None:
    def save(rank: ThreadRank) -> object:
        saver = Background()
        order = Order(tmp_path, 1, "rank0", True, 30.0)
        arguments = (room, on_busy) if rank.rank else (0, "wait")
        try:
            started = saver.start(1, lambda: flatten(order, {}, rank.rank, 2), rank, *arguments)
        except (ValueError, TypeError) as error:
            saver.close()  # Its caller was told.
            return error
        return started.exception(60)

    zero, one = ThreadRanks(2).must(lambda rank: [save(rank)])

    assert isinstance(zero[0], ckpt.PeerError), zero  # type: ignore[index]
    assert zero[0].kind == type(one[0]).__name__ in ("ValueError", "TypeError")  # type: ignore[index]
    assert ckpt.list(tmp_path) == []


def test_a_failure_that_nobody_looked_at_is_raised_by_the_next_save(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ckpt.save(tmp_path, 1, {"w": 1})

    def lose() -> None:
        concurrent.futures.wait([ckpt.async_save(tmp_path, 1, {"w": 1})._future])

    lose()
    assert "the save of step 1 has failed: ConflictError" in caplog.text  # At once.
    with pytest.raises(ckpt.FailedSaveError, match=r"step 1 .* committed already") as raised:
        ckpt.async_save(tmp_path, 2, {"w": 1})
    assert isinstance(raised.value.__cause__, FileExistsError)
    lose()
    with pytest.raises(ckpt.FailedSaveError, match="step 1"):
        ckpt.save(tmp_path, 2, {"w": 1})
    lose()
    with pytest.raises(ckpt.FailedSaveError, match="step 1"):
        ckpt.close()

    ckpt.close()
    assert isinstance(ckpt.async_save(tmp_path, 1, {"w": 1}).exception(60), FileExistsError)
    assert ckpt.async_save(tmp_path, 2, {"w": 1}).result(60).step == 2
    assert [commit.step for commit in ckpt.list(tmp_path)] == [1, 2]


def test_a_failure_that_one_rank_did_not_look_at_fails_the_next_save_of_all(tmp_path: Path) -> None:
    def save(rank: ThreadRank) -> object:
        saver = Background()

        def start(step: int, state: object) -> _background.PendingSave:
            order = Order(tmp_path, step, "rank0", True, 30.0)
            return saver.start(
                order.step, lambda: flatten(order, state, rank.rank, 2), rank, 0, "wait"
            )

        first = start(1, {"bad": object()} if rank.rank == 1 else {})
        if rank.rank == 0:
            first.exception(60)
        found: object
        try:
            found = start(2, {}).exception(60)
        except ckpt.FailedSaveError as error:
            found = error
        return found, start(3, {}).result(60).step

    zero, one = ThreadRanks(2).must(save)

    assert isinstance(one[0], ckpt.FailedSaveError) and "step 1" in str(one[0])  # type: ignore[index]
    assert isinstance(zero[0], ckpt.PeerError) and zero[0].kind == "FailedSaveError"  # type: ignore[index]
    assert [commit.step for commit in ckpt.list(tmp_path)] == [3]


def test_a_failure_that_nobody_looked_at_fails_the_program(tmp_path: Path) -> None:
    ckpt.save(tmp_path, 1, {"w": 1})
    done = subprocess.run(
        [sys.executable, "-c", EXIT, str(tmp_path), "return"],
        timeout=120, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert done.returncode == 1
    assert "FailedSaveError: the save of step 1 has failed" in done.stderr


def test_a_forked_child_saves_for_itself_and_the_parent_goes_on(tmp_path: Path) -> None:
    gate = Gate()
    state = {"w": np.arange(500_000)}
    pending = ckpt.async_save(tmp_path / "parent", 1, state, group=gate)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            try:
                pending.result(1)
            except RuntimeError:
                state["w"][:] = 7
                status = ckpt.async_save(tmp_path / "child", 1, state).result(60).step - 1
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    gate.opened.set()
    assert pending.result(60).step == 1
    assert status == 0
    assert np.array_equal(ckpt.load(tmp_path / "parent")["w"], np.arange(500_000))  # type: ignore[index]
    assert np.all(ckpt.load(tmp_path / "child")["w"] == 7)  # type: ignore[index]


EXIT = """
import sys
import numpy as np
import ffrecord.checkpoint as ckpt
pending = ckpt.async_save(sys.argv[1], 1, {"w": np.arange(3_000_000)})
if sys.argv[2] == "raise":
    raise SystemExit(3)
"""


@pytest.mark.parametrize("how", ["return", "raise"])
def test_the_interpreter_exits_when_the_save_has_ended(tmp_path: Path, how: str) -> None:
    done = subprocess.run([sys.executable, "-c", EXIT, str(tmp_path), how], timeout=120)
    assert done.returncode == (3 if how == "raise" else 0)
    assert np.array_equal(ckpt.load(tmp_path)["w"], np.arange(3_000_000))  # type: ignore[index]


def waits_for_tensors(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code is not threading.Event.wait.__code__:
        frame = frame.f_back
    caller = None if frame is None else frame.f_back
    return caller is not None and caller.f_code is _background._hand_over.__code__


@pytest.mark.parametrize("is_handed_over", [False, True])
def test_an_interrupt_at_the_handing_over_waits_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_handed_over: bool
) -> None:
    saver = Background()
    submit = saver._threads.submit
    interrupts = [KeyboardInterrupt()]

    def interrupted(work: Any) -> None:  # noqa: ANN401 (a function)
        if is_handed_over:
            submit(work)
        if interrupts:
            raise interrupts.pop()
        submit(work)

    monkeypatch.setattr(saver._threads, "submit", interrupted)
    values = np.arange(500_000)
    order = Order(tmp_path, 1, "rank0", True, 30.0)
    with pytest.raises(KeyboardInterrupt):
        saver.start(order.step, lambda: flatten(order, {"w": values}, 0, 1), None, 0, "wait")
    values[:] = -1

    assert saver._last is not None
    assert saver._last.result(60).step == 1
    loaded: Any = ckpt.load(tmp_path)
    assert np.array_equal(loaded["w"], np.arange(500_000))


def test_an_interrupt_waits_until_the_tensors_are_free(tmp_path: Path) -> None:
    gate = Gate()
    main = threading.get_ident()

    def interrupt() -> None:
        eventually(lambda: waits_for_tensors(sys._current_frames()[main]))
        os.kill(os.getpid(), signal.SIGINT)
        until_idle()  # It has had its chance to come too early.
        gate.opened.set()

    state = {"w": np.arange(1_000_000)}
    interrupter = threading.Thread(target=interrupt)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # A shell's & ignores it.
    try:
        interrupter.start()
        with pytest.raises(KeyboardInterrupt):
            ckpt.async_save(tmp_path, 1, state, group=gate, stage_bytes_max=0)
    finally:
        interrupter.join()
        signal.signal(signal.SIGINT, before)
    state["w"][:] = 0
    assert ckpt.async_save(tmp_path, 2, state).result(60).step == 2
    assert np.array_equal(  # type: ignore[index]
        ckpt.load(tmp_path, step=1)["w"], np.arange(1_000_000)
    )
