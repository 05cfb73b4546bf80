"""Batches that native threads make, without Python, from records that hold only numbers."""

import os
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from ffrecord import _ffrecord
from ffrecord._reader import Reader
from ffrecord._schema import Column
from ffrecord._stages import Stages
from ffrecord.errors import ClosedError, DeadlineExceeded
from ffrecord.torch._collate import collate
from ffrecord.torch._dataset import Dataset
from ffrecord.torch._sampler import Cursor, Sampler

_THREADS_MAX = 64
_AHEAD_MAX = 256
_U32 = 1 << 32


class Source(NamedTuple):
    """What a `Stream` reads."""

    dataset: Dataset
    reader: Reader
    columns: tuple[Column, ...]
    """Those that a batch consists of."""


def source_of(dataset: Any) -> Source | None:  # noqa: ANN401 - any dataset
    """The source, if the samples of `dataset` are numbers as they stand in files."""
    if not isinstance(dataset, Dataset) or not dataset.is_unchanged:
        return None
    reader = dataset.source
    if type(reader) is not Reader:
        return None
    by_name = {column.name: column for column in reader.columns}
    names = by_name if dataset.columns is None else dataset.columns
    if not names or any(name not in by_name or by_name[name].dtype is None for name in names):
        return None
    return Source(dataset, reader, tuple(by_name[name] for name in names))


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
        *,
        threads: int,
        depth: int,
        memory_limit_bytes: int,
        timeout_s: float,
    ) -> None:
        """Start the threads; requires `fits(source, sampler, start)`."""
        self._source = source
        self._sampler = sampler
        self._cursor = start
        self._stages = stages
        self._counted: dict[str, float] = {}
        self._threads = threads
        self._timeout_s = timeout_s
        self._pid = os.getpid()
        following = sampler.share(Cursor(start.epoch + 1, 0))
        self._inner = source.reader.open_stream(
            sampler.share(start),
            following.end,
            source.columns,
            threads=min(threads, _THREADS_MAX),
            batches_ahead=min(depth, _AHEAD_MAX),
            memory_limit_bytes=memory_limit_bytes,
        )
        self._names = [(column.name, column.type == "bf16") for column in source.columns]
        # Also at exit, because no thread may read while libraries are unloaded.
        self.close = weakref.finalize(self, _close, self._inner, self._pid)

    @staticmethod
    def fits(source: Source, sampler: Sampler, start: Cursor) -> bool:
        """Whether native threads know this order."""
        share = sampler.share(start)
        order = share.order
        sizes = (share.step_size, share.world_size, order.block or 0, order.window or 0)
        known = order.mixture is None and not start.ahead and max(sizes) < _U32
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
    def alive(self) -> bool:
        """Whether it can continue, in this process."""
        return self.close.alive and self._pid == os.getpid()

    def note_times(self) -> None:
        """Add to the loader's stages what the threads have done since the last call."""
        if self._pid != os.getpid():
            return
        times = self._inner.times()
        for stage in ("plan", "collate"):
            self._stages.count(stage, times[stage] - self._counted.get(stage, 0.0))
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
        return self._cursor, self._collated(found[1], at)

    def _require_alive(self) -> None:
        if not self.alive:
            raise ClosedError(
                "the batches that threads had read ahead are lost: the loader was closed, or the "
                "process forked, while this iterator was in use; start a new iteration"
            )

    def _collated(self, arrays: tuple[Any, ...] | None, at: Cursor) -> Any:  # noqa: ANN401
        """As `collate` makes it."""
        dataset, reader = self._source.dataset, self._source.reader
        if arrays is None or reader.closed or not dataset.is_unchanged:
            return self._again(at)
        batch = {}
        for (name, is_bf16), array in zip(self._names, arrays, strict=True):
            tensor = torch.from_numpy(array)
            batch[name] = tensor.view(torch.bfloat16) if is_bf16 else tensor
        return batch

    def _again(self, at: Cursor) -> Any:  # noqa: ANN401
        """The step at `at` as other loaders make it: for damage, and what the user changed."""
        _, make = next(self._sampler.plans(at))
        with self._stages.timed("fetch"):
            samples = self._source.dataset[make()]
        with self._stages.timed("collate"):
            return collate(samples)


def _close(inner: _ffrecord.BatchStream, pid: int) -> None:
    if os.getpid() == pid:  # In a forked child the threads are the parent's.
        inner.close()
