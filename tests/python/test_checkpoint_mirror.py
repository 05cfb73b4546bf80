"""Goal: a mirror takes steps to a store, and a step leaves the folder only when it is whole there.

Method: moto's server in this process; runs that are rolled back, damaged, interrupted.
"""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cli
import ffrecord.checkpoint as ckpt
from ffrecord import _ffrecord
from ffrecord.errors import CorruptionError
from object_store import Store
from saved_at_a_store import client_of_store, keys_of, run_of, state
from thread_ranks import same


@pytest.fixture
def run(request: pytest.FixtureRequest, store: Store) -> str:
    return run_of(request, store)


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


@pytest.mark.parametrize("back_to", ["the same step", "an earlier step", "other numbers"])
def test_steps_that_were_given_up_are_given_up_at_the_mirror(
    remote: str, tmp_path: Path, back_to: str
) -> None:
    if remote.startswith("s3://"):
        remote += f"/{back_to}"
    run = tmp_path / "run"
    for step in (10, 20, 30):
        ckpt.save(run, step, state(step))
    ckpt.Mirror(run, remote).sync()
    ckpt.remove(run, 30)
    if back_to == "an earlier step":
        ckpt.remove(run, 20)
    # Not before there is something in its place.
    assert ckpt.Mirror(run, remote).sync() == []
    assert [commit.step for commit in ckpt.list(remote)] == [10, 20, 30]

    step = {"the same step": 30, "an earlier step": 20, "other numbers": 25}[back_to]
    commit = ckpt.save(run, step, state(100))
    assert ckpt.Mirror(run, remote).sync() == [commit]
    assert ckpt.latest(remote) == ckpt.latest(run) == commit
    assert same(ckpt.load(remote), state(100))
    assert ckpt.Mirror(run, remote).sync() == []
    assert [path.name for path in run.glob(".*")] == []


