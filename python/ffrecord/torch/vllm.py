"""A model loader of vLLM that reads weights straight from a checkpoint.

    options = {"target": "ffrecord://host/runs/x", "prefix": "model"}
    LLM(model=name, load_format="ffrecord", model_loader_extra_config=options)

vLLM finds the format without a call where both packages are installed; a program can call
`register` instead.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vllm.model_executor.model_loader import (  # type: ignore[import-not-found, unused-ignore]
    register_model_loader,
)
from vllm.model_executor.model_loader.base_loader import (  # type: ignore[import-not-found, unused-ignore]
    BaseModelLoader,
)

from ffrecord.weights._reading import Weights
from ffrecord.weights._reading import open as open_step
from ffrecord.weights._versions import Subscriber

__all__ = ["LOAD_FORMAT", "ModelLoader", "register"]

LOAD_FORMAT = "ffrecord"

_OPTIONS = ("target", "step", "prefix", "published", "timeout_s")


class ModelLoader(BaseModelLoader):  # type: ignore[misc, unused-ignore]
    """Gives a model of vLLM the tensors of a step, one at a time.

    Options in `model_loader_extra_config`:

    - `target`: where the checkpoint is. Default: the model's name, if it is a target.
    - `step`: which step; default: "latest".
    - `prefix`: the path of the model in the state, such as "model".
    - `published`: if true, a `Publisher` publishes there, and `step` is the newest version.
    - `timeout_s`: for each call to a daemon or store.
    """

    def __init__(self, load_config: Any) -> None:  # noqa: ANN401 (vLLM's)
        """Check the options. Raises ValueError: one of them is unknown."""
        super().__init__(load_config)
        self._options = dict(load_config.model_loader_extra_config or {})
        if unknown := sorted(set(self._options) - set(_OPTIONS)):
            raise ValueError(
                f"model_loader_extra_config has {', '.join(unknown)}; the format {LOAD_FORMAT} "
                f"takes {', '.join(_OPTIONS)}"
            )
        if self._options.get("published") and "step" in self._options:
            raise ValueError("published reads the newest version: leave step out")

    def download_model(self, model_config: Any) -> None:  # noqa: ANN401
        """Open the step, so that a wrong address shows early; nothing is copied."""
        with self._open(model_config):
            pass

    def load_weights(self, model: Any, model_config: Any) -> None:  # noqa: ANN401
        """Fill the model by its own `load_weights`.

        Raises:
            ValueError: parameters of the model have no weights in the step.
        """
        with self._open(model_config) as weights:
            loaded = model.load_weights(weights.read())
            if loaded is None or getattr(model_config, "quantization", None) is not None:
                return
            missing = sorted({name for name, _ in model.named_parameters()} - set(loaded))
            if missing:
                shown = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
                raise ValueError(
                    f"step {weights.commit.step} has no weights for {len(missing)} parameters: "
                    f"{shown}; is prefix the path of the model in the state?"
                )

    @contextmanager
    def _open(self, model_config: Any) -> Iterator[Weights]:  # noqa: ANN401
        options = self._options
        target = options.get("target") or model_config.model
        prefix, timeout_s = options.get("prefix", ""), options.get("timeout_s", 30.0)
        if options.get("published"):
            source = Subscriber(target, prefix=prefix, as_torch=True, timeout_s=timeout_s)
            with source.open() as weights:
                yield weights
        else:
            step = options.get("step", "latest")
            yield open_step(target, step=step, prefix=prefix, as_torch=True, timeout_s=timeout_s)


_registered = False


def register() -> None:
    """Make the format known to vLLM, in this process; again is no matter."""
    global _registered
    if not _registered:
        register_model_loader(LOAD_FORMAT)(ModelLoader)
        _registered = True
