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
    "workers": {"num_workers": 2},
    "persistent": {"num_workers": 2, "persistent_workers": True},
    "threads": {"mode": "threads", "num_workers": 2},
}
every_engine = pytest.mark.parametrize("options", ENGINES.values(), ids=ENGINES)


def written(folder: Path) -> Path:
    """A file of COUNT records whose labels are their indices."""
    path = folder / "data.ffr"
    with ffrecord.Writer(path, {"label": "i64", "x": "f32[3]", "image": "bytes"}) as writer:
        for i in range(COUNT):
            image = bytes([i]) * (10_000 + i)
            writer.write({"label": i, "x": np.arange(3) + i, "image": image})
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
