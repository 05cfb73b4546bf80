"""Files of labels, for tests of views of several files, and a mix of two of them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

import ffrecord

COUNTS = {"a": 300, "b": 100, "c": 200}
FIRST = {"a": 0, "b": 1000, "c": 2000}  # The labels of a file begin there.


def written(folder: Path) -> dict[str, Path]:
    """The files, by name."""
    for name, count in COUNTS.items():
        with ffrecord.Writer(folder / f"{name}.ffr", {"label": "i64", "t": "bytes"}) as writer:
            for label in range(FIRST[name], FIRST[name] + count):
                writer.write({"label": label, "t": np.full(4, label, "<u2").tobytes()})
    return {name: folder / f"{name}.ffr" for name in COUNTS}


def mixed(files: dict[str, Path], weights: Iterable[int] = (1, 1), seed: int = 5) -> Any:  # noqa: ANN401 - a Mix
    """A mix of a and b."""
    return ffrecord.mix([ffrecord.open(files["a"]), ffrecord.open(files["b"])], weights, seed)
