"""Signals of the collectives of torch, in the threads that start them."""

import collections
import dataclasses
import functools
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ffrecord.runtime import _methods
from ffrecord.runtime._phases import Phases, Signals

COLLECTIVE, POINT_TO_POINT = "collective", "point_to_point"
_ERRORS_MAX = 8
_hook_ids = itertools.count(0x0FF5EC0)  # Torch wants a number of each hook; others begin at 0.


class Watched:
    """The groups and optimizers that signal.

    Attributes:
        source: where its signals come from, as `Attachment.source`.
        is_off: no hook does anything any more: it is stopped, or this is a forked child.
    """

    def __init__(self, signals: Signals, source: str) -> None:
        """Watch steps; collectives come by `source`."""
        self.source = source
        self.is_off = False
        self.errors: collections.deque[str] = collections.deque(maxlen=_ERRORS_MAX)
        self.signals = signals
        self.phases = Phases(self._end)
        self.groups = weakref.WeakSet[dist.ProcessGroup]()
        self.models = weakref.WeakSet[torch.nn.Module]()  # Those that signal by their gradients.
        self._undo: list[Callable[[], None]] = []
        self.later(_Steps.tell(self))

    def later(self, undo: Callable[[], None]) -> None:
        """Call `undo` at the end."""
        self._undo.append(undo)

    def stop(self) -> None:
        """Remove all hooks; end all phases."""
        self.is_off = True
        for undo in reversed(self._undo):
            try:
                undo()
            except Exception as error:  # The group is destroyed, say.
                self.failed(error)
        self.phases.stop()

    def begin(self, kind: str, tensors: Any) -> bool:  # noqa: ANN401 - tensors in lists, or one
        """Begin a phase; whether there is one that an operation must end. Raises nothing."""
        try:
            if self.is_off:
                return False
            self.signals.phase_begin(kind, size_bytes(tensors))
        except Exception as error:  # Training does not see it.
            self.failed(error)
            return False
        return True

    def later_ends(self, operation: Any, kind: str, is_gloo: bool) -> None:  # noqa: ANN401
        """End a phase when its operation ends; None has ended already."""
        if not self.phases.add(_ENDED if operation is None else operation, kind, is_gloo):
            self._end(kind)

    def guarded(self, hook: Callable[[Any], None]) -> Callable[[Any], None]:
        """A hook whose errors training does not see."""

        def call(argument: Any) -> None:  # noqa: ANN401
            try:
                hook(argument)
            except Exception as error:
                self.failed(error)

        return call

    def failed(self, error: Exception) -> None:
        """A hook has failed; the training goes on."""
        self.errors.append(f"{type(error).__name__}: {error}")

    def _end(self, kind: str) -> None:
        try:
            self.signals.phase_end(kind)
        except Exception as error:  # Later phases end nevertheless.
            self.failed(error)


