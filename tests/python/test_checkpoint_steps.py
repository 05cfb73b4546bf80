"""Goal: damage is named, the step before is offered; steps are listed, pruned and removed.

Method: bits of segments and manifests flipped, alone and with ranks that are threads.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cli
import ffrecord
import ffrecord.checkpoint as ckpt
from thread_ranks import ThreadRank, ThreadRanks


def test_damage_is_named_and_the_step_before_loads(tmp_path: Path) -> None:
    for step in (1, 2):
        ckpt.save(tmp_path, step, {"w": np.full(10_000, step)})
    segment = tmp_path / "step-000000002/part-00000/seg-0000"
    content = bytearray(segment.read_bytes())
    content[5000] ^= 1
    segment.write_bytes(content)
    with pytest.raises(ffrecord.CorruptionError, match=r"step-000000002/part-00000/seg-0000.* w"):
        ckpt.load(tmp_path)
    loaded: Any = ckpt.load(tmp_path, step=1)
    assert loaded["w"][0] == 1

    (tmp_path / "step-000000002/root.manifest").write_bytes(b"")
    with pytest.warns(UserWarning, match=r"step-000000002/root\.manifest"):
        loaded = ckpt.load(tmp_path)
    assert loaded["w"][0] == 1
    whole, damaged = ckpt.list(tmp_path)
    assert (whole.step, whole.damage, damaged.step) == (1, "", 2)
    assert "step-000000002/root.manifest" in damaged.damage
    latest = ckpt.latest(tmp_path)
    assert latest is not None and latest.step == 1


@pytest.mark.parametrize("name", ["root.manifest", "part-00000.manifest", "part-00000/seg-0000"])
def test_a_newest_step_that_cannot_be_read_is_named_with_the_one_before(
    tmp_path: Path, name: str
) -> None:
    for step in (1, 2):
        ckpt.save(tmp_path, step, {"w": np.full(10_000, step)})
    path = tmp_path / "step-000000002" / name
    path.unlink()
    path.mkdir()  # Which says nothing of damage.
    why = f"{name}.*step 2 of .* Step 1 is available"
    for ask in (ckpt.latest, ckpt.load):
        with pytest.raises((OSError, ValueError), match=why):
            ask(tmp_path)
    loaded: Any = ckpt.load(tmp_path, step=1)
    assert loaded["w"][0] == 1


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def test_the_step_before_is_offered_and_loaded_on_request(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        ckpt.save(tmp_path, step, {"w": np.full(100_000, step), "n": step})
    flip(tmp_path / "step-000000004/part-00000/seg-0000", 5000)
    flip(tmp_path / "step-000000003/root.manifest", 30)
    with pytest.raises(ffrecord.CorruptionError, match=r"step-000000004.* Step 2 is available"):
        ckpt.load(tmp_path)
    with pytest.raises(ffrecord.CorruptionError, match=r"step-000000004") as raised:
        ckpt.load(tmp_path, step=4, on_corrupt="previous")
    assert "is there" not in str(raised.value)

    state: Any = {"w": np.zeros(100_000, int), "n": 0}
    with pytest.warns(UserWarning, match=r"step-000000004.*offset 0 fails.*step 2 is loaded"):
        ckpt.load(tmp_path, state, on_corrupt="previous")
    assert state["n"] == 2 and np.all(state["w"] == 2)

    for step in (1, 2):
        flip(tmp_path / f"step-00000000{step}/part-00000/seg-0000", 5000)
    with (
        pytest.warns(UserWarning, match="step 1 is loaded"),
        pytest.raises(ffrecord.CorruptionError, match="step-000000001"),
    ):
        ckpt.load(tmp_path, on_corrupt="previous")
    with pytest.raises(ValueError, match="on_corrupt"):
        ckpt.load(tmp_path, on_corrupt="ignore")  # type: ignore[arg-type]


def test_ranks_fall_back_together(tmp_path: Path) -> None:
    def save(rank: ThreadRank) -> object:
        for step in (1, 2):
            own = ckpt.Shard(np.full(100_000, step), (200_000,), (100_000 * rank.rank,))
            ckpt.save(tmp_path, step, {"own": own}, group=rank)
        return None

    assert ThreadRanks(2).run(save) == [None, None]
    flip(tmp_path / "step-000000002/part-00001/seg-0000", 5000)

    def load(rank: ThreadRank) -> object:
        data = np.zeros(100_000, int)
        state = {"own": ckpt.Shard(data, (200_000,), (100_000 * rank.rank,))}
        ckpt.load(tmp_path, state, group=rank, on_corrupt="previous")
        return data.tolist() == [1] * 100_000

    with pytest.warns(UserWarning, match=r"rank 1: .*part-00001/seg-0000"):
        assert ThreadRanks(2).run(load) == [True, True]


def test_verify_names_every_bad_block(tmp_path: Path) -> None:
    ckpt.save(tmp_path, 1, {"w": np.arange(1_000_000), "small": np.ones(3)})
    ckpt.save(tmp_path, 2, {"w": np.arange(10)})
    assert ckpt.verify(tmp_path) == ckpt.verify(tmp_path, 1) == []
    segment = tmp_path / "step-000000001/part-00000/seg-0000"
    for offset in (70_000, 80_000, 7_000_000):
        flip(segment, offset)
    damage = ckpt.verify(tmp_path, 1)
    assert [int(message.split("offset ")[1].split()[0]) for message in damage] == [
        65536,
        7_000_000 // 65536 * 65536,
    ]
    assert ckpt.verify(tmp_path) == []
    flip(segment, -4000)  # Behind the payload comes the table, in one page.
    assert "table" in ckpt.verify(tmp_path, 1)[0]
    flip(tmp_path / "step-000000002/part-00000.manifest", 40)
    assert "part-00000.manifest" in ckpt.verify(tmp_path, 2)[0]
    with pytest.raises(FileNotFoundError):
        ckpt.verify(tmp_path, 3)
    with pytest.raises(FileNotFoundError):
        ckpt.verify(tmp_path / "none")


def test_steps_are_listed_pruned_and_removed(tmp_path: Path) -> None:
    commits = [ckpt.save(tmp_path, step, {"w": np.ones(step)}) for step in (1, 2, 10, 30)]
    assert ckpt.list(tmp_path) == commits
    assert ckpt.latest(tmp_path) == commits[-1]
    assert ckpt.prune(tmp_path, keep_last=2) == commits[:2]
    assert ckpt.list(tmp_path) == commits[2:]
    ckpt.remove(tmp_path, 30)
    assert ckpt.latest(tmp_path) == commits[2]
    with pytest.raises(ValueError, match="keep_last"):
        ckpt.prune(tmp_path, keep_last=0)


def test_a_step_that_is_damaged_counts_as_kept_only_if_nobody_may_read_it(tmp_path: Path) -> None:
    for step in (1, 2):
        ckpt.save(tmp_path, step, {"w": np.ones(5000) * step})
    segment = tmp_path / "step-000000002" / "part-00000" / "seg-0000"
    content = bytearray(segment.read_bytes())
    content[100] ^= 1
    segment.write_bytes(content)

    assert ckpt.prune(tmp_path, keep_last=1) == []
    command = ["ffrecord", "checkpoint", "prune", tmp_path, "--keep-last", "1", "--yes", "--json"]
    assert json.loads(cli.ok(*command)) == {"removed": []}
    assert json.loads(cli.ok(*command, "--no-verify")) == {"removed": [1]}
    assert len(ckpt.list(tmp_path)) == 1


def test_every_kth_step_can_be_kept_for_good(tmp_path: Path) -> None:
    for step in (5, 10, 15, 20, 25, 27):
        ckpt.save(tmp_path, step, {"step": step})
    planned = ckpt.prune(tmp_path, keep_last=2, keep_every=10, dry_run=True)
    assert len(ckpt.list(tmp_path)) == 6
    removed = ckpt.prune(tmp_path, keep_last=2, keep_every=10)
    assert removed == planned
    assert [commit.step for commit in removed] == [5, 15]
    assert [commit.step for commit in ckpt.list(tmp_path)] == [10, 20, 25, 27]
    with pytest.raises(ValueError, match="keep_every"):
        ckpt.prune(tmp_path, keep_last=1, keep_every=0)


@pytest.mark.parametrize("file", ["part-00000.manifest", "part-00000/seg-0000"])
def test_a_committed_step_that_lacks_a_file_is_damaged_and_not_absent(
    tmp_path: Path, file: str
) -> None:
    ckpt.save(tmp_path, 1, {"w": np.ones(1000)})
    (tmp_path / "step-000000001" / file).unlink()

    assert any(file in message for message in ckpt.verify(tmp_path, 1))
    for step in (1, "latest"):  # A run that takes it for absent begins anew.
        with pytest.raises(ffrecord.CorruptionError, match=file):
            ckpt.load(tmp_path, step=step)
    with pytest.raises(FileNotFoundError):
        ckpt.load(tmp_path, step=2)


def load_by_dcp(run: Path, folder: Path) -> None:
    dcp = pytest.importorskip("torch.distributed.checkpoint", reason="torch is not installed")
    import torch

    from ffrecord.torch import CheckpointReader, CheckpointWriter

    for step in (1, 2):
        state = {"w": torch.full((3,), float(step))}
        dcp.save(state, storage_writer=CheckpointWriter(folder, step=step), no_dist=True)
    flip(folder / "step-000000002" / "root.manifest", 50)
    into = {"w": torch.zeros(3)}
    dcp.load(into, storage_reader=CheckpointReader(folder), no_dist=True)
    assert into["w"][0] == 1


# Each takes the newest step that is whole, and makes something of it.
OF_THE_LATEST: dict[str, Callable[[Path, Path], object]] = {
    "load": lambda run, folder: ckpt.load(run),
    "copy": lambda run, folder: ckpt.copy(run, folder),
    "export": lambda run, folder: ckpt.export_safetensors(run, folder / "x"),
    "dcp": load_by_dcp,
}


@pytest.mark.wrong_data
@pytest.mark.parametrize("name", OF_THE_LATEST)
def test_an_older_step_is_never_taken_without_a_word(tmp_path: Path, name: str) -> None:
    run, folder = tmp_path / "run", tmp_path / "other"
    folder.mkdir()
    for step in (1, 2):
        ckpt.save(run, step, {"w": np.full(3, step)})
    flip(run / "step-000000002" / "root.manifest", 50)
    with pytest.warns(UserWarning, match="skipped a damaged checkpoint: .*step-000000002"):
        OF_THE_LATEST[name](run, folder)


# --- What a step is ------------------------------------------------------------------------------

WITH_A_STEP: dict[str, Callable[[Path, Any], object]] = {
    "save": lambda run, step: ckpt.save(run, step, {"w": 1}),
    "load": lambda run, step: ckpt.load(run, step=step),
    "verify": ckpt.verify,
    "remove": ckpt.remove,
    "copy": lambda run, step: ckpt.copy(run, run.parent / "copy", step),
    "export": lambda run, step: ckpt.export_safetensors(run, run.parent / "x", step=step),
    "import": lambda run, step: ckpt.import_safetensors(run.parent / "y", run, step),
    "diff": lambda run, step: ckpt.diff((run, 1), (run, step)),
}


@pytest.mark.parametrize("name", WITH_A_STEP)
@pytest.mark.parametrize("step", [-1, 2**63, 2**64 - 1, 2**70, True, 1.0, "1", "newest"])
def test_what_is_no_step_is_refused_by_everybody(tmp_path: Path, name: str, step: object) -> None:
    run = tmp_path / "run"
    ckpt.save(run, 1, {"w": np.arange(3)})
    ckpt.export_safetensors(run, tmp_path / "y")
    with pytest.raises(ValueError, match=r"step is .* integer from 0 to"):
        WITH_A_STEP[name](run, step)
    assert [commit.step for commit in ckpt.list(run)] == [1]


@pytest.mark.parametrize("name", WITH_A_STEP)
def test_an_integer_of_numpy_is_a_step(tmp_path: Path, name: str) -> None:
    run = tmp_path / "run"
    ckpt.save(run, np.int64(1), {"w": np.arange(3)})  # type: ignore[arg-type]
    ckpt.export_safetensors(run, tmp_path / "y")
    WITH_A_STEP[name](run, np.int64(2 if name in ("save", "import") else 1))
