"""Goal: checkpoints at an S3-compatible store are whole or not there, whatever breaks on the way.

Method: moto's server in this process, behind a door that answers 503, hangs up, or kills the
process that asks, at each request in turn.
"""

import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cli
import copying
import ffrecord.checkpoint as ckpt
from ffrecord import _ffrecord
from ffrecord.checkpoint._values import encode
from ffrecord.errors import CorruptionError
from object_store import Store, serve
from thread_ranks import ThreadRank, ThreadRanks, same


@pytest.fixture(scope="module")
def server() -> Iterator[Store]:
    yield from serve()


@pytest.fixture
def store(server: Store) -> Store:
    server.serve_all()
    return server


@pytest.fixture
def run(request: pytest.FixtureRequest, store: Store) -> str:
    """An address of its own for each test."""
    return f"s3://bucket/runs of/{request.node.name}"


def state(seed: int = 0) -> dict[str, Any]:
    chance = np.random.default_rng(seed)
    return {"w": chance.random((300, 7)), "small": {"b": chance.random(5)}, "step": seed}


def large_state() -> dict[str, Any]:
    """In three parts: of 16 MiB, 16 and more than one."""
    return {"w": np.arange((33 << 20) // 8, dtype="float64")}


# --- A store as a target -------------------------------------------------------------------------


def test_a_store_is_a_target_like_any_other(run: str) -> None:
    for step in (1, 2, 3):
        assert ckpt.save(run, step, state(step)).step == step
    with pytest.raises(FileExistsError):
        ckpt.save(run, 3, state(4))

    assert [commit.step for commit in ckpt.list(run)] == [1, 2, 3]
    assert same(ckpt.load(run), state(3))
    assert same(ckpt.load(run, step=1), state(1))
    assert ckpt.verify(run) == []
    assert [commit.step for commit in ckpt.prune(run, keep_last=1)] == [1, 2]
    assert [commit.step for commit in ckpt.list(run)] == [3]
    with pytest.raises(FileNotFoundError):
        ckpt.load(run, step=1)
    assert ckpt.latest(f"{run}/nothing") is None


def test_ranks_save_together_and_others_load(run: str) -> None:
    whole = np.random.default_rng(1).random((90, 4))

    def save(rank: ThreadRank) -> object:
        begin, end = 30 * rank.rank, 30 * (rank.rank + 1)
        return ckpt.save(
            run, 1, {"w": ckpt.Shard(whole[begin:end], (90, 4), (begin, 0))}, group=rank
        )

    commits = ThreadRanks(3).run(save)

    assert len({str(commit) for commit in commits}) == 1
    mine = np.zeros((45, 4))
    ckpt.load(run, {"w": ckpt.Shard(mine, (90, 4), (45, 0))})
    assert mine.tobytes() == whole[45:].tobytes()


def client_of_store() -> Any:  # noqa: ANN401 - what boto3 gives has no type
    import boto3

    return boto3.client("s3", region_name="us-east-1")


def keys_of(run: str) -> list[str]:
    prefix = run.removeprefix("s3://bucket/") + "/"
    found = client_of_store().list_objects_v2(Bucket="bucket", Prefix=prefix)
    return [each["Key"] for each in found.get("Contents", [])]


def test_what_the_store_damages_is_found(run: str) -> None:
    ckpt.save(run, 1, state())
    client = client_of_store()
    segment = next(key for key in keys_of(run) if key.endswith("seg-0000"))
    content = bytearray(client.get_object(Bucket="bucket", Key=segment)["Body"].read())
    content[100] ^= 1
    client.put_object(Bucket="bucket", Key=segment, Body=bytes(content))

    with pytest.raises(CorruptionError, match=r"s3://bucket/.*seg-0000"):
        ckpt.load(run)
    assert len(ckpt.verify(run)) == 1


def test_who_may_not_enter_is_told_why(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError, match="NoSuchBucket"):
        ckpt.list("s3://no-such-bucket/run")
    with pytest.raises(ValueError, match="s3://BUCKET/NAME"):
        ckpt.list("s3://")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("HOME", "/nonexistent")
    with pytest.raises(PermissionError, match="AWS_ACCESS_KEY_ID"):
        ckpt.list(run)


def test_a_store_that_is_gone_is_not_waited_for_long(
    run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(ConnectionError):
        ckpt.list(run, timeout_s=0.3)


# --- Copies --------------------------------------------------------------------------------------


def test_a_copy_is_the_same_save(run: str, tmp_path: Path) -> None:
    commit = ckpt.save(tmp_path / "a", 7, state())

    assert ckpt.copy(tmp_path / "a", run) == commit
    assert ckpt.copy(tmp_path / "a", run) == commit  # Again, which changes nothing.
    assert ckpt.copy(run, tmp_path / "b", 7) == commit

    files = [path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*")]
    assert sorted(files) == sorted(
        path.relative_to(tmp_path / "b") for path in (tmp_path / "b").rglob("*")
    )
    for name in files:
        if (tmp_path / "a" / name).is_file():
            assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    ckpt.save(tmp_path / "c", 7, state(1))
    with pytest.raises(FileExistsError):
        ckpt.copy(tmp_path / "c", run)
    assert same(ckpt.load(run), state())


@pytest.mark.parametrize("fault", ["503", "hang up"])
def test_what_fails_for_the_moment_is_tried_again(
    run: str, store: Store, tmp_path: Path, fault: str
) -> None:
    ckpt.save(tmp_path / "a", 1, state())
    met: set[str] = set()

    def every_first_time(number: int, method: str, path: str) -> str:
        what = f"{method} {path}"
        if what in met:
            return "serve"
        met.add(what)
        return fault

    store.set_door(every_first_time)
    ckpt.copy(tmp_path / "a", run)
    assert same(ckpt.load(run), state())
    assert len(met) > 5


def test_an_answer_that_is_lost_is_no_conflict(run: str, store: Store, tmp_path: Path) -> None:
    # The commit is served, and the client hears of it no more.
    commit = ckpt.save(tmp_path / "a", 1, state())
    roots: list[int] = []

    def lose_the_first(number: int, method: str, path: str) -> str:
        if method != "PUT" or not path.endswith(".root") or roots:
            return "serve"
        roots.append(number)
        return "lose"

    store.set_door(lose_the_first)
    assert ckpt.copy(tmp_path / "a", run) == commit
    assert roots
    assert same(ckpt.load(run), state())


# --- Retention -----------------------------------------------------------------------------------


def lose_newest(run: str, tmp_path: Path, what: str) -> None:
    """Of step 3, wherever it is, everything whose name has `what` in it."""
    for path in (tmp_path / "c").glob(f"step-000000003/**/*{what}*"):
        path.unlink()
    for key in keys_of(run):
        if "step-000000003" in key and what in key:
            client_of_store().delete_object(Bucket="bucket", Key=key)


@pytest.mark.parametrize("kind", ["folder", "store", "buddies"])
@pytest.mark.parametrize("what", ["seg-0000", "part-00000.manifest"])
def test_only_steps_that_are_whole_count_as_kept(
    run: str, tmp_path: Path, kind: str, what: str
) -> None:
    run = run.replace("[", ".").replace("]", "")
    folder = str(tmp_path / "c")
    target = {"folder": folder, "store": run, "buddies": ckpt.replicated_target([run, folder])}[
        kind
    ]
    for step in (1, 2, 3):
        ckpt.save(target, step, state(step))
    lose_newest(run, tmp_path, what)

    assert [commit.step for commit in ckpt.prune(target, keep_last=1)] == [1]
    assert same(ckpt.load(target, step=2), state(2))
    assert ckpt.prune(target, keep_last=2) == []


def test_a_step_that_is_saved_anew_meanwhile_is_not_pruned(run: str, store: Store) -> None:
    for step in (1, 2, 3):
        ckpt.save(run, step, state(step))
    anew: list[object] = []

    def save_anew(number: int, request: str) -> None:
        if "part-00000.manifest" in request and not anew:  # Step 3 is looked at, all are listed.
            anew.append(None)
            ckpt.remove(run, 1)
            anew.append(ckpt.save(run, 1, state(11)))

    store.set_door(lambda number, method, path: "serve", save_anew)
    removed = ckpt.prune(run, keep_last=1)
    store.serve_all()
    assert len(anew) == 2
    assert [commit.step for commit in removed] == [2]
    assert same(ckpt.load(run, step=1), state(11))


# --- What may be visible is not removed ----------------------------------------------------------


class LosingRank(ThreadRank):
    """Its ranks lose each other in a save's last round, after the commit."""

    rounds = 0

    def all_gather(self, mine: bytes) -> list[bytes]:
        """Four rounds: what Python agrees on, then intents, reports, and the outcome."""
        self.rounds += 1
        if self.rounds == 4:
            raise ConnectionError("a rank is gone")
        return super().all_gather(mine)


def answers_lost(number: int, method: str, path: str) -> str:
    """The root's first PUT is served, and nothing more is heard of the root."""
    if "?" in path or not path.endswith(".root"):
        return "serve"
    return "lose" if method == "PUT" else "hang up"


def test_a_step_whose_last_round_failed_stays(run: str) -> None:
    ckpt.save(run, 1, state(1))

    def save(rank: ThreadRank) -> object:
        return ckpt.save(run, 2, state(2), group=LosingRank(rank.ranks, rank.rank))

    assert [type(each) for each in ThreadRanks(2).run(save)] == [ConnectionError] * 2

    assert ckpt.verify(run, 2) == []
    ckpt.prune(run, keep_last=1)
    assert same(ckpt.load(run), state(2))


def test_a_step_whose_every_answer_was_lost_stays(run: str, store: Store) -> None:
    store.set_door(answers_lost)
    with pytest.raises((ConnectionError, TimeoutError)):
        ckpt.save(run, 2, state(2), timeout_s=1.0)
    store.serve_all()
    assert ckpt.verify(run, 2) == []
    assert same(ckpt.load(run), state(2))


def test_parts_that_were_committed_without_an_answer_stay(run: str, store: Store) -> None:
    """As `torch.distributed.checkpoint` saves: the coordinator's object goes after the failure."""
    parts = _ffrecord.CheckpointShards(run, 2, None, True, 1.0, False)
    written = parts.write(0, [])
    tree = encode({"step": 2})
    store.set_door(answers_lost)
    with pytest.raises((ConnectionError, TimeoutError)):
        parts.commit([written], tree)
    store.serve_all()
    del parts
    assert ckpt.verify(run, 2) == []

    abandoned = _ffrecord.CheckpointShards(run, 3, None, True, 30.0, False)
    abandoned.write(0, [])
    del abandoned
    assert not any("step-000000003" in key for key in keys_of(run))


def test_a_saver_whose_files_were_removed_with_another_save_does_not_report_success(
    run: str,
) -> None:
    """Two savers of a step: one commits, is removed, and with it went files of the other."""
    late = _ffrecord.CheckpointShards(run, 5, None, True, 30.0, False)
    written = late.write(0, [])
    ckpt.save(run, 5, state(5))
    ckpt.remove(run, 5)
    with pytest.raises(FileExistsError, match="removed meanwhile"):
        late.commit([written], encode({"step": 5}))
    assert ckpt.list(run) == []
    ckpt.save(run, 5, state(6))
    assert same(ckpt.load(run), state(6))


def test_removing_a_step_keeps_what_another_is_saving_under_its_name(
    run: str, store: Store
) -> None:
    ckpt.save(run, 5, state(5))
    late: list[Any] = []

    def save_another(number: int, request: str) -> None:
        if request.startswith("DELETE") and request.endswith(".root") and not late:
            late.append(_ffrecord.CheckpointShards(run, 5, None, True, 30.0, False))
            late.append(late[0].write(0, []))
            late[0].commit([late[1]], encode({"step": 5}))

    store.set_door(lambda number, method, path: "serve", save_another)
    ckpt.remove(run, 5)
    store.serve_all()
    assert ckpt.verify(run, 5) == []
    assert ckpt.load(run, step=5) == {"step": 5}


def test_buddies_at_a_store_decide_there_and_leave_no_word(run: str, tmp_path: Path) -> None:
    places = ckpt.replicated_target([f"{run}/a", f"{run}/b", tmp_path / "c"])
    ckpt.save(places, 1, state(1))
    assert ckpt.verify(places) == []
    # As a save that was killed has left it: visible at one place, and not whole.
    for place in (f"{run}/b", tmp_path / "c"):
        ckpt.remove(place, 1)
    part = next(key for key in keys_of(f"{run}/a") if key.endswith("part-00000.manifest"))
    client_of_store().delete_object(Bucket="bucket", Key=part)
    ckpt.save(places, 1, state(2))
    assert same(ckpt.load(places), state(2))
    assert not [key for key in keys_of(run) if "decision" in key]
    assert [path.name for path in (tmp_path / "c").glob("decision*")] == []


# --- Killed on the way ---------------------------------------------------------------------------

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["copying"])


class Victim:
    """A process that copies, and can be killed from a thread of the store as soon as it asks."""

    def __init__(self, source: Path, run: str, compress: bool) -> None:
        names = {name: os.environ[name] for name in os.environ if name.startswith("AWS_")}
        arguments = (names | {"no_proxy": "*"}, str(source), run, compress)
        self.process: Any = _processes.Process(target=copying.copy, args=arguments)
        self.started = threading.Event()

    def kill(self) -> None:
        """At once, so that it does nothing more."""
        assert self.started.wait(60)
        os.kill(self.process.pid, signal.SIGKILL)

    def run(self) -> bool:
        """True if it was killed, False if it came to its end."""
        self.process.start()
        self.started.set()
        self.process.join()
        assert self.process.exitcode in (0, -signal.SIGKILL)
        return bool(self.process.exitcode)


def killed_copy(store: Store, source: Path, run: str, at: int, when: str, compress: bool) -> bool:
    """Copies in a process that is killed at a request; False if it ended before."""
    victim = Victim(source, run, compress)

    def door(number: int, method: str, path: str) -> str:
        if when == "before" and number == at:
            victim.kill()
        return "hang up" if when == "before" and number >= at else "serve"

    def after(number: int, request: str) -> None:
        if when == "after" and number == at:
            victim.kill()

    store.set_door(door, after)
    was_killed = victim.run()
    store.serve_all()
    return was_killed


@pytest.mark.parametrize(
    ("when", "compress"), [("before", False), ("after", False), ("after", True)]
)
def test_a_copy_killed_at_any_request_is_whole_or_not_there(
    run: str, store: Store, tmp_path: Path, when: str, compress: bool
) -> None:
    source = tmp_path / "a"
    commit = ckpt.save(source, 1, state())
    at = 0
    was_killed = True
    while was_killed:
        at += 1
        where = f"{run}/{at}"

        was_killed = killed_copy(store, source, where, at, when, compress)

        seen = ckpt.list(where)
        assert seen in ([], [commit])
        if seen:
            assert ckpt.verify(where) == []
        assert ckpt.copy(source, where, compress=compress) == commit
        assert same(ckpt.load(where), state())
    assert at > 5


def test_parts_that_were_sent_are_not_sent_again(run: str, store: Store, tmp_path: Path) -> None:
    source = tmp_path / "a"
    ckpt.save(source, 1, large_state())
    sent: list[str] = []

    def is_part(request: str) -> bool:
        return request.startswith("PUT") and "partNumber" in request

    victim = Victim(source, run, compress=False)

    def kill_at_second_part(number: int, request: str) -> None:
        if is_part(request):
            sent.append(request)
            if len(sent) == 2:
                victim.kill()

    store.set_door(lambda number, method, path: "serve", kill_at_second_part)
    assert victim.run()
    assert ckpt.list(run) == []

    done = set(sent)  # A third may have been on its way.
    store.serve_all()
    ckpt.copy(source, run)

    again = {request for request in store.seen if is_part(request)}
    assert not again & done
    assert same(ckpt.load(run), large_state())


# --- A mirror ------------------------------------------------------------------------------------


def test_what_left_the_folder_is_loaded_from_the_mirror(
    run: str, store: Store, tmp_path: Path
) -> None:
    target = tmp_path / "run"
    with ckpt.Mirror(target, run, keep_local=1) as mirror:
        for step in (1, 2):
            ckpt.save(target, step, state(step))
        assert [commit.step for commit in mirror.start().result()] == [1, 2]
        ckpt.save(target, 3, state(3))
        assert [commit.step for commit in mirror.sync()] == [3]
        assert mirror.sync() == []

    assert [commit.step for commit in ckpt.list(target)] == [3]
    assert [commit.step for commit in ckpt.list(run)] == [1, 2, 3]
    assert same(ckpt.load(target, step=1), state(1))
    store.set_door(lambda number, method, path: "hang up")
    assert same(ckpt.load(target), state(3))  # Without a word to the store.
    assert store.seen == []
    store.serve_all()
    shutil.rmtree(target / "step-000000003")
    assert same(ckpt.load(target), state(3))


def test_a_mirror_follows_a_run_that_was_rolled_back(run: str, tmp_path: Path) -> None:
    target = tmp_path / "run"
    for step in (1, 2):
        ckpt.save(target, step, state(step))
    ckpt.Mirror(target, run, keep_local=1).sync()
    # Back to step 1, in another process; from there other steps.
    ckpt.remove(target, 2)
    for step in (2, 3):
        ckpt.save(target, step, state(10 + step))

    mirror = ckpt.Mirror(target, run, keep_local=1)
    assert [commit.step for commit in mirror.sync()] == [2, 3]
    assert mirror.sync() == []

    for step, seed in ((1, 1), (2, 12), (3, 13)):
        assert same(ckpt.load(run, step=step), state(seed))
    assert [commit.step for commit in ckpt.list(target)] == [3]


def test_a_mirror_replaces_nothing_of_another_run(run: str, tmp_path: Path) -> None:
    ckpt.save(run, 2, state(2))
    for step in (1, 2, 3):
        ckpt.save(tmp_path, step, state(10 + step))
    mirror = ckpt.Mirror(tmp_path, run, keep_local=1)
    for _ in range(2):
        with pytest.raises(FileExistsError, match="not copied from"):
            mirror.sync()
    assert same(ckpt.load(run, step=2), state(2))
    assert [commit.step for commit in ckpt.list(run)] == [1, 2, 3]
    assert [commit.step for commit in ckpt.list(tmp_path)] == [2, 3]


def test_one_damaged_step_keeps_no_other_from_the_mirror(run: str, tmp_path: Path) -> None:
    for step in (1, 2, 3):
        ckpt.save(tmp_path, step, state(step))
    (tmp_path / "step-000000002" / "part-00000.manifest").unlink()
    with pytest.raises(FileNotFoundError, match="step-000000002"):
        ckpt.Mirror(tmp_path, run, keep_local=1).sync()
    assert [commit.step for commit in ckpt.list(run)] == [1, 3]


def test_nothing_leaves_the_folder_whose_copy_is_not_whole(run: str, tmp_path: Path) -> None:
    for step in (1, 2):
        ckpt.save(tmp_path, step, state(step))
    ckpt.Mirror(tmp_path, run).sync()
    segment = next(key for key in keys_of(run) if "step-000000001" in key and "seg-" in key)
    client_of_store().delete_object(Bucket="bucket", Key=segment)
    ckpt.Mirror(tmp_path, run, keep_local=1).sync()
    assert same(ckpt.load(tmp_path, step=1), state(1))
    assert [commit.step for commit in ckpt.list(tmp_path)] == [1, 2]


@pytest.mark.parametrize("name", ["root.manifest", "part-00000.manifest", "part-00000/seg-0000"])
@pytest.mark.parametrize("how", ["flipped", "gone"])
def test_what_is_damaged_in_the_folder_is_read_at_the_mirror(
    run: str, store: Store, tmp_path: Path, name: str, how: str
) -> None:
    run = run.replace("[", ".").replace("]", "").replace("/part", "part")
    for step in (1, 2):
        ckpt.save(tmp_path, step, state(step))
    ckpt.Mirror(tmp_path, run).sync()
    path = tmp_path / "step-000000002" / name
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.unlink() if how == "gone" else path.write_bytes(content)

    assert same(ckpt.load(tmp_path), state(2))
    store.set_door(lambda number, method, path: "hang up")
    assert ckpt.verify(tmp_path, 2, timeout_s=0.3) != [] if how == "flipped" else True


def test_steps_leave_a_folder_only_for_where_a_load_looks(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep_local"):
        ckpt.Mirror(tmp_path / "run", str(tmp_path / "copies"), keep_local=1)


def test_a_mirror_that_was_interrupted_knows_what_it_has_copied(
    run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2):
        ckpt.save(tmp_path, step, state(step))
    copy = ckpt._mirror.copy

    def interrupted(source: object, target: object, step: int, **options: Any) -> object:  # noqa: ANN401
        if step == 2:
            raise KeyboardInterrupt
        return copy(source, target, step, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(ckpt._mirror, "copy", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ckpt.Mirror(tmp_path, run).sync()
    ckpt.remove(tmp_path, 1)
    ckpt.save(tmp_path, 1, state(11))
    assert len(ckpt.Mirror(tmp_path, run).sync()) == 2
    assert ckpt.list(run) == ckpt.list(tmp_path)


def test_what_was_copied_stays_at_the_mirror_until_what_replaces_it_is_whole(
    run: str, tmp_path: Path
) -> None:
    ckpt.save(tmp_path, 1, state(1))
    ckpt.Mirror(tmp_path, run).sync()
    ckpt.remove(tmp_path, 1)
    ckpt.save(tmp_path, 1, state(11))
    (tmp_path / "step-000000001/part-00000.manifest").write_bytes(b"damaged")
    with pytest.raises(CorruptionError):
        ckpt.Mirror(tmp_path, run).sync()
    assert same(ckpt.load(run), state(1))


def test_a_load_goes_back_to_a_step_that_is_only_at_the_mirror(run: str, tmp_path: Path) -> None:
    for step in (1, 2, 3):
        ckpt.save(tmp_path, step, state(step))
    ckpt.Mirror(tmp_path, run, keep_local=1).sync()
    ckpt.remove(run, 3)  # What is damaged here is nowhere else.
    segment = tmp_path / "step-000000003/part-00000/seg-0000"
    content = bytearray(segment.read_bytes())
    content[100] ^= 1
    segment.write_bytes(content)

    with pytest.raises(CorruptionError, match="Step 2 is available"):
        ckpt.load(tmp_path)
    with pytest.warns(UserWarning, match="step 2 is loaded"):
        loaded = ckpt.load(tmp_path, on_corrupt="previous")
    assert same(loaded, state(2))


def test_a_save_that_was_not_copied_is_not_mistaken_for_the_one_that_was(
    run: str, tmp_path: Path
) -> None:
    """Damaged after a rollback, and saved anew: the store has the old one, and the step before."""
    for step in (1, 2, 3):
        ckpt.save(tmp_path, step, state(step))
    ckpt.Mirror(tmp_path, run).sync()
    for step in (1, 2, 3):
        ckpt.remove(tmp_path, step)
    ckpt.save(tmp_path, 2, state(12))
    (tmp_path / "step-000000002" / "part-00000.manifest").unlink()
    with pytest.raises(FileNotFoundError):
        ckpt.load(tmp_path, step=2)
    assert same(ckpt.load(tmp_path), state(1))


def test_a_mirror_may_keep_them_compressed(run: str, store: Store, tmp_path: Path) -> None:
    """In less room; what is loaded and pulled from there is the same."""
    target = tmp_path / "run"
    chance = np.random.default_rng(3)
    weights = {"w": chance.normal(0, 0.02, 3 << 20).astype("float32"), "step": 1}
    with ckpt.Mirror(target, run, keep_local=1, compress=True) as mirror:
        commits = [ckpt.save(target, step, weights) for step in (1, 2)]
        assert mirror.sync() == commits

    assert [commit.step for commit in ckpt.list(target)] == [2]
    assert same(ckpt.load(target, step=1), weights)
    assert ckpt.verify(run) == []
    assert ckpt.copy(run, tmp_path / "back", 1) == commits[0]
    assert same(ckpt.load(tmp_path / "back"), weights)
    plain = tmp_path / "back" / "step-000000001" / "part-00000" / "seg-0000"
    ckpt.copy(target, tmp_path / "cold", compress=True)
    packed = tmp_path / "cold" / "step-000000002" / "part-00000" / "seg-0000.packed"
    assert packed.stat().st_size < 0.9 * plain.stat().st_size


def test_nothing_leaves_the_folder_that_is_not_at_the_mirror(
    run: str, store: Store, tmp_path: Path
) -> None:
    for step in (1, 2):
        ckpt.save(tmp_path, step, state(step))
    store.set_door(lambda number, method, path: "503" if ".root" in path else "serve")
    mirror = ckpt.Mirror(tmp_path, run, keep_local=1, timeout_s=0.3)

    mirror.start()
    with pytest.raises((ConnectionError, TimeoutError)):
        mirror.close()

    assert [commit.step for commit in ckpt.list(tmp_path)] == [1, 2]
    with pytest.raises(ValueError, match="keep_local"):
        ckpt.Mirror(tmp_path, run, keep_local=0)


def test_commands_push_and_pull(run: str, store: Store, tmp_path: Path) -> None:
    ckpt.save(tmp_path / "a", 4, state())
    assert "step 4" in cli.ok("ffrecord", "checkpoint", "push", tmp_path / "a", run)
    assert "already" in cli.ok("ffrecord", "checkpoint", "push", tmp_path / "a", run)
    assert "step 4" in cli.ok("ffrecord", "checkpoint", "pull", run, tmp_path / "b", "--step", "4")
    assert same(ckpt.load(tmp_path / "b"), state())
    cli.ok("ffrecord", "checkpoint", "push", tmp_path / "a", tmp_path / "cold", "--compress")
    assert list((tmp_path / "cold").rglob("*.packed"))
    assert same(ckpt.load(tmp_path / "cold"), state())
