"""Goal: state that lies on an accelerator is saved as it was, and loaded to where it is to be.

Method: tensors of every type and form on a real device; a training that goes on from a checkpoint
against one that was never interrupted. Skipped where PyTorch finds no accelerator.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import ffrecord.checkpoint as ckpt  # noqa: E402 (after the skip)
from ffrecord.torch._placing import current_accelerator  # noqa: E402

DEVICE = current_accelerator()
if DEVICE is None:
    pytest.skip("PyTorch finds no accelerator here", allow_module_level=True)

DTYPES = (
    "bool", "uint8", "int16", "int64", "float16", "bfloat16", "float32", "float64", "complex64",
    "float8_e4m3fn",
)  # fmt: skip


def tensor_of(dtype: str, *shape: int) -> Any:  # noqa: ANN401 (torch may be missing)
    """Random bytes as elements, on the device."""
    if dtype == "bool":
        return torch.rand(shape, device=DEVICE) < 0.5
    size = getattr(torch, dtype).itemsize
    content = torch.randint(0, 256, (*shape[:-1], shape[-1] * size), dtype=torch.uint8)
    return content.view(getattr(torch, dtype)).to(DEVICE)


def bits(tensor: Any) -> bytes:  # noqa: ANN401 (torch may be missing)
    """For comparing NaNs and types without ==."""
    return bytes(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())


def forms() -> dict[str, Any]:
    """Every way in which a tensor can lie in the device's memory."""
    base = tensor_of("float32", 64, 48)
    return {
        "plain": base,
        "transposed": base.t(),
        "sliced": base[3:50:3, 5:20],
        "expanded": base[:1].expand(64, 48),
        "empty": base[:0],
        "scalar": base[0, 0],
        "tied": base,
        "parameter": torch.nn.Parameter(base.clone()),
        "large": tensor_of("bfloat16", 3000, 4001),
    }


@pytest.mark.parametrize("form", ["state on the device", "state on the host"])
def test_every_dtype_is_loaded_to_where_it_is_wanted(tmp_path: Path, form: str) -> None:
    state = {dtype: tensor_of(dtype, 3, 5) for dtype in DTYPES}
    ckpt.save(tmp_path, 1, state)
    target = DEVICE if form == "state on the device" else "cpu"
    into = {dtype: torch.zeros_like(tensor, device=target) for dtype, tensor in state.items()}
    ckpt.load(tmp_path, into)
    for dtype, tensor in state.items():
        assert into[dtype].device.type == torch.device(target).type
        assert bits(into[dtype]) == bits(tensor), dtype


def save_at_once(target: Path, state: object) -> None:
    ckpt.save(target, 1, state)


def save_in_background(target: Path, state: object) -> None:
    ckpt.async_save(target, 1, state).result()


def save_unstaged(target: Path, state: object) -> None:
    ckpt.async_save(target, 1, state, stage_bytes_max=1 << 20).result()


SAVES = [save_at_once, save_in_background, save_unstaged]


@pytest.mark.parametrize("save", SAVES)
def test_every_form_comes_back(tmp_path: Path, save: Callable[[Path, object], None]) -> None:
    state = forms()
    save(tmp_path, state)
    into = {name: torch.zeros_like(tensor).contiguous() for name, tensor in state.items()}
    ckpt.load(tmp_path, into)
    for name, tensor in state.items():
        assert bits(into[name]) == bits(tensor), name


def test_it_is_loaded_into_every_form(tmp_path: Path) -> None:
    wanted = tensor_of("float32", 48, 64)
    ckpt.save(tmp_path, 1, {"x": wanted})
    base = torch.zeros(64, 48, device=DEVICE)
    ckpt.load(tmp_path, {"x": base.t()})
    assert bits(base.t()) == bits(wanted)


@pytest.mark.parametrize("save", SAVES)
def test_what_the_callers_stream_still_computes_is_saved(
    tmp_path: Path, save: Callable[[Path, object], None]
) -> None:
    module = getattr(torch, DEVICE.type)
    factor = torch.eye(4096, device=DEVICE)
    stream = module.Stream(DEVICE)
    with module.stream(stream):
        value = torch.ones(4096, 4096, device=DEVICE)
        for _ in range(200):
            value = value @ factor
        value += 1
        save(tmp_path, {"x": value})
    into = torch.zeros(4096, 4096)
    ckpt.load(tmp_path, {"x": into})
    assert torch.equal(into, torch.full((4096, 4096), 2.0))


def test_a_step_after_a_save_in_the_background_changes_nothing_of_it(tmp_path: Path) -> None:
    value = torch.ones(8 << 20, device=DEVICE)
    pending = ckpt.async_save(tmp_path, 1, {"x": value})
    value.zero_()
    pending.result()
    into = torch.zeros(8 << 20)
    ckpt.load(tmp_path, {"x": into})
    assert torch.equal(into, torch.ones(8 << 20))


def test_a_training_goes_on_exactly(tmp_path: Path) -> None:
    def made() -> tuple[Any, Any]:
        torch.manual_seed(3)
        model = torch.nn.Sequential(
            torch.nn.Linear(64, 64), torch.nn.Dropout(0.2), torch.nn.Linear(64, 1)
        ).to(DEVICE)
        return model, torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)

    def train(model: Any, optimizer: Any, steps: int) -> None:  # noqa: ANN401
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(32, 64, device=DEVICE)).square().mean().backward()
            optimizer.step()

    model, optimizer = made()
    train(model, optimizer, 5)
    state = {"model": model, "optimizer": optimizer, "rng": ckpt.rng_state()}
    ckpt.async_save(tmp_path, 5, state).result()
    train(model, optimizer, 5)

    again, its_optimizer = made()
    train(again, its_optimizer, 1)
    restored = {"model": again, "optimizer": its_optimizer, "rng": ckpt.rng_state()}
    ckpt.load(tmp_path, restored)
    ckpt.set_rng_state(restored["rng"])
    train(again, its_optimizer, 5)
    for name, value in model.state_dict().items():
        assert bits(again.state_dict()[name]) == bits(value), name
