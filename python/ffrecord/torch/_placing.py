"""Batches on an accelerator: copied one ahead, and handed over without waiting.

Names no kind of device. PyTorch's module of the device (`torch.cuda`, `torch.xpu`, ...) has its
streams and events; a device whose module has none, such as MPS, is copied to in the order of the
program.
"""

import array
import copy
import dataclasses
from collections import UserDict, UserList, deque
from collections.abc import (
    Callable,
    Iterable,
    Iterator,
    Mapping,
    MutableSequence,
)
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch

from ffrecord._base import recording
from ffrecord._read.batch import Batch
from ffrecord.torch._profiling import profiled


def accelerator(wanted: torch.device | str | None) -> torch.device | None:
    """The device that batches are to be copied to; None if they stay where they are.

    Raises:
        ValueError: PyTorch has no such device on this machine.
    """
    device = torch.device("cpu" if wanted is None else wanted)
    if device.type == "cpu":
        return None
    if _is_there(device):
        return device
    found = current_accelerator()
    raise ValueError(
        f"device is {wanted}: PyTorch {torch.__version__} finds no such device on this machine; "
        f"it finds {found or 'no accelerator, so leave device out'}"
    )


def _is_there(device: torch.device) -> bool:
    module = getattr(torch, device.type, None)  # Without importing what a kind may want.
    is_available = getattr(module, "is_available", None)
    if is_available is None or not is_available():
        return False
    count: Any = getattr(module, "device_count", None)
    return device.index is None or (count is not None and device.index < count())


def current_accelerator() -> torch.device | None:
    """The result of `torch.accelerator.current_accelerator()`; None without an accelerator."""
    if hasattr(torch, "accelerator"):
        found: torch.device | None = torch.accelerator.current_accelerator(check_available=True)
        return found
    return torch.device("cuda") if torch.cuda.is_available() else None  # Before 2.6.


class Streams:
    """The streams of a device, and copies on them."""

    def __init__(self, device: torch.device) -> None:
        """Make the stream for copies."""
        self.device = device
        self._module: Any = getattr(torch, device.type, None)
        stream: Any = getattr(self._module, "Stream", None)
        self._copies: Any = None if stream is None else stream(device)

    def copying(self) -> AbstractContextManager[Any]:
        """Copies in the block run on the stream for copies."""
        if self._copies is None:
            return nullcontext()
        context: AbstractContextManager[Any] = self._module.stream(self._copies)
        return context

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy on the device, which is there once the stream has come so far.

        It may be read from `tensor` until then, if that is page-locked.
        """
        return tensor.to(self.device, non_blocking=self._copies is not None)

    def mark(self) -> Any:  # noqa: ANN401 - an event of the device's module
        """An event behind what is on the stream for copies now; None if nothing has to be awaited.

        Its `query()` says whether it has come, `synchronize()` waits for it.
        """
        return None if self._copies is None else self._copies.record_event()

    def hand_over(self, event: Any, tensors: list[torch.Tensor]) -> None:  # noqa: ANN401
        """Let the caller's stream go on behind `event`, and keep the tensors' memory for it."""
        if event is None:
            return
        consumer = self._module.current_stream(self.device)
        consumer.wait_event(event)
        for tensor in tensors:
            for part in parts_of(tensor):
                # The next copy must not reuse its memory while the consumer's kernels read it.
                part.record_stream(consumer)


def parts_of(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Those that have its memory: of a sparse one, which has none of its own, several."""
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return (tensor,)


# Batches whose copies have not ended, the one that is handed over last among them.
_UNDER_WAY_MAX = 3


class _Copied(NamedTuple):
    """A batch on its way to the device."""

    value: Any
    """The consumer's value,"""
    source: Any
    """what it is copied from,"""
    event: Any
    """and when that has ended."""


def on_device(
    batches: Iterator[tuple[Any, Any]], device: torch.device, streams: Streams | None = None
) -> Iterator[tuple[Any, Any]]:
    """Copy batches to a device, one ahead; each comes with something that is passed on as it is.

    Copies overlap with the consumer's kernels if the batches are pinned. An error is raised after
    the batches before it.
    """
    streams = streams or Streams(device)
    ahead: deque[tuple[Any, _Copied]] = deque()
    # Whose bytes may still be read: memory of ours that is used again must not be freed before.
    sources: deque[_Copied] = deque()
    failure: Exception | None = None
    try:
        while failure is None:
            try:
                place, batch = next(batches)
                copied = _begin(batch, streams)
            except StopIteration:
                break
            except Exception as error:
                failure = error
                break
            sources.append(copied)
            ahead.append((place, copied))
            del batch, copied
            if len(ahead) == 2:
                yield _end(ahead.popleft(), streams)
            _let_go(sources)
        while ahead:
            yield _end(ahead.popleft(), streams)
        if failure is not None:
            raise failure
    finally:
        for copied in sources:
            if copied.event is not None:
                copied.event.synchronize()
        failure = None  # It refers to this frame.
        close = getattr(batches, "close", None)
        if close is not None:
            close()


def _let_go(sources: deque[_Copied]) -> None:
    """Drop those that are copied; wait for the oldest, if the device is far behind."""
    while sources:
        event = sources[0].event
        if event is not None and not event.query():
            if len(sources) <= _UNDER_WAY_MAX:
                return
            event.synchronize()
        sources.popleft()


