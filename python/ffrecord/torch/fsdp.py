"""The library's own collectives under FSDP2.

model = fully_shard(model)
group = ffrecord.torch.use_for_fsdp(model)
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Work
from torch.distributed.fsdp import FSDPModule

from ffrecord.torch.group import Group, ReduceOp
from ffrecord.torch.works import Started

_OPS: dict[Any, ReduceOp] = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.AVG: "average",
    dist.ReduceOp.MIN: "min",
    dist.ReduceOp.MAX: "max",
}


def use_for_fsdp(model: torch.nn.Module, group: Group | None = None) -> Group:
    """Make every FSDP2 module of `model` gather and reduce through a group; a collective act.

    Args:
        model: after `fully_shard`, in CPU memory, sharded over all ranks of the group.
        group: a new one over the default process group if None.

    Returns:
        The group; close it when the model is no longer used.

    Raises:
        ValueError: nothing in the model is sharded. NotImplementedError: this torch has no place
        for other collectives, or a module is sharded over several meshes.
    """
    shards = [module for module in model.modules() if isinstance(module, FSDPModule)]
    if not shards:
        raise ValueError("nothing in the model is sharded: call fully_shard(model) before")
    if not hasattr(FSDPModule, "set_custom_all_gather"):
        raise NotImplementedError(f"torch {torch.__version__} has fixed collectives in FSDP2")
    group = group or Group()
    for module in shards:
        try:
            module.set_custom_all_gather(cast(Any, _AllGather(group)))
            module.set_custom_reduce_scatter(cast(Any, _ReduceScatter(group)))
        except ValueError as error:
            raise NotImplementedError(str(error)) from error
    return group


class _Comm:
    """What FSDP calls in place of a collective of torch.distributed."""

    def __init__(self, group: Group) -> None:
        self.group = group

    def allocate(
        self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """Memory of its own for each call."""
        return torch.empty(size, dtype=dtype, device=device)

    def _part(self, whole: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        """This rank's part. The modules have to be sharded over the ranks of our group."""
        ours = dist.get_process_group_ranks(self.group.process_group or dist.group.WORLD)
        if dist.get_process_group_ranks(group) != ours:
            raise ValueError(
                f"the module is sharded over ranks {dist.get_process_group_ranks(group)} and the"
                f" group has ranks {ours}: give use_for_fsdp a group over the same"
            )
        return whole.chunk(len(ours))[group.rank()]


class _AllGather(_Comm):
    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> Work | None:
        part = self._part(output_tensor, group)
        if part.data_ptr() != input_tensor.data_ptr():
            part.copy_(input_tensor)
        started = Started(self.group.all_gather(output_tensor))
        if async_op:
            return started
        started.wait()
        return None


class _ReduceScatter(_Comm):
    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,  # noqa: ANN401  # A ReduceOp, or what it is made of: an opaque type of torch.
        async_op: bool = False,
    ) -> Work | None:
        part = self._part(input_tensor, group)
        if op not in _OPS:
            raise NotImplementedError(f"{op} of gradients: call set_gradient_divide_factor(None)")

        def copied(ended: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
            ended.value()  # Raises what went wrong.
            return output_tensor.copy_(part)

        started = Started(self.group.reduce_scatter(input_tensor, _OPS[op]).then(copied))
        if async_op:
            return started
        started.wait()
        return None
