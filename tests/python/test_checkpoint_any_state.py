"""Goal: a state keeps every plain value and every kind of tensor, and nothing is made by a name.

Method: sets, enums, dataclasses, named tuples, dtypes and devices, with and without a state to
fill; tensors made of others; every element type of torch; tensors under several names.
"""

import dataclasses
import enum
import struct
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import ffrecord.checkpoint as ckpt
from ffrecord.checkpoint import Named
from ffrecord.checkpoint._values import NamedKind, decode, encode
from ffrecord.errors import CorruptionError
from thread_ranks import ThreadRank, ThreadRanks

pytestmark = pytest.mark.wrong_data


class Color(enum.Enum):
    """Its values are nobody's business."""

    RED = object()
    BLUE = "b"


class Level(enum.IntEnum):
    """A number with a name."""

    LOW = 1
    HIGH = 7


class Access(enum.Flag):
    """To be combined."""

    READ = enum.auto()
    WRITE = enum.auto()


@dataclasses.dataclass
class Settings:
    """Values and a tensor."""

    rate: float
    color: Color
    inner: Any = None
    weight: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class Fixed:
    """Nothing may be set."""

    count: int

    def __post_init__(self) -> None:
        """Not called by a load."""
        if self.count < 0:
            raise AssertionError("the constructor was called")


class Place(NamedTuple):
    """With names."""

    row: int
    column: Any


def sample() -> dict[str, Any]:
    return {
        "complex": complex(-0.0, float("inf")),
        "set": {1, "a", None, 2.5, b"x", 1j, (1, frozenset({"y"}))},
        "frozen": frozenset({3, "z"}),
        "color": Color.RED,
        "level": Level.HIGH,
        "access": Access.READ | Access.WRITE,
        "none": Access(0),
        "colors": {Color.BLUE, Color.RED, torch.float16},
        "settings": Settings(0.5, Color.BLUE, Fixed(4), torch.arange(3.0)),
        "place": Place(3, [Place(1, 2)]),
        "dtype": torch.bfloat16,
        "device": torch.device("cuda", 3),
        "list": [Level.LOW, {"deep": torch.int8}],
    }


def template() -> dict[str, Any]:
    return {
        "complex": 0j, "set": set(), "frozen": frozenset(), "color": Color.BLUE,
        "level": Level.LOW, "access": Access.READ, "none": Access.WRITE,
        "colors": {Color.BLUE, Color.RED}, "dtype": torch.int8, "device": torch.device("cpu"),
        "settings": Settings(0.0, Color.RED, Fixed(0), torch.zeros(3)),
        "place": Place(0, [Place(0, 0)]), "list": [Level.HIGH, {"deep": None}],
    }  # fmt: skip


def test_a_state_of_any_plain_values_is_filled_with_the_same(tmp_path: Path) -> None:
    ckpt.save(tmp_path, 1, sample())
    into = template()
    weight = into["settings"].weight
    ckpt.load(tmp_path, into)
    expected = sample()
    assert into["settings"].weight is weight and weight.tolist() == [0, 1, 2]
    into["settings"].weight = expected["settings"].weight = None
    assert into == expected
    assert struct.pack("<d", into["complex"].real) == struct.pack("<d", -0.0)
    assert into["color"] is Color.RED and type(into["level"]) is Level
    assert type(into["frozen"]) is frozenset and type(into["place"].column[0]) is Place
    assert type(into["settings"].inner) is Fixed


def test_without_a_state_types_of_the_program_stay_plain_values_with_names(tmp_path: Path) -> None:
    ckpt.save(tmp_path, 1, sample())
    found: Any = ckpt.load(tmp_path)
    here = __name__
    assert found["color"] == Named("enum", f"{here}.Color", "RED")
    assert found["access"] == Named("enum", f"{here}.Access", 3)
    assert found["place"].value["column"] == [
        Named("namedtuple", f"{here}.Place", {"row": 1, "column": 2})
    ]
    assert found["settings"].value["inner"] == Named("dataclass", f"{here}.Fixed", {"count": 4})
    assert found["settings"].value["weight"].tolist() == [0, 1, 2]
    assert found["dtype"] is torch.bfloat16 and found["device"] == torch.device("cuda:3")
    assert found["list"][1]["deep"] is torch.int8
    assert {torch.float16, Named("enum", f"{here}.Color", "RED")} < found["colors"]
    # And what was loaded so is saved as it was.
    ckpt.save(tmp_path, 2, found)
    assert not ckpt.diff((tmp_path, 1), (tmp_path, 2))


