"""Goal: what is saved is loaded, equal in type and value, and everything else is a clear error.

Method: round trips over kinds of values and arrays; states that do not fit; damaged files; ranks
that are threads. Torch is in test_checkpoint_torch.py: here it is never imported.
"""

import contextlib
import struct
import subprocess
import sys
import threading
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ffrecord
import ffrecord.checkpoint as ckpt
from daemon import Daemon
from ffrecord.checkpoint.values import DEPTH_MAX, EachRank, Kind, TensorRef, decode, encode

DTYPES = [
    "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16",
    "float32", "float64", "complex64", "complex128",
]  # fmt: skip


class ThreadRanks:
    """Ranks that are threads."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.slots: list[bytes] = [b""] * size
        self.barrier = threading.Barrier(size, timeout=60)

    def run(self, work: Callable[["ThreadRank"], object]) -> list[object]:
        """What `work` returned or raised on each rank."""
        results: list[object] = [None] * self.size

        def one(rank: int) -> None:
            try:
                results[rank] = work(ThreadRank(self, rank))
            except Exception as error:
                results[rank] = error

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results


class ThreadRank:
    """One of them."""

    def __init__(self, ranks: ThreadRanks, rank: int) -> None:
        self.ranks, self.rank, self.size = ranks, rank, ranks.size

    def all_gather(self, mine: bytes) -> list[bytes]:
        """The bytes of all threads."""
        self.ranks.slots[self.rank] = mine
        self.ranks.barrier.wait()
        gathered = list(self.ranks.slots)
        self.ranks.barrier.wait()
        return gathered


def same(a: object, b: object) -> bool:
    """Equal in type, structure and value."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if type(a) is not type(b):
        return False
    if isinstance(a, EachRank) and isinstance(b, EachRank):
        return same(a.values, b.values)
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, float) and isinstance(b, float):
        return struct.pack("<d", a) == struct.pack("<d", b)
    return bool(a == b)


def arrays() -> dict[str, Any]:
    random = np.random.default_rng(1)
    return {
        dtype: random.integers(0, 2 if dtype == "bool" else 100, (5, 7)).astype(dtype)
        for dtype in DTYPES
    }


# --- Values --------------------------------------------------------------------------------------


def test_example_of_the_format_page_byte_for_byte() -> None:
    tree = {"step": 1200, "lr": (0.5, None), "w": TensorRef(Kind.TORCH, "w")}
    golden = bytes.fromhex(
        "09 03000000 05 04000000 73746570 03 0200 b004 05 02000000 6c72 08 02000000"
        "04 000000000000e03f 00 05 01000000 77 0a 02 0100 77"
    )
    assert encode(tree) == golden
    assert decode(golden) == tree


scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
    | st.integers(-(2**4000), 2**4000)
)  # fmt: skip
keys = scalars.filter(lambda key: key == key)  # NaN is no key to find again.
trees = st.recursive(
    scalars | st.builds(TensorRef, st.sampled_from(Kind), st.text(min_size=1, max_size=20)),
    lambda child: (
        st.builds(
            lambda make, items: make(items),
            st.sampled_from([list, tuple, EachRank, lambda items: dict(enumerate(items))]),
            st.lists(child, max_size=4),
        )
        | st.dictionaries(keys, child, max_size=4)
    ),
    max_leaves=12,
)


@given(trees)
def test_any_tree_is_decoded_to_itself(tree: object) -> None:
    assert same(decode(encode(tree)), tree)


@given(trees, st.data())
def test_damaged_trees_are_corruption_and_nothing_else(tree: object, data: st.DataObject) -> None:
    damaged = bytearray(encode(tree))
    position = data.draw(st.integers(0, len(damaged) - 1))
    if data.draw(st.booleans()):
        damaged[position] ^= data.draw(st.integers(1, 255))
    else:
        del damaged[position:]
    with contextlib.suppress(ffrecord.CorruptionError):
        decode(bytes(damaged))


# --- Round trips ---------------------------------------------------------------------------------


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


def test_a_bare_array_is_a_state(tmp_path: Path) -> None:
    ckpt.save(tmp_path, 1, np.arange(3))
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


