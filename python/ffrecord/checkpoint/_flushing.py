"""Copies of a step at the later places of a staged target, made in the background of training.

Each later place has a lane: one thread, and what this process knows of the place. The places
themselves say what has to be copied; nothing else keeps it.
"""

import contextlib
import dataclasses
import enum
import logging
import threading
from collections.abc import Callable, Sequence

from ffrecord import _ffrecord
from ffrecord._base import clock
from ffrecord._base.addresses import STAGED
from ffrecord._base.giving_way import give_way
from ffrecord.checkpoint import _activity as activity
from ffrecord.checkpoint._backup import OF_A_STEP, Backup
from ffrecord.checkpoint._commit import Commit
from ffrecord.checkpoint._monitoring import ledger

_log = logging.getLogger("ffrecord.checkpoint")
_PAUSE_MAX_S = 60.0
_GLANCE_S = 0.1  # How often a pause looks whether the program has ended.


class FlushError(RuntimeError):
    """A step has not reached a later place of a staged target. The cause is the first failure."""


class OnFull(enum.Enum):
    """The answer to too much that waits for a place."""

    SKIP = "skip"
    WAIT = "wait"


class OnFailure(enum.Enum):
    """The answer to a place that fails."""

    RETRY = "retry"
    WARN = "warn"
    RAISE = "raise"


@dataclasses.dataclass(frozen=True)
class Way:
    """The places of a staged target, and the options of its steps' way; see `stage`."""

    places: tuple[str, ...]
    keep: tuple[int | None, ...]
    compress: bool = False
    waiting_steps_max: int = 4
    waiting_bytes_max: int | None = None
    on_full: OnFull = OnFull.SKIP
    on_failure: OnFailure = OnFailure.RETRY
    retry_s: float = 1.0
    timeout_s: float = 30.0

    def is_full(self, waiting: Sequence[Commit]) -> bool:
        """Whether one step more would be too many."""
        if len(waiting) >= self.waiting_steps_max:
            return True
        size = sum(commit.size_bytes for commit in waiting)
        return self.waiting_bytes_max is not None and size >= self.waiting_bytes_max

    def passed_over(self, waiting: Sequence[Commit]) -> int:
        """How many of the oldest are too many. The newest never is."""
        if self.on_full is OnFull.WAIT:
            return 0
        for count in range(max(0, len(waiting) - self.waiting_steps_max), len(waiting)):
            size = sum(commit.size_bytes for commit in waiting[count:])
            if self.waiting_bytes_max is None or size <= self.waiting_bytes_max:
                return count
        return max(0, len(waiting) - 1)


@dataclasses.dataclass(frozen=True)
class Flushed:
    """The work of this process for one later place of a staged target.

    Attributes:
        place: its address.
        copied: how many steps it has got.
        copied_bytes: the bytes of their tensors.
        waiting: how many steps wait for it, as was seen last.
        waiting_bytes: the bytes of their tensors.
        skipped: how many steps are passed over, since newer ones were waiting. If they are still at
            an earlier place when nothing waits, they are copied after all.
        failures: how many attempts have failed.
        error: why it lacks steps; empty if it has all that do not wait.
    """

    place: str
    copied: int
    copied_bytes: int
    waiting: int
    waiting_bytes: int
    skipped: int
    failures: int
    error: str


