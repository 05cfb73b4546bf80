"""Views of datasets: some samples of one, or several laid end to end."""

import copy
import operator
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import accumulate
from numbers import Integral
from types import CodeType, FrameType
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt
import torch
from torch.utils import data
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from ffrecord._base.stage_times import summed
from ffrecord._order.epoch_order import IndexBatch, Indices, SeededIndex, SeededIndices
from ffrecord._read.choice import Choice, digest, positive
from ffrecord._read.joined import concat
from ffrecord._read.records import Records, as_indices, number_of_records, refuse_too_many
from ffrecord._read.records import Subset as SubsetView
from ffrecord._tables.logical import LogicalSchema
from ffrecord.compat._fileio import FileReader
from ffrecord.errors import BadArgumentError, RangeError
from ffrecord.torch._assembly import Piece, assembled, whole
from ffrecord.torch._dataset import Asked, Dataset, T, Views
from ffrecord.torch._samples import by_one

# Records that iterating over a view reads at a time.
_READ_TOGETHER = 64
# Datasets of a program may mean something else by `stats`.
_WITH_STATS = (Dataset, Records)


class _View(Dataset[T]):
    """Samples of other datasets, in indices of its own, in which `on_corrupt` acts."""

    _joins = False
    """Whether samples of several datasets are in one batch, which is a list then."""

    @property
    def fingerprint(self) -> str:
        """Changes if any record, or the order of records, changes."""
        try:
            return super().fingerprint
        except ValueError:  # Parts have other columns: no reader has all of them.
            return digest(self._traits())

    def _traits(self) -> Iterable[bytes]:
        """The identity of its parts, and of its choice of them."""
        raise NotImplementedError

    @property
    def _damaged(self) -> dict[int, str]:
        found: dict[int, str] = vars(self).setdefault("_found_damaged", {})
        return found

    def stats(self) -> dict[str, Any]:
        """The sums over the datasets that have statistics; `damaged` is by index of this one."""
        distinct = {id(part): part for part in self._parts if isinstance(part, _WITH_STATS)}
        each = [part.stats() for part in distinct.values()]
        if not each:
            return {}
        damaged = {**self._damaged, **self._damage_of_strangers()}
        found = number_of_records(damaged)
        return {**summed(each), "damaged": damaged, "damaged_records": found}

    def note_damaged(self, found: Mapping[int, str]) -> None:
        """Count damaged records of this dataset; also in those that own them, without a limit.

        Raises:
            CorruptionError: there are now more than `max_corrupt` allows.
        """
        self._note_from_view(found)
        refuse_too_many(self._damaged, len(self), self._max_corrupt)

    def __iter__(self) -> Iterator[T]:
        for first in range(0, len(self), _READ_TOGETHER):
            indices = range(first, min(first + _READ_TOGETHER, len(self)))
            yield from assembled(self, indices, may_be_empty=True)

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        state.pop("_found_damaged", None)
        return state

    @property
    def _parts(self) -> list[Any]:
        """The datasets that it is made of."""
        raise NotImplementedError

    @property
    def _max_corrupt(self) -> float:
        return max(getattr(part, "_max_corrupt", 0.0) for part in self._parts)

    def _batch(self, indices: Sequence[int], *, single: bool = False) -> Any:  # noqa: ANN401
        return assembled(self, self._asked_for(indices), single=single)

    @property
    def _joins_records(self) -> bool:
        """Whether it joins records of several datasets to batches of one form."""
        return self._joins and self._joint is not None

    def _whole(self, indices: Sequence[int]) -> Any:  # noqa: ANN401 - as the datasets make them
        """The samples; None if any of the records is damaged."""
        return whole(self, self._asked_for(indices))

    def _asked_for(self, indices: Sequence[int]) -> Sequence[int]:
        """The same indices, from 0 on."""
        if isinstance(indices, IndexBatch):
            return indices
        places = self._positive(as_indices(indices))
        return SeededIndices.like(places.tolist(), indices)

    def _positive(self, wanted: Indices) -> Indices:
        try:
            return positive(wanted, len(self))
        except IndexError as error:
            raise RangeError(str(error)) from None

    def _note_from_view(self, found: Mapping[int, str]) -> None:
        for index, what in found.items():
            self._damaged.setdefault(index, what)
        for part, own in self._by_part(found):
            if isinstance(part, Dataset):
                part._note_from_view(own)

    def _by_part(self, found: Mapping[int, str]) -> Iterator[tuple[Any, dict[int, str]]]:
        """Findings by dataset, in its indices."""
        raise NotImplementedError

    def _damage_of_strangers(self) -> dict[int, str]:
        """Damage found by datasets that read by a policy of their own, in indices of this one."""
        raise NotImplementedError


