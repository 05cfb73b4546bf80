"""The parts of a save that are alike on all ranks, and how ranks compare them by digests.

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
from ffrecord.checkpoint._values import (
    Named,
    OwnPlace,
    TensorRef,
    decode,
    encode,
    encode_around,
    fill_places,
)

_NAMED_MAX = 5  # Tensors that an error names.
_DIGEST_SIZE = 16
_VALUE = "a value at "  # Of an OnRanks, before its path.


class Agreement:
    """One rank's side. These are compared, each by the rule that loses nothing.

    The order of dicts is no difference.

    - Tensors that all ranks have: the same names, types and shapes.
    - `PerRank` values: in the same places.
    - Values: rank 0's are stored, so what another rank has must be there; rank 0 may have more.
    - What ranks hold together, and `OnRanks` values: it is stored wherever some rank has it. The
      values of an `OnRanks` are the same on its ranks; its tensors are compared as others are.
    - With `replicated="split"`: the same bytes, for each rank writes a share of them.

    The slices of shared tensors that ranks write are not compared here: ranks add them up when they
    plan.
    """

    def __init__(
        self, flattener: Flattener, tree: object, ties: Mapping[str, str], *, split: bool
    ) -> None:
        """Digest a state that was taken apart; with `split`, also the bytes of its tensors.

        Which tensors are one is rank 0's matter, but with `split` all ranks store them.
        """
        shared = [leaf for leaf in flattener.leaves if not leaf.is_own]
        stored = [leaf for leaf in shared if leaf.key not in ties] if ties else shared
        told_ties = sorted((leaf.key, ties[leaf.key]) for leaf in shared if leaf.key in ties)
        self._tree = tree
        self._tensors = {leaf.key: f"{leaf.dtype} {leaf.shape}" for leaf in shared}
        self._own = sorted(flattener.own_trees)
        # Dicts without a key are no values: nothing is lost with them, but templates have them.
        empty: list[str] = []
        values = sorted(_paths(tree, "", empty))
        is_apart = _is_below([*flattener.on_ranks])
        self._values = [path for path in values if not is_apart(path)]
        apart = [path for path in values if is_apart(path)]
        self._sharded = flattener.sharded
        self._placed = sorted({*map(_as_tensor, flattener.sharded), *apart})
        self._contents = _contents(stored) if split else {}
        # By the ranks that have the same.
        self._replicas = {
            digest(holders): _contents(leaves, "{0.key} at {0.offset}")
            for holders, leaves in flattener.replicas.items()
        }
        for path, (ranks, inner) in flattener.on_ranks.items():
            values_of = {f"{_VALUE}{key}": digest(item) for key, item in _values(inner, path)}
            self._replicas[digest([_VALUE, path, ranks])] = values_of
        self.told: list[object] = [
            digest([sorted(self._tensors.items()), told_ties if split else []]),
            digest(self._own),
            digest([self._values, self._placed, sorted(empty)]),
            digest(sorted(self._contents.items())),
            {named: digest(sorted(each.items())) for named, each in self._replicas.items()},
        ]

    @staticmethod
    def differs(told: Sequence[Sequence[object]]) -> bool:
        """Whether the second round is needed; alike on all ranks."""
        return any(other[:4] != told[0][:4] for other in told) or bool(_differing(told))

    def details(self, told: Sequence[Sequence[object]], rank: int) -> bytes:
        """This rank's text in the second round; among equal ranks, the first tells the paths."""
        wrong = _first_wrong(told)
        tensors = [self._tensors, self._own] if wrong is not None and rank in (0, wrong) else []
        differ = [any(other[part] != told[0][part] for other in told) for part in (2, 3)]
        digests = [other[2] for other in told]
        contents = dict(self._contents) if differ[1] else {}
        for named in _differing(told) & self._replicas.keys():
            contents |= self._replicas[named]
        if not differ[0] or digests.index(digests[rank]) != rank:
            return encode([tensors, contents])
        tree = b"" if rank == 0 else _without_own(self._tree)
        return encode([tensors, contents, self._values, self._placed, tree])

    def settle(self, told: Sequence[Sequence[object]], encoded: Sequence[bytes]) -> object:
        """Compare the details of all ranks; return the tree of what they have together: on rank 0.

        Args:
            told: by every rank, in the first round.
            encoded: the details of every rank.

        Raises:
            ValueError: ranks do not have the same tensors, a rank has something that could never be
                loaded, or replicas differ.
        """
        details: list[Any] = [decode(each) for each in encoded]
        if (wrong := _first_wrong(told)) is not None:
            raise ValueError(_not_the_same(details[0][0], details[wrong][0], wrong))
        trees = [(rank, each[2:]) for rank, each in enumerate(details) if len(each) > 2]
        stored = {*self._values, *self._placed, *self._sharded}
        for rank, (values, *_) in trees:
            _check_lost(rank, [path for path in values if path not in stored])
        _check_contents([each[1] for each in details])
        for rank, (*_, tree) in trees:
            if rank != 0:
                self._tree = _union(self._tree, decode(tree))
        if trees:
            stored = set(_paths(self._tree, "", [], with_tensors=True))
        for rank, (_, placed, _) in trees:
            _check_lost(rank, [path for path in placed if path not in stored])
        return self._tree


