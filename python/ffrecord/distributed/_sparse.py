"""Sums of sparse tensors, such as the gradients of embeddings: all elements of all ranks, added."""

import zlib
from collections.abc import Callable

import torch

# Starts to gather equal parts of all ranks into a tensor with one row for each.
Gather = Callable[[torch.Tensor, torch.Tensor], None]


class SparseSum:
    """The sum of one sparse tensor over the ranks of a group.

    The elements of all ranks are gathered and then added in rank order, so all ranks get identical
    bits. The ranks agree first on how many there are.
    """

    def __init__(self, tensor: torch.Tensor, size: int) -> None:
        """Sum this rank's tensor, among `size` ranks.

        Raises:
            TypeError: it is not in CPU memory, or its layout is not that of coordinates.
        """
        if tensor.layout is not torch.sparse_coo or tensor.device.type != "cpu":
            raise TypeError(
                f"expected a tensor of coordinates (torch.sparse_coo) in CPU memory, not"
                f" {tensor.layout} on {tensor.device}"
            )
        self._tensor = tensor
        self._own = tensor.detach().coalesce()
        self._kind = (
            f"{self._own.dtype} of shape {tuple(self._own.shape)} with"
            f" {self._own.sparse_dim()} sparse dimensions"
        )
        self._table = torch.empty(size, 2, dtype=torch.int64)
        self._wholes: list[torch.Tensor] = []

    def agree(self, gather: Gather) -> None:
        """Gather what each rank has. It must have ended before `start`."""
        told = [self._own.values().shape[0], zlib.crc32(self._kind.encode())]
        gather(self._table, torch.tensor(told))

    def start(self, gather: Gather) -> None:
        """Gather the elements.

        Raises:
            ValueError: on every rank, if shapes or dtypes differ.
        """
        if len(set(self._table[:, 1].tolist())) != 1:
            raise ValueError(f"the ranks' sparse tensors differ in kind; here it is {self._kind}")
        longest = int(self._table[:, 0].max())
        for part in (self._own.indices().T, self._own.values()):
            padded = part.new_zeros(longest, *part.shape[1:])
            padded[: len(part)] = part
            self._wholes.append(part.new_empty(len(self._table), *padded.shape))
            gather(self._wholes[-1], padded)

    def finish(self) -> None:
        """Write the sum to the tensor, once the elements are here."""
        counts = self._table[:, 0].tolist()
        # The tensor gets new elements, which are to be of its own kind.
        with torch.inference_mode(self._tensor.is_inference()), torch.no_grad():
            indices, values = (
                torch.cat([rows[:count] for rows, count in zip(whole, counts, strict=True)])
                for whole in self._wholes
            )
            shape = self._own.shape
            total = torch.sparse_coo_tensor(indices.T, values, shape, check_invariants=False)
            self._tensor.copy_(total.coalesce())
