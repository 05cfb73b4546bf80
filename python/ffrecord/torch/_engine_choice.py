"""Which engine an iteration of a `DataLoader` takes, and why, in one sentence.

With mode="auto", threads load only what the library's own code makes from records to batches:
there, threads are faster than processes, and the library knows that its code is thread-safe.
Nothing can tell that of a program's code, no measurement either, so such code runs in processes,
as with torch's own loader.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from torch.utils import data

from ffrecord._read.records import Records
from ffrecord.torch._batch_transfer import CrossingCollate
from ffrecord.torch._collate import collate
from ffrecord.torch._dataset import Dataset
from ffrecord.torch._engines import Name
from ffrecord.torch._subsets import ConcatDataset, Subset

Mode = Literal["auto", "workers", "threads"]
MODES: tuple[Mode, ...] = get_args(Mode)
# Samplers that may be asked further ahead than torch asks them: nothing changes them on the way.
_FIXED = (list, tuple, range, np.ndarray)
_KNOWN = {"ffrecord", "torch"}
# Arguments that only processes obey, with the values that ask for nothing.
_FOR_PROCESSES: dict[str, Any] = {
    "in_order": True,
    "multiprocessing_context": None,
    "persistent_workers": False,
    "pin_memory_device": "",
    "worker_init_fn": None,
}


class EngineChoice(NamedTuple):
    """An engine, and why it loads."""

    engine: Name
    why: str
    """One sentence."""


def given_for_processes(loader: Any) -> list[str]:  # noqa: ANN401 - a `DataLoader`
    """The arguments of the loader that only processes obey."""
    given = {name: getattr(loader, name, idle) for name, idle in _FOR_PROCESSES.items()}
    return [name for name, value in given.items() if value != _FOR_PROCESSES[name]]


def choice_of(loader: Any) -> EngineChoice:  # noqa: ANN401 - a `DataLoader`
    """The engine of an iteration that begins now."""
    if not loader.num_workers:
        return EngineChoice("caller", "The calling thread loads, because num_workers is 0.")
    if loader.mode == "threads":
        return EngineChoice("threads", "Threads load, because mode is 'threads'.")
    if loader.mode == "workers":
        return EngineChoice("processes", "Processes load, because mode is 'workers'.")
    why = _asked_for(loader) or code_of_program(loader)
    if why is not None:
        return EngineChoice("processes", f"Processes load, because {why}.")
    return EngineChoice(
        "threads", "Threads load, because no code of the program takes part in making batches."
    )


def _asked_for(loader: Any) -> str | None:  # noqa: ANN401 - a loader
    """Why threads cannot do what the loader was asked for."""
    if given := given_for_processes(loader):
        return f"{' and '.join(given)} {'is' if len(given) == 1 else 'are'} for processes"
    if isinstance(loader.dataset, data.IterableDataset):
        return f"{type(loader.dataset).__name__} is an iterable dataset"
    if loader.batch_sampler is None:
        return "batch_size is None, and samples come one by one"
    return None


def code_of_program(loader: Any) -> str | None:  # noqa: ANN401 - a loader
    """Which code takes part in making batches that is not the library's or torch's, if any does."""
    collates = loader.collate_fn
    if not isinstance(collates, CrossingCollate) or collates.collate_fn is not collate:
        return "collate_fn is code of the program, which may not be thread-safe"
    for sampler in _samplers(loader.batch_sampler):
        kind = type(sampler)
        if kind not in _FIXED and not _is_of(kind, _KNOWN):
            return f"the sampler {kind.__name__} may depend on how far ahead it is asked"
    found = _in_dataset(loader.dataset)
    return (
        None if found is None else f"{found} is code of the program, which may not be thread-safe"
    )


def _samplers(batches: Any) -> Iterable[Any]:  # noqa: ANN401 - of batches
    yield batches
    if type(batches) is data.BatchSampler:
        yield batches.sampler


def _in_dataset(dataset: Any) -> str | None:  # noqa: ANN401 - any dataset
    """The part that makes samples by code that is not the library's."""
    kind = type(dataset)
    if kind in (Subset, data.Subset):
        return _in_dataset(dataset.dataset)
    if kind in (ConcatDataset, data.ConcatDataset):
        return next(filter(None, map(_in_dataset, dataset.datasets)), None)
    if kind is not Dataset:
        return kind.__name__
    if dataset.transform is not None:
        return "transform"
    if "process" in vars(dataset):
        return "process"
    decode = dataset.decode
    for decoder in decode.values() if isinstance(decode, Mapping) else [decode]:
        if decoder is not None and not _is_of(type(decoder), {"ffrecord"}):
            return f"the decoder {type(decoder).__name__}"
    return _in_records(dataset.source)


def _in_records(records: Records) -> str | None:
    """The part that reads by code that is not the library's, in views of ours too."""
    if not _is_of(type(records), {"ffrecord"}):
        return type(records).__name__
    below = [getattr(records, "source", None), *getattr(records, "sources", ())]
    found = (_in_records(each) for each in below if isinstance(each, Records))
    return next(filter(None, found), None)


def _is_of(kind: type, packages: set[str]) -> bool:
    return kind.__module__.partition(".")[0] in packages
