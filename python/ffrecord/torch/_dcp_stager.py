"""Staging for `dcp.async_save` in memory of a fixed size, which is kept from save to save."""

import copy
import ctypes
import gc
import os
import tempfile
import threading
import traceback
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch.distributed.checkpoint.staging import AsyncStager

from ffrecord import _ffrecord
from ffrecord._base import clock
from ffrecord.checkpoint._background import BusyError
from ffrecord.checkpoint._collector import without_collector
from ffrecord.checkpoint._layouts import is_distributed, is_dtensor, memory_of_tensor
from ffrecord.checkpoint._monitoring import ledger
from ffrecord.checkpoint._pieces import Fetcher, memory_at
from ffrecord.checkpoint._staging import TornStageError, room_for_copies
from ffrecord.checkpoint._state import join
from ffrecord.checkpoint._tensors import describe, plain_address
from ffrecord.torch._dcp_turns import note_copy

_ALIGNMENT = 4096
_SMALL = 64
_LARGE = 512 << 10
_NOTHING = np.empty(0, np.uint8)


class Stager(AsyncStager):
    """An `AsyncStager` of torch: copies of a state in at most `stage_bytes_max` bytes.

        stager = Stager(stage_bytes_max=8 << 30)
        dcp.async_save(state, storage_writer=writer, async_stager=stager)

    Any storage writer works. The copies are valid until the next call of `stage`, which waits until
    nobody uses them any more. Not for `AsyncCheckpointerType.PROCESS`, for which torch copies them
    once more.
    """

    _synchronize_after_execute = False  # Staging has ended when `stage` returns.

    def __init__(
        self,
        stage_bytes_max: int | None = None,
        *,
        spill: str | os.PathLike[str] | None = None,
        wait_s: float = 600.0,
    ) -> None:
        """Reserve addresses; pages are taken from the system as they are first used.

        Args:
            stage_bytes_max: memory for the copies of this rank, in bytes. None: half of the memory
                that is free at the first call of `stage`, divided by the processes of this machine.
            spill: a folder on a local disk. Bytes beyond `stage_bytes_max` are written to a file
                without name there, and read back by the writer: `stage` takes as long as the disk
                for the rest. None: a larger state is an error.
            wait_s: how long `stage` waits for the end of the save before, which uses the memory.
        """
        if stage_bytes_max is not None and stage_bytes_max < 0:
            raise ValueError(f"stage_bytes_max is {stage_bytes_max}, must not be negative")
        self.stage_bytes_max = stage_bytes_max
        self._spill = None if spill is None else os.path.abspath(spill)
        self._wait_s = wait_s
        self._arena: Any = None
        self._used: weakref.ref[Any] | None = None
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        """The arguments."""
        own = ("_arena", "_used", "_lock")
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _arena=None, _used=None, _lock=threading.Lock())

    @without_collector()
    def stage(self, state_dict: dict[str, Any], **kwargs: object) -> dict[str, Any]:
        """Return the state with copies of its tensors, all made when this returns.

        Raises:
            MemoryError: the tensors need more than `stage_bytes_max`, and there is no `spill`;
                nothing was copied.
            BusyError: the save before still uses the memory after `wait_s`.
            TornStageError: a tensor was changed during the copy.
            TypeError: a tensor cannot be copied; names its path.
        """
        with ledger().stall():
            note_copy()
            taken = _Taken()
            made = taken.value(state_dict, "")
            with self._lock:  # A second call waits until nobody uses the first's copies.
                self._await_arena()
                try:
                    taken.copy(*self._rooms(taken))
                except BaseException as error:
                    traceback.clear_frames(error.__traceback__)  # Else it keeps the memory.
                    raise
            return dict(made())

    def _await_arena(self) -> None:
        """Wait until no tensor of the call before is left."""
        used = None if self._used is None else self._used()
        if used is None:
            return
        freed = threading.Event()
        weakref.finalize(used, freed.set)
        del used
        end, wait_s = clock.now() + self._wait_s, 1.0
        gc.collect()  # Frees copies that are in circles.
        while not clock.wait(freed.wait, max(0.0, min(end - clock.now(), wait_s))):
            _clear_ended_frames(self._arena)
            gc.collect()
            if clock.now() >= end and not freed.is_set():
                raise BusyError("the save before still uses the staged copies: wait for its result")
            wait_s *= 2

    def _rooms(self, taken: "_Taken") -> tuple[list[np.ndarray[Any, Any]], object]:
        """Memory for each tensor: in the arena as long as there is room, the smallest first."""
        if self.stage_bytes_max is None:
            is_group = torch.distributed.is_available() and torch.distributed.is_initialized()
            ranks = torch.distributed.get_world_size() if is_group else 1
            self.stage_bytes_max = room_for_copies(ranks)
        places, used, left = _places(taken, self.stage_bytes_max)
        if left and self._spill is None:
            raise MemoryError(
                f"the state has {sum(taken.sizes)} bytes on this rank, {left} more than fit into "
                f"stage_bytes_max={self.stage_bytes_max}: raise it, or set spill to a folder"
            )
        if self._arena is None or self._arena.size_bytes < used:
            self._arena = None  # Its memory first.
            self._arena = _ffrecord.StagingArena(used)
        block: Any = None
        if used:
            block = np.asarray(_Block(self._arena, used))
            self._used = weakref.ref(block.base)
        file = _spill_file(self._spill, left) if left and self._spill is not None else None
        rooms, at = [], 0
        for place, size in zip(places, taken.sizes, strict=True):
            if not size:
                rooms.append(_NOTHING)
            elif place is None:
                assert file is not None
                rooms.append(file[at : at + size])
                at += size + -size % _SMALL
            else:
                rooms.append(block[place : place + size])
        return rooms, self._arena

    def synchronize_staging(self) -> None:
        """Do nothing: `stage` returns when it has ended."""

    def close(self) -> None:
        """Give the memory back once the last save has ended."""
        self._arena = self._used = None


