"""A program that trains, for profiles: `profiled_training.py FILE CAUSE`, one rank of several.

CAUSE is what it is to be held up by: nothing, transform, storage, rank, save.
"""

# ruff: noqa: ANN401 - samples and models are of any kind

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ffrecord
import ffrecord.checkpoint as ckpt
from ffrecord.distributed import CommHook, comm_hook
from ffrecord.torch import DataLoader, Dataset, Sampler

STEPS = 12
HELD_UP_S = 0.1  # Per step; its own work takes some milliseconds.


def main(path: str, cause: str) -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    torch.manual_seed(3)
    model: Any = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    if world > 1:
        rendezvous = f"file://{Path(path).parent}/rendezvous"
        dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=world)
        model = DistributedDataParallel(model)
        model.register_comm_hook(CommHook(), comm_hook)

    def transform(sample: Any) -> Any:
        if cause == "transform":
            time.sleep(HELD_UP_S / 4)
        return sample

    dataset = Dataset(_where(path, cause), transform=transform)
    loader = DataLoader(
        dataset, batch_sampler=Sampler(dataset, 4, rank=rank, world_size=world), num_workers=0
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number, batch in enumerate(loader):
        if cause == "rank" and rank == 1:
            time.sleep(HELD_UP_S)
        optimizer.zero_grad()
        model(batch["value"]).square().mean().backward()
        optimizer.step()
        if cause == "save":
            _held_up_save(Path(path).parent / "saved", number, model)


def _where(path: str, cause: str) -> str:
    if cause != "storage":
        return path
    import file_systems  # In the folder of this program.

    shelf = file_systems.shelf
    shelf.put("train/a.ffr", Path(path).read_bytes())

    def late(number: int, name: str) -> None:
        del number, name
        time.sleep(HELD_UP_S)

    shelf.fault = late
    return "shelf://train/a.ffr"


def _held_up_save(folder: Path, step: int, model: Any) -> None:
    class Late(nn.Module):
        def state_dict(self, *_: Any, **__: Any) -> dict[str, Any]:
            time.sleep(HELD_UP_S)
            return dict(model.state_dict())

    ckpt.save(folder, step, {"model": Late()})


def make_file(path: Path) -> None:
    """Records for STEPS steps of two ranks."""
    with ffrecord.Writer(path, {"value": "f32[64]"}) as writer:
        for number in range(STEPS * 4 * 2):
            writer.write({"value": [float(number % 7)] * 64})


if __name__ == "__main__":
    main(*sys.argv[1:])
