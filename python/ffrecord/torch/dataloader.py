"""A loader that knows how far it has come."""

import time
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from itertools import accumulate, pairwise
from typing import Any, Literal

import numpy as np
import torch
from torch.utils import data
from torch.utils.data._utils.pin_memory import pin_memory as pin

from ffrecord import _ffrecord
from ffrecord.errors import BadArgumentError, CorruptionError, DeadlineExceeded
from ffrecord.order import IndexBatch
from ffrecord.prefetch import Prefetcher
from ffrecord.reader import Reader
from ffrecord.records import Records
from ffrecord.stages import Stages, numbers_of, since, summed, verdict, write_trace
from ffrecord.torch.collate import collate
from ffrecord.torch.dataset import Dataset
from ffrecord.torch.handover import CrossingCollate, Told
from ffrecord.torch.pinning import on_device, size_of
from ffrecord.torch.sampler import Cursor, Sampler

# What timeout=0 stands for: every wait ends.
_TIMEOUT_S = 600.0
_MEMORY_LIMIT_BYTES = 1 << 30
# Of several batches that are loaded as one. More fill the caches, and would gain nothing.
_TOGETHER_RECORDS_MAX = 4096
# What torch says when a worker is late; it has no type of its own.
_TORCH_IS_LATE = "DataLoader timed out after"

# A plan: the place behind the step, None if there is no such place, and what makes the indices to
# load, in the thread that loads them.
_Plan = tuple[Cursor | None, Callable[[], Any]]