class Lane:
    """Brings steps to one place, on a thread that ends when nothing waits. Thread-safe."""

    def __init__(self, flusher: "Flusher", number: int) -> None:
        """Start nothing yet. `number`: of the place among those of the way, 1 or more."""
        self._flusher, self._number = flusher, number
        way = flusher.way
        self.place = way.places[number]
        before = way.places[:number]
        source = before[0] if number == 1 else STAGED + ">".join(before)
        # Used on the thread of the lane alone.
        self._backup = Backup(source, self.place, is_of_run=True)
        self._changed = threading.Condition()  # Guards what follows.
        self._hurried = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_wanted = False
        self._begun = self._ended = 0  # Sweeps.
        self._mine: set[Commit] = set()  # Saves of this process that were to replace others.
        self._is_asked = False  # Somebody flushes: steps that have failed are tried again.
        self._has_news = False  # There is a save that nobody has looked for yet.
        self._unwanted: set[Commit] = set()  # Older than all that the place keeps.
        self._waiting: list[Commit] = []
        self._damaged: set[Commit] = set()  # Copies that were read, and are not whole.
        self._skipped: set[Commit] = set()
        self._failed: dict[Commit, Exception] = {}  # Steps that cannot be copied.
        self._error: Exception | None = None  # The last failure of the place.
        self._untold: Exception | None = None
        self._copied = self._copied_bytes = self._failures = 0

    def wake(self, commit: Commit | None = None, *, replaces: bool = False) -> None:
        """Look at the places soon; `commit` has just been saved, perhaps to replace another."""
        with self._changed:
            if commit is not None:
                if replaces:
                    self._mine.add(commit)
                self._waiting.append(commit)
                self._has_news = True
            self._is_wanted = True
            if self._thread is None:
                name = f"ffrecord-flush-{self._number}"
                # No daemon: a program that ends waits for it.
                self._thread = threading.Thread(target=self._run, name=name, daemon=False)
                self._thread.start()

    def make_room(self) -> None:
        """Look at the places if nobody has, and wait while too much waits, where that is asked.

        Raises:
            FlushError: something has failed since the last call, and the way says to raise that.
        """
        way = self._flusher.way
        if self._begun == 0:
            self.wake()
        if way.on_failure is OnFailure.RAISE:
            with self._changed:
                untold, self._untold = self._untold, None
            if untold is not None:
                raise self._flush_error() from untold
        if way.on_full is OnFull.SKIP:
            return
        while self._is_full():
            with self._changed:
                swept = self._begun + 1
            self.wake()
            self._wait_for_room(swept)
            with self._changed:
                if self._error is not None and way.on_failure is not OnFailure.RETRY:
                    return  # The log has it, and the save goes on.

    def _wait_for_room(self, swept: int) -> None:
        """Wait until there is room, or until so many sweeps have ended.

        Each step that gets there is progress of the save, for ranks that wait for it.
        """
        while not self._has_swept(swept) and self._is_full():
            waiting = self._count_waiting()
            activity.now(f"waits for room at {self.place}, for which {waiting} steps wait")

            def is_over(seen: int = waiting) -> bool:
                return (
                    self._has_swept(swept) or not self._is_full() or self._count_waiting() != seen
                )

            _wait(is_over, self._changed)

    def flush(self, timeout_s: float | None) -> Exception | None:
        """Wait for a sweep that begins now; return why the place lacks steps.

        Raises:
            TimeoutError: it has not ended by then.
        """
        with self._changed:
            swept = self._begun + 1
            self._is_asked = True
        self._hurried.set()
        self.wake()
        if not _wait(lambda: self._has_swept(swept), self._changed, timeout_s):
            raise TimeoutError(f"{self.place} still lacks steps after {timeout_s} s")
        with self._changed:
            return self._error or next(iter(self._failed.values()), None)

    def passes_over(self, commit: Commit) -> bool:
        """Whether the place is not to have it: newer ones were waiting, or are all it keeps."""
        with self._changed:
            return commit in self._skipped or commit in self._unwanted

    def has_whole(self, commit: Commit) -> bool:
        """Whether the place has it; reads what this process has not verified there.

        A copy that turns out to be damaged is made again.
        """
        backup = Backup("", self.place, timeout_s=self._flusher.way.timeout_s)
        try:
            if backup.is_whole(commit, reads=True):
                return True
        except OSError:
            return False  # Nobody knows; a place that fails is in the log already.
        with self._changed:
            is_new = commit not in self._damaged
            self._damaged.add(commit)
        if is_new:
            self.wake()
        return False

    def stats(self) -> Flushed:
        """The figures of this process."""
        with self._changed:
            error = self._error or next(iter(self._failed.values()), None)
            return Flushed(
                self.place,
                self._copied,
                self._copied_bytes,
                len(self._waiting),
                sum(commit.size_bytes for commit in self._waiting),
                len(self._skipped),
                self._failures,
                "" if error is None else f"{type(error).__name__}: {error}",
            )

    def _count_waiting(self) -> int:
        with self._changed:
            return len(self._waiting)

    def _is_full(self) -> bool:
        with self._changed:
            return self._begun == 0 or self._flusher.way.is_full(self._waiting)

    def _has_swept(self, number: int) -> bool:
        return self._ended >= number

    def _run(self) -> None:
        give_way()
        while True:
            with self._changed:
                if not self._is_wanted:
                    self._thread = None
                    self._changed.notify_all()
                    return
                self._is_wanted = False
            self._round()

    def _round(self) -> None:
        """Sweep until nothing waits; if the place fails, as often as the way says."""
        pause_s, is_last = self._flusher.way.retry_s, False
        while not self._swept():
            if is_last or self._flusher.way.on_failure is not OnFailure.RETRY:
                break
            is_last = self._pause(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)
        if is_last or not threading.main_thread().is_alive():
            self._tell_what_is_left()

    def _swept(self) -> bool:
        with self._changed:
            self._begun += 1
            # Cleared here: who hurries waits for the next sweep that begins.
            self._hurried.clear()
        try:
            error = self._sweep()
        except Exception as failure:
            error = failure
        if error is not None:
            self._fail(error, f"steps cannot be copied to {self.place}")
            with self._changed:  # Nothing else is known where the place cannot be listed.
                self._waiting = self._not_passed_over(self._waiting)
        self._flusher.tidy()
        with self._changed:
            self._error = error
            self._ended = self._begun
            self._changed.notify_all()
        return error is None

    def _sweep(self) -> Exception | None:
        """Copy what waits, oldest first; returns why the place cannot be written to."""
        tried: set[Commit] = set()
        while left := [commit for commit in self._look() if commit not in tried]:
            for commit in left:
                tried.add(commit)
                try:
                    self._bring(commit)
                except OF_A_STEP as error:
                    self._fail_step(commit, error)
                except Exception as error:
                    return error
                if self._has_news:
                    break  # Perhaps more is passed over now.
        return None

    def _look(self) -> list[Commit]:
        """List what waits, as the places say; pass over the oldest if that is too much."""
        way = self._flusher.way
        self._backup.timeout_s = way.timeout_s
        self._backup.compress = way.compress and self._number == len(way.places) - 1
        with self._changed:
            self._has_news = False
            damaged_copies = set(self._damaged)
            if self._is_asked:
                self._failed, self._is_asked = {}, False
            failed = set(self._failed)
            mine = set(self._mine)  # Those of later come in the next look.
        lacking, unwanted = self._backup.lacking(way.keep[self._number], damaged_copies, failed)
        able = [commit for commit in lacking if not commit.damage]
        with self._changed:
            self._unwanted = unwanted
            self._mine -= mine.difference(lacking)
            self._damaged -= damaged_copies.difference(lacking)
            self._skipped.intersection_update(lacking)
            self._failed = {each: why for each, why in self._failed.items() if each in lacking}
        waiting = self._not_passed_over(able)
        with self._changed:
            known = set(self._failed)
            self._waiting = [each for each in waiting if each not in known]
            self._changed.notify_all()
        damaged = [commit for commit in lacking if commit.damage]
        return [each for each in [*waiting, *damaged] if each not in known]

    def _not_passed_over(self, waiting: list[Commit]) -> list[Commit]:
        """Note and log which are passed over; return the others."""
        way = self._flusher.way
        count = way.passed_over(waiting)
        with self._changed:
            new = [commit for commit in waiting[:count] if commit not in self._skipped]
            self._skipped.update(new)
        for commit in new:
            ledger().flushed(skipped=1)
            _log.warning(
                "step %d of %s is passed over, and may never be at %s: newer steps wait for it",
                commit.step,
                way.places[0],
                self.place,
            )
        return waiting[count:]

    def _bring(self, commit: Commit) -> None:
        made = self._backup.bring(commit, replaces=commit in self._mine)
        ledger().flushed(copied=1)
        with self._changed:
            self._copied += 1
            self._copied_bytes += made.size_bytes
            self._waiting = [each for each in self._waiting if each != commit]
            self._skipped.discard(commit)
            self._damaged.discard(commit)
            self._changed.notify_all()

    def _fail_step(self, commit: Commit, error: Exception) -> None:
        if commit not in self._backup.here():
            return  # Retention, or its user, has removed it meanwhile.
        self._fail(error, f"step {commit.step} cannot be copied to {self.place}")
        with self._changed:
            self._failed[commit] = error
            self._waiting = [each for each in self._waiting if each != commit]

    def _fail(self, error: Exception, what: str) -> None:
        ledger().flushed(failed=1)
        with self._changed:
            self._failures += 1
            self._untold = error
        _log.warning("%s: %s: %s", what, type(error).__name__, error)

    def _flush_error(self) -> FlushError:
        return FlushError(f"{self.place} lacks steps: {self.stats().error}")

    def _pause(self, pause_s: float) -> bool:
        """Let time pass, unless somebody hurries; whether the program ends."""
        end = clock.now() + pause_s
        while clock.now() < end and threading.main_thread().is_alive():
            if clock.wait(self._hurried.wait, min(_GLANCE_S, pause_s)):
                return False
        return not threading.main_thread().is_alive()

    def _tell_what_is_left(self) -> None:
        left = self.stats()
        if left.error:
            _log.error(
                "the program ends, and %s lacks %d steps or more (%s): the next run copies them, "
                "or: ffrecord checkpoint flush '%s'",
                self.place,
                left.waiting,
                left.error,
                self._flusher.address,
            )


