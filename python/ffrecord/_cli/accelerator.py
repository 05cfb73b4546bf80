"""The accelerator of this machine, and how fast batches reach it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ffrecord._base import clock
from ffrecord._cli import verdicts

if TYPE_CHECKING:
    import torch

    from ffrecord.torch._placing import Streams

_SIZE_BYTES = 64 << 20


def examine_accelerator(seconds: float) -> dict[str, Any]:
    """PyTorch's accelerator, and the rates of copies to it; imports torch, if it is there."""
    facts: dict[str, Any] = {"accelerator": None, "accelerator_reason": ""}
    try:
        import torch

        from ffrecord.torch._placing import Streams, current_accelerator
    except (ImportError, OSError) as error:  # Such as a library of CUDA that is not there.
        facts["accelerator_reason"] = f"torch cannot be imported: {error}"
    else:
        facts["torch"] = torch.__version__
        try:
            if (device := current_accelerator()) is None:
                facts["accelerator_reason"] = f"PyTorch {torch.__version__} finds none"
            else:
                rates = copy_rates(Streams(device), torch.Tensor.pin_memory, seconds)
                facts |= {"accelerator": _name_of(device), **rates}
        except RuntimeError as error:  # It is in use, has no memory left, or its driver is old.
            why = str(error).partition("\n")[0]
            facts["accelerator_reason"] = f"PyTorch {torch.__version__} cannot use it: {why}"
    return {**facts, "verdicts": [verdicts.of_accelerator(facts)], "advice": []}


def _name_of(device: "torch.device") -> str:
    import torch

    module = getattr(torch, device.type, None)
    name = getattr(module, "get_device_name", None)
    return str(device) if name is None else f"{device} ({name()})"


def copy_rates(
    streams: "Streams", pin: "Callable[[torch.Tensor], torch.Tensor]", seconds: float
) -> dict[str, Any]:
    """Bytes/s of copies from page-locked memory and from other memory."""
    import torch

    other = torch.ones(_SIZE_BYTES, dtype=torch.uint8)
    return {
        "copies_overlap": streams.mark() is not None,
        "copy_pinned_bytes_per_s": _rate(streams, pin(other), seconds / 2),
        "copy_pageable_bytes_per_s": _rate(streams, other, seconds / 2),
    }


def _rate(streams: "Streams", source: "torch.Tensor", seconds: float) -> int:
    """Copy again and again for that time; the first copy, which sets things up, does not count."""
    _copy(streams, source)
    count, begin = 0, clock.now()
    while not count or clock.now() - begin < seconds:
        _copy(streams, source)
        count += 1
    return round(count * source.nbytes / (clock.now() - begin))


def _copy(streams: "Streams", source: "torch.Tensor") -> None:
    with streams.copying():
        streams.copy(source)
        event = streams.mark()
    if event is not None:
        event.synchronize()
