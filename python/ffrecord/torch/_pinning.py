"""Page-locked memory, and copies of batches to a device."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from ffrecord import _ffrecord
from ffrecord._batch import Batch


def pinned(batch: Batch) -> Batch:
    """A copy of a batch in page-locked memory."""
    data, offsets = batch.data, batch.offsets
    locked = torch.from_numpy(np.require(data, requirements="W")).pin_memory().numpy()
    inner = _ffrecord.Batch.over(
        locked, offsets[:-1], np.diff(offsets), batch.status, batch.inner_schema
    )
    made = Batch(inner, batch.indices, batch.inner_schema, batch.column_types, batch.columns)
    locked_values = {
        name: torch.from_numpy(values).pin_memory().numpy() if _is_array(values) else values
        for name, values in batch.decoded.items()
    }
    return made.with_decoded(locked_values, batch.reasons)


def _is_array(values: Any) -> bool:  # noqa: ANN401 - a decoder's own
    return isinstance(values, np.ndarray)


def on_device(batches: Iterator[Any], device: torch.device) -> Iterator[Any]:
    """Copy batches to a device; to a GPU one ahead, on a stream of their own.

    Copies overlap with the consumer's kernels if the batches are pinned.
    """
    if device.type != "cuda":
        for batch in batches:
            yield moved(batch, device)
        return
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    ahead: list[Any] = []
    for batch in batches:
        with torch.cuda.stream(stream):
            ahead.append(moved(batch, device))
        if len(ahead) == 2:
            yield _handed_to_consumer(ahead.pop(0), stream)
    if ahead:
        yield _handed_to_consumer(ahead.pop(), stream)


def moved(value: Any, device: torch.device) -> Any:  # noqa: ANN401 - as the batch is built
    """The same structure with its tensors on `device`."""
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, dict):
        return {key: moved(item, device) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(moved(item, device) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(moved(item, device) for item in value)
    return value


def tensors_of(value: Any) -> Iterator[torch.Tensor]:  # noqa: ANN401 - as the batch is built
    """All tensors in a structure."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_of(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_of(item)


def size_of(value: Any) -> int:  # noqa: ANN401 - as the batch is built
    """Bytes of the tensors, arrays and batches in a structure."""
    if isinstance(value, Batch):
        return value.slab.nbytes + size_of(dict(value.decoded))
    if isinstance(value, torch.Tensor | np.ndarray):
        return value.nbytes
    if isinstance(value, dict):
        return sum(map(size_of, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(size_of, value))
    return 0


def _handed_to_consumer(batch: Any, stream: Any) -> Any:  # noqa: ANN401 - as the batch is built
    consumer = torch.cuda.current_stream(stream.device)
    consumer.wait_stream(stream)
    for tensor in tensors_of(batch):
        # The next copy must not reuse its memory while the consumer's kernels read it.
        tensor.record_stream(consumer)
    return batch
