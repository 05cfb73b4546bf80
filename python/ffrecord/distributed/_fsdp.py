"""The library's own collectives under FSDP2.

model = fully_shard(model)
group = ffrecord.distributed.use_for_fsdp(model)
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Work
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from ffrecord.distributed._group import Group, ReduceOp
from ffrecord.distributed._works import Started

_OPS: dict[Any, ReduceOp] = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.AVG: "average",
    dist.ReduceOp.MIN: "min",
    dist.ReduceOp.MAX: "max",
}


def use_for_fsdp(model: torch.nn.Module, group: Group | None = None) -> Group:
    """Make every FSDP2 module of `model` gather and reduce through a group; a collective call.

    Parameters may have several dtypes, and gradients any divide factor. If replicas of a sharded
    model average their gradients (HSDP, a mesh of two dimensions), the shards go through the group;
    torch.distributed's backend still averages between replicas.

    Args:
        model: after `fully_shard`, in CPU memory, sharded over all ranks of the group.
        group: if None, a new one over the ranks that the model is sharded over.

    Returns:
        The group; close it when the model is no longer used.

    Raises:
        ValueError: nothing in the model is sharded.
        NotImplementedError: this torch does not allow other collectives, or a module is sharded
            over several meshes.
    """
    shards = [module for module in model.modules() if isinstance(module, FSDPModule)]
    if not shards:
        raise ValueError("nothing in the model is sharded: call fully_shard(model) before")
    if not hasattr(FSDPModule, "set_custom_all_gather"):
        raise NotImplementedError(f"torch {torch.__version__} has fixed collectives in FSDP2")
    group = group or Group(_sharded_over(model))
    for module in shards:
        try:
            module.set_custom_all_gather(cast(Any, _AllGather(group)))
            module.set_custom_reduce_scatter(cast(Any, _ReduceScatter(group)))
            # It does the division then. Otherwise the factor comes within an operation of NCCL.
            if hasattr(module, "set_force_sum_reduction_for_comms"):  # Not in older releases.
                module.set_force_sum_reduction_for_comms(True)
        except ValueError as error:
            raise NotImplementedError(str(error)) from error
    return group


def _sharded_over(model: torch.nn.Module) -> dist.ProcessGroup | None:
    """The ranks, each of which has a shard; None: all."""
    found = {}
    for parameter in model.parameters():
        if isinstance(parameter, DTensor):
            # Replicas come first in a mesh, and other kinds of parallelism last.
            dims = [i for i, place in enumerate(parameter.placements) if place.is_shard()]
            if dims:
                group = parameter.device_mesh.get_group(dims[0])
                found[tuple(dist.get_process_group_ranks(group))] = group
    if len(found) > 1:
        raise NotImplementedError(
            f"the model is sharded over several sets of ranks, {sorted(found)}: call"
            " use_for_fsdp with a module that is sharded over one of them, and its group"
        )
    ((ranks, group),) = found.items()
    return None if len(ranks) == dist.get_world_size() else group


def _work(future: torch.futures.Future[torch.Tensor], async_op: bool) -> Work | None:
    """The operation that FSDP waits for; None once it has ended."""
    if not async_op:
        future.wait()
        return None
    # One step further, an exception becomes an error of the future.
    ended = future.then(lambda done: done.value())
    return Started(ended)


class _Comm:
    """FSDP calls it in place of a collective of torch.distributed."""

    def __init__(self, group: Group) -> None:
        self.group = group

    def allocate(
        self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """Separate memory for each call."""
        return torch.empty(size, dtype=dtype, device=device)

    def _part(self, whole: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        """This rank's shard. The modules must be sharded over the ranks of our group."""
        ours = dist.get_process_group_ranks(self.group.process_group or dist.group.WORLD)
        if dist.get_process_group_ranks(group) != ours:
            raise ValueError(
                f"the module is sharded over ranks {dist.get_process_group_ranks(group)} and the"
                f" group has ranks {ours}: call use_for_fsdp with a group over the same"
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
        return _work(self.group.all_gather(output_tensor), async_op)


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
            raise NotImplementedError(
                f"{op} of gradients: call set_force_sum_reduction_for_comms(True)"
            )

        def copied(ended: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
            ended.value()  # Raises what went wrong.
            with torch.inference_mode():  # Which may be that of the caller.
                return output_tensor.copy_(part)

        return _work(self.group.reduce_scatter(input_tensor, _OPS[op]).then(copied), async_op)
