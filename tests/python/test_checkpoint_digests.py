"""Goal: a step says what its tensors were when they were saved, and others can be compared with it.

Method: states of every kind of element and mesh, at every kind of target; bytes that change on
their way to the disk; the digests by their definition, in Python; saves that did not train.
"""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp

import ffrecord.checkpoint as ckpt
from cli import run
from ffrecord import _ffrecord
from ffrecord.checkpoint._pieces import Fetcher, memory_at
from ffrecord.errors import CorruptionError
from ffrecord.torch import CheckpointWriter
from going_back import Runs, every_kind
from thread_ranks import ThreadRank, ThreadRanks
from torn_steps import tear


def digests(run: Any, step: int) -> dict[str, int | None]:  # noqa: ANN401
    reader = _ffrecord.CheckpointReader(run, step, 30)
    return {key: digest for (key, *_), digest in zip(reader.tensors, reader.digests, strict=True)}


def digest_of(array: np.ndarray[Any, Any]) -> int:
    data = np.ascontiguousarray(array)
    return _ffrecord.tensor_digest(data.ctypes.data, data.nbytes, 0)


def state(value: int) -> dict[str, Any]:
    """Some contiguous, some not; larger than a block, and small ones that share one."""
    random = np.random.default_rng(value)
    return {
        "w": random.standard_normal((300, 700), np.float32),
        "strided": torch.from_numpy(random.standard_normal((90, 1000), np.float32)).T,
        "half": torch.from_numpy(random.standard_normal(5000)).to(torch.bfloat16),
        "few": random.integers(0, 9, 3),
        "scalar": np.float64(value),
        "none": np.zeros((0, 4)),
    }


def expected(value: int) -> dict[str, int]:
    made = state(value)
    made["strided"] = made["strided"].contiguous().numpy()
    made["half"] = made["half"].view(torch.int16).numpy()
    return {key: digest_of(np.asarray(each)) for key, each in made.items()}


@every_kind
@pytest.mark.parametrize("way", ["save", "async", "spilled", "incremental"])
def test_a_step_has_the_digest_of_each_tensor(runs: Runs, way: str) -> None:
    run = runs("run")
    for step in (1, 2):
        if way in ("async", "spilled"):
            room = 1 << 30 if way == "async" else 1000
            ckpt.async_save(run, step, state(step), stage_bytes_max=room).result()
        else:
            ckpt.save(run, step, state(step), incremental=way == "incremental")
        assert digests(run, step) == expected(step)
        assert ckpt.verify(run, step) == []
    ckpt.save(run, 3, {**state(2), "few": np.arange(3)}, incremental=way == "incremental")
    assert digests(run, 3) == {**expected(2), "few": digest_of(np.arange(3))}
    assert ckpt.verify(run, 3) == []


def test_digests_do_not_depend_on_the_slices(tmp_path: Path) -> None:
    whole = np.random.default_rng(1).standard_normal((60, 50)).astype(np.float32)
    ckpt.save(tmp_path / "whole", 1, {"w": whole})

    def rows(rank: ThreadRank) -> None:
        begin, end = 60 * rank.rank // 4, 60 * (rank.rank + 1) // 4
        shard = ckpt.Shard(whole[begin:end], (60, 50), (begin, 0))
        ckpt.save(tmp_path / "rows", 1, {"w": shard}, group=rank)

    def columns(rank: ThreadRank) -> None:
        begin, end = 50 * rank.rank // 3, 50 * (rank.rank + 1) // 3
        shard = ckpt.Shard(np.ascontiguousarray(whole[:, begin:end]), (60, 50), (0, begin))
        ckpt.save(tmp_path / "columns", 1, {"w": shard}, group=rank)

    for ranks, work in ((4, rows), (3, columns)):
        assert ThreadRanks(ranks).run(work) == [None] * ranks
    for name in ("rows", "columns"):
        assert digests(tmp_path / name, 1) == {"w": digest_of(whole)}
        assert ckpt.verify(tmp_path / name, 1, against=(tmp_path / "whole", 1)) == []
    other = whole.copy()
    other[17, 31] += 1
    ckpt.save(tmp_path / "whole", 2, {"w": other})
    found = ckpt.verify(tmp_path / "columns", 1, against=f"{tmp_path}/whole/step-000000002")
    assert found == [f"tensor w has other elements than in step 2 of {tmp_path}/whole"]


