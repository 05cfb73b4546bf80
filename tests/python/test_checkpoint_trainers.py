"""Goal: the trainers of others save and go on by our checkpoints.

Method: a tiny model trained to its end, and by halves with a new trainer for the second; both must
end with the same weights.
"""

import dataclasses
import enum
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import ffrecord.checkpoint as ckpt  # noqa: E402 (after the skip)


def samples(count: int = 8) -> list[Any]:
    return list(torch.randn(count, 4, generator=torch.Generator().manual_seed(3)))


@pytest.mark.parametrize("background", [False, True])
def test_lightning_goes_on_from_a_checkpoint(tmp_path: Path, background: bool) -> None:
    lightning = pytest.importorskip("lightning", reason="Lightning is not installed")
    from ffrecord.torch.lightning import CheckpointIO

    class Model(lightning.LightningModule):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: Any, index: int) -> Any:  # noqa: ANN401
            return self.layer(batch).square().mean()

        def configure_optimizers(self) -> Any:  # noqa: ANN401
            return torch.optim.AdamW(self.parameters(), lr=0.1)

    def trained(epochs: int, path: Path | None = None) -> tuple[Any, Any]:
        model = Model()
        trainer = lightning.Trainer(
            max_epochs=epochs, accelerator="cpu", logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False,
            plugins=[CheckpointIO(background=background)], default_root_dir=tmp_path,
        )  # fmt: skip
        data = torch.utils.data.DataLoader(samples(), batch_size=2)
        trainer.fit(model, data, ckpt_path=None if path is None else str(path))
        return trainer, model

    whole = trained(4)[1]
    half, _ = trained(2)
    path = tmp_path / "half.ckpt"
    half.save_checkpoint(path)
    half.save_checkpoint(path)  # The same name again.
    half.strategy.checkpoint_io.teardown()
    assert len(ckpt.list(path)) == 1
    resumed, model = trained(4, path)

    assert resumed.global_step == 16
    for name, value in whole.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name
    half.strategy.checkpoint_io.remove_checkpoint(path)
    assert not path.exists()


