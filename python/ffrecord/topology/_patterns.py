"""The messages of each rank of a collective in each step.

Ranks count from 0; sizes are in bytes and may be fractions, because chunks are not rounded here.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ranks = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Step:
    """Messages that travel at the same time, `repeat` times after each other."""

    name: str
    sources: Ranks
    targets: Ranks
    size: npt.NDArray[np.float64]
    repeat: int = 1

    @property
    def size_max(self) -> float:
        """The size of the largest message."""
        return float(self.size.max(initial=0))


def _step(name: str, sources: Ranks, targets: Ranks, size: float, repeat: int = 1) -> Step:
    return Step(name, sources, targets, np.full(len(sources), float(size)), repeat)


def ring(ranks: int, size: float) -> list[Step]:
    """All-reduce: every rank sends a chunk to the next one, 2(n-1) times."""
    if ranks < 2:
        return []
    every = np.arange(ranks)
    return [_step("ring", every, (every + 1) % ranks, size / ranks, 2 * (ranks - 1))]


def halving_doubling(ranks: int, size: float) -> list[Step]:
    """All-reduce in 2 log2(n) steps; the largest message goes to distance 1.

    If n is not a power of two, the first 2(n-p) ranks pair up: they exchange halves, one of each
    pair joins the p others, and sends the result back.
    """
    if ranks < 2:
        return []
    bits = ranks.bit_length() - 1
    power = 1 << bits
    extra = ranks - power
    joining = np.concatenate([np.arange(0, 2 * extra, 2), np.arange(2 * extra, ranks)])
    first, second = np.arange(0, 2 * extra, 2), np.arange(1, 2 * extra, 2)
    steps = []
    if extra:
        both = np.concatenate([first, second]), np.concatenate([second, first])
        steps.append(_step("fold: halves", *both, size / 2))
        steps.append(_step("fold: join", second, first, size / 2))
    exchange = []
    for bit in range(bits):
        partners = joining[np.arange(power) ^ (1 << bit)]
        exchange.append((bit, partners, size / 2 ** (bit + 1)))
    steps += [_step(f"reduce {1 << b}", joining, p, part) for b, p, part in exchange]
    steps += [_step(f"gather {1 << b}", joining, p, part) for b, p, part in reversed(exchange)]
    if extra:
        steps.append(_step("unfold", first, second, size))
    return steps


def _tree_parents(ranks: int) -> Ranks:
    """Parent of each rank in a balanced in-order tree, -1 for the root; even ranks are leaves."""
    parents = np.full(ranks, -1, np.int64)
    level = list(range(ranks))
    while len(level) > 1:
        # Those in odd places stay for the next level; each second one of them takes, as children,
        # the neighbours that leave.
        inner = level[1::2]
        for place in range(0, len(level), 2):
            parents[level[place]] = inner[min(place // 4 * 2, len(inner) - 1)]
        level = inner
    return parents


def double_tree(ranks: int, size: float, chunk: float = 256 << 10) -> list[Step]:
    """All-reduce over two trees with half of the data each, chunk after chunk.

    The second tree is the mirror of the first for even n, and shifted by one for odd n, so that no
    rank forwards in both.
    """
    if ranks < 2:
        return []
    first = _tree_parents(ranks)
    every = np.arange(ranks)
    renamed = ranks - 1 - every if ranks % 2 == 0 else (every + 1) % ranks
    second = np.full(ranks, -1, np.int64)
    for rank in range(ranks):
        if first[rank] >= 0:
            second[renamed[rank]] = renamed[first[rank]]
    children = np.concatenate([np.flatnonzero(first >= 0), np.flatnonzero(second >= 0)])
    parents = np.concatenate([first[first >= 0], second[second >= 0]])
    depth = (ranks - 1).bit_length()
    part = min(chunk, size / 2)
    rounds = depth + max(0, round(size / 2 / part) - 1) if part else depth
    return [
        _step("reduce", children, parents, part, rounds),
        _step("broadcast", parents, children, part, rounds),
    ]


def hierarchical(ranks: int, size: float, local: int = 8) -> list[Step]:
    """All-reduce between nodes of `local` ranks: rank i of each node in a ring of its own.

    Traffic inside a node is not on the network and is not counted.
    """
    if ranks % local:
        raise ValueError(f"{ranks} ranks do not fill nodes of {local}: choose a divisor of {ranks}")
    nodes = ranks // local
    if nodes < 2:
        return []
    every = np.arange(ranks)
    part = size / local / nodes
    return [_step("rails", every, (every + local) % ranks, part, 2 * (nodes - 1))]


ALGORITHMS: dict[str, Callable[[int, float], list[Step]]] = {
    "ring": ring,
    "halving-doubling": halving_doubling,
    "tree": double_tree,
    "hierarchical": hierarchical,
}


def collective(algorithm: str, ranks: int, size: float) -> list[Step]:
    """Give the steps of an all-reduce of `size` bytes. Raises ValueError for an unknown name."""
    if algorithm not in ALGORITHMS:
        raise ValueError(f"no algorithm {algorithm}; choose one of {', '.join(ALGORITHMS)}")
    if ranks < 1:
        raise ValueError(f"a collective needs at least 1 rank, not {ranks}")
    return ALGORITHMS[algorithm](ranks, size)
