"""Runs the training script of a tutorial on several ranks, and says what each rank saw.

Ranks are as torchrun makes them: its environment, one process each, Gloo over loopback. The scripts
print `epoch 0: 5 7 9` for each batch.
"""

import contextlib
import faulthandler
import importlib
import os
import re
import runpy
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch.multiprocessing as mp

import ffrecord

ROOT = Path(__file__).resolve().parents[2]
RECORDS = 125
RANK_S = 150
# What a script has left. torch 2.13 joins Gloo's thread when it frees a DistributedDataParallel,
# holding the GIL, which that thread may want: a rank would wait for ever. Its exit frees nothing.
KEPT: list[object] = []
GLOBAL_BATCH = 12
STEPS = -(-RECORDS // GLOBAL_BATCH)
SEEN = re.compile(r"^epoch (\d+):((?: \d+)*)$", re.MULTILINE)
SCRIPT = r'^```python title="{}"\n(.*?)^```$'


def framework(name: str) -> Any:  # noqa: ANN401 - a module
    """Import a framework; skip the tests if it is not installed, but not if it is broken."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0]:
            raise
        pytest.skip(f"{error.name} is not installed", allow_module_level=True)


def write_script(page: str, name: str, folder: Path) -> Path:
    """Write the block called `name` of a page of docs/tutorials, and the data that it reads."""
    text = (ROOT / "docs" / "tutorials" / page).read_text()
    found = re.search(SCRIPT.format(re.escape(name)), text, re.MULTILINE | re.DOTALL)
    assert found, f"{page} has no block {name}"
    with ffrecord.Writer(folder / "numbers.ffr", {"label": "i64"}) as writer:
        for number in range(RECORDS):
            writer.write({"label": number})
    script = folder / name
    script.write_text(found[1])
    return script


def run_page(page: Path, folder: Path, *, timeout_s: float = 300, **environment: str) -> None:
    """Run the code of a page in a folder, in processes of its own; fail with what has failed."""
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "python" / "run_page.py", page],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
        timeout=timeout_s,
    )
    assert done.returncode == 0, done.stderr


def replace_in(script: Path, old: str, new: str) -> None:
    """Make the script what a user may have written instead."""
    text = script.read_text()
    assert old in text
    script.write_text(text.replace(old, new))


def _rank(rank: int, world: int, port: int, script: str, arguments: tuple[str, ...]) -> None:
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    os.environ.update({name: str(value) for name, value in names.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TORCHELASTIC_RUN_ID="test")
    os.environ.update(OMP_NUM_THREADS="1", GROUP_RANK="0", ROLE_RANK=str(rank))
    # Of a rank that waits for ever, the stacks are what is wanted.
    faulthandler.dump_traceback_later(RANK_S, exit=True)
    mp.set_start_method("fork", force=True)  # As in a process that torchrun has started.
    os.chdir(Path(script).parent)
    sys.argv = [script, *arguments]
    with open(f"printed{rank}", "w") as printed, contextlib.redirect_stdout(printed):
        KEPT.append(runpy.run_path(script, run_name="__main__"))


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@dataclass
class Run:
    """What the ranks of one run were given: (epoch, labels) of each step, by rank."""

    by_rank: list[list[tuple[int, list[int]]]]

    def steps(self) -> list[tuple[int, list[int]]]:
        """The global steps: the epoch, and the labels of all ranks in their order."""
        assert len({len(steps) for steps in self.by_rank}) == 1, "ranks took unequal steps"
        made = []
        for shares in zip(*self.by_rank, strict=True):
            assert len({epoch for epoch, _ in shares}) == 1, "ranks were in different epochs"
            made.append((shares[0][0], [label for _, share in shares for label in share]))
        return made


def run(script: Path, world: int, *arguments: str) -> Run:
    """Run a script on `world` ranks to its end. The first failure of a rank is raised."""
    context = mp.start_processes(
        _rank,
        (world, _free_port(), str(script), arguments),
        nprocs=world,
        start_method="forkserver",
        join=False,
    )
    assert context is not None
    while not context.join():
        pass
    return Run(read_printed(script.parent, world))


def read_printed(folder: Path, world: int) -> list[list[tuple[int, list[int]]]]:
    """The epoch and labels of each batch, by rank."""
    printed = [(folder / f"printed{rank}").read_text() for rank in range(world)]
    return [
        [
            (int(epoch), [int(label) for label in labels.split()])
            for epoch, labels in SEEN.findall(p)
        ]
        for p in printed
    ]


def expected() -> list[tuple[int, list[int]]]:
    """The steps of two epochs, in the order of the scripts' sampler."""
    from ffrecord.torch import Sampler

    sampler = Sampler(RECORDS, GLOBAL_BATCH, 1, last="short", rank=0, world_size=1)
    return [(epoch, list(batch)) for epoch in range(2) for batch in sampler]


def check_exact(steps: list[tuple[int, list[int]]]) -> None:
    """Two epochs, each record exactly once in each, in the sampler's order."""
    for epoch in range(2):
        labels = [label for e, batch in steps if e == epoch for label in batch]
        assert sorted(labels) == list(range(RECORDS)), f"epoch {epoch}"
    assert steps == expected()
