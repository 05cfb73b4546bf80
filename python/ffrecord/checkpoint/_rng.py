"""Random states of Python, NumPy and torch as plain values."""

import random
import sys
from typing import Any

import numpy as np


def rng_state() -> dict[str, object]:
    """Return the states of `random`, of NumPy's global generator and, if it is imported, of torch.

    They differ from rank to rank: save `PerRank(rng_state())` if each rank is to continue its own
    sequence. Save the states of your own generators separately.
    """
    version, internal, gauss = random.getstate()
    state: dict[str, object] = {"python": [version, list(internal), gauss]}
    legacy: Any = np.random.get_state(legacy=False)
    words = legacy["state"]["key"].astype("<u4").tobytes()
    state["numpy"] = {
        "generator": legacy["bit_generator"],
        "key": words,
        "position": int(legacy["state"]["pos"]),
        "has_gauss": int(legacy["has_gauss"]),
        "gauss": float(legacy["gauss"]),
    }
    torch = sys.modules.get("torch")
    if torch is not None:
        state["torch"] = torch.get_rng_state().numpy().tobytes()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            state["cuda"] = [each.numpy().tobytes() for each in torch.cuda.get_rng_state_all()]
    return state


def set_rng_state(state: dict[str, Any]) -> None:
    """Restore the result of `rng_state`.

    Raises:
        ValueError: the state belongs to another kind of generator, or to other devices; nothing is
            set before it was checked.
    """
    version, internal, gauss = state["python"]
    numpy_state = state["numpy"]
    if numpy_state["generator"] != "MT19937":
        raise ValueError(f"NumPy's global generator is MT19937, not {numpy_state['generator']}")
    torch = sys.modules.get("torch")
    if "torch" in state and torch is None:
        raise ValueError("the state holds torch's random state: import torch before setting it")
    random.setstate((version, tuple(internal), gauss))
    key = np.frombuffer(numpy_state["key"], dtype="<u4")
    np.random.set_state(
        ("MT19937", key, numpy_state["position"], numpy_state["has_gauss"], numpy_state["gauss"])
    )
    if torch is not None and "torch" in state:
        torch.set_rng_state(_as_tensor(torch, state["torch"]))
        if "cuda" in state and torch.cuda.is_available():
            torch.cuda.set_rng_state_all([_as_tensor(torch, each) for each in state["cuda"]])


def _as_tensor(torch: Any, content: bytes) -> Any:  # noqa: ANN401 (torch is not imported here)
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)
