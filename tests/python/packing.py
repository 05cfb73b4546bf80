"""What tests of packing share: what is in a file that was packed, and packings that must fail."""

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import ffrecord
from cli import run
from eventually import eventually
from ffrecord.pack._source import Chunk, Keyed, Lacking

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
        if isinstance(value, list):
            return [plain(each) for each in value]
        return value.item() if isinstance(value, np.generic) else value

    reader = ffrecord.open(path)
    return [
        {name: plain(value) for name, value in sample.items()} if reader.columns else bytes(sample)
        for sample in reader.read(range(len(reader)))
    ]


def plain(samples: Any) -> list[Any]:  # noqa: ANN401 - of any source
    """Samples as plain values, rows of tables one by one."""
    found: list[Any] = []
    for sample, _ in samples:
        if isinstance(sample, Chunk):
            found += sample.table.to_pylist()
        else:
            found.append(sample.sample if isinstance(sample, Keyed | Lacking) else sample)
    return found


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


# Where functions are that packings in other processes are given.
FUNCTIONS = Path(__file__).parent


def _command(*arguments: str | Path) -> list[str]:
    # A shell's & ignores the interrupt.
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from ffrecord._cli.pack import main; sys.exit(main())"
    )
    return [sys.executable, "-c", code, *map(str, arguments)]


def begun(*arguments: str | Path) -> "subprocess.Popen[bytes]":
    """A packing in a group of processes of its own."""
    return subprocess.Popen(
        _command(*arguments),
        start_new_session=True,
        cwd=FUNCTIONS,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def units_done(folder: Path, units: int) -> Iterator[bool]:
    """Whether so many units are done: a condition to wait for."""
    while True:
        job = folder.parent / f".{folder.name}.packing"
        yield len(list(job.glob("*/done/*"))) >= units


def wait_for(condition: Iterator[bool], process: "subprocess.Popen[bytes]") -> None:
    """Wait until a condition holds, or the process ends."""
    eventually(lambda: process.poll() is not None or next(condition))
