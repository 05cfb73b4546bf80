"""Averaging gradients during backward, for models without DistributedDataParallel."""

import contextlib
import dataclasses
import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves

from ffrecord._base import clock
from ffrecord._base.closeable import Closing
from ffrecord.distributed._group import Group, Stats, agree, check_kind
from ffrecord.distributed._tuner import Tuner

# Sizes of buckets that a tuner tries, of the one that was asked for.
_CAPS = (1.0, 0.25, 0.5, 2.0, 4.0)


@dataclasses.dataclass(slots=True)
class _Bucket:
    """Gradients that are sent as one array, each at its place in it."""

    buffer: torch.Tensor
    parameters: list[torch.nn.Parameter]
    views: list[torch.Tensor]
    filled: set[int] = dataclasses.field(default_factory=set)
    future: torch.futures.Future[torch.Tensor] | None = None


class Overlap(Closing):
    """Averages the gradients of a model over the ranks of a group; a context manager.

    Made by `overlap`. Gradients are final when `backward()` returns. Until then each is copied to
    its bucket as soon as it is accumulated, full buckets are sent in the order of backward, the
    same on all ranks, and the averages are copied back at the end. A parameter that no rank used
    keeps its gradient. One that only some ranks used counts on the others with the gradient that
    they have, or zero. For the thread that trains.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        group: Group,
        bucket_cap_mb: float,
        *,
        owns_group: bool,
        autotune: bool = False,
    ) -> None:
        """See `overlap`."""
        self._group = group
        self._owns_group = owns_group
        self._cap_mb = 0.0
        # Before anything is refused here, for then it is refused on all ranks.
        agree(group.process_group, _table(model, bucket_cap_mb), "tensor")
        parameters = [p for p in model.parameters() if p.requires_grad]
        if not parameters:
            raise ValueError("the model has no parameter that requires a gradient")
        for parameter in parameters:
            check_kind(parameter)
        first = 0 if group.process_group is None else dist.get_global_rank(group.process_group, 0)
        for tensor in [*model.parameters(), *model.buffers()]:
            dist.broadcast(tensor.detach(), src=first, group=group.process_group)
        self._names = {p: name for name, p in model.named_parameters()}
        self._parameters = parameters
        self._cut(bucket_cap_mb)
        self.tuner = Tuner(group, [bucket_cap_mb * share for share in _CAPS]) if autotune else None
        if self.tuner is not None:
            self.tuner.step()
        self._next = 0  # The first bucket that has not left.
        self._is_syncing = True
        # Parameters whose gradient has changed since the last averages.
        self._changed: set[torch.nn.Parameter] = set()
        self._has_come = False  # One has changed in the pass that runs.
        # Autograd calls this at the end of the pass. Autograd alone keeps it alive: it is gone when
        # the pass has failed.
        self._running: weakref.ref[Callable[[], None]] | None = None
        self._hooks: list[Any] = [
            parameter.register_post_accumulate_grad_hook(self._ready)  # type: ignore[no-untyped-call]
            for parameter in parameters
        ]
        self._hooks.append(model.register_forward_hook(self._forwarded))

    def wait(self) -> None:
        """Average gradients that accumulated within `no_sync()` and were not averaged since.

        Does nothing if this rank has none; all ranks must have run backward equally often.

        Raises:
            ConnectionError, TimeoutError: the group has failed; the message names the rank.
        """
        if self._changed:
            self._drop_failed_pass()
            self._average()

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients without sending; the next backward outside of it sends the sums."""
        before, self._is_syncing = self._is_syncing, False
        try:
            yield
        finally:
            self._is_syncing = before

    def stats(self) -> Stats:
        """Counters since the start, and the times of the newest buckets."""
        return self._group.stats()

    def close(self) -> None:
        """Detach from the model, and close the group if it was made for this. Idempotent."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        if self._owns_group:
            self._group.close()

    def _cut(self, bucket_cap_mb: float) -> None:
        """Make buckets of that size, if they are not. Requires that none is filled."""
        if bucket_cap_mb == self._cap_mb:
            return
        self._cap_mb = bucket_cap_mb
        self._buckets = _cut(self._parameters, int(bucket_cap_mb * (1 << 20)))
        self._place = {
            parameter: (bucket, index)
            for bucket in self._buckets
            for index, parameter in enumerate(bucket.parameters)
        }

    # --- A backward pass ---

    def _forwarded(self, _model: object, _inputs: object, outputs: object) -> None:
        """The outputs get their gradients first, in the outermost of nested passes."""
        if torch.is_grad_enabled():
            for output in tree_leaves(outputs):
                if isinstance(output, torch.Tensor) and output.requires_grad:
                    output.register_hook(self._begin)  # type: ignore[no-untyped-call]

    def _begin(self, _gradient: object = None) -> None:
        """A backward pass is running: end it with the averages."""
        if not self._is_syncing or (self._running is not None and self._running() is not None):
            return
        self._drop_failed_pass()
        finish = functools.partial(self._finish)
        torch.autograd.Variable._execution_engine.queue_callback(finish)
        self._running = weakref.ref(finish)

    def _drop_failed_pass(self) -> None:
        """A pass that raised has left its filled buckets."""
        self._running = None
        if any(bucket.future is not None for bucket in self._buckets):
            raise RuntimeError(
                "a backward pass raised an error after some of its gradients had been sent: the"
                " ranks are out of step; start again from a checkpoint"
            )
        for bucket in self._buckets:
            bucket.filled.clear()

    def _ready(self, parameter: torch.nn.Parameter) -> None:
        """Backward has accumulated this parameter's gradient."""
        self._changed.add(parameter)
        if not self._is_syncing:
            return
        self._begin()
        self._has_come = True
        self._fill(parameter)
        # In order: a bucket that is full early waits for those before it, as on all other ranks.
        while self._next < len(self._buckets):
            bucket = self._buckets[self._next]
            if len(bucket.filled) < len(bucket.views):
                break
            self._send(bucket)

    def _finish(self) -> None:
        """The pass has ended, and `backward()` will return."""
        self._running = None
        if self._has_come:
            self._average()

    def _average(self) -> None:
        """Send the remaining buckets, and make every gradient the average over all ranks."""
        began = clock.now()
        try:
            self._exchange()
        finally:
            self._next, self._has_come = 0, False
            for bucket in self._buckets:
                bucket.future = None
                bucket.filled.clear()
        self._changed.clear()
        if self.tuner is not None:
            # The time that was not hidden behind backward.
            cap_mb = self.tuner.step(clock.now() - began).bucket_cap_mb
            assert cap_mb is not None
            self._cut(cap_mb)

    def _exchange(self) -> None:
        changed = [p in self._changed for bucket in self._buckets for p in bucket.parameters]
        is_used = torch.tensor(changed, dtype=torch.int32)
        for bucket in self._buckets[self._next :]:
            for index, parameter in enumerate(bucket.parameters):
                if index not in bucket.filled:
                    self._fill(parameter)
            self._send(bucket)
        self._group.all_reduce(is_used, "max", bucket=len(self._buckets)).wait()
        is_next_used = iter(is_used.tolist())
        for bucket in self._buckets:
            assert bucket.future is not None
            bucket.future.wait()
            for parameter, view in zip(bucket.parameters, bucket.views, strict=True):
                if next(is_next_used):
                    _give(parameter, view)

    @torch.no_grad()
    def _fill(self, parameter: torch.nn.Parameter) -> None:
        bucket, index = self._place[parameter]
        if bucket.future is not None:
            raise RuntimeError(
                f"the gradient of '{self._names[parameter]}' changed twice in one backward pass,"
                " as with several re-entrant checkpoints: use_reentrant=False avoids it"
            )
        gradient = parameter.grad
        if gradient is None:
            bucket.views[index].zero_()
        elif gradient.layout is not torch.strided:
            raise TypeError(
                f"the gradient of '{self._names[parameter]}' is {gradient.layout}: only dense ones"
                " can be averaged; make it with sparse=False"
            )
        else:
            bucket.views[index].copy_(gradient)
        bucket.filled.add(index)

    def _send(self, bucket: _Bucket) -> None:
        number, self._next = self._next, self._next + 1
        bucket.future = self._group.all_reduce(bucket.buffer, "average", bucket=number)

    def _check_step(self, *_: object) -> None:
        """The optimizer is about to use the gradients."""
        if self._is_syncing and self._changed:
            raise RuntimeError(
                "the gradients that accumulated within no_sync() are not averaged: run the last"
                " backward() outside of it, or call wait() before step()"
            )


