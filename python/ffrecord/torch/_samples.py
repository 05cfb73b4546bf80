"""Samples that a transform made, and which of their values it left as they were."""

import copy
import operator
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np

from ffrecord._order.epoch_order import Indices
from ffrecord._read.batch import Batch
from ffrecord._tables.nested import Maybe


class Samples(list[Any]):
    """The results of a transform for the samples of `batch`, in their order.

    A loader collates what was left as it was as it collates the batch itself: a value that no
    transform has touched means the same with and without one. Pickles as a list.
    """

    def __init__(self, batch: Batch, transforms: Iterable[Callable[[Any], Any]]) -> None:
        """Transform the samples of `batch`, the i-th with the i-th of `transforms`."""
        super().__init__()
        self._make_batch: Callable[[], Batch] = lambda: batch
        # Values of other columns cannot be changed in place unless the batch changes with them.
        self._inner = [name for name in batch.columns if _holds_others(batch, name)]
        self._before: list[Any] = []
        for sample, transform in zip(batch, transforms, strict=False):
            self._before.append(self._kept(sample))
            self.append(transform(sample))

    @classmethod
    def joined(cls, parts: "Sequence[tuple[Indices, Batch | Samples]]") -> "Samples":
        """The samples of several batches of the same columns, of which some have transforms.

        Args:
            parts: at least one, each with the places of its samples in the whole.
        """
        each = [p if isinstance(p, Samples) else cls(p, repeat(_unchanged)) for _, p in parts]
        # The samples that are left of a batch are the first of its places.
        rows = np.concatenate([rows[: len(p)] for (rows, _), p in zip(parts, each, strict=True)])
        order = np.argsort(rows).tolist()
        samples = [one for part in each for one in part]
        before = [one for part in each for one in part._before]
        made = cls.__new__(cls)
        made.extend(samples[at] for at in order)
        made._before = [before[at] for at in order]
        made._inner = each[0]._inner

        def join() -> Batch:
            batches = [part.batch for part in each]
            return batches[0] if len(batches) == 1 else Batch.joined(batches, rows)

        made._make_batch = join
        return made

    @cached_property
    def batch(self) -> Batch:
        """The records of which the samples were made."""
        return self._make_batch()

    def _kept(self, sample: Any) -> Any:  # noqa: ANN401 - as the batch has it
        if type(sample) is not dict:
            return sample
        kept = sample.copy()
        for name in self._inner:
            kept[name] = _kept(sample[name])
        return kept

    @property
    def is_untouched(self) -> bool:
        """Whether all samples are those of the batch."""
        return self._is_whole and all(map(self._is_row, self, self._before))

    def _is_row(self, made: Any, before: Any) -> bool:  # noqa: ANN401 - as the batch has it
        if made is None or type(before) is not dict:
            return made is before
        if type(made) is not dict or made.keys() != before.keys():
            return False
        return all(
            made[name] is value or (name in self._inner and _is_kept(made[name], value))
            for name, value in before.items()
        )

    def untouched(self) -> tuple[str, ...]:
        """The columns of the batch that all samples still have, with its values."""
        if not (self._is_whole and all(isinstance(made, Mapping) for made in self)):
            return ()
        return tuple(name for name in self.batch.columns if self._has(name))

    @property
    def _is_whole(self) -> bool:
        return len(self) == len(self._before) == len(self.batch) > 0

    def _has(self, name: str) -> bool:
        return all(
            name in made
            and (
                made[name] is before[name]
                or (name in self._inner and _is_kept(made[name], before[name]))
            )
            for made, before in zip(self, self._before, strict=True)
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)


class BatchByOne(threading.local):
    """A batch that a view of torch's asks for sample by sample, as this thread has read it.

    Read at once, it takes one submission, and its form does not depend on the values that are
    there: `whole` gives it back to the code that collates the samples.
    """

    def __init__(self) -> None:
        """Nothing is asked for."""
        self._indices: Any = None
        self._asked: list[int] = []
        self._samples: Samples | None = None
        self._next = 0

    def sample(self, indices: Any, index: int, read: Callable[[], Any]) -> tuple[Any, ...]:  # noqa: ANN401
        """The sample of the next of `indices`, which are asked for in turn; else nothing.

        Args:
            indices: of the batch; the same object for all of them.
            index: that one.
            read: reads the batch.
        """
        is_next = indices is self._indices and index == self._asked[self._next]
        if not is_next and not self._begin(indices, index, read):
            return ()
        assert self._samples is not None
        found = self._samples[self._next]
        self._next += 1
        if self._next == len(self._samples):
            self._indices = None  # The same list may be asked for again, after changes.
        return (found,)

    def _begin(self, indices: Any, index: int, read: Callable[[], Any]) -> bool:  # noqa: ANN401
        """Read the batch if that is its first index."""
        self._indices, self._samples = None, None
        if not len(indices) or indices[0] != index:
            return False
        asked, found = list(indices), read()  # A transform may ask for another batch meanwhile.
        if not isinstance(found, Samples) or len(found) != len(asked):
            self._indices, self._samples = None, None
            return False
        self._indices, self._asked, self._samples, self._next = indices, asked, found, 0
        return True

    def whole(self, samples: Sequence[Any]) -> Samples | None:
        """The batch that `samples` are, if they are the one that was read last; forgets it."""
        found, self._samples, self._indices = self._samples, None, None
        if found is None or len(found) != len(samples):
            return None
        return found if all(map(operator.is_, samples, found)) else None


by_one = BatchByOne()


def _unchanged(sample: Any) -> Any:  # noqa: ANN401 - as the batch has it
    return sample


def _holds_others(batch: Batch, name: str) -> bool:
    """Whether values of a column may be lists or dicts."""
    return name in batch.decoded or bool(batch.kind(name).fields)


class _Marked(NamedTuple):
    """Values of which some are missing, and which; these marks may be a copy of the batch's."""

    value: Any
    marks: Any


def _marks_of(value: Any) -> Any:  # noqa: ANN401 - of any column
    if isinstance(value, np.ma.MaskedArray):
        return np.ma.getmaskarray(value)
    return value["valid"] if isinstance(value, Maybe) else None


def _kept(value: Any) -> Any:  # noqa: ANN401 - of any column
    """The value, by which a later change is noticed; arrays share their memory with the batch."""
    if (marks := _marks_of(value)) is not None:
        return _Marked(value, copy.deepcopy(marks))
    if type(value) is dict:
        return {name: _kept(each) for name, each in value.items()}
    return [_kept(each) for each in value] if type(value) is list else value


def _is_kept(value: Any, kept: Any) -> bool:  # noqa: ANN401 - of any column
    if type(kept) is _Marked:
        return value is kept.value and bool((_marks_of(value) == kept.marks).all())
    if type(kept) is dict:
        return (
            type(value) is dict
            and value.keys() == kept.keys()
            and all(_is_kept(value[name], each) for name, each in kept.items())
        )
    if type(kept) is list:
        return (
            type(value) is list
            and len(value) == len(kept)
            and all(_is_kept(one, each) for one, each in zip(value, kept, strict=True))
        )
    return value is kept
