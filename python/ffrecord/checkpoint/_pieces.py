"""Tensors without plain memory of their own (strided, or on a device), copied piece by piece.

Neither a save nor a load ever holds a second copy of one: pieces are as small as the caller asks.
"""

import ctypes
import math
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ffrecord import _ffrecord
from ffrecord.checkpoint._activity import now
from ffrecord.checkpoint._tensors import (
    ITEM_SIZES,
    Destination,
    as_array,
    describe,
    kind_of,
    movable,
    torch_if_imported,
)
from ffrecord.checkpoint._values import Kind

# Bytes that a load holds at a time for tensors that cannot be read into where they are.
WINDOW_SIZE = 64 << 20

# Bytes that a load reads at once.
BATCH_SIZE = 4 << 30

# A slice of a stored tensor and where it goes: key, offset and extent, and the array or tensor.
Wanted = tuple[str, Sequence[int], Sequence[int], Any]

_Request = tuple[str, list[int], list[int], int, int]  # With address and size in bytes.
_Index = tuple[slice, ...]
_NOTHING = np.empty(0, np.uint8)
_AS_THEY_ARE: Mapping[str, str] = types.MappingProxyType({})


def slices_between(shape: Sequence[int], begin: int, end: int) -> Iterator[_Index]:
    """Slices that are the elements from `begin` to before `end` of an array, in row-major order."""
    if begin >= end:
        return
    if not shape:
        yield ()
        return
    row = math.prod(shape[1:])
    first, last = -(-begin // row), end // row  # Whole rows.
    rest = tuple(shape[1:])
    if first > last:
        for index in slices_between(rest, begin - last * row, end - last * row):
            yield (slice(last, first), *index)
        return
    for index in slices_between(rest, begin % row, row) if begin % row else ():
        yield (slice(first - 1, first), *index)
    if first < last:
        yield (slice(first, last), *(slice(0, size) for size in rest))
    for index in slices_between(rest, 0, end % row):
        yield (slice(last, last + 1), *index)


def copy_bytes(value: Any, room: np.ndarray[Any, np.dtype[np.uint8]]) -> None:  # noqa: ANN401
    """Copies an array or tensor to memory of its size, row-major."""
    if not room.size:
        return
    if kind_of(value) is Kind.TORCH:
        torch = torch_if_imported()
        source = movable(value.detach())
        torch.from_numpy(room).view(source.dtype).view(source.shape).copy_(source)
    else:
        array = as_array(value)
        room.view(array.dtype.newbyteorder("=")).reshape(array.shape)[...] = array


def memory_at(address: int, size_bytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """That memory, to be written; the caller keeps it alive."""
    if size_bytes == 0:
        return _NOTHING
    memory = (ctypes.c_uint8 * size_bytes).from_address(address)
    return np.frombuffer(memoryview(memory).cast("B"), dtype=np.uint8)


class Fetcher:
    """Gives the extension the bytes of a tensor, in place of an address."""

    def __init__(self, value: Any, skip_bytes: int = 0) -> None:  # noqa: ANN401
        """Fetch what follows `skip_bytes`, on this thread's stream of a device."""
        dtype, self._shape = describe(value)
        self._item_size, self._skip_bytes = ITEM_SIZES[dtype], skip_bytes
        is_torch = kind_of(value) is Kind.TORCH
        self._value = value.detach() if is_torch else as_array(value)
        if is_torch and value.device.type != "cpu":  # Others copy, on streams of their own.
            module = getattr(torch_if_imported(), value.device.type, None)
            current_stream: Any = getattr(module, "current_stream", None)
            if current_stream is not None:
                current_stream(value.device).synchronize()

    def __call__(self, offset_bytes: int, address: int, size_bytes: int) -> None:
        """Copy bytes from `offset_bytes` on, whole elements."""
        self.copy_to(memory_at(address, size_bytes), offset_bytes)

    def copy_to(self, room: np.ndarray[Any, np.dtype[np.uint8]], offset_bytes: int = 0) -> None:
        """Fill `room`."""
        done, size_bytes = 0, room.size
        begin = self._skip_bytes + offset_bytes
        if begin % self._item_size or size_bytes % self._item_size:
            raise ValueError("a piece of a tensor cuts an element")
        first, end = begin // self._item_size, (begin + size_bytes) // self._item_size
        for index in slices_between(self._shape, first, end):
            part = self._value[index] if index else self._value
            size = math.prod(part.shape) * self._item_size
            copy_bytes(part, room[done : done + size])
            done += size


def read_into(
    reader: _ffrecord.CheckpointReader,
    wanted: Sequence[Wanted],
    dtypes: Mapping[str, str] = _AS_THEY_ARE,
) -> None:
    """Reads slices into arrays and tensors of any kind.

    Elements have the type that `dtypes` says is stored, and are converted; else the same type.
    """
    direct: list[_Request] = []
    pieces: list[Wanted] = []
    for key, offset, extent, value in wanted:
        if Destination.is_direct(value, dtypes.get(key)):
            memory = Destination(value).memory
            direct.append((key, list(offset), list(extent), memory.address, memory.size_bytes))
        else:
            item_size = ITEM_SIZES[dtypes.get(key) or describe(value)[0]]
            pieces += _cut(key, offset, extent, value, item_size)
    for part in _batches(direct):
        now(_reads(reader, [key for key, *_ in part]))
        reader.read(part)
    window: list[Wanted] = []
    size = 0
    for piece in pieces:
        more = math.prod(piece[2]) * ITEM_SIZES[dtypes.get(piece[0]) or describe(piece[3])[0]]
        if window and size + more > WINDOW_SIZE:
            _read_window(reader, window, dtypes)
            window, size = [], 0
        window.append(piece)
        size += more
    if window:
        _read_window(reader, window, dtypes)


def _batches(wanted: list[_Request]) -> Iterator[list[_Request]]:
    """Batches of about BATCH_SIZE or one tensor: between them ranks see that this one gets on."""
    begin = size = 0
    for end, (*_, size_bytes) in enumerate(wanted):
        if size and size + size_bytes > BATCH_SIZE:
            yield wanted[begin:end]
            begin, size = end, 0
        size += size_bytes
    yield wanted[begin:]


def _reads(reader: _ffrecord.CheckpointReader, keys: Sequence[str]) -> str:
    others = f" and {len(keys) - 1} others" if len(keys) > 1 else ""
    return f"reads {keys[0] if keys else 'nothing'}{others} of step {reader.commit[0]}"


def _cut(
    key: str,
    offset: Sequence[int],
    extent: Sequence[int],
    value: Any,  # noqa: ANN401
    item_size: int,
) -> Iterator[Wanted]:
    """Pieces of at most WINDOW_SIZE as they are stored."""
    count = math.prod(extent)
    at_once = WINDOW_SIZE // item_size
    if count <= at_once:
        yield key, offset, extent, value
        return
    for begin in range(0, count, at_once):
        for index in slices_between(extent, begin, min(begin + at_once, count)):
            starts = [a + part.start for a, part in zip(offset, index, strict=True)]
            yield key, starts, [part.stop - part.start for part in index], value[index]


def _read_window(
    reader: _ffrecord.CheckpointReader, window: Sequence[Wanted], dtypes: Mapping[str, str]
) -> None:
    now(_reads(reader, [key for key, *_ in window]))
    destinations = [Destination(value, dtypes.get(key)) for key, _, _, value in window]
    reader.read(
        [
            (key, list(offset), list(extent), to.memory.address, to.memory.size_bytes)
            for (key, offset, extent, _), to in zip(window, destinations, strict=True)
        ]
    )
    for destination in destinations:
        destination.finish()
