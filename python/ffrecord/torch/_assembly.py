"""A batch of a view: the samples of the datasets behind it, after `on_corrupt` has acted.

The datasets that own the records read all of them, damaged ones too. This module decides, in the
indices of the view, which record takes the place of a damaged one and how many may be damaged: a
record outside of the view never comes, and does not count.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ffrecord._order.epoch_order import IndexBatch, Indices, SeededIndices, successors
from ffrecord._read.records import as_indices, none_is_good
from ffrecord._tables.logical import LogicalSchema
from ffrecord.errors import CorruptionError
from ffrecord.torch._samples import Samples

_NONE = np.empty(0, np.int64)
_SKIPPED = object()


class Piece(NamedTuple):
    """The part of a batch that one dataset owns."""

    rows: Indices
    """Its places in the batch."""
    owner: Any
    """The dataset."""
    indices: Sequence[int]
    """The owner's, one for each row."""
    found: Any
    """A `Batch` with statuses, of which the owner makes samples."""
    is_made: bool = False
    """Whether these are the samples: the owner has applied a policy of its own."""

    @property
    def damaged(self) -> Indices:
        """Which of its rows cannot be read, counted in the piece."""
        return _NONE if self.is_made else np.flatnonzero(self.found.status)

    @property
    def samples(self) -> Any:  # noqa: ANN401 - as the owner makes them
        """The samples of the rows."""
        return self.found if self.is_made else self.owner._made(self.indices, self.found)

    def without_damage(self) -> "Piece":
        """The rows that can be read."""
        if self.is_made or self.owner.on_corrupt == "raise":
            return self
        good = np.flatnonzero(self.found.status == 0)
        found = self.found if good.size == len(self.found) else self.found.select(good)
        indices = SeededIndices.like(found.indices.tolist(), self.indices, good)
        return Piece(self.rows[good], self.owner, indices, found)


def assembled(
    view: Any,  # noqa: ANN401 - a Subset or a ConcatDataset, which import this
    indices: Sequence[int],
    *,
    single: bool = False,
    may_be_empty: bool = False,
) -> Any:  # noqa: ANN401 - as the datasets make them
    """The samples of `view` at `indices`.

    Args:
        view: the dataset that was asked.
        indices: those of the view. If they know the order that they come from, so do replacements.
        single: one sample is wanted, which cannot be skipped.
        may_be_empty: whether all samples may be skipped; if not, one place gets the next good one.
    """
    pieces: list[Piece] = view._pieces(indices)
    if any(piece.damaged.size for piece in pieces):
        if single:
            _refuse_skipped(pieces)
        settled = _settled(view, indices, pieces, may_be_empty)
        pieces = pieces if settled is indices else view._pieces(settled)
    return _joined(view, indices, [piece.without_damage() for piece in pieces])


def whole(view: Any, indices: Sequence[int]) -> Any:  # noqa: ANN401 - as above
    """The samples at `indices` of a view; None if any of the records is damaged."""
    pieces: list[Piece] = view._pieces(indices)
    if any(piece.damaged.size for piece in pieces):
        return None
    return _joined(view, indices, pieces)


def _joined(view: Any, indices: Sequence[int], pieces: list[Piece]) -> Any:  # noqa: ANN401
    if len(pieces) == 1 and not view._joins:
        return pieces[0].samples
    logical: LogicalSchema | None = view._joint
    if logical is not None:  # Before a transform gets samples, which may change them in place.
        pieces = [piece._replace(found=piece.found.under(logical)) for piece in pieces]
    made = [(piece.rows, piece.samples) for piece in pieces]
    if made and logical is not None:
        return Samples.joined(made)
    samples = [_SKIPPED] * len(indices)
    for rows, part in made:
        # An owner with a policy of its own may have left some out.
        for row, sample in zip(rows.tolist(), part, strict=False):
            samples[row] = sample
    return [sample for sample in samples if sample is not _SKIPPED]


def _refuse_skipped(pieces: list[Piece]) -> None:
    """Raise what is wrong with a single record that would be skipped."""
    for piece in pieces:
        if piece.damaged.size and piece.owner.on_corrupt == "skip":
            piece.owner._read(piece.indices, "raise")


def _settled(
    view: Any,  # noqa: ANN401 - as above
    indices: Sequence[int],
    pieces: list[Piece],
    may_be_empty: bool,
) -> Sequence[int]:
    """The indices with those of good records in place of damaged ones that are not skipped."""
    count = len(view)
    first = as_indices(indices) % count
    policies = _noted(view, first, pieces)
    if len(policies) == first.size and "replace" not in policies.values() and not may_be_empty:
        policies[0] = "replace"  # Training would end at a step without a sample.
    rows = np.array([row for row, policy in policies.items() if policy == "replace"], np.int64)
    if not rows.size:
        return indices
    following, farthest = successors(indices, first, count)
    wanted = first.copy()
    for distance in range(1, farthest + 1):
        wanted[rows] = following(rows, distance)
        candidates = SeededIndices.like(wanted[rows].tolist(), indices, rows)
        rows = rows[sorted(_noted(view, wanted[rows], view._pieces(candidates)))]
        if not rows.size:
            break
    else:
        raise CorruptionError(none_is_good(farthest, view))
    if isinstance(indices, IndexBatch):
        return indices.replaced(wanted)
    return SeededIndices.like(wanted.tolist(), indices)


def _noted(view: Any, indices: Indices, pieces: list[Piece]) -> dict[int, str]:  # noqa: ANN401
    """Count damaged records as damage of the view; their policies, by row."""
    policies: dict[int, str] = {}
    found: dict[int, str] = {}
    for piece in pieces:
        for at in piece.damaged.tolist():
            row = int(piece.rows[at])
            policies[row] = piece.owner.on_corrupt
            found[int(indices[row])] = piece.owner.source.damage_of(piece.found, at)
    view.note_damaged(found)
    return policies
