"""What the tests of the loader share: a small file, the ways to load it, the order to expect."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ffrecord
from ffrecord.torch import Sampler

COUNT = 120
ENGINES: dict[str, dict[str, Any]] = {
    "inline": {},
    "workers": {"mode": "workers", "num_workers": 2},
    "persistent": {"num_workers": 2, "persistent_workers": True},
    "threads": {"mode": "threads", "num_workers": 2},
    "auto": {"num_workers": 2},
}
every_engine = pytest.mark.parametrize("options", ENGINES.values(), ids=ENGINES)


def met_by_engines(name: str, cases: dict[str, Any], *by_all: str) -> pytest.MarkDecorator:
    """Each case inline and by workers; those named also by the other engines.

    For products that take long: persistent workers differ from others in later epochs alone,
    threads from the caller in who collects, and `auto` is one of these.
    """
    pairs = {
        f"{case}-{engine}": (cases[case], options)
        for case in cases
        for engine, options in ENGINES.items()
        if case in by_all or engine in ("inline", "workers")
    }
    return pytest.mark.parametrize((name, "options"), pairs.values(), ids=pairs)


IMAGE_BYTES = 10_000
# Threads of Python's make batches with bytes in them, native ones those of numbers alone.
KINDS = ["bytes", "numbers"]


def written(folder: Path, kind: str = "bytes") -> Path:
    """A file of COUNT records whose labels are their indices; their images are of that kind."""
    path = folder / "data.ffr"
    fixed = kind == "numbers"
    image_type = f"u8[{IMAGE_BYTES}]" if fixed else "bytes"
    with ffrecord.Writer(path, {"label": "i64", "x": "f32[3]", "image": image_type}) as writer:
        for i in range(COUNT):
            image = bytes([i]) * (IMAGE_BYTES + (0 if fixed else i))
            value = np.frombuffer(image, np.uint8) if fixed else image
            writer.write({"label": i, "x": np.arange(3) + i, "image": value})
    return path


def labels(batches: Any) -> list[list[int]]:  # noqa: ANN401 - any loader
    """The labels of each batch."""
    return [batch["label"].tolist() for batch in batches]


def expected(epoch: int = 0, batch: int = 20) -> list[list[int]]:
    """The labels of each batch of an epoch, as the sampler orders them."""
    sampler = Sampler(COUNT, batch)
    sampler.set_epoch(epoch)
    return [list(indices) for indices in sampler]


def noise(sample: dict[str, Any], generator: np.random.Generator) -> tuple[int, int]:
    """A transform that draws."""
    return int(sample["label"]), int(generator.integers(2**31))
