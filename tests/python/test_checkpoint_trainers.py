"""Goal: the trainers of others save and go on by our checkpoints.

Method: a tiny model trained to its end, and by halves with a new trainer for the second; both must
end with the same weights.
"""

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
    resumed = trained(CheckpointCallback(run, every_steps=100))

    assert resumed.state.global_step == 12
    for name, value in whole.model.state_dict().items():
        assert torch.allclose(resumed.model.state_dict()[name], value), name
