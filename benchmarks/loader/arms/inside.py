"""An epoch over our loader, alone and inside each framework, for the benchmark `frameworks`."""

import contextlib
import os
import pathlib
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import harness

BATCH = 256
THREADS = 2
# Ray reports to nobody, leaves no token in the home folder, and waits for slow workers.
RAY_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "600",
}


def rate(count: int, work: Callable[[], int]) -> Callable[[int], float]:
    """Records a second of `work`, which returns how many it saw."""

    def run(_: int) -> float:
        start = time.perf_counter()
        seen = work()
        if seen != count:
            raise AssertionError(f"{seen} records of {count}")
        return count / (time.perf_counter() - start)

    return run


@contextlib.contextmanager
def made_loader(path: pathlib.Path) -> Iterator[Any]:
    """Ours, with threads. Those of a loader that is kept would read on during other arms."""
    from ffrecord.torch import DataLoader, Dataset, Sampler

    dataset = Dataset(path)
    sampler = Sampler(dataset, BATCH)
    loader = DataLoader(dataset, batch_sampler=sampler, mode="threads", num_workers=THREADS)
    try:
        yield loader
    finally:
        loader.close()


def seen_in(batches: Any) -> int:  # noqa: ANN401
    """How many records there are; each batch is touched."""
    return sum(len(batch["x"]) for batch in batches if batch["x"].sum() >= 0)


def batches_in_memory(path: pathlib.Path) -> Any:  # noqa: ANN401
    """The same batches for a framework's Trainer, whose own cost counts on both sides."""
    import torch

    with made_loader(path) as loader:
        batches: Any = list(loader)
    return torch.utils.data.DataLoader(batches, batch_size=None)


def with_accelerate(path: pathlib.Path, count: int) -> list[harness.Arm]:
    """One loop over a loader, prepared or not."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)

    def loop(prepare: Callable[[Any], Any]) -> int:
        with made_loader(path) as loader:
            return seen_in(prepare(loader))

    return [
        harness.Arm("plain", "a loop over our loader", rate(count, lambda: loop(lambda it: it))),
        harness.Arm(
            "accelerate", "the same, prepared", rate(count, lambda: loop(accelerator.prepare))
        ),
    ]


def plain_loop(
    batches: Any,  # noqa: ANN401
    parameters: Any,  # noqa: ANN401
    step: Callable[[Any], Any],
) -> None:
    """Train by hand, with the `step` of a Trainer's model, which returns the loss."""
    import torch

    optimizer = torch.optim.SGD(parameters, 0.0)
    for batch in batches:
        optimizer.zero_grad()
        step(batch).backward()
        optimizer.step()


def trainer_arms(
    name: str,
    what: str,
    path: pathlib.Path,
    count: int,
    fit: Callable[[Any], int],
    alone: Callable[[Any], int],
) -> list[harness.Arm]:
    """`fit` over batches that lie in memory, and over our loader; and `alone` over our loader."""
    ready = batches_in_memory(path)

    def over_ours(train: Callable[[Any], int]) -> int:
        with made_loader(path) as loader:
            return train(loader)

    arms = {
        f"{name}_ready": (f"{what} over batches in memory", lambda: fit(ready)),
        f"{name}_plain": ("its steps in a plain loop over our loader", lambda: over_ours(alone)),
        name: (f"{what} over our loader", lambda: over_ours(fit)),
    }
    return [harness.Arm(arm, text, rate(count, work)) for arm, (text, work) in arms.items()]


def with_lightning(path: pathlib.Path, count: int) -> list[harness.Arm]:
    """One Trainer over our loader and over batches in memory; its steps in a plain loop."""
    import pytorch_lightning as lightning
    import torch

    class Model(lightning.LightningModule):  # type: ignore[misc, name-defined, unused-ignore]
        """Touches each batch, and takes a step."""

        def __init__(self) -> None:
            """A layer of one weight."""
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.seen = 0

        def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
            """One step."""
            self.seen += len(batch["x"])
            return self.layer(batch["x"].sum().float().reshape(1)).mean() * 0  # type: ignore[no-any-return]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            """Any will do."""
            return torch.optim.SGD(self.parameters(), 0.0)

    def fit(batches: Any) -> int:  # noqa: ANN401
        model = Model()
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        lightning.Trainer(max_epochs=1, accelerator="cpu", enable_model_summary=False, **quiet).fit(
            model, batches
        )
        return model.seen

    def alone(batches: Any) -> int:  # noqa: ANN401
        model = Model()
        plain_loop(batches, model.parameters(), lambda batch: model.training_step(batch, 0))
        return model.seen

    return trainer_arms("lightning", "Lightning", path, count, fit, alone)


def with_trainer(path: pathlib.Path, count: int) -> list[harness.Arm]:
    """Run Hugging Face's Trainer."""
    import torch
    import transformers

    class Model(torch.nn.Module):
        """Touches each batch."""

        def __init__(self) -> None:
            """A layer of one weight."""
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.seen = 0

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            """The loss of one step."""
            self.seen += len(x)
            return {"loss": self.layer(x.sum().float().reshape(1)).mean() * 0}

    def fit(batches: Any) -> int:  # noqa: ANN401
        class Trainer(transformers.Trainer):  # type: ignore[misc, unused-ignore]
            """Takes those batches."""

            def get_train_dataloader(self) -> Any:  # noqa: ANN401
                """As the tutorial does it."""
                return self.accelerator.prepare(batches)

        model = Model()
        with tempfile.TemporaryDirectory() as folder:
            arguments = transformers.TrainingArguments(
                output_dir=folder,
                num_train_epochs=1,
                learning_rate=0.0,
                use_cpu=True,
                report_to=[],
                disable_tqdm=True,
                save_strategy="no",
                logging_strategy="no",
            )
            Trainer(model, arguments, train_dataset=range(count)).train()
        return model.seen

    def alone(batches: Any) -> int:  # noqa: ANN401
        model = Model()
        plain_loop(batches, model.parameters(), lambda batch: model(**batch)["loss"])
        return model.seen

    return trainer_arms("trainer", "Hugging Face's Trainer", path, count, fit, alone)


def with_ray(path: pathlib.Path, count: int) -> list[harness.Arm]:
    """A loop over a loader in a worker of Ray Train, prepared or not, by its clock."""
    import ray
    import ray.train
    from ray.train.torch import TorchConfig, TorchTrainer, prepare_data_loader

    os.environ.update(RAY_SETTINGS)
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)

    def train(config: dict[str, Any]) -> None:
        def loop() -> int:
            with made_loader(path) as loader:
                return seen_in(prepare_data_loader(loader) if config["prepares"] else loader)

        # Ray keeps what is reported only with a checkpoint.
        pathlib.Path(config["rate"]).write_text(str(rate(count, loop)(0)))

    def run(prepares: bool) -> float:
        with tempfile.TemporaryDirectory() as folder:
            found = pathlib.Path(folder) / "rate"
            trainer = TorchTrainer(
                train,
                train_loop_config={"prepares": prepares, "rate": str(found)},
                scaling_config=ray.train.ScalingConfig(num_workers=1),
                torch_config=TorchConfig(backend="gloo"),
                run_config=ray.train.RunConfig(storage_path=folder),
            )
            trainer.fit()
            return float(found.read_text())

    return [
        harness.Arm("ray_plain", "a loop in a worker of Ray Train", lambda _: run(False)),
        harness.Arm("ray", "the same, prepared", lambda _: run(True)),
    ]
