"""A training loop on an accelerator, fed by our loader, by torch's, and by batches that are there.

Records are pictures of 224 x 224 x 3 bytes and a label, in the page cache. A step is products of
matrices for a few milliseconds and the mean of the batch, which shows that its bytes have come. The
limit is the same loop over batches that lie on the device already. torch's loader reads an array in
a mapped file by worker processes, pins, and the loop copies without waiting, as its documentation
recommends.
"""

import functools
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import harness

PICTURE_BYTES = 224 * 224 * 3
BATCH = 256
COUNT = 8192
WORKERS = 8
STEP_MS = 6.0


def prepare(settings: harness.Settings, count: int) -> tuple[pathlib.Path, pathlib.Path]:
    """Make the record file and the array, or take those of the last run."""
    import numpy as np

    import ffrecord

    ours, plain = (settings.scratch / f"device-{count}.{kind}" for kind in ("ffr", "npy"))
    if not (ours.exists() and plain.exists()):
        pictures = np.random.default_rng(1).integers(0, 256, (count, PICTURE_BYTES), np.uint8)
        np.save(plain, pictures)
        columns = {"x": f"u8[{PICTURE_BYTES}]", "y": "i64"}
        ours.unlink(missing_ok=True)
        with ffrecord.Writer(ours, columns) as writer:
            for i, picture in enumerate(pictures):
                writer.write({"x": picture, "y": i})
    for path in (ours, plain):
        path.read_bytes()  # Into the page cache.
    return ours, plain


class Mapped:
    """The array as a data set of torch's that gives a batch at a time."""

    def __init__(self, path: pathlib.Path) -> None:
        """Map it in each process that reads."""
        self.path = path
        self.pictures: Any = None
        import numpy as np

        self.count = len(np.load(path, mmap_mode="r"))

    def __len__(self) -> int:
        return self.count

    def __getitems__(self, indices: list[int]) -> dict[str, Any]:
        import numpy as np
        import torch

        if self.pictures is None:
            self.pictures = np.load(self.path, mmap_mode="r")
        return {"x": torch.from_numpy(self.pictures[indices]), "y": torch.tensor(indices)}


class Step:
    """The computation for each batch: for STEP_MS, then a number of the batch."""

    def __init__(self, device: Any) -> None:  # noqa: ANN401 - torch's
        """See how often a product fits."""
        import torch

        self.device = device
        self.weights = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16) / 90
        self.times = 1
        self.run()
        torch.accelerator.synchronize()
        begin = time.perf_counter()
        for _ in range(50):
            self.run()
        torch.accelerator.synchronize()
        self.times = max(1, round(STEP_MS / ((time.perf_counter() - begin) * 1e3 / 50)))

    def run(self) -> None:
        """Compute."""
        value = self.weights
        for _ in range(self.times):
            value = value @ self.weights

    def __call__(self, batch: dict[str, Any]) -> Any:  # noqa: ANN401 - torch's
        """Compute, and return the mean of the pictures' bytes, on the device."""
        self.run()
        return batch["x"].float().mean() + batch["y"].float().mean() * 0


def loop(step: Step, batches: Iterator[dict[str, Any]], count: int) -> float:
    """Steps per second of `count` steps, after a few that are not counted."""
    import torch

    total = torch.zeros((), device=step.device)
    for _ in range(8):
        total += step(next(batches))
    torch.accelerator.synchronize()
    begin = time.perf_counter()
    for _ in range(count):
        total += step(next(batches))
    torch.accelerator.synchronize()
    seconds = time.perf_counter() - begin
    if not 127 < float(total) / (count + 8) < 128:
        raise harness.Unable(f"a batch had other bytes: mean {float(total) / (count + 8)}")
    return count / seconds


def epochs(loader: Any) -> Iterator[Any]:  # noqa: ANN401 - any loader
    """Batches without end."""
    while True:
        yield from loader


def ours(step: Step, path: pathlib.Path, count: int, **options: Any) -> float:  # noqa: ANN401
    """Run our loader."""
    from ffrecord.torch import DataLoader, Dataset, Sampler

    dataset = Dataset(path)
    sampler = Sampler(dataset, BATCH)
    loader = DataLoader(dataset, batch_sampler=sampler, device=step.device, **options)
    try:
        return loop(step, epochs(loader), count)
    finally:
        loader.close()


def torchs(step: Step, path: pathlib.Path, count: int) -> float:
    """Run torch's loader, with pinned memory and copies that are not waited for."""
    from torch.utils import data

    loader: Any = data.DataLoader(
        Mapped(path),  # type: ignore[arg-type]
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=WORKERS,
        persistent_workers=True,
        pin_memory=True,
        collate_fn=_same,
    )
    moved = (
        {name: values.to(step.device, non_blocking=True) for name, values in batch.items()}
        for batch in epochs(loader)
    )
    return loop(step, moved, count)


def _same(batch: Any) -> Any:  # noqa: ANN401 - a batch
    return batch


def resident(step: Step, count: int) -> float:
    """Batches that are on the device."""
    import torch

    batches = [
        {
            "x": torch.randint(0, 256, (BATCH, PICTURE_BYTES), device=step.device).to(torch.uint8),
            "y": torch.zeros(BATCH, device=step.device, dtype=torch.int64),
        }
        for _ in range(4)
    ]
    return loop(step, epochs(batches), count)


def bench(settings: harness.Settings) -> harness.Outcome:
    """Run the loops by turns."""
    import torch

    device = torch.accelerator.current_accelerator(check_available=True)
    if device is None:
        raise harness.Unable("PyTorch finds no accelerator on this machine: run it on one that has")
    steps = 100 if settings.quick else 400
    path, array = prepare(settings, COUNT)
    step = Step(device)
    threads = {"mode": "threads", "num_workers": WORKERS}
    runs: dict[str, tuple[str, Callable[[], float]]] = {
        "resident": ("batches that are on the device", functools.partial(resident, step, steps)),
        "ours_threads": (
            "threads, device=, page-locked",
            functools.partial(ours, step, path, steps, pin_memory=True, **threads),
        ),
        "ours_threads_pageable": (
            "threads, device=",
            functools.partial(ours, step, path, steps, **threads),
        ),
        "ours_workers": (
            "worker processes, device=, page-locked",
            functools.partial(
                ours,
                step,
                path,
                steps,
                pin_memory=True,
                num_workers=WORKERS,
                persistent_workers=True,
            ),
        ),
        "torch": (
            "torch's loader over a mapped array, page-locked",
            functools.partial(torchs, step, array, steps),
        ),
    }
    arms = [harness.Arm(name, what, lambda _, run=run: run()) for name, (what, run) in runs.items()]
    values = harness.interleave(arms, settings.rounds)
    name = getattr(torch, device.type).get_device_name()
    return harness.Outcome(
        unit="steps/s",
        arms=arms,
        values=values,
        ratios={
            "device_vs_resident": ("ours_threads", "resident"),
            "device_pageable_vs_resident": ("ours_threads_pageable", "resident"),
            "device_workers_vs_resident": ("ours_workers", "resident"),
            "device_vs_torch": ("ours_threads", "torch"),
            "torch_vs_resident": ("torch", "resident"),
        },
        notes=[
            f"{name}, PyTorch {torch.__version__}; batches of {BATCH} pictures, "
            f"{BATCH * PICTURE_BYTES / 1e6:.0f} MB; a step of {step.times} products of 8192 x 8192 "
            f"matrices in bfloat16"
        ],
    )