class Subset(_View[T]):
    """The samples of `dataset` at `indices`, made as `dataset` makes them."""

    def __init__(self, dataset: data.Dataset[T], indices: npt.ArrayLike | range | slice) -> None:
        """Choose samples.

        Args:
            dataset: any map-style dataset.
            indices: integers in [-n, n), which may repeat, or a range, which pickles as a range.
        """
        self.dataset: Any = dataset
        self.choice = Choice(indices, len(dataset))  # type: ignore[arg-type]

    @property
    def indices(self) -> Indices:
        """Which samples of `dataset`, shape (n,)."""
        return self.choice.at(np.arange(len(self)))

    @property
    def source(self) -> Records:
        """The chosen records; only for an ffrecord dataset."""
        return SubsetView(_source_of(self.dataset), self.choice)

    def with_format(self, format: str) -> Self:
        """The same samples in another format; see `Dataset.with_format`."""
        made = copy.copy(self)
        made.dataset = self.dataset.with_format(format)
        return made

    def __len__(self) -> int:
        return len(self.choice)

    def __repr__(self) -> str:
        return f"<ffrecord.torch.Subset: {len(self)} samples of {self.dataset!r}>"

    @property
    def _parts(self) -> list[Any]:
        return [as_ours(self.dataset)]

    @property
    def _joins(self) -> bool:  # type: ignore[override]
        part = self._parts[0]
        return isinstance(part, _View) and part._joins

    @property
    def _joint(self) -> LogicalSchema | None:
        part = self._parts[0]
        return part._joint if _applies_our_policy(part) else None

    @property
    def _shown(self) -> tuple[object, ...]:
        return self._parts[0]._shown  # type: ignore[no-any-return]

    def _pieces(self, indices: Sequence[int]) -> list[Piece]:
        if isinstance(indices, IndexBatch):
            seen = indices.through(self.choice.at, may_repeat=self.choice.may_repeat)
            return _pieces_of(as_ours(self.dataset, seen.array), seen)
        places = as_indices(indices)
        own = SeededIndices.like(self.choice.at(places).tolist(), indices)
        if own.places is None and self.choice.may_repeat:  # Each draw has a chance of its own.
            own.places = places
        return _pieces_of(as_ours(self.dataset, own), own)

    def _traits(self) -> Iterable[bytes]:
        return [_named(self.dataset), self.choice.tobytes()]

    def _by_part(self, found: Mapping[int, str]) -> Iterator[tuple[Any, dict[int, str]]]:
        chosen = self.choice.at(np.array(list(found), np.int64)).tolist()
        yield self._parts[0], dict(zip(chosen, found.values(), strict=True))

    def _damage_of_strangers(self) -> dict[int, str]:
        if not (theirs := _damage_beyond_views(self._parts[0])):
            return {}
        chosen = self.indices
        places = np.flatnonzero(np.isin(chosen, list(theirs)))
        return {place: theirs[int(chosen[place])] for place in places.tolist()}


