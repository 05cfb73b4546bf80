"""What checkpoint_saver.cpp saves, and whether a run's folder holds that and nothing else."""

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import ffrecord.checkpoint as ckpt

BUILD = Path(os.environ.get("FFRECORD_BUILD_DIR", Path(__file__).resolve().parents[2] / "build"))
SAVER = BUILD / "tests" / "crash" / "checkpoint-saver"


def matrix_of(step: int) -> Any:  # noqa: ANN401 (an array)
    """The tensor of that step."""
    i = np.arange(1000 * 103, dtype=np.uint64)
    return ((i * 31 + i // 251 + step * 7) % 251).astype(np.uint8).reshape(1000, 103)


def frozen() -> Any:  # noqa: ANN401 (an array)
    """The tensor that is the same in every step."""
    return (np.arange(300_000) % 251).astype(np.uint8)


def visible_steps(run: Path) -> list[int]:
    """The steps that a reader sees."""
    folders = [*run.glob("step-*"), *run.glob(".aside-*")]
    return sorted({int(path.name.split("-")[1]) for path in folders})


def check(run: Path, steps_allowed: list[set[int]]) -> str:
    """What is wrong with `run`; empty if nothing.

    The visible steps must be one of the sets allowed, and each must hold exactly what was saved:
    a step is whole or absent, and never a mixture.
    """
    steps = visible_steps(run)
    if set(steps) not in steps_allowed:
        return f"steps {steps} are visible, allowed are {steps_allowed}"
    for step in steps:
        try:
            loaded: Any = ckpt.load(run, step=step)
        except (OSError, RuntimeError, ValueError) as error:
            return f"step {step} is visible and does not load: {error}"
        if loaded["step"] != step or not np.array_equal(loaded["matrix"], matrix_of(step)):
            return f"step {step} holds other bytes"
        if not np.array_equal(loaded["frozen"], frozen()):
            return f"step {step} holds other frozen bytes"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        latest = ckpt.latest(run)
    if (latest.step if latest else None) != (steps[-1] if steps else None):
        return f"the latest is {latest}, visible are {steps}"
    return ""
