"""How a batch leaves a worker process: its arrays in one block of memory, not in a pickle.

torch puts each tensor into a file of its own in /dev/shm. Here all arrays and tensors of a batch
go into one nameless block, whose descriptor is sent by SCM_RIGHTS. The receiver maps it and copies
nothing, and the worker reuses it when the batch is gone. Code that writes into a batch gets private
pages.
"""

import io
import os
import pickle
import secrets
import weakref
from collections import deque
from collections.abc import Callable
from multiprocessing import reduction
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from torch.utils.data import get_worker_info

from ffrecord._base import clock, recording
from ffrecord._base.memory_pool import Lender, borrow
from ffrecord._base.stage_times import Stages, numbers_of, since, summed
from ffrecord._order.epoch_order import EpochOrder, IndexBatch
from ffrecord._order.weights import Weights
from ffrecord.torch._subsets import as_ours, stats_of

_ALIGNMENT = 64
# Below this size a pipe is faster than sending a descriptor, which takes a handshake.
_SHARE_FROM_BYTES = 512 << 10


class _Origin(NamedTuple):
    """The owner of a batch, and the statistics of its worker."""

    token: str
    worker: int
    process: int
    numbers: dict[str, float]
    """Sums over the life of the process."""
    damaged: dict[int, str]
    """Records that were found since the last batch, with the reasons."""
    step: int | None
    """The position in the stream where the step begins, if it was requested."""
    sent_s: float
    """When it was sent, by `time.perf_counter`, which all processes of a machine share."""


class Told:
    """The work that the workers of one loader have done, as reported with their batches."""

    def __init__(self) -> None:
        """Start with nothing reported."""
        self.token = secrets.token_hex(8)
        self.workers: dict[int, dict[str, float]] = {}  # By process: sums over its life.
        self.past: dict[str, float] = {}  # Sums of the processes that have ended.
        self.received_s = 0.0  # The time that receiving the batches took.
        self.queued_s = 0.0  # The time between sending and receiving them.
        self.damaged: deque[dict[int, str]] = deque()  # Records not passed on yet.
        _told[self.token] = self

    def end_workers(self) -> None:
        """Note that all workers have ended; a process id may be used again."""
        self.past = self.sums()
        self.workers.clear()

    def sums(self) -> dict[str, float]:
        """The sums of all workers so far."""
        return summed([self.past, *self.workers.values()])


# By token. The receiver may be another loader that was given our collate function, as accelerate
# does; it gets the batch all the same.
_told: "weakref.WeakValueDictionary[str, Told]" = weakref.WeakValueDictionary()


class PlacedIndices(IndexBatch):
    """Indices for a worker that say where in the stream their step begins.

    They arrive as an `IndexBatch`, and the batch that the worker makes of them as a `Placed`: torch
    does not say which indices a batch belongs to, and may deliver batches in another order.
    """

    __slots__ = ("step",)

    def __init__(self, batch: IndexBatch, step: int) -> None:
        """The indices of `batch`, which has no view, of the step that begins at `step`."""
        super().__init__(batch.order, batch.position, len(batch))
        self.step = step

    def __reduce__(self) -> tuple[Any, ...]:
        return _unplaced, (self.order, self.position, len(self), self.step)


# The step of the batch that this worker makes now; it makes one batch at a time.
_step: int | None = None


def _unplaced(order: EpochOrder, position: int, size: int, step: int) -> IndexBatch:
    global _step
    _step = step
    return IndexBatch(order, position, size)


class Placed(NamedTuple):
    """A batch from a worker, and the position in the stream where its step begins."""

    position: int
    value: Any


class Crossing:
    """A batch on its way from a worker, with the work that the worker has done so far.

    Arrives as the batch itself; as a `Placed`, if its indices were `PlacedIndices`.
    """

    def __init__(
        self,
        value: Any,  # noqa: ANN401 - as collate_fn makes it
        token: str,
        worker: int,
        numbers: dict[str, float],
        damaged: dict[int, str],
        step: int | None = None,
    ) -> None:
        """Wrap `value`; `numbers` are sums over the worker's life, for the `Told` of `token`."""
        self.value = value
        self.origin = _Origin(token, worker, os.getpid(), numbers, damaged, step, 0.0)

    def __reduce__(self) -> tuple[Any, ...]:
        with _sending.timed("handover"):
            try:
                return self._reduced()
            except Exception as error:
                # multiprocessing would print it and drop the batch, and torch would wait for that.
                return _refuse, (f"{type(error).__name__}: {error}", self.origin.worker)

    def _reduced(self) -> tuple[Any, ...]:
        buffers: list[pickle.PickleBuffer] = []
        out = io.BytesIO()
        _Pickler(out, protocol=5, buffer_callback=buffers.append).dump(self.value)
        blocks = [np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers]
        sizes = [block.size for block in blocks]
        if sum(sizes) < _SHARE_FROM_BYTES:
            small = [bytearray(block) for block in blocks]
            return _receive_small, (out.getvalue(), small, self._sent())
        padded = [part for block in blocks for part in (block, _padding(block.size))]
        descriptor = reduction.DupFd(_lender.lend(padded).fd)
        return _receive, (out.getvalue(), descriptor, sizes, self._sent())

    def _sent(self) -> _Origin:
        return self.origin._replace(sent_s=clock.now())