def test_a_state_of_other_types_is_told_by_path_and_nothing_is_touched(tmp_path: Path) -> None:
    ckpt.save(tmp_path, 1, {**sample(), "w": torch.ones(2)})

    def refuses(why: str, **changes: object) -> None:
        into = {**template(), "w": torch.zeros(2), **changes}
        before = dict(into)
        with pytest.raises(ckpt.MismatchError, match=why):
            ckpt.load(tmp_path, into)
        assert into["w"].tolist() == [0, 0] and all(into[key] is before[key] for key in into)

    refuses("color .Level has no member 'RED'", color=Level.LOW)
    refuses("color .a enum .*Color is stored, the state has str", color="RED")
    refuses("complex .a value is stored, the state has Color", complex=Color.RED)
    refuses("settings .a dataclass .*Settings is stored, the state has a dict", settings={})
    refuses("settings .a dataclass .*Settings is stored, the state has Color", settings=Color.RED)
    refuses("place .a namedtuple .* is stored, the state has Fixed", place=Fixed(1))
    refuses("missing .*settings/count; not in the state: settings/rate", settings=Fixed(1))
    refuses("settings/inner .a dataclass", settings=Settings(0.0, Color.RED, Place(1, 2), None))


def test_fields_that_are_not_stored_stay_if_that_is_meant(tmp_path: Path) -> None:
    ckpt.save(tmp_path, 1, {"a": Fixed(-0)})
    into: Any = {"a": Settings(1.5, Color.RED)}
    ckpt.load(tmp_path, into, strict=False)
    assert into["a"] == Settings(1.5, Color.RED)


def test_no_type_is_looked_up_by_the_name_that_a_file_tells(tmp_path: Path) -> None:
    called: list[object] = []

    class Trap:
        def __getattr__(self, name: str) -> object:
            called.append(name)
            raise AttributeError(name)

    state: Any = {
        "a": Named("enum", "os.system", "true"), "b": Named("dataclass", "trap.Type", {"x": 1}),
        "c": Named("dtype", "torch.dtype", "_dynamo"), "d": Named("device", "x", "no device"),
        "e": Named("dtype", "torch.dtype", "load"), "f": Named("tensor", "trap.T", 3),
    }  # fmt: skip
    ckpt.save(tmp_path, 1, state)
    modules = set(sys.modules)
    sys.modules["trap"] = Trap()  # type: ignore[assignment]
    try:
        assert ckpt.load(tmp_path) == state
    finally:
        del sys.modules["trap"]
    assert called == [] and set(sys.modules) <= modules


def test_ranks_may_have_any_values_of_their_own(tmp_path: Path) -> None:
    def save(rank: ThreadRank) -> object:
        state = {**sample(), "own": ckpt.PerRank(Settings(float(rank.rank), Color.RED))}
        return ckpt.save(tmp_path, 1, state, group=rank)

    ThreadRanks(2).must(save)

    def load(rank: ThreadRank) -> object:
        into: Any = {**template(), "own": ckpt.PerRank(Settings(9.0, Color.BLUE))}
        loaded: Any = ckpt.load(tmp_path, into, group=rank)
        return loaded["own"].value

    assert ThreadRanks(2).must(load) == [Settings(0.0, Color.RED), Settings(1.0, Color.RED)]


def test_sets_have_one_form_whatever_their_order() -> None:
    words = [f"word {i}" for i in range(50)]
    assert encode({"s": set(words)}) == encode({"s": set(reversed(words))})
    kinds: list[NamedKind] = ["enum", "tensor"]
    for kind in kinds:
        tree = Named(kind, "a.b", {"parts": (1, {2})})
        assert decode(encode(tree)) == tree
    for damaged in ("0d01000000 0700000000", "0d01000000 0900000000", "0f06 01000000 61 00"):
        with pytest.raises(CorruptionError):
            decode(bytes.fromhex(damaged))


# --- Tensors of every kind -----------------------------------------------------------------------

DTYPES = sorted(
    {str(each).removeprefix("torch.") for each in vars(torch).values() if type(each) is torch.dtype}
)
QUANTIZED = [name for name in DTYPES if name.startswith(("qint", "quint"))]


def of_type(name: str, bits: torch.Tensor) -> torch.Tensor:
    dtype = getattr(torch, name)
    if name == "bool":
        return bits % 2 == 0
    return bits.repeat_interleave(dtype.itemsize, dim=-1).view(dtype)


def bits_of(tensor: Any) -> bytes:  # noqa: ANN401
    size = tensor.element_size()
    rows = [tensor[i, j].reshape(1).view(torch.uint8) for i in range(3) for j in range(4)]
    assert all(row.numel() == size for row in rows)
    return bytes(torch.cat(rows).numpy())


