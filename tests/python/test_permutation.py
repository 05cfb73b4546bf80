"""Goal: the binding gives the order that format.md specifies.

Method: the golden vectors of that page, and the order written in plain Python as reference.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffrecord._ffrecord import BlockedPermutation, Permutation
from order import permute, permute_blocked

pytestmark = pytest.mark.wrong_data

GOLDEN = [
    (0, 0, 10, [7, 9, 3, 0], 1),
    (0, 1, 10, [1, 2, 5, 0], 3),
    (42, 3, 1000, [499, 64, 125, 649], 569),
    (0, 0, 1281167, [515544, 726827, 1153306, 984601], 218547),
    (
        2**64 - 1,
        2**32,
        2**48,
        [244541229551114, 80583457655150, 232606719202841, 221934506865021],
        65248226150410,
    ),
]

seeds = st.integers(0, 2**64 - 1)


@pytest.mark.parametrize(("seed", "epoch", "count", "first", "last"), GOLDEN)
def test_golden_vectors_hold_in_the_binding_and_in_the_reference(
    seed: int, epoch: int, count: int, first: list[int], last: int
) -> None:
    order = Permutation(seed=seed, epoch=epoch, count=count)

    assert order.range(0, 4).tolist() == first
    assert order.range(count - 1, count).tolist() == [last]
    assert [permute(seed, epoch, 0, count, p) for p in range(4)] == first
    assert permute(seed, epoch, 0, count, count - 1) == last


def test_golden_vector_of_the_blocked_order_holds() -> None:
    golden = [9, 4, 1, 2, 3, 0, 8, 5, 6, 7]

    order = BlockedPermutation(seed=0, epoch=0, count=10, block=4, window=2)

    assert order.range(0, 10).tolist() == golden
    assert [permute_blocked(0, 0, 10, 4, 2, p) for p in range(10)] == golden


@given(seed=seeds, epoch=seeds, lane=seeds, count=st.integers(1, 2**48), data=st.data())
def test_binding_and_reference_agree_anywhere(
    seed: int, epoch: int, lane: int, count: int, data: st.DataObject
) -> None:
    position = data.draw(st.integers(0, count - 1))
    order = Permutation(seed=seed, epoch=epoch, lane=lane, count=count)

    (index,) = order.range(position, position + 1).tolist()

    assert index == permute(seed, epoch, lane, count, position)
    assert order.position_of(index) == position


@given(seed=seeds, count=st.integers(1, 200), block=st.integers(1, 40), window=st.integers(1, 9))
def test_blocked_order_is_a_bijection_and_agrees_with_the_reference(
    seed: int, count: int, block: int, window: int
) -> None:
    order = BlockedPermutation(seed=seed, epoch=3, count=count, block=block, window=window)

    indices = order.range(0, count).tolist()

    assert sorted(indices) == list(range(count))
    probe = seed % count
    assert indices[probe] == permute_blocked(seed, 3, count, block, window, probe)


@pytest.mark.parametrize(("begin", "end"), [(0, 11), (5, 4), (11, 11)])
def test_positions_out_of_range_are_index_errors(begin: int, end: int) -> None:
    order = Permutation(seed=0, epoch=0, count=10)

    with pytest.raises(IndexError, match="10 records"):
        order.range(begin, end)


def test_an_order_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="count is 0"):
        Permutation(seed=0, epoch=0, count=0)
