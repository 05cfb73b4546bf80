"""Goal: a model with `overlap` trains as it does under DistributedDataParallel, bit for bit.

Method: two ranks train a model both ways, with all that users do between backward and step, and
compare parameters and gradients after each step; three ranks, of which sums round by their order,
compare with DDP through our hook.
"""

import copy
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from ffrecord.distributed import CommHook, Group, overlap
from ranks import run_ranks

STEPS = 3


class Branches(nn.Module):
    """A trunk, and branches of which an input uses some."""

    def __init__(self, reentrant: bool = False) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.reentrant = reentrant
        self.trunk = nn.Linear(20, 50)
        self.branches = nn.ModuleList(nn.Linear(50, 7) for _ in range(3))

    def forward(self, x: torch.Tensor, used: tuple[int, ...] = (0, 1, 2)) -> torch.Tensor:
        """The sum of what the used branches make."""
        hidden = torch.tanh(self.trunk(x))
        if self.reentrant:
            parts = [checkpoint(self.branches[i], hidden, use_reentrant=True) for i in used]
        else:
            parts = [self.branches[i](hidden) for i in used]
        return torch.stack(parts).sum(0)


def batch(rank: int, step: int) -> torch.Tensor:
    torch.manual_seed(100 * step + rank)
    return torch.randn(8, 20) * 10


class Way:
    """One of the two ways to train."""

    def __init__(self, plain: Branches, averaging: object, called: nn.Module, rank: int) -> None:
        self.plain, self.averaging, self.model, self.rank = plain, averaging, called, rank
        self.kept: list[torch.Tensor] = []

    def loss(self, step: int, *used: int) -> torch.Tensor:
        """Of this rank's batch."""
        arguments = (tuple(used),) if used else ()
        found: torch.Tensor = self.model(batch(self.rank, step), *arguments).square().mean()
        return found


Body = Callable[[Way, torch.optim.Optimizer, int], None]


def plainly(way: Way, optimizer: torch.optim.Optimizer, step: int) -> None:
    optimizer.zero_grad(set_to_none=step % 2 == 0)
    way.loss(step).backward()
    optimizer.step()


def clipped(way: Way, optimizer: torch.optim.Optimizer, step: int) -> None:
    optimizer.zero_grad()
    way.loss(step).backward()
    norm = nn.utils.clip_grad_norm_(way.plain.parameters(), 0.001)
    assert norm > 0.01
    optimizer.step()
    total = sum(float(p.grad.square().sum()) for p in way.plain.parameters() if p.grad is not None)
    assert total**0.5 == pytest.approx(0.001, rel=0.01)


def scaled(way: Way, optimizer: torch.optim.Optimizer, step: int) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer.zero_grad()
    scaler.scale(way.loss(step)).backward()  # type: ignore[no-untyped-call]
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(way.plain.parameters(), 0.5)
    scaler.step(optimizer)
    scaler.update()


def accumulated(way: Way, optimizer: torch.optim.Optimizer, step: int) -> None:
    optimizer.zero_grad()
    with way.averaging.no_sync():  # type: ignore[attr-defined]
        way.loss(2 * step, 0, 1).backward()
    way.loss(2 * step + 1, 0).backward()
    optimizer.step()