@pytest.mark.parametrize("is_strided", [False, True])
def test_every_element_type_of_torch_comes_back_bit_for_bit(
    tmp_path: Path, is_strided: bool
) -> None:
    bits = torch.arange(12, dtype=torch.uint8).view(3, 4)

    def made(name: str, source: torch.Tensor) -> torch.Tensor:
        if not is_strided:
            return of_type(name, source)
        wide = of_type(name, source.repeat_interleave(2, dim=-1))
        return wide[:, ::2]

    names = [name for name in DTYPES if name not in QUANTIZED]
    state = {name: made(name, bits) for name in names}
    ckpt.save(tmp_path, 1, state)
    into = {name: made(name, torch.full((3, 4), 7, dtype=torch.uint8)) for name in names}
    ckpt.load(tmp_path, into)
    fresh: Any = ckpt.load(tmp_path, as_torch=True)
    for name in names:
        assert into[name].dtype == fresh[name].dtype == getattr(torch, name)
        assert bits_of(into[name]) == bits_of(fresh[name]) == bits_of(state[name]), name
    for name in QUANTIZED:
        with pytest.raises(TypeError, match=f"state: w/{name}: "):
            ckpt.save(tmp_path, 2, {"w": {name: torch.empty(2, dtype=getattr(torch, name))}})


class Packed(torch.Tensor):
    """Made of integers and a scale, as torchao's are; of two halves that are made so, or of one."""

    data: Any
    scale: Any
    rest: Any
    told: tuple[Any, ...]

    @staticmethod
    def __new__(cls: Any, data: Any, scale: Any, rest: Any = None, told: Any = ()) -> Any:  # noqa: ANN401, D102
        made = torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=torch.float32)
        made.ints, made.scale, made.rest, made.told = data, scale, rest, told
        return made

    def __tensor_flatten__(self) -> tuple[list[str], object]:
        """The parts, and how they are to be read."""
        names = ["ints", "scale"] + (["rest"] if self.rest is not None else [])
        return names, self.told

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:  # noqa: ANN401
        """As torch calls it."""
        return cls(inner["ints"], inner["scale"], inner.get("rest"), context)

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any, kwargs: Any = None) -> Any:  # noqa: ANN401
        """Nothing but what parameters need."""
        del types, kwargs
        if "detach" in str(function):
            return cls(args[0].ints, args[0].scale, args[0].rest, args[0].told)
        if "copy_" in str(function):
            for name in args[0].__tensor_flatten__()[0]:
                getattr(args[0], name).copy_(getattr(args[1], name))
            return args[0]
        return NotImplemented


def packed(fill: int, told: Any = (torch.int8, Color.RED, Fixed(2), (1, 4))) -> Any:  # noqa: ANN401
    inner = Packed(torch.full((2,), fill), torch.tensor(float(fill)), None, ())
    return Packed(torch.full((3, 4), fill, dtype=torch.int8), torch.full((3,), fill), inner, told)


def test_a_tensor_made_of_others_is_kept_as_its_parts(tmp_path: Path) -> None:
    model = torch.nn.Module()
    model.weight = torch.nn.Parameter(packed(3), requires_grad=False)
    for number, put in enumerate((ckpt.save, ckpt.async_save)):
        made: Any = put(tmp_path, number, {"model": model, "list": [packed(4)]})
        if number:
            made.result(60)
        into = torch.nn.Module()
        into.weight = torch.nn.Parameter(packed(0), requires_grad=False)
        state: Any = {"model": into, "list": [packed(0)]}
        ckpt.load(tmp_path, state, step=number)
        for found, fill in ((into.weight, 3), (state["list"][0], 4)):
            assert found.ints.tolist() == [[fill] * 4] * 3 and found.scale.tolist() == [fill] * 3
            assert found.rest.ints.tolist() == [fill] * 2 and found.rest.scale.item() == fill
    found = ckpt.load(tmp_path)
    weight = found["model"]["weight"]
    assert (weight.kind, weight.name) == ("tensor", f"{__name__}.Packed")
    assert weight.value["parts"]["ints"].tolist() == [[3] * 4] * 3
    assert weight.value["context"][0] is torch.int8
    ckpt.save(tmp_path, 7, found)
    assert not ckpt.diff((tmp_path, 0), (tmp_path, 7))


