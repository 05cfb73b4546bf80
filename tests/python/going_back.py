"""Runs at every kind of target, for tests of runs that go back to an earlier step."""

import multiprocessing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ffrecord.checkpoint as ckpt
from daemon import Daemon
from ffrecord.errors import ConflictError

KINDS = ["folder", "replicated", "daemon", "store"]
Runs = Callable[[str], str]
every_kind = pytest.mark.parametrize("runs", KINDS, indirect=True)


def runs_of(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Runs]:
    """Addresses of runs at a kind of target, by name: the parameter of a fixture."""
    kind = request.param
    if kind == "store":
        request.getfixturevalue("store")
        place = f"s3://bucket/{tmp_path.name}"
        yield lambda name: f"{place}/{name}"
    elif kind == "daemon":
        with Daemon(tmp_path / "served") as daemon:
            yield lambda name: daemon.address(f"runs/{name}")
    elif kind == "replicated":
        yield lambda name: ckpt.replicated_target([tmp_path / f"{name}-{i}" for i in "abc"])
    else:
        yield lambda name: str(tmp_path / name)


def state(value: int) -> dict[str, Any]:
    """A state that says which one it is."""
    return {"w": np.full(5000, value, np.int32), "frozen": np.arange(100_000), "step": value}


def save(run: str, step: int, value: int | None = None, **options: Any) -> ckpt.Commit:  # noqa: ANN401
    return ckpt.save(run, step, state(step if value is None else value), **options)


def value(run: str, step: Any = "latest", *, resume: bool | None = True) -> int:  # noqa: ANN401
    """Load it, and go on from there unless told otherwise; what it says it is."""
    loaded: Any = ckpt.load(run, step=step, resume=resume)
    assert (loaded["w"] == loaded["step"]).all()
    return int(loaded["step"])


def seen(run: str) -> list[int]:
    """What a run has, as those who go on with it see it."""
    listed = [commit.step for commit in ckpt.list(run)]
    latest = ckpt.latest(run)
    assert (latest and latest.step) == max(listed, default=None)
    return listed


def given_up(run: str) -> list[int]:
    return [commit.step for commit in ckpt.list(run, given_up=True) if commit.given_up]


def go_back(run: str) -> None:
    """Steps 1 to 4; then back to 1, and on with 2, which is there."""
    for step in (1, 2, 3, 4):
        save(run, step)
    assert value(run, 1) == 1
    save(run, 2, 20)


def saves_in_another_process(run: str, loads: int | None, step: int, **options: Any) -> int:  # noqa: ANN401
    """Load and save as a process that has not been there yet; returns an exit status.

    3: the step is there; 4: the save conflicts with the run.
    """
    context = multiprocessing.get_context("forkserver")
    saver = context.Process(target=_load_and_save, args=(run, loads, step, options))
    saver.start()
    saver.join()
    return int(saver.exitcode or 0)


def _load_and_save(run: str, loads: int | None, step: int, options: dict[str, Any]) -> None:
    if loads is not None:
        value(run, loads, resume=None)
    try:
        save(run, step, 1000 + step, **options)
    except ConflictError as error:
        raise SystemExit(3 if "is committed already" in str(error) else 4) from None
