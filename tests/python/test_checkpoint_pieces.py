"""Goal: tensors that have no memory of their own are saved and loaded without a second copy.

Method: strided, reversed and foreign arrays, of a size that shows, while Python's allocations are
counted; then tensors of torch. What lies between two elements is compared with NumPy's order.
"""

import math
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ffrecord.checkpoint as ckpt
from ffrecord.checkpoint import _pieces
from ffrecord.checkpoint._tensors import has_elements_apart
from thread_ranks import ThreadRank, ThreadRanks

pytestmark = pytest.mark.wrong_data

SIZE = 24 << 20
LIMIT = 4 << 20  # What may be held of it, with what else is allocated.


def strided() -> Any:  # noqa: ANN401
    return np.arange(SIZE // 8, dtype="int64").reshape(3, -1, 128).transpose(2, 0, 1)


@contextmanager
def little_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < LIMIT
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("make", ["expanded", "windows", "torch"])
def test_what_shares_memory_with_itself_is_refused_before_anything_is_touched(
    tmp_path: Path, make: str
) -> None:
    ckpt.save(tmp_path, 1, {"a": np.arange(9.0), "w": np.arange(4.0).reshape(2, 2)})
    into: Any = {"a": np.zeros(9)}
    if make == "torch":
        torch = pytest.importorskip("torch")
        into = {
            "a": torch.zeros(9, dtype=torch.float64),
            "w": torch.zeros(3, dtype=torch.float64).as_strided((2, 2), (1, 1)),
        }
    else:
        strides = (0, 8) if make == "expanded" else (8, 8)
        into["w"] = np.lib.stride_tricks.as_strided(np.zeros(4), (2, 2), strides)

    with pytest.raises(ckpt.MismatchError, match=r"w \(its elements share memory"):
        ckpt.load(tmp_path, into)

    assert not into["a"].any()


def test_elements_are_apart_wherever_numpy_puts_them() -> None:
    whole = np.zeros((4, 5, 6))
    for view in (whole.T, whole[::2, :, ::-3], whole.transpose(1, 2, 0)[1:], whole[:0], whole[0]):
        assert has_elements_apart(view)
    assert not has_elements_apart(np.broadcast_to(whole[:1], whole.shape))
    assert has_elements_apart(np.broadcast_to(whole[:1], whole.shape)[:, :0])
    assert not has_elements_apart(np.lib.stride_tricks.sliding_window_view(whole, 2, 2))


def test_one_row_is_compared_by_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    call = _pieces.Fetcher.__call__

    def counting(self: _pieces.Fetcher, offset: int, address: int, size_bytes: int) -> None:
        asked.append(size_bytes)
        call(self, offset, address, size_bytes)

    monkeypatch.setattr(_pieces.Fetcher, "__call__", counting)
    row = np.arange(2 * SIZE // 8, dtype="int64")[None, ::2]
    for step in (1, 2):
        ckpt.save(tmp_path, step, {"w": row, "x": step}, incremental=True)

    assert max(asked) <= 4 << 20
    assert np.array_equal(ckpt.load(tmp_path)["w"], row)  # type: ignore[index]
    shared = [next(tmp_path.glob(f"step-*{step}/part-*/seg-0000")) for step in (1, 2)]
    assert shared[0].stat().st_ino == shared[1].stat().st_ino


def test_a_masked_array_does_not_lose_its_mask(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="w: a masked array would lose its mask"):
        ckpt.save(tmp_path, 1, {"w": np.ma.masked_array([1, 2], [True, False])})


@given(st.lists(st.integers(0, 5), max_size=4), st.data())
def test_slices_are_the_elements_between_two_in_their_order(shape: list[int], data: Any) -> None:  # noqa: ANN401
    whole = np.arange(math.prod(shape)).reshape(shape)
    begin = data.draw(st.integers(0, whole.size))
    end = data.draw(st.integers(begin, whole.size))

    found = [whole[index].ravel() for index in _pieces.slices_between(shape, begin, end)]

    assert np.concatenate([[], *found]).tolist() == list(range(begin, end))


@pytest.mark.parametrize("incremental", [False, True])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_save_holds_no_more_than_its_cap(
    tmp_path: Path, is_async: bool, incremental: bool
) -> None:
    state = {"w": strided(), "rev": strided()[::-1], "big": strided().astype(">i8"), "x": 1}
    want = {key: np.array(value, order="C") for key, value in state.items()}
    with little_memory():
        if is_async:
            pending = ckpt.async_save(
                tmp_path, 1, state, stage_bytes_max=1 << 20, incremental=incremental
            )
            for value in (state["w"], state["big"]):
                value[...] = -1  # "rev" is of "w"'s values, not of its memory.
            assert pending.staged_bytes <= 1 << 20
            pending.result(60)
        else:
            ckpt.save(tmp_path, 1, state, incremental=incremental)

    loaded: Any = ckpt.load(tmp_path)
    assert all(np.array_equal(loaded[key], want[key]) for key in want)


@pytest.mark.parametrize("replicated", ["rank0", "split"])
def test_ranks_that_share_a_save_hold_no_more_either(
    tmp_path: Path, replicated: Literal["rank0", "split"]
) -> None:
    value = strided()

    def save(rank: ThreadRank) -> object:
        return ckpt.save(tmp_path, 1, {"w": value}, group=rank, replicated=replicated)

    with little_memory():
        ThreadRanks(3).must(save)

    assert np.array_equal(ckpt.load(tmp_path)["w"], value)  # type: ignore[index]


def test_a_load_holds_one_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pieces, "WINDOW_SIZE", 1 << 20)
    value = strided()
    ckpt.save(tmp_path, 1, {"w": value, "small": np.arange(9.0)[::2]})
    into = {"w": np.zeros_like(value, order="K"), "small": np.zeros(10)[::2]}
    assert not into["w"].flags.c_contiguous

    with little_memory():
        ckpt.load(tmp_path, into)

    assert np.array_equal(into["w"], value) and into["small"].tolist() == [0, 2, 4, 6, 8]


def test_a_piece_that_cannot_be_copied_fails_the_save_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[int] = []

    def fail(self: object, room: Any, offset_bytes: int = 0) -> None:  # noqa: ANN401
        copied.append(offset_bytes)
        raise RuntimeError("the device is lost")

    monkeypatch.setattr(_pieces.Fetcher, "copy_to", fail)

    def save(rank: ThreadRank) -> object:
        return ckpt.save(tmp_path, 1, {"w": strided()}, group=rank)

    results = ThreadRanks(2).run(save)

    assert copied
    assert all("the device is lost" in str(result) for result in results), results
    assert ckpt.list(tmp_path) == []


@pytest.mark.parametrize(
    "make",
    [
        lambda torch: torch.arange(600_000).reshape(6, 1000, 100).permute(2, 0, 1),
        lambda torch: torch.randn(700, 300, dtype=torch.complex64).conj(),
        lambda torch: torch.randn(900, 300).to(torch.bfloat16).t(),
        lambda torch: torch.arange(1000.0).expand(300, 1000),
    ],
)
def test_tensors_of_torch_come_back_piece_by_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Any], Any]
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(_pieces, "WINDOW_SIZE", 100_000)
    value = make(torch)
    ckpt.save(tmp_path, 1, {"w": value})
    into = torch.zeros([*value.shape[:-1], 2 * value.shape[-1]], dtype=value.dtype)[..., ::2]

    ckpt.load(tmp_path, {"w": into})

    assert torch.equal(into, value)
