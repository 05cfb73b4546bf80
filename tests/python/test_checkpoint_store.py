"""Goal: an S3-compatible store is a target of checkpoints like any other.

Method: moto's server in this process, behind a door that answers 503, hangs up, or loses answers.
"""

from pathlib import Path

import numpy as np
import pytest

import cli
import ffrecord.checkpoint as ckpt
from ffrecord.errors import CorruptionError
from object_store import Store
from saved_at_a_store import client_of_store, keys_of, run_of, state
from thread_ranks import ThreadRank, ThreadRanks, same


@pytest.fixture
def run(request: pytest.FixtureRequest, store: Store) -> str:
    return run_of(request, store)


# --- A target ------------------------------------------------------------------------------------


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


def test_an_incremental_save_sends_what_has_changed(run: str, store: Store) -> None:
    large = np.random.default_rng(1).random((4_000, 100))
    for step in (1, 2, 3):
        store.serve_all()  # Counts anew.
        large[step * 100] = step
        ckpt.save(run, step, {"large": large, "step": step}, incremental=True)
        if step > 1:
            assert store.taken_bytes < large.nbytes / 2
    ckpt.prune(run, keep_last=1)
    assert same(ckpt.load(run), {"large": large, "step": 3})


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


@pytest.mark.wrong_data
@pytest.mark.parametrize("file", [".root", "part-00000.manifest", "part-00000/seg-0000"])
@pytest.mark.parametrize("how", ["flipped", "gone"])
def test_a_step_that_the_store_damages_is_told_and_gives_way(
    run: str, tmp_path: Path, file: str, how: str
) -> None:
    for step in (1, 2):
        ckpt.save(run, step, state(step))
    client = client_of_store()
    key = next(key for key in keys_of(run) if "step-000000002" in key and key.endswith(file))
    content = bytearray(client.get_object(Bucket="bucket", Key=key)["Body"].read())
    content[60] ^= 1
    client.delete_object(Bucket="bucket", Key=key)
    if how == "flipped":
        client.put_object(Bucket="bucket", Key=key, Body=bytes(content))

    if (file, how) == (".root", "gone"):  # Which is all that there is of a step.
        assert [commit.step for commit in ckpt.list(run)] == [1]
    else:
        listed = ckpt.list(run)
        assert [commit.step for commit in listed] == [1, 2]
        if (file, how) != ("part-00000/seg-0000", "flipped"):  # verify reads it, a list does not.
            assert "step-000000002" in listed[1].damage
        assert "step-000000002" in ckpt.verify(run)[0]
        assert ckpt.prune(run, keep_last=1) == []
        with pytest.raises((CorruptionError, FileNotFoundError), match="step-000000002"):
            ckpt.copy(run, tmp_path / "copy", 2)
    ckpt.save(run, 2, state(9))
    assert ckpt.verify(run) == []
    assert same(ckpt.load(run), state(9))


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


def test_commands_push_and_pull(run: str, store: Store, tmp_path: Path) -> None:
    ckpt.save(tmp_path / "a", 4, state())
    assert "step 4" in cli.ok("ffrecord", "checkpoint", "push", tmp_path / "a", run)
    assert "already" in cli.ok("ffrecord", "checkpoint", "push", tmp_path / "a", run)
    assert "step 4" in cli.ok("ffrecord", "checkpoint", "pull", run, tmp_path / "b", "--step", "4")
    assert same(ckpt.load(tmp_path / "b"), state())
    cli.ok("ffrecord", "checkpoint", "push", tmp_path / "a", tmp_path / "cold", "--compress")
    assert list((tmp_path / "cold").rglob("*.packed"))
    assert same(ckpt.load(tmp_path / "cold"), state())


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


@pytest.mark.parametrize("ask", ["latest", "load", "verify"])
@pytest.mark.parametrize("when", ["line", "part-00000.manifest", "seg-0000"])
def test_a_step_that_goes_meanwhile_is_no_damage(
    run: str, store: Store, recwarn: pytest.WarningsRecorder, ask: str, when: str
) -> None:
    """Training saves the next step and prunes while the newest is listed, opened or read."""
    questions = {
        "latest": lambda: (found := ckpt.latest(run)) is not None and found.step,
        "load": lambda: int(ckpt.load(run, resume=False)["step"]),  # type: ignore[index]
        "verify": lambda: ckpt.verify(run) == [] and 2,
    }
    ckpt.save(run, 1, state(1))
    gone: list[object] = []

    def goes_on(number: int, request: str) -> None:
        if when in request and not gone:
            gone.append(None)
            ckpt.save(run, 2, state(2))
            gone.extend(ckpt.prune(run, keep_last=1, verify=False))

    store.set_door(lambda number, method, path: "serve", goes_on)
    answer = questions[ask]()
    store.serve_all()
    assert len(gone) == 2 or (ask, when) == ("latest", "seg-0000")
    assert answer == 2 or (ask == "latest" and when != "line")
    assert [str(each.message) for each in recwarn if "skipped" in str(each.message)] == []


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