class ConcatDataset(_View[T]):
    """Datasets laid end to end, each making its own samples.

    To read batches across similar files in one submission, use `ffrecord.concat` instead.
    """

    _joins = True

    def __init__(self, datasets: Iterable[data.Dataset[T]]) -> None:
        """Join map-style datasets.

        Raises:
            BadArgumentError: the list is empty; an AssertionError.
        """
        self.datasets: list[Any] = list(datasets)
        if not self.datasets:
            raise BadArgumentError("the list of datasets is empty")
        self.cumulative_sizes = list(accumulate(map(len, self.datasets)))

    @property
    def source(self) -> Records:
        """All records; only for ffrecord datasets."""
        return concat(map(_source_of, self.datasets))

    def with_format(self, format: str) -> Self:
        """The same samples in another format; see `Dataset.with_format`."""
        made = copy.copy(self)
        made.datasets = [dataset.with_format(format) for dataset in self.datasets]
        vars(made).pop("_joint", None)
        return made

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]

    def ffreaders(self) -> list[FileReader]:
        """The readers of each dataset."""
        return [reader for dataset in self.datasets for reader in dataset.ffreaders()]

    def __repr__(self) -> str:
        return f"<ffrecord.torch.ConcatDataset of {', '.join(map(repr, self.datasets))}>"

    @property
    def _parts(self) -> list[Any]:
        return [as_ours(dataset) for dataset in self.datasets]

    @cached_property
    def _joint(self) -> LogicalSchema | None:
        """The columns of all samples; None if datasets have others, or make samples themselves."""
        parts = self._parts
        if not all(map(_applies_our_policy, parts)):
            return None
        each = [part._joint for part in parts]
        if None in each or len({part._shown for part in parts}) > 1:
            return None
        try:
            return LogicalSchema.of_any(each, lambda number: repr(parts[number]))
        except ValueError:
            return None

    @property
    def _shown(self) -> tuple[object, ...]:
        return self._parts[0]._shown  # type: ignore[no-any-return]

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        state.pop("_joint", None)
        return state

    def _pieces(self, indices: Sequence[int]) -> list[Piece]:
        places = as_indices(indices)
        owners = np.searchsorted(self.cumulative_sizes, places, "right")
        pieces = []
        for number in np.unique(owners).tolist():
            rows = np.flatnonzero(owners == number)
            first = self.cumulative_sizes[number - 1] if number else 0
            own = SeededIndices.like((places[rows] - first).tolist(), indices, rows)
            if (
                own.places is None
            ):  # A record may be in several parts, and parts have equal indices.
                own.places = places[rows]
            part = as_ours(self.datasets[number], own)  # With its indices of now.
            for piece in _pieces_of(part, own):
                pieces.append(piece._replace(rows=rows[piece.rows]))
        return pieces

    def _traits(self) -> Iterable[bytes]:
        return map(_named, self.datasets)

    def _by_part(self, found: Mapping[int, str]) -> Iterator[tuple[Any, dict[int, str]]]:
        for part, first, end in self._spans():
            own = {index - first: what for index, what in found.items() if first <= index < end}
            if own:
                yield part, own

    def _damage_of_strangers(self) -> dict[int, str]:
        return {
            first + index: what
            for part, first, _ in self._spans()
            for index, what in _damage_beyond_views(part).items()
        }

    def _spans(self) -> Iterator[tuple[Any, int, int]]:
        """Each dataset, and where it begins and ends."""
        starts = [0, *self.cumulative_sizes]
        return zip(self._parts, starts, self.cumulative_sizes, strict=False)


def _source_of(dataset: Any) -> Records:  # noqa: ANN401 - any dataset
    """The records of one of ours."""
    if not isinstance(dataset, Dataset):
        raise AttributeError(f"{dataset!r} is no dataset of ffrecord, and has no records")
    return dataset.source


def _applies_our_policy(dataset: Any) -> bool:  # noqa: ANN401 - any dataset
    """Whether it is one of ours, and no subclass reads in its own way."""
    kind = type(dataset)
    return isinstance(dataset, Dataset) and (kind.__getitem__, kind.__getitems__) == (
        Dataset.__getitem__,
        Dataset.__getitems__,
    )


def _pieces_of(dataset: Any, indices: Sequence[int]) -> list[Piece]:  # noqa: ANN401 - a dataset
    if _applies_our_policy(dataset):
        return dataset._pieces(indices)  # type: ignore[no-any-return]
    fetch = getattr(dataset, "__getitems__", None)
    samples = one_by_one(dataset, indices) if fetch is None else fetch(indices)
    return [Piece(np.arange(len(indices)), dataset, indices, samples, is_made=True)]


def _damage_beyond_views(dataset: Any) -> dict[int, str]:  # noqa: ANN401 - a dataset
    """Damage that no view counts, since the dataset reads by a policy of its own."""
    if _applies_our_policy(dataset):
        return dataset._damage_of_strangers() if isinstance(dataset, _View) else {}
    found: dict[int, str] = _own_stats(dataset).get("damaged", {})
    return found


def _own_stats(dataset: Any) -> dict[str, Any]:  # noqa: ANN401 - any dataset
    """The statistics of one of ours."""
    found: dict[str, Any] = dataset.stats() if isinstance(dataset, _WITH_STATS) else {}
    return found


# By view of torch's: the same view of ours.
_ours: "weakref.WeakKeyDictionary[data.Dataset[Any], Any]" = weakref.WeakKeyDictionary()
# By subset of torch's: the indices that it had then, as it held them.
_listed: "weakref.WeakKeyDictionary[data.Subset[Any], Any]" = weakref.WeakKeyDictionary()


