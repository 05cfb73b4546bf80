"""How a batch crosses from a worker process: its arrays in one block of memory, not in a pickle.

torch puts each tensor into a file of its own in /dev/shm. Here all arrays and tensors of a batch
go into one nameless block, whose descriptor crosses by SCM_RIGHTS; the receiver maps it and copies
nothing, and the worker uses it again when the batch is gone. Who writes into a batch gets pages of
its own.
"""

import io
import pickle
import secrets
import time
import weakref
from collections.abc import Callable
from multiprocessing import reduction
from typing import Any, NoReturn

import numpy as np
import torch
from torch.utils.data import get_worker_info

from ffrecord.lent_memory import Lender, borrow
from ffrecord.stages import Stages, numbers_of, since, summed

_ALIGNMENT = 64
# Below this a pipe is faster than a descriptor, which takes a handshake.
_SHARE_FROM_BYTES = 512 << 10

_Origin = tuple[str, int, dict[str, float]]  # Token, worker, numbers.


class Told:
    """What the workers of one loader have done, as their batches tell when they arrive."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.token = secrets.token_hex(8)
        self.workers: dict[int, dict[str, float]] = {}  # Sums over the life of each.
        self.past: dict[str, float] = {}  # Sums of those that have ended.
        self.received_s = 0.0  # What it took to get at the batches.
        _told[self.token] = self

    def end_workers(self) -> None:
        """Those that come next are others, with the same numbers."""
        self.past = self.sums()
        self.workers.clear()

    def sums(self) -> dict[str, float]:
        """Of all workers so far."""
        return summed([self.past, *self.workers.values()])


# By token. Who receives a batch may be another loader that was given our collate function, as
# accelerate does: it gets the batch all the same.
_told: "weakref.WeakValueDictionary[str, Told]" = weakref.WeakValueDictionary()


class Crossing:
    """A batch on its way from a worker, and what the worker has done so far; arrives as itself."""

    def __init__(self, value: Any, token: str, worker: int, numbers: dict[str, float]) -> None:  # noqa: ANN401
        """Wrap `value`; `numbers` are sums over the worker's life, for the `Told` of `token`."""
        self.value = value
        self.origin = token, worker, numbers

    def __reduce__(self) -> tuple[Any, ...]:
        with _sending.timed("handover"):
            try:
                return self._reduced()
            except Exception as error:
                # multiprocessing would print it and drop the batch, for which torch would wait.
                return _refuse, (f"{type(error).__name__}: {error}", self.origin[1])

    def _reduced(self) -> tuple[Any, ...]:
        buffers: list[pickle.PickleBuffer] = []
        out = io.BytesIO()
        _Pickler(out, protocol=5, buffer_callback=buffers.append).dump(self.value)
        blocks = [np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers]
        sizes = [block.size for block in blocks]
        if sum(sizes) < _SHARE_FROM_BYTES:
            small = [bytearray(block) for block in blocks]
            return _receive_small, (out.getvalue(), small, self.origin)
        padded = [part for block in blocks for part in (block, _padding(block.size))]
        descriptor = reduction.DupFd(_lender.lend(padded).fd)
        return _receive, (out.getvalue(), descriptor, sizes, self.origin)


class CrossingCollate:
    """Collates; in a worker process, makes the result ready to cross."""

    def __init__(self, collate_fn: Callable[[Any], Any], stages: Stages, token: str) -> None:
        """Collate with `collate_fn`, count its time, tell that of `token` in workers."""
        self.collate_fn = collate_fn
        self._stages = stages
        self._token = token
        self._before: dict[str, float] = {}

    def remember(self, dataset: Any) -> None:  # noqa: ANN401 - any dataset
        """What was done so far is none of the workers': those by fork begin with these sums."""
        self._before = self._numbers(dataset)

    def __call__(self, samples: Any) -> Any:  # noqa: ANN401 - as collate_fn makes it
        """Make one batch of `samples`."""
        with self._stages.timed("collate"):
            value = self.collate_fn(samples)
        worker = get_worker_info()
        if worker is None:
            return value
        numbers = since(self._numbers(worker.dataset), self._before)
        return Crossing(value, self._token, worker.id, numbers)

    def _numbers(self, dataset: Any) -> dict[str, float]:  # noqa: ANN401 - any dataset
        sums = self._stages.sums() | _sending.sums()
        numbers = {f"{stage}_s": seconds for stage, seconds in sums.items()}
        if (stats := getattr(dataset, "stats", None)) is not None:
            numbers |= numbers_of(stats())
        return numbers

    def __getstate__(self) -> dict[str, Any]:
        return {"collate_fn": self.collate_fn, "token": self._token}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(stages=Stages(), **state)  # type: ignore[misc]


# Of this process: what is sent is pickled by a thread of torch's.
_sending = Stages()
_lender = Lender()


class _Pickler(pickle.Pickler):
    """Leaves the bytes of plain tensors out of the pickle, as pickle itself does with arrays."""

    def reducer_override(self, value: Any) -> Any:  # noqa: ANN401 - pickle's own
        plain = type(value) is torch.Tensor and value.layout is torch.strided
        if not plain or value.device.type != "cpu" or value.requires_grad or value.is_quantized:
            return NotImplemented
        flat = value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
        if not flat.numel():  # Its stride may be one that cannot be viewed as bytes.
            flat = torch.empty(0, dtype=torch.uint8)
        data = pickle.PickleBuffer(flat.view(torch.uint8).numpy())
        return _tensor, (data, str(value.dtype).removeprefix("torch."), tuple(value.shape))


def _tensor(data: Any, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:  # noqa: ANN401
    kind: torch.dtype = getattr(torch, dtype)
    if len(memoryview(data)) == 0:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(data, dtype=kind).reshape(shape)


def _refuse(reason: str, worker: int) -> NoReturn:
    raise RuntimeError(f"the batch of worker {worker} cannot be handed over: {reason}")


def _receive(
    pickled: bytes,
    descriptor: Any,  # noqa: ANN401 - multiprocessing's own
    sizes: list[int],
    origin: _Origin,
) -> Any:  # noqa: ANN401 - the batch
    begin = time.perf_counter()
    block = borrow(descriptor.detach(), sum(size + -size % _ALIGNMENT for size in sizes))
    views, at = [], 0
    for size in sizes:
        views.append(block[at : at + size])
        at += size + -size % _ALIGNMENT
    return _arrived(pickled, views, origin, begin)


def _receive_small(pickled: bytes, buffers: list[bytearray], origin: _Origin) -> Any:  # noqa: ANN401
    return _arrived(pickled, buffers, origin, time.perf_counter())


def _arrived(pickled: bytes, buffers: list[Any], origin: _Origin, begin: float) -> Any:  # noqa: ANN401
    value = pickle.loads(pickled, buffers=buffers)
    token, worker, numbers = origin
    if (told := _told.get(token)) is not None:
        told.workers[worker] = numbers
        told.received_s += time.perf_counter() - begin
    return value


def _padding(size: int) -> Any:  # noqa: ANN401 - bytes of an array
    return np.zeros(-size % _ALIGNMENT, np.uint8)
