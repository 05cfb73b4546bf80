"""Goal: what is saved is loaded, equal in type and value, and everything else is a clear error.

Method: round trips over kinds of values and arrays; states that do not fit. Torch is in
test_checkpoint_torch.py: here it is never imported.
"""

import subprocess
import sys
from collections import Counter, OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ffrecord.checkpoint as ckpt
from ffrecord.checkpoint._values import DEPTH_MAX, Kind
from thread_ranks import ThreadRanks, same

DTYPES = [
    "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16",
    "float32", "float64", "complex64", "complex128",
]  # fmt: skip


def arrays() -> dict[str, Any]:
    random = np.random.default_rng(1)
    return {
        dtype: random.integers(0, 2 if dtype == "bool" else 100, (5, 7)).astype(dtype)
        for dtype in DTYPES
    }


# --- Round trips ---------------------------------------------------------------------------------


@pytest.mark.wrong_data
@pytest.mark.parametrize("how", [ckpt.save, lambda *args: ckpt.async_save(*args).result(60)])
def test_each_numpy_scalar_is_saved_as_it_is(tmp_path: Path, how: Any) -> None:  # noqa: ANN401
    """They have no memory that outlives a view of them."""
    types = (np.float32, np.int64, np.float16, np.complex128, np.bool_)
    state = {f"{of.__name__} {i}": of(i) for of in types for i in range(100)}
    how(tmp_path, 1, state)
    loaded: Any = ckpt.load(tmp_path)
    assert loaded == state
    assert all(type(loaded[key]) is type(value) for key, value in state.items())


class Computed:
    """An array of another library, which shows its elements in memory of its own at each call."""

    def __init__(self, value: int, size: int) -> None:
        self.value, self.size = value, size

    def __dlpack__(self, **options: Any) -> Any:  # noqa: ANN401 (a capsule)
        return np.full(self.size, self.value).__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)  # The CPU.


@pytest.mark.wrong_data
@pytest.mark.parametrize("stage_bytes_max", [None, 0, 512 << 20])
@pytest.mark.parametrize("incremental", [False, True])
def test_an_array_by_dlpack_is_saved_as_it_is(
    tmp_path: Path, stage_bytes_max: int | None, incremental: bool
) -> None:
    """Its memory may end with the view that it has given of itself."""
    sizes = (1, 16, 1000, 1 << 16, 1 << 20)
    state = {f"{size} {i}": Computed(i, size) for size in sizes for i in range(1, 5)}
    if stage_bytes_max is None:
        ckpt.save(tmp_path, 1, state, incremental=incremental)
    else:
        ckpt.async_save(
            tmp_path, 1, state, incremental=incremental, stage_bytes_max=stage_bytes_max
        ).result(60)
    loaded: Any = ckpt.load(tmp_path)
    for key, value in state.items():
        assert same(loaded[key], np.full(value.size, value.value)), key


def test_every_dtype_comes_back_without_a_state(tmp_path: Path) -> None:
    state = arrays()
    commit = ckpt.save(tmp_path / "run", 1200, state)
    assert (commit.step, commit.size_bytes) == (1200, sum(a.nbytes for a in state.values()))
    assert same(ckpt.load(tmp_path / "run"), state)


def test_nested_values_and_odd_arrays_come_back(tmp_path: Path) -> None:
    state = {
        "scalars": [None, True, False, 0, -1, 2**200, 1.5, float("inf"), "ü/~#", b"\0\xff"],
        "keys": {0: "int", "0": "str", "#0": "hash", "a/b": {"c": np.arange(3)}, "": np.ones(2)},
        "a": {"b/c": np.arange(4)},
        "mixed keys": {None: 1, True: 2, 2.5: 3, b"x": np.arange(2)},
        "zero-d": np.array(3.5, "float32"),
        "scalar": np.float16(2.5),
        "empty": np.empty((0, 3)),
        "strided": np.arange(24).reshape(4, 6)[::2, ::-1],
        "fortran": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "readonly": np.broadcast_to(np.arange(3.0), (2, 3)),
        "tuple": (np.zeros(1), (1, [2])),
        "large": np.arange(300_001),
    }
    ckpt.save(tmp_path, 1, state)
    loaded: Any = ckpt.load(tmp_path)
    for key, value in state.items():
        want = np.ascontiguousarray(value) if getattr(value, "ndim", 0) else value
        assert same(loaded[key], want), key


def test_foreign_byte_order_keeps_its_values(tmp_path: Path) -> None:
    state = {"big": np.arange(5, dtype=">i4")}
    ckpt.save(tmp_path, 1, state)
    loaded: Any = ckpt.load(tmp_path)
    assert loaded["big"].tolist() == [0, 1, 2, 3, 4]
    into = {"big": np.zeros(5, ">i4")}
    ckpt.load(tmp_path, into)
    assert into["big"].tolist() == [0, 1, 2, 3, 4]


