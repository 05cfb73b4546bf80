"""Goal: training with torch goes on exactly where its checkpoint was taken, on any ranks.

Method: tensors of every type; a model, optimizer and scheduler trained on after a load against one
never interrupted; torch.distributed ranks that are processes.
"""

import collections
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import ffrecord._ffrecord  # noqa: E402 (after the skip)
import ffrecord.checkpoint as ckpt  # noqa: E402
import ffrecord.checkpoint._state  # noqa: E402
from ffrecord.checkpoint._background import Background  # noqa: E402
from ffrecord.checkpoint._saving import Order, flatten  # noqa: E402
from ffrecord.checkpoint._staging import Arena  # noqa: E402
from ffrecord.checkpoint._state import Flattener  # noqa: E402
from ffrecord.checkpoint._values import encode  # noqa: E402
from ffrecord.torch.checkpoint import Group  # noqa: E402
from ranks import run_ranks  # noqa: E402
from thread_ranks import same  # noqa: E402

DTYPES = [
    "bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64", "float16",
    "bfloat16", "float32", "float64", "complex32", "complex64", "complex128", "float8_e4m3fn",
    "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
]  # fmt: skip


def tensor_of(dtype: str, *shape: int) -> Any:  # noqa: ANN401 (torch may be missing)
    """Random bytes as elements, but for bool."""
    if dtype == "bool":
        return torch.rand(shape) < 0.5
    size = getattr(torch, dtype).itemsize
    return torch.randint(0, 256, (*shape[:-1], shape[-1] * size), dtype=torch.uint8).view(
        getattr(torch, dtype)
    )


def bits(tensor: Any) -> bytes:  # noqa: ANN401 (torch may be missing)
    """For comparing NaNs and types without ==."""
    return bytes(tensor.detach().reshape(-1).view(torch.uint8).numpy().tobytes())


def test_every_dtype_is_filled_in_place(tmp_path: Path) -> None:
    state = {dtype: tensor_of(dtype, 3, 5) for dtype in DTYPES}
    ckpt.save(tmp_path, 1, state)
    into = {dtype: torch.zeros_like(tensor) for dtype, tensor in state.items()}
    addresses = {dtype: tensor.data_ptr() for dtype, tensor in into.items()}
    ckpt.load(tmp_path, into)
    for dtype, tensor in state.items():
        assert into[dtype].dtype == tensor.dtype
        assert bits(into[dtype]) == bits(tensor), dtype
        assert into[dtype].data_ptr() == addresses[dtype]


class Meddler:
    """An arena during whose copy somebody changes what is copied."""

    def __init__(self, arena: Any, meddle: Callable[[], object]) -> None:  # noqa: ANN401
        self.arena, self.meddle, self.address = arena, meddle, arena.address

    def copy(self, jobs: list[tuple[int, int, int]]) -> None:
        """As the arena does."""
        self.arena.copy(jobs)
        self.meddle()


def test_a_tensor_that_changes_while_it_is_staged_fails_the_save(tmp_path: Path) -> None:
    quiet, torn = torch.zeros(1000), torch.zeros(1000)
    saver = Background()
    saver._arena = arena = Arena(1 << 20)
    order = Order(tmp_path, 1, "rank0", True, 30.0)
    state = {"quiet": quiet, "below": {"torn": torn}}

    arena._arena = Meddler(arena._arena, lambda: torn.add_(1))
    pending = saver.start(order.step, lambda: flatten(order, state, 0, 1), None, 1 << 20, "wait")

    with pytest.raises(ckpt.TornStageError, match="below/torn"):
        pending.result(60)
    assert ckpt.list(tmp_path) == []
    arena._arena.meddle = lambda: None
    pending = saver.start(order.step, lambda: flatten(order, state, 0, 1), None, 1 << 20, "wait")
    assert pending.result(60).step == 1


def test_without_a_state_arrays_are_numpy_where_numpy_has_the_type(tmp_path: Path) -> None:
    state = {"f": torch.ones(2, 3), "b": torch.ones(2, dtype=torch.bfloat16)}
    ckpt.save(tmp_path, 1, state)
    loaded: Any = ckpt.load(tmp_path)
    assert isinstance(loaded["f"], np.ndarray)
    assert loaded["f"].dtype == np.float32
    assert bits(torch.as_tensor(loaded["b"])) == bits(state["b"])


