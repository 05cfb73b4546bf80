"""Goal: what others put around a loader finds its place again, and gives each rank its share.

Method: an epoch is broken off and resumed by the means of each; two ranks go through one. A
framework that is not installed is skipped; tests/python/test_resharding.py has stand-ins for it.
"""

import itertools
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils import data
from tutorial import framework

import ffrecord
from ffrecord.torch import DataLoader, Dataset, Sampler, collate
from ranks import Body, run_ranks

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
    stateful = framework("torchdata.stateful_dataloader").StatefulDataLoader

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
    lightning = framework("pytorch_lightning")

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
    accelerate = framework("accelerate")
    if stateful:
        framework("torchdata")
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


@pytest.mark.wrong_data
def test_accelerate_may_not_skip_what_a_restored_loader_has_skipped(dataset: Dataset) -> None:
    """The guide of accelerate skips after `load_state`, which has restored our loader."""
    accelerate = framework("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)

    def loader() -> Any:  # noqa: ANN401 - accelerate's own
        return accelerator.prepare(DataLoader(dataset, batch_sampler=Sampler(dataset, 20)))

    first, resumed = loader(), loader()
    seen = labels(itertools.islice(first, 3))
    resumed.load_state_dict(first.state_dict())
    with pytest.raises(RuntimeError, match=r"leaves out 3 batches.*behind 3 of its epoch"):
        labels(accelerate.skip_first_batches(resumed, 3))

    assert seen + labels(resumed) == expected(dataset)


@pytest.mark.parametrize("options", ENGINES, ids=["inline", "workers", "threads"])
def test_hugging_faces_trainer_goes_on_from_its_checkpoint(
    dataset: Dataset, options: dict[str, Any], tmp_path: Path
) -> None:
    framework("accelerate")
    transformers = framework("transformers")

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


def as_torchrun(rank: int, world: int) -> None:
    """What frameworks look for in the environment."""
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    os.environ.update({name: str(value) for name, value in names.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="1", TORCHELASTIC_RUN_ID="test")


def own_loader(path: str) -> DataLoader:
    dataset = Dataset(path)
    return DataLoader(dataset, batch_sampler=Sampler(dataset, 20))


class Noting(torch.nn.Module):
    """A model that notes what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen: list[list[int]] = []

    def forward(self, label: torch.Tensor) -> dict[str, torch.Tensor]:
        """One step."""
        self.seen.append(label.tolist())
        return {"loss": self.layer(label.float()[:, None]).mean()}


def with_accelerate(rank: int, world: int, path: str) -> list[list[int]]:
    import accelerate

    as_torchrun(rank, world)
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=4)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    loader, model, optimizer = accelerator.prepare(own_loader(path), model, optimizer)
    assert accelerator.num_processes == world
    seen, stepped = [], []
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch["label"].float()[:, None]).mean())
            stepped.append(accelerator.sync_gradients)
        seen.append(batch["label"].tolist())
        if len(seen) == 3:
            accelerator.save_state(f"{path}.state")
    # accelerate steps at an epoch's end, whatever is left, and knows where that is.
    assert stepped == [False, False, False, True, False, True]
    resumed = accelerator.prepare(own_loader(path))
    accelerator._dataloaders = [resumed]
    accelerator.load_state(f"{path}.state")
    assert labels(resumed) == seen[3:]
    return seen


def with_trainer(rank: int, world: int, path: str) -> list[list[int]]:
    import transformers

    class Trainer(transformers.Trainer):  # type: ignore[misc, name-defined]
        """With a loader of ours, as its documentation says."""

        def get_train_dataloader(self) -> Any:  # noqa: ANN401 - accelerate's own
            """Ours, prepared."""
            return self.accelerator.prepare(own_loader(path))

    as_torchrun(rank, world)
    model = Noting()
    arguments = transformers.TrainingArguments(
        output_dir=f"{path}.trainer",
        num_train_epochs=1,
        save_strategy="no",
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    Trainer(model=model, args=arguments, train_dataset=Dataset(path)).train()
    return model.seen


def with_lightning(rank: int, world: int, path: str) -> list[list[int]]:
    import pytorch_lightning as lightning

    class Model(lightning.LightningModule):  # type: ignore[misc, name-defined]
        """Notes what it is given."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = Noting()

        def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
            """One step."""
            return self.inner(batch["label"])["loss"]  # type: ignore[no-any-return]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            """Any will do."""
            return torch.optim.SGD(self.parameters(), 0.0)

    as_torchrun(rank, world)
    model = Model()
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=world,
        strategy="ddp",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, own_loader(path))
    return model.inner.seen


def with_fabric(rank: int, world: int, path: str) -> list[list[int]]:
    import lightning_fabric

    as_torchrun(rank, world)
    fabric = lightning_fabric.Fabric(accelerator="cpu", devices=world, strategy="ddp")
    fabric.launch()
    return labels(fabric.setup_dataloaders(own_loader(path)))


def with_ray(rank: int, world: int, path: str) -> list[list[int]]:
    """Without a cluster: what Ray makes of a loader needs of it rank and world size only."""
    from ray.train.torch import train_loop_utils

    train_loop_utils.session = SimpleNamespace(
        get_world_size=lambda: world, get_world_rank=lambda: rank
    )
    train_loop_utils.get_device = lambda: torch.device("cpu")
    accelerator = train_loop_utils._TorchAccelerator()
    loader = own_loader(path)
    wrapped = accelerator.prepare_data_loader(loader)
    wrapped.sampler.set_epoch(0)  # As its documentation says.
    assert type(wrapped) is not DataLoader
    seen = labels(itertools.islice(wrapped, 2))
    resumed = own_loader(path)
    resumed.load_state_dict(loader.state_dict())
    return seen + labels(accelerator.prepare_data_loader(resumed))


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("accelerate", with_accelerate),
        ("transformers", with_trainer),
        ("pytorch_lightning", with_lightning),
        ("lightning_fabric", with_fabric),
        ("ray.train.torch", with_ray),
    ],
)
def test_two_ranks_see_each_record_of_an_epoch_once(
    dataset: Dataset, name: str, body: Body
) -> None:
    framework(name)

    by_rank = run_ranks(body, 2, str(dataset.fnames))

    assert [a + b for a, b in zip(*by_rank, strict=True)] == expected(dataset)


def with_torchs_loader(rank: int, world: int, path: str) -> str:
    import accelerate

    as_torchrun(rank, world)
    dataset = Dataset(path)
    theirs: data.DataLoader[Any] = data.DataLoader(
        dataset, batch_sampler=Sampler(dataset, 20), collate_fn=collate
    )
    try:
        next(iter(accelerate.Accelerator(cpu=True).prepare(theirs)))
    except RuntimeError as error:
        return str(error)
    return "nothing was said"


def test_accelerate_with_a_loader_of_torchs_is_told_what_to_write(dataset: Dataset) -> None:
    framework("accelerate")

    for words in run_ranks(with_torchs_loader, 2, str(dataset.fnames)):
        assert "Use loader = ffrecord.torch.DataLoader(" in words