class CrossingCollate:
    """Collates; in a worker process, also prepares the result for the other process."""

    def __init__(
        self,
        collate_fn: Callable[[Any], Any],
        stages: Stages,
        token: str,
        weights: Weights | None = None,
    ) -> None:
        """Collate with `collate_fn`, count its time, tell that of `token` in workers.

        They get the `weights` of a sampler with it, once: batches of indices do not carry them.
        """
        self.collate_fn = collate_fn
        self.weights = weights
        self._stages = stages
        self._token = token
        self._before: dict[str, float] = {}
        self._known: set[int] = set()  # Damaged records that were reported already.

    def reporting(self, stages: Stages, token: str) -> "CrossingCollate":
        """The same for another loader, with that loader's stages and token."""
        return CrossingCollate(self.collate_fn, stages, token, self.weights)

    def remember(self, dataset: Any) -> None:  # noqa: ANN401 - any dataset
        """Ignore earlier work of this process: a worker started by fork begins with its sums."""
        stats = stats_of(dataset)
        self._before, self._known = self._numbers(stats), set(stats.get("damaged", ()))

    def here(self, samples: Any) -> Any:  # noqa: ANN401 - as collate_fn makes it
        """Make one batch of `samples` that stays in this process, even if that is a worker."""
        with self._stages.timed("collate"):
            return self.collate_fn(samples)

    def __call__(self, samples: Any) -> Any:  # noqa: ANN401 - as collate_fn makes it
        """Make one batch of `samples`; in a worker, for the process that has started it."""
        value = self.here(samples)
        worker = get_worker_info()
        if worker is None:
            return value
        global _step
        step, _step = _step, None
        stats = stats_of(worker.dataset)
        numbers = since(self._numbers(stats), self._before)
        if not hasattr(as_ours(worker.dataset), "note_damaged"):
            return Crossing(value, self._token, worker.id, numbers, {}, step)
        # By index, because several workers may find the same damaged record.
        found = {i: what for i, what in stats.get("damaged", {}).items() if i not in self._known}
        self._known.update(found)
        numbers.pop("damaged_records", None)
        return Crossing(value, self._token, worker.id, numbers, found, step)

    def _numbers(self, stats: dict[str, Any]) -> dict[str, float]:
        sums = self._stages.sums() | _sending.sums()
        return {f"{stage}_s": seconds for stage, seconds in sums.items()} | numbers_of(stats)

    def __getstate__(self) -> dict[str, Any]:
        return {"collate_fn": self.collate_fn, "token": self._token, "weights": self.weights}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(stages=Stages(), **state)  # type: ignore[misc]


def staying(collate_fn: Any) -> Any:  # noqa: ANN401 - of a loader
    """Return what makes the same batches for the process that calls it.

    A loader that loads there may be in a worker of another one: in its dataset.
    """
    return collate_fn.here if isinstance(collate_fn, CrossingCollate) else collate_fn


# The time that this process spends on sending; a thread of torch's pickles the batches.
_sending = Stages()
_lender = Lender()


class _Pickler(pickle.Pickler):
    """Keeps the bytes of plain tensors out of the pickle, as pickle itself does with arrays."""

    def reducer_override(self, value: Any) -> Any:  # noqa: ANN401 - pickle's own
        plain = type(value) is torch.Tensor and value.layout is torch.strided
        if not plain or value.device.type != "cpu" or value.requires_grad or value.is_quantized:
            return NotImplemented
        whole = value.detach().resolve_conj().resolve_neg().contiguous()
        # One of a single element, or of none, is contiguous with any stride.
        flat = whole.as_strided((whole.numel(),), (1,))
        data = pickle.PickleBuffer(flat.view(torch.uint8).numpy())
        return _tensor, (data, str(value.dtype).removeprefix("torch."), tuple(value.shape))


def _tensor(data: Any, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:  # noqa: ANN401
    kind: torch.dtype = getattr(torch, dtype)
    if len(memoryview(data)) == 0:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(data, dtype=kind).reshape(shape)


def _refuse(reason: str, worker: int) -> NoReturn:
    raise RuntimeError(f"the batch of worker {worker} cannot be received: {reason}")


def _receive(
    pickled: bytes,
    descriptor: Any,  # noqa: ANN401 - multiprocessing's own
    sizes: list[int],
    origin: _Origin,
) -> Any:  # noqa: ANN401 - the batch
    begin = clock.now()
    block = borrow(descriptor.detach(), sum(size + -size % _ALIGNMENT for size in sizes))
    views, at = [], 0
    for size in sizes:
        views.append(block[at : at + size])
        at += size + -size % _ALIGNMENT
    return _arrived(pickled, views, origin, begin)


def _receive_small(pickled: bytes, buffers: list[bytearray], origin: _Origin) -> Any:  # noqa: ANN401
    return _arrived(pickled, buffers, origin, clock.now())


def _arrived(pickled: bytes, buffers: list[Any], origin: _Origin, begin: float) -> Any:  # noqa: ANN401
    value = pickle.loads(pickled, buffers=buffers)
    if (told := _told.get(origin.token)) is not None:
        told.workers[origin.process] = origin.numbers
        if origin.damaged:
            told.damaged.append(origin.damaged)
        told.received_s += clock.now() - begin
        told.queued_s += max(0.0, begin - origin.sent_s)
        recording.record(recording.TRANSFER, int(begin * 1e9), clock.now_ns())
    return value if origin.step is None else Placed(origin.step, value)


def _padding(size: int) -> Any:  # noqa: ANN401 - bytes of an array
    return np.zeros(-size % _ALIGNMENT, np.uint8)
