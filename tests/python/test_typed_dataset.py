"""Goal: a type checker knows what the samples of a dataset are.

Method: mypy --strict over a program that uses datasets as users do; `reveal_type` says what it
found, and each misuse is an error.
"""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.wrong_data

pytest.importorskip("mypy", reason="mypy checks the program")

PROGRAM = '''
import numpy as np
import torch
from torch import Tensor

from ffrecord.torch import ConcatDataset, DataLoader, Dataset, Sampler, Subset

Sample = dict[str, Tensor]


def decode(sample: object) -> Sample:
    return {"x": torch.zeros(1)}


def augment(sample: object, generator: np.random.Generator) -> tuple[int, float]:
    return 1, generator.random()


declared: Dataset[Sample] = Dataset("a.ffr")
reveal_type(declared[0])
reveal_type(Dataset("a.ffr", transform=decode))
made = Dataset("a.ffr", transform=augment)
reveal_type(made[np.int64(3)])
for sample in made:
    reveal_type(sample)
reveal_type(Subset(made, [1, 2])[0])
reveal_type(ConcatDataset([declared, declared])[0])
reveal_type(made.with_format("torch"))
reveal_type(Dataset("a.ffr")[0])
loader = DataLoader(made, batch_sampler=Sampler(made, 8))


class Own(Dataset[Sample]):
    """A subclass with a type, and one without."""


class Old(Dataset):
    """As before the type parameter."""


reveal_type(Own("a.ffr")[0])
reveal_type(Old("a.ffr")[0])
wrong: Dataset[int] = Dataset("a.ffr", transform=decode)
number: int = declared[0]
'''
FOUND = [
    "dict[str, Tensor]",
    "Dataset[dict[str, Tensor]]",
    "tuple[int, float]",
    "tuple[int, float]",
    "tuple[int, float]",
    "dict[str, Tensor]",
    "Dataset[tuple[int, float]]",
    "Any",
    "dict[str, Tensor]",
    "Any",
]


def test_mypy_knows_the_samples(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-incremental", str(program)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )

    said = done.stdout.replace("builtins.", "").replace("torch._tensor.", "")
    said = said.replace("ffrecord.torch._dataset.", "")
    revealed = [line.split('"')[1] for line in said.splitlines() if "Revealed type" in line]
    errors = [line for line in said.splitlines() if ": error:" in line]
    assert revealed == FOUND, done.stdout + done.stderr
    assert len(errors) == 2, done.stdout
    assert all(
        "wrong" in program.read_text().splitlines()[int(e.split(":")[1]) - 1]
        or "number" in program.read_text().splitlines()[int(e.split(":")[1]) - 1]
        for e in errors
    ), errors


def test_a_subscripted_dataset_is_a_dataset(tmp_path: Path) -> None:
    import pickle

    from ffrecord import Writer
    from ffrecord.torch import Dataset

    with Writer(tmp_path / "a.ffr") as writer:
        writer.write(b"x")
    made = Dataset[int](tmp_path / "a.ffr")

    assert type(made) is Dataset
    assert type(pickle.loads(pickle.dumps(made))) is Dataset
