"""Ranks of a process group: processes, forked from one that has torch (see conftest.py)."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

Body = Callable[..., Any]


def _rank(rank: int, body: Body, world: int, folder: str, *rest: object) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world
    )
    found = body(rank, world, *rest)
    Path(folder, f"found{rank}").write_text(json.dumps(found))
    # No destroy_process_group(): exit must be clean without it.


class Ranks:
    """Ranks that have been started: `body(rank, world, *rest)`, joined by Gloo."""

    def __init__(self, body: Body, world: int, *rest: object) -> None:
        """Start them."""
        self._folder = tempfile.TemporaryDirectory(prefix="ffrecord-ranks-")
        context = mp.start_processes(
            _rank,
            (body, world, self._folder.name, *rest),
            nprocs=world,
            start_method="forkserver",
            join=False,
        )
        assert context is not None
        self.context = context

    def found(self, rank: int) -> Any:  # noqa: ANN401
        """What the body of a rank that has ended returned, by way of JSON."""
        return json.loads(Path(self._folder.name, f"found{rank}").read_text())


def run_ranks(body: Body, world: int, *rest: object) -> list[Any]:
    """Wait for their orderly end; what each returned. The first failure is raised."""
    ranks = Ranks(body, world, *rest)
    while not ranks.context.join():
        pass
    return [ranks.found(rank) for rank in range(world)]