def test_views_parameters_and_shared_tensors_come_back(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.randn(4, 6))
    state = {
        "transposed": weight.t(), "row": weight[1], "tied": weight, "also": weight,
        "conjugate": torch.randn(3, dtype=torch.complex64).conj(), "zero": torch.tensor(2.5),
        "empty": torch.empty(0, 3), "size": weight.shape,
    }  # fmt: skip
    ckpt.save(tmp_path, 1, state)
    base = torch.zeros(6, 8)
    into = {
        "transposed": base[:, ::2], "row": torch.zeros(6), "tied": torch.zeros(4, 6),
        "also": torch.zeros(4, 6, requires_grad=True), "conjugate": torch.zeros(3).cfloat().conj(),
        "zero": torch.tensor(0.0), "empty": torch.empty(0, 3), "size": None,
    }  # fmt: skip
    loaded: Any = ckpt.load(tmp_path, into)
    for key in ["transposed", "row", "tied", "also", "conjugate", "zero", "empty"]:
        assert torch.equal(loaded[key], state[key]), key
    assert torch.equal(base[:, ::2], weight.t())
    assert loaded["size"] == (4, 6)


class Tied(torch.nn.Module):
    """Two layers with one weight, or with two."""

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(30, 100), torch.nn.Linear(100, 30, bias=False)
        if tied:
            self.head.weight = self.embed.weight


@pytest.mark.wrong_data
@pytest.mark.parametrize("way", ["dict", "module", "object", "strided"])
def test_two_stored_tensors_do_not_share_one_of_the_state(tmp_path: Path, way: str) -> None:
    """One of the two would be lost; a model may be tied that was saved from equal copies."""
    untied, tied = Tied(tied=False), Tied(tied=True)
    weight: Any = tied.embed.weight
    if way == "strided":
        weight = torch.zeros(30, 200)[:, ::2]

    def state(model: Tied, weights: Any = None) -> Any:  # noqa: ANN401
        if way == "module":
            return {"model": model}
        weights = weights or {"embed": model.embed.weight, "head": model.head.weight}
        return Keeping(weights) if way == "object" else weights

    ckpt.save(tmp_path, 1, state(untied))
    with torch.no_grad():
        untied.head.weight.copy_(untied.embed.weight)
    ckpt.save(tmp_path, 2, state(untied))
    into = state(tied, {"embed": weight, "head": weight} if way == "strided" else None)
    before = weight.detach().clone()
    with pytest.raises(ckpt.MismatchError, match=r"head.* one tensor for it and for .*embed"):
        ckpt.load(tmp_path, into, step=1)
    assert torch.equal(weight, before)
    ckpt.load(tmp_path, into, step=2)
    assert torch.equal(weight, untied.embed.weight)


class Keeping:
    """An object that may refuse its state."""

    def __init__(self, weights: dict[str, Any]) -> None:
        self.weights = weights

    def state_dict(self) -> dict[str, Any]:
        """As torch's objects have it."""
        return self.weights

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """As torch's objects have it."""
        self.weights = state


