"""Where a step of training is: torch's backward passes and optimizers tell a profile.

Costs two calls per backward pass and per optimizer step, and nothing per module: forward is what
lies between a batch and its backward pass. Imported only where torch is.
"""

import functools
import sys
from typing import Any

from ffrecord._base import recording

_is_watching = False
_spans: list[recording.Span] = []  # Of optimizers that step now; some step within others.


def watch() -> None:
    """Watch from now on, if a profile is on and the program has imported torch."""
    global _is_watching
    if _is_watching or not recording.on or "torch" not in sys.modules:
        return
    _is_watching = True
    import torch
    from torch.optim import optimizer

    inner = torch.autograd.backward

    @functools.wraps(inner)
    def backward(*args: Any, **options: Any) -> Any:  # noqa: ANN401 - torch's own
        if not recording.on:
            return inner(*args, **options)
        with recording.Span(recording.BACKWARD):
            return inner(*args, **options)

    torch.autograd.backward = backward  # Tensor.backward calls what is here.
    optimizer.register_optimizer_step_pre_hook(_begins)
    optimizer.register_optimizer_step_post_hook(_has_ended)


def _begins(*_: object) -> None:
    if recording.on:
        recording.trains()
        span = recording.Span(recording.OPTIMIZER)
        span.start()
        _spans.append(span)


def _has_ended(*_: object) -> None:
    if _spans:
        _spans.pop().stop()
