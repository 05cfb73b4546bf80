"""Batches that native threads read, decode and collate, without Python."""

import operator
import os
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from ffrecord import _ffrecord
from ffrecord._base.stage_times import Stages
from ffrecord._read.read_ahead import ReadAhead
from ffrecord._read.reader import Reader
from ffrecord._tables.schema import Column
from ffrecord._tables.tensors import tensor_of, tensors
from ffrecord.decode._decoder import Decoder, Native
from ffrecord.errors import ClosedError, DeadlineExceeded
from ffrecord.torch._collate import collate
from ffrecord.torch._dataset import Dataset
from ffrecord.torch._loader_order import overridden
from ffrecord.torch._sampler import Cursor, Sampler

_THREADS_MAX = 64
_AHEAD_MAX = 256
_U32 = 1 << 32
# If more than one batch of so many must be made by the consumer, other threads are faster.
_BATCHES_PER_REPAIR = 16


class Source(NamedTuple):
    """The input of a `Stream`."""

    dataset: Dataset
    reader: Reader
    decoders: tuple[object, ...]
    """Those of the dataset, as it had them."""
    names: tuple[str | None, ...]
    """The columns of a batch, in their order; None alone: it is not a dict."""
    gathered: tuple[Column, ...]
    decoded: tuple[tuple[str | None, Native], ...]

    @property
    def is_current(self) -> bool:
        """Whether nothing was closed or replaced since."""
        dataset = self.dataset
        now = decoders_of(dataset)
        return (
            not self.reader.closed
            and dataset.transform is None
            and len(now) == len(self.decoders)
            and all(map(operator.is_, now, self.decoders))
        )


def decoders_of(dataset: Dataset) -> tuple[object, ...]:
    """The names and decoders of a dataset by now, to compare by identity.

    A program may put another decoder into the dict that it has given.
    """
    decode = vars(dataset).get("decode")
    if not isinstance(decode, Mapping):
        return (decode,)
    named = ((sys.intern(str(name)), decoder) for name, decoder in decode.items())
    return tuple(chain.from_iterable(named))


def source_of(dataset: Any) -> Source | None:  # noqa: ANN401 - any dataset
    """The source, if the columns of `dataset` are numbers, or have native decoders."""
    if type(dataset) is not Dataset or dataset.transform is not None or "process" in vars(dataset):
        return None
    reader, decode = dataset.source, dataset.decode
    if type(reader) is not Reader or not reader.logical.is_flat:
        return None
    by_name = {column.name: column for column in reader.columns}
    decoders: Mapping[Any, Decoder] = (
        {None: decode} if isinstance(decode, Decoder) else decode or {}
    )
    chosen = by_name if dataset.columns is None else dataset.columns
    names: tuple[str | None, ...] = tuple(dict.fromkeys(chosen)) if by_name else (None,)
    # Decoders for columns that are not there are an error, which other threads report.
    known: set[str | None] = set(by_name) if by_name else {None}
    if not names or not known.issuperset(names) or not known.issuperset(decoders):
        return None
    natives = {name: decoders[name].native() for name in names if name in decoders}
    gathered = [by_name[name] for name in names if name is not None and name not in natives]
    if len(natives) + len(gathered) < len(names) or None in natives.values():
        return None
    if any(column.dtype is None for column in gathered):
        return None
    decoded = tuple((name, native) for name, native in natives.items() if native is not None)
    return Source(dataset, reader, decoders_of(dataset), names, tuple(gathered), decoded)