def _without_own(tree: object) -> bytes:
    """A tree for rank 0, which has places for the values of each rank where this one has them."""
    parts = encode_around(tree)
    return fill_places(parts, {part.path: () for part in parts if isinstance(part, OwnPlace)})


def _first_wrong(told: Sequence[Sequence[object]]) -> int | None:
    """The first rank whose tensors, or places of its own values, are not those of rank 0."""
    return next((rank for rank, other in enumerate(told) if other[:2] != told[0][:2]), None)


def _not_the_same(mine: list[Any], others: list[Any], rank: int) -> str:
    """How what rank 0 and another rank tell of their tensors and own values differs."""
    tensors: dict[str, str] = mine[0]
    found: dict[str, str] = others[0]
    if names := sorted(tensors.keys() ^ found.keys()):
        has = "lacks" if names[0] in tensors else "has"
        return (
            f"the tensors of rank {rank} are not those of rank 0: it {has} "
            f"{', '.join(names[:_NAMED_MAX])}; what only some ranks have is an OnRanks, a DTensor, "
            "a Shard or a PerRank"
        )
    if names := sorted(key for key in tensors if tensors[key] != found[key]):
        return (
            f"the tensors of rank {rank} are not those of rank 0: {names[0]} is "
            f"{found[names[0]]}, on rank 0 {tensors[names[0]]}, and {len(names)} differ in all; "
            "what differs from rank to rank is a PerRank"
        )
    if names := sorted({*mine[1]} ^ {*others[1]}):
        return (
            f"rank {rank} has a PerRank where rank 0 has none, or lacks one that rank 0 has: "
            f"{', '.join(names[:_NAMED_MAX])}; give every rank one, of None where there is nothing"
        )
    return f"the tensors that are one under several names on rank {rank} are not so on rank 0"


def _check_lost(rank: int, lost: Sequence[str]) -> None:
    if lost:
        raise ValueError(
            f"rank {rank} has {', '.join(lost[:_NAMED_MAX])}, which rank 0 has not, or has as "
            "something else, such as None: it could never be loaded. Put what only some ranks have "
            "into an OnRanks or a PerRank, and leave its key out on the others; keys and lengths "
            "of everything else are the same on every rank"
        )


def _differing(told: Sequence[Any]) -> set[bytes]:
    """The digests of ranks that should have the same, and have not."""
    firsts: dict[bytes, bytes] = {}
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
    named = [
        f"{key.removeprefix(_VALUE)} (rank {', '.join(map(str, ranks))})"
        for key, ranks in list(differing.items())[:_NAMED_MAX]
    ]
    if any(key.startswith(_VALUE) for key in differing):
        raise ValueError(
            "the values of an OnRanks are the same on all its ranks, and these differ from the "
            f"first rank's: {'; '.join(named)}. {len(differing)} in all; make them equal, or put "
            "them into a PerRank"
        )
    if differing:
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


def _values(tree: object, path: str) -> Iterable[tuple[str, object]]:
    """The values in a tree, encoded; tensors are compared elsewhere."""
    if isinstance(tree, dict):
        for key, item in tree.items():
            yield from _values(item, join(path, key))
    elif isinstance(tree, list | tuple):
        yield path, (type(tree).__name__, len(tree))
        for index, item in enumerate(tree):
            yield from _values(item, join(path, index))
    elif isinstance(tree, Named):
        yield f"{path} ({tree.kind})", tree.name
        yield from _values(inside(tree), path)
    elif not isinstance(tree, TensorRef):
        yield path, encode(tree)


def _is_below(prefixes: Sequence[str]) -> Callable[[str], bool]:
    """Whether a path is one of these, or begins with one."""
    exact, begins = frozenset(prefixes), tuple(f"{each}{end}" for each in prefixes for end in "/ ")
    if "" in exact:
        return lambda path: True
    return lambda path: path in exact or path.startswith(begins)


def _as_tensor(path: str) -> str:
    """The text for a tensor at a path where other ranks may have a value."""
    return f"{path} (a tensor)"


def _paths(tree: object, path: str, empty: list[str], with_tensors: bool = False) -> Iterable[str]:
    """Values, and sequences with their lengths; most tensors are compared elsewhere.

    Appends dicts without a key to `empty`.
    """
    if isinstance(tree, dict):
        if not tree:
            empty.append(path)
        for key, item in tree.items():
            if with_tensors or type(item) is not TensorRef:
                yield from _paths(item, join(path, key), empty, with_tensors)
    elif isinstance(tree, list | tuple):
        yield f"{path} ({len(tree)} elements)"
        for index, item in enumerate(tree):
            if with_tensors or type(item) is not TensorRef:
                yield from _paths(item, join(path, index), empty, with_tensors)
    elif isinstance(tree, Named):
        yield from _paths(inside(tree), path, empty, with_tensors)
    elif isinstance(tree, TensorRef):
        if with_tensors:
            yield _as_tensor(path)
    elif with_tensors or not isinstance(tree, OwnPlace):
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
    """Bytes that differ if the reprs differ."""
    return hashlib.blake2b(repr(what).encode(), digest_size=_DIGEST_SIZE).digest()
