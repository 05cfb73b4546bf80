"""Tensors as arrays that an engine can reduce and move, and how it is started on them."""

from collections.abc import Callable

import torch

from ffrecord.distributed._group import ReduceOp, as_bytes, check_op, check_place
from ffrecord.distributed._pump import REDUCED, Start

# Integers that a wider type holds: what is too large for them wraps when it is brought back.
_WIDER = {
    torch.bool: torch.int32,
    torch.uint8: torch.int32,
    torch.int8: torch.int32,
    torch.int16: torch.int32,
    torch.uint16: torch.int32,
    torch.uint32: torch.int64,
}
_INT64_MIN = torch.iinfo(torch.int64).min


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """The numbers of a tensor in CPU memory, detached from autograd."""
    check_place(tensor)
    return tensor.detach().resolve_conj().resolve_neg()


def in_place(tensor: torch.Tensor) -> tuple[torch.Tensor, Callable[[], None]]:
    """Contiguous memory for the engine, and the function that copies the result to the tensor."""
    own = dense(tensor)
    if own.is_contiguous() and own.data_ptr() == tensor.data_ptr():
        return own, _nothing
    kept = own.clone(memory_format=torch.contiguous_format)

    def back() -> None:
        tensor.detach().copy_(kept)

    return kept, back


def contiguous_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Its bytes, in the order of its elements."""
    return as_bytes(dense(tensor).contiguous())


def reducible(tensor: torch.Tensor, op: ReduceOp) -> tuple[torch.Tensor, Callable[[], None]]:
    """Memory for the engine to reduce, and the function that copies the result to the tensor."""
    check_place(tensor)
    check_op(tensor.dtype, op)
    if tensor.dtype in REDUCED:
        return in_place(tensor)
    if tensor.dtype is torch.uint64:
        return _as_int64(tensor, op)
    if tensor.dtype not in _WIDER:
        raise TypeError(f"{tensor.dtype} is not reduced here: {_names()} are")
    kept = tensor.detach().to(
        _WIDER[tensor.dtype], copy=True, memory_format=torch.contiguous_format
    )

    def back() -> None:
        tensor.detach().copy_(kept)

    return kept, back


def _as_int64(tensor: torch.Tensor, op: ReduceOp) -> tuple[torch.Tensor, Callable[[], None]]:
    """For uint64. Sums and products wrap alike; with the first bit flipped, so is the order."""
    turned = _INT64_MIN if op in ("min", "max") else 0
    kept = tensor.detach().clone(memory_format=torch.contiguous_format).view(torch.int64)
    kept ^= turned

    def back() -> None:
        tensor.detach().copy_((kept ^ turned).view(torch.uint64))

    return kept, back


def _names() -> list[str]:
    return sorted(str(dtype) for dtype in [*REDUCED, *_WIDER, torch.uint64])


def _nothing() -> None:
    pass


def all_reduce(op: ReduceOp) -> Start:
    """Reduces an array over all ranks, in place."""
    return lambda engine, *array: engine.all_reduce(*array, op)


def reduce_scatter(op: ReduceOp) -> Start:
    """Reduces an array over all ranks; each has its own part of the result, in place."""
    return lambda engine, *array: engine.reduce_scatter(*array, op)
