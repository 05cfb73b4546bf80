"""What the ranks of one save must have alike, and how they find out without telling everything.

Each rank tells a digest; only if digests differ, a second round names what differs.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

from ffrecord import _ffrecord
from ffrecord.checkpoint._pieces import Fetcher
from ffrecord.checkpoint._ranks import TensorSlice, slice_of
from ffrecord.checkpoint._state import Flattener, Leaf, join
from ffrecord.checkpoint._values import EachRank, TensorRef

_NAMED_MAX = 5  # Tensors that an error names.
_DIGEST_SIZE = 16


class Agreement:
    """One rank's side. Four things are compared, each by the rule that loses nothing.

    The order of dicts is no difference.

    - Tensors that all ranks have: the same names and shapes.
    - `PerRank` values: in the same places.
    - Everything else outside of `PerRank`: rank 0's structure is stored, so what another rank has
      must be there; rank 0 may have more.
    - With `replicated="split"`: the same bytes, for each rank writes a share of them.
    """

    def __init__(self, flattener: Flattener, tree: object, *, split: bool) -> None:
        """Digest a state that was taken apart; with `split`, also the bytes of its tensors."""
        shared = [leaf for leaf in flattener.leaves if not leaf.is_own]
        self._paths = sorted({*_paths(tree, ""), *flattener.sharded})
        self._contents = _contents(shared) if split else {}
        self.told: list[object] = [
            _digest(sorted((leaf.key, leaf.shape) for leaf in shared)),
            _digest(sorted(flattener.own_trees)),
            _digest(self._paths),
            _digest(sorted(self._contents.items())),
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
                    "have is a PerRank"
                )
            if other[1] != told[0][1]:
                raise ValueError(
                    f"rank {rank} has a PerRank where rank 0 has none, or lacks one that rank 0 "
                    "has: give every rank one, of None where there is nothing"
                )
        return any(other != told[0] for other in told)

    def details(self, told: Sequence[Sequence[object]]) -> object:
        """What this rank tells in the second round."""
        differ = [any(other[part] != told[0][part] for other in told) for part in (2, 3)]
        return [self._paths if differ[0] else [], self._contents if differ[1] else {}]

    @staticmethod
    def check(details: Sequence[Any]) -> None:
        """Compare the details of all ranks.

        Raises:
            ValueError: a rank has something that could never be loaded, or replicas differ.
        """
        stored = set(details[0][0])
        for rank, (paths, _) in enumerate(details):
            if lost := [path for path in paths if path not in stored]:
                raise ValueError(
                    f"rank {rank} has {', '.join(lost[:_NAMED_MAX])}, which rank 0 has not: it "
                    "could never be loaded. Put what only some ranks have into a PerRank; keys and "
                    "lengths of everything else are the same on every rank"
                )
        differing: dict[str, list[int]] = {}
        for rank, (_, contents) in enumerate(details):
            for key, content in contents.items():
                if content != details[0][1][key]:
                    differing.setdefault(key, []).append(rank)
        if differing:
            named = [
                f"{key} (rank {', '.join(map(str, ranks))})"
                for key, ranks in list(differing.items())[:_NAMED_MAX]
            ]
            raise ValueError(
                'replicated="split" needs equal replicas, and these differ from rank 0\'s: '
                f"{'; '.join(named)}. {len(differing)} in all; make them equal, put them into a "
                'PerRank, or save those of rank 0: replicated="rank0"'
            )


def _paths(tree: object, path: str) -> Iterable[str]:
    """Values, and sequences with their lengths; tensors are compared by themselves."""
    if isinstance(tree, dict):
        for key, item in tree.items():
            if type(item) is not TensorRef:
                yield from _paths(item, join(path, key))
    elif isinstance(tree, list | tuple):
        yield f"{path} ({len(tree)} elements)"
        for index, item in enumerate(tree):
            if type(item) is not TensorRef:
                yield from _paths(item, join(path, index))
    elif not isinstance(tree, TensorRef | EachRank):
        yield path


def _contents(leaves: Sequence[Leaf]) -> dict[str, bytes]:
    """A digest of each tensor's bytes."""
    slices: list[TensorSlice] = [
        leaf if leaf.address is not None else slice_of(leaf, Fetcher(leaf.data), False)
        for leaf in leaves
    ]
    digests = _ffrecord.content_digests(slices)
    return {
        leaf.key: digests[_DIGEST_SIZE * i : _DIGEST_SIZE * (i + 1)]
        for i, leaf in enumerate(leaves)
    }


def _digest(what: object) -> bytes:
    return hashlib.blake2b(repr(what).encode(), digest_size=_DIGEST_SIZE).digest()
