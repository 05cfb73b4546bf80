"""What the ranks of one save must have alike, and how they find out without telling everything.

Each rank tells a digest; only if digests differ, a second round names what differs.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ffrecord import _ffrecord
from ffrecord.checkpoint._named import inside
from ffrecord.checkpoint._pieces import Fetcher
from ffrecord.checkpoint._ranks import TensorSlice, slice_of
from ffrecord.checkpoint._sharing import Leaf
from ffrecord.checkpoint._state import Flattener, join
from ffrecord.checkpoint._values import EachRank, Named, TensorRef, decode, encode

_NAMED_MAX = 5  # Tensors that an error names.
_DIGEST_SIZE = 16


class Agreement:
    """One rank's side. These are compared, each by the rule that loses nothing.

    The order of dicts is no difference.

    - Tensors that all ranks have: the same names and shapes.
    - `PerRank` values: in the same places.
    - Values: rank 0's are stored, so what another rank has must be there; rank 0 may have more.
    - What ranks hold together, and `OnRanks` values: it is stored wherever some rank has it.
    - With `replicated="split"`: the same bytes, for each rank writes a share of them.
    """

    def __init__(
        self, flattener: Flattener, tree: object, ties: Mapping[str, str], *, split: bool
    ) -> None:
        """Digest a state that was taken apart; with `split`, also the bytes of its tensors.

        Which tensors are one is rank 0's matter, but with `split` all ranks store them.
        """
        shared = [leaf for leaf in flattener.leaves if not leaf.is_own]
        stored = [leaf for leaf in shared if leaf.key not in ties] if ties else shared
        told_ties = sorted(ties[leaf.key] for leaf in shared if leaf.key in ties) if split else []
        self._tree = tree
        values = sorted(_paths(tree, ""))
        is_apart = _is_below(flattener.on_ranks)
        self._values = [path for path in values if not is_apart(path)]
        apart = [path for path in values if is_apart(path)]
        self._placed = sorted({*flattener.sharded, *apart})
        self._contents = _contents(stored) if split else {}
        # By the ranks that have the same.
        self._replicas = {
            named: _contents(leaves, "{0.key} at {0.offset}")
            for named, leaves in flattener.replicas.items()
        }
        self.told: list[object] = [
            digest([sorted((leaf.key, leaf.shape) for leaf in shared), told_ties]),
            digest(sorted(flattener.own_trees)),
            digest([self._values, self._placed]),
            digest(sorted(self._contents.items())),
            {named: digest(sorted(each.items())) for named, each in self._replicas.items()},
        ]

    def differs(self, told: Sequence[Sequence[object]]) -> bool:
        """Whether the second round is needed; alike on all ranks.

        Raises:
            ValueError: ranks do not have the same tensors.
        """
        for rank, other in enumerate(told):
            if other[0] != told[0][0]:
                raise ValueError(
                    f"the tensors of rank {rank} are not those of rank 0; what only some ranks "
                    "have is an OnRanks, a DTensor, a Shard or a PerRank"
                )
            if other[1] != told[0][1]:
                raise ValueError(
                    f"rank {rank} has a PerRank where rank 0 has none, or lacks one that rank 0 "
                    "has: give every rank one, of None where there is nothing"
                )
        return any(other[:4] != told[0][:4] for other in told) or bool(_differing(told))

    def details(self, told: Sequence[Sequence[object]], rank: int) -> object:
        """What this rank tells in the second round; of equal ranks, the first tells the paths."""
        differ = [any(other[part] != told[0][part] for other in told) for part in (2, 3)]
        digests = [other[2] for other in told]
        contents = dict(self._contents) if differ[1] else {}
        for named in _differing(told) & self._replicas.keys():
            contents |= self._replicas[named]
        if not differ[0] or digests.index(digests[rank]) != rank:
            return [[], [], contents, b""]
        return [self._values, self._placed, contents, encode(self._tree)]

    @staticmethod
    def settle(tree: bytes, details: Sequence[Any]) -> bytes:
        """Compare the details of all ranks; return the tree of what they have together.

        Args:
            tree: that of rank 0.
            details: of every rank.

        Raises:
            ValueError: a rank has something that could never be loaded, or replicas differ.
        """
        stored = {*details[0][0], *details[0][1]}
        for rank, (values, *_) in enumerate(details):
            _check_lost(rank, [path for path in values if path not in stored])
        _check_contents([contents for *_, contents, _ in details])
        whole: object = decode(tree)
        others = [decode(other) for *_, other in details[1:] if other]
        for other in others:
            whole = _union(whole, other)
        if not others:
            return tree
        stored = set(_paths(whole, "", with_tensors=True))
        for rank, (_, placed, *_) in enumerate(details):
            _check_lost(rank, [path for path in placed if path not in stored])
        return encode(whole)


def _check_lost(rank: int, lost: Sequence[str]) -> None:
    if lost:
        raise ValueError(
            f"rank {rank} has {', '.join(lost[:_NAMED_MAX])}, which rank 0 has not: it could never "
            "be loaded. Put what only some ranks have into an OnRanks or a PerRank; keys and "
            "lengths of everything else are the same on every rank"
        )


def _differing(told: Sequence[Any]) -> set[str]:
    """The names of ranks that should have the same, and have not."""
    firsts: dict[str, bytes] = {}
    return {
        named
        for *_, replicas in told
        for named, each in replicas.items()
        if firsts.setdefault(named, each) != each
    }


def _check_contents(contents_of_ranks: Sequence[dict[str, bytes]]) -> None:
    """Compare with those of the first rank that has them."""
    firsts: dict[str, bytes] = {}
    differing: dict[str, list[int]] = {}
    for rank, contents in enumerate(contents_of_ranks):
        for key, content in contents.items():
            if content != firsts.setdefault(key, content):
                differing.setdefault(key, []).append(rank)
    if differing:
        named = [
            f"{key} (rank {', '.join(map(str, ranks))})"
            for key, ranks in list(differing.items())[:_NAMED_MAX]
        ]
        raise ValueError(
            'replicated="split" needs equal replicas, and these differ from the first rank\'s: '
            f"{'; '.join(named)}. {len(differing)} in all; make them equal, put them into a "
            'PerRank, or save those of rank 0: replicated="rank0"'
        )


def _union(mine: object, other: object) -> object:
    """A tree with what another one has besides; where both have something, it is mine."""
    if isinstance(mine, dict) and isinstance(other, dict):
        for key, item in other.items():
            mine[key] = _union(mine[key], item) if key in mine else item
        return mine
    for kind in (list, tuple):
        if isinstance(mine, kind) and isinstance(other, kind) and len(mine) == len(other):
            return kind(_union(a, b) for a, b in zip(mine, other, strict=True))
    if isinstance(mine, Named) and isinstance(other, Named):
        return Named(mine.kind, mine.name, _union(mine.value, other.value))
    return mine


def _is_below(prefixes: Sequence[str]) -> Callable[[str], bool]:
    """Whether a path is one of these, or begins with one."""
    exact, begins = frozenset(prefixes), tuple(f"{each}{end}" for each in prefixes for end in "/ ")
    if "" in exact:
        return lambda path: True
    return lambda path: path in exact or path.startswith(begins)


def _paths(tree: object, path: str, with_tensors: bool = False) -> Iterable[str]:
    """Values, and sequences with their lengths; tensors are mostly compared by themselves."""
    if isinstance(tree, dict):
        for key, item in tree.items():
            if with_tensors or type(item) is not TensorRef:
                yield from _paths(item, join(path, key), with_tensors)
    elif isinstance(tree, list | tuple):
        yield f"{path} ({len(tree)} elements)"
        for index, item in enumerate(tree):
            if with_tensors or type(item) is not TensorRef:
                yield from _paths(item, join(path, index), with_tensors)
    elif isinstance(tree, Named):
        yield from _paths(inside(tree), path, with_tensors)
    elif with_tensors or not isinstance(tree, TensorRef | EachRank):
        yield path


def _contents(leaves: Sequence[Leaf], called: str = "{0.key}") -> dict[str, bytes]:
    """A digest of each slice's bytes, by what it is called."""
    slices: list[TensorSlice] = [
        leaf if leaf.address is not None else slice_of(leaf, Fetcher(leaf.data), False)
        for leaf in leaves
    ]
    digests = _ffrecord.content_digests(slices)
    return {
        called.format(leaf): digests[_DIGEST_SIZE * i : _DIGEST_SIZE * (i + 1)]
        for i, leaf in enumerate(leaves)
    }


def digest(what: object) -> bytes:
    """Bytes that differ if what is told by repr differs."""
    return hashlib.blake2b(repr(what).encode(), digest_size=_DIGEST_SIZE).digest()
