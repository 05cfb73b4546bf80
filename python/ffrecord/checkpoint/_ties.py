"""Tensors that a state has under several names: one is stored, and all names refer to it."""

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ffrecord import _ffrecord
from ffrecord.checkpoint._digests import digested
from ffrecord.checkpoint._layouts import memory_of_tensor
from ffrecord.checkpoint._pieces import Wanted
from ffrecord.checkpoint._sharing import Leaf
from ffrecord.checkpoint._state import map_children
from ffrecord.checkpoint._tensors import describe, kind_of, plain_address
from ffrecord.checkpoint._values import Kind, TensorRef


def tied(leaves: Sequence[Leaf], apart: Container[str]) -> dict[str, str]:
    """The keys of tensors that are another one as well, and the key of that one, the first.

    Args:
        leaves: whole tensors, and others.
        apart: keys of tensors of which a leaf is only a part.
    """
    if len({leaf.address for leaf in leaves}) == len(leaves):
        return {}  # As nearly always, and soon found.
    firsts: dict[object, str] = {}
    found = {}
    for leaf in leaves:
        memory = None if leaf.key in apart or leaf.size_bytes == 0 else _memory_of(leaf)
        if memory is not None:
            first = firsts.setdefault((memory, leaf.is_own), leaf.key)
            if first != leaf.key:
                found[leaf.key] = first
    return found


def _memory_of(leaf: Leaf) -> object:
    """A key that leaves share only if their bytes are the same memory; None if unknown."""
    if leaf.address is not None:
        return leaf.address, leaf.dtype, leaf.shape
    data: Any = leaf.data
    return memory_of_tensor(data) if kind_of(data) is Kind.TORCH else None


def referring(tree: object, ties: Mapping[str, str]) -> object:
    """The tree with references to the tensors that are stored."""
    if isinstance(tree, TensorRef):
        return TensorRef(tree.kind, ties.get(tree.key, tree.key))
    return map_children(tree, lambda child: referring(child, ties))


def clashing(reader: _ffrecord.CheckpointReader, wanted: Sequence[Wanted]) -> list[str]:
    """Tensors of the state that cannot be filled, for two with other elements are stored for one.

    One of the two would be lost, or both be mixed. Equal ones may go to the same memory: a model
    may be tied that was saved from copies.
    """
    begins = [begin for *_, to in wanted if (begin := _begin_of(to))]
    if len(set(begins)) == len(begins):
        return []  # As nearly always, and soon found.
    pairs = list(dict.fromkeys(_sharing_memory(wanted)))
    stored = digested(reader, {key for pair in pairs for key in pair}) if pairs else {}
    return [
        f"{key} (the state has one tensor for it and for {first}, and they are stored with other "
        "elements)"
        for first, key in pairs
        if stored[first] != stored[key]
    ]


def _sharing_memory(wanted: Sequence[Wanted]) -> Iterator[tuple[str, str]]:
    """The keys of two stored tensors that are to be read to the same memory."""
    firsts: dict[object, str] = {}
    for key, _, _, to in wanted:
        if (memory := _memory_to_fill(to)) is not None:
            first = firsts.setdefault(memory, key)
            if first != key:
                yield first, key


def _memory_to_fill(to: Any) -> object:  # noqa: ANN401
    if not _begin_of(to):
        return None
    if (address := plain_address(to)) is not None:
        return address, *describe(to)
    return memory_of_tensor(to) if kind_of(to) is Kind.TORCH else None


def _begin_of(to: Any) -> int:  # noqa: ANN401
    """The address of its first element; 0 if it has none, or if nobody can say."""
    if isinstance(to, np.ndarray):
        return to.ctypes.data if to.size else 0
    return int(to.data_ptr()) if kind_of(to) is Kind.TORCH else 0
