"""Our loader inside accelerate, Lightning, the HF Trainer and Ray Train; our source in Grain.

Records are 4 KiB, in the page cache, in batches of 256. The reference is the same loop over a
loader that was not prepared; with the two Trainers, a plain loop with the same steps. A Trainer's
own work for each step then counts against us, so there is a second reference: the same Trainer over
batches that lie in memory.

Grain reads the same records from an ArrayRecord file of groups of one record. `grain` takes whole
batches of our `BatchSource`; `arrayrecord` does what ArrayRecord offers for batches: Grain shuffles
and batches indices, and each batch is one call. `grain_indices` does the same with our source,
and `arrayrecord_batches` has a batch source written by hand. Two more arms read record by record.

`exact_epochs` is the share of the records
that two ranks see exactly once in each of two epochs: the least of all frameworks. Frameworks are
taken from build-frameworks, which `tools/test frameworks` makes; those that are in neither
environment are left out.
"""

import importlib.util
import os
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import harness

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "arms"))

import exact
import inside
from inside import BATCH, THREADS, rate, seen_in

RECORD_BYTES = 4096


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


class BatchesByHand:
    """The same as BatchSource, for ArrayRecord."""

    def __init__(self, read: Callable[[Any], Any], count: int) -> None:
        """Batches of `read`, of one epoch."""
        import numpy as np

        self._read = read
        self._order = np.random.default_rng(1).permutation(count)

    def __len__(self) -> int:
        return len(self._order) // BATCH

    def __getitem__(self, step: int) -> Any:  # noqa: ANN401
        return self._read(self._order[step * BATCH : (step + 1) * BATCH])


def with_grain(path: pathlib.Path, count: int) -> list[harness.Arm]:
    """One pipeline over each source: a batch at a time, and record by record."""
    import grain
    import numpy as np
    from array_record.python.array_record_module import ArrayRecordWriter

    import ffrecord
    from ffrecord.grain import BatchSource, DataSource

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

    def read_theirs(wanted: Any) -> Any:  # noqa: ANN401
        return stacked(array_record.__getitems__(wanted.tolist()))

    our_batches, by_hand = BatchSource(ours, BATCH, seed=1), BatchesByHand(read_theirs, count)
    arms = {
        "grain": ("Grain, our batches", grain.MapDataset.source(our_batches)),
        "arrayrecord": ("Grain, ArrayRecord, read by batch", batched(read_theirs)),
        "grain_indices": ("Grain, our source, read by batch", batched(ours.read)),
        "arrayrecord_batches": ("Grain, ArrayRecord's batches", grain.MapDataset.source(by_hand)),
        "grain_records": ("Grain, our source, record by record", by_record(ours)),
        "arrayrecord_records": (
            "Grain, ArrayRecord, record by record",
            by_record(array_record, stacked),
        ),
    }
    return [harness.Arm(name, what, rate(count, run(it))) for name, (what, it) in arms.items()]


RATIOS = {
    "accelerate_vs_plain": ("accelerate", "plain"),
    "lightning_vs_plain": ("lightning", "lightning_plain"),
    "lightning_vs_ready": ("lightning", "lightning_ready"),
    "trainer_vs_plain": ("trainer", "trainer_plain"),
    "trainer_vs_ready": ("trainer", "trainer_ready"),
    "ray_vs_plain": ("ray", "ray_plain"),
    "grain_vs_arrayrecord": ("grain", "arrayrecord"),
    "grain_indices_vs_arrayrecord": ("grain_indices", "arrayrecord"),
    "grain_vs_arrayrecord_batches": ("grain", "arrayrecord_batches"),
    "grain_records_vs_arrayrecord": ("grain_records", "arrayrecord_records"),
}
ARMS = {
    "accelerate": inside.with_accelerate,
    "pytorch_lightning": inside.with_lightning,
    "transformers": inside.with_trainer,
    "ray": inside.with_ray,
    "grain": with_grain,
}


def bench(settings: harness.Settings) -> harness.Outcome:
    """Run all arms whose framework is installed."""
    root = pathlib.Path(__file__).resolve().parents[2]
    sys.path += map(str, (root / "build-frameworks").glob("lib/python*/site-packages"))
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # For Ray's processes.
    count = (128 if settings.quick else 512) * BATCH
    path = prepare(settings, count)
    arms: list[harness.Arm] = []
    notes: list[str] = []
    figures = exact.exact_epochs(notes)
    for package, make in ARMS.items():
        if importlib.util.find_spec(package) is None:
            notes.append(f"{package} is not installed: its arms are left out")
            continue
        arms += make(path, count)
    values = harness.interleave(arms, settings.rounds)
    ratios = {key: pair for key, pair in RATIOS.items() if pair[0] in values}
    return harness.Outcome("records/s", arms, values, ratios, figures, notes)