class DataLoader(data.DataLoader[Any]):
    """torch's DataLoader, with a state, and with threads where processes are not needed.

    With a `Sampler` as `batch_sampler`, `state_dict` says what was delivered, not what was read
    ahead, and a loader of any world size, mode and number of workers continues from it. It can be
    saved and restored by whatever knows those two methods.
    """

    def __init__(
        self,
        dataset: data.Dataset[Any],
        batch_size: int | None = 1,
        shuffle: bool | None = False,
        sampler: Any = None,  # noqa: ANN401 - torch takes any iterable of indices
        batch_sampler: Any = None,  # noqa: ANN401 - likewise, of lists of indices
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = 2,
        persistent_workers: bool = False,
        skippable: bool = True,
        mode: Literal["workers", "threads"] = "workers",
        memory_limit_bytes: int = _MEMORY_LIMIT_BYTES,
        device: torch.device | str | None = None,
        **options: Any,  # noqa: ANN401 - torch's own
    ) -> None:
        """Set up as torch's DataLoader does; `collate_fn` is ours by default.

        Args:
            dataset: any map-style dataset; one with `__getitems__` reads each batch at once.
            batch_size: without a batch_sampler, as in torch.
            shuffle: likewise.
            sampler: likewise.
            batch_sampler: a `Sampler`, or any iterable of lists of indices.
            num_workers: processes or threads; 0 loads in the caller's.
            collate_fn: what makes a batch of samples.
            pin_memory: as in torch.
            drop_last: as in torch.
            timeout: seconds to wait for one batch of a worker or thread; 0 is ten minutes.
            worker_init_fn: as in torch.
            generator: as in torch.
            prefetch_factor: batches read ahead by each worker; by threads, so many beyond those
                that they are at, to begin with.
            persistent_workers: as in torch.
            skippable: whether `set_step` may be called.
            mode: "workers" are torch's processes, whose batches cross as shared memory; "threads"
                share memory with the caller: nothing crosses, reads and torch's operators run side
                by side, and with a `Sampler` reading ahead does not stop at the end of an epoch.
            memory_limit_bytes: for batches that threads have read ahead.
            device: a GPU to copy batches to, one ahead, on a stream of its own.
            options: torch's other ones; with threads there are no processes for them to set up.
        """
        if mode not in ("workers", "threads"):
            raise ValueError(f"mode is {mode!r}; it can be workers or threads")
        threads = num_workers if mode == "threads" else 0
        processes = num_workers - threads
        if threads and (isinstance(dataset, data.IterableDataset) or batch_size is None):
            raise ValueError("mode='threads' loads batches of a map-style dataset only")
        if threads:
            useless = {"worker_init_fn": worker_init_fn, "persistent_workers": persistent_workers}
            if names := sorted([*options, *(name for name, value in useless.items() if value)]):
                raise ValueError(f"mode='threads' has no processes for {', '.join(names)}")
        self._device = None if device is None else torch.device(device)
        if self._device is not None and (
            self._device.type != "cuda" or not torch.cuda.is_available()
        ):
            raise ValueError(f"device is {device}: batches can be copied to a CUDA device only")
        if processes:
            options["prefetch_factor"] = prefetch_factor
            options["persistent_workers"] = persistent_workers
        self.stages = Stages()
        self._told = Told()
        super().__init__(
            dataset,
            batch_size=batch_size,
            shuffle=shuffle,
            sampler=sampler,
            batch_sampler=batch_sampler,
            num_workers=processes,
            collate_fn=CrossingCollate(collate_fn or collate, self.stages, self._told.token),
            pin_memory=pin_memory,
            drop_last=drop_last,
            timeout=(timeout or _TIMEOUT_S) if processes else 0,
            worker_init_fn=worker_init_fn,
            generator=generator,
            **options,
        )
        self.mode = mode
        self.skippable = skippable
        self._threads = threads
        self._timeout_s = timeout or _TIMEOUT_S
        self._thread_prefetch = prefetch_factor or 2
        self._memory_limit_bytes = memory_limit_bytes
        self._ahead: Prefetcher[_Plan, Any] | None = None
        self._ahead_of: tuple[Any, ...] = ()  # Which stream, and which place of it comes next.
        self._delivered = 0
        self._before: dict[str, float] | None = None  # What others had read of the dataset.

    def set_step(self, step: int) -> None:
        """Let epochs begin at batch `step`, of the same order; 0 lets them begin at the first.

        Raises:
            BadArgumentError: there is no such batch, or the loader is not `skippable`; an
                AssertionError.
        """
        if not self.skippable:
            raise BadArgumentError("this loader was made with skippable=False")
        total = len(self) + self._steps.step
        if not 0 <= step < max(1, total):
            raise BadArgumentError(f"step {step} of {total} batches")
        self._steps.step = step

    def state_dict(self) -> dict[str, Any]:
        """What was delivered, as a few scalars; see `Sampler.state_dict`."""
        return self._elastic_sampler("state_dict").state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iteration continue from `state`; see `Sampler.load_state_dict`."""
        self._elastic_sampler("load_state_dict").load_state_dict(state)

    def stats(self, *, probe_s: float = 0.0) -> dict[str, Any]:
        """Where the time went, over all threads and workers, since it was first iterated.

        Args:
            probe_s: for so long the records are read past the page cache, to tell how much of what
                their device gives was used; 0: not at all. See `Reader.probe`.

        Returns:
            `batches` delivered, `records` and `size_bytes` read; seconds by stage: `plan` (the
            order), `device` (waiting inside reads), `core` (the same where all was in memory: for a
            core that is free), `check` (checksums, decompression and copying inside reads),
            `decode` (decoders and transform), `collate`, `handover`; `wait_s`, what the consumer
            waited, and `work_s`, what it did between batches; `depth`, batches read ahead by
            threads now; `damaged` records; `limit`, bytes/s, if it was probed; and one sentence,
            `verdict`.
        """
        own = self.stages.sums()
        counts = self._counts()
        checking = counts.get("cpu_s", 0.0)
        idle = max(0.0, counts.get("wait_s", 0.0) - checking)
        in_memory = counts.get("batches_from_memory", 0.0) / max(1.0, counts.get("batches", 0.0))
        stages = {
            "plan": own.get("plan", 0.0),
            "device": idle * (1 - min(1.0, in_memory)),
            "core": idle * min(1.0, in_memory),
            "check": checking,
            "decode": counts.get("decode_s", 0.0),
            "collate": own.get("collate", 0.0) + counts.get("collate_s", 0.0),
            "handover": counts.get("handover_s", 0.0) + self._told.received_s,
        }
        wait_s, work_s = own.get("wait", 0.0), own.get("work", 0.0)
        size_bytes = int(counts.get("size_bytes", 0))
        limit = self._probe(probe_s) if probe_s else 0.0
        return {
            "batches": self._delivered,
            "records": int(counts.get("records", 0)),
            "size_bytes": size_bytes,
            "stages": stages,
            "wait_s": wait_s,
            "work_s": work_s,
            "depth": self._ahead.depth if self._ahead is not None else 0,
            "damaged": int(counts.get("damaged_records", 0)),
            "limit": limit,
            "verdict": verdict(stages, wait_s, work_s, size_bytes, limit),
        }

    def _probe(self, seconds: float) -> float:
        source = getattr(self.dataset, "source", None)
        if not isinstance(source, Records):
            raise BadArgumentError(f"probe_s: {self.dataset!r} is no dataset of ffrecord's")
        return source.probe(seconds)

    def write_trace(self, path: str) -> None:
        """Write what happened when, in this process, for chrome://tracing and Perfetto."""
        inner = vars(self.dataset).get("stages")
        write_trace(path, [self.stages, *([inner] if isinstance(inner, Stages) else [])])

    def close(self) -> None:
        """End the threads and drop what they have read ahead; the next iteration starts anew."""
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None

    @property
    def _index_sampler(self) -> Any:  # noqa: ANN401 - what torch iterates over
        return self._steps

    @cached_property
    def _steps(self) -> "_Steps":
        return _Steps(super()._index_sampler)

    # torch promises its own iterator class; what callers need of it is that it iterates.
    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        sampler = self.batch_sampler if isinstance(self.batch_sampler, Sampler) else None
        start = None if sampler is None else sampler.skipped(sampler.begin(), self._steps.step)
        if self._before is None:
            self._before = self._dataset_numbers()
        announcer = self._announced(sampler, start)  # Before anybody asks for a record.
        if self._threads:
            batches = self._threaded(sampler, start)
        else:
            if not self.persistent_workers:
                self._told.end_workers()
            if isinstance(self.collate_fn, CrossingCollate):
                self.collate_fn.remember(self.dataset)
            batches = self._by_torch(super().__iter__(), start)
        if self._device is not None:
            batches = on_device(batches, self._device)
        return self._watched(batches, sampler, announcer)

    def _by_torch(
        self, batches: Iterator[Any], start: Cursor | None
    ) -> Iterator[tuple[Cursor | None, Any]]:
        sampler = self.batch_sampler
        cursor = start
        try:
            for batch in batches:
                if isinstance(sampler, Sampler) and cursor is not None:
                    cursor = sampler.after(cursor)
                yield cursor, batch
        except RuntimeError as error:
            if not str(error).startswith(_TORCH_IS_LATE):
                raise
            raise DeadlineExceeded(
                f"no batch from {self.num_workers} loader workers within {self.timeout} s; raise "
                "timeout, or look at `ffrecord doctor` for what the reads wait for"
            ) from None

    def _threaded(
        self, sampler: Sampler | None, start: Cursor | None
    ) -> Iterator[tuple[Cursor | None, Any]]:
        ahead = self._prefetcher(sampler, start)
        whole = False
        try:
            for (cursor, _), batch in ahead:
                if cursor is not None:
                    self._ahead_of = (*self._ahead_of[:-1], cursor)
                yield cursor, batch
                if start is not None and cursor is not None and cursor.epoch != start.epoch:
                    break
            whole = True
        finally:
            if sampler is None or not whole:
                self.close()

    def _prefetcher(self, sampler: Sampler | None, start: Cursor | None) -> Prefetcher[_Plan, Any]:
        """Goes on where the last epoch ended, if that is where `start` is."""
        stream = None if sampler is None else sampler.identity()
        if self._ahead is not None:
            if self._ahead.alive and stream is not None and self._ahead_of == (stream, start):
                return self._ahead
            self.close()
        if sampler is None or start is None:
            # As torch's own iterator, which seeds its workers so: a generator gives one order.
            torch.empty((), dtype=torch.int64).random_(generator=self.generator)
            plans: Iterator[_Plan] = ((None, partial(_same, indices)) for indices in self._steps)
        else:
            plans = sampler.plans(start)
        self._ahead_of = (stream, start)
        loads = _Loads(self)
        self._ahead = Prefetcher(
            loads,
            _timed(plans, self.stages),
            threads=self._threads,
            depth=self._threads + self._thread_prefetch,
            memory_limit_bytes=self._memory_limit_bytes,
            weigh=size_of,
            timeout_s=self._timeout_s,
            load_together=loads.together if loads.can_cut else None,
        )
        return self._ahead

    def _announced(self, sampler: Sampler | None, start: Cursor | None) -> "_Announcer | None":
        """Tells the daemon, if there is one, what of the epoch has not been asked for yet."""
        source = getattr(self.dataset, "source", None)
        if sampler is None or start is None or not isinstance(source, Reader) or source.is_local:
            return None
        announcer = _Announcer(source, sampler)
        ahead = 0
        if self._ahead is not None and self._ahead_of == (sampler.identity(), start):
            ahead = self._ahead.pending
        cursor = sampler.skipped(start, ahead)
        if cursor.epoch == start.epoch:
            announcer.tell(cursor)
        return announcer

    def _watched(
        self,
        batches: Iterator[tuple[Cursor | None, Any]],
        sampler: Sampler | None,
        announcer: "_Announcer | None",
    ) -> Iterator[Any]:
        """Hands batches on; tells the sampler what is delivered, and counts the consumer's time."""
        end = time.perf_counter_ns()
        try:
            while True:
                begin = time.perf_counter_ns()
                if self._delivered and begin > end:
                    self.stages.add("work", end, begin)
                found = next(batches, None)
                end = time.perf_counter_ns()
                if found is None:
                    return
                self.stages.add("wait", begin, end)
                cursor, batch = found
                if sampler is not None and cursor is not None:
                    sampler.deliver(cursor)
                    if announcer is not None:
                        announcer.keep(cursor)
                self._delivered += 1
                yield batch
        finally:
            batches.close()  # type: ignore[attr-defined]

    def _counts(self) -> dict[str, float]:
        """Sums over this process and the workers, of which each tells its own."""
        if self._before is None:
            return {}
        return summed([since(self._dataset_numbers(), self._before), self._told.sums()])

    def _dataset_numbers(self) -> dict[str, float]:
        stats: dict[str, Any] = getattr(self.dataset, "stats", dict)()
        return numbers_of(stats)

    def _elastic_sampler(self, what: str) -> Sampler:
        if not isinstance(self.batch_sampler, Sampler):
            raise TypeError(
                f"{what} needs batch_sampler=ffrecord.torch.Sampler(...), whose order is a "
                f"function of position; {type(self.batch_sampler).__name__} has no place to resume"
            )
        return self.batch_sampler