@torch.no_grad()
def _give(parameter: torch.nn.Parameter, average: torch.Tensor) -> None:
    """A copy: the next pass fills the bucket again, while users may keep a gradient."""
    if parameter.grad is None:
        parameter.grad = torch.empty_like(parameter)
    parameter.grad.copy_(average)


def _table(model: torch.nn.Module, bucket_cap_mb: float) -> list[str]:
    """The facts that must be equal on all ranks, so that their buckets are the same."""
    table = [
        f"parameter '{name}' {p.dtype} {list(p.shape)} on {p.device.type}"
        + ("" if p.requires_grad else ", frozen")
        for name, p in model.named_parameters()
    ]
    table += [f"buffer '{name}' {b.dtype} {list(b.shape)}" for name, b in model.named_buffers()]
    return [*table, f"buckets of {bucket_cap_mb} MiB"]


def _cut(parameters: Sequence[torch.nn.Parameter], cap_bytes: int) -> list[_Bucket]:
    """Buckets of one dtype each, in the order in which backward reaches the parameters."""
    members: list[list[torch.nn.Parameter]] = []
    size_bytes = 0
    for parameter in reversed(parameters):
        grows = members and members[-1][0].dtype == parameter.dtype and size_bytes < cap_bytes
        if not grows:
            members.append([])
            size_bytes = 0
        members[-1].append(parameter)
        size_bytes += parameter.numel() * parameter.element_size()
    buckets = []
    for group in members:
        buffer = torch.zeros(sum(p.numel() for p in group), dtype=group[0].dtype)
        places = torch.split(buffer, [p.numel() for p in group])
        views = [place.view_as(p) for place, p in zip(places, group, strict=True)]
        buckets.append(_Bucket(buffer, group, views))
    return buckets


