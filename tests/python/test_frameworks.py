"""Goal: what others put around a loader finds its place again: torchdata, Lightning, accelerate.

Method: an epoch is broken off and resumed by the means of each; it is skipped where it is missing.
"""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import data

import ffrecord
from ffrecord.torch import DataLoader, Dataset, Sampler, collate

ENGINES: list[dict[str, Any]] = [{}, {"num_workers": 2}, {"mode": "threads", "num_workers": 2}]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    path = tmp_path_factory.mktemp("frameworks") / "data.ffr"
    with ffrecord.Writer(path, {"label": "i64"}) as writer:
        for i in range(120):
            writer.write({"label": i})
    return Dataset(path)


def labels(batches: Any) -> list[list[int]]:  # noqa: ANN401 - any loader
    return [batch["label"].tolist() for batch in batches]


def expected(dataset: Dataset) -> list[list[int]]:
    return [list(batch) for batch in Sampler(dataset, 20)]


@pytest.mark.parametrize("workers", [0, 2])
def test_torchdatas_stateful_loader_resumes_our_sampler(dataset: Dataset, workers: int) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

    def loader() -> data.DataLoader[Any]:
        made: data.DataLoader[Any] = stateful(
            dataset,
            batch_sampler=Sampler(dataset, 20),
            collate_fn=collate,
            num_workers=workers,
        )
        return made

    first = loader()
    seen = labels(itertools.islice(first, 2))
    resumed: Any = loader()
    resumed.load_state_dict(first.state_dict())  # type: ignore[attr-defined]

    assert seen + labels(resumed) == expected(dataset)


@pytest.mark.parametrize("options", ENGINES, ids=["inline", "workers", "threads"])
def test_lightning_saves_and_restores_our_loader(
    dataset: Dataset, options: dict[str, Any], tmp_path: Path
) -> None:
    lightning = pytest.importorskip("pytorch_lightning")

    class Model(lightning.LightningModule):  # type: ignore[misc, name-defined]
        """Notes what it is given, and fails at a step."""

        def __init__(self, fail_at: int) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.seen: list[list[int]] = []
            self.fail_at = fail_at

        def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
            """One step."""
            if len(self.seen) == self.fail_at:
                raise KeyError("power cut")
            self.seen.append(batch["label"].tolist())
            return self.layer(batch["label"].float()[:, None]).mean()  # type: ignore[no-any-return]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            """Any will do."""
            return torch.optim.SGD(self.parameters(), 0.0)

    def fit(model: Any, **more: Any) -> None:  # noqa: ANN401 - Lightning's own
        saver = lightning.callbacks.ModelCheckpoint(tmp_path, every_n_train_steps=2, save_top_k=-1)
        trainer = lightning.Trainer(
            max_epochs=1,
            accelerator="cpu",
            logger=False,
            callbacks=[saver],
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        loader = DataLoader(dataset, batch_sampler=Sampler(dataset, 20), **options)
        trainer.fit(model, loader, **more)

    first, second = Model(fail_at=3), Model(fail_at=99)
    with pytest.raises(KeyError, match="power cut"):
        fit(first)
    fit(second, ckpt_path=str(tmp_path / "epoch=0-step=2.ckpt"))

    assert first.seen[:2] + second.seen == expected(dataset)


@pytest.mark.parametrize("stateful", [False, True])
def test_accelerate_prepares_and_resumes_our_loader(dataset: Dataset, stateful: bool) -> None:
    accelerate = pytest.importorskip("accelerate")
    if stateful:
        pytest.importorskip("torchdata")
    configuration = accelerate.utils.DataLoaderConfiguration(use_stateful_dataloader=stateful)
    accelerator = accelerate.Accelerator(cpu=True, dataloader_config=configuration)

    def loader() -> Any:  # noqa: ANN401 - accelerate's own
        return accelerator.prepare(DataLoader(dataset, batch_sampler=Sampler(dataset, 20)))

    if stateful:
        first, resumed = loader(), loader()
        seen = labels(itertools.islice(first, 3))
        resumed.load_state_dict(first.state_dict())
    else:  # What Hugging Face's Trainer does.
        resumed = accelerate.skip_first_batches(loader(), 3)
        seen = expected(dataset)[:3]

    assert seen + labels(resumed) == expected(dataset)


@pytest.mark.parametrize("options", ENGINES, ids=["inline", "workers", "threads"])
def test_hugging_faces_trainer_goes_on_from_its_checkpoint(
    dataset: Dataset, options: dict[str, Any], tmp_path: Path
) -> None:
    pytest.importorskip("accelerate")
    transformers = pytest.importorskip("transformers")

    class Model(torch.nn.Module):
        """Notes what it is given, and fails at a step."""

        def __init__(self, fail_at: int) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.seen: list[list[int]] = []
            self.fail_at = fail_at

        def forward(self, label: torch.Tensor) -> dict[str, torch.Tensor]:
            """One step."""
            if len(self.seen) == self.fail_at:
                raise KeyError("power cut")
            self.seen.append(label.tolist())
            return {"loss": self.layer(label.float()[:, None]).mean()}

    class Trainer(transformers.Trainer):  # type: ignore[misc, name-defined]
        """With a loader of ours, as its documentation says."""

        def get_train_dataloader(self) -> Any:  # noqa: ANN401 - accelerate's own
            """Ours, prepared."""
            loader = DataLoader(dataset, batch_sampler=Sampler(dataset, 20), **options)
            return self.accelerator.prepare(loader)

    def train(model: Model, **more: Any) -> None:  # noqa: ANN401 - the trainer's own
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path),
            num_train_epochs=1,
            save_steps=2,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            remove_unused_columns=False,
        )
        Trainer(model=model, args=arguments, train_dataset=dataset).train(**more)

    first, second = Model(fail_at=3), Model(fail_at=99)
    with pytest.raises(KeyError, match="power cut"):
        train(first)
    train(second, resume_from_checkpoint=str(tmp_path / "checkpoint-2"))

    assert first.seen[:2] + second.seen == expected(dataset)
