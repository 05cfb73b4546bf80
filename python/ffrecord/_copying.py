"""Copies that are made beside the work, by a thread of their own."""

import concurrent.futures
import threading
from abc import abstractmethod
from typing import Generic, TypeVar

from ffrecord._closing import Closing

Copied = TypeVar("Copied")


class Copying(Closing, Generic[Copied]):
    """Makes copies when it is asked to, one round after another. Thread-safe."""

    def __init__(self) -> None:
        """Starts and copies nothing yet."""
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "ffrecord-copying")
        self._lock = threading.Lock()
        self._waiting: concurrent.futures.Future[Copied] | None = None

    @abstractmethod
    def sync(self) -> Copied:
        """Copy all that is not there yet; returns what was."""

    def start(self) -> concurrent.futures.Future[Copied]:
        """`sync` on another thread; while one waits for its turn, asking again gives the same."""
        with self._lock:
            waiting = self._waiting
            if waiting is None or waiting.running() or waiting.done():
                waiting = self._waiting = self._thread.submit(self.sync)
            return waiting

    def close(self) -> None:
        """Wait for what was started. Raises why the last of it failed."""
        self._thread.shutdown()
        if self._waiting is not None:
            self._waiting.result()

    def _abandon(self) -> None:
        self._thread.shutdown(cancel_futures=True)
