"""One file of the safetensors format, written from a checkpoint window by window.

While one window is written, the next is read. Memory is two windows, whatever the tensors take.
Nothing is left in the page cache, which training may need.
"""

import concurrent.futures
import errno
import fcntl
import json
import math
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ffrecord import _ffrecord
from ffrecord._base.shared_memory import write_all
from ffrecord.checkpoint._activity import now
from ffrecord.checkpoint._pieces import read_into, slices_between
from ffrecord.checkpoint._tensors import ITEM_SIZES, is_castable, torch_if_imported

METADATA = "__metadata__"

# The types of checkpoints that the format has too, and its names for them.
NAMES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "uint32": "U32",
    "int32": "I32",
    "uint64": "U64",
    "int64": "I64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
}

_WINDOW_SIZE = 32 << 20
_PAGE = 4096

_Room = np.ndarray[Any, np.dtype[np.uint8]]


class Entry(NamedTuple):
    """A tensor of a file.

    Attributes:
        name: in the file.
        key: in the checkpoint.
        stored: the type of its elements there.
        dtype: their type in the file.
        shape: of the whole tensor.
    """

    name: str
    key: str
    stored: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """In the file."""
        return math.prod(self.shape) * ITEM_SIZES[self.dtype]


def entry_of(name: str, key: str, stored: str, shape: Sequence[int], cast: str | None) -> Entry:
    """The entry of a tensor whose floating-point numbers become `cast`, if that is given.

    Raises:
        ValueError: the format has no such elements, or no tensors of such a name.
    """
    dtype = cast if cast is not None and is_castable(stored, cast) else stored
    if dtype not in NAMES:
        raise ValueError(f"{key}: safetensors has no {dtype}")
    if name == METADATA:
        raise ValueError(f"{key}: safetensors has metadata of that name, and no tensor")
    return Entry(name, key, stored, dtype, tuple(shape))


def front_of(entries: Sequence[Entry], metadata: Mapping[str, str]) -> bytes:
    """The bytes before the data; the data are those of the entries, in their order."""
    header: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    end = 0
    for entry in entries:
        begin, end = end, end + entry.size_bytes
        header[entry.name] = {
            "dtype": NAMES[entry.dtype],
            "shape": list(entry.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _PAGE)  # The data begin at a page.
    return len(text).to_bytes(8, "little") + text


class _Part(NamedTuple):
    """Elements of a tensor, and where their bytes are in a window."""

    entry: Entry
    first: int
    elements: int
    at: int

    @property
    def size_bytes(self) -> int:
        return self.elements * ITEM_SIZES[self.entry.dtype]


def write_file(
    reader: _ffrecord.CheckpointReader, front: bytes, entries: Sequence[Entry], descriptor: int
) -> None:
    """Write a whole file to a descriptor at its beginning.

    The data bypass the page cache if the file system allows it.

    Raises:
        CorruptionError: stored bytes fail a check; names tensor and file.
    """
    write_all(descriptor, [np.frombuffer(front, np.uint8)])
    size = sum(entry.size_bytes for entry in entries)
    rooms = [_room(min(size, _WINDOW_SIZE)) for _ in range(2)]
    before: concurrent.futures.Future[None] | None = None
    _set_direct(descriptor, True)
    with concurrent.futures.ThreadPoolExecutor(1, "ffrecord-export") as writer:
        try:
            for number, (parts, used) in enumerate(_windows(entries)):
                room, other = rooms[number % 2], rooms[1 - number % 2]
                _read(reader, parts, room)
                if before is not None:
                    before.result()
                whole = used - used % _PAGE
                other[: used - whole] = room[whole:used]
                before = writer.submit(write_all, descriptor, [room[:whole]])
                rest = other[: used - whole]
        finally:  # Also after a failure: nobody writes to the descriptor afterwards.
            if before is not None:
                concurrent.futures.wait([before])
    if before is not None:
        before.result()
        _set_direct(descriptor, False)
        write_all(descriptor, [rest])


def _set_direct(descriptor: int, direct: bool) -> None:
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    flags = flags | os.O_DIRECT if direct else flags & ~os.O_DIRECT
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
    except OSError:
        if not direct:
            raise


def _room(size_bytes: int) -> _Room:
    return np.frombuffer(mmap.mmap(-1, max(size_bytes, 1)), np.uint8)


def _windows(entries: Sequence[Entry]) -> Iterator[tuple[list[_Part], int]]:
    """The parts of each window, and where they end in it.

    Only whole pages of a window are written; the next one begins with what is left of it.
    """
    parts: list[_Part] = []
    used = 0
    for entry in entries:
        item_size, total, first = ITEM_SIZES[entry.dtype], math.prod(entry.shape), 0
        while first < total:
            count = min(total - first, (_WINDOW_SIZE - used) // item_size)
            if count == 0:
                yield parts, used
                parts, used = [], used % _PAGE
                continue
            parts.append(_Part(entry, first, count, used))
            used, first = used + count * item_size, first + count
    if parts:
        yield parts, used


def _read(reader: _ffrecord.CheckpointReader, parts: Sequence[_Part], room: _Room) -> None:
    now(f"exports {parts[0].entry.name} of step {reader.commit[0]}")
    requests = []
    for part in parts:
        entry, memory = part.entry, room[part.at : part.at + part.size_bytes]
        done = 0
        for index in slices_between(entry.shape, part.first, part.first + part.elements):
            offset = [each.start for each in index]
            extent = [each.stop - each.start for each in index]
            size = math.prod(extent) * ITEM_SIZES[entry.dtype]
            piece = memory[done : done + size]
            done += size
            if entry.dtype == entry.stored:
                requests.append((entry.key, offset, extent, piece.ctypes.data, size))
            else:
                to = _typed(piece, entry.dtype, extent)
                read_into(reader, [(entry.key, offset, extent, to)], {entry.key: entry.stored})
    reader.read(requests)


def _typed(memory: _Room, dtype: str, shape: Sequence[int]) -> object:
    torch = torch_if_imported()
    if torch is None:
        raise TypeError(f"conversion to {dtype} needs torch: import it first")
    return torch.from_numpy(memory).view(getattr(torch, dtype)).view(torch.Size(shape))


def check_folder(folder: str) -> None:
    """Before what may take long, or that a dry run promises."""
    if not os.path.isdir(folder):
        raise FileNotFoundError(errno.ENOENT, "there is no such folder; make it first", folder)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, "the folder may not be written to", folder)