class _Steps:
    """The steps of optimizers: signalled once, however many attachments watch."""

    _lock = threading.Lock()
    _all: "tuple[_Steps, ...]" = ()

    def __init__(self, signals: Signals) -> None:
        self._signals = signals
        self._watchers: tuple[Watched, ...] = ()
        self._leader: Callable[[], object] = lambda: None
        self._hook = register_optimizer_step_post_hook(self._stepped)

    @classmethod
    def tell(cls, watched: Watched) -> Callable[[], None]:
        """Tell steps to the signals of `watched`; returns what ends it."""
        with cls._lock:
            steps = next((each for each in cls._all if each._signals is watched.signals), None)
            if steps is None:
                steps = cls(watched.signals)
                cls._all = (*cls._all, steps)
            steps._watchers = (*steps._watchers, watched)
        return functools.partial(steps._leave, watched)

    @classmethod
    def forget(cls) -> None:
        """In a forked child: nothing is attached, and a thread it lacks may have held the lock."""
        cls._lock = threading.Lock()
        cls._all = ()

    def _leave(self, watched: Watched) -> None:
        with self._lock:
            self._watchers = tuple(each for each in self._watchers if each is not watched)
            if not self._watchers:
                self._hook.remove()
                type(self)._all = tuple(each for each in self._all if each is not self)

    def _stepped(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """The first optimizer that steps tells where a step ends, as long as it exists."""
        leader = self._leader()
        if leader is not optimizer:
            if leader is not None:
                return
            self._leader = weakref.ref(optimizer)
        watchers = [each for each in self._watchers if not each.is_off]
        if watchers:
            try:
                for watched in watchers:
                    watched.phases.step()
                self._signals.step_end()
            except Exception as error:  # Training does not see it.
                watchers[0].failed(error)


os.register_at_fork(after_in_child=_Steps.forget)


def size_bytes(tensors: Any) -> int:  # noqa: ANN401
    """Bytes of one tensor, or of all in lists."""
    # isinstance() of a tensor runs Python code of torch.
    if type(tensors) is not list and type(tensors) is not tuple:
        return tensors.nbytes  # type: ignore[no-any-return]
    total = 0
    for each in tensors:
        total += size_bytes(each)
    return total


def is_on_cpu(tensors: Any) -> bool:  # noqa: ANN401
    """Whether the first is there."""
    while type(tensors) is list or type(tensors) is tuple:
        if not tensors:
            return True
        tensors = tensors[0]
    return tensors.is_cpu  # type: ignore[no-any-return]


def watch(target: object, signals: Signals) -> Watched:
    """Watch the groups of a model, one group, or all."""
    groups, model = _groups_of(target)
    watched = Watched(signals, "none")
    try:
        _watch_more(watched, target, groups, model)
    except BaseException:
        watched.stop()
        raise
    return watched


def update(watched: Watched, target: object) -> None:
    """Watch also the groups that are new."""
    _watch_more(watched, target, *_groups_of(target))


def _watch_more(
    watched: Watched,
    target: object,
    groups: list[dist.ProcessGroup],
    model: torch.nn.Module | None,
) -> None:
    foreign = [group for group in groups if not _signals_itself(group)]
    if not foreign:
        if watched.source == "none" and (groups or hasattr(target, "process_group")):
            watched.source = "engine"
        return
    new = [group for group in foreign if group not in watched.groups]
    if hasattr(dist.ProcessGroup, "register_pre_hook"):
        watched.source = "hooks"
        for group in new:
            _hook(watched, group)
    else:
        parallel = [] if model is None else [m for m in model.modules() if isinstance(m, DDP)]
        watched.source = "gradients" if parallel else "methods"
        _wrap(watched, new)
        for module in parallel:  # C++ starts its collectives.
            if module not in watched.models:
                watched.models.add(module)
                _between_gradients_and_step(watched, module)
    watched.groups.update(new)


def _groups_of(target: object) -> tuple[list[dist.ProcessGroup], torch.nn.Module | None]:
    """The groups of what was given to `attach`, and the model, if it is one."""
    if isinstance(target, torch.nn.Module):
        return _unique(_groups_of_model(target)), target
    if isinstance(target, dist.ProcessGroup):
        return [target], None
    if hasattr(target, "process_group") and hasattr(target, "all_reduce"):
        return [], None  # A group of ours, or a hook of DDP that is one.
    if target is not None:
        raise TypeError(f"attach() takes a model or a process group, not a {type(target).__name__}")
    return (_all_groups() if dist.is_available() and dist.is_initialized() else []), None


def _groups_of_model(model: torch.nn.Module) -> Iterable[dist.ProcessGroup]:
    if not (dist.is_available() and dist.is_initialized()):
        return
    found = False
    for module in model.modules():
        if isinstance(module, DDP):
            found = True
            yield module.process_group
    from torch.distributed.tensor import DTensor

    for mesh in {p.device_mesh for p in model.parameters() if isinstance(p, DTensor)}:
        found = True
        yield from mesh.get_all_groups()
    if not found and dist.group.WORLD is not None:
        yield dist.group.WORLD


def _all_groups() -> list[dist.ProcessGroup]:
    return _unique(group for group in dist.distributed_c10d._world.pg_map if group is not None)


def _unique(groups: Iterable[dist.ProcessGroup]) -> list[dist.ProcessGroup]:
    return list({id(group): group for group in groups}.values())


def _signals_itself(group: dist.ProcessGroup) -> bool:
    """Whether the group is one of ours, whose engine signals."""
    return "ffrecord" in str(dist.get_backend_config(group))


def _is_gloo(group: dist.ProcessGroup) -> bool:
    """Whether its operations on the CPU are those of Gloo."""
    return dist.get_backend(group) == "gloo"


def _wrap(watched: Watched, groups: list[dist.ProcessGroup]) -> None:
    """Wrapped methods, for a torch without hooks."""
    begin = functools.partial(watched.begin, COLLECTIVE)
    for group in groups:
        is_gloo = _is_gloo(group)

        def end(work: Any, tensors: Any, is_gloo: bool = is_gloo) -> None:  # noqa: ANN401
            watched.later_ends(work, COLLECTIVE, is_gloo and is_on_cpu(tensors))

        watched.later(_methods.wrap(group, begin, end))


def _hook(watched: Watched, group: dist.ProcessGroup) -> None:
    """Torch's hooks before and after each collective of a group."""
    hooked: Any = group  # A newer torch has more than the stubs.
    names: Any = vars(dist)["HookOpName"]
    point_to_point = {names.SEND, names.RECV}
    is_gloo = _is_gloo(group)
    open_phases: dict[int, tuple[str, bool]] = {}

    def before(op: Any) -> None:  # noqa: ANN401 - torch's PreHookArgs
        kind = POINT_TO_POINT if op.name in point_to_point else COLLECTIVE
        if is_gloo and kind is POINT_TO_POINT:
            return  # Complete only once the program has waited.
        tensors = max(op.input_tensors, op.output_tensors, key=size_bytes)
        if tensors and watched.begin(kind, tensors):
            open_phases[op.op_id] = kind, is_gloo and is_on_cpu(tensors)

    def after(op: Any) -> None:  # noqa: ANN401 - torch's PostHookArgs
        found = open_phases.pop(op.op_id, None)
        if found is not None:
            watched.later_ends(op.work, *found)

    hook_id = next(_hook_ids)
    hooked.register_pre_hook(hook_id, watched.guarded(before))
    hooked.register_post_hook(hook_id, watched.guarded(after))
    held: Callable[[], Any] = weakref.ref(group)  # It may be destroyed meanwhile.

    def remove() -> None:
        if (still := held()) is not None:
            still.unregister_pre_hook(hook_id)
            still.unregister_post_hook(hook_id)

    watched.later(remove)


def _between_gradients_and_step(watched: Watched, model: DDP) -> None:
    """One phase from the first gradient to the step of the optimizer, for a torch without hooks."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    gradients = _Sized(sum(p.nbytes for p in parameters))
    held = weakref.ref(model)
    open_phase: list[_Until] = []

    def began(_: object) -> None:
        if open_phase or (still := held()) is None:
            return
        # Within no_sync() gradients stay here.
        if still.require_backward_grad_sync and watched.begin(COLLECTIVE, gradients):
            open_phase.append(_Until())
            watched.later_ends(open_phase[0], COLLECTIVE, False)

    def ended(*_: object) -> None:
        if open_phase:
            open_phase.pop().is_over = True

    if parameters:
        hooked: list[Any] = parameters  # Whose method has no types.
        for parameter in hooked:
            watched.later(parameter.register_hook(began).remove)
        watched.later(register_optimizer_step_pre_hook(ended).remove)


@dataclasses.dataclass(frozen=True)
class _Sized:
    """In the place of tensors that are not kept."""

    nbytes: int


class _Until:
    """An operation that ends on command."""

    def __init__(self, *, is_over: bool = False) -> None:
        self.is_over = is_over

    def is_completed(self) -> bool:
        return self.is_over

    def wait(self, timeout: object) -> bool:
        del timeout
        return self.is_over

    def get_future(self) -> object:
        return None


_ENDED = _Until(is_over=True)  # In the place of the work of what had ended when it returned.