def as_ours(dataset: Any, places: Any = None) -> Any:  # noqa: ANN401 - any dataset
    """A subset of torch's over one of our datasets as a subset of ours; others as they are.

    It has the indices that torch's has by now, which a program may replace. If these are changed in
    place, those at `places` tell: which are asked for, or `slice(None)` for all.
    """
    if type(dataset) is not data.Subset:
        return dataset
    inner = as_ours(dataset.dataset, None if places is None else slice(None))
    return _subset_of(dataset, inner, places) if isinstance(inner, Dataset) else dataset


def stats_of(dataset: Any) -> dict[str, Any]:  # noqa: ANN401 - any dataset
    """The statistics of a dataset; of a concatenation of torch's, the sums over its parts.

    `damaged` is by index of the dataset, or of what a subset of torch's chooses from.
    """
    ours = as_ours(dataset)
    if type(ours) is data.Subset:
        return stats_of(ours.dataset)
    if type(ours) is not data.ConcatDataset:
        return _own_stats(ours)
    each = list(map(stats_of, ours.datasets))
    damaged = {
        first + index: what
        for stats, first in zip(each, [0, *ours.cumulative_sizes], strict=False)
        for index, what in stats.get("damaged", {}).items()
    }
    distinct = {id(part): stats for part, stats in zip(ours.datasets, each, strict=True)}
    return {**summed(distinct.values()), "damaged": damaged}


def fingerprint_of(dataset: Any) -> str | None:  # noqa: ANN401 - any dataset
    """The identity of the samples of a dataset and their order, as far as that is known.

    Views of torch's have none of their own: theirs covers what they choose and join. None if
    nothing is known.
    """
    ours = as_ours(dataset, slice(None))
    found = getattr(ours, "fingerprint", None)
    if isinstance(found, str):  # A dataset may mean something else.
        return found
    try:
        if isinstance(ours, _View):
            return digest(ours._traits())
        if type(ours) is data.Subset:
            choice = Choice(ours.indices, len(ours.dataset))  # type: ignore[arg-type]
            return digest([_named(ours.dataset), choice.tobytes()])
        if isinstance(ours, data.ConcatDataset):
            return digest(map(_named, ours.datasets))
    except (TypeError, ValueError, IndexError):
        pass  # A dataset of the program may have other keys than integers, or no length.
    return None


def versions_of(dataset: Any) -> list[str]:  # noqa: ANN401 - any dataset
    """The named versions that a dataset reads, in order, as far as that is known."""
    ours = as_ours(dataset, slice(None))
    parts: Sequence[Any] = ()
    if isinstance(ours, ConcatDataset | data.ConcatDataset):
        parts = ours.datasets
    elif isinstance(ours, Subset | data.Subset):
        parts = (ours.dataset,)
    if parts:
        return [version for part in parts for version in versions_of(part)]
    return list(ours.versions) if isinstance(ours, Dataset) else []


def said_of_data(theirs: object, ours: list[str]) -> str:
    """For an error that refuses a state of other data: which versions both are of, if of any."""
    named = theirs if isinstance(theirs, list) else []
    if not named and not ours:
        return ""
    sides = [", ".join(map(str, side)) or "data without a version" for side in (named, ours)]
    return f" (the state is of {sides[0]}, the dataset is {sides[1]})"


def _named(dataset: Any) -> bytes:  # noqa: ANN401 - any dataset
    return (fingerprint_of(dataset) or f"{len(dataset)} unknown samples").encode()


def _subset_of(asked: "data.Subset[Any]", dataset: Dataset[Any], places: Any) -> Subset[Any]:  # noqa: ANN401 - as torch's
    found, listed = _ours.get(asked), asked.indices
    if found is not None and found.dataset is dataset and _listed.get(asked) is listed:
        known: Subset[Any] = found
        if len(known) == len(listed) and _has_now(known, listed, places):
            return known
    _ours[asked], _listed[asked] = made, _ = Subset(dataset, listed), listed
    return made


def _has_now(found: Subset[Any], listed: Any, places: Any) -> bool:  # noqa: ANN401 - as torch's
    """Whether a subset has the indices that are listed, as far as they are at these places."""
    if places is None or isinstance(listed, range):
        return True
    count = len(found.dataset)
    if isinstance(places, slice):
        return found.choice.tobytes() == Choice(listed, count).tobytes()
    wanted = np.atleast_1d(np.asarray(places))
    if not wanted.size:
        return True
    is_array = isinstance(listed, np.ndarray | torch.Tensor)
    now = listed[wanted] if is_array else operator.itemgetter(*wanted.tolist())(listed)
    return bool(np.array_equal(found.choice.at(wanted), np.atleast_1d(now) % count))