@pytest.mark.parametrize(
    "tensor",
    [
        lambda: torch.eye(3).to_sparse(),
        lambda: torch.empty(3, device="meta"),
        lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        lambda: torch.nn.Parameter(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        torch.nn.parameter.UninitializedParameter,
        torch.nn.parameter.UninitializedBuffer,
    ],
)
@pytest.mark.parametrize("way", ["save", "async", "shard", "list", "load"])
def test_tensors_without_plain_bytes_are_refused_by_path(
    tmp_path: Path,
    tensor: Any,  # noqa: ANN401 (a maker)
    way: str,
) -> None:
    state = {"a": {"b": tensor()}}
    if way == "load":
        ckpt.save(tmp_path, 1, {"a": {"b": torch.ones(5)}})
        with pytest.raises(ckpt.MismatchError, match="a/b"):
            ckpt.load(tmp_path, state)
        return
    with pytest.raises(TypeError, match=r"state: a/(b|#0)"):
        if way == "async":
            ckpt.async_save(tmp_path / "run", 1, state).result()
        elif way == "shard":
            shard = ckpt.Shard(state["a"]["b"], (5,), (0,))
            ckpt.save(tmp_path / "run", 1, {"a": {"b": shard}})
        elif way == "list":
            ckpt.save(tmp_path / "run", 1, {"a": [state["a"]["b"]]})
        else:
            ckpt.save(tmp_path / "run", 1, state)


class Wrapping(torch.Tensor):
    """Made of another tensor, as quantized and fake tensors are."""

    @staticmethod
    def __new__(cls: Any, inner: Any) -> Any:  # noqa: ANN401, D102
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    @classmethod
    def __torch_dispatch__(cls, function: Any, *rest: Any) -> Any:  # noqa: ANN401
        return Wrapping(torch.ones(5)) if "detach" in str(function) else NotImplemented


class Named(torch.Tensor):
    """A tensor with another name, and its own bytes."""


def fake() -> Any:  # noqa: ANN401
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.ones(5)


def freed() -> Any:  # noqa: ANN401
    tensor = torch.ones(5)
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.parametrize("make", [lambda: Wrapping(torch.ones(5)), fake, freed])
def test_tensors_without_memory_are_refused_by_path_when_saved_and_loaded(
    tmp_path: Path,
    make: Any,  # noqa: ANN401
) -> None:
    for tensor in (make(), torch.nn.Parameter(make())):
        for put in (ckpt.save, ckpt.async_save):
            with pytest.raises(TypeError, match=r"state: a/b: .*(no plain bytes|was released)"):
                made: Any = put(tmp_path, 1, {"a": {"b": tensor}})
                made.result(60)
        with pytest.raises(TypeError, match="state: w"):
            ckpt.save(tmp_path, 1, {"w": ckpt.Shard(tensor, (5,), (0,))})
    ckpt.save(tmp_path, 1, {"a": torch.ones(5)})
    with pytest.raises(ckpt.MismatchError, match=r"a \("):
        ckpt.load(tmp_path, {"a": make()})


def test_a_subclass_with_bytes_of_its_own_is_a_tensor(tmp_path: Path) -> None:
    ckpt.save(tmp_path, 1, {"a": torch.arange(5).as_subclass(Named)})
    into = torch.zeros(5, dtype=torch.int64).as_subclass(Named)
    ckpt.load(tmp_path, {"a": into})
    assert into.tolist() == [0, 1, 2, 3, 4]


class Training:
    """A model with dropout, so that random states matter too."""

    def __init__(self) -> None:
        self.model = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.3),
            torch.nn.Linear(16, 1),
        )  # fmt: skip
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 3, 0.5)

    @property
    def state(self) -> dict[str, Any]:
        """What a checkpoint of it holds."""
        return {"model": self.model, "optim": self.optimizer, "sched": self.scheduler}

    def step(self) -> float:
        """Its loss."""
        loss = self.model(torch.randn(32, 8)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        return float(loss.item())


@pytest.mark.parametrize("steps_before_load", [0, 2])
def test_training_goes_on_bit_for_bit(tmp_path: Path, steps_before_load: int) -> None:
    torch.manual_seed(1)
    training = Training()
    for _ in range(5):
        training.step()
    ckpt.save(tmp_path, 5, {**training.state, "rng": ckpt.rng_state()})
    expected = [training.step() for _ in range(5)]

    torch.manual_seed(99)
    resumed = Training()
    for _ in range(steps_before_load):
        resumed.step()
    parameter = next(resumed.model.parameters())
    address = parameter.data_ptr()
    loaded: Any = ckpt.load(tmp_path, {**resumed.state, "rng": None})
    ckpt.set_rng_state(loaded["rng"])

    assert parameter.data_ptr() == address
    assert [resumed.step() for _ in range(5)] == expected
    for mine, other in zip(
        resumed.model.state_dict().values(), training.model.state_dict().values(), strict=True
    ):
        assert bits(mine) == bits(other)


def test_plain_state_dicts_work_as_well(tmp_path: Path) -> None:
    torch.manual_seed(1)
    training = Training()
    training.step()
    state = {"model": training.model.state_dict(), "optim": training.optimizer.state_dict()}
    ckpt.save(tmp_path, 1, state)
    fresh = Training()
    loaded: Any = ckpt.load(tmp_path, {"model": fresh.model.state_dict(), "optim": None})
    fresh.model.load_state_dict(loaded["model"])
    assert bits(fresh.model[0].weight) == bits(training.model[0].weight)


@pytest.mark.parametrize("is_stepped", [False, True])
def test_an_optimizer_of_another_model_is_told_and_nothing_is_touched(
    tmp_path: Path, is_stepped: bool
) -> None:
    def trained(rows: int, steps: int, frozen: int = 0) -> Any:  # noqa: ANN401
        layer = torch.nn.Linear(3, rows)
        optimizer = torch.optim.AdamW([*layer.parameters()][frozen:], lr=0.1)
        for _ in range(steps):
            layer(torch.ones(3)).sum().backward()
            optimizer.step()
        return optimizer

    ckpt.save(tmp_path, 1, {"plain": torch.ones(2), "optim": trained(4, 2)})
    plain = torch.zeros(2)

    wider = trained(5, int(is_stepped))
    with pytest.raises(ckpt.MismatchError, match=r"optim/state/#0/exp_avg.*\(4, 3\)"):
        ckpt.load(tmp_path, {"plain": plain, "optim": wider})
    fewer = trained(4, int(is_stepped), frozen=1)
    with pytest.raises(ckpt.MismatchError, match=r"groups of \[2\] parameters are stored, it has"):
        ckpt.load(tmp_path, {"plain": plain, "optim": fewer})
    assert plain.tolist() == [0, 0]
    assert len(wider.state) == (2 if is_stepped else 0)


class Choosy:
    """Sees only when it is given a state that it does not want it."""

    def state_dict(self) -> dict[str, Any]:  # noqa: D102
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: D102
        raise ValueError(f"not {sorted(state)}")


def test_an_object_that_refuses_its_state_is_asked_before_tensors_are_touched(
    tmp_path: Path,
) -> None:
    class Keeps(Choosy):
        def state_dict(self) -> dict[str, Any]:
            return {"kept": torch.ones(2)}

    model = torch.nn.Linear(3, 2)
    ckpt.save(tmp_path, 1, {"model": model, "w": torch.ones(3), "choosy": Keeps()})
    other, w = torch.nn.Linear(3, 2), torch.zeros(3)
    before = bits(other.weight)
    with pytest.raises(ValueError, match=r"not .'kept'"):
        ckpt.load(tmp_path, {"model": other, "w": w, "choosy": Choosy()})
    assert (bits(other.weight), w.tolist()) == (before, [0, 0, 0])


def test_a_model_that_does_not_fit_is_told_by_path(tmp_path: Path) -> None:
    ckpt.save(tmp_path, 1, {"model": torch.nn.Linear(3, 2)})
    other = torch.nn.Linear(3, 4, bias=False)
    before = bits(other.weight)
    with pytest.raises(
        ckpt.MismatchError,
        match=r"not in the state: model/bias; different: "
        r"model/weight \(float32 \(2, 3\) is stored",
    ):
        ckpt.load(tmp_path, {"model": other})
    assert bits(other.weight) == before


WHOLE = torch.arange(60.0).reshape(20, 3)


def same_model() -> torch.nn.Module:
    torch.manual_seed(7)
    return torch.nn.Linear(300, 2000)


def save_without_a_word(rank: int, world: int, target: str) -> list[Any]:
    del world
    state = {"w": torch.ones(3), "rank": ckpt.PerRank(rank)}
    ckpt.async_save(target, 1, state).result(60)
    ckpt.save(target, 2, state)
    into: Any = ckpt.load(target, {"w": torch.zeros(3), "rank": ckpt.PerRank(None)})
    ckpt.save(f"{target}-{rank}", 1, {"w": torch.ones(3)}, group="alone")
    return [into["rank"].value, into["w"].tolist()]


def save_parts(rank: int, world: int, target: str) -> list[Any]:
    model = same_model()
    torch.manual_seed(rank)
    first, last = 20 * rank // world, 20 * (rank + 1) // world
    state = {
        "model": model,
        "shard": ckpt.Shard(WHOLE[first:last], (20, 3), (first, 0)),
        "rng": ckpt.PerRank(ckpt.rng_state()),
    }
    commit = ckpt.save(target, 3, state, group=Group(), replicated="split")
    return [commit.attempt, torch.rand(1).item()]


def load_columns(rank: int, world: int, target: str) -> list[Any]:
    model, other = same_model(), torch.nn.Linear(300, 2000)
    mine = ckpt.Shard(torch.zeros(20, 1), (20, 3), (0, rank))
    state = {"model": other, "shard": mine, "rng": ckpt.PerRank(None)}
    loaded: Any = ckpt.load(target, state, group=Group(), elastic=True)
    assert torch.equal(other.weight, model.weight) and torch.equal(other.bias, model.bias)
    assert torch.equal(mine.data, WHOLE[:, rank : rank + 1])
    if loaded["rng"].value is not None:
        ckpt.set_rng_state(loaded["rng"].value)
    commit = ckpt.latest(target)
    assert commit is not None
    return [commit.attempt, torch.rand(1).item()]


def fail_on_the_last(rank: int, world: int, target: str) -> str:
    try:
        ckpt.save(target, 4, {"model": object() if rank == world - 1 else 1}, group=Group())
    except Exception as error:
        return type(error).__name__
    return "none"


def test_processes_save_together_without_being_told_the_group(tmp_path: Path) -> None:
    found = run_ranks(save_without_a_word, 2, str(tmp_path / "run"))
    assert found == [[0, [1, 1, 1]], [1, [1, 1, 1]]]
    assert [len(ckpt.list(tmp_path / name)) for name in ("run", "run-0", "run-1")] == [2, 1, 1]


def test_processes_save_together_and_resume_at_other_sizes(tmp_path: Path) -> None:
    target = str(tmp_path / "run")
    saved = run_ranks(save_parts, 2, target)
    assert len({attempt for attempt, _ in saved}) == 1
    assert run_ranks(load_columns, 2, target) == saved  # The same random numbers go on.
    run_ranks(load_columns, 3, target)
    assert run_ranks(fail_on_the_last, 2, target) == ["PeerError", "TypeError"]
    assert [commit.step for commit in ckpt.list(target)] == [3]
    assert not list((tmp_path / "run").glob(".attempt*"))


@pytest.mark.parametrize("exchange", [True, False])
def test_leaves_are_the_same_whoever_takes_a_dict_apart(
    monkeypatch: pytest.MonkeyPatch, exchange: bool
) -> None:
    """The extension's ways through dicts of tensors, and Python's, which takes every other form."""
    monkeypatch.setattr(ffrecord.checkpoint._state, "_plain", None)
    if not exchange:  # As in an older torch.
        monkeypatch.delattr(torch.Tensor, "__dlpack_c_exchange_api__", raising=False)
    ordered = collections.OrderedDict((str(i), torch.full((i,), i)) for i in range(5))
    ordered.move_to_end("1")
    view = torch.arange(12.0).view(3, 4)
    state: dict[object, object] = {
        "plain": view,
        "a/b": view,
        "~": view,
        "#": view,
        "": view,
        "é": torch.nn.Parameter(view.clone()),
        3: view,
        "strided": view.T,
        "conjugate": torch.zeros(3, dtype=torch.complex64).conj(),
        "complex": torch.ones(3, dtype=torch.complex64),
        "negative": torch.ones(1, dtype=torch.complex64).conj().imag,
        "one column": view[:1].T[:1],
        "one row": torch.ones(3, 1).T,
        "expanded": torch.zeros(1).expand(4),
        **{str(dtype): torch.zeros(2, dtype=dtype) for dtype in (torch.bool, torch.int8)},
        **{str(dtype): torch.zeros(2, dtype=dtype) for dtype in (torch.uint16, torch.float8_e5m2)},
        "nothing": torch.zeros(0, 3),
        "scalar": torch.tensor(2.5, dtype=torch.bfloat16),
        "array": np.arange(3),
        "deeper": {"x": view, "y": [view, 1], "ordered": ordered},
        "only": {"p": view, "q": view[1:]},
    }
    by_extension, by_python = Flattener(0), Flattener(0)
    tree: Any = by_extension.value(state)
    monkeypatch.setattr(ffrecord.checkpoint._state, "_plain_tensors", lambda: None)

    assert same(by_python.value(state), tree)
    for found, expected in zip(by_extension.leaves, by_python.leaves, strict=True):
        assert type(found) is type(expected)
        assert found.data is expected.data
        assert found._replace(data=None) == expected._replace(data=None)
    assert list(tree["deeper"]["ordered"]) == ["0", "2", "3", "4", "1"]
    encoded = encode(tree)
    monkeypatch.setattr(ffrecord._ffrecord, "encode_references", lambda items, reference: None)
    assert encode(tree) == encoded
