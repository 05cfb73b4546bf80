"""What of vLLM a loader of models meets: its registry, its base class, and a model."""

import abc
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

NAMES = ("vllm", "vllm.model_executor", "vllm.model_executor.model_loader")


class BaseModelLoader(abc.ABC):
    """A loader is made of a `load_config`; vLLM calls these two."""

    def __init__(self, load_config: Any) -> None:  # noqa: ANN401
        self.load_config = load_config

    @abc.abstractmethod
    def download_model(self, model_config: Any) -> None:  # noqa: ANN401
        """Make the weights available."""

    @abc.abstractmethod
    def load_weights(self, model: Any, model_config: Any) -> None:  # noqa: ANN401
        """Fill the model."""


@contextmanager
def installed() -> Iterator[dict[str, type[BaseModelLoader]]]:
    """The package can be imported in the block; gives what has been registered."""
    formats: dict[str, type[BaseModelLoader]] = {}

    def register_model_loader(load_format: str) -> Callable[[type], type]:
        def register(loader: type) -> type:
            assert issubclass(loader, BaseModelLoader) and load_format not in formats
            formats[load_format] = loader
            return loader

        return register

    with pytest.MonkeyPatch.context() as patch:
        for name in NAMES:
            module: Any = types.ModuleType(name)
            module.__path__ = []
            patch.setitem(sys.modules, name, module)
        module.register_model_loader = register_model_loader
        base: Any = types.ModuleType(f"{NAMES[-1]}.base_loader")
        base.BaseModelLoader = BaseModelLoader
        patch.setitem(sys.modules, base.__name__, base)
        yield formats
        sys.modules.pop("ffrecord.torch.vllm", None)


class Model(torch.nn.Module):
    """With two matrices in one, of which its second rank has the lower half, as layers there do."""

    def __init__(self, rank: int = 1, tells: bool = True) -> None:
        super().__init__()
        self.rank, self.tells = rank, tells
        self.qk = torch.nn.Parameter(torch.zeros(8, 6), requires_grad=False)
        self.norm = torch.nn.Parameter(torch.zeros(6), requires_grad=False)

    def load_weights(self, weights: Iterator[tuple[str, torch.Tensor]]) -> set[str] | None:
        """The parameters that were filled, or None, as some models there do."""
        loaded = set()
        for name, tensor in weights:
            if name in ("q", "k"):
                at = 0 if name == "q" else 4
                self.qk[at : at + 4].copy_(tensor.narrow(0, 4 * self.rank, 4))
                loaded.add("qk")
            elif name == "norm":
                self.norm.copy_(tensor)
                loaded.add("norm")
        return loaded if self.tells else None


def load_config(**options: object) -> Any:  # noqa: ANN401
    """The part of vLLM's that a loader reads."""
    return SimpleNamespace(load_format="ffrecord", model_loader_extra_config=options)


def model_config(model: str, quantization: str | None = None) -> Any:  # noqa: ANN401
    """Likewise."""
    return SimpleNamespace(model=model, quantization=quantization)