@pytest.fixture
def checkpoint_io(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The class, for its own calls: Lightning need not be installed for them."""
    stub = types.ModuleType("lightning.fabric.plugins")
    stub.CheckpointIO = object  # type: ignore[attr-defined]
    for name in ("lightning", "lightning.fabric"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, stub.__name__, stub)
    monkeypatch.delitem(sys.modules, "ffrecord.torch.lightning", raising=False)
    from ffrecord.torch.lightning import CheckpointIO

    yield CheckpointIO
    monkeypatch.delitem(sys.modules, "ffrecord.torch.lightning")


def test_lightning_removes_only_what_it_saved(tmp_path: Path, checkpoint_io: Any) -> None:  # noqa: ANN401
    ckpt.save(tmp_path, 7, {"w": torch.ones(3)})
    for number in range(3):
        checkpoint_io().save_checkpoint({"number": number}, tmp_path)
    assert [commit.step for commit in ckpt.list(tmp_path)] == [7, 10]
    assert checkpoint_io().load_checkpoint(tmp_path) == {"number": 2}
    checkpoint_io().remove_checkpoint(tmp_path)
    assert [commit.step for commit in ckpt.list(tmp_path)] == [7]


def test_lightning_keeps_no_value_that_it_would_get_back_as_another(
    tmp_path: Path,
    checkpoint_io: Any,  # noqa: ANN401
) -> None:
    kept = {"state": {"set": {1, "a"}, "number": 1j, "kinds": [torch.int8, torch.device("cpu")]}}
    checkpoint_io().save_checkpoint(kept, tmp_path)
    assert checkpoint_io().load_checkpoint(tmp_path) == kept
    for odd in (Background.YES, {Background.YES}, types.SimpleNamespace()):
        with pytest.raises(TypeError, match=r"state: state/deep/#1 .*would need pickling"):
            checkpoint_io().save_checkpoint({"state": {"deep": [1, odd]}}, tmp_path)


class Background(enum.Enum):
    """A value of a program."""

    YES = 1


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize("file", ["root.manifest", "part-00000.manifest", "part-00000/seg-0000"])
@pytest.mark.parametrize("how", ["flipped", "gone"])
def test_lightning_leaves_no_damaged_step_behind(
    tmp_path: Path,
    checkpoint_io: Any,  # noqa: ANN401
    background: bool,
    others: bool,
    file: str,
    how: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = tmp_path / "epoch=1.ckpt"
    checkpoints = checkpoint_io(background=background)
    if others:
        ckpt.save(path, 7, {"w": torch.ones(3)})

    def save_and_damage(value: int) -> None:
        checkpoints.save_checkpoint({"w": torch.full((100,), value)}, path)
        checkpoints.teardown()
        damaged = sorted(path.glob(f"step-*/{file}"))[-1]
        content = bytearray(damaged.read_bytes())
        content[70] ^= 1
        damaged.unlink() if how == "gone" else damaged.write_bytes(content)

    save_and_damage(1)
    save_and_damage(2)
    is_told = "beside checkpoints of others" in caplog.text
    checkpoints.remove_checkpoint(path)
    if not others:
        assert not path.exists() and not is_told
    else:  # It does not say whose it is, unless only its tensors are damaged.
        reads = file.endswith("seg-0000") and how == "flipped"
        assert [commit.step for commit in ckpt.list(path)] == ([7] if reads else [7, 8, 9])
        assert is_told != reads
        assert ckpt.verify(path, 7) == []


def test_hugging_face_goes_on_with_the_very_next_sample_or_says_why_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The calls that a Trainer makes; it need not be installed for them.
    try:
        import transformers  # noqa: F401
    except ImportError:
        stub = types.ModuleType("transformers")
        stub.TrainerCallback = object  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "transformers", stub)
        monkeypatch.delitem(sys.modules, "ffrecord.torch.huggingface", raising=False)
    from ffrecord.torch import DataLoader, Sampler
    from ffrecord.torch.huggingface import CheckpointCallback

    @dataclasses.dataclass
    class State:
        global_step: int = 0
        max_steps: int = 100
        num_train_epochs: int = 10
        epoch: float = 0.0
        is_world_process_zero: bool = True
        num_input_tokens_seen: int = 0

    def loader() -> Any:  # noqa: ANN401
        sampler = Sampler(range(40), 4, seed=1, rank=0, world_size=1)
        return DataLoader(torch.arange(40), batch_sampler=sampler)

    def trained(batches: Any, steps: int, run: str = "a", **options: Any) -> list[list[int]]:  # noqa: ANN401
        callback, state = CheckpointCallback(tmp_path / run, every_steps=1, **options), State()
        args = types.SimpleNamespace(
            gradient_accumulation_steps=1, max_steps=100, load_best_model_at_end=False
        )
        callback.on_train_begin(
            args, state, None, model=torch.nn.Linear(1, 1), train_dataloader=batches
        )
        seen = []
        for batch in batches:
            seen.append(batch.tolist())
            state.global_step += 1
            state.epoch = len(seen) / len(batches)
            callback.on_step_end(args, state, None)
            if state.global_step == steps:
                break
        callback.on_train_end(args, state, None)
        assert state.epoch == state.global_step / len(batches)
        return seen

    whole = [batch.tolist() for batch in loader()]
    assert trained(loader(), 3) + trained(loader(), 7) == whole[:7]

    trained([torch.arange(4)], 8, "b")
    with pytest.raises(ValueError, match=r"get_train_dataloader .* data_anew=True"):
        trained([torch.arange(4)], 8, "b")
    assert trained([torch.arange(4)], 8, "b", data_anew=True) == [[0, 1, 2, 3]]


@pytest.mark.parametrize("kind", ["sampler", "torch's order", "batches out of order"])
def test_a_loader_tells_how_many_batches_are_left(kind: str) -> None:
    from ffrecord.torch import DataLoader, Sampler
    from ffrecord.torch._loader_order import batches_left

    def loader() -> Any:  # noqa: ANN401
        if kind == "torch's order":
            return DataLoader(torch.arange(26), 4)
        sampler = Sampler(26, 4, seed=1, last="short", rank=0, world_size=1)
        return DataLoader(torch.arange(26), batch_sampler=sampler)

    for cut in range(8):  # The last one at the end of the epoch.
        first, resumed = loader(), loader()
        batches = iter(first)
        for _ in range(cut):
            next(batches)
        state = first.state_dict()
        if kind == "batches out of order" and cut < 5:
            state["ahead"] = {"step": 4, "positions": [4 * cut + 8]}
        resumed.load_state_dict(state)

        told = batches_left(resumed)

        assert told == len(list(resumed)), cut
        assert batches_left(resumed) == 7  # Of the next epoch.


def test_hugging_face_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    from ffrecord.torch.huggingface import CheckpointCallback

    class Model(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.layer = torch.nn.Linear(4, 1)

        def forward(self, x: Any) -> dict[str, Any]:  # noqa: ANN401
            return {"loss": self.layer(x).square().mean()}

    class Interrupt(transformers.TrainerCallback):  # type: ignore[misc, name-defined, unused-ignore]
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ANN401
            control.should_training_stop = state.global_step >= 6

    def trained(*callbacks: Any) -> Any:  # noqa: ANN401
        model = Model()
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path / "out"), max_steps=12, per_device_train_batch_size=8,
            save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True, learning_rate=0.1,
        )  # fmt: skip
        trainer = transformers.Trainer(
            model=model,
            args=arguments,
            train_dataset=[{"x": x} for x in samples()],
            callbacks=list(callbacks),
        )
        trainer.train()
        return trainer

    whole = trained()
    run = tmp_path / "run"
    trained(CheckpointCallback(run, every_steps=2, keep_last=2), Interrupt())
    assert [commit.step for commit in ckpt.list(run)] == [4, 6]
    resumed = trained(CheckpointCallback(run, every_steps=100, data_anew=True))

    assert resumed.state.global_step == 12
    for name, value in whole.model.state_dict().items():
        assert torch.allclose(resumed.model.state_dict()[name], value), name
