"""Checkpoints of `torch.distributed` programs: the ranks' side of `ffrecord.checkpoint`."""

import weakref

import torch
import torch.distributed as dist

# What Group.background has made; goes with its process group.
_background_groups: weakref.WeakKeyDictionary[dist.ProcessGroup, "Group"] = (
    weakref.WeakKeyDictionary()
)


class Group:
    """The ranks of a process group, as `ffrecord.checkpoint` expects them.

    Gathers small messages as byte tensors: on the CPU if the group has a backend for it, such as
    Gloo, else on the current accelerator. All ranks of the group must make and use it alike.
    """

    def __init__(self, process_group: dist.ProcessGroup | None = None) -> None:
        """Wrap `process_group`, by default all ranks. Requires an initialised process group."""
        self._group = process_group
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
        """The bytes of every rank, in rank order."""
        size = torch.tensor([len(mine)], dtype=torch.int64, device=self._device)
        sizes = [torch.zeros_like(size) for _ in range(self.size)]
        dist.all_gather(sizes, size, group=self._group)
        counts = [int(each.item()) for each in sizes]
        # Gathered tensors are equal in size; what is behind a rank's bytes is cut off again.
        padded = torch.zeros(max(1, *counts), dtype=torch.uint8)
        if mine:
            padded[: len(mine)] = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
        padded = padded.to(self._device)
        gathered = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(gathered, padded, group=self._group)
        return [
            each[:count].cpu().numpy().tobytes()
            for each, count in zip(gathered, counts, strict=True)
        ]

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
            _background_groups[key] = Group(made)
        return _background_groups[key]

    @staticmethod
    def _device_of(process_group: dist.ProcessGroup | None) -> torch.device:
        backends = dist.get_backend_config(process_group or dist.group.WORLD)
        if "cpu:" in str(backends) or dist.get_backend(process_group) in ("gloo", "mpi"):
            return torch.device("cpu")
        return torch.device("cuda", torch.cuda.current_device())
