"""Gradients of DistributedDataParallel averaged by the library's own collectives.

    hook = ffrecord.distributed.CommHook()
    model.register_comm_hook(hook, ffrecord.distributed.comm_hook)  # or hook.register(model)

Buckets are averaged during backward; all ranks get identical bits.
"""

from typing import Any, NoReturn, Self

import torch
import torch.distributed as dist

from ffrecord.distributed._group import Group
from ffrecord.distributed._tuner import Tuner


class CommHook(Group):
    """The state of `comm_hook`.

    Register it once, before the first forward. For float32, float64, float16 and bfloat16 buckets
    in CPU memory. If a rank dies, hangs or runs other operations, the backward pass of all others
    ends with a RuntimeError that names the rank. A model that was saved or copied has no hook: make
    and register a new one.
    """

    def __init__(
        self,
        process_group: dist.ProcessGroup | None = None,
        *,
        autotune: bool = False,
        **options: Any,  # noqa: ANN401  # Group's.
    ) -> None:
        """Join a group; the arguments are those of `Group`.

        Args:
            process_group: the ranks; the default group if None.
            autotune: measure algorithms, stream counts and chunk sizes during the first steps, and
                again when the step time changes, and use the fastest. `tuner.decisions` lists the
                trials. Sums may round differently during the trials.
            options: those of `Group`.
        """
        super().__init__(process_group, **options)
        self.tuner = Tuner(self) if autotune else None

    def __reduce__(self) -> tuple[Any, ...]:
        """DDP pickles and copies its hook with it, but a hook belongs to a group."""
        return _SavedHook, ()

    def register(self, model: torch.nn.parallel.DistributedDataParallel) -> Self:
        """Make `model` average its gradients through this hook; returns the hook."""
        model.register_comm_hook(self, comm_hook)
        return self


class _SavedHook:
    """The placeholder of a hook in a model that was saved or copied."""

    def all_reduce(self, *_: object, **__: object) -> NoReturn:
        """Raise: there is no group."""
        raise RuntimeError(
            "the CommHook of this model was saved or copied with it, without its ranks:"
            " make a new one and register it"
        )

    tuner = None


def comm_hook(
    state: CommHook,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # Built into torch, not in its stubs.
) -> torch.futures.Future[torch.Tensor]:
    """For `DistributedDataParallel.register_comm_hook(state, comm_hook)`."""
    try:
        # All of the step before has been waited for.
        if state.tuner is not None and bucket.index() == 0:
            state.tuner.step()
        future = state.all_reduce(bucket.buffer(), bucket=bucket.index())
    except OSError as error:  # The group was given up before: as if it had been given up now.
        future = torch.futures.Future()
        future.set_exception(error)  # type: ignore[arg-type]
    # One step further, an exception becomes an error of the future, which backward raises.
    return future.then(lambda ended: ended.value())
