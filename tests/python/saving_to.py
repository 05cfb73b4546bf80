"""What a process does that saves a checkpoint and is killed: in a module that is soon imported."""

from typing import Any

import numpy as np

import ffrecord.checkpoint as ckpt
from eventually import eventually

SIZE_BYTES = 32 << 20


class Ranks:
    """A rank alone, that says where it is, and goes on when it is told to."""

    def __init__(self, tell: Any) -> None:  # noqa: ANN401 (a connection)
        self.rank, self.size, self.rounds, self.tell = 0, 1, 0, tell

    def all_gather(self, mine: bytes) -> list[bytes]:
        """Rounds: what Python agrees on, what is planned, what is written, what is committed."""
        self.rounds += 1
        if self.rounds in (2, 3):
            self.tell.send("planned" if self.rounds == 2 else "written")
            self.tell.recv()
        return [mine]


def save(target: str, step: int, tell: Any) -> None:  # noqa: ANN401
    """Saves; says "planned", then "midway" when the first bytes are under way, then "written"."""
    with ckpt.monitor() as watch:
        pending = ckpt.async_save(
            target, step, {"w": np.ones(SIZE_BYTES, "uint8")}, group=Ranks(tell)
        )
        eventually(lambda: (running := watch.report().running) and running[0].done_bytes)
        tell.send("midway")
        pending.result()
