"""The `Sampler` of a loader, and whether the loader can deliver what iterating over it gives."""

from typing import Any

from torch.utils import data

from ffrecord.torch._dataset import Dataset
from ffrecord.torch._sampler import Cursor, Sampler


def order_of(loader: Any) -> Sampler | None:  # noqa: ANN401 - any loader of torch's kind
    """The `Sampler` that says which order a loader has and where it is, however it was given."""
    return sampler_among(loader.batch_sampler, loader.sampler)


def sampler_among(*given: Any) -> Sampler | None:  # noqa: ANN401 - a loader's arguments
    """The first of them that is a `Sampler`."""
    return next((each for each in given if isinstance(each, Sampler)), None)


def batches_left(loader: Any) -> int:  # noqa: ANN401 - `ffrecord.torch.DataLoader`
    """How many batches the next iteration has: fewer than an epoch if it resumes inside of one."""
    sampler, resumed = order_of(loader), loader._resumed
    if sampler is None:
        return len(loader) if resumed is None else len(loader._steps.inner) - resumed.batches
    if not is_inside(sampler.place):
        return len(loader)
    return len(sampler) - sampler.step - len(sampler.place.ahead)


def is_inside(place: Cursor) -> bool:
    """Whether some of the steps of an epoch were delivered: an iteration from there goes on."""
    return place.position > 0 or bool(place.ahead)


def overridden(sampler: Sampler, *names: str) -> list[str]:
    """Which of these methods a class of the program has replaced."""
    kind = type(sampler)
    return [name for name in names if getattr(kind, name) is not getattr(Sampler, name)]


def refuse_other_order(sampler: Sampler) -> None:
    """Check that a loader, which asks for the steps by position, delivers what iterating does.

    Raises:
        TypeError: a class of the program iterates in its own way.
    """
    if names := overridden(sampler, "__iter__", "__len__"):
        raise TypeError(
            f"{type(sampler).__name__} overrides {' and '.join(names)}, which this loader never "
            "calls: it computes each step from its position. Pass batch_sampler= your own iterable "
            "of lists of indices that is no ffrecord.torch.Sampler, or use torch's DataLoader"
        )


def refuse_other_dataset(sampler: Sampler, dataset: Any) -> None:  # noqa: ANN401 - a loader's
    """Check that a sampler of a dataset, not of a number, is of one as long as the loader's.

    Raises:
        ValueError: it is not: indices would name other records.
    """
    known = isinstance(dataset, Dataset | data.Subset | data.ConcatDataset)
    if known and sampler.fingerprint is not None and len(dataset) != sampler.count:
        raise ValueError(
            f"the Sampler is of {sampler.count} records, but the dataset of its loader has "
            f"{len(dataset)}: indices would name other records. Make the Sampler of the dataset "
            "that the loader reads; for its first n records only, make it of the number n"
        )
