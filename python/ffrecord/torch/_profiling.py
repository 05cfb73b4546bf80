"""Ranges in the traces of torch's profiler; within torch's `emit_nvtx` they are NVTX ranges."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def profiled(name: str) -> AbstractContextManager[Any]:
    """A range of that name, `ffrecord: ` before it, if anybody profiles."""
    if torch.autograd.profiler._is_profiler_enabled:
        return torch.autograd.profiler.record_function(f"ffrecord: {name}")
    return nullcontext()