@every_kind
@pytest.mark.wrong_data
def test_verify_against_another_step(runs: Runs) -> None:
    run = runs("run")
    ckpt.save(run, 1, state(1))
    ckpt.save(run, 2, {**state(1), "few": np.arange(3), "more": np.zeros(2)})
    ckpt.save(run, 3, state(1))
    assert ckpt.verify(run, 3, against=1) == []
    assert ckpt.verify(run, 2, against=1) == [
        "tensor more is here, and not in step 1",
        "tensor few has other elements than in step 1",
    ]
    assert ckpt.verify(run, 1, against=2)[0] == "tensor more is in step 2, and not here"
    ckpt.save(run, 4, {**state(1), "few": np.arange(3).astype(np.int32)})
    assert ckpt.verify(run, 4, against=1) == ["tensor few is int32 [3] here, int64 [3] in step 1"]
    with pytest.raises(FileNotFoundError):
        ckpt.verify(run, 1, against=9)


@pytest.mark.wrong_data
@pytest.mark.parametrize("prefix", ["", "model"])
def test_verify_against_a_safetensors_file(tmp_path: Path, prefix: str) -> None:
    run, file = tmp_path / "run", tmp_path / "weights.safetensors"
    model = {"a": torch.randn(70, 30), "b": torch.randn(9), "h": torch.randn(8).bfloat16()}
    trained = {"model": model, "step": 5} if prefix else model
    ckpt.save(run, 1, trained)
    ckpt.export_safetensors(run, file, prefix=prefix)
    assert ckpt.verify(run, 1, against=file) == []
    model["b"][3] += 1
    ckpt.save(run, 2, trained)
    key = "model/b" if prefix else "b"
    (found,) = ckpt.verify(run, 2, against=file)
    assert found == "tensor b has other elements than in weights.safetensors", key
    with pytest.raises(ValueError, match="must be a step"):
        ckpt.verify(run, 1, against="nothing")
    with pytest.raises(FileNotFoundError):
        ckpt.verify(run, 1, against=tmp_path / "no.safetensors")


@pytest.mark.wrong_data
def test_a_file_of_one_of_two_models_is_compared_with_that(tmp_path: Path) -> None:
    run = tmp_path / "run"
    average, model = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)
    ckpt.save(run, 1, {"average": average, "model": model, "step": 1})
    for prefix in ("average", "model"):
        file = tmp_path / f"{prefix}.safetensors"
        ckpt.export_safetensors(run, file, prefix=prefix)
        assert ckpt.verify(run, 1, against=file) == []
    with torch.no_grad():
        model.bias[0] += 1
    ckpt.save(run, 2, {"average": average, "model": model, "step": 2})
    assert ckpt.verify(run, 2, against=file) == [
        "tensor bias has other elements than in model.safetensors"
    ]


@pytest.mark.wrong_data
def test_a_tensor_with_two_names_is_compared_by_both(tmp_path: Path) -> None:
    run, tensor = tmp_path / "run", torch.randn(9)
    ckpt.save(run, 1, {"a": tensor, "b": tensor})
    ckpt.save(run, 2, {"a": tensor, "b": tensor.clone()})
    ckpt.save(run, 3, {"b": tensor, "a": tensor})
    for step in (1, 2, 3):
        for other in (1, 2, 3):
            assert ckpt.verify(run, step, against=other) == []
    ckpt.save(run, 4, {"a": tensor, "b": tensor + 1})
    assert ckpt.verify(run, 1, against=4) == ["tensor b has other elements than in step 4"]
    assert ckpt.verify(run, 4, against=1) == ["tensor b has other elements than in step 1"]


@pytest.mark.wrong_data
def test_names_that_are_tied_otherwise_are_compared(tmp_path: Path) -> None:
    """The same tensors are stored, and one of the names is of another of them."""
    run, x, y = tmp_path / "run", torch.randn(9), torch.randn(9)
    ckpt.save(run, 1, {"a": x, "b": x, "c": y})
    ckpt.save(run, 2, {"c": y, "a": x, "b": y})
    assert ckpt.verify(run, 2, against=1) == ["tensor b has other elements than in step 1"]


