"""Where a step of training is: torch's backward passes and optimizers tell a profile.

Costs two calls per backward pass and per optimizer step, and nothing per module: forward is what
lies between a batch and its backward pass.
"""

import functools
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from ffrecord._base import recording

_is_watching = False
# Spans of optimizers that step now, some within others or in other threads: by thread and
# optimizer.
_spans: dict[tuple[int, int], recording.Span] = {}


def watch() -> None:
    """Watch from now on if a profile is on; from the import of torch on, if that is to come."""
    global _is_watching
    if _is_watching or not recording.on:
        return
    if "torch" not in sys.modules:
        if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
            sys.meta_path.insert(0, _Finder())
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
    # A compiler would look into them, warn of what it cannot compile, and compile less of a step.
    # As torch's own optimizers do it; torch.compiler.disable imports the compiler at once.
    left_alone = getattr(torch, "_disable_dynamo", lambda hook: hook)
    optimizer.register_optimizer_step_pre_hook(left_alone(_begins))
    optimizer.register_optimizer_step_post_hook(left_alone(_has_ended))


class _Finder:
    """Finds torch as it is found without us, and watches it once it is imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Where it is; None for other modules."""
        if name != "torch":
            return None
        others = (each for each in sys.meta_path if each is not self)
        found = next(filter(None, (each.find_spec(name, path, target) for each in others)), None)
        if found is not None and found.loader is not None:
            run = found.loader.exec_module

            def run_and_watch(module: ModuleType) -> None:
                run(module)
                with suppress(ValueError):
                    sys.meta_path.remove(self)
                watch()

            found.loader.exec_module = run_and_watch  # type: ignore[method-assign]
        return found


def _begins(stepping: object, *_: object) -> None:
    key = threading.get_ident(), id(stepping)
    if failed := _spans.pop(key, None):
        failed.drop()  # A step that has raised has no end.
    if recording.on:
        recording.trains()
        span = _spans[key] = recording.Span(recording.OPTIMIZER)
        span.start()


def _has_ended(stepping: object, *_: object) -> None:
    if span := _spans.pop((threading.get_ident(), id(stepping)), None):
        span.stop()
