"""Tensors that a state has under several names: one is stored, and all names refer to it."""

from collections.abc import Container, Mapping, Sequence
from typing import Any

from ffrecord.checkpoint._layouts import memory_of_tensor
from ffrecord.checkpoint._sharing import Leaf
from ffrecord.checkpoint._state import map_children
from ffrecord.checkpoint._tensors import kind_of
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