@pytest.mark.wrong_data
def test_a_step_of_torchs_planner_is_compared_with_one_of_ours(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    state = {"model": model.state_dict(), "list": [torch.ones(2), torch.zeros(3)]}
    ckpt.save(tmp_path, 1, state)
    dcp.save(state, storage_writer=CheckpointWriter(tmp_path, step=2), no_dist=True)
    for step, other in ((1, 2), (2, 1)):
        assert ckpt.verify(tmp_path, step, against=other) == []
    with torch.no_grad():
        model[1].bias += 1
    ckpt.save(tmp_path, 3, state)
    assert ckpt.verify(tmp_path, 3, against=2) == [
        "tensor model.1.bias has other elements than in step 2"
    ]


@pytest.mark.wrong_data
def test_a_file_of_what_is_deep_in_a_state_is_compared_with_that(tmp_path: Path) -> None:
    run, file = tmp_path / "run", tmp_path / "inner.safetensors"
    inner, other = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)
    state = {"train": {"models": {"other": other, "inner": inner}}, "step": 1}
    ckpt.save(run, 1, state)
    ckpt.export_safetensors(run, file, prefix="train/models/inner")
    assert ckpt.verify(run, 1, against=file) == []
    with torch.no_grad():
        inner.bias[0] += 1
    ckpt.save(run, 2, state)
    assert ckpt.verify(run, 2, against=file) == [
        "tensor bias has other elements than in inner.safetensors"
    ]


def test_the_command_says_what_differs(tmp_path: Path) -> None:
    target = tmp_path / "run"
    for step, number in ((1, 0), (2, 1), (3, 1)):
        ckpt.save(target, step, {"w": np.full(3, number)})
    same = run("ffrecord", "checkpoint", "verify", target, "--step", "3", "--against", "2")
    assert same.returncode == 0, same.stderr
    other = run(
        "ffrecord",
        "checkpoint",
        "verify",
        target,
        "--against",
        f"{target}/step-000000001",
        "--json",
    )
    assert other.returncode == 3
    assert json.loads(other.stdout) == {"damage": ["tensor w has other elements than in step 1"]}


@pytest.fixture
def torn(tmp_path: Path) -> Path:
    """A run with a whole step, and a newer one that is whole by its checksums alone."""
    run_ = tmp_path / "run"
    for step in (0, 1):
        ckpt.save(run_, step, {"a": np.arange(4000), "w": np.zeros(3000)})
    tear(run_ / "step-000000001")
    return run_


@pytest.mark.wrong_data
def test_bytes_that_change_before_they_are_checksummed_are_told(torn: Path) -> None:
    (found,) = ckpt.verify(torn, 1)
    assert "tensor w at (0) of extent (3000) are not those that were saved" in found


@pytest.mark.wrong_data
def test_a_step_that_is_not_what_was_saved_is_not_whole(torn: Path, tmp_path: Path) -> None:
    """It counts for nothing, is copied nowhere, and saving it again replaces it."""
    assert ckpt.prune(torn, keep_last=1) == []
    with pytest.raises(CorruptionError, match="not those that were saved"):
        ckpt.copy(torn, tmp_path / "copy", 1)
    with pytest.raises(ckpt.FlushError, match="not those that were saved"):
        ckpt.stage(torn, tmp_path / "far").flush()
    assert not (tmp_path / "copy").exists()
    assert [commit.step for commit in ckpt.list(tmp_path / "far")] == [0]
    ckpt.save(torn, 1, {"a": np.arange(4000), "w": np.zeros(3000)})
    assert ckpt.verify(torn, 1) == []


@pytest.mark.wrong_data
@pytest.mark.parametrize("wrong", range(1, 7))
def test_an_incremental_save_shares_nothing_that_is_not_what_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: int
) -> None:
    """A bit changes in the pass that compares, or in the one that writes."""
    state = {"w": torch.randn(700, 900).T}  # Strided: it is fetched, piece by piece, in both.
    real, calls = Fetcher.__call__, 0

    def fetch(self: Fetcher, offset: int, address: int, size: int) -> None:
        nonlocal calls
        real(self, offset, address, size)
        calls += 1
        if calls == wrong:
            memory_at(address, size)[5] ^= 1

    with monkeypatch.context() as patch:
        patch.setattr(Fetcher, "__call__", fetch)
        ckpt.save(tmp_path, 1, state, incremental=True)
    assert calls >= wrong
    assert ckpt.verify(tmp_path, 1) != []
    ckpt.save(tmp_path, 2, state, incremental=True)
    assert ckpt.verify(tmp_path, 2) == []
    loaded: Any = ckpt.load(tmp_path, step=2)
    assert np.array_equal(loaded["w"], state["w"].numpy())


