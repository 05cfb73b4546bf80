"""Goal: whatever saved a checkpoint and whatever is damaged, every question has a true answer.

Method: a table. Each way to save writes two steps; one thing of the newest is damaged; then every
question is asked: list, latest, verify, load, prune, copies, mirrors, saving the step again. Each
answers with the truth, or with an error that names the step and the folder.
"""

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cli
import ffrecord.checkpoint as ckpt
from ffrecord.errors import CorruptionError

torch = pytest.importorskip("torch", reason="torch is not installed")
dcp = pytest.importorskip("torch.distributed.checkpoint", reason="torch has no DCP")
from ffrecord.torch import CheckpointWriter, TrainingState  # noqa: E402

pytestmark = pytest.mark.wrong_data

COUNT = 40_000  # float32: three blocks.
DAMAGED = (CorruptionError, FileNotFoundError)


# --- Ways to save --------------------------------------------------------------------------------


def array_of(step: int) -> Any:  # noqa: ANN401
    return np.full(COUNT, step, np.float32)


def save_plain(run: Path, step: int) -> None:
    ckpt.save(run, step, {"w": array_of(step)}, group="alone")


def save_async(run: Path, step: int) -> None:
    ckpt.async_save(run, step, {"w": array_of(step)}, group="alone").result(60)


def save_incremental(run: Path, step: int) -> None:
    ckpt.save(run, step, {"w": array_of(step)}, group="alone", incremental=True)


def save_dcp(run: Path, step: int) -> None:
    state = {"w": torch.from_numpy(array_of(step))}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state, storage_writer=CheckpointWriter(run, step=step), no_dist=True)


def save_training(run: Path, step: int) -> None:
    model = torch.nn.Module()
    model.w = torch.nn.Parameter(torch.from_numpy(array_of(step)))
    TrainingState(model).save(run, step)


def save_lightning(run: Path, step: int) -> None:
    """Its own step numbers, and the older step removed: the step before is another's."""
    lightning = pytest.importorskip("ffrecord.torch.lightning", reason="no Lightning")
    if step == 1:
        save_plain(run, 1)
        return
    state = {"w": torch.from_numpy(array_of(step))}
    lightning.CheckpointIO().save_checkpoint(state, run)


SAVERS = {
    "save": save_plain,
    "async_save": save_async,
    "incremental": save_incremental,
    "dcp": save_dcp,
    "TrainingState": save_training,
    "Lightning": save_lightning,
}


def value_of(loaded: Any) -> float:  # noqa: ANN401
    """The number that fills the tensor, wherever the way to save puts it."""
    for part in ("state", "model"):
        loaded = loaded.get(part, loaded)
    found = {float(each) for each in loaded["w"]}
    assert len(found) == 1, f"a mixture: {found}"
    return found.pop()


# --- Damage --------------------------------------------------------------------------------------


def flip(path: Path, offset: int = 100) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.unlink()  # An incremental step may share the file.
    path.write_bytes(content)


DAMAGE: dict[str, Callable[[Path], None]] = {
    "segment byte": lambda step: flip(step / "part-00000/seg-0000", 70_000),
    "segment table": lambda step: flip(step / "part-00000/seg-0000", 163_845),
    "part manifest": lambda step: flip(step / "part-00000.manifest", 60),
    "root manifest": lambda step: flip(step / "root.manifest", 60),
    "missing segment": lambda step: (step / "part-00000/seg-0000").unlink(),
    "short segment": lambda step: (step / "part-00000/seg-0000").write_bytes(b"short"),
    "missing part": lambda step: (step / "part-00000.manifest").unlink(),
    "missing root": lambda step: (step / "root.manifest").unlink(),
}
UNSEEN = {"segment byte", "segment table"}  # By what reads no tensors.


