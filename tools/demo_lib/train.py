"""One rank of the demo's training run; torchrun starts one process of this for each rank.

A small convolutional network learns the topic of a picture from a 64x64 thumbnail. There is one
epoch for each address given, in order: a path reads the file itself, ffrecord:// asks a daemon.
Every N steps, model, optimizer, random states and the place in the stream go into one checkpoint;
with --resume the run goes on from the newest one. Each rank writes what it did, a JSON object a
line, to its log.
"""

import argparse
import datetime
import hashlib
import io
import json
import os
import pathlib
import time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from PIL import Image
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import ffrecord.checkpoint as checkpoint
import ffrecord.distributed
import ffrecord.torch
from ffrecord.torch.checkpoint import Group

SIDE = 64
GLOBAL_BATCH = 64
SEED = 2026
TIMEOUT = datetime.timedelta(minutes=5)
# Bucket size for gradients: the network is small, and one bucket has nothing that it could overlap
# with.
BUCKET_CAP_MB = 0.07


def thumbnail(sample: dict[str, Any]) -> dict[str, Any]:
    """Decode a picture: centred on white, SIDE by SIDE, shape (3, SIDE, SIDE), in [-1, 1]."""
    picture = Image.open(io.BytesIO(sample["image"])).convert("RGBA")
    picture.thumbnail((SIDE, SIDE))
    canvas = Image.new("RGBA", (SIDE, SIDE), "white")
    corner = ((SIDE - picture.width) // 2, (SIDE - picture.height) // 2)
    canvas.alpha_composite(picture, corner)
    pixels = np.asarray(canvas.convert("RGB"), np.float32).transpose(2, 0, 1)
    return {
        "image": torch.from_numpy(pixels / 127.5 - 1),
        "label": int(sample["label"]),
        "id": int(sample["id"]),
    }


def network(classes: int) -> nn.Module:
    """Make the network: three convolutions, dropout, one linear layer."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Dropout(0.2),  # Draws random numbers, so a resumed run must continue them.
        nn.Linear(64 * 16, classes),
    )


def digest(model: nn.Module) -> str:
    """Sum up every bit of the model's parameters."""
    whole = hashlib.sha256()
    for value in model.state_dict().values():
        whole.update(value.numpy().tobytes())
    return whole.hexdigest()


class Log:
    """The log of this rank: one JSON object a line, on disk as soon as it happened."""

    def __init__(self, path: pathlib.Path) -> None:
        """Start a log of its own for this process."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w", buffering=1)

    def write(self, event: str, **what: Any) -> None:  # noqa: ANN401 - whatever JSON can hold
        """Add one event with the time of day."""
        self._file.write(json.dumps({"event": event, "time": time.time(), **what}) + "\n")


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("sources", nargs="+", help="one address for each epoch")
    parser.add_argument("--classes", type=int, required=True)
    parser.add_argument("--checkpoints", required=True, help="folder or ffrecord:// address")
    parser.add_argument("--every", type=int, required=True, help="steps between checkpoints")
    parser.add_argument("--events", type=pathlib.Path, required=True, help="RANK is put in")
    parser.add_argument("--resume", action="store_true")
    return parser.parse_args()


def committed(pending: checkpoint.PendingSave, log: Log) -> None:
    """Wait for a save that went on beside training; raises what went wrong with it."""
    commit = pending.result()
    log.write("checkpoint", step=commit.step, bytes=commit.size_bytes)


def main() -> None:
    """Train one rank."""
    options = arguments()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    # Gloo launches the ranks and carries small messages; gradients go through our hook.
    dist.init_process_group("gloo", timeout=TIMEOUT)
    rank = dist.get_rank()
    log = Log(options.events.with_name(options.events.name.replace("RANK", str(rank))))
    log.write("start", pid=os.getpid(), world_size=dist.get_world_size())

    torch.manual_seed(SEED)
    inner = network(options.classes)
    model = DistributedDataParallel(inner, bucket_cap_mb=BUCKET_CAP_MB)
    hook = ffrecord.distributed.CommHook()
    model.register_comm_hook(hook, ffrecord.distributed.comm_hook)
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.02, momentum=0.9)
    torch.manual_seed(SEED + 1 + rank)  # Every rank draws its own dropout.

    group = Group()
    first = ffrecord.torch.Dataset(options.sources[0], transform=thumbnail)
    sampler = ffrecord.torch.Sampler(first, global_batch=GLOBAL_BATCH, seed=SEED)
    state: dict[str, Any] = {
        "model": inner,
        "optimizer": optimizer,
        "random": checkpoint.PerRank(checkpoint.rng_state()),
        "sampler": sampler,
        "step": 0,
    }
    step = 0
    pending: checkpoint.PendingSave | None = None
    if options.resume:
        checkpoint.load(options.checkpoints, state, group=group)
        checkpoint.set_rng_state(state["random"].value)
        step = state["step"]
        log.write("resume", step=step)

    for epoch in range(sampler.epoch, len(options.sources)):
        dataset = ffrecord.torch.Dataset(options.sources[epoch], transform=thumbnail)
        loader = ffrecord.torch.DataLoader(
            dataset, batch_sampler=sampler, mode="threads", num_workers=1
        )
        log.write("epoch", epoch=epoch, source=options.sources[epoch], step=step)
        for batch in loader:
            phases_ns = [time.monotonic_ns()]
            loss = functional.cross_entropy(model(batch["image"]), batch["label"])
            optimizer.zero_grad()
            phases_ns.append(time.monotonic_ns())
            loss.backward()
            phases_ns.append(time.monotonic_ns())
            optimizer.step()
            phases_ns.append(time.monotonic_ns())
            step += 1
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            mean /= dist.get_world_size()
            log.write(
                "step",
                step=step,
                loss=mean.item(),
                ids=batch["id"].tolist(),
                phases_ns=phases_ns,  # Forward began, backward began, the optimizer began, ended.
            )
            if step % options.every == 0:
                state["step"] = step
                state["random"] = checkpoint.PerRank(checkpoint.rng_state())
                if pending is not None:
                    committed(pending, log)
                pending = checkpoint.async_save(options.checkpoints, step, state, group=group)
                log.write("stall", step=step, seconds=pending.stall_s)
            if pending is not None and pending.done():
                committed(pending, log)
                pending = None
    if pending is not None:
        committed(pending, log)
    reduced = hook.stats()
    log.write(
        "end",
        step=step,
        digest=digest(inner),
        transfers=[
            [move.bucket, move.size_bytes, move.submitted_ns, move.began_ns, move.ended_ns]
            for move in reduced.transfers
        ],
    )
    dist.barrier()
    hook.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
