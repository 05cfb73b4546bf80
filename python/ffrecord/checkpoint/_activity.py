"""The activity of a save or load at the moment, for ranks that wait for it."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from ffrecord import _ffrecord


class Activity:
    """One save or load of this process; any thread may read it."""

    def __init__(self, begins_with: str) -> None:
        """Store what it does first, such as "opens step 5 of /runs/a"."""
        self._text, self._steps = begins_with, 0

    def now(self, text: str) -> None:
        """Tell what it does next."""
        self._text = text
        self._steps += 1

    def says(self) -> tuple[str, int]:
        """Its activity, and a number that changes as long as it gets on."""
        return self._text, self._steps


class SaveActivity(Activity):
    """A save, which gets on by its bytes."""

    def __init__(self, rank: int, progress: _ffrecord.SaveProgress | None) -> None:
        """This process is `rank`."""
        self._what, self._rank, self._progress = "", rank, progress
        super().__init__("takes apart the state that it is to save")

    def plans(self, what: str) -> None:
        """Tell that it plans what it writes next, such as "step 5 of /runs/a"."""
        self._what = what
        self.now(f"plans {what}")

    def says(self) -> tuple[str, int]:
        """Its activity, and a number that changes as long as it gets on."""
        text, steps = super().says()
        total = 0 if self._progress is None else self._progress.total_bytes
        if self._progress is None or total == 0:
            return text, steps
        done = min(self._progress.done_bytes, total)
        part = f"part-{self._rank:05d} of {self._what}"
        text = f"writes {part}, {done} of {total} bytes"
        if done == total:
            text = f"has written {part}, and waits for the disk or daemon, or commits"
        return text, steps + 1 + done


_local = threading.local()


@contextlib.contextmanager
def watched(group: object, activity: Activity) -> Iterator[None]:
    """Wraps a save or load: a group that has a method `watch` sees what it does."""
    watch: Callable[[Activity], Any] | None = getattr(group, "watch", None)
    before = getattr(_local, "activity", None)
    _local.activity = activity
    try:
        with contextlib.nullcontext() if watch is None else watch(activity):
            yield
    finally:
        _local.activity = before


def now(text: str) -> None:
    """Tell what the save or load of this thread does next, if it is watched."""
    activity: Activity | None = getattr(_local, "activity", None)
    if activity is not None:
        activity.now(text)
