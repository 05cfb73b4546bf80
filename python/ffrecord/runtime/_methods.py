"""Collectives of a torch without hooks: the methods of its process groups, wrapped.

Every collective that Python starts goes through a method of `ProcessGroup`. The wrapper of a method
begins a phase, calls the method, and passes the operation on. (A wrapper of the operators below,
`c10d::...`, would see the collectives that C++ starts, too. But Python's lock is held while it
calls the operator, which may wait for other ranks: two ranks with two threads each then wait for
each other without end.)
"""

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

from torch.distributed import ProcessGroup

# For each method, which argument is the tensors with most bytes.
_METHODS = {
    "allreduce": 0,
    "allreduce_coalesced": 0,
    "allgather": 0,
    "_allgather_base": 0,
    "all_gather_single": 0,
    "allgather_coalesced": 0,
    "allgather_into_tensor_coalesced": 0,
    "all_gather_single_coalesced": 0,
    "reduce_scatter": 1,
    "_reduce_scatter_base": 1,
    "reduce_scatter_single": 1,
    "reduce_scatter_tensor_coalesced": 1,
    "reduce_scatter_single_coalesced": 1,
    "broadcast": 0,
    "reduce": 0,
    "gather": 1,
    "scatter": 0,
    "alltoall": 1,
    "alltoall_base": 1,
    "all_to_all_single": 1,
}

Begin = Callable[[Any], bool]  # Given the tensors: whether there is a phase that must end.
End = Callable[[Any, Any], None]  # Given the work, or None, and the tensors.

# The end of a group unwraps it, also within these functions: where memory is collected.
_lock = threading.RLock()
# By the id of a group: who watches it.
_watchers: dict[int, tuple[tuple[Begin, End], ...]] = {}
_originals: dict[str, Any] = {}


def wrap(group: ProcessGroup, begin: Begin, end: End) -> Callable[[], None]:
    """Call `begin` before and `end` after each collective of a group, in the thread that starts it.

    Neither may raise. Thread-safe.

    Returns:
        A function that undoes it. The methods are as they were once all is undone.
    """
    key, watcher = id(group), (begin, end)
    with _lock:
        _watchers[key] = (*_watchers.get(key, ()), watcher)
        if not _originals:
            for name, tensors_at in _METHODS.items():
                if (method := ProcessGroup.__dict__.get(name)) is not None:
                    _originals[name] = method
                    setattr(ProcessGroup, name, _wrapper(getattr(ProcessGroup, name), tensors_at))
    finalizer = weakref.finalize(group, _unwrap, key, watcher)
    finalizer.atexit = False
    return finalizer


def _unwrap(key: int, watcher: tuple[Begin, End]) -> None:
    with _lock:
        left = tuple(each for each in _watchers[key] if each is not watcher)
        if left:
            _watchers[key] = left
        else:
            del _watchers[key]
        if not _watchers:
            for name, method in _originals.items():
                setattr(ProcessGroup, name, method)
            _originals.clear()


def _wrapper(method: Callable[..., Any], tensors_at: int) -> Callable[..., Any]:
    watchers_of = _watchers.get

    def wrapper(group: ProcessGroup, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401
        watchers = watchers_of(id(group))
        if watchers is None or len(arguments) <= tensors_at:
            return method(group, *arguments, **named)
        if len(watchers) > 1:
            return watched_by_several(watchers, group, *arguments, **named)
        tensors = arguments[tensors_at]
        begin, end = watchers[0]
        if not begin(tensors):
            return method(group, *arguments, **named)
        work = None
        try:
            work = method(group, *arguments, **named)
            return work
        finally:
            end(work, tensors)

    def watched_by_several(
        watchers: tuple[tuple[Begin, End], ...],
        group: ProcessGroup,
        *arguments: Any,  # noqa: ANN401
        **named: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        tensors = arguments[tensors_at]
        ends = [end for begin, end in watchers if begin(tensors)]
        work = None
        try:
            work = method(group, *arguments, **named)
            return work
        finally:
            for end in ends:
                end(work, tensors)

    return wrapper


def _unlock() -> None:
    """In a forked child: a thread that it does not have may have held it."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_unlock)