class _Block:
    """Memory of an arena, as NumPy takes it; lives as long as any view of it."""

    def __init__(self, arena: Any, size_bytes: int) -> None:  # noqa: ANN401
        self.arena = arena
        self.__array_interface__ = {
            "version": 3,
            "shape": (size_bytes,),
            "typestr": "|u1",
            "data": (arena.address, False),
        }


def _clear_ended_frames(arena: Any) -> None:  # noqa: ANN401
    """Clear errors that somebody keeps, such as a save's future: they refer to the copies.

    Nobody can use what only frames refer to that have ended.
    """
    for each in gc.get_objects():
        if issubclass(type(each), BaseException) and each.__traceback__ is not None:
            frames = [frame for frame, _ in traceback.walk_tb(each.__traceback__)]
            if any(_reaches(gc.get_referents(frame), arena, 3) for frame in frames):
                traceback.clear_frames(each.__traceback__)


def _reaches(values: Iterable[Any], arena: Any, depth: int) -> bool:  # noqa: ANN401
    for value in values:
        if isinstance(value, torch.Tensor):
            local: Any = getattr(value, "_local_tensor", value)
            try:
                if arena.address <= local.data_ptr() < arena.address + arena.size_bytes:
                    return True
            except RuntimeError:
                continue  # It has no memory.
        elif depth and isinstance(value, dict | list | tuple):
            inside = value.values() if isinstance(value, dict) else value
            if _reaches(inside, arena, depth - 1):
                return True
    return False


def _places(taken: "_Taken", size_max: int) -> tuple[list[int | None], int, int]:
    """Where in the arena each tensor goes, how much is used, and how many bytes have no room."""
    places: list[int | None] = [None] * len(taken.sizes)
    used = left = 0
    for index in sorted(range(len(taken.sizes)), key=lambda i: taken.sizes[i]):
        size = taken.sizes[index]
        begin = used + -used % (_ALIGNMENT if size >= _LARGE else _SMALL)
        if begin + size <= size_max:
            places[index], used = begin, begin + size
        else:
            left += size + -size % _SMALL
    return places, used, left


def _spill_file(folder: str, size_bytes: int) -> np.ndarray[Any, Any]:
    """A file without a name, mapped: its pages go to the disk when memory is short."""
    with tempfile.TemporaryFile(prefix="ffrecord-stage-", dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, size_bytes)  # A full disk shows here.
        return np.memmap(file, np.uint8, "r+", shape=(size_bytes,))


