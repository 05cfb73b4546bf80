"""Reading ahead in a thread, so that a source is read while the destination is written."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

T = TypeVar("T")

# Items that are taken from the source at a time, and wait while others are written.
_PIECE = 16


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
