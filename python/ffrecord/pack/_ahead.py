"""Reading ahead in threads, so that a source is read while the destination is written."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

S = TypeVar("S")
T = TypeVar("T")

# Items that are taken from the source at a time, and wait while others are written.
_PIECE = 16
# More threads than these only take memory: the writer is one.
_THREADS_MAX = 4


def ahead(items: Iterable[T], count: int = _PIECE) -> Iterator[T]:
    """Yield `items`, taken by a thread that is up to twice `count` items ahead."""
    source = iter(items)

    def take() -> list[T]:
        return list(islice(source, count))

    with ThreadPoolExecutor(1, "ffrecord-pack") as thread:
        following = thread.submit(take)
        while piece := following.result():
            following = thread.submit(take)
            yield from piece


def mapped(function: Callable[[S], T], items: Iterable[S]) -> Iterator[tuple[S, T]]:
    """Yield each item, in order, and what `function` makes of it in one of some threads.

    As many items are ahead as there are threads, one for each processor that this process may use.
    """
    count = min(len(os.sched_getaffinity(0)), _THREADS_MAX)
    waiting: deque[tuple[S, Future[T]]] = deque()
    with ThreadPoolExecutor(count, "ffrecord-pack") as pool:
        try:
            for item in items:
                waiting.append((item, pool.submit(function, item)))
                if len(waiting) > count:
                    first, made = waiting.popleft()
                    yield first, made.result()
            while waiting:
                first, made = waiting.popleft()
                yield first, made.result()
        finally:
            pool.shutdown(cancel_futures=True)
