"""A process of its own that is killed, or loses an answer, at one request to a store."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable

from object_store import Store


def names_of_store() -> dict[str, str]:
    """The environment in which another process reaches the store."""
    names = {name: os.environ[name] for name in os.environ if name.startswith("AWS_")}
    return names | {"no_proxy": "*"}


def run_and_kill(
    store: Store, when: str, at: int, work: Callable[..., None], *arguments: object
) -> bool:
    """Run `work` in a process that is killed at its request number `at`; whether it made that one.

    `when`: the store is "before" serving it, or "after"; or the answer is "lost", and the process
    goes on, to success.
    """
    victim = multiprocessing.get_context("forkserver").Process(target=work, args=arguments)
    started = threading.Event()

    def kill() -> None:
        assert started.wait(60) and victim.pid is not None
        os.kill(victim.pid, signal.SIGKILL)

    def door(number: int, method: str, path: str) -> str:
        if when == "lost":
            return "lose" if number == at else "serve"
        if when == "before" and number == at:
            kill()
        return "hang up" if when == "before" and number >= at else "serve"

    def after(number: int, request: str) -> None:
        if when == "after" and number == at:
            kill()

    store.set_door(door, after)
    victim.start()
    started.set()
    victim.join()
    was_reached = len(store.seen) >= at
    store.serve_all()
    if when == "lost":
        assert victim.exitcode == 0, f"the answer to request {at} was lost"
    return was_reached
