"""The ranks of a process group of torch; only imported where torch is."""

import datetime
import weakref

import torch
import torch.distributed as dist

from ffrecord.checkpoint._peer_error import PeerError
from ffrecord.checkpoint._silent_ranks import silent_ranks

# What Group.background has made; goes with its process group.
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
            timeout_s: how long a rank waits for the others in each round of a save or load. In a
                save they wait until the slowest rank has written its shard. None: the timeout of
                the process group, 30 minutes for Gloo by default.
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

    def all_gather(self, mine: bytes) -> list[bytes]:
        """The bytes of every rank, in rank order.

        Raises:
            PeerError: ranks did not answer; names them.
        """
        size = torch.tensor([len(mine)], dtype=torch.int64, device=self._device)
        sizes = [torch.zeros_like(size) for _ in range(self.size)]
        self._exchange(sizes, size)
        counts = [int(each.item()) for each in sizes]
        # Gathered tensors are equal in size; what is behind a rank's bytes is cut off again.
        padded = torch.zeros(max(1, *counts), dtype=torch.uint8)
        if mine:
            padded[: len(mine)] = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
        padded = padded.to(self._device)
        gathered = [torch.empty_like(padded) for _ in range(self.size)]
        self._exchange(gathered, padded)
        return [
            each[:count].cpu().numpy().tobytes()
            for each, count in zip(gathered, counts, strict=True)
        ]

    def _exchange(self, all_ranks: list[torch.Tensor], mine: torch.Tensor) -> None:
        try:
            work = dist.all_gather(all_ranks, mine, group=self._group, async_op=True)
            assert work is not None  # Of a rank that is in the group.
            if self._timeout_s is None:
                work.wait()
            else:
                work.wait(datetime.timedelta(seconds=self._timeout_s))
        except RuntimeError as error:
            silent = silent_ranks(self._group)
            if not silent:
                if silent is None:
                    error.add_note(
                        "Ranks did not answer, and which ones is not known: neither does the store "
                        "of torch.distributed, which is in rank 0 or in torchrun."
                    )
                raise
            limit = "" if self._timeout_s is None else f" within {self._timeout_s:g} s"
            raise PeerError(
                f"rank {', '.join(map(str, silent))} of {self.size} did not answer{limit}: it has "
                f"ended, is stopped, or takes longer ({error})",
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