class _Announcer:
    """Keeps a daemon told what is left of one epoch; `Reader.announce`."""

    def __init__(self, reader: Reader, sampler: Sampler) -> None:
        self._reader = reader
        self._sampler = sampler
        self._epoch = -1
        self._told: _ffrecord.Announcement | None = None

    def tell(self, cursor: Cursor) -> None:
        self._epoch = cursor.epoch
        self._told = self._reader.announce(self._sampler.share(cursor))

    def keep(self, cursor: Cursor) -> None:
        """Tell it again if the daemon was lost; one that did not listen is not told again."""
        if self._told is not None and not self._told.alive:
            self._told = None
            if cursor.epoch == self._epoch:
                self.tell(cursor)


class _Loads:
    """Loads one batch. Knows nothing of the loader, which would never be freed otherwise."""

    def __init__(self, loader: DataLoader) -> None:
        self._fetch = getattr(loader.dataset, "__getitems__", None)
        self._dataset: Any = loader.dataset
        self._collate_fn = loader.collate_fn
        self._stages = loader.stages
        self._pinned = loader.pin_memory and torch.cuda.is_available()
        collates = loader.collate_fn
        self.can_cut = (
            isinstance(self._dataset, Dataset)
            and self._dataset.is_plain
            and isinstance(collates, CrossingCollate)
            and collates.collate_fn is collate
            and not self._pinned
        )
        """Whether several batches may be loaded as one that is cut."""

    def __call__(self, plan: _Plan) -> Any:  # noqa: ANN401 - collate_fn's
        with self._stages.timed("plan"):
            indices = plan[1]()
        with self._stages.timed("fetch"):
            if self._fetch is None:
                samples = [self._dataset[index] for index in indices]
            else:
                samples = self._fetch(indices)
        batch = self._collate_fn(samples)
        return pin(batch) if self._pinned else batch  # type: ignore[no-untyped-call]

    def together(self, plans: list[_Plan]) -> list[Any] | None:
        """Load several batches in one submission; None if each must be loaded alone."""
        if not self._dataset.is_plain:  # Any more.
            return None
        with self._stages.timed("plan"):
            indices = [plan[1]() for plan in plans]
        if not all(isinstance(each, IndexBatch) for each in indices):
            return None
        if sum(map(len, indices)) > _TOGETHER_RECORDS_MAX:
            return None
        with self._stages.timed("fetch"):
            try:
                samples = self._dataset[np.concatenate([each.array for each in indices])]
            except CorruptionError:
                return None  # Those before the damaged one are good.
        batch = self._collate_fn(samples)
        ends = accumulate(map(len, indices), initial=0)
        return [_rows(batch, begin, end) for begin, end in pairwise(ends)]