@pytest.mark.parametrize("how", ["lost", "freed", "pruned", "evicted", "pulled"])
def test_steps_that_left_otherwise_stay_at_the_mirror(
    run: str, tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    remote = run.partition("[")[0] + how
    for step in (1, 2, 3):
        ckpt.save(tmp_path, step, state(step))
    ckpt.Mirror(tmp_path, remote).sync()
    if how == "lost":
        shutil.rmtree(tmp_path / "step-000000003")
    elif how == "freed":
        ckpt.remove(tmp_path, 3)
        ckpt.save(tmp_path, 4, state(4))
    elif how == "pruned":
        ckpt.prune(tmp_path, keep_last=1)
        ckpt.save(tmp_path, 4, state(4))
    elif how == "evicted":
        ckpt.Mirror(tmp_path, remote, keep_local=1).sync()
        ckpt.save(tmp_path, 4, state(4))
    elif how == "pulled":
        ckpt.remove(tmp_path, 1)
        ckpt.remove(tmp_path, 3)
        ckpt.copy(remote, tmp_path, 1)
    ckpt.Mirror(tmp_path, remote).sync()
    for step in (1, 2, 3):
        assert same(ckpt.load(remote, step=step), state(step))
    told = "if training went back" in caplog.text
    assert told == (how in ("lost", "pulled"))


@pytest.mark.wrong_data
def test_the_command_that_prunes_gives_no_step_up(run: str, tmp_path: Path) -> None:
    """Steps that it removes are loaded from the mirror, and stay there if the run goes back."""
    for step in (1, 2, 3):
        ckpt.save(tmp_path, step, state(step))
    ckpt.Mirror(tmp_path, run).sync()
    cli.ok("ffrecord", "checkpoint", "prune", tmp_path, "--keep-last", "1", "--yes")
    for step in (1, 2, 3):
        assert same(ckpt.load(tmp_path, step=step, resume=False), state(step))
    ckpt.save(tmp_path, 0, state(0))
    ckpt.Mirror(tmp_path, run).sync()
    assert [commit.step for commit in ckpt.list(run)] == [0, 1, 2, 3]


def test_a_step_that_was_given_up_stays_at_the_mirror_until_the_new_one_is_whole_there(
    remote: str, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    for step in (1, 3):
        ckpt.save(run, step, state(step))
    ckpt.Mirror(run, remote).sync()
    ckpt.remove(run, 3)
    ckpt.save(run, 2, state(12))
    segment = run / "step-000000002/part-00000/seg-0000"
    content = segment.read_bytes()
    segment.write_bytes(content[:100] + b"damage" + content[106:])
    with pytest.raises(CorruptionError):
        ckpt.Mirror(run, remote).sync()
    assert same(ckpt.load(remote), state(3))
    segment.write_bytes(content)
    ckpt.Mirror(run, remote).sync()
    assert same(ckpt.load(remote), state(12))


@pytest.mark.parametrize("way", ["removed", "lost"])
def test_a_folder_without_steps_has_none_of_the_mirrors(run: str, tmp_path: Path, way: str) -> None:
    run = run.replace("[", ".").replace("]", "")
    for step in (1, 2, 3):
        ckpt.save(tmp_path, step, state(step))
    ckpt.Mirror(tmp_path, run, keep_local=1).sync()
    if way == "removed":
        ckpt.remove(tmp_path, 3)
    else:
        shutil.rmtree(tmp_path / "step-000000003")

    for keep_local in (None, 1):
        assert ckpt.Mirror(tmp_path, run, keep_local=keep_local).sync() == []
    assert ckpt.prune(tmp_path, keep_last=1, dry_run=True) == []
    assert [commit.step for commit in ckpt.list(run)] == [1, 2, 3]
    newest = 2 if way == "removed" else 3  # A step that the user gave up is not loaded.
    assert same(ckpt.load(tmp_path), state(newest))
    assert [commit.step for commit in ckpt.list(tmp_path)][-1] == newest
    if way == "removed":
        with pytest.raises(FileNotFoundError):
            ckpt.load(tmp_path, step=3)
        with pytest.raises(FileNotFoundError):
            ckpt.verify(tmp_path, step=3)
    assert same(ckpt.load(run, step=3), state(3))

    ckpt.remove(run, 2)  # Training goes back to step 1.
    new = ckpt.save(tmp_path, 2, state(9))
    assert ckpt.Mirror(tmp_path, run).sync() == [new]
    assert ckpt.latest(run) == new if way == "removed" else ckpt.list(run)[1] == new


def test_another_run_s_save_of_a_step_that_was_copied_from_here_stays(
    remote: str, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    ckpt.save(run, 1, state(1))
    ckpt.Mirror(run, remote).sync()
    ckpt.remove(remote, 1)
    ckpt.save(remote, 1, state(11))
    for ask in (ckpt.Mirror(run, remote).sync, ckpt.Mirror(run, remote).lacking):
        with pytest.raises(FileExistsError, match="another save of step 1"):
            ask()
    assert same(ckpt.load(remote, step=1), state(11))


def test_a_step_whose_root_is_damaged_is_told(remote: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    commits = [ckpt.save(run, step, state(step)) for step in (1, 2, 3)]
    (run / "step-000000002/root.manifest").write_bytes(b"damaged")
    for _ in range(2):
        with pytest.raises(CorruptionError, match="step 2"):
            ckpt.Mirror(run, remote).sync()
        assert ckpt.list(remote) == [commits[0], commits[2]]


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
    with pytest.raises(CorruptionError, match="step-000000002"):
        ckpt.Mirror(tmp_path, run, keep_local=1).sync()
    assert [commit.step for commit in ckpt.list(run)] == [1, 3]


@pytest.fixture(params=["store", "folder"])
def remote(request: pytest.FixtureRequest, store: Store, tmp_path: Path) -> str:
    """A mirror of its own for each test, of each kind; the store has no faults."""
    store.serve_all()
    name = request.node.originalname
    return f"s3://bucket/mirror/{name}" if request.param == "store" else str(tmp_path / "mirror")


def _damage_copy(remote: str, step: int, what: str, how: str) -> None:
    """Damage a file of the copy of a step, wherever it is."""
    if remote.startswith("s3://"):
        client, name = client_of_store(), f"step-{step:09}"
        root = next(key for key in keys_of(remote) if key.endswith(f"{name}.root"))
        keys = [key for key in keys_of(remote) if f"{name}-" in key and what in key]
        key = root if what == "root" else keys[0]
        body = bytearray(client.get_object(Bucket="bucket", Key=key)["Body"].read())
        body[100] ^= 1
        if how == "gone":
            client.delete_object(Bucket="bucket", Key=key)
        else:
            client.put_object(Bucket="bucket", Key=key, Body=bytes(body))
        return
    path = next(Path(remote).glob(f"step-{step:09}/**/{what}*"))
    if path.is_dir():
        path = next(path.iterdir())
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.unlink() if how == "gone" else path.write_bytes(content)


@pytest.mark.parametrize("how", ["flipped", "gone"])
@pytest.mark.parametrize("what", ["seg-", "part-00000.manifest", "root"])
@pytest.mark.parametrize("is_new", [True, False])
def test_a_damaged_copy_is_told_and_copied_again(
    remote: str, tmp_path: Path, what: str, how: str, is_new: bool, caplog: pytest.LogCaptureFixture
) -> None:
    if remote.startswith("s3://"):
        remote += f"/{what}{how}{is_new}"
    run = tmp_path / "run"
    commits = [ckpt.save(run, step, state(step)) for step in (1, 2)]
    mirror = ckpt.Mirror(run, remote)
    assert mirror.sync() == commits
    _damage_copy(remote, 1, what, how)
    if is_new:
        mirror = ckpt.Mirror(run, remote)

    assert mirror.lacking() == commits[:1]
    assert mirror.sync() == commits[:1]
    assert (what, how) == ("root", "gone") or "the copy of step 1" in caplog.text
    assert mirror.sync() == [] and mirror.lacking() == []
    assert ckpt.verify(remote, 1) == []
    assert same(ckpt.load(remote, step=1), state(1))


@pytest.mark.parametrize("verify", [True, False])
def test_a_step_leaves_the_folder_once_its_copy_is_whole_again(
    run: str, tmp_path: Path, verify: bool
) -> None:
    run = run.partition("[")[0] + str(verify)
    for step in (1, 2):
        ckpt.save(tmp_path, step, state(step))
    ckpt.Mirror(tmp_path, run).sync()
    segment = next(key for key in keys_of(run) if "step-000000001" in key and "seg-" in key)
    client_of_store().delete_object(Bucket="bucket", Key=segment)
    ckpt.Mirror(tmp_path, run, keep_local=1, verify=verify).sync()
    assert [commit.step for commit in ckpt.list(tmp_path)] == [2]
    assert same(ckpt.load(tmp_path, step=1), state(1))


@pytest.mark.parametrize("keep_local", [None, 2])
@pytest.mark.parametrize("incremental", [False, True])
def test_a_copy_is_read_once_in_a_process(
    run: str, store: Store, tmp_path: Path, keep_local: int | None, incremental: bool
) -> None:
    """However often the steps here are read as well, by retention and by incremental saves."""
    run = run.partition("[")[0] + f"/{keep_local}{incremental}"
    with ckpt.Mirror(tmp_path, run, keep_local=keep_local) as mirror:
        for step in range(1, 5):
            ckpt.save(tmp_path, step, {**state(), "step": step}, incremental=incremental)
            mirror.sync()
        mirror.sync()
        store.serve_all()
        assert mirror.sync() == []
        ckpt.prune(tmp_path, keep_last=2)
        assert mirror.sync() == []
    assert [request for request, _ in store.sent if "GET" in request and "/seg-" in request] == []


def test_nothing_leaves_the_folder_whose_copy_is_not_whole(run: str, tmp_path: Path) -> None:
    """Nor is the copy touched if the step here is damaged as well: some of it may be of use."""
    for step in (1, 2):
        ckpt.save(tmp_path, step, state(step))
    ckpt.Mirror(tmp_path, run).sync()
    keys = keys_of(run)
    segment = next(key for key in keys if "step-000000001" in key and "seg-" in key)
    client_of_store().delete_object(Bucket="bucket", Key=segment)
    here = tmp_path / "step-000000001/part-00000/seg-0000"
    content = bytearray(here.read_bytes())
    content[100] ^= 1
    here.write_bytes(content)
    with pytest.raises(CorruptionError, match="step 1"):
        ckpt.Mirror(tmp_path, run, keep_local=1).sync()
    assert [commit.step for commit in ckpt.list(tmp_path)] == [1, 2]
    assert set(keys_of(run)) == set(keys) - {segment}


@pytest.mark.parametrize("keep_local", [None, 2])
@pytest.mark.parametrize("again", [False, True])
def test_steps_that_retention_removes_beside_a_mirror_are_no_failure(
    run: str, store: Store, tmp_path: Path, keep_local: int | None, again: bool
) -> None:
    """Step 2 goes, or becomes another save, while step 1 is on its way."""
    run = run.replace("[", ".").replace("]", "")
    for step in (1, 2, 3):
        ckpt.save(tmp_path, step, state(step))
    done: list[int] = []

    def change(number: int, request: str) -> None:
        if not done and request.startswith("PUT") and "step-000000001" in request:
            done.append(number)
            ckpt.remove(tmp_path, 2)
            if again:
                ckpt.save(tmp_path, 2, state(9))

    store.set_door(lambda number, method, path: "serve", change)
    mirror = ckpt.Mirror(tmp_path, run, keep_local=keep_local)
    copied = mirror.sync()

    assert done
    assert [commit.step for commit in ckpt.list(run)] == ([1, 2, 3] if again else [1, 3])
    assert copied == ckpt.list(run)
    assert mirror.sync() == []
    if again:
        assert same(ckpt.load(run, step=2), state(9))


@pytest.mark.parametrize("name", ["root.manifest", "part-00000.manifest", "part-00000/seg-0000"])
@pytest.mark.parametrize("how", ["flipped", "gone", "unreadable"])
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
    path.write_bytes(content) if how == "flipped" else path.unlink()
    if how == "unreadable":
        path.mkdir()

    assert same(ckpt.load(tmp_path), state(2))
    assert same(ckpt.load(tmp_path, step=2), state(2))
    assert [(each.step, each.damage) for each in ckpt.list(tmp_path)] == [(1, ""), (2, "")]
    assert ckpt.verify(tmp_path, 2) != []
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
    copy = _ffrecord.copy_checkpoint

    def interrupted(source: str, step: int, *options: Any) -> object:  # noqa: ANN401
        if step == 2:
            raise KeyboardInterrupt
        return copy(source, step, *options)

    with monkeypatch.context() as patch:
        patch.setattr(_ffrecord, "copy_checkpoint", interrupted)
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
    shutil.rmtree(tmp_path / "step-000000001")
    for step in (2, 3):
        ckpt.remove(tmp_path, step)
    ckpt.save(tmp_path, 2, state(12))
    (tmp_path / "step-000000002" / "part-00000.manifest").unlink()
    with pytest.raises(CorruptionError):
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
