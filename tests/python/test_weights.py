"""Goal: tensors of a step are read by name and slice, as far as they are wanted, and nothing else.

Method: every element type, form and place; slices against NumPy's own; buffers of every kind, with
the bytes that are read counted; damage, which costs the tensors that it is in.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

import ffrecord.checkpoint as ckpt
import ffrecord.weights as weights
from daemon import Daemon
from ffrecord.checkpoint._tensors import ITEM_SIZES
from ffrecord.errors import CorruptionError
from object_store import Store
from ranks import run_ranks

pytestmark = pytest.mark.wrong_data

DTYPES = sorted(name for name in ITEM_SIZES if hasattr(torch, name))


@pytest.fixture(params=["folder", "daemon", "store", "replicas"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "folder":
        yield str(tmp_path / "run")
    elif request.param == "replicas":
        yield ckpt.replicated_target([tmp_path / "a", tmp_path / "b"])
    elif request.param == "daemon":
        with Daemon(tmp_path) as daemon:
            yield daemon.address("runs/x")
    else:
        request.getfixturevalue("store")
        yield f"s3://bucket/{tmp_path.name}/run"


def bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()


def model(seed: int = 0) -> dict[str, Any]:
    made = torch.Generator().manual_seed(seed)
    weight = torch.randn(300, 70, generator=made)
    return {
        "embed": {"weight": weight},
        "head": {"weight": weight},  # Tied.
        "layers": [{"w": torch.randn(40, 30, generator=made).T} for _ in range(3)],
        "half": torch.randn(9, 5, generator=made).to(torch.bfloat16),
        "scalar": torch.tensor(float(seed)),
        "empty": torch.empty(0, 4),
        "name": "small values are no tensors",
    }


def flat(seed: int = 0) -> dict[str, torch.Tensor]:
    state = model(seed)
    layers = {f"layers.{i}.w": each["w"] for i, each in enumerate(state["layers"])}
    one = {"embed.weight": state["embed"]["weight"], "head.weight": state["head"]["weight"]}
    return one | layers | {name: state[name] for name in ("half", "scalar", "empty")}


def test_tensors_have_their_names_types_and_shapes_at_every_place(target: str) -> None:
    ckpt.save(target, 3, {"model": model(1), "optimizer": {"m": torch.zeros(5)}})
    ckpt.save(target, 4, {"model": model(2)}, incremental=True)
    for step, seed in ((3, 1), (4, 2)):
        found = weights.open(target, step=step, prefix="model", as_torch=True)
        assert found.commit.step == step
        assert list(found) == list(flat())
        for name, expected in flat(seed).items():
            weight = found[name]
            assert weight.shape == tuple(expected.shape)
            assert f"torch.{weight.dtype}" == str(expected.dtype)
            assert weight.size_bytes == expected.nbytes
            whole = weight.read()
            assert whole.dtype == expected.dtype and torch.equal(whole, expected), name
        assert all(torch.equal(whole, flat(seed)[name]) for name, whole in found.read())
    assert "optimizer.m" in weights.open(target, step=3)
    assert weights.open(target).commit.step == 4
    with pytest.raises(KeyError):
        weights.open(target)["optimizer.m"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_elements_of_every_type_come_back_bit_for_bit(tmp_path: Path, dtype: str) -> None:
    kind = getattr(torch, dtype)
    size = 6 * 5 * ITEM_SIZES[dtype]
    raw = torch.randint(0, 2 if dtype == "bool" else 256, (size,), dtype=torch.uint8)
    tensor = raw.view(kind).view(6, 5)
    ckpt.save(tmp_path, 1, {"x": tensor, "t": tensor.view(torch.uint8).T})
    found = weights.open(tmp_path, as_torch=True)
    assert bytes_of(found["x"].read()) == raw.numpy().tobytes()
    assert bytes_of(found["x"][2:4]) == raw.numpy().reshape(6, -1)[2:4].tobytes()
    into = torch.zeros_like(raw).view(kind).view(6, 5)
    found.fill({"x": into})
    assert bytes_of(into) == raw.numpy().tobytes()


INDICES: list[Any] = [
    (), ..., 3, -1, slice(2, 5), slice(None), slice(-2, None), slice(5, 2), slice(4, 400),
    (2, 1), (slice(1, 3), 0), (..., 2), (1, ..., slice(0, 2)), (slice(3), slice(1, 2), -1),
    (0, 1, 2), (np.int64(2), ...),
]  # fmt: skip


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_a_slice_is_what_numpy_gives(tmp_path: Path, index: Any) -> None:  # noqa: ANN401
    array = np.arange(8 * 6 * 5, dtype="int32").reshape(8, 6, 5)
    ckpt.save(tmp_path, 1, {"x": array})
    found = weights.open(tmp_path)["x"][index]
    assert found.shape == array[index].shape and np.array_equal(found, array[index])


@pytest.mark.parametrize(
    "index",
    [8, -9, (0, 6), (0, 0, 0, 0), slice(0, 8, 2), slice(5, 1, -1), None, 1.5, [1, 2], True, "x",
     (..., ...)],
    ids=str,
)  # fmt: skip
def test_an_index_of_another_kind_is_refused(tmp_path: Path, index: Any) -> None:  # noqa: ANN401
    ckpt.save(tmp_path, 1, {"x": np.zeros((8, 6, 5))})
    with pytest.raises(IndexError, match=r"^x: "):
        weights.open(tmp_path)["x"][index]


def test_numbers_are_converted_on_the_way(tmp_path: Path) -> None:
    ckpt.save(tmp_path, 1, {"model": model(), "ids": np.arange(4)})
    found = weights.open(tmp_path, as_torch=True)
    expected = flat()["embed.weight"]
    assert torch.equal(
        found["model.embed.weight"].read(dtype="bfloat16"), expected.to(torch.bfloat16)
    )
    assert found["ids"].read(dtype="bfloat16").dtype == torch.int64  # Integers stay what they are.
    into = torch.zeros(9, 5, dtype=torch.float64)
    with pytest.raises(ckpt.MismatchError, match=r"model\.half.*bfloat16"):
        found.fill({"model.half": into})
    assert not into.any()
    found.fill({"model.half": into}, cast=True)
    assert torch.equal(into, flat()["half"].double())
    for nothing in ("float9", "int32", "bool", "complex64", "float4_e2m1fn_x2"):
        with pytest.raises(ValueError, match=f"dtype is '{nothing}': floating-point"):
            found["model.half"].read(dtype=nothing)


def test_tensors_are_of_torch_whatever_saved_them(tmp_path: Path) -> None:
    state = {"array": np.arange(6, dtype=np.uint16), "scalar": np.float32(2), "t": torch.ones(2)}
    ckpt.save(tmp_path, 1, state)
    found = dict(weights.open(tmp_path, as_torch=True).read())
    assert all(isinstance(tensor, torch.Tensor) for tensor in found.values())
    assert found["array"].tolist() == list(range(6)) and found["array"].dtype == torch.uint16
    assert found["scalar"].item() == 2 and found["t"].tolist() == [1, 1]
    assert all(isinstance(each, np.ndarray) for _, each in weights.open(tmp_path).read())


def test_buffers_of_every_kind_are_filled_in_place(tmp_path: Path) -> None:
    expected = flat(5)
    ckpt.save(tmp_path, 1, {"model": model(5)})
    found = weights.open(tmp_path, prefix="model", as_torch=True)
    half = torch.zeros(150, 70)
    strided = torch.zeros(40, 30).T
    parameter = torch.nn.Parameter(torch.zeros(300, 70))
    array = np.zeros((30, 40), np.float32)
    scalar = torch.zeros(())
    found.fill(
        {
            "embed.weight": ckpt.Shard(half, shape=(300, 70), offset=(150, 0)),
            "head.weight": parameter,
            "layers.0.w": strided,
            "layers.1.w": array,
            "scalar": scalar,
            "empty": torch.zeros(0, 4),
        }
    )
    assert torch.equal(half, expected["embed.weight"][150:])
    assert torch.equal(parameter.detach(), expected["head.weight"])
    assert torch.equal(strided, expected["layers.0.w"])
    assert np.array_equal(array, expected["layers.1.w"].numpy())
    assert torch.equal(scalar, expected["scalar"])


def test_a_slice_reads_only_what_it_needs(store: Store, tmp_path: Path) -> None:
    target = f"s3://bucket/{tmp_path.name}/run"
    rows = np.random.default_rng(0).integers(0, 256, (64, 1 << 20), np.uint8)
    ckpt.save(target, 1, {"x": rows})
    found = weights.open(target)
    store.serve_all()
    into = np.zeros((16, 1 << 20), np.uint8)
    found.fill({"x": ckpt.Shard(into, shape=rows.shape, offset=(16, 0))})
    assert np.array_equal(into, rows[16:32])
    # A slow answer may be asked for twice; the whole tensor is four times as large.
    assert sum(size for _, size in store.sent) <= 2 * into.nbytes


def test_nothing_is_read_unless_all_buffers_fit(tmp_path: Path) -> None:
    ckpt.save(tmp_path, 1, {"a": np.ones(3), "b": np.ones((2, 2)), "c": np.float32(1)})
    found = weights.open(tmp_path)
    into = np.zeros(3)
    with pytest.raises(ckpt.MismatchError, match=r"missing in the checkpoint: z; different: b"):
        found.fill({"a": into, "b": np.zeros(4), "z": np.zeros(1)})
    assert not into.any()
    for value in (np.float32(0), "text", [0.0], None):
        with pytest.raises(TypeError, match=r"c: .* cannot be filled"):
            found.fill({"a": into, "c": value})
    read_only = np.zeros(3)
    read_only.flags.writeable = False
    with pytest.raises((TypeError, ckpt.MismatchError), match="cannot be written"):
        found.fill({"a": read_only})
    assert not into.any()


@pytest.mark.parametrize("offset", [(2, 0), (-1, 0), (0, 1), (0,)])
def test_a_slice_beyond_the_tensor_is_refused_before_anything_is_read(
    tmp_path: Path, offset: tuple[int, ...]
) -> None:
    ckpt.save(tmp_path, 1, {"a": np.ones(5), "table": torch.ones(3, 4)})
    first, part = np.zeros(5), torch.zeros(4, 2).T  # Strided: it is read after the first.
    shard = ckpt.Shard(part, shape=(3, 4), offset=offset)
    with pytest.raises(ckpt.MismatchError, match=r"table \(the state has a slice"):
        weights.open(tmp_path).fill({"a": first, "table": shard})
    with pytest.raises(ckpt.MismatchError, match=r"table \(the state has a slice"):
        ckpt.load(tmp_path, {"a": first, "table": shard})
    assert not first.any() and not part.any()


def test_damage_names_the_tensor_and_the_file_and_spares_the_others(tmp_path: Path) -> None:
    state = {name: np.full((1 << 20,), i, np.uint8) for i, name in enumerate("abc")}
    ckpt.save(tmp_path, 1, state)
    (segment,) = tmp_path.glob("step-*/part-*/seg-*")
    content = bytearray(segment.read_bytes())
    place = content.index(bytes([1]) * 1000)
    content[place + 500_000] ^= 8
    segment.write_bytes(content)
    found = weights.open(tmp_path)
    for name in "ac":
        assert np.array_equal(found[name].read(), state[name])
    for attempt in (
        lambda: found["b"].read(),
        lambda: found["b"][499_000:501_000],
        lambda: found.fill({name: np.empty(1 << 20, np.uint8) for name in "abc"}),
    ):
        with pytest.raises(CorruptionError, match=r"seg-.* tensor b\."):
            attempt()


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        weights.open(tmp_path / "none")
    ckpt.save(tmp_path, 1, {"model": {"a.b": np.zeros(1), "a": {"b": np.ones(1)}}})
    with pytest.raises(ValueError, match=r"two tensors would be called a\.b"):
        weights.open(tmp_path, prefix="model")
    with pytest.raises(ValueError, match="nothing below modl"):
        weights.open(tmp_path, prefix="modl")
    with pytest.raises(ValueError, match="step is -1"):
        weights.open(tmp_path, step=-1)


def shards(rank: int, world: int, folder: str) -> int:
    mesh = init_device_mesh("cpu", (world,))
    local = torch.zeros(100, 70)
    whole = weights.open(folder, as_torch=True)["model.embed.weight"].read()
    spec: Any = DTensor.from_local(local, mesh, [Shard(0)], run_check=False)
    weights.open(folder, prefix="model").fill({"embed.weight": spec})
    assert torch.equal(local, whole[rank * 100 : rank * 100 + 100])
    return rank


def test_each_rank_of_a_mesh_gets_its_own_part(tmp_path: Path) -> None:
    ckpt.save(tmp_path, 1, {"model": model(3)})
    assert run_ranks(shards, 3, str(tmp_path)) == [0, 1, 2]