@pytest.fixture(params=SAVERS)
def saver(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=DAMAGE)
def damage(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def run(tmp_path: Path, saver: str, damage: str) -> Path:
    """Two steps, the newest damaged."""
    folder = tmp_path / "run"
    for step in (1, 2):
        SAVERS[saver](folder, step)
    DAMAGE[damage](folder / "step-000000002")
    return folder


@contextlib.contextmanager
def says_which_step(run: Path) -> Iterator[None]:
    with pytest.raises(DAMAGED, match="step") as raised:
        yield
    assert str(run / "step-000000002") in str(raised.value), raised.value


# --- Questions -----------------------------------------------------------------------------------


def test_the_step_is_listed_and_verified_as_damaged(run: Path, damage: str) -> None:
    first, second = ckpt.list(run)
    assert (first.step, first.damage, second.step) == (1, "", 2)
    if damage not in UNSEEN:
        assert str(run / "step-000000002") in second.damage
    assert ckpt.verify(run, 1) == []
    for found in (ckpt.verify(run), ckpt.verify(run, 2)):
        assert found and all(str(run / "step-000000002") in message for message in found)


def test_the_latest_is_whole_or_a_load_of_it_says_that_it_is_not(run: Path, damage: str) -> None:
    latest = ckpt.latest(run)
    assert latest is not None and latest.step == (2 if damage in UNSEEN else 1)
    with says_which_step(run):
        ckpt.load(run, step=2, group="alone")
    if damage in UNSEEN:
        with says_which_step(run):
            ckpt.load(run, group="alone")
    with pytest.warns(UserWarning, match="step-000000002"):
        loaded = ckpt.load(run, group="alone", on_corrupt="previous")
    assert value_of(loaded) == 1


def test_the_step_does_not_count_as_kept(run: Path) -> None:
    assert ckpt.prune(run, keep_last=1) == []
    assert value_of(ckpt.load(run, step=1, group="alone")) == 1


def test_the_step_is_saved_again(run: Path, saver: str) -> None:
    SAVERS[saver](run, 2)
    newest = ckpt.list(run)[-1]
    assert newest.damage == "" and ckpt.verify(run, newest.step) == []
    assert value_of(ckpt.load(run, step=newest.step, group="alone")) == 2
    if newest.step == 2:  # Lightning takes the next one.
        with pytest.raises(FileExistsError):  # It is whole now.
            ckpt.save(run, 2, {"w": 3}, group="alone")


@pytest.mark.parametrize("compress", [False, True])
def test_a_copy_of_the_step_fails_by_name_and_leaves_nothing(
    run: Path, tmp_path: Path, *, compress: bool
) -> None:
    with says_which_step(run):
        ckpt.copy(run, tmp_path / "copy", 2, compress=compress)
    assert not (tmp_path / "copy").exists()
    ckpt.copy(run, tmp_path / "copy", 1, compress=compress)
    assert value_of(ckpt.load(tmp_path / "copy", group="alone")) == 1


def test_a_flush_copies_the_others_and_names_the_step(run: Path, tmp_path: Path) -> None:
    target = ckpt.stage(run, tmp_path / "far")
    for _ in range(2):
        with pytest.raises(ckpt.FlushError) as failed:
            target.flush()
        assert isinstance(failed.value.__cause__, DAMAGED)
        assert str(run / "step-000000002") in str(failed.value)
        assert [commit.step for commit in ckpt.list(tmp_path / "far")] == [1]
    assert ckpt.verify(tmp_path / "far") == []


def test_a_copy_that_is_damaged_is_replaced_by_copying_again(
    tmp_path: Path, saver: str, damage: str
) -> None:
    run, copy = tmp_path / "run", tmp_path / "copy"
    for step in (1, 2):
        SAVERS[saver](run, step)
        ckpt.copy(run, copy, step)
    DAMAGE[damage](copy / "step-000000002")

    for _ in range(2):
        ckpt.copy(run, copy, 2)
        assert ckpt.verify(copy) == []
    assert value_of(ckpt.load(copy, group="alone")) == 2
    assert ckpt.list(copy) == ckpt.list(run)


@pytest.mark.parametrize("compress", [False, True])
def test_a_copy_that_was_verified_before_its_damage_is_read_again(
    tmp_path: Path, *, compress: bool
) -> None:
    run, copy = tmp_path / "run", tmp_path / "copy"
    save_plain(run, 1)
    for _ in range(2):  # The second one verifies the first.
        ckpt.copy(run, copy, compress=compress)
    segment = next((copy / "step-000000001/part-00000").glob("seg-0000*"))
    flip(segment, 20)
    assert ckpt.verify(copy) != []
    ckpt.copy(run, copy, compress=compress)
    assert ckpt.verify(copy) == []


# --- Commands ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", DAMAGE)
def test_commands_tell_of_the_damage(tmp_path: Path, kind: str) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    for step in (1, 2):
        save_plain(run, step)
    DAMAGE[kind](run / "step-000000002")
    command = ("ffrecord", "checkpoint")

    listed = cli.ok(*command, "list", run)
    assert ("damaged: " in listed) == (kind not in UNSEEN)
    verified = cli.run(*command, "verify", run)
    assert verified.returncode == 3 and "step-000000002" in verified.stdout
    for copy in (("push", run, other), ("pull", run, other, "--step", "2")):
        done = cli.run(*command, *copy)
        assert done.returncode == 3 and "step-000000002" in done.stderr, done.stderr
    assert [commit.step for commit in ckpt.list(other)] == [1]  # Which push has copied.
    done = cli.ok(*command, "prune", run, "--keep-last", "1", "--yes")
    assert "removed 0 steps" in done


# --- What stays after damage ---------------------------------------------------------------------


def test_steps_after_the_damage_share_none_of_it(tmp_path: Path) -> None:
    frozen = np.random.default_rng(0).integers(0, 255, 8 << 20, np.uint8)
    state = {"frozen": frozen, "head": np.zeros(1 << 20, np.uint8)}

    def save(step: int) -> None:
        state["head"] += 1
        ckpt.save(tmp_path, step, state, group="alone", incremental=True)

    save(1)
    save(2)
    ckpt.save(tmp_path, 3, state, group="alone")
    save(4)  # Step 3 says nothing of its contents: all is written.
    segments = (tmp_path / "step-000000004").rglob("seg-*")
    flip(max(segments, key=lambda path: path.stat().st_size), 2 << 20)
    for step in (5, 6, 7):
        save(step)

    assert [step for step in range(1, 8) if ckpt.verify(tmp_path, step)] == [4]
    ckpt.prune(tmp_path, keep_last=3)
    for step in (5, 6, 7):
        assert np.array_equal(ckpt.load(tmp_path, step=step, group="alone")["frozen"], frozen)  # type: ignore[index]


def test_a_segment_is_read_once_for_all_steps_that_share_it(tmp_path: Path) -> None:
    """Damage that a disk makes later is not looked for: only the file's times could tell of it."""
    state = {"w": np.random.default_rng(0).integers(0, 255, 8 << 20, np.uint8)}
    for step in (1, 2):
        ckpt.save(tmp_path, step, state, group="alone", incremental=True)
    segment = next((tmp_path / "step-000000002").rglob("seg-*"))
    times = segment.stat()
    with segment.open("r+b") as file:
        file.seek(1 << 20)
        file.write(bytes(1000))
    os.utime(segment, ns=(times.st_atime_ns, times.st_mtime_ns))
    ckpt.save(tmp_path, 3, state, group="alone", incremental=True)
    assert segment.stat().st_nlink == 3

    segment.touch()  # As who has written it.
    ckpt.save(tmp_path, 4, state, group="alone", incremental=True)
    assert segment.stat().st_nlink == 3
    assert ckpt.verify(tmp_path, 4) == []


def test_a_step_leaves_only_for_a_copy_that_was_read(tmp_path: Path) -> None:
    near = ckpt.replicated_target([tmp_path / "a", tmp_path / "b"])
    target = ckpt.stage(near, tmp_path / "far", keep=(1, None))
    save_plain(near, 1)  # type: ignore[arg-type]
    target.flush()
    segments = [tmp_path / place / "step-000000001/part-00000/seg-0000" for place in "ab"]
    for segment in (tmp_path / "far/step-000000001/part-00000/seg-0000", *segments):
        flip(segment)
    save_plain(near, 2)  # type: ignore[arg-type]
    target.flush()
    with pytest.raises(ckpt.FlushError, match="step-000000001"):
        target.flush()  # It has been seen that the copy of step 1 is not whole.
    assert [commit.step for commit in ckpt.list(near)] == [1, 2]

    flip(segments[0])  # Back: the copy is made again from this one.
    target.flush()
    assert [commit.step for commit in ckpt.list(near)] == [2]
    assert ckpt.verify(tmp_path / "far", 1) == []


@pytest.mark.parametrize("spelling", ["run/", "./run", "../{}/run", "link"])
def test_one_place_twice_is_refused(tmp_path: Path, spelling: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "run")
    other = f"{tmp_path}/{spelling.format(tmp_path.name)}"
    for target in (str(tmp_path / "run"), ckpt.replicated_target([tmp_path / "run", tmp_path])):
        with pytest.raises(ValueError, match="same place"):
            ckpt.stage(target, other)