def test_dict_classes_become_plain_dicts_in_their_order(tmp_path: Path) -> None:
    state = {
        "ordered": OrderedDict(b=1, a=2),
        "default": defaultdict(int, x=1),
        "counter": Counter("aab"),
    }
    ckpt.save(tmp_path, 1, state)
    expected = {"ordered": {"b": 1, "a": 2}, "default": {"x": 1}, "counter": {"a": 2, "b": 1}}
    assert same(ckpt.load(tmp_path), expected)


@pytest.mark.parametrize(
    "state", [np.arange(3), ckpt.Shard(np.arange(3), (3,), (0,)), ckpt.PerRank(np.arange(3))]
)
def test_a_bare_array_is_a_state(tmp_path: Path, state: object) -> None:
    ckpt.save(tmp_path, 1, state)
    assert same(ckpt.load(tmp_path), np.arange(3))


def test_arrays_are_filled_in_place_and_values_replaced(tmp_path: Path) -> None:
    saved = {"w": np.arange(12.0).reshape(3, 4), "n": {"step": 7, "list": [1, 2]}, "t": (1, 2)}
    ckpt.save(tmp_path, 1, saved)
    base = np.zeros((4, 3))
    state = {"w": base.T, "n": {"step": 0, "list": [0, 0]}, "t": (0, 0)}
    inner, numbers = state["n"], state["n"]["list"]  # type: ignore[index]

    loaded = ckpt.load(tmp_path, state)

    assert loaded is state and state["n"] is inner and inner["list"] is numbers  # type: ignore[index]
    assert np.array_equal(base.T, saved["w"])
    assert (inner, state["t"]) == ({"step": 7, "list": [1, 2]}, (1, 2))


def test_none_takes_whatever_is_stored(tmp_path: Path) -> None:
    ckpt.save(tmp_path, 1, {"rng": {"key": b"x", "a": np.arange(3)}, "n": None})
    loaded: Any = ckpt.load(tmp_path, {"rng": None, "n": 5})
    assert same(loaded, {"rng": {"key": b"x", "a": np.arange(3)}, "n": None})


def test_objects_give_and_take_their_state(tmp_path: Path) -> None:
    class Loader:
        def __init__(self, position: int) -> None:
            self.position = position
            self.buffer = np.full(3, position)

        def state_dict(self) -> dict[str, Any]:
            return {"position": self.position, "buffer": self.buffer}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.position = state["position"]

    ckpt.save(tmp_path, 1, {"loader": Loader(42)})
    fresh = Loader(0)
    buffer = fresh.buffer
    ckpt.load(tmp_path, {"loader": fresh})
    assert fresh.position == 42
    assert buffer.tolist() == [42, 42, 42]


def test_random_states_go_on_where_they_were(tmp_path: Path) -> None:
    import random

    random.random(), np.random.standard_normal()
    ckpt.save(tmp_path, 1, {"rng": ckpt.rng_state()})
    expected = random.random(), np.random.standard_normal(3).tolist()
    random.random(), np.random.random(100)

    loaded: Any = ckpt.load(tmp_path)
    ckpt.set_rng_state(loaded["rng"])

    assert (random.random(), np.random.standard_normal(3).tolist()) == expected


