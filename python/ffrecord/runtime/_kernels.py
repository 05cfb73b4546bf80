"""Collectives of a torch without hooks: the kernels of its operators, wrapped.

Every collective of `torch.distributed` goes through an operator `c10d::...`, also one that C++
starts, as DistributedDataParallel does. A wrapper stands in front of the kernels of each: it begins
a phase, calls the kernel, and passes the operation on.
"""

import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch._C._distributed_c10d import ProcessGroup, Work

# Of each operator: the arguments that name the group, and the tensors with most bytes.
_OPERATORS = {
    "allreduce_": (1, 0),
    "allreduce_coalesced_": (1, 0),
    "allgather_": (2, 0),
    "_allgather_base_": (2, 0),
    "allgather_coalesced_": (2, 0),
    "allgather_into_tensor_coalesced_": (2, 0),
    "reduce_scatter_": (2, 1),
    "_reduce_scatter_base_": (2, 1),
    "reduce_scatter_tensor_coalesced_": (2, 1),
    "broadcast_": (1, 0),
    "reduce_": (1, 0),
    "gather_": (2, 1),
    "scatter_": (2, 0),
    "alltoall_": (2, 1),
    "alltoall_base_": (2, 1),
}
_KEYS = ("CPU", "CUDA", "XPU", "PrivateUse1")

Begin = Callable[[Any], bool]  # Given the tensors: whether there is a phase that must end.
End = Callable[[Any, Any], None]  # Given the work, or None, and the tensors.

_lock = threading.Lock()
# By the id of a group: who watches it. An id is all that a wrapper needs to look up.
_watchers: dict[int, tuple[tuple[Begin, End], ...]] = {}
_library: torch.library.Library | None = None


def can_be_wrapped() -> bool:
    """Whether this torch lets a wrapper call the kernel that it replaces: since 2.9."""
    return hasattr(torch.library, "get_kernel") and hasattr(Work, "unbox")


def wrap(group: ProcessGroup, begin: Begin, end: End) -> Callable[[], None]:
    """Call `begin` before and `end` after each collective of a group, in the thread that starts it.

    Neither may raise. Thread-safe.

    Returns:
        What undoes it. The kernels are as they were once all is undone.
    """
    global _library
    key, watcher = id(group), (begin, end)
    with _lock:
        _watchers[key] = (*_watchers.get(key, ()), watcher)
        if _library is None:
            _library = _wrapped()
    finalizer = weakref.finalize(group, _unwrap, key, watcher)
    finalizer.atexit = False
    return finalizer


def _unwrap(key: int, watcher: tuple[Begin, End]) -> None:
    global _library
    with _lock:
        left = tuple(each for each in _watchers[key] if each is not watcher)
        if left:
            _watchers[key] = left
        else:
            del _watchers[key]
        if not _watchers and _library is not None:
            _library._destroy()
            _library = None


def _wrapped() -> torch.library.Library:
    library = torch.library.Library("c10d", "IMPL")
    with warnings.catch_warnings():  # Torch warns that a kernel is replaced.
        warnings.simplefilter("ignore")
        for name, places in _OPERATORS.items():
            for key in _KEYS:
                if torch._C._dispatch_has_kernel_for_dispatch_key(f"c10d::{name}", key):
                    kernel = torch.library.get_kernel(f"c10d::{name}", key)
                    wrapper = _wrapper(kernel.call_boxed, *places)
                    library.impl(name, wrapper, key, with_keyset=True, allow_override=True)
    return library


def _wrapper(kernel: Callable[..., Any], group_at: int, tensors_at: int) -> Callable[..., Any]:
    unbox_group, unbox_work, watchers_of = ProcessGroup.unbox, Work.unbox, _watchers.get

    def wrapper(keys: torch._C.DispatchKeySet, *arguments: Any) -> Any:  # noqa: ANN401
        watchers = watchers_of(id(unbox_group(arguments[group_at])))
        if watchers is None:
            return kernel(keys, *arguments)
        tensors = arguments[tensors_at]
        ends = [end for begin, end in watchers if begin(tensors)]
        work = None
        try:
            result = kernel(keys, *arguments)
            work = unbox_work(result[-1] if type(result) is tuple else result)
            return result
        finally:
            for end in ends:
                end(work, tensors)

    return wrapper
