"""A loader that knows how far it has come."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal

import torch
from torch.utils import data
from torch.utils.data._utils.pin_memory import pin_memory as pin

from ffrecord.errors import DeadlineExceeded
from ffrecord.torch.collate import collate
from ffrecord.torch.sampler import Cursor, Sampler


class DataLoader(data.DataLoader[Any]):
    """torch's DataLoader, with a state, and with threads where processes are not needed.

    With a `Sampler` as `batch_sampler`, `state_dict` says what was delivered, not what was read
    ahead, and a loader of any world size, mode and number of workers continues from it.
    """

    def __init__(
        self,
        dataset: data.Dataset[Any],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,  # noqa: ANN401 - torch takes any iterable of indices
        batch_sampler: Any = None,  # noqa: ANN401 - likewise, of lists of indices
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        *,
        mode: Literal["workers", "threads"] = "workers",
        prefetch_factor: int = 2,
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
            timeout: seconds to wait for one batch of a worker or thread; 0 is without end.
            mode: "workers" are torch's processes; "threads" share memory with the caller: nothing
                is copied between processes, and reads and torch's operators run side by side.
            prefetch_factor: batches read ahead by each worker or thread.
            options: torch's other ones; with threads there are no processes for them to set up.
        """
        if mode not in ("workers", "threads"):
            raise ValueError(f"mode is {mode!r}; it can be workers or threads")
        threads = num_workers if mode == "threads" else 0
        if threads and (isinstance(dataset, data.IterableDataset) or batch_size is None):
            raise ValueError("mode='threads' loads batches of a map-style dataset only")
        if threads and (useless := options.keys() - {"generator"}):
            raise ValueError(f"mode='threads' has no processes for {', '.join(sorted(useless))}")
        processes = num_workers - threads
        if processes:
            options["prefetch_factor"] = prefetch_factor
        super().__init__(
            dataset,
            batch_size=batch_size,
            shuffle=shuffle,
            sampler=sampler,
            batch_sampler=batch_sampler,
            num_workers=processes,
            collate_fn=collate if collate_fn is None else collate_fn,
            pin_memory=pin_memory,
            drop_last=drop_last,
            timeout=timeout if processes else 0,
            **options,
        )
        self.mode = mode
        self._threads = threads
        self._thread_timeout_s = timeout or None
        self._thread_prefetch = prefetch_factor

    def state_dict(self) -> dict[str, Any]:
        """What was delivered, as a few scalars; see `Sampler.state_dict`."""
        return self._elastic_sampler("state_dict").state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iteration continue from `state`; see `Sampler.load_state_dict`."""
        self._elastic_sampler("load_state_dict").load_state_dict(state)

    # torch promises its own iterator class; what callers need of it is that it iterates.
    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        sampler = self.batch_sampler
        if not isinstance(sampler, Sampler):
            return self._threaded() if self._threads else super().__iter__()
        start = sampler.start
        batches = self._threaded() if self._threads else super().__iter__()
        sampler.rewind_to(start)
        return self._delivered(batches, sampler, start)

    def _delivered(self, batches: Iterator[Any], sampler: Sampler, start: Cursor) -> Iterator[Any]:
        """Hands batches on, and corrects the sampler, which is some steps ahead."""
        cursor = start
        for batch in batches:
            cursor = sampler.after(cursor)
            sampler.rewind_to(cursor)
            yield batch

    def _threaded(self) -> Iterator[Any]:
        depth = self._threads * self._thread_prefetch
        pinned = self.pin_memory and torch.cuda.is_available()
        assert self.batch_sampler is not None  # batch_size is not None.
        ahead: deque[Future[Any]] = deque()
        pool = ThreadPoolExecutor(self._threads, "ffrecord-loader")
        try:
            for indices in self.batch_sampler:
                ahead.append(pool.submit(self._load, indices, pinned))
                if len(ahead) > depth:
                    yield self._await(ahead.popleft())
            while ahead:
                yield self._await(ahead.popleft())
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _load(self, indices: list[int], pinned: bool) -> Any:  # noqa: ANN401 - collate_fn's
        fetch = getattr(self.dataset, "__getitems__", None)
        samples = [self.dataset[i] for i in indices] if fetch is None else fetch(indices)
        batch = self.collate_fn(samples)
        return pin(batch) if pinned else batch  # type: ignore[no-untyped-call]

    def _await(self, batch: Future[Any]) -> Any:  # noqa: ANN401 - collate_fn's
        try:
            return batch.result(self._thread_timeout_s)
        except TimeoutError:
            if batch.done():
                raise  # The load's own, such as a daemon's deadline.
            raise DeadlineExceeded(
                f"no batch from {self._threads} loader threads within {self._thread_timeout_s} s; "
                "raise timeout, or look at `ffrecord doctor` for what the reads wait for"
            ) from None

    def _elastic_sampler(self, what: str) -> Sampler:
        if not isinstance(self.batch_sampler, Sampler):
            raise TypeError(
                f"{what} needs batch_sampler=ffrecord.torch.Sampler(...), whose order is a "
                f"function of position; {type(self.batch_sampler).__name__} has no place to resume"
            )
        return self.batch_sampler
