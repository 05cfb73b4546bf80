"""Goal: a run that is stopped and resumed with TrainingState is the run that was not.

Method: train on a stream of samples with dropout, save beside training, resume in new objects, and
compare every loss bit by bit; processes with Gloo save beside their own collectives.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import ffrecord.checkpoint as ckpt  # noqa: E402
from ffrecord.torch import DataLoader, Sampler, TrainingState  # noqa: E402


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


RANK = """
import sys
import torch, torch.distributed as dist
import ffrecord.checkpoint as ckpt
from ffrecord.torch import TrainingState

mode, target, store, rank, size = sys.argv[1], sys.argv[2], sys.argv[3], *map(int, sys.argv[4:])
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=size)
torch.manual_seed(5)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(700, 900))
optimizer = torch.optim.AdamW(model.parameters())
training = TrainingState(model, optimizer)
def train(count):
    for _ in range(count):
        optimizer.zero_grad()
        model(torch.rand(4, 700)).square().mean().backward()
        optimizer.step()
def weights():
    return sum(p.double().sum().item() for p in model.parameters())
if mode == "save":
    torch.manual_seed(rank)
    for step in (1, 2, 3):
        train(2)
        at = weights()
        pending = training.async_save(target, step, replicated="split")
    train(5)                      # Collectives of training beside those of the save.
    print(at == weights(), pending.result(100).step, at)
else:
    step = training.load(target)
    print(training.restored_rng, step, weights())
dist.barrier()
dist.destroy_process_group()
"""


def run_ranks(mode: str, target: Path, size: int) -> list[str]:
    store = target.parent / f"store-{mode}-{size}"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, mode, target, store, str(rank), str(size)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    outputs = [process.communicate(timeout=240)[0].strip() for process in processes]
    assert [process.returncode for process in processes] == [0] * size
    return outputs


def test_processes_save_beside_training_and_resume_at_another_size(tmp_path: Path) -> None:
    saved = [line.split() for line in run_ranks("save", tmp_path / "run", 2)]
    assert [line[:2] for line in saved] == [["False", "3"]] * 2
    assert [commit.step for commit in ckpt.list(tmp_path / "run")] == [1, 2, 3]
    same = [line.split() for line in run_ranks("load", tmp_path / "run", 2)]
    assert same == [["True", "3", saved[0][2]]] * 2
    other = [line.split() for line in run_ranks("load", tmp_path / "run", 1)]
    assert other == [["False", "3", saved[0][2]]]
