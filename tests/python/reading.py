"""What tests of readers share: two small files, and what is in them."""

from pathlib import Path

import numpy as np

import ffrecord

SCHEMA = {"image": "bytes", "label": "i64", "name": "utf8", "box": "f32[2,2]", "flag": "bool"}


def sample(i: int) -> dict[str, object]:
    return {
        "image": bytes([i % 256]) * (i * 37 % 500),
        "label": i - 5,
        "name": f"é{i}",
        "box": np.full((2, 2), i / 2),
        "flag": i % 3 == 0,
    }


def raw(i: int) -> bytes:
    return b"%d:" % i + bytes([i % 251]) * (i * 53 % 700)


def typed_file(folder: Path) -> Path:
    """A hundred samples."""
    path = folder / "typed.ffr"
    with ffrecord.Writer(path, SCHEMA, compress="zstd") as writer:
        for i in range(100):
            writer.write(sample(i))
    return path


def plain_file(folder: Path) -> Path:
    """Three hundred records without columns."""
    path = folder / "plain.ffr"
    with ffrecord.Writer(path) as writer:
        for i in range(300):
            writer.write(raw(i))
    return path
