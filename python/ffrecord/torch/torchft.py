"""How replica groups of torchft hand their state to one that is behind: as a checkpoint.

from ffrecord.torch.torchft import CheckpointTransport

manager = Manager(checkpoint_transport=CheckpointTransport("ffrecord://host/heal/x"), ...)
"""

import contextlib
import datetime
import uuid
from collections.abc import Callable
from typing import Any, TypeVar

from torchft.checkpointing.transport import (  # type: ignore[import-not-found, unused-ignore]
    CheckpointTransport as Transport,
)

from ffrecord import checkpoint as ckpt
from ffrecord._base import clock
from ffrecord._base.addresses import Target, target_from_root
from ffrecord.errors import ConflictError
from ffrecord.weights._reading import named_after

__all__ = ["CheckpointTransport"]

T = TypeVar("T")

# Between looks for a checkpoint that its sender has not committed yet.
_LOOK_EVERY_S = 0.1


class CheckpointTransport(Transport[T]):  # type: ignore[misc, unused-ignore]
    """Sends a state by saving it, and receives one by loading it.

    Nothing is pickled; every block is verified; a receiver gets a state whole or not at all. The
    receiver reads only from the target, so the sender trains on once `send_checkpoint` returns.
    """

    def __init__(
        self,
        target: Target,
        *,
        state_dict: Callable[[], T] | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        """Store the arguments.

        Args:
            target: a folder or run that all replica groups reach, such as a folder in /dev/shm for
                groups on one machine, or `ffrecord://host[:port]/run`. Each transport has a run of
                its own below it.
            state_dict: gives the state to fill in place when one is received; without it, a new one
                is made.
            timeout_s: for each call to a daemon or store.
        """
        self._run = named_after(target_from_root(target), f"/{uuid.uuid4().hex}")
        self._state_dict, self._timeout_s = state_dict, timeout_s

    def metadata(self) -> str:
        """The address of this transport's run."""
        return self._run

    def send_checkpoint(
        self, dst_ranks: list[int], step: int, state_dict: T, timeout: datetime.timedelta
    ) -> None:
        """Save the state; when this returns, all receivers can load it.

        A state of the same step replaces the one that was sent before. Older steps are removed.
        """
        for commit in ckpt.list(self._run, timeout_s=self._timeout_s):
            if commit.step == step:
                self._remove(commit.step)
        self._save(step, state_dict)
        for commit in ckpt.list(self._run, timeout_s=self._timeout_s):
            if commit.step != step:
                self._remove(commit.step)

    def _save(self, step: int, state: T) -> None:
        ckpt.save(self._run, step, state, group="alone", timeout_s=self._timeout_s)

    def _remove(self, step: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            ckpt.remove(self._run, step, timeout_s=self._timeout_s)

    def disallow_checkpoint(self) -> None:
        """Do nothing: what was sent is a copy."""

    def recv_checkpoint(
        self, src_rank: int, metadata: str, step: int, timeout: datetime.timedelta
    ) -> T:
        """Wait until the sender has committed the step, and load it.

        Raises:
            TimeoutError: the step has not come within `timeout`.
            Exception: as `ffrecord.checkpoint.load`.
        """
        end = clock.now() + timeout.total_seconds()
        while True:
            state = None if self._state_dict is None else self._state_dict()
            try:
                loaded: Any = ckpt.load(
                    metadata,
                    state,
                    step=step,
                    group="alone",
                    as_torch=True,
                    resume=False,
                    timeout_s=self._timeout_s,
                )
            except (FileNotFoundError, ConflictError) as error:
                left = end - clock.now()
                if left <= 0:
                    raise TimeoutError(
                        f"step {step} of rank {src_rank} did not come to {metadata} within "
                        f"{timeout.total_seconds():g} s"
                    ) from error
                clock.sleep(min(left, _LOOK_EVERY_S))
            else:
                return loaded  # type: ignore[no-any-return]

    def shutdown(self, wait: bool = True) -> None:
        """Remove what was sent."""
        for commit in ckpt.list(self._run, timeout_s=self._timeout_s):
            self._remove(commit.step)
