"""A process that is killed at its n-th call of certain functions: in a module soon imported."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from typing import Any

# What changes names or makes them durable.
CALLS = ("mkdir", "open", "fsync", "rename", "unlink", "close")


def _body(work: Callable[..., object], number: int, calls: Sequence[str], args: Any) -> None:  # noqa: ANN401
    left = number

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def instead(*args: object, **kwargs: object) -> object:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **kwargs)

        return instead

    for name in calls:
        setattr(os, name, counted(getattr(os, name)))
    work(*args)


def run_and_kill(
    work: Callable[..., object], number: int, *args: object, calls: Sequence[str] = CALLS
) -> bool:
    """Run `work(*args)` in a process, killed at call `number`; whether it came to its end."""
    process = multiprocessing.get_context("forkserver").Process(
        target=_body, args=(work, number, calls, args)
    )
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL), process.exitcode
    return process.exitcode == 0
