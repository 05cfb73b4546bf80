"""A program whose loaders lose a worker each: `killing.py PATH METHOD`.

Of its own process, since the signal of a child's death raises in the main thread, wherever that is.
For each loader it prints how the iteration ended, after how many seconds, and how many records the
next one delivered.
"""

import fcntl
import json
import multiprocessing
import os
import signal
import sys
import termios
import threading
import time
from typing import Any

from eventually import eventually
from ffrecord.torch import DataLoader, Dataset, Sampler


def slow(sample: dict[str, Any]) -> dict[str, Any]:
    time.sleep(0.005)
    return sample


def run(path: str, method: str, when: str) -> None:
    dataset = Dataset(path, transform=slow)
    others = {each.pid for each in multiprocessing.active_children()}
    loader = DataLoader(
        dataset,
        batch_sampler=Sampler(dataset, 30 if when == "in a batch" else 4),
        num_workers=1 if when == "in a batch" else 2,
        multiprocessing_context=method,
        persistent_workers=when != "during",
    )
    ended, killed_at = "finished", 0.0
    try:
        if when == "between":
            list(loader)
            killed_at = kill(others)
        for number, _ in enumerate(loader):
            if number == 2 and when == "during":
                killed_at = kill(others)
            if number == 0 and when == "in a batch":
                eventually(lambda: is_full(loader))
                killed_at = kill(others)
    except RuntimeError as error:
        ended = f"RuntimeError: {error}"
    seconds = time.monotonic() - killed_at
    try:
        again = records(loader)
    except RuntimeError:  # The signal came at once; the next epoch has noticed the death, too.
        again = records(loader)
    print(json.dumps([ended, seconds, again]))


def is_full(loader: DataLoader) -> bool:
    """Whether the worker waits in the middle of a batch, for the consumer to read on."""
    received = loader._iterator._worker_result_queue._reader  # type: ignore[union-attr]
    count = bytearray(4)
    fcntl.ioctl(received.fileno(), termios.FIONREAD, count)
    return int.from_bytes(count, sys.byteorder) > 50_000


def records(loader: DataLoader) -> int:
    return sum(len(batch["label"]) for batch in loader)


def kill(others: set[int | None]) -> float:
    worker = next(each for each in multiprocessing.active_children() if each.pid not in others)
    at = time.monotonic()
    os.kill(worker.pid or 0, signal.SIGKILL)
    return at


if __name__ == "__main__":
    path, method = sys.argv[1:]
    for when in ("during", "between", "in a batch"):
        if when != "in a batch":  # A signal tells the main thread at once.
            run(path, method, when)
        thread = threading.Thread(target=run, args=(path, method, when))
        thread.start()
        thread.join()
