"""Gradients of DistributedDataParallel averaged by the library's own collectives.

    hook = ffrecord.torch.CommHook()
    model.register_comm_hook(hook, ffrecord.torch.comm_hook)  # or hook.register(model)

Buckets are averaged while backward goes on; all ranks get identical bits.
"""

from typing import Self

import torch
import torch.distributed as dist

from ffrecord.torch.group import Group


class CommHook(Group):
    """The state of `comm_hook`.

    Register it once, before the first forward. Float32, float64, float16 and bfloat16 buckets in
    CPU memory. A rank that dies, hangs or differs ends the backward pass of all others within
    `timeout_s` with a RuntimeError that names the rank.
    """

    def register(self, model: torch.nn.parallel.DistributedDataParallel) -> Self:
        """Make `model` average its gradients through this hook; returns the hook."""
        model.register_comm_hook(self, comm_hook)
        return self


def comm_hook(
    state: CommHook,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # Built into torch, not in its stubs.
) -> torch.futures.Future[torch.Tensor]:
    """For `DistributedDataParallel.register_comm_hook(state, comm_hook)`."""
    future = state.all_reduce(bucket.buffer(), bucket=bucket.index())
    # One step further, an exception becomes an error of the future, which backward raises.
    return future.then(lambda ended: ended.value())
