"""A training loop with and without a profile: what profiling costs.

A small network over records in the page cache, on one thread, so that a step is a few milliseconds:
short steps make a profiler dear. Both arms are the same loop, by turns; the loader reads in the
training thread, so that all events are on the way of the step.
"""

import pathlib
import shutil
import time
from contextlib import nullcontext
from typing import Any

import harness

WIDTH = 512
BATCH = 64
COUNT = 16384


def prepare(settings: harness.Settings) -> pathlib.Path:
    """Make the record file, or take that of the last run."""
    import numpy as np

    import ffrecord

    path = settings.scratch / f"profiler-{COUNT}.ffr"
    if not path.exists():
        values = np.random.default_rng(1).random((COUNT, WIDTH), np.float32)
        with ffrecord.Writer(path, {"x": f"f32[{WIDTH}]"}) as writer:
            for row in values:
                writer.write({"x": row})
    path.read_bytes()  # Into the page cache.
    return path


def train(path: pathlib.Path, steps: int, profile: Any) -> float:  # noqa: ANN401 - a context
    """Steps per second of processor time, which other programs on the machine change little."""
    import torch

    from ffrecord.torch import DataLoader, Dataset, Sampler

    torch.manual_seed(1)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, WIDTH)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    dataset = Dataset(path)
    with profile:
        batches = iter(DataLoader(dataset, batch_sampler=Sampler(dataset, BATCH), num_workers=0))
        begin = time.process_time()
        for number, batch in enumerate(batches):
            if number == 10:
                begin = time.process_time()
            optimizer.zero_grad()
            model(batch["x"]).square().mean().backward()
            optimizer.step()
            if number == steps + 10:
                break
        return steps / (time.process_time() - begin)


def bench(settings: harness.Settings) -> harness.Outcome:
    """Run both by turns."""
    import ffrecord

    path = prepare(settings)
    steps = 100 if settings.quick else 200
    folder = settings.scratch / "profiler"

    def profiled(number: int) -> float:
        shutil.rmtree(folder, ignore_errors=True)
        return train(path, steps, ffrecord.profile(folder / str(number), show=False))

    arms = [
        harness.Arm("plain", "no profile", lambda _: train(path, steps, nullcontext())),
        harness.Arm("profiled", "within ffrecord.profile", profiled),
    ]
    values = harness.interleave(arms, settings.rounds)
    shutil.rmtree(folder, ignore_errors=True)
    return harness.Outcome("steps/CPU s", arms, values, {"profiled/plain": ("profiled", "plain")})