class Flusher:
    """The lanes of one staged target in this process. Thread-safe."""

    def __init__(self, way: Way) -> None:
        """Start nothing yet."""
        self.way = way
        self.address = STAGED + ">".join(way.places)
        self.lanes = [Lane(self, number) for number in range(1, len(way.places))]
        self._tidying = threading.Lock()

    def make_room(self) -> None:
        """As `Lane.make_room`, for each place."""
        for lane in self.lanes:
            lane.make_room()

    def saved(self, commit: Commit, *, replaces: bool) -> None:
        """Copy a step that was saved just now, if it `replaces` also over another save of it."""
        for lane in self.lanes:
            lane.wake(commit, replaces=replaces)

    def flush(self, timeout_s: float | None) -> None:
        """Wait until every place has all; raises like `flush` of `ffrecord.checkpoint`."""
        end = None if timeout_s is None else clock.now() + timeout_s
        failures = {}
        for lane in self.lanes:
            error = lane.flush(None if end is None else max(0.0, end - clock.now()))
            if error is not None:
                failures[lane.place] = error
        if failures:
            told = "; ".join(
                f"{place}: {type(why).__name__}: {why}" for place, why in failures.items()
            )
            raise FlushError(f"not all steps have reached {told}") from next(
                iter(failures.values())
            )

    def stats(self) -> tuple[Flushed, ...]:
        """The figures of each later place."""
        return tuple(lane.stats() for lane in self.lanes)

    def tidy(self) -> None:
        """Remove at each place the steps that it does not keep, oldest first."""
        with self._tidying:
            for number, keep in enumerate(self.way.keep):
                if keep is None:
                    continue
                try:
                    self._tidy_place(number, keep)
                except Exception as error:
                    ledger().flushed(failed=1)
                    _log.warning(
                        "old steps at %s stay: %s: %s",
                        self.way.places[number],
                        type(error).__name__,
                        error,
                    )

    def _tidy_place(self, number: int, keep: int) -> None:
        place, timeout_s = self.way.places[number], self.way.timeout_s
        old = _ffrecord.prune_checkpoints(place, keep, 0, True, True, timeout_s)
        if not old:
            return
        listed = _ffrecord.list_checkpoints(place, timeout_s, roots_only=True, line_of=self.address)
        given_up = {Commit(*found) for found in listed if found[4]}
        for commit in (Commit(*found) for found in old):
            if commit in given_up or self._may_leave(commit, number):
                with contextlib.suppress(FileNotFoundError):  # Another process has removed it.
                    _ffrecord.remove_checkpoint(place, commit.step, timeout_s, commit.attempt)

    def _may_leave(self, commit: Commit, number: int) -> bool:
        """Whether it is whole at a later place, or is to come to none."""
        later = self.lanes[number:]
        return all(lane.passes_over(commit) for lane in later) or any(
            lane.has_whole(commit) for lane in later
        )


def _wait(
    comes: Callable[[], bool], changed: threading.Condition, timeout_s: float | None = None
) -> bool:
    """Whether it comes within `timeout_s`, if given, as those who wait are notified."""

    def waited(limit_s: float | None) -> bool:
        with changed:
            return changed.wait_for(comes, limit_s)

    return waited(None) if timeout_s is None else clock.wait(waited, timeout_s)
