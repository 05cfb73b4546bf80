"""From a Python with torch to a first batch: `start.py WHAT METHOD PATH COUNT`, prints JSON.

WHAT is `ours`, or `empty`: torch's loader over as many indices, which reads nothing. The time of
`import torch`, which both need and which varies more than all the rest takes, is left out. It also
says how long the pickled dataset is, and what it takes to resume at half of the epoch.
"""

import json
import pickle
import sys
import time


class Empty:
    """As many samples, of nothing."""

    def __init__(self, count: int) -> None:
        """There are `count`."""
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return index


def resume_ms(path: str) -> float:
    """From a state on disk to the batch at half of the epoch, in a process that has imported."""
    from ffrecord.torch import DataLoader, Dataset, Sampler

    dataset = Dataset(path)
    state = {**Sampler(dataset, 256).state_dict(), "position": len(dataset) // 512 * 256}
    saved = json.dumps(state)
    del dataset
    began = time.perf_counter()
    dataset = Dataset(path)
    loader = DataLoader(dataset, batch_sampler=Sampler(dataset, 256))
    loader.load_state_dict(json.loads(saved))
    next(iter(loader))
    return (time.perf_counter() - began) * 1e3


def main() -> None:
    """Load the first batch, then measure the rest."""
    what, method, path, count = sys.argv[1:]
    import torch
    from torch.utils import data

    torch.set_num_threads(1)
    began = time.perf_counter()
    options = {"num_workers": 2, "multiprocessing_context": method}
    if what == "empty":
        loader = data.DataLoader(Empty(int(count)), batch_size=256, **options)  # type: ignore
    else:
        from ffrecord.torch import DataLoader, Dataset, Sampler

        dataset = Dataset(path)
        loader = DataLoader(dataset, batch_sampler=Sampler(dataset, 256), **options)  # type: ignore
    batches = iter(loader)
    next(batches)
    found = {"first_batch_ms": (time.perf_counter() - began) * 1e3}
    del batches
    if what == "ours":
        found["pickle_bytes"] = len(pickle.dumps(dataset))
        found["resume_ms"] = resume_ms(path)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