def twice(way: Way, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Accumulates averages, without no_sync()."""
    optimizer.zero_grad(set_to_none=False)
    way.loss(2 * step).backward()
    way.loss(2 * step + 1).backward()
    optimizer.step()


def closure(way: Way, optimizer: torch.optim.Optimizer, step: int) -> None:
    def again() -> torch.Tensor:
        optimizer.zero_grad()
        loss = way.loss(step)
        loss.backward()
        return loss

    optimizer.step(again)  # type: ignore[arg-type]


def partly(way: Way, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Branch 2 gets a gradient in the first step alone, branch 1 on one rank alone."""
    optimizer.zero_grad(set_to_none=False)
    used = [0, 1] if way.rank == 1 else [0]
    way.loss(step, *used, *([2] if step == 0 else [])).backward()
    optimizer.step()


def kept(way: Way, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Whoever keeps a gradient finds it as it was."""
    optimizer.zero_grad(set_to_none=True)
    way.loss(step).backward()
    gradient = way.plain.trunk.weight.grad
    assert gradient is not None
    if way.kept:
        assert torch.equal(way.kept[0], way.kept[1])
    way.kept = [gradient, gradient.clone()]
    optimizer.step()


def penalised(way: Way, optimizer: torch.optim.Optimizer, step: int) -> None:
    """A gradient that is not accumulated, on one rank alone, averages nothing."""
    optimizer.zero_grad()
    if way.rank == 0:
        torch.autograd.grad(way.loss(step), list(way.plain.parameters()))
    way.loss(step).backward()
    optimizer.step()


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=0.1)


def lbfgs(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.LBFGS(parameters, lr=0.01, max_iter=3)


def adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01, foreach=True)


def bits(model: nn.Module) -> list[torch.Tensor | None]:
    return [t for p in model.parameters() for t in (p.detach(), p.grad)]


def compare(
    rank: int, world: int, body: Body, make: Callable[..., torch.optim.Optimizer], name: str
) -> None:
    reentrant = name == "reentrant"
    theirs = Branches(reentrant)
    ours = copy.deepcopy(theirs)
    finds_unused = body in (accumulated, partly)
    ddp = DistributedDataParallel(theirs, find_unused_parameters=finds_unused, bucket_cap_mb=0.001)
    # Of this one the order does not depend on the place in a bucket.
    options: dict[str, Any] = {"timeout_s": 20, "algorithm": "recursive_doubling"}
    hook = CommHook(**options).register(ddp) if world > 2 else None
    optimizers = make(theirs.parameters()), make(ours.parameters())
    with overlap(ours, optimizers[1], group=Group(**options), bucket_cap_mb=0.001) as averaged:
        ways = Way(theirs, ddp, ddp, rank), Way(ours, averaged, ours, rank)
        for step in range(STEPS):
            for way, optimizer in zip(ways, optimizers, strict=True):
                body(way, optimizer, step)
            for a, b in zip(bits(theirs), bits(ours), strict=True):
                assert (a is None) == (b is None), (name, step)
                assert a is None or b is None or torch.equal(a, b), (name, step)
    if hook is not None:
        assert hook.stats().transfers
        hook.close()


CASES: list[tuple[str, Body, Callable[..., torch.optim.Optimizer]]] = [
    ("plain", plainly, sgd),
    ("clipped", clipped, sgd),
    ("clipped by foreach", clipped, adam),
    ("scaled", scaled, adam),
    ("accumulated", accumulated, sgd),
    ("twice", twice, adam),
    ("closure", closure, lbfgs),
    ("partly used", partly, sgd),
    ("kept", kept, sgd),
    ("penalised", penalised, sgd),
    ("reentrant", plainly, sgd),
]


def all_cases(rank: int, world: int) -> list[str]:
    """What went wrong, one line for each case."""
    wrong = []
    for name, body, make in CASES:
        try:
            compare(rank, world, body, make, name)
        except (AssertionError, RuntimeError) as error:
            wrong.append(f"{name}: {error!r}")
    wrong += refusals(rank, world)
    return wrong


def refusals(rank: int, world: int) -> list[str]:
    """Mistakes that would train wrong."""
    model = Branches()
    optimizer = sgd(model.parameters())
    with overlap(model, optimizer, group=Group(timeout_s=20)) as averaged:
        with averaged.no_sync():
            model(batch(rank, 0)).sum().backward()
        with pytest.raises(RuntimeError, match=r"no_sync\(\) are not averaged"):
            optimizer.step()
        averaged.wait()
        optimizer.step()

        # A pass that fails before anything left does no harm; the next one is whole.
        def fail(_: object) -> None:
            raise ZeroDivisionError

        handle = model.trunk.weight.register_hook(fail)
        with pytest.raises(ZeroDivisionError):
            model(batch(rank, 0)).sum().backward()
        handle.remove()
        optimizer.zero_grad()
        model(batch(rank, 0)).sum().backward()
        gradient = model.trunk.weight.grad
        assert gradient is not None
        average = gradient.clone()
    optimizer.zero_grad()
    sum(model(batch(each, 0)).sum() for each in range(world)).backward()  # type: ignore[union-attr]
    torch.testing.assert_close(average, gradient_of(model) / world)
    return []


def gradient_of(model: Branches) -> torch.Tensor:
    assert model.trunk.weight.grad is not None
    return model.trunk.weight.grad


@pytest.mark.parametrize("world", [2, 3])
def test_training_equals_ddp_bit_for_bit_whatever_happens_between_backward_and_step(
    world: int,
) -> None:
    assert run_ranks(all_cases, world) == [[]] * world
