"""What tests of packing share: what is in a file that was packed, and packings that must fail."""

import random
from pathlib import Path
from typing import Any

import numpy as np

import ffrecord
from cli import run

# Two records that the `tfrecord` package 1.14 wrote: an image, a label, a box of two numbers.
TFRECORDS = bytes.fromhex(
    "410000000000000000a9c2ab0a3f0a0f0a05696d61676512060a040a02ff000a170a056c6162656c120e1a0c0a0a"
    "ffffffffffffffffff010a130a03626f78120c120a0a080000003f00000000b66f03dc3800000000000000a3797d"
    "570a360a0f0a05696d61676512060a040a02ff010a0e0a056c6162656c12051a030a01000a130a03626f78120c12"
    "0a0a080000003f0000803f2706c784"
)


# Of a part, in tests of many parts.
PART = 20_000


def write_classes(folder: Path) -> Path:
    """Write three classes of a hundred files; return the folder."""
    draws = random.Random(1)
    for name in ("a", "b", "c"):
        (folder / name).mkdir()
        for number in range(100):
            (folder / name / f"{number:03}").write_bytes(draws.randbytes(draws.randrange(1, 2000)))
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def records(path: Path) -> list[Any]:
    """Every record as plain Python values."""

    def plain(value: Any) -> Any:  # noqa: ANN401 - of any column
        if isinstance(value, np.ndarray):
            return bytes(value) if value.dtype == np.uint8 else value.tolist()
        return value.item() if isinstance(value, np.generic) else value

    reader = ffrecord.open(path)
    return [
        {name: plain(value) for name, value in sample.items()} if reader.columns else bytes(sample)
        for sample in reader.read(range(len(reader)))
    ]


def schema(path: Path) -> dict[str, str]:
    return {column.name: column.spelling for column in ffrecord.open(path).columns}


def refused(code: int, *arguments: str | Path) -> str:
    """The message of a packing that must fail with `code` and leave nothing behind."""
    destination = Path(arguments[-1])
    before = sorted(destination.parent.iterdir())
    done = run("ffrecord-pack", *arguments)
    assert (done.returncode, done.stderr.count("\n")) == (code, 1), done.stderr
    assert sorted(destination.parent.iterdir()) == before
    return done.stderr