def overlap(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    group: Group | None = None,
    bucket_cap_mb: float = 25.0,
    autotune: bool = False,
) -> Overlap:
    """Make every backward of `model` average its gradients over the ranks while it runs.

        averaged = ffrecord.distributed.overlap(model, optimizer)
        for batch in loader:
            optimizer.zero_grad()
            loss(model(batch)).backward()  # Full buckets leave while this runs.
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # Of the averages.
            optimizer.step()

    Gradients are the averages when `backward()` returns, as with DistributedDataParallel: clipping,
    `GradScaler`, closures, `zero_grad(set_to_none=False)` and accumulation work the same way. Call
    it on all ranks at the same point, before the first forward: it copies the parameters and
    buffers of the group's first rank to all ranks. From then on each rank has its own buffers, such
    as the running statistics of BatchNorm, whereas DistributedDataParallel copies those of its
    first rank before each forward.

    Args:
        model: in CPU memory; the same parameters in the same order on all ranks.
        optimizer: its `step()` raises if gradients accumulated within `no_sync()` and were not
            averaged since.
        group: where to average; a new one over the default process group if None.
        bucket_cap_mb: approximate size of the arrays in which gradients are sent, in MiB.
        autotune: measure algorithms, stream counts, chunk and bucket sizes during the first steps,
            and again when the time to wait for gradients changes, and use the fastest.
            `tuner.decisions` of the result lists the trials. Sums may round differently during
            the trials.

    Raises:
        ValueError: nothing in the model requires a gradient, or the ranks' models differ; raised on
            every rank.
        TypeError: a parameter is not in CPU memory, or of a type that cannot be averaged.
    """
    averaged = Overlap(
        model, group or Group(), bucket_cap_mb, owns_group=group is None, autotune=autotune
    )
    if optimizer is not None:
        averaged._hooks.append(optimizer.register_step_pre_hook(averaged._check_step))
    return averaged
