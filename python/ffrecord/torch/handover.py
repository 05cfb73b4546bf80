"""How a batch crosses from a worker process: its arrays in one sealed memfd, not in a pickle.

torch puts each tensor into a file of its own in /dev/shm. Here all arrays and tensors of a batch
go into one nameless block of memory, whose descriptor crosses by SCM_RIGHTS; the receiver maps it
and copies nothing. Who writes into a batch gets pages of its own.
"""

import io
import os
import pickle
import time
from collections.abc import Callable
from multiprocessing import reduction
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from ffrecord.shared_memory import map_copy_on_write, sealed_copy
from ffrecord.stages import Stages, numbers_of

_ALIGNMENT = 64
# Below this a pipe is faster than a descriptor, which takes a handshake.
_SHARE_FROM_BYTES = 512 << 10


class Crossing:
    """A batch of a worker, and what the worker has done so far."""

    def __init__(self, value: Any, worker: int, numbers: dict[str, float]) -> None:  # noqa: ANN401
        """Wrap `value`; `numbers` are sums over the worker's life."""
        self.value = value
        self.worker = worker
        self.numbers = numbers
        self.received_s = 0.0  # What it took to get at the value, in the process that received it.

    def pin_memory(self, device: Any = None) -> "Crossing":  # noqa: ANN401 - torch's own
        """For torch's thread that pins."""
        from torch.utils.data._utils.pin_memory import pin_memory

        self.value = pin_memory(self.value, device)  # type: ignore[no-untyped-call]
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        with _sending.timed("handover"):
            try:
                return self._reduced()
            except Exception as error:
                # multiprocessing would print it and drop the batch, for which torch would wait.
                return _refuse, (f"{type(error).__name__}: {error}", self.worker)

    def _reduced(self) -> tuple[Any, ...]:
        buffers: list[pickle.PickleBuffer] = []
        out = io.BytesIO()
        _Pickler(out, protocol=5, buffer_callback=buffers.append).dump(self.value)
        blocks = [np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers]
        sizes = [block.size for block in blocks]
        if sum(sizes) < _SHARE_FROM_BYTES:
            small = [bytearray(block) for block in blocks]
            return _receive_small, (out.getvalue(), small, self.worker, self.numbers)
        padded = [part for block in blocks for part in (block, _padding(block.size))]
        fd = sealed_copy(padded)
        try:
            descriptor = reduction.DupFd(fd)
        finally:
            os.close(fd)
        return _receive, (out.getvalue(), descriptor, sizes, self.worker, self.numbers)


class CrossingCollate:
    """Collates; in a worker process, makes the result ready to cross."""

    def __init__(self, collate_fn: Callable[[Any], Any], stages: Stages) -> None:
        """Collate with `collate_fn`, and count its time."""
        self._collate_fn = collate_fn
        self._stages = stages

    def __call__(self, samples: Any) -> Any:  # noqa: ANN401 - as collate_fn makes it
        """Make one batch of `samples`."""
        with self._stages.timed("collate"):
            value = self._collate_fn(samples)
        worker = get_worker_info()
        if worker is None:
            return value
        sums = self._stages.sums() | _sending.sums()
        numbers = {f"{stage}_s": seconds for stage, seconds in sums.items()}
        if (stats := getattr(worker.dataset, "stats", None)) is not None:
            numbers |= numbers_of(stats())
        return Crossing(value, worker.id, numbers)

    def __getstate__(self) -> dict[str, Any]:
        return {"_collate_fn": self._collate_fn}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_collate_fn"], Stages())  # type: ignore[misc]


# Of this process: what is sent is pickled by a thread of torch's.
_sending = Stages()


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


def _refuse(reason: str, worker: int) -> Crossing:
    raise RuntimeError(f"the batch of worker {worker} cannot be handed over: {reason}")


def _receive(
    pickled: bytes,
    descriptor: Any,  # noqa: ANN401 - multiprocessing's own
    sizes: list[int],
    worker: int,
    numbers: dict[str, float],
) -> Crossing:
    begin = time.perf_counter()
    fd = descriptor.detach()
    try:
        block = map_copy_on_write(fd, sum(size + -size % _ALIGNMENT for size in sizes))
    finally:
        os.close(fd)
    views, at = [], 0
    for size in sizes:
        views.append(block[at : at + size])
        at += size + -size % _ALIGNMENT
    crossing = Crossing(pickle.loads(pickled, buffers=views), worker, numbers)
    crossing.received_s = time.perf_counter() - begin
    return crossing


def _receive_small(
    pickled: bytes, buffers: list[bytearray], worker: int, numbers: dict[str, float]
) -> Crossing:
    return Crossing(pickle.loads(pickled, buffers=buffers), worker, numbers)


def _padding(size: int) -> Any:  # noqa: ANN401 - bytes of an array
    return np.zeros(-size % _ALIGNMENT, np.uint8)
