"""Copies that a thread of their own makes in the background."""

import concurrent.futures
import threading
from abc import abstractmethod
from typing import Generic, TypeVar

from ffrecord._base.closeable import Closing

Copied = TypeVar("Copied")


class Copying(Closing, Generic[Copied]):
    """Makes copies on request, one round after another. Thread-safe."""

    def __init__(self) -> None:
        """Start and copy nothing yet."""
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "ffrecord-copying")
        self._lock = threading.Lock()
        self._waiting: concurrent.futures.Future[Copied] | None = None

    @abstractmethod
    def sync(self) -> Copied:
        """Copy everything that is missing; return what was copied."""

    def start(self) -> concurrent.futures.Future[Copied]:
        """`sync` on another thread; while a round waits for its turn, another call returns it."""
        with self._lock:
            waiting = self._waiting
            if waiting is None or waiting.running() or waiting.done():
                waiting = self._waiting = self._thread.submit(self.sync)
            return waiting

    def close(self) -> None:
        """Wait for the rounds that were started. Raises the error of the last one, if it failed."""
        self._thread.shutdown()
        if self._waiting is not None:
            self._waiting.result()

    def _abandon(self) -> None:
        self._thread.shutdown(cancel_futures=True)