def _rows(batch: Any, begin: int, end: int) -> Any:  # noqa: ANN401 - as collate makes it
    if isinstance(batch, dict):
        return {name: _rows(values, begin, end) for name, values in batch.items()}
    return batch[begin:end]


def _same(indices: Any) -> Any:  # noqa: ANN401 - as torch's sampler yields them
    return indices


def _timed(plans: Iterator[_Plan], stages: Stages) -> Iterator[_Plan]:
    while True:
        with stages.timed("plan"):
            plan = next(plans, None)
        if plan is None:
            return
        yield plan


class _Steps:
    """What torch iterates over: the batches of the coming epoch, from `step` on.

    It leaves the sampler where it is: what was read ahead is not what was delivered. It outlives an
    epoch if workers do, and so looks at the sampler anew each time.
    """

    def __init__(self, inner: Any) -> None:  # noqa: ANN401 - torch's own
        self._inner = inner
        self.step = 0

    def __len__(self) -> int:
        return len(self._inner) - self.step

    def __iter__(self) -> Iterator[Any]:
        if isinstance(self._inner, Sampler):
            start = self._inner.skipped(self._inner.begin(), self.step)
            return (batch for _, batch in self._inner.epoch_from(start))
        return self._skipping()

    def _skipping(self) -> Iterator[Any]:
        # Not before the first batch is asked for: torch draws from its generator in that order.
        for number, indices in enumerate(self._inner):
            if number >= self.step:
                yield indices
