"""Goal: vLLM loads a model straight from a step, and says what does not fit.

Method: a stand-in with the interface of vLLM's loaders; its own package is too large for this.
"""

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import fake_vllm
import ffrecord.checkpoint as ckpt
import ffrecord.weights as weights
from ffrecord.errors import CorruptionError

pytestmark = pytest.mark.wrong_data


def state(seed: float) -> dict[str, Any]:
    base = torch.arange(48.0).reshape(8, 6)
    return {"model": {"q": base + seed, "k": -base - seed, "norm": torch.full((6,), seed)}}


def is_filled(model: fake_vllm.Model, seed: float) -> bool:
    tensors = state(seed)["model"]
    expected = torch.cat([tensors["q"][4:], tensors["k"][4:]])
    return torch.equal(model.qk, expected) and torch.equal(model.norm, tensors["norm"])


@pytest.fixture
def loader() -> Iterator[Any]:
    with fake_vllm.installed() as formats:
        module = importlib.import_module("ffrecord.torch.vllm")
        module.register()
        module.register()  # vLLM calls it in each process, and more than once.
        yield formats["ffrecord"]


def loaded(loader: Any, model: Any, name: str = "", **options: object) -> None:  # noqa: ANN401
    made = loader(fake_vllm.load_config(**options))
    made.download_model(fake_vllm.model_config(name))
    made.load_weights(model, fake_vllm.model_config(name))


def test_a_model_is_loaded_from_a_step(tmp_path: Path, loader: Any) -> None:  # noqa: ANN401
    target = str(tmp_path / "run")
    for step in (1, 2):
        ckpt.save(target, step, state(step))
    for options, step in (({}, 2), ({"step": 1}, 1)):
        model = fake_vllm.Model()
        loaded(loader, model, target=target, prefix="model", **options)
        assert is_filled(model, step)
    model = fake_vllm.Model(tells=False)
    loaded(loader, model, target, prefix="model")  # The name of the model is the target.
    assert is_filled(model, 2)


def test_a_model_is_loaded_from_an_imported_file(tmp_path: Path, loader: Any) -> None:  # noqa: ANN401
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file(state(3)["model"], tmp_path / "model.safetensors")
    ckpt.import_safetensors(tmp_path / "model.safetensors", tmp_path / "run", 1)
    model = fake_vllm.Model()
    loaded(loader, model, target=str(tmp_path / "run"))
    assert is_filled(model, 3)


def test_a_model_is_loaded_from_what_a_trainer_published(tmp_path: Path, loader: Any) -> None:  # noqa: ANN401
    target = str(tmp_path / "run")
    publisher = weights.Publisher(target)
    publisher.publish(1, state(1))
    publisher.publish(2, state(2))
    model = fake_vllm.Model()
    loaded(loader, model, target=target, prefix="model", published=True)
    assert is_filled(model, 2)
    assert ckpt.list(f"{target}.readers") == []


def test_parameters_without_weights_are_named(tmp_path: Path, loader: Any) -> None:  # noqa: ANN401
    target = str(tmp_path / "run")
    ckpt.save(target, 1, {"model": {"q": torch.zeros(8, 6), "k": torch.zeros(8, 6)}})
    with pytest.raises(
        ValueError, match=r"step 1 has no weights for 1 parameters: norm; is prefix"
    ):
        loaded(loader, fake_vllm.Model(), target=target, prefix="model")
    made = loader(fake_vllm.load_config(target=target, prefix="model"))
    made.load_weights(fake_vllm.Model(), fake_vllm.model_config("", quantization="fp8"))


def test_what_is_wrong_shows_before_the_model_is_made(tmp_path: Path, loader: Any) -> None:  # noqa: ANN401
    target = str(tmp_path / "run")
    ckpt.save(target, 1, state(1))
    made = loader(fake_vllm.load_config(target=str(tmp_path / "none")))
    with pytest.raises(FileNotFoundError):
        made.download_model(fake_vllm.model_config(""))
    with pytest.raises(ValueError, match="has traget; the format ffrecord takes target, step"):
        loader(fake_vllm.load_config(traget=target))
    with pytest.raises(ValueError, match="leave step out"):
        loader(fake_vllm.load_config(target=target, published=True, step=1))
    (segment,) = Path(target).glob("step-*/part-*/seg-*")
    content = bytearray(segment.read_bytes())
    content[3] ^= 1
    segment.write_bytes(content)
    with pytest.raises(CorruptionError, match=r"seg-.* tensor model/\w+\."):
        loaded(loader, fake_vllm.Model(), target=target, prefix="model")