def test_neither_torch_nor_pickle_is_loaded(tmp_path: Path) -> None:
    """In a process of its own, with an import hook that refuses them."""
    program = f"""
import sys, builtins
original = builtins.__import__
class Refuse:
    def find_spec(self, name, path=None, target=None):
        assert name.split(".")[0] not in ("torch",), name
sys.meta_path.insert(0, Refuse())
import numpy as np, pickle
import ffrecord.checkpoint as ckpt  # What it imports may know pickle; files must not reach it.
for name in ("loads", "load", "dumps", "dump", "Unpickler", "Pickler"):
    setattr(pickle, name, None)
ckpt.save({str(tmp_path)!r}, 1, {{"a": np.arange(3), "rng": ckpt.rng_state()}})
ckpt.set_rng_state(ckpt.load({str(tmp_path)!r})["rng"])
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


# --- Refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "path"),
    [
        ({"a": [1, {"b": object()}]}, "a/#1/b"),
        ({"f": lambda: None}, "f"),
        ({"s": {1, 2}}, "s"),
        ({"o": np.array([object()])}, "o"),
        ({"t": np.array(["text"])}, "t"),
        ({"d": np.array(["2020-01-01"], "datetime64[D]")}, "d"),
        ({"r": np.zeros(2, [("x", "i4")])}, "r"),
        ({"c": 1 + 2j}, "c"),
        ({"k": {(1, 2): 3}}, "k"),
        ({"e": Kind.TORCH}, "e"),
    ],
)
def test_what_would_need_pickling_is_named(tmp_path: Path, state: object, path: str) -> None:
    with pytest.raises(TypeError, match=f"^state: {path}:? "):
        ckpt.save(tmp_path / "run", 1, state)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("state", "named"),
    [
        ({"a": {"k" * 70_000: np.arange(3)}}, "a/kkk"),
        ({"a": {"k" * 5_000: np.arange(3)}}, "a/kkk"),
        ({"a": {"name\udc80": np.arange(3)}}, "name.udc80"),
        ({"a": {"name\udc80": 3}}, "name.udc80"),
        ({"a": ["text\udc80"]}, "text.udc80"),
    ],
)
def test_names_and_texts_that_cannot_be_stored_are_in_the_error(
    tmp_path: Path, state: object, named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        ckpt.save(tmp_path / "run", 1, state)
    assert not (tmp_path / "run").exists()


def test_states_that_contain_themselves_are_refused(tmp_path: Path) -> None:
    state: dict[str, Any] = {}
    state["self"] = state
    with pytest.raises(ValueError, match="nested deeper"):
        ckpt.save(tmp_path, 1, state)


def test_the_deepest_state_comes_back_also_from_ranks(tmp_path: Path) -> None:
    state: Any = 1
    for _ in range(DEPTH_MAX):
        state = [state]
    ckpt.save(tmp_path, 1, state)
    results = ThreadRanks(2).run(lambda rank: ckpt.save(tmp_path, 2, state, group=rank))
    assert all(isinstance(result, ckpt.Commit) for result in results), results
    assert ckpt.load(tmp_path) == state


def test_every_mismatch_is_in_one_error_and_nothing_is_touched(tmp_path: Path) -> None:
    saved = {"w": np.ones((2, 3)), "v": np.ones(3, "float32"), "old": 1, "n": {"x": 1}, "t": [1, 2]}
    ckpt.save(tmp_path, 1, saved)
    state = {
        "w": np.zeros((3, 2)), "v": np.zeros(3), "new": 2, "n": np.zeros(1), "t": [1],
    }  # fmt: skip

    with pytest.raises(ckpt.MismatchError) as raised:
        ckpt.load(tmp_path, state)

    assert isinstance(raised.value, ValueError)
    assert (raised.value.missing, raised.value.extra) == (["new"], ["old"])
    message = str(raised.value)
    for part in [
        "w (float64 (2, 3) is stored, the state has float64 (3, 2))",
        "v (float32 (3,) is stored, the state has float64 (3,))",
        "n (a dict is stored, the state has a tensor)",
        "t (a list of 2 is stored, the state has a list of 1)",
    ]:
        assert part in message
    assert not state["v"].any()


@pytest.mark.parametrize(("more", "fewer"), [("state", "checkpoint"), ("checkpoint", "state")])
def test_what_only_one_of_both_has_is_refused_unless_allowed(
    tmp_path: Path, more: str, fewer: str
) -> None:
    content: dict[str, dict[str, Any]] = {more: {"w": np.ones(3), "b": 1}, fewer: {"w": np.ones(3)}}
    ckpt.save(tmp_path, 1, content["checkpoint"])
    content["state"]["w"][:] = 0
    with pytest.raises(ckpt.MismatchError, match="b"):
        ckpt.load(tmp_path, content["state"])
    assert not content["state"]["w"].any()
    ckpt.load(tmp_path, content["state"], strict=False)
    assert content["state"]["w"].all()


def test_not_strict_leaves_the_rest_alone(tmp_path: Path) -> None:
    ckpt.save(tmp_path, 1, {"w": np.ones(2), "old": 1})
    state = {"w": np.zeros(2), "new": 2}
    ckpt.load(tmp_path, state, strict=False)
    assert same(state, {"w": np.ones(2), "new": 2})
    with pytest.raises(ckpt.MismatchError, match="w "):
        ckpt.load(tmp_path, {"w": np.zeros(3)}, strict=False)


def test_a_readonly_array_cannot_be_filled(tmp_path: Path) -> None:
    ckpt.save(tmp_path, 1, {"w": np.ones(2)})
    array = np.zeros(2)
    array.flags.writeable = False
    with pytest.raises(ckpt.MismatchError, match="in place"):
        ckpt.load(tmp_path, {"w": array})


def test_errors_are_the_ones_python_has(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ckpt.load(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError):
        ckpt.load(tmp_path, step=3)
    assert ckpt.latest(tmp_path / "nowhere") is None
    ckpt.save(tmp_path, 3, {"a": 1})
    with pytest.raises(FileExistsError, match="step-000000003"):
        ckpt.save(tmp_path, 3, {"a": 2})
    for step in (-1, 2**63, 1.5, True, "1"):
        with pytest.raises(ValueError, match="step"):
            ckpt.save(tmp_path, step, {})  # type: ignore[arg-type]
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match="file"):
        ckpt.save(tmp_path / "file", 1, {})
