"""Goal: a load changes nothing unless every object on every rank takes its state.

Method: objects of several kinds that refuse, each first, last and on another rank; what all others
hold is compared with what they held before. None stands in for a tensor at every place of a state.
"""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ffrecord
import ffrecord.checkpoint as ckpt
from thread_ranks import ThreadRank, ThreadRanks

torch = pytest.importorskip("torch", reason="torch is not installed")
from ffrecord.torch import DataLoader, Dataset, Sampler, TrainingState  # noqa: E402

pytestmark = pytest.mark.wrong_data


class Position:
    """As the position of a loader: refuses one of another dataset, after it took half of it."""

    def __init__(self, records: int, at: int = 0) -> None:
        self.records, self.at, self.seen = records, at, np.full(3, at)

    def state_dict(self) -> dict[str, Any]:  # noqa: D102
        return {"at": self.at, "records": self.records, "seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: D102
        self.at, self.seen = state["at"], state["seen"]
        if state["records"] != self.records:
            raise ValueError("a position of another dataset")


class Average:
    """A copy of the weights that replaces its tensors by those that it is given."""

    def __init__(self, fill: float) -> None:
        self.shadow: Any = torch.full((4, 4), fill)

    def state_dict(self) -> dict[str, Any]:  # noqa: D102
        return {"shadow": self.shadow, "decay": 0.9}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: D102
        self.shadow = state["shadow"]


class Picky(torch.nn.Linear):  # type: ignore[misc, name-defined, unused-ignore]
    """A module that decides itself."""

    records = 100

    def get_extra_state(self) -> Any:  # noqa: ANN401, D102
        return {"records": self.records}

    def set_extra_state(self, state: Any) -> None:  # noqa: ANN401, D102
        if state["records"] != self.records:
            raise ValueError("extra state of another dataset")


class Keeping(torch.optim.SGD):  # type: ignore[misc, name-defined, unused-ignore]
    """An optimizer that decides itself."""

    records = 100

    def state_dict(self) -> dict[str, Any]:  # noqa: D102
        return {**super().state_dict(), "records": self.records}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:  # noqa: D102
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "records"})
        if state_dict["records"] != self.records:
            raise ValueError("an optimizer of another dataset")


def state_of(fill: float) -> dict[str, Any]:
    """Of every kind of object, one step into its training."""
    torch.manual_seed(int(fill))
    model, picky = torch.nn.Linear(4, 4), Picky(4, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=fill)
    keeping = Keeping(picky.parameters(), lr=fill, momentum=0.9)
    (model(torch.ones(2, 4)) + picky(torch.ones(2, 4))).sum().backward()
    optimizer.step()
    keeping.step()
    return {
        "model": model,
        "picky": picky,
        "optimizer": optimizer,
        "keeping": keeping,
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, int(fill)),
        "average": Average(fill),
        "position": Position(100, int(fill)),
        "list": [fill, np.full(3, fill)],
        "array": np.full(3, fill),
    }


def values_of(state: dict[str, Any]) -> dict[str, Any]:
    shown = {k: v.state_dict() if hasattr(v, "state_dict") else v for k, v in state.items()}
    return copy.deepcopy(shown)


def same(a: object, b: object) -> bool:
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return isinstance(b, list | tuple) and len(a) == len(b) and all(map(same, a, b))
    if hasattr(a, "shape"):
        return type(a) is type(b) and bool((a == b).all())
    return a == b


@pytest.mark.parametrize("refusing", ["picky", "keeping", "position"])
@pytest.mark.parametrize("where", ["first", "last"])
def test_nothing_has_changed_if_one_object_refuses(
    tmp_path: Path, refusing: str, where: str
) -> None:
    ckpt.save(tmp_path, 1, state_of(1), group="alone")
    state = state_of(2)
    state[refusing].records = 50
    others = {key: value for key, value in state.items() if key != refusing}
    one = {refusing: state[refusing]}
    state = {**one, **others} if where == "first" else {**others, **one}
    before = values_of(state)

    with pytest.raises(ValueError, match="another dataset"):
        ckpt.load(tmp_path, state, group="alone")

    assert same(values_of(state), before)


def test_all_has_changed_if_all_take_their_state(tmp_path: Path) -> None:
    saved = state_of(1)
    ckpt.save(tmp_path, 1, saved, group="alone")
    state = state_of(2)
    shadow = state["average"].shadow
    ckpt.load(tmp_path, state, group="alone")
    assert same(values_of(state), values_of(saved))
    assert state["average"].shadow is shadow  # Filled in place.