class Trained(torch.nn.Module):
    """Two layers that train, one that does not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 2)
        self.frozen = torch.nn.Linear(8, 8)
        self.frozen.requires_grad_(False)
        self.tied = self.second


def train(model: Trained, *layers: str) -> None:
    with torch.no_grad():
        for name in layers:
            for parameter in getattr(model, name).parameters():
                parameter += 1


@every_kind
@pytest.mark.parametrize("options", [{}, {"incremental": True}])
def test_a_tensor_that_trains_and_did_not_change_is_told(
    runs: Runs, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    run, model = runs("run"), Trained()
    trained = {"model": model, "step": 1}
    with caplog.at_level(logging.WARNING, "ffrecord.checkpoint"):
        ckpt.save(run, 1, trained, **options)
        train(model, "first", "second")
        ckpt.save(run, 2, trained, **options)
        assert caplog.messages == []
        train(model, "second")
        ckpt.save(run, 3, trained, **options)
        (message,) = caplog.messages
        assert "on rank 0, 2 of 4 tensors that train are bit-identical" in message
        assert "step 2: model/first.bias, model/first.weight" in message
        caplog.clear()
        ckpt.async_save(run, 4, trained, **options).result()
        assert "4 of 4" in caplog.messages[0]
        caplog.clear()
        ckpt.save(run, 4, trained, overwrite=True, **options)  # The same number again.
        ckpt.save(run, 5, trained, on_unchanged="off", **options)
        assert caplog.messages == []


@pytest.mark.wrong_data
def test_a_tensor_that_trains_is_told_under_its_first_name(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 3)
    trained = {"exported": {"w": model.weight.detach()}, "model": model}
    ckpt.save(tmp_path, 1, trained)
    with torch.no_grad():
        model.bias += 1
    with pytest.raises(ValueError, match=r"1 of 2 tensors that train .* exported/w"):
        ckpt.save(tmp_path, 2, trained, on_unchanged="raise")


@every_kind
@pytest.mark.wrong_data
def test_a_save_of_weights_that_did_not_train_can_fail(runs: Runs) -> None:
    run, model = runs("run"), Trained()
    ckpt.save(run, 1, {"model": model}, on_unchanged="raise")
    for saves in (ckpt.save, lambda *args, **rest: ckpt.async_save(*args, **rest).result()):
        with pytest.raises(ValueError, match=r"4 of 4 tensors that train .* step 1"):
            saves(run, 2, {"model": model}, on_unchanged="raise")
    assert [commit.step for commit in ckpt.list(run)] == [1]
    train(model, "first", "second")
    ckpt.save(run, 2, {"model": model}, on_unchanged="raise")
    with pytest.raises(ValueError, match="on_unchanged is 'loud'"):
        ckpt.save(run, 3, {"model": model}, on_unchanged="loud")  # type: ignore[arg-type]


@pytest.mark.wrong_data
@pytest.mark.parametrize("named", [True, False])
def test_torchs_planner_tells_of_tensors_that_did_not_train(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, named: bool
) -> None:
    """They are named, or require a gradient in the state that is saved."""
    model = Trained()
    names = [name for name, each in model.named_parameters() if each.requires_grad]
    options: dict[str, Any] = {"training": [f"model.{name}" for name in names]} if named else {}

    def save(step: int, **more: Any) -> None:  # noqa: ANN401
        state = model.state_dict() if named else dict(model.named_parameters())
        writer = CheckpointWriter(tmp_path, step=step, **options, **more)
        dcp.save({"model": state, "step": step}, storage_writer=writer, no_dist=True)

    with caplog.at_level(logging.WARNING, "ffrecord.checkpoint"):
        save(1)
        train(model, "first", "second")
        save(2)
        assert caplog.messages == []
        train(model, "second")
        save(3)
        (message,) = caplog.messages
        assert (
            "2 of 4 tensors that train are bit-identical to those of step 2: model.first."
            in message
        )
        caplog.clear()
        save(4, on_unchanged="off")
        assert caplog.messages == []
    with pytest.raises(dcp.api.CheckpointException, match="4 of 4 tensors that train"):
        save(5, on_unchanged="raise")
    assert [commit.step for commit in ckpt.list(tmp_path)] == [1, 2, 3, 4]
    with pytest.raises(ValueError, match="on_unchanged is 'loud'"):
        save(6, on_unchanged="loud")
