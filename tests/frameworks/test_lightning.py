"""Goal: with Lightning and Fabric, ranks see each record once an epoch, and resume at any size.

Method: the tutorial's own scripts, on real ranks; and what users forget.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DistributedSampler, WeightedRandomSampler
from tutorial import (
    RECORDS,
    Run,
    check_exact,
    framework,
    read_printed,
    replace_in,
    run,
    write_script,
)

import ffrecord
from ffrecord.torch import DataLoader, Dataset, Sampler

lightning = framework("pytorch_lightning")
PRELOAD = ("pytorch_lightning",)


@pytest.mark.parametrize(("stop", "saved", "worlds"), [(9, 7, (2, 1)), (15, 14, (3,))])
def test_a_trainer_stopped_in_an_epoch_goes_on_at_the_next_record(
    stop: int, saved: int, worlds: tuple[int, ...], tmp_path: Path
) -> None:
    script = write_script("lightning.md", "train.py", tmp_path)
    before = run(script, 2, str(stop)).steps()
    assert len(before) == stop

    replace_in(script, "step=7", f"step={saved}")
    for world in worlds:
        check_exact(before[:saved] + run(script, world, "0", "resume").steps())


def test_a_trainer_with_our_checkpoints_goes_on_at_the_next_record(tmp_path: Path) -> None:
    script = write_script("lightning.md", "train.py", tmp_path)
    ours = "from ffrecord.torch.lightning import CheckpointIO"
    replace_in(script, "from ffrecord.torch import", f"{ours}\nfrom ffrecord.torch import")
    replace_in(script, "logger=False,", "logger=False, plugins=[CheckpointIO()],")
    before = run(script, 2, "9").steps()
    assert (tmp_path / "saved" / "step=7.ckpt").is_dir()

    for world in (1, 3):
        check_exact(before[:7] + run(script, world, "0", "resume").steps())


@pytest.mark.parametrize(("stop", "world"), [(7, 2), (13, 3)])
def test_fabric_goes_on_from_the_state_of_the_loader(stop: int, world: int, tmp_path: Path) -> None:
    script = write_script("lightning.md", "fabric.py", tmp_path)
    before = run(script, 2, str(stop)).steps()
    assert len(before) == stop

    check_exact(before + run(script, world, "0", "resume").steps())


def test_a_loader_without_our_sampler_goes_on_at_the_next_record_of_each_rank(
    tmp_path: Path,
) -> None:
    script = write_script("lightning.md", "train.py", tmp_path)
    plain = "batch_size=6, shuffle=True)"
    replace_in(script, 'batch_sampler=Sampler(dataset, 12, seed=1, last="short"))', plain)
    before = run(script, 2, "9").steps()
    after = run(script, 2, "0", "resume").steps()

    expected = []
    for epoch in range(2):
        shares = [DistributedSampler(range(RECORDS), 2, rank) for rank in range(2)]  # type: ignore[arg-type, var-annotated]
        for share in shares:
            share.set_epoch(epoch)
        ranks = [list(BatchSampler(share, 6, drop_last=False)) for share in shares]
        expected += [(epoch, one + other) for one, other in zip(*ranks, strict=True)]
    assert before[:7] + after == expected


@pytest.mark.parametrize(
    "sampler",
    [
        f"WeightedRandomSampler([1.0 + i % 5 for i in range({RECORDS})], {RECORDS})",
        f"SubsetRandomSampler(range({RECORDS}))",
    ],
)
@pytest.mark.parametrize("world", [1, 2])
def test_what_torchs_samplers_draw_goes_on_where_it_was_saved(
    world: int, sampler: str, tmp_path: Path
) -> None:
    script = write_script("lightning.md", "train.py", tmp_path)
    plain = f"batch_size=6, sampler=torch.utils.data.{sampler})"
    replace_in(script, 'batch_sampler=Sampler(dataset, 12, seed=1, last="short"))', plain)
    # Of the default generator, which Lightning does not save: the state of the loader has it.
    replace_in(script, "dataset = Dataset", "torch.manual_seed(5)\ndataset = Dataset")
    whole = run(script, world, "9").steps()
    replace_in(script, "torch.manual_seed(5)", "torch.manual_seed(6)")
    rest = run(script, world, "0", "resume").by_rank

    assert len(whole) == 9
    assert [steps[:2] for steps in rest] == [
        [(epoch, labels[6 * rank : 6 * rank + 6]) for epoch, labels in whole[7:]]
        for rank in range(world)
    ]
    if sampler.startswith("Subset"):
        assert {len(steps) for steps in rest} == {2 * -(-RECORDS // (6 * world)) - 7}
        steps = [*whole[:7], *Run(rest).steps()]
        seen = [label for epoch, labels in steps for label in labels if epoch == 0]
        assert len(seen) == world * -(-RECORDS // world)
        assert set(seen) == set(range(RECORDS))


def test_a_loader_without_a_state_is_refused_before_the_first_step(tmp_path: Path) -> None:
    script = write_script("lightning.md", "train.py", tmp_path)
    plain = "batch_size=6, sampler=list(range(60)))"
    replace_in(script, 'batch_sampler=Sampler(dataset, 12, seed=1, last="short"))', plain)

    with pytest.raises(Exception, match=r"checkpoints have the state.*list in a") as raised:
        run(script, 1, "0")
    assert "During handling" not in str(raised.value)
    assert read_printed(tmp_path, 1) == [[]]
    saver = "    callbacks=[saver],\n"
    replace_in(script, saver, "    enable_checkpointing=False,\n")
    assert len(run(script, 1, "0").steps()) == 20


def test_a_loader_that_a_training_step_iterates_needs_no_state(tmp_path: Path) -> None:
    script = write_script("lightning.md", "train.py", tmp_path)
    step = "    def training_step(self, batch, batch_index):\n"
    inner = "        assert len(list(DataLoader(dataset, 6, sampler=list(range(12))))) == 2\n"
    replace_in(script, step, step + inner)

    check_exact(run(script, 1, "0").steps())


def test_torchs_loader_with_our_sampler_is_told_what_to_write(tmp_path: Path) -> None:
    script = write_script("lightning.md", "train.py", tmp_path)
    replace_in(script, "import DataLoader, Dataset, Sampler", "import Dataset, Sampler, collate")
    replace_in(script, "loader = DataLoader(", "loader = torch.utils.data.DataLoader(")
    replace_in(script, 'last="short")', 'last="short"), collate_fn=collate')

    with pytest.raises(Exception, match="use_distributed_sampler=False"):
        run(script, 2, "0")


@pytest.mark.wrong_data
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("steps", [8, 5])
@pytest.mark.parametrize("order", ["sampler", "shuffle", "weighted", "in order"])
def test_a_checkpoint_of_an_epochs_end_goes_on_with_the_next_epochs_order(
    workers: int, persistent: bool, steps: int, order: str, tmp_path: Path
) -> None:
    """ModelCheckpoint's default; Lightning begins to iterate before it names the epoch.

    With `limit_train_batches`, Lightning leaves each epoch of the loader early. It does not load
    the states of loaders there, and before 2.5 begins an iteration that it never asks for a batch.
    A transform draws, so as to see the epochs.
    """
    if persistent and not workers:
        pytest.skip("there are no workers to persist")
    with ffrecord.Writer(tmp_path / "data.ffr", {"label": "i64"}) as writer:
        for label in range(64):
            writer.write({"label": label})

    class Model(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.seen: list[tuple[int, list[list[int]]]] = []

        def training_step(self, batch: Any, _: int) -> torch.Tensor:  # noqa: ANN401
            self.seen.append((self.current_epoch, batch.tolist()))
            loss: torch.Tensor = self.layer(batch[:, :1].float()).mean()
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 1e-6)

    def drawn(sample: dict[str, Any], chance: np.random.Generator) -> Any:  # noqa: ANN401
        return np.array([sample["label"], chance.integers(1000)])

    def train(checkpoint: Path | None, **options: Any) -> list[tuple[int, list[list[int]]]]:  # noqa: ANN401
        dataset = Dataset(tmp_path / "data.ffr", transform=drawn)
        generator = torch.Generator().manual_seed(3)
        weights = torch.arange(64) + 1.0
        orders: dict[str, dict[str, Any]] = {
            "sampler": {"batch_sampler": Sampler(dataset, 8, seed=1)},
            "shuffle": {"batch_size": 8, "shuffle": True, "generator": generator},
            "weighted": {
                "batch_size": 8,
                "sampler": WeightedRandomSampler(weights, 64, generator=generator),
            },
            "in order": {"batch_size": 8},
        }
        loader = DataLoader(
            dataset, num_workers=workers, persistent_workers=persistent, **orders[order]
        )
        model = Model()
        trainer = lightning.Trainer(
            accelerator="cpu",
            max_epochs=3,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
            limit_train_batches=steps,
            **options,
        )
        trainer.fit(model, loader, ckpt_path=checkpoint)
        return model.seen

    every = lightning.callbacks.ModelCheckpoint(
        dirpath=tmp_path / "saved", filename="{epoch}", save_top_k=-1
    )
    whole = train(None, callbacks=[every])
    for done in (1, 2):
        rest = train(tmp_path / "saved" / f"epoch={done - 1}.ckpt")
        expected = whole[steps * done :]
        if order == "shuffle" and persistent and steps == 8:
            # Lightning begins an epoch before it ends the last one: workers are made anew, and draw
            # a seed of which the state does not know.
            rest, expected = ([(e, len(seen)) for e, seen in run] for run in (rest, expected))  # type: ignore[misc]
        assert rest == expected


@pytest.mark.wrong_data
@pytest.mark.parametrize("order", ["sampler", "shuffle", "in order"])
@pytest.mark.parametrize("mode", ["max_size", "max_size_cycle", "min_size"])
def test_two_loaders_go_on_together_from_any_step(mode: str, order: str, tmp_path: Path) -> None:
    """With "max_size", the shorter one may be over: None comes until the end of the epoch."""
    sizes = {"long": 40, "short": 24}
    for name, count in sizes.items():
        with ffrecord.Writer(tmp_path / f"{name}.ffr", {"label": "i64"}) as writer:
            for label in range(count):
                writer.write({"label": label})

    class Model(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.seen: list[tuple[int, list[list[int] | None]]] = []

        def training_step(self, batch: Any, _: int) -> torch.Tensor:  # noqa: ANN401
            each = [one and one["label"].tolist() for one in batch.values()]
            self.seen.append((self.current_epoch, each))
            loss: torch.Tensor = self.layer(torch.ones(1, 1)).mean()
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 1e-6)

    def train(checkpoint: Path | None, **options: Any) -> list[Any]:  # noqa: ANN401
        loaders = {}
        for name in sizes:
            dataset = Dataset(tmp_path / f"{name}.ffr")
            orders: dict[str, dict[str, Any]] = {
                "sampler": {"batch_sampler": Sampler(dataset, 8, seed=1)},
                "shuffle": {
                    "batch_size": 8,
                    "shuffle": True,
                    "generator": torch.Generator().manual_seed(3),
                },
                "in order": {"batch_size": 8},
            }
            loaders[name] = DataLoader(dataset, **orders[order])
        model = Model()
        trainer = lightning.Trainer(
            accelerator="cpu",
            max_epochs=3,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
            **options,
        )
        combined = lightning.utilities.CombinedLoader(loaders, mode)
        trainer.fit(model, combined, ckpt_path=checkpoint)
        return model.seen

    every = lightning.callbacks.ModelCheckpoint(
        dirpath=tmp_path / "saved", filename="{step}", save_top_k=-1, every_n_train_steps=1
    )
    whole = train(None, callbacks=[every])
    assert len(whole) == (9 if mode == "min_size" else 15)
    for step in range(1, len(whole)):
        rest = train(tmp_path / "saved" / f"step={step}.ckpt")
        assert rest == whole[step:], f"from step {step}"
