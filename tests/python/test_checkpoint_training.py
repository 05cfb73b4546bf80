"""Goal: a run that is stopped and resumed with TrainingState is the run that was not.

Method: train on a stream of samples with dropout, save beside training, resume in new objects, and
compare every loss bit by bit; processes with Gloo save beside their own collectives.
"""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import ffrecord.checkpoint as ckpt  # noqa: E402
from ffrecord.torch import DataLoader, Sampler, TrainingState  # noqa: E402
from ranks import run_ranks  # noqa: E402


class Numbers:
    """Sample i is i."""

    def __len__(self) -> int:
        return 103

    def __getitem__(self, index: int) -> Any:  # noqa: ANN401
        return torch.full((8,), float(index) / 103)


class Run:
    """One life of a training process."""

    def __init__(self) -> None:
        self.model = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1)
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 3, 0.9)
        data: Any = Numbers()
        sampler = Sampler(data, 10, seed=3, rank=0, world_size=1)
        # A generator of its own: torch's loader draws a seed each time that an iteration begins.
        self.loader: Any = DataLoader(data, batch_sampler=sampler, generator=torch.Generator())
        self.training = TrainingState(
            self.model, self.optimizer, self.loader, scheduler=self.scheduler, extra={"name": "a"}
        )

    def steps(self, first: int, count: int, target: Path | None = None, every: int = 0) -> Any:  # noqa: ANN401
        """Samples and loss of each step; saves beside it."""
        step = first
        while True:
            for batch in self.loader:
                loss = self.model(batch).square().mean()
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                self.scheduler.step()
                step += 1
                if target is not None and step % every == 0:
                    self.training.extra["at"] = step
                    self.pending = self.training.async_save(target, step)
                yield (batch[:, 0].tolist(), loss.item())
                if step == first + count:
                    return


def test_a_resumed_run_is_the_run_that_was_not_stopped(tmp_path: Path) -> None:
    torch.manual_seed(1)
    whole = Run()
    expected = list(whole.steps(0, 30, tmp_path, every=7))  # Past the end of an epoch or two.
    whole.pending.result(60)

    for step in (7, 14, 28):
        torch.manual_seed(step)  # Must not matter.
        resumed = Run()
        assert resumed.training.load(tmp_path, step=step) == step
        assert resumed.training.restored_rng
        assert resumed.training.extra == {"name": "a", "at": step}
        assert list(resumed.steps(step, 30 - step)) == expected[step:]


def test_nothing_to_resume_is_step_zero(tmp_path: Path) -> None:
    run = Run()
    before = [value.clone() for value in run.model.state_dict().values()]
    assert run.training.load(tmp_path / "none") == 0
    after = run.model.state_dict().values()
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    with pytest.raises(FileNotFoundError):
        run.training.load(tmp_path / "none", step=3)


def parallel_run() -> tuple[torch.nn.Module, torch.optim.Optimizer, TrainingState]:
    torch.manual_seed(5)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(700, 900))
    optimizer = torch.optim.AdamW(model.parameters())
    return model, optimizer, TrainingState(model, optimizer)


def sum_of(model: torch.nn.Module) -> float:
    return sum(p.double().sum().item() for p in model.parameters())


def train_and_save(rank: int, world: int, target: str) -> list[Any]:
    del world
    model, optimizer, training = parallel_run()

    def train(count: int) -> None:
        for _ in range(count):
            optimizer.zero_grad()
            model(torch.rand(4, 700)).square().mean().backward()
            optimizer.step()

    torch.manual_seed(rank)
    for step in (1, 2, 3):
        train(2)
        at = sum_of(model)
        pending = training.async_save(target, step, replicated="split")
    train(5)  # Collectives of training beside those of the save.
    return [at == sum_of(model), pending.result(100).step, at]


def resume(rank: int, world: int, target: str) -> list[Any]:
    del rank, world
    model, _, training = parallel_run()
    step = training.load(target)
    return [training.restored_rng, step, sum_of(model)]


def test_processes_save_beside_training_and_resume_at_another_size(tmp_path: Path) -> None:
    target = str(tmp_path / "run")
    saved = run_ranks(train_and_save, 2, target)
    assert [line[:2] for line in saved] == [[False, 3]] * 2
    assert [commit.step for commit in ckpt.list(target)] == [1, 2, 3]
    assert run_ranks(resume, 2, target) == [[True, 3, saved[0][2]]] * 2
    assert run_ranks(resume, 1, target) == [[False, 3, saved[0][2]]]
