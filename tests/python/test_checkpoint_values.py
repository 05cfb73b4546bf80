"""Goal: small values of a state are stored as the format page says, and damage is told.

Method: the page's example byte for byte; random trees; every kind of damage to them.
"""

import contextlib
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ffrecord
from ffrecord.checkpoint._values import (
    EachRank,
    Kind,
    Named,
    NamedKind,
    TensorRef,
    decode,
    encode,
)
from thread_ranks import same

pytestmark = pytest.mark.wrong_data


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


def test_complex_numbers_sets_and_named_values_byte_for_byte() -> None:
    """As the checks of the extension's own tests have them."""
    for tree, told in [
        (complex(0.5, -0.0), "0c 000000000000e03f 0000000000000080"),
        ({True, False}, "0d 02000000 01 02"),
        (frozenset({1, frozenset({None})}), "0e 02000000 03 0100 01 0e 01000000 00"),
        (
            {(None, False), Named("enum", "a", "b")},
            "0d 02000000 08 02000000 00 01 0f 00 01000000 61 05 01000000 62",
        ),
        (Named("dataclass", "a", {}), "0f 01 01000000 61 09 00000000"),
        (
            Named("tensor", "a", [TensorRef(Kind.TORCH, "w")]),
            "0f 05 01000000 61 07 01000000 0a 02 0100 77",
        ),
    ]:
        assert encode(tree) == bytes.fromhex(told)
        assert same(decode(bytes.fromhex(told)), tree)


plain = scalars | st.complex_numbers(allow_nan=False)
hashables = st.recursive(
    plain.filter(lambda value: value == value),
    lambda child: (
        st.lists(child, max_size=3).map(tuple)
        | st.frozensets(child, max_size=3)
        | st.builds(Named, st.sampled_from(get_args(NamedKind)), st.text(max_size=9), child)
    ),
    max_leaves=6,
)
trees = st.recursive(
    plain
    | st.sets(hashables, max_size=4)
    | st.frozensets(hashables, max_size=4)
    | st.builds(TensorRef, st.sampled_from(Kind), st.text(min_size=1, max_size=20)),
    lambda child: (
        st.builds(
            lambda make, items: make(items),
            st.sampled_from([list, tuple, EachRank, lambda items: dict(enumerate(items))]),
            st.lists(child, max_size=4),
        )
        | st.dictionaries(keys, child, max_size=4)
        | st.builds(Named, st.sampled_from(get_args(NamedKind)), st.text(max_size=20), child)
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