class Stream:
    """Yields a rank's batches from a position on, epoch after epoch, which native threads make.

    As a `Prefetcher` whose plans are cursors: for one consumer thread; in a forked child it is
    empty and closed.
    """

    def __init__(
        self,
        source: Source,
        sampler: Sampler,
        start: Cursor,
        stages: Stages,
        ahead: ReadAhead,
    ) -> None:
        """Start the threads; requires `fits(source, sampler, start)`."""
        self._source = source
        self._sampler = sampler
        self._cursor = start
        self._stages = stages
        self._counted: dict[str, float] = {}
        self._threads = ahead.threads
        self._timeout_s = ahead.timeout_s
        self._pid = os.getpid()
        self._made = self._repaired = 0  # Batches.
        following = sampler.share(Cursor(start.epoch + 1, 0))
        self._inner = source.reader.open_stream(
            sampler.share(start),
            following.end,
            source.gathered,
            decoded=[(name, native.inner) for name, native in source.decoded],
            ahead=replace(
                ahead,
                threads=min(ahead.threads, _THREADS_MAX),
                depth=min(ahead.depth, _AHEAD_MAX),
            ),
        )
        self._makers = _makers(source)
        # Also at exit, because no thread may read while libraries are unloaded.
        self.close = weakref.finalize(self, _close, self._inner, self._pid)

    @staticmethod
    def fits(source: Source, sampler: Sampler, start: Cursor) -> bool:
        """Whether native threads know this order."""
        share = sampler.share(start)
        order = share.order
        sizes = (share.step_size, share.world_size, order.block or 0, order.window or 0)
        known = (order.mixture or order.weights) is None and not start.ahead and max(sizes) < _U32
        # They know no step that is longer than others, as the last one may be with last="exact".
        known = known and all(map(sampler.has_equal_steps, (start.position, 0)))
        known = known and not overridden(sampler, "plans", "after", "share")
        return known and order.count == len(source.reader)

    @property
    def depth(self) -> int:
        """Batches that are read ahead now."""
        return self._inner.depth

    @property
    def pending(self) -> int:
        """Batches that are being read, or wait to be handed out."""
        return self._inner.pending if self.alive else 0

    @property
    def held_bytes(self) -> int:
        """Memory of these batches."""
        return self._inner.held_bytes if self.alive else 0

    @property
    def alive(self) -> bool:
        """Whether it can continue, in this process."""
        return self.close.alive and self._pid == os.getpid()

    @property
    def pays(self) -> bool:
        """Whether its threads make nearly all batches, and the consumer need not repair many."""
        return self._repaired <= 1 + self._made // _BATCHES_PER_REPAIR

    def note_times(self) -> None:
        """Add to the loader's stages what the threads have done since the last call."""
        if self._pid != os.getpid():
            return
        times = self._inner.times()
        for stage, seconds in times.items():
            self._stages.count(stage, seconds - self._counted.get(stage, 0.0))
        self._counted = times

    def __iter__(self) -> Iterator[tuple[Cursor, Any]]:
        return self

    def __next__(self) -> tuple[Cursor, Any]:
        """Return the next batch, after the position behind its step.

        Raises:
            DeadlineExceeded: the batch did not come in time.
            ClosedError: as of a `Prefetcher`.
            Exception: what reading the batch raises.
        """
        self._require_alive()
        found = self._inner.next(self._timeout_s)
        if found is None:
            self._require_alive()  # Another thread may have closed it.
            raise DeadlineExceeded(
                f"no batch from {self._threads} loader threads within {self._timeout_s} s: it is "
                "being loaded; raise timeout, or run `ffrecord doctor` to see what reads wait for"
            )
        at, self._cursor = self._cursor, self._sampler.after(self._cursor)
        self._made += 1
        return self._cursor, self._collated(found[1], at)

    def _require_alive(self) -> None:
        if not self.alive:
            raise ClosedError(
                "the batches that threads had read ahead are lost: the loader was closed, or the "
                "process forked, while this iterator was in use; start a new iteration"
            )

    def _collated(self, values: tuple[Any, ...] | None, at: Cursor) -> Any:  # noqa: ANN401
        """As `collate` makes it."""
        if values is None or not self._source.is_current:
            return self._again(at)
        batch = {name: make(values[place]) for name, place, make in self._makers}
        return batch.get(None, batch)

    def _again(self, at: Cursor) -> Any:  # noqa: ANN401
        """The step at `at` as other loaders make it: for damage, and what the user changed."""
        self._repaired += 1
        _, make = next(self._sampler.plans(at))
        with self._stages.timed("fetch"):
            samples = self._source.dataset[make()]
        with self._stages.timed("collate"):
            return collate(samples)


def _makers(source: Source) -> list[tuple[str | None, int, Callable[[Any], Any]]]:
    """For each column of a batch the place of its values, and what makes tensors of them."""
    makers: dict[str | None, tuple[int, Callable[[Any], Any]]] = {}
    for place, column in enumerate(source.gathered):
        makers[column.name] = place, partial(tensor_of, column=column)
    for place, (name, native) in enumerate(source.decoded, len(source.gathered)):
        makers[name] = place, partial(_decoded, native)
    return [(name, *makers[name]) for name in source.names]


def _decoded(native: Native, found: tuple[Any, Any]) -> Any:  # noqa: ANN401 - as decoders make it
    return tensors(native.values(*found))


def _close(inner: _ffrecord.BatchStream, pid: int) -> None:
    if os.getpid() == pid:  # In a forked child the threads are the parent's.
        inner.close()
