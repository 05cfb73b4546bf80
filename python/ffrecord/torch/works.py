"""What torch waits for when an operation of a group goes on."""

from datetime import timedelta
from typing import Any

import torch
from torch.distributed.distributed_c10d import Work


class Started(Work):
    """An operation of a `Group`, as torch.distributed knows it. Any thread may wait for it.

    Fails, as its future does, with the group's RuntimeError: a rank is gone, late, or differs.
    """

    def __init__(self, future: torch.futures.Future[Any]) -> None:
        """`future` ends with the operation; its value is a list of tensors, or one."""
        super().__init__()
        self._future = future

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return when it has ended; how long that may take the group knows, not `timeout`."""
        del timeout
        self._future.wait()
        return True

    def synchronize(self) -> None:
        """Wait, for callers that think of streams of a GPU."""
        self._future.wait()

    def get_future(self) -> torch.futures.Future[Any]:
        """The future itself."""
        return self._future

    def is_completed(self) -> bool:
        """Whether it has ended, well or not."""
        return self._future.done()

    def is_success(self) -> bool:
        """Whether it has ended well."""
        return self._future.done() and self.exception() is None

    def exception(self) -> BaseException | None:
        """What it failed with; only once it has ended."""
        try:
            self._future.value()
        except Exception as error:
            return error
        return None

    def result(self) -> list[torch.Tensor]:
        """Wait, and return the tensors."""
        found: list[torch.Tensor] = self._future.wait()
        return found