class _Taken:
    """A state taken apart: its tensors, and how it is put together from others."""

    def __init__(self) -> None:
        self.tensors: list[Any] = []
        self.sizes: list[int] = []
        self.paths: list[str] = []
        self._staged: list[Any] = []
        self._known: dict[object, int] = {}  # Tensors under several names.

    def value(self, value: Any, path: str) -> Callable[[], Any]:  # noqa: ANN401
        """A function that makes the value again, from staged tensors."""
        if isinstance(value, torch.Tensor):
            return self._tensor(value, path)
        if is_distributed(value):
            raise TypeError(
                f"state: {path}: {type(value).__name__} cannot be staged: use a DTensor"
            )
        if isinstance(value, dict):
            items = {key: self.value(each, join(path, key)) for key, each in value.items()}
            return lambda: _like(value, {key: make() for key, make in items.items()})
        if isinstance(value, list | tuple):
            parts = [self.value(each, join(path, i)) for i, each in enumerate(value)]
            return lambda: _sequence_like(value, [make() for make in parts])
        kept = copy.deepcopy(value)
        return lambda: kept

    def _tensor(self, value: Any, path: str) -> Callable[[], Any]:  # noqa: ANN401
        if is_dtensor(value) or hasattr(value, "__tensor_flatten__"):
            names, context = value.__tensor_flatten__()
            parts = {each: self.value(getattr(value, each), join(path, each)) for each in names}
            shape, stride = value.shape, value.stride()
            remake = type(value).__tensor_unflatten__
            return lambda: remake({k: make() for k, make in parts.items()}, context, shape, stride)
        try:
            describe(value)
        except TypeError as error:
            raise TypeError(f"state: {path}: {error}") from None
        known = memory_of_tensor(value), type(value)
        index = self._known.setdefault(known, len(self.tensors))
        if index == len(self.tensors):
            self.tensors.append(value)
            self.sizes.append(value.numel() * value.element_size())
            self.paths.append(path)
        return lambda: self._staged[index]

    def copy(self, rooms: list[np.ndarray[Any, Any]], arena: Any) -> None:  # noqa: ANN401
        """Copy the tensors into this memory."""
        versions = [_version_of(tensor) for tensor in self.tensors]
        jobs = []
        for tensor, room, size in zip(self.tensors, rooms, self.sizes, strict=True):
            address, to = plain_address(tensor), room.ctypes.data if size else 0
            inside = arena.address <= to and to + size <= arena.address + arena.size_bytes
            if size and address is not None and inside:
                jobs.append((address, size, to - arena.address))
            elif size and address is not None:
                ctypes.memmove(to, address, size)
            elif size:
                Fetcher(tensor).copy_to(memory_at(to, size))
        arena.copy(jobs)
        for tensor, version, path in zip(self.tensors, versions, self.paths, strict=True):
            if _version_of(tensor) != version:
                raise TornStageError(f"{path} was changed while it was being copied")
        pairs = zip(self.tensors, rooms, strict=True)
        self._staged = [_staged_like(tensor, room) for tensor, room in pairs]


def _staged_like(tensor: Any, room: np.ndarray[Any, Any]) -> Any:  # noqa: ANN401
    if not room.size:
        made = torch.empty(tensor.shape, dtype=tensor.dtype)
    else:
        made = torch.from_numpy(room).view(tensor.dtype).view(tensor.shape)
    if type(tensor) is torch.nn.Parameter:
        return torch.nn.Parameter(made, tensor.requires_grad)
    return made.requires_grad_(tensor.requires_grad)


def _version_of(tensor: Any) -> int:  # noqa: ANN401
    return 0 if tensor.is_inference() else int(tensor._version)


def _like(value: Any, items: dict[Any, Any]) -> Any:  # noqa: ANN401
    """A dict of the type of another, without its own state."""
    return items if type(value) is dict else _filled(copy.copy(value), items)


def _filled(made: Any, items: dict[Any, Any]) -> Any:  # noqa: ANN401
    made.update(items)
    return made


def _sequence_like(value: Any, items: list[Any]) -> Any:  # noqa: ANN401
    if hasattr(value, "_fields"):
        return type(value)._make(items)
    if isinstance(value, torch.Size):
        return torch.Size(items)
    return items if isinstance(value, list) else tuple(items)
