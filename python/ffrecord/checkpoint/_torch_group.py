"""The ranks of a process group of torch; only imported where torch is."""

import contextlib
import datetime
import functools
import threading
import weakref
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from ffrecord._base import clock
from ffrecord.checkpoint._activity import Activity
from ffrecord.checkpoint._peer_error import PeerError
from ffrecord.checkpoint._waiting import board_of, silent_ranks

# Groups that Group.background has made; they go with their process groups.
_background_groups: weakref.WeakKeyDictionary[dist.ProcessGroup, dist.ProcessGroup] = (
    weakref.WeakKeyDictionary()
)


class Group:
    """The ranks of a process group, as `ffrecord.checkpoint` expects them.

    Gathers small messages as byte tensors: on the CPU if the group has a backend for it, such as
    Gloo, else on the current accelerator. All ranks of the group must make and use it alike.
    """

    def __init__(
        self, process_group: dist.ProcessGroup | None = None, *, timeout_s: float | None = None
    ) -> None:
        """Wrap a process group. Requires an initialised process group.

        Args:
            process_group: by default all ranks.
            timeout_s: how long a rank waits for a rank that makes no progress, in a save or load.
                A rank that goes on writing or reading is waited for, as long as the timeout of
                the process group allows. The error names the ranks, and what they did when they
                were last heard of. On the CPU only; on an accelerator, how long a rank waits
                for the others in each round. None: the timeout of the process group, 30 minutes
                for Gloo by default.
        """
        if timeout_s is not None and not timeout_s > 0:
            raise ValueError(f"timeout_s is {timeout_s}, must be more than 0")
        self._group = process_group
        self._timeout_s = timeout_s
        self._device = self._device_of(process_group)

    @property
    def rank(self) -> int:
        """The rank of this process within the group, from 0."""
        return dist.get_rank(self._group)

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return dist.get_world_size(self._group)

    @property
    def members(self) -> list[int]:
        """The ranks of the job that are in the group: with DTensors, each of them may write."""
        return dist.get_process_group_ranks(self._group or dist.group.WORLD)

    def watch(self, activity: Activity) -> contextlib.AbstractContextManager[None]:
        """Tell the other ranks meanwhile what this one does, if there is a limit."""
        if self._timeout_s is None:
            return contextlib.nullcontext()
        return board_of(self._group, self._timeout_s).show(activity)

    def all_gather(self, mine: bytes) -> list[bytes]:
        """The bytes of every rank, in rank order.

        Raises:
            PeerError: ranks did not answer; names them.
        """
        with contextlib.ExitStack() as waiting:
            verdict = None
            if self._timeout_s is not None:
                board = board_of(self._group, self._timeout_s)
                verdict = functools.partial(board.verdict, waiting.enter_context(board.waiting()))
            return self._gather(mine, verdict)

    def _gather(self, mine: bytes, verdict: Callable[[], str | None] | None) -> list[bytes]:
        size = torch.tensor([len(mine)], dtype=torch.int64, device=self._device)
        sizes = [torch.zeros_like(size) for _ in range(self.size)]
        self._end(dist.all_gather(sizes, size, group=self._group, async_op=True), verdict)
        counts = [int(each.item()) for each in sizes]
        # Gathered tensors are equal in size; what is behind a rank's bytes is cut off again.
        padded_size = _padded_size(counts)
        padded = torch.zeros(padded_size, dtype=torch.uint8)
        beginning = mine[:padded_size]
        if beginning:
            padded[: len(beginning)] = torch.frombuffer(bytearray(beginning), dtype=torch.uint8)
        padded = padded.to(self._device)
        gathered = [torch.empty_like(padded) for _ in range(self.size)]
        self._end(dist.all_gather(gathered, padded, group=self._group, async_op=True), verdict)
        found = [
            each[:count].cpu().numpy().tobytes()
            for each, count in zip(gathered, counts, strict=True)
        ]
        for rank, count in enumerate(counts):
            if count > padded_size:
                found[rank] += self._rest(mine[padded_size:], rank, count - padded_size, verdict)
        return found

    def _rest(
        self, mine: bytes, rank: int, count: int, verdict: Callable[[], str | None] | None
    ) -> bytes:
        """The rest of one rank's message, to all."""
        if rank == self.rank:
            rest = torch.frombuffer(bytearray(mine), dtype=torch.uint8).to(self._device)
        else:
            rest = torch.empty(count, dtype=torch.uint8, device=self._device)
        source = dist.get_global_rank(self._group or dist.group.WORLD, rank)  # type: ignore[arg-type]
        self._end(dist.broadcast(rest, source, group=self._group, async_op=True), verdict)
        return bytes(rest.cpu().numpy().tobytes())

    def _end(self, work: dist.Work | None, verdict: Callable[[], str | None] | None) -> None:
        """Wait for a collective."""
        assert work is not None  # This rank is in the group.
        try:
            if verdict is not None and self._device.type == "cpu":
                _wait(work, verdict, board_of(self._group, self._timeout_s or 0).look_s)
            elif self._timeout_s is not None:
                work.wait(datetime.timedelta(seconds=self._timeout_s))
            work.wait()
        except RuntimeError as error:
            if isinstance(error, PeerError):
                raise
            silent = silent_ranks(self._group)
            if not silent:
                if silent is None:
                    error.add_note(
                        "Ranks did not answer, and which ones is not known: neither does the store "
                        "of torch.distributed, which is in rank 0 or in torchrun."
                    )
                raise
            raise PeerError(
                f"rank {', '.join(map(str, silent))} of {self.size} did not answer: it has ended, "
                f"is stopped, or takes longer ({error})",
                type(error).__name__,
            ) from error

    def background(self) -> "Group":
        """The same ranks in a Gloo group of its own, for use by another thread.

        The first call makes it; all ranks must make that call.
        """
        key = self._group or dist.group.WORLD
        if key is None:
            raise RuntimeError("torch.distributed is not initialised")
        if key not in _background_groups:
            made = dist.new_group(
                dist.get_process_group_ranks(key),
                backend="gloo",
                use_local_synchronization=key is not dist.group.WORLD,
            )
            _background_groups[key] = made
        return Group(_background_groups[key], timeout_s=self._timeout_s)

    @staticmethod
    def _device_of(process_group: dist.ProcessGroup | None) -> torch.device:
        backends = dist.get_backend_config(process_group or dist.group.WORLD)
        if "cpu:" in str(backends) or dist.get_backend(process_group) in ("gloo", "mpi"):
            return torch.device("cpu")
        return torch.device("cuda", torch.cuda.current_device())


# A larger rest is sent by one rank after the other in place of padding.
_BROADCAST_SIZE_MIN = 64 << 10


def _padded_size(counts: Sequence[int]) -> int:
    """How much of each rank is gathered at once; the rest of the few that have more, one by one."""
    return min(
        sorted({max(1, *counts), *(max(1, count) for count in counts)}),
        key=lambda size: (
            len(counts) * size
            + sum(count - size + _BROADCAST_SIZE_MIN for count in counts if count > size)
        ),
    )


def _wait(work: dist.Work, verdict: Callable[[], str | None], look_s: float) -> None:
    """Until the work has ended, or it is not to be waited for any more."""
    ended = threading.Event()
    work.get_future().add_done_callback(lambda _: ended.set())
    while not clock.wait(ended.wait, look_s):
        if (why := verdict()) is not None:
            raise PeerError(why)
