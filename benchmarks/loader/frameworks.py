"""Our loader inside accelerate and Lightning, and our source inside Grain.

Records are 4 KiB, in the page cache, in batches of 256. With accelerate the reference is the same
loop over a loader that was not prepared; with Lightning it is the same Trainer over batches that
lie in memory, so that what Lightning does for each step counts on both sides. Grain reads the same
records from an ArrayRecord file of groups of one record, through the calls that each source has for
a batch, and record by record. Grain is taken from build-frameworks, which `tools/test frameworks`
makes; without it its arms are left out.
"""

import importlib.util
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

import harness

RECORD_BYTES = 4096
BATCH = 256
THREADS = 2


def prepare(settings: harness.Settings, count: int) -> pathlib.Path:
    """Make the record file, or take that of the last run."""
    import numpy as np

    import ffrecord

    path = settings.scratch / f"frameworks-{count}.ffr"
    if not path.exists():
        draw = np.random.default_rng(1)
        with ffrecord.Writer(path, {"x": f"u8[{RECORD_BYTES}]"}) as writer:
            for _ in range(count):
                writer.write({"x": draw.integers(0, 256, RECORD_BYTES, np.uint8)})
    path.read_bytes()  # Into the page cache.
    return path


def rate(count: int, work: Callable[[], int]) -> Callable[[int], float]:
    """Records a second of `work`, which returns how many it saw."""

    def run(_: int) -> float:
        start = time.perf_counter()
        seen = work()
        if seen != count:
            raise AssertionError(f"{seen} records of {count}")
        return count / (time.perf_counter() - start)

    return run


def made_loader(path: pathlib.Path) -> Any:  # noqa: ANN401
    """Ours, with threads."""
    from ffrecord.torch import DataLoader, Dataset, Sampler

    dataset = Dataset(path)
    return DataLoader(
        dataset, batch_sampler=Sampler(dataset, BATCH), mode="threads", num_workers=THREADS
    )


def seen_in(batches: Any) -> int:  # noqa: ANN401
    """How many records there are; each batch is touched."""
    return sum(len(batch["x"]) for batch in batches if batch["x"].sum() >= 0)


def with_accelerate(path: pathlib.Path, count: int) -> list[harness.Arm]:
    """One loop over a loader, prepared or not."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)

    def loop(prepare: Callable[[Any], Any]) -> int:
        loader = made_loader(path)  # Of a kept one, threads would read on during other arms.
        try:
            return seen_in(prepare(loader))
        finally:
            loader.close()

    return [
        harness.Arm("plain", "a loop over our loader", rate(count, lambda: loop(lambda it: it))),
        harness.Arm(
            "accelerate", "the same, prepared", rate(count, lambda: loop(accelerator.prepare))
        ),
    ]


def with_lightning(path: pathlib.Path, count: int) -> list[harness.Arm]:
    """One Trainer over our loader, and over batches in memory."""
    import pytorch_lightning as lightning
    import torch

    class Model(lightning.LightningModule):  # type: ignore[misc, name-defined, unused-ignore]
        """Touches each batch, and takes a step."""

        def __init__(self) -> None:
            """A layer of one weight."""
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.seen = 0

        def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
            """One step."""
            self.seen += len(batch["x"])
            return self.layer(batch["x"].sum().float().reshape(1)).mean() * 0  # type: ignore[no-any-return]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            """Any will do."""
            return torch.optim.SGD(self.parameters(), 0.0)

    def fit_ours() -> int:
        loader = made_loader(path)
        try:
            return fit(loader)
        finally:
            loader.close()

    def fit(batches: Any) -> int:  # noqa: ANN401
        model = Model()
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        lightning.Trainer(max_epochs=1, accelerator="cpu", enable_model_summary=False, **quiet).fit(
            model, batches
        )
        return model.seen

    batches: Any = list(made_loader(path))
    ready: Any = torch.utils.data.DataLoader(batches, batch_size=None)
    return [
        harness.Arm("ready", "Lightning over batches in memory", rate(count, lambda: fit(ready))),
        harness.Arm("lightning", "Lightning over our loader", rate(count, fit_ours)),
    ]


def with_grain(path: pathlib.Path, count: int) -> list[harness.Arm]:
    """One pipeline over each source: a batch at a time, and record by record."""
    import grain
    import numpy as np
    from array_record.python.array_record_module import ArrayRecordWriter

    import ffrecord
    from ffrecord.grain import DataSource

    theirs = path.with_suffix(".array_record")
    if not theirs.exists():
        writer = ArrayRecordWriter(str(theirs), "group_size:1")
        for record in ffrecord.open(path):
            writer.write(record["x"].tobytes())
        writer.close()
    theirs.read_bytes()
    array_record, ours = grain.sources.ArrayRecordDataSource(str(theirs)), DataSource(path)

    def stacked(records: Any) -> Any:  # noqa: ANN401
        return {"x": np.stack([np.frombuffer(record, np.uint8) for record in records])}

    def run(batches: Any) -> Callable[[], int]:  # noqa: ANN401
        options = grain.ReadOptions(num_threads=THREADS, prefetch_buffer_size=4)
        return lambda: seen_in(batches.to_iter_dataset(options))

    def batched(read: Callable[[Any], Any]) -> Any:  # noqa: ANN401
        return grain.MapDataset.range(count).seed(1).shuffle().batch(BATCH).map(read)

    def by_record(source: Any, stack: Any = None) -> Any:  # noqa: ANN401
        return grain.MapDataset.source(source).seed(1).shuffle().batch(BATCH, batch_fn=stack)

    several = batched(lambda wanted: stacked(array_record.__getitems__(wanted.tolist())))
    arms = {
        "grain": ("Grain, our source, read by batch", batched(ours.read)),
        "arrayrecord": ("Grain, ArrayRecord, read by batch", several),
        "grain_records": ("Grain, our source, record by record", by_record(ours)),
        "arrayrecord_records": (
            "Grain, ArrayRecord, record by record",
            by_record(array_record, stacked),
        ),
    }
    return [harness.Arm(name, what, rate(count, run(it))) for name, (what, it) in arms.items()]


RATIOS = {
    "accelerate_vs_plain": ("accelerate", "plain"),
    "lightning_vs_ready": ("lightning", "ready"),
    "grain_vs_arrayrecord": ("grain", "arrayrecord"),
    "grain_records_vs_arrayrecord": ("grain_records", "arrayrecord_records"),
}


def bench(settings: harness.Settings) -> harness.Outcome:
    """Run all arms whose framework is installed."""
    root = pathlib.Path(__file__).resolve().parents[2]
    sys.path += map(str, (root / "build-frameworks").glob("lib/python*/site-packages"))
    count = (128 if settings.quick else 512) * BATCH
    path = prepare(settings, count)
    arms: list[harness.Arm] = []
    notes = []
    for package, make in (
        ("accelerate", with_accelerate),
        ("pytorch_lightning", with_lightning),
        ("grain", with_grain),
    ):
        if importlib.util.find_spec(package) is None:
            notes.append(f"{package} is not installed: its arms are left out")
            continue
        arms += make(path, count)
    values = harness.interleave(arms, settings.rounds)
    ratios = {key: pair for key, pair in RATIOS.items() if pair[0] in values}
    return harness.Outcome("records/s", arms, values, ratios, notes=notes)
