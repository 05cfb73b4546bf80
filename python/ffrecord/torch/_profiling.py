"""Ranges for profilers: in the traces of torch's, in those of `emit_nvtx`, and in our own."""

import os
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch
from torch.utils.data import get_worker_info

from ffrecord._base import clock, recording


def profiled(name: str, kind: int) -> AbstractContextManager[Any]:
    """A range of that name, `ffrecord: ` before it, if anybody profiles; `kind` is for ours."""
    by_torch = torch.autograd.profiler._is_profiler_enabled
    if not by_torch:
        return recording.Span(kind) if recording.on else nullcontext()
    both = ExitStack()
    both.enter_context(torch.autograd.profiler.record_function(f"ffrecord: {name}"))
    both.enter_context(recording.Span(kind))
    return both


def note_source(dataset: Any) -> None:  # noqa: ANN401 - any dataset
    """Tell our profile that a loader begins, and where its records are."""
    if not recording.on:
        return
    if get_worker_info() is None:
        recording.trains()
    where = getattr(getattr(dataset, "source", None), "where", None)
    if where:
        first = os.fsdecode(where[0])
        place = first if "://" in first else os.path.dirname(os.path.abspath(first))
        now = clock.now_ns()
        recording.record(recording.SOURCE, now, now, place)
