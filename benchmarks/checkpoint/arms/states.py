"""The state of a model on the CPU, ranks that are threads, and files out of the page cache."""

# ruff: noqa: ANN401 - tensors of torch, that are imported late

import pathlib
import sys
from typing import Any

import harness

ROOT = pathlib.Path(__file__).resolve().parents[3]


def model_state(layers: int) -> dict[str, Any]:
    """Parameters of a GPT-2 of width 1,024, and the moments that AdamW keeps of each."""
    import torch

    width = 1024
    shapes = {"wte": (50257, width), "wpe": (1024, width), "ln_f.w": (width,), "ln_f.b": (width,)}
    for layer in range(layers):
        for name, shape in {
            "ln_1.w": (width,), "ln_1.b": (width,), "attn.qkv.w": (3 * width, width),
            "attn.qkv.b": (3 * width,), "attn.out.w": (width, width), "attn.out.b": (width,),
            "ln_2.w": (width,), "ln_2.b": (width,), "mlp.in.w": (4 * width, width),
            "mlp.in.b": (4 * width,), "mlp.out.w": (width, 4 * width), "mlp.out.b": (width,),
        }.items():  # fmt: skip
            shapes[f"h.{layer}.{name}"] = shape
    generator = torch.Generator().manual_seed(7)
    return {
        part: {name: torch.rand(shape, generator=generator) for name, shape in shapes.items()}
        for part in ("model", "exp_avg", "exp_avg_sq")
    }


def tensors_of(state: Any) -> list[Any]:
    """All leaves."""
    if isinstance(state, dict):
        return [leaf for child in state.values() for leaf in tensors_of(child)]
    return [state]


def flat_of(state: Any, path: str = "") -> dict[str, Any]:
    """All leaves by their paths."""
    if not isinstance(state, dict):
        return {path: state}
    return {
        k: v for key, child in state.items() for k, v in flat_of(child, f"{path}/{key}").items()
    }


def size_of(state: Any) -> int:
    """In bytes."""
    return sum(tensor.nbytes for tensor in tensors_of(state))


def thread_ranks(count: int) -> Any:
    """Ranks that are threads, as the tests have them; call it when the package can be imported."""
    folder = str(ROOT / "tests" / "python")
    if folder not in sys.path:
        sys.path.append(folder)
    from thread_ranks import ThreadRanks

    return ThreadRanks(count)


def drop_cache(folder: pathlib.Path) -> None:
    """Put all files below out of the page cache."""
    for path in [folder] if folder.is_file() else folder.rglob("*"):
        if path.is_file() and path.stat().st_size > 1 << 20:
            harness.make_cold(path)
