"""Models that a rank trains by DistributedDataParallel, and the seconds of its steps."""

import hashlib
import itertools
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ffrecord.distributed import CommHook


def vgg() -> nn.Module:
    """Convolutions that compute, and dense layers with most of the bytes: 22 MB."""
    sizes = [3, 16, 32, 64, 64]
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    dense = [nn.Flatten(), nn.Linear(64 * 16, 2048), nn.ReLU(), nn.Linear(2048, 1536), nn.ReLU()]
    return nn.Sequential(*layers, *dense, nn.Linear(1536, 100))


def bert() -> nn.Module:
    """Equal layers: 19 MB."""
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)


MODELS = {"vgg": (vgg, (16, 3, 64, 64)), "bert": (bert, (4, 64, 256))}
_BUCKET_MIB = 2.0


class Trained:
    """A model of an arm, and its batch."""

    def __init__(self, name: str, hook: CommHook | None) -> None:
        """Trained through `hook`, or by torch's own collectives."""
        make, shape = MODELS[name]
        torch.manual_seed(1)
        self.model = DistributedDataParallel(
            make(), bucket_cap_mb=_BUCKET_MIB, gradient_as_bucket_view=True
        )
        if hook is not None:
            hook.register(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        torch.manual_seed(dist.get_rank())
        self.batch = torch.randn(shape)
        for _ in range(3):  # DDP makes its buckets anew after the first.
            self.step()

    def step(self) -> None:
        """Forward, backward, and the update."""
        self.optimizer.zero_grad()
        self.model(self.batch).square().mean().backward()
        self.optimizer.step()

    def measured(self, repeats: int) -> dict[str, Any]:
        """The seconds of so many steps, and of as many in which nothing is averaged."""
        seconds: dict[str, list[float]] = {"seconds": [], "computing_s": []}
        state = [p.detach().clone() for p in self.model.parameters()]
        for _ in range(repeats):
            for kind in seconds:
                dist.barrier()
                before = time.perf_counter()
                if kind == "seconds":
                    self.step()
                else:
                    with self.model.no_sync():
                        self.step()
                seconds[kind].append(time.perf_counter() - before)
                if kind == "seconds":
                    state = [p.detach().clone() for p in self.model.parameters()]
            with torch.no_grad():  # Undo the steps that were not averaged.
                for parameter, kept in zip(self.model.parameters(), state, strict=True):
                    parameter.copy_(kept)
        digest = hashlib.sha256()
        for parameter in self.model.parameters():
            digest.update(parameter.detach().numpy().tobytes())
        gradient_bytes = sum(p.numel() * p.element_size() for p in self.model.parameters())
        return seconds | {"digest": digest.hexdigest(), "gradient_bytes": gradient_bytes}
