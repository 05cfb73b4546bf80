"""Gradients averaged while backward goes on, for models without DistributedDataParallel."""

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ffrecord.closing import Closing
from ffrecord.torch.group import Group, Stats, agree, check_kind
from ffrecord.torch.tuner import Tuner

# Sizes of buckets that a tuner tries, of the one that was asked for.
_CAPS = (1.0, 0.25, 0.5, 2.0, 4.0)


@dataclasses.dataclass(slots=True)
class _Bucket:
    """Gradients that travel as one array, each at its place there."""

    buffer: torch.Tensor
    parameters: list[torch.nn.Parameter]
    views: list[torch.Tensor]
    filled: set[int] = dataclasses.field(default_factory=set)
    future: torch.futures.Future[torch.Tensor] | None = None


class Overlap(Closing):
    """Averages the gradients of a model over the ranks of a group; a context manager.

    Made by `overlap`. A parameter's gradient is copied to its bucket when backward has accumulated
    it; buckets are filled in the order in which backward goes, and leave in that order on all
    ranks. `wait` ends a step: afterwards each gradient is a view of its bucket and holds the
    average. A parameter that got a gradient on some ranks counts as zero on the others; one that
    got none on any has None. Used by the thread that trains.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        group: Group,
        bucket_cap_mb: float,
        *,
        owns_group: bool,
        tunes: bool = False,
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
        self._parameters = parameters
        self._cut(bucket_cap_mb)
        self.tuner = Tuner(group, [bucket_cap_mb * share for share in _CAPS]) if tunes else None
        if self.tuner is not None:
            self.tuner.step()
        self._next = 0  # The first bucket that has not left.
        self._is_syncing = True
        # What has a gradient of this step that no hook has taken to its bucket.
        self._accumulated: set[torch.nn.Parameter] = set()
        self._hooks: list[Any] = [
            parameter.register_post_accumulate_grad_hook(self._ready)  # type: ignore[no-untyped-call]
            for parameter in parameters
        ]

    def wait(self) -> None:
        """Send what has not left, and wait until every gradient is the average over all ranks.

        Nothing happens if no gradient has come on this rank since the last time; all ranks must
        have run backward as often.

        Raises:
            ConnectionError, TimeoutError: the group has failed; the message names the rank.
        """
        for parameter in self._accumulated:
            self._fill(parameter)
        self._accumulated.clear()
        if not any(bucket.filled for bucket in self._buckets):
            return
        began = time.monotonic()
        used = torch.tensor(
            [i in bucket.filled for bucket in self._buckets for i in range(len(bucket.views))],
            dtype=torch.int32,
        )
        for bucket in self._buckets[self._next :]:
            for index, view in enumerate(bucket.views):
                if index not in bucket.filled:
                    view.zero_()
            self._send(bucket)
        self._group.all_reduce(used, "max", bucket=len(self._buckets)).wait()
        is_used = iter(used.tolist())
        for bucket in self._buckets:
            assert bucket.future is not None
            bucket.future.wait()
            for parameter, view in zip(bucket.parameters, bucket.views, strict=True):
                parameter.grad = view if next(is_used) else None
            bucket.future = None
            bucket.filled.clear()
        self._next = 0
        if self.tuner is not None:
            # What was not hidden behind backward.
            cap_mb = self.tuner.step(time.monotonic() - began).bucket_cap_mb
            assert cap_mb is not None
            self._cut(cap_mb)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within it, gradients accumulate and nothing is sent; what follows it sends the sums."""
        before, self._is_syncing = self._is_syncing, False
        try:
            yield
        finally:
            self._is_syncing = before

    def stats(self) -> Stats:
        """Counters since the start, and the times of the newest buckets."""
        return self._group.stats()

    def close(self) -> None:
        """Leave the model alone, and the group if it was made for this. Idempotent."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        if self._owns_group:
            self._group.close()

    def _cut(self, bucket_cap_mb: float) -> None:
        """Make buckets of that size, if they are not yet. Requires that none is filled."""
        if bucket_cap_mb == self._cap_mb:
            return
        self._cap_mb = bucket_cap_mb
        self._buckets = _cut(self._parameters, int(bucket_cap_mb * (1 << 20)))
        self._place = {
            parameter: (bucket, index)
            for bucket in self._buckets
            for index, parameter in enumerate(bucket.parameters)
        }

    def _ready(self, parameter: torch.nn.Parameter) -> None:
        """Backward has accumulated this parameter's gradient."""
        if not self._is_syncing:
            self._accumulated.add(parameter)
            return
        self._accumulated.discard(parameter)
        self._fill(parameter)
        # In order: a bucket that is full early waits for those before it, as on all other ranks.
        while self._next < len(self._buckets):
            bucket = self._buckets[self._next]
            if len(bucket.filled) < len(bucket.views):
                break
            self._send(bucket)

    def _fill(self, parameter: torch.nn.Parameter) -> None:
        bucket, index = self._place[parameter]
        if index in bucket.filled:
            raise RuntimeError(
                "backward ran twice before the gradients were used: call wait() or"
                " optimizer.step() between, or accumulate within no_sync()"
            )
        assert parameter.grad is not None
        view = bucket.views[index]
        if parameter.grad.data_ptr() != view.data_ptr():
            view.copy_(parameter.grad)
        bucket.filled.add(index)

    def _send(self, bucket: _Bucket) -> None:
        number, self._next = self._next, self._next + 1
        bucket.future = self._group.all_reduce(bucket.buffer, "average", bucket=number)


def _table(model: torch.nn.Module, bucket_cap_mb: float) -> list[str]:
    """What the ranks must have alike, so that their buckets are the same."""
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
    tunes: bool = False,
) -> Overlap:
    """Make every backward of `model` average its gradients over the ranks while it runs.

        averaged = ffrecord.torch.overlap(model, optimizer)
        for batch in loader:
            optimizer.zero_grad()
            loss(model(batch)).backward()  # Full buckets leave while this runs.
            optimizer.step()  # Waits for the averages first.

    Call it on all ranks at the same point, before the first forward: parameters and buffers are
    those of the group's first rank afterwards.

    Args:
        model: in CPU memory; the same parameters in the same order on all ranks.
        optimizer: its `step()` waits for the averages. Without one, call `wait()` before it.
        group: where to average; a new one over the default process group if None.
        bucket_cap_mb: gradients travel in arrays of about so many MiB.
        tunes: find out in the first steps, and again when it takes longer or shorter to wait for
            them, by which algorithm, streams, chunks and size of buckets they go quickest.
            `tuner.decisions` of the result tells what was tried. Sums may round otherwise while it
            tries.

    Raises:
        ValueError: nothing in the model requires a gradient, or the ranks' models differ, which is
        said on every rank. TypeError: a parameter is not in CPU memory, or of a type that cannot be
        averaged.
    """
    averaged = Overlap(
        model, group or Group(), bucket_cap_mb, owns_group=group is None, tunes=tunes
    )
    if optimizer is not None:
        hook = optimizer.register_step_pre_hook(lambda *_: averaged.wait())
        averaged._hooks.append(hook)
    return averaged