def test_damage_is_named_and_the_step_before_loads(tmp_path: Path) -> None:
    for step in (1, 2):
        ckpt.save(tmp_path, step, {"w": np.full(10_000, step)})
    segment = tmp_path / "step-000000002/part-00000/seg-0000"
    content = bytearray(segment.read_bytes())
    content[5000] ^= 1
    segment.write_bytes(content)
    with pytest.raises(ffrecord.CorruptionError, match=r"step-000000002/part-00000/seg-0000.* w"):
        ckpt.load(tmp_path)
    loaded: Any = ckpt.load(tmp_path, step=1)
    assert loaded["w"][0] == 1

    (tmp_path / "step-000000002/root.manifest").write_bytes(b"")
    with pytest.warns(UserWarning, match=r"step-000000002/root\.manifest"):
        loaded = ckpt.load(tmp_path)
    assert loaded["w"][0] == 1
    assert [commit.step for commit in ckpt.list(tmp_path)] == [1]
    latest = ckpt.latest(tmp_path)
    assert latest is not None and latest.step == 1


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def test_the_step_before_is_offered_and_loaded_on_request(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        ckpt.save(tmp_path, step, {"w": np.full(100_000, step), "n": step})
    flip(tmp_path / "step-000000004/part-00000/seg-0000", 5000)
    flip(tmp_path / "step-000000003/root.manifest", 30)
    with pytest.raises(ffrecord.CorruptionError, match=r"step-000000004.* Step 2 is there"):
        ckpt.load(tmp_path)
    with pytest.raises(ffrecord.CorruptionError, match=r"step-000000004") as raised:
        ckpt.load(tmp_path, step=4, on_corrupt="previous")
    assert "is there" not in str(raised.value)

    state: Any = {"w": np.zeros(100_000, int), "n": 0}
    with pytest.warns(UserWarning, match=r"step-000000004.*offset 0 fails.*step 2 is loaded"):
        ckpt.load(tmp_path, state, on_corrupt="previous")
    assert state["n"] == 2 and np.all(state["w"] == 2)

    for step in (1, 2):
        flip(tmp_path / f"step-00000000{step}/part-00000/seg-0000", 5000)
    with (
        pytest.warns(UserWarning, match="step 1 is loaded"),
        pytest.raises(ffrecord.CorruptionError, match="step-000000001"),
    ):
        ckpt.load(tmp_path, on_corrupt="previous")
    with pytest.raises(ValueError, match="on_corrupt"):
        ckpt.load(tmp_path, on_corrupt="ignore")  # type: ignore[arg-type]


def test_ranks_fall_back_together(tmp_path: Path) -> None:
    def save(rank: ThreadRank) -> object:
        for step in (1, 2):
            own = ckpt.Shard(np.full(100_000, step), (200_000,), (100_000 * rank.rank,))
            ckpt.save(tmp_path, step, {"own": own}, group=rank)
        return None

    assert ThreadRanks(2).run(save) == [None, None]
    flip(tmp_path / "step-000000002/part-00001/seg-0000", 5000)

    def load(rank: ThreadRank) -> object:
        data = np.zeros(100_000, int)
        state = {"own": ckpt.Shard(data, (200_000,), (100_000 * rank.rank,))}
        ckpt.load(tmp_path, state, group=rank, on_corrupt="previous")
        return data.tolist() == [1] * 100_000

    with pytest.warns(UserWarning, match=r"rank 1: .*part-00001/seg-0000"):
        assert ThreadRanks(2).run(load) == [True, True]


def test_verify_names_every_bad_block(tmp_path: Path) -> None:
    ckpt.save(tmp_path, 1, {"w": np.arange(1_000_000), "small": np.ones(3)})
    ckpt.save(tmp_path, 2, {"w": np.arange(10)})
    assert ckpt.verify(tmp_path) == ckpt.verify(tmp_path, 1) == []
    segment = tmp_path / "step-000000001/part-00000/seg-0000"
    for offset in (70_000, 80_000, 7_000_000):
        flip(segment, offset)
    damage = ckpt.verify(tmp_path, 1)
    assert [int(message.split("offset ")[1].split()[0]) for message in damage] == [
        65536,
        7_000_000 // 65536 * 65536,
    ]
    assert ckpt.verify(tmp_path) == []
    flip(segment, -4000)  # Behind the payload comes the table, in one page.
    assert "table" in ckpt.verify(tmp_path, 1)[0]
    flip(tmp_path / "step-000000002/part-00000.manifest", 40)
    assert "part-00000.manifest" in ckpt.verify(tmp_path, 2)[0]
    with pytest.raises(FileNotFoundError):
        ckpt.verify(tmp_path, 3)
    with pytest.raises(FileNotFoundError):
        ckpt.verify(tmp_path / "none")


def test_steps_are_listed_pruned_and_removed(tmp_path: Path) -> None:
    commits = [ckpt.save(tmp_path, step, {"w": np.ones(step)}) for step in (1, 2, 10, 30)]
    assert ckpt.list(tmp_path) == commits
    assert ckpt.latest(tmp_path) == commits[-1]
    assert ckpt.prune(tmp_path, keep_last=2) == commits[:2]
    assert ckpt.list(tmp_path) == commits[2:]
    ckpt.remove(tmp_path, 30)
    assert ckpt.latest(tmp_path) == commits[2]
    with pytest.raises(ValueError, match="keep_last"):
        ckpt.prune(tmp_path, keep_last=0)


# --- Ranks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("replicated", ["rank0", "split"])
@pytest.mark.parametrize("size", [2, 3])
def test_ranks_save_together_and_any_number_loads(
    tmp_path: Path, size: int, replicated: Literal["rank0", "split"]
) -> None:
    random = np.random.default_rng(2)
    model = {f"layer{i}": random.standard_normal((401 + i, 700)) for i in range(3)}
    whole = random.standard_normal((100, 8)).astype("float32")
    state = {"model": model, "small": np.arange(3), "zero": np.array(1.0), "epoch": 4}

    def save(rank: ThreadRank) -> object:
        begin, end = 100 * rank.rank // size, 100 * (rank.rank + 1) // size
        mine = {
            **state,
            "shard": ckpt.Shard(whole[begin:end], (100, 8), (begin, 0)),
            "rng": ckpt.PerRank({"draws": rank.rank, "buffer": np.full(2, rank.rank)}),
        }
        return ckpt.save(tmp_path, 1, mine, group=rank, replicated=replicated)

    results = ThreadRanks(size).run(save)
    assert all(result == results[0] for result in results), results
    assert isinstance(results[0], ckpt.Commit)

    def load(rank: ThreadRank) -> object:
        column = ckpt.Shard(np.zeros((100, 3), "float32"), (100, 8), (0, rank.rank))
        into = {
            "model": {key: np.zeros_like(value) for key, value in model.items()},
            "small": np.zeros(3, int), "zero": np.array(0.0), "epoch": 0, "shard": column,
            "rng": ckpt.PerRank(None),
        }  # fmt: skip
        loaded: Any = ckpt.load(tmp_path, into, group=rank)
        assert same(loaded["model"], model)
        assert np.array_equal(column.data, whole[:, rank.rank : rank.rank + 3])  # type: ignore[arg-type]
        assert same(loaded["rng"].value, {"draws": rank.rank, "buffer": np.full(2, rank.rank)})
        return loaded["epoch"]

    assert ThreadRanks(size).run(load) == [4] * size
    with pytest.raises(
        ckpt.MismatchError, match=rf"rng .saved by each of {size} ranks, loaded by 1"
    ):
        ckpt.load(tmp_path)
    loaded: Any = ckpt.load(tmp_path, elastic=True)
    assert same(loaded["model"], model)
    assert np.array_equal(loaded["shard"], whole)
    assert loaded["rng"] is None


def test_a_rank_that_fails_fails_all_and_nothing_is_left(tmp_path: Path) -> None:
    def save(rank: ThreadRank) -> object:
        state = {"w": np.ones(3), "bad": object() if rank.rank == 1 else 1}
        return ckpt.save(tmp_path / "run", 1, state, group=rank)

    results = ThreadRanks(3).run(save)

    assert isinstance(results[1], TypeError)
    for result in (results[0], results[2]):
        assert isinstance(result, ckpt.PeerError)
        assert "rank 1: TypeError: state: bad" in str(result)
    assert not (tmp_path / "run").exists()


def test_ranks_with_other_tensors_are_refused(tmp_path: Path) -> None:
    results = ThreadRanks(2).run(
        lambda rank: ckpt.save(tmp_path, 1, {"w": np.ones(3 + rank.rank)}, group=rank)
    )
    assert all("not those of rank 0" in str(result) for result in results), results


def test_shards_with_a_gap_are_refused(tmp_path: Path) -> None:
    def save(rank: ThreadRank) -> object:
        shard = ckpt.Shard(np.ones((2, 3)), (5, 3), (2 * rank.rank, 0))
        return ckpt.save(tmp_path, 1, {"w": shard}, group=rank)

    results = ThreadRanks(2).run(save)
    for result in results:
        assert isinstance(result, ValueError)
        assert "w: the ranks' boxes cover 12 of 15 elements" in str(result)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_segment_fails_the_load_of_all_ranks(tmp_path: Path) -> None:
    ThreadRanks(2).run(
        lambda rank: ckpt.save(
            tmp_path,
            1,
            {"w": ckpt.Shard(np.ones((500, 9)), (1000, 9), (500 * rank.rank, 0))},
            group=rank,
        )
    )
    segment = tmp_path / "step-000000001/part-00001/seg-0000"
    content = bytearray(segment.read_bytes())
    content[0] ^= 1
    segment.write_bytes(content)

    def load(rank: ThreadRank) -> object:
        shard = ckpt.Shard(np.ones((500, 9)), (1000, 9), (500 * rank.rank, 0))
        return ckpt.load(tmp_path, {"w": shard}, group=rank)

    results = ThreadRanks(2).run(load)
    assert isinstance(results[1], ffrecord.CorruptionError)
    assert isinstance(results[0], ckpt.PeerError) and "part-00001/seg-0000" in str(results[0])


def test_a_group_that_breaks_is_told_as_it_is(tmp_path: Path) -> None:
    class Broken:
        rank, size = 0, 1
        calls = 0

        def all_gather(self, mine: bytes) -> list[bytes]:
            self.calls += 1
            if self.calls > 1:
                raise ConnectionResetError("a rank is gone")
            return [mine]

    with pytest.raises(ConnectionResetError, match="a rank is gone"):
        ckpt.save(tmp_path / "run", 1, {"w": np.ones(3)}, group=Broken())
    assert list((tmp_path / "run").iterdir()) == []


# --- At a daemon ---------------------------------------------------------------------------------


def test_a_daemon_is_a_target_like_a_folder(tmp_path: Path) -> None:
    state = {"w": np.arange(100_000.0), "n": {"step": 7}}
    with Daemon(tmp_path / "data") as daemon:
        target = daemon.address("runs/x")
        assert ckpt.latest(target) is None

        def save(rank: ThreadRank) -> object:
            mine = {**state, "rng": ckpt.PerRank(rank.rank)}
            return ckpt.save(target, 1200, mine, group=rank, replicated="split")

        commits = ThreadRanks(2).run(save)
        assert commits[0] == commits[1] == ckpt.latest(target) == ckpt.list(target)[0]
        loaded: Any = ckpt.load(target, elastic=True)
        assert same({key: loaded[key] for key in state}, state)
        into = {"w": np.zeros(100_000), "n": None, "rng": None}
        ckpt.load(target, into, elastic=True)
        assert np.array_equal(into["w"], state["w"])  # type: ignore[arg-type]
        with pytest.raises(FileExistsError, match="step-000001200"):
            ckpt.save(target, 1200, state)
        with pytest.raises(FileNotFoundError):
            ckpt.load(target, step=5)
        ckpt.save(target, 1300, state)
        assert [commit.step for commit in ckpt.prune(target, keep_last=1)] == [1200]
    with pytest.raises(ConnectionError, match=r"127\.0\.0\.1"):
        ckpt.save(target, 1400, state, timeout_s=1)
