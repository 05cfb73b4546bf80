"""One rank of the demo's profiled run: a loader, saves and gradients that share one network.

All of it goes over TCP, as between machines: records come from a daemon, gradients are averaged by
FFRecord's collectives, and every few steps a checkpoint is written to the same daemon beside the
training. Pacing keeps the checkpoint's bytes in the gaps between the collectives.
"""

import argparse
import datetime
import itertools

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from train import SEED, SIDE, thumbnail

import ffrecord.checkpoint as checkpoint
import ffrecord.runtime
import ffrecord.torch
from ffrecord.distributed import CommHook
from ffrecord.torch.checkpoint import Group

GLOBAL_BATCH = 16
HIDDEN = 256  # With the momenta, a checkpoint of 25 MB.
TIMEOUT = datetime.timedelta(minutes=5)


def network(classes: int) -> nn.Module:
    """Make the network: large for what it computes, so that its gradients need the network."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(3 * SIDE * SIDE, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, classes)
    )


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("source", help="ffrecord:// address of the records")
    parser.add_argument("--classes", type=int, required=True)
    parser.add_argument("--checkpoints", required=True, help="ffrecord:// address")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--every", type=int, required=True, help="steps between checkpoints")
    return parser.parse_args()


def main() -> None:
    """Train one rank."""
    options = arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=TIMEOUT)
    torch.manual_seed(SEED)
    inner = network(options.classes)
    model = DistributedDataParallel(inner, bucket_cap_mb=4)
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.01, momentum=0.9)
    dataset = ffrecord.torch.Dataset(options.source, transform=thumbnail)
    sampler = ffrecord.torch.Sampler(dataset, global_batch=GLOBAL_BATCH, seed=SEED)
    loader = ffrecord.torch.DataLoader(
        dataset, batch_sampler=sampler, mode="threads", num_workers=1
    )
    group, pending = Group(), None
    ffrecord.runtime.start_pacing()
    with CommHook(shares_memory=False) as hook:
        hook.register(model)
        ffrecord.runtime.attach(model)
        for step, batch in enumerate(itertools.islice(loader, options.steps), 1):
            loss = functional.cross_entropy(model(batch["image"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % options.every == 0:
                if pending is not None:
                    pending.result()
                state = {"model": inner, "optimizer": optimizer, "step": step}
                pending = checkpoint.async_save(options.checkpoints, step, state, group=group)
        if pending is not None:
            pending.result()
        ffrecord.runtime.detach()
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