@pytest.mark.parametrize("refusing", [0, 1])
def test_nothing_has_changed_on_any_rank_if_an_object_of_one_refuses(
    tmp_path: Path, refusing: int
) -> None:
    def saved_by(rank: int) -> dict[str, Any]:
        return {"w": np.full(5, 1.0), "position": Position(100), "average": Average(1)}

    def load(rank: ThreadRank) -> object:
        state = {"w": np.full(5, 2.0), "position": Position(100, 7), "average": Average(2)}
        if rank.rank == refusing:
            state["position"] = Position(50, 7)
        before = values_of(state)
        with pytest.raises((ValueError, ckpt.PeerError), match="another dataset"):
            ckpt.load(tmp_path, state, group=rank)
        return same(values_of(state), before)

    ThreadRanks(2).must(lambda rank: ckpt.save(tmp_path, 1, saved_by(rank.rank), group=rank).step)
    assert ThreadRanks(2).must(load) == [True, True]


def test_objects_have_their_state_back_if_tensors_are_damaged(tmp_path: Path) -> None:
    state = {"w": np.ones(100_000), "position": Position(100, 1)}
    ckpt.save(tmp_path, 1, state, group="alone")
    segment = tmp_path / "step-000000001/part-00000/seg-0000"
    content = bytearray(segment.read_bytes())
    content[300_000] ^= 1
    segment.write_bytes(content)

    position = Position(100, 7)
    with pytest.raises(ffrecord.CorruptionError):
        ckpt.load(tmp_path, {"w": np.zeros(100_000), "position": position}, group="alone")
    assert (position.at, position.seen.tolist()) == (7, [7, 7, 7])


def test_a_training_state_refuses_the_position_of_another_dataset_as_a_whole(
    tmp_path: Path,
) -> None:
    for name, count in (("a", 64), ("b", 32)):
        with ffrecord.Writer(tmp_path / f"{name}.ffr") as writer:
            for i in range(count):
                writer.write(bytes([i]) * 8)

    def training(name: str, seed: int) -> tuple[Any, TrainingState]:
        torch.manual_seed(seed)
        model = torch.nn.Linear(4, 4)
        dataset = Dataset(tmp_path / f"{name}.ffr")
        loader = DataLoader(dataset, batch_sampler=Sampler(dataset, batch_size=4, seed=1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return model, TrainingState(model, optimizer, loader)

    training("a", 0)[1].save(tmp_path / "run", 1)
    model, state = training("b", 1)
    before = model.weight.clone()
    with pytest.raises(ValueError, match="64 records"):
        state.load(tmp_path / "run")
    assert torch.equal(model.weight, before)


# --- None ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
@pytest.mark.parametrize("as_torch", [False, True])
def test_none_takes_the_tensor_that_was_saved(
    tmp_path: Path, dtype: str, *, as_torch: bool
) -> None:
    tensor = torch.arange(3).to(getattr(torch, dtype))
    average = Average(0)
    average.shadow = tensor
    saved = {
        "plain": tensor,
        "list": [tensor, 1],
        "tuple": (tensor,),
        "own": ckpt.PerRank({"t": tensor}),
        "average": average,
        "array": np.arange(3),
    }
    ckpt.save(tmp_path, 1, saved, group="alone")
    average = Average(0)
    average.shadow = None
    state: dict[str, Any] = {
        "plain": None,
        "list": [None, None],
        "tuple": (None,),
        "own": ckpt.PerRank(None),
        "average": average,
        "array": None,
    }
    ckpt.load(tmp_path, state, group="alone", as_torch=as_torch)

    found = [state["plain"], state["list"][0], state["tuple"][0], state["own"].value["t"]]
    for each in [*found, average.shadow]:
        assert same(each, tensor) and each.dtype == tensor.dtype
    assert same(state["array"], np.arange(3))


def test_tensors_of_extra_values_stay_tensors(tmp_path: Path) -> None:
    training = TrainingState(torch.nn.Linear(1, 1), extra={"ema": torch.ones(2), "best": 0.5})
    training.save(tmp_path, 1)
    other = TrainingState(torch.nn.Linear(1, 1))
    other.load(tmp_path)
    assert same(other.extra, training.extra)


class Holder:
    """An object whose state has another object in it."""

    def __init__(self, inner: Position) -> None:
        self.inner = inner

    def state_dict(self) -> dict[str, Any]:  # noqa: D102
        return {"inner": self.inner, "words": ["own"]}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: D102
        assert state["inner"] is self.inner


@pytest.mark.parametrize("records", [100, 200])
def test_an_object_in_the_state_of_another_is_loaded_and_may_refuse(
    tmp_path: Path, records: int
) -> None:
    ckpt.save(tmp_path, 1, {"holder": Holder(Position(100, at=5)), "w": np.ones(3)})
    inner, w = Position(records), np.zeros(3)
    state = {"holder": Holder(inner), "w": w}
    if records == 100:
        ckpt.load(tmp_path, state)
    else:
        with pytest.raises(ValueError, match="another dataset"):
            ckpt.load(tmp_path, state)
    expected = 5 if records == 100 else 0
    assert inner.at == expected
    assert inner.seen.tolist() == [expected] * 3
    assert w.tolist() == [float(records == 100)] * 3