def test_a_tensor_made_of_others_that_does_not_fit_is_told_by_path(tmp_path: Path) -> None:
    ckpt.save(tmp_path, 1, {"a": {"w": packed(3)}, "plain": torch.ones(3, 4)})
    plain = torch.zeros(3, 4)
    other = packed(0, told=(torch.int8, Color.BLUE, Fixed(2), (1, 4)))
    short = packed(0)
    short.ints = torch.zeros(2, 4, dtype=torch.int8)
    for into, why in [
        ({"a": {"w": other}, "plain": plain}, "a/w .a .*Packed is stored whose parts or context"),
        ({"a": {"w": short}, "plain": plain}, r"a/w/ints .int8 \(3, 4\) is stored"),
        ({"a": {"w": torch.zeros(3, 4)}, "plain": plain}, "a/w .a tensor .*Packed is stored"),
        ({"a": {"w": packed(0)}, "plain": packed(0)}, "plain .a tensor is stored, .* Packed"),
    ]:
        with pytest.raises(ckpt.MismatchError, match=why):
            ckpt.load(tmp_path, into)
        assert not plain.any()
    with pytest.raises(TypeError, match=r"state: a/w/context.* is of type object"):
        ckpt.save(tmp_path, 2, {"a": {"w": packed(3, told=(object(),))}})
    with pytest.raises(TypeError, match=r"state: a/w: the context of Packed has tensors"):
        ckpt.save(tmp_path, 2, {"a": {"w": packed(3, told=(torch.ones(3),))}})


# --- Tensors under several names -----------------------------------------------------------------


def test_one_tensor_is_stored_once_under_all_its_names_and_is_one_again(tmp_path: Path) -> None:
    weight, view = torch.arange(12.0).view(3, 4), torch.arange(12.0).view(3, 4).t()
    array = np.arange(5)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    model[1].weight = model[0].weight
    state = {
        "a": weight, "b": [weight, {"c": weight.detach()}], "view": view, "again": view,
        "part": weight[:2], "other": weight.view(4, 3), "array": array, "array too": array,
        "equal": weight.clone(), "none": torch.empty(0), "none too": torch.empty(0),
        "model": model, "own": ckpt.PerRank([weight, weight]),
    }  # fmt: skip
    commit = ckpt.save(tmp_path, 1, state)
    assert commit.size_bytes == 48 * 5 - 16 + 40 + 4 * (4 + 2 + 2) + 48 - 0
    found: Any = ckpt.load(tmp_path, as_torch=True)
    assert found["a"] is found["b"][0] is found["b"][1]["c"] and torch.equal(found["a"], weight)
    assert found["view"] is found["again"] and torch.equal(found["view"], view)
    assert found["array"] is found["array too"] and found["array"].tolist() == array.tolist()
    assert found["own"][0] is found["own"][1] and torch.equal(found["own"][0], weight)
    assert found["model"]["0.weight"] is found["model"]["1.weight"]
    assert found["equal"] is not found["a"] and torch.equal(found["other"], weight.view(4, 3))
    # A state in which they are several gets the values in each; one in which they are one, once.
    into: Any = {
        "a": torch.zeros(3, 4), "b": [torch.zeros(3, 4), {"c": None}], "model": torch.nn.Sequential(
            torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
        ),
    }  # fmt: skip
    ckpt.load(tmp_path, into, strict=False)
    assert torch.equal(into["a"], weight) and torch.equal(into["b"][0], weight)
    assert torch.equal(into["model"][1].weight, model[0].weight)
    ckpt.save(tmp_path, 2, {**state, "a": weight.clone()})  # No more under that name.
    assert not ckpt.diff((tmp_path, 1), (tmp_path, 2))
    path = tmp_path / "out.safetensors"
    ckpt.export_safetensors(tmp_path, path, step=1, prefix="model")
    assert path.stat().st_size > 4 * (4 + 4 + 2 + 2)


@pytest.mark.parametrize("replicated", ["rank0", "split"])
def test_ranks_agree_on_what_is_one_tensor(tmp_path: Path, replicated: Any) -> None:  # noqa: ANN401
    weights = [torch.arange(600_000.0) for _ in range(3)]

    def save(rank: ThreadRank, is_tied: bool) -> object:
        weight = weights[rank.rank]
        state = {"a": weight, "b": weight if is_tied else weight.clone()}
        step = int(is_tied)
        return ckpt.save(tmp_path, step, state, group=rank, replicated=replicated)

    for commit in ThreadRanks(3).must(lambda rank: save(rank, True)):
        assert isinstance(commit, ckpt.Commit) and commit.size_bytes == weights[0].nbytes
    results = ThreadRanks(3).run(lambda rank: save(rank, rank.rank == 1))
    if replicated == "split":
        assert all(isinstance(each, ValueError) for each in results)
    found: Any = ckpt.load(tmp_path, step=1, as_torch=True)
    assert found["a"] is found["b"] and torch.equal(found["a"], weights[0])
