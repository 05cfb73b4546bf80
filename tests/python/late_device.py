"""An accelerator in host memory whose streams are as late as they may be.

Each stream is a thread that runs its work in order, some time after it was given. A copy reads its
source when it runs, not when it is asked for. Memory of a copy that nobody has any more is used
again at once, unless a stream was noted for it: then once that stream has come past the work which
it had by then. What is overwritten is filled with a pattern first, so that whoever reads too early
or too late sees it.
"""

import queue
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ffrecord.torch._placing import Streams

NOTHING_YET = 0x5A
DELAY_S = 0.004


class LateStream:
    """Runs what it is given in order, each after a random pause."""

    def __init__(self, seed: int) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._random = random.Random(seed)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def give(self, work: Callable[[], None]) -> None:
        """Run it after all that was given before."""
        self._work.put(work)

    def record_event(self) -> "LateEvent":
        """Mark the place that the stream will have reached with what it was given."""
        event = LateEvent()
        self.give(event.happened.set)
        return event

    def wait_event(self, event: "LateEvent") -> None:
        """Go on once the event has happened."""
        self.give(lambda: _require(event.happened.wait(30)))

    def end(self) -> None:
        """Run what is left, and end the thread."""
        self._work.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            time.sleep(self._random.random() * DELAY_S)  # The lateness that this is about.
            work()


class LateEvent:
    """A place in a stream."""

    def __init__(self) -> None:
        self.happened = threading.Event()

    def query(self) -> bool:
        """Whether it has happened."""
        return self.happened.is_set()

    def synchronize(self) -> None:
        """Wait until it has."""
        _require(self.happened.wait(30))


class LateStreams(Streams):
    """Copies on one late stream; the consumer's kernels run on another."""

    def __init__(self, device: torch.device, seed: int = 1) -> None:
        self.device = device
        self._copies = LateStream(seed)
        self.consumer = LateStream(seed + 1)
        self.copy_count = 0
        self.waits = True
        """Whether `hand_over` does what it should."""
        self._free: list[torch.Tensor] = []
        self._lock = threading.Lock()
        self._noted: dict[int, bool] = {}  # By address, of what was handed over.

    @contextmanager
    def copying(self) -> Iterator[None]:
        """Nothing to do."""
        yield

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy the bytes later."""
        memory = self._taken(tensor)
        made = memory.view(tensor.shape)
        self.copy_count += 1
        # Of the bytes, not of the tensor: its owner may give them to somebody else.
        source = torch.frombuffer(_bytes_of(tensor), dtype=tensor.dtype).view(tensor.shape)
        self._copies.give(lambda: _copied(made, source))
        handle = made.view(made.shape)  # The consumer's; the memory is kept here.
        address = memory.data_ptr()
        self._noted[address] = False
        weakref.finalize(handle, self._gone, memory, address)
        return handle

    def mark(self) -> LateEvent:
        """Mark a place behind the copies."""
        return self._copies.record_event()

    def hand_over(self, event: Any, tensors: list[torch.Tensor]) -> None:  # noqa: ANN401
        """Let the consumer wait, and keep the memory until it has read it."""
        if not self.waits:
            return
        self.consumer.wait_event(event)
        for tensor in tensors:
            self._noted[tensor.data_ptr()] = True

    def end(self) -> None:
        """End both streams."""
        self._copies.end()
        self.consumer.end()

    def _taken(self, like: torch.Tensor) -> torch.Tensor:
        with self._lock:
            for i, memory in enumerate(self._free):
                if memory.numel() == like.numel() and memory.dtype == like.dtype:
                    return self._free.pop(i)
        return torch.full((like.numel(),), NOTHING_YET, dtype=like.dtype)

    def _gone(self, memory: torch.Tensor, address: int) -> None:
        def free() -> None:
            memory.fill_(NOTHING_YET)
            with self._lock:
                self._free.append(memory)

        if self._noted[address]:
            self.consumer.give(free)
        else:
            free()


class ReusedMemory:
    """Batches of one int64 tensor each, whose memory is overwritten as soon as nobody has them."""

    def __init__(self, count: int, size: int = 512) -> None:
        self.count = count
        self.size = size

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for i in range(self.count):
            block = bytearray(8 * self.size)
            values = torch.frombuffer(memoryview(block), dtype=torch.int64)
            values.fill_(i)
            batch = Held({"x": values, "name": f"batch {i}"})
            weakref.finalize(batch, _overwrite, block)
            yield i, batch
            del batch, values

    def close(self) -> None:
        """As a generator."""


class Held(dict[str, Any]):
    """A dict that can be watched."""


def _overwrite(block: bytearray) -> None:
    torch.frombuffer(memoryview(block), dtype=torch.int64).fill_(NOTHING_YET)


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    return memoryview(tensor.numpy()).cast("B")


def _copied(made: torch.Tensor, source: torch.Tensor) -> None:
    made.copy_(source)


def _require(has_happened: bool) -> None:
    assert has_happened, "an event that never came"