def _concat_of(asked: "data.ConcatDataset[Any]") -> ConcatDataset[Any]:
    parts = [as_ours(dataset) for dataset in asked.datasets]
    found = _ours.get(asked)
    if found is None or [*map(id, found.datasets)] != [*map(id, parts)]:
        _ours[asked] = found = ConcatDataset(parts)
    return found


def asked_through_torch(dataset: Dataset[Any], frame: FrameType) -> Asked | None:
    """The request to a view of torch's that asks `dataset`; None if another caller asks.

    torch passes plain indices on, of one sample or of several, which do not tell what belongs to
    the view, nor seed and epoch. Subsets of subsets are several frames, and so are subsets of
    torch's concatenations, which are asked for one sample at a time. If these are the samples of a
    batch, all of them are made at the first one, unless one is damaged. Then a concatenation alone
    has no policy: its part is asked, which replaces its own.
    """
    view: Dataset[Any] = dataset
    found: Asked | None = None
    is_one = False
    several: list[Any] = []
    origin: Any = None  # The indices of the batch, whatever view was asked for them.
    place: int | None = None  # In the concatenation, if that is the outermost view.
    caller: FrameType | None = frame
    while caller is not None:
        names = caller.f_locals
        if caller.f_code in _EACH:  # Until Python 3.11, a comprehension has a frame.
            caller = cast(FrameType, caller.f_back)
        if caller.f_code is _CONCATENATED:
            found = found or Asked(view, names["sample_idx"], True)
            view, is_one, several, place = _concat_of(names["self"]), True, [], names["idx"]
        elif caller.f_code is _ONE:
            view, place = _subset_of(names["self"], view, names["idx"]), None
            # It may be asked for several, too.
            found, is_one = Asked(view, names["idx"], isinstance(names["idx"], Integral)), True
        elif caller.f_code is _SEVERAL:
            origin, place = caller.f_locals["indices"], None
            inner, several = several, list(origin)
            view = _subset_of(caller.f_locals["self"], view, several)
            if not is_one:
                found = Asked(view, origin, False)
            elif inner and found is not None:
                found = Asked(view, several[inner.index(found.key)], True)
            else:
                found = Asked(view, names["idx"], True)
        else:
            origin = caller.f_locals.get(_FETCHES.get(caller.f_code, ""), origin)
            break
        caller = caller.f_back
    if found is None or not found.is_one:
        return found
    if isinstance(origin, list | IndexBatch) and isinstance(view, _View) and view._joins_records:
        asked = found.key if place is None else place
        if made := by_one.sample(origin, asked, partial(view._whole, origin)):
            return found._replace(made=made)
    return found._replace(key=_one_of(found.key, origin, place))


def _one_of(index: int, origin: Any, place: int | None) -> SeededIndices:  # noqa: ANN401 - as above
    """One index with the chance that it has in the batch of `origin`."""
    if origin is None:  # Code of the program asks, perhaps with what it was asked for.
        origin = index if place is None else place
    made = SeededIndices.like([index], origin if isinstance(origin, SeededIndex) else ())
    if isinstance(origin, IndexBatch | SeededIndices):
        made.seed, made.epoch = origin.seed, origin.epoch
        if (places := origin.places) is not None:
            asked = index if place is None else place
            made.places = places[[_row_of(origin, asked)]]
        if place is None and isinstance(origin, SeededIndices):
            made.ahead = origin.ahead
    if made.places is None and place is not None:
        made.places = np.array([place])
    return made


def _row_of(origin: SeededIndices | IndexBatch, asked: int) -> int:
    """Where `asked` is in the batch: if it is there several times, torch asks for these in turn."""
    rows = np.flatnonzero(np.asarray(origin) == asked)
    turns = origin.turns
    turns[asked] += 1
    return int(rows[(turns[asked] - 1) % rows.size])


def one_by_one(dataset: Any, indices: Sequence[int]) -> list[Any]:  # noqa: ANN401 - any dataset
    """The samples, from a dataset that gives no several at once."""
    return [dataset[index] for index in indices]


_ONE, _SEVERAL = data.Subset.__getitem__.__code__, data.Subset.__getitems__.__code__
_CONCATENATED = data.ConcatDataset.__getitem__.__code__
# Functions that ask for samples one by one, and the name of the indices there.
_FETCHES = {
    _MapDatasetFetcher.fetch.__code__: "possibly_batched_index",
    one_by_one.__code__: "indices",
}
_EACH = frozenset(
    each for code in (_SEVERAL, *_FETCHES) for each in code.co_consts if isinstance(each, CodeType)
)

Dataset._views = Views(ConcatDataset, asked_through_torch)
