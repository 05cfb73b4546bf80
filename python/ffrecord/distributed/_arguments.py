"""Arguments of the operations of torch.distributed, whose overloads differ between releases."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from ffrecord.distributed._group import ReduceOp

_OPS: dict[Any, ReduceOp] = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.AVG: "average",
    dist.ReduceOp.MIN: "min",
    dist.ReduceOp.MAX: "max",
    dist.ReduceOp.PRODUCT: "product",
    dist.ReduceOp.BAND: "bit_and",
    dist.ReduceOp.BOR: "bit_or",
    dist.ReduceOp.BXOR: "bit_xor",
}


def read(args: tuple[Any, ...], kwargs: dict[str, Any], *places: str) -> list[Any]:
    """The arguments of one of torch's overloads: each by position, or by one of its names."""
    found = list(args) + [None] * (len(places) - len(args))
    unknown = dict(kwargs)
    for index, names in enumerate(places):
        for name in names.split():
            if name in unknown:
                found[index] = unknown.pop(name)
    if unknown or len(args) > len(places):
        raise TypeError(
            f"arguments that it does not have: {sorted(unknown) or args[len(places) :]}"
        )
    return found


def read_lists(
    args: tuple[Any, ...], kwargs: dict[str, Any], places: Sequence[str]
) -> tuple[list[Any], list[Any], Any]:
    """Outputs, inputs and options of an overload with a time limit at the end.

    One of the overloads takes lists, and the other what is within them, a tensor and its parts.
    """
    outputs, inputs, opts, _ = read(args, kwargs, *places)
    if isinstance(outputs, torch.Tensor) or isinstance(inputs, torch.Tensor):
        return [outputs], [inputs], opts
    return outputs, inputs, opts


def listed(tensors: torch.Tensor | Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """One tensor, or all of them, in a list."""
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def op_of(opts: Any) -> ReduceOp:  # noqa: ANN401  # Options, an operation, or none.
    """The operation that options name; sum without any."""
    if opts is None:
        return "sum"
    asked = getattr(opts, "reduceOp", opts)
    for op, name in _OPS.items():
        if asked == op:
            return name
    # As options hold it, it has no name of its own.
    name = getattr(getattr(asked, "op", asked), "name", asked)
    raise NotImplementedError(f"{name} is not supported: {', '.join(_OPS.values())} are")


def root_of(opts: Any, size: int) -> int:  # noqa: ANN401  # Options, or a rank.
    """The rank that options name, of a group of so many."""
    root = int(opts if isinstance(opts, int) else opts.rootRank)
    if not 0 <= root < size:
        raise ValueError(f"there is no rank {root} among {size}")
    return root