def _begin(batch: Any, streams: Streams) -> _Copied:  # noqa: ANN401 - as the batch is built
    with profiled("copy to the device", recording.TRANSFER), streams.copying():
        try:
            value = moved(batch, streams)
        except Exception:
            # Copies of its other tensors may still read its memory.
            if (event := streams.mark()) is not None:
                event.synchronize()
            raise
        return _Copied(value, batch, streams.mark())


def _end(entry: tuple[Any, _Copied], streams: Streams) -> tuple[Any, Any]:
    place, copied = entry
    streams.hand_over(copied.event, list(tensors_of(copied.value)))
    return place, _complete(copied.value, streams.device)


def moved(value: Any, streams: Streams) -> Any:  # noqa: ANN401 - as the batch is built
    """The same structure with its tensors on the device."""
    if isinstance(value, torch.Tensor):
        return streams.copy(value)
    if _moves_itself(value):
        return value
    return _rebuilt(value, lambda item: moved(item, streams))


def _complete(value: Any, device: torch.device) -> Any:  # noqa: ANN401 - as the batch is built
    """The same structure, with the objects in it that move themselves on the device.

    Nobody else knows their tensors, so their copies run on the consumer's stream: they need no
    event there, and their memory is kept for it.
    """
    if _moves_itself(value):
        return value.to(device)
    return _rebuilt(value, lambda item: _complete(item, device))


def _moves_itself(value: Any) -> bool:  # noqa: ANN401 - as the batch is built
    """Whether it is an object with a method `to`, such as a PackedSequence or a TensorDict.

    The BatchEncoding of transformers is a UserDict whose `to` changes it, and waits.
    """
    known = (torch.Tensor, dict, UserDict, type)
    return not isinstance(value, known) and callable(getattr(value, "to", None))


def _rebuilt(value: Any, change: Callable[[Any], Any]) -> Any:  # noqa: ANN401 - as the batch is built
    """The same container with changed items; any other value as it is.

    The old one is left alone: until the copies have ended, it keeps the memory they read.
    """
    if isinstance(value, Mapping):
        return _mapping_like(value, {key: change(item) for key, item in value.items()})
    if isinstance(value, tuple):
        return _tuple_like(value, [change(item) for item in value])
    if isinstance(value, MutableSequence) and not isinstance(value, _NO_CONTAINERS):
        return _list_like(value, [change(item) for item in value])
    return _record_like(value, change) if is_record(value) else value


# Sequences of numbers.
_NO_CONTAINERS = (bytearray, array.array)


def is_record(value: Any) -> bool:  # noqa: ANN401 - as the batch is built
    """Whether it is an object of a dataclass."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _fields_of(value: Any) -> list[str]:  # noqa: ANN401 - as the batch is built
    return [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]


def _record_like(value: Any, change: Callable[[Any], Any]) -> Any:  # noqa: ANN401 - its type
    """An object of the same dataclass; the same object if nothing in it changes."""
    changed = {}
    for name in _fields_of(value):
        found = getattr(value, name)
        if (item := change(found)) is not found:
            changed[name] = item
    if not changed:
        return value
    made = copy.copy(value)
    for name, item in changed.items():
        object.__setattr__(made, name, item)  # It may be frozen.
    return made


def _mapping_like(value: Mapping[Any, Any], items: dict[Any, Any]) -> Any:  # noqa: ANN401 - its type
    """A mapping of the same type, if one can be made that shares nothing with `value`.

    Not by `update`: that of a Counter adds, and that of the outputs of transformers refuses.
    """
    if type(value) is dict or not isinstance(value, dict | UserDict):
        return items  # The copy of another kind may be the same memory.
    try:
        made = copy.copy(value)
        for key, item in items.items():
            made[key] = item
    except TypeError:  # It cannot be changed.
        return items
    return made


def _tuple_like(value: tuple[Any, ...], items: list[Any]) -> Any:  # noqa: ANN401 - its type
    """A tuple of the same type, whatever that wants to be made of."""
    if type(value) is tuple:
        return tuple(items)
    try:
        return tuple.__new__(type(value), items)
    except TypeError:  # One of C, such as torch.return_types.max.
        return type(value)(items)


def _list_like(value: MutableSequence[Any], items: list[Any]) -> Any:  # noqa: ANN401 - its type
    if not isinstance(value, list | deque | UserList):
        return items  # The copy of another kind may be the same memory.
    made = copy.copy(value)
    for place, item in enumerate(items):
        made[place] = item
    return made


def tensors_of(value: Any) -> Iterator[torch.Tensor]:  # noqa: ANN401 - as the batch is built
    """All tensors in a structure that `moved` moves."""
    if isinstance(value, torch.Tensor):
        yield value
    elif _moves_itself(value):
        return
    else:
        for item in _items_of(value):
            yield from tensors_of(item)


def _items_of(value: Any) -> Iterable[Any]:  # noqa: ANN401 - as the batch is built
    """The values that `_rebuilt` changes."""
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, tuple | MutableSequence) and not isinstance(value, _NO_CONTAINERS):
        return value
    return [getattr(value, name) for name in _fields_of(value)] if is_record(value) else ()


def size_of(value: Any) -> int:  # noqa: ANN401 - as the batch is built
    """Bytes of the tensors, arrays and batches in a structure."""
    if isinstance(value, Batch):
        return value.slab.nbytes + size_of(dict(value.decoded))
    if isinstance(value, torch.Tensor) and value.layout not in (torch.strided, torch.jagged):
        # A sparse one does not tell: it has a value and its indices for each element that is there.
        return value._nnz() * (value.element_size() + 8 * value.dim())
    if isinstance(value, torch.Tensor | np.ndarray):
        return value.nbytes
    return sum(map(size_of, _items_of(value)))
