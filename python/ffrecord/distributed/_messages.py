"""Sends and receives of a process group, in torch.distributed's form."""

import os
from typing import Any

import torch

from ffrecord.distributed._any_source import AnySource
from ffrecord.distributed._engine_arrays import contiguous_bytes, in_place
from ffrecord.distributed._group import as_bytes
from ffrecord.distributed._lines import Lines
from ffrecord.distributed._works import Coalesced, FromAny, Started, Transferred, ended, profiled


class Messages:
    """The messages between this rank and others. Thread-safe."""

    def __init__(
        self,
        store: Any,  # noqa: ANN401  # A torch.distributed.Store.
        settings: dict[str, Any],
        coalesced: Coalesced,
    ) -> None:
        """Connect nothing yet. The ranks of the group with these settings meet at the store."""
        self._rank, self._size = settings["rank"], settings["world_size"]
        self._coalesced = coalesced
        self._owner = os.getpid()
        self._lines = Lines(store, settings)
        self._any_source = AnySource(self._lines)

    def transfer(
        self, name: str, tensors: list[torch.Tensor], rank: int, tag: int | None
    ) -> Started:
        """Start to send a tensor to a rank, or to receive one; `name` is "send" or "recv"."""
        self._check_process()
        try:
            (tensor,) = tensors
            if not 0 <= rank < self._size or rank == self._rank:
                raise ValueError(f"rank {self._rank} of {self._size} has no line to rank {rank}")
            with torch.inference_mode():  # As in ended().
                if name == "send":
                    array, back, pass_on = contiguous_bytes(tensor), None, self._lines.send
                else:
                    place, back = in_place(tensor)
                    array, pass_on = as_bytes(place), self._lines.receive
        except (TypeError, ValueError) as error:
            raise type(error)(f"{name}: {error}") from error
        ends = profiled(name)
        work = Transferred(pass_on(array, rank, tag or 0), tensors, back)
        if ends is None and not self._coalesced.is_open:
            return work
        return self._noted(work, work.get_future(), ends)

    def receive_any(self, tensors: list[torch.Tensor], tag: int | None) -> Started:
        """Start to receive a tensor from whichever rank sends one with this tag."""
        self._check_process()
        try:
            (tensor,) = tensors
            if self._size == 1:
                raise ValueError("the group has no other rank")
            with torch.inference_mode():
                place, back = in_place(tensor)
        except (TypeError, ValueError) as error:
            raise type(error)(f"recv: {error}") from error
        ends = profiled("recv")
        asked = self._any_source.receive(as_bytes(place), tag or 0)
        future = ended([asked.future], tensors, back)
        return self._noted(FromAny(future, lambda: asked.source), future, ends)

    def stop(self) -> None:
        """Leave all lines; pending operations fail."""
        if os.getpid() == self._owner:  # A forked child has no connections.
            self._any_source.stop()
            self._lines.stop()

    def _noted(
        self,
        work: Started,
        future: torch.futures.Future[Any],
        ends: Any,  # noqa: ANN401  # An event of the profiler, or none.
    ) -> Started:
        """The work, known to the profiler and to operations that end together."""
        if ends is not None:
            ends._call_end_callbacks_on_future(future)
        self._coalesced.add(future)
        return work

    def _check_process(self) -> None:
        if os.getpid() != self._owner:
            raise RuntimeError(
                f"this process was forked from process {self._owner}, which owns the group:"
                " make a new one here"
            )
