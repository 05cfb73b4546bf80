"""Waiting for the ranks of a process group that get on, and naming those that do not.

Ranks tell through the store of torch.distributed what they do. Only imported where torch is.
"""

import contextlib
import json
import os
import threading
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import torch.distributed as dist

from ffrecord._base import clock
from ffrecord.checkpoint._activity import Activity

# How long ranks that failed too are waited for, since the last one was heard of.
_QUIET_S = 2.0
# Limit for all; the store may be in a process that is stopped itself.
_LIMIT_S = 10.0
# Between two looks at what others do: at most so long, and longer if there are many of them.
_LOOK_S = 5.0
_RANKS_LOOKED_AT_PER_S = 100

_NAMED_MAX = 5  # Ranks in an error.

# A rank's note: its activity, a number that changes as long as it gets on, whether it waits.
Note = tuple[str, int, bool]


class Notes:
    """The notes of ranks, and since when they are unchanged. Times are any clock's."""

    def __init__(self, others: list[int], size: int) -> None:
        """Nothing is known of the `others` yet."""
        self._others, self._size = others, size
        self._notes: dict[int, Note] = {}
        self._since = dict.fromkeys(others, float("-inf"))
        self._worked = dict.fromkeys(others, float("-inf"))

    def take(self, told: Mapping[int, Note], now: float) -> None:
        """Note what ranks tell at this time."""
        for rank, note in told.items():
            before = self._notes.get(rank)
            if note != before:
                self._since[rank] = now
                if before is None or note[0] != before[0] or not note[2]:
                    self._worked[rank] = now
            self._notes[rank] = note

    def verdict(
        self, began: float, now: float, limit_s: float, behind_s: float = 0.0
    ) -> str | None:
        """Why a wait that began then is to end; None if it may go on.

        A rank may be `behind_s` further than what it told last: that is no silence.
        """
        over_s = limit_s + behind_s
        stuck = [rank for rank in self._others if now - max(began, self._since[rank]) >= over_s]
        if stuck:
            numbers = ", ".join(map(str, stuck[:_NAMED_MAX]))
            more = "" if len(stuck) <= _NAMED_MAX else f" and {len(stuck) - _NAMED_MAX} more"
            told = "; ".join(f"rank {rank} {self.told(rank)}" for rank in stuck[:_NAMED_MAX])
            return (
                f"rank {numbers}{more} of {self._size} did not answer: no progress for "
                f"{limit_s:g} s. The last that is known: {told}"
            )
        if now - max(began, *self._worked.values()) >= over_s:
            return (
                f"all {self._size} ranks have waited for each other for {limit_s:g} s: what they "
                "send does not arrive"
            )
        return None

    def told(self, rank: int) -> str:
        """The activity of a rank when it was last heard of."""
        note = self._notes.get(rank)
        return "has never come to a save or load of this group" if note is None else note[0]


class Board:
    """Where the ranks of a process group tell each other what they do.

    A thread of its own talks to the store, which may be in a process that is stopped, and does not
    limit every call.
    """

    def __init__(self, group: dist.ProcessGroup | None, limit_s: float) -> None:
        """Start the thread."""
        self._rank, self._size = dist.get_rank(group), dist.get_world_size(group)
        self._prefix = f"ffrecord/doing/{_name_of(group)}"
        self._others = [rank for rank in range(self._size) if rank != self._rank]
        self.limit_s = limit_s
        self.notes = Notes(self._others, self._size)
        self.told: Note | None = None  # The note in the store.
        self._lock, self._news = threading.Lock(), threading.Event()
        self._activity: Activity | None = None
        self._last = "has not come to a save or load"
        self._round = self._beats = 0
        self._waiting_since: float | None = None
        self._looked_at = clock.now()
        self._there: set[int] = set()
        threading.Thread(target=self._run, name="ffrecord-waiting", daemon=True).start()

    @contextlib.contextmanager
    def show(self, activity: Activity) -> Iterator[None]:
        """Tell the others what this rank does meanwhile, and at the end that it has ended."""
        with self._lock:
            self._activity, self._round = activity, 0
        self._news.set()
        try:
            yield
        finally:
            with self._lock:
                text, _ = activity.says()
                self._last = f"has left a save or load, after it said that it {text}"
                self._activity = None
            self._news.set()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[float]:
        """Wraps one wait for all ranks; gives the time when it began."""
        began = clock.now()
        with self._lock:
            self._waiting_since = began
            self._round += 1
        try:
            yield began
        finally:
            with self._lock:
                self._waiting_since = None

    def verdict(self, began: float) -> str | None:
        """Why this rank stops waiting; None if it goes on."""
        now = clock.now()
        with self._lock:
            if now - max(began, self._looked_at) >= self.limit_s:
                return (
                    f"ranks did not answer for {self.limit_s:g} s, and which ones is not known: "
                    "neither does the store of torch.distributed, which is in rank 0 or in torchrun"
                )
            # The verdict at the last look at the store.
            return self.notes.verdict(began, self._looked_at, self.limit_s, self.look_s)

    @property
    def look_s(self) -> float:
        """Between two looks."""
        return max(min(self.limit_s / 4, _LOOK_S), self._size / _RANKS_LOOKED_AT_PER_S / 4)

    def _run(self) -> None:
        while dist.is_initialized():
            self._news.clear()
            with self._lock:
                is_idle, note = self._activity is None, self._note()
            # A store that fails is asked again; if it does not answer in time, `verdict` tells.
            with contextlib.suppress(Exception):
                self._talk(note)
            if is_idle and note == self.told:
                self._news.wait()
            else:
                clock.wait(self._news.wait, self.look_s)

    def _talk(self, note: Note) -> None:
        store: Any = dist.distributed_c10d._get_default_store()  # type: ignore[no-untyped-call, unused-ignore]
        if note != self.told:
            store.set(f"{self._prefix}/{self._rank}", json.dumps(note))
            self.told = note
        if self._waiting_since is not None:
            self._look(store)

    def _note(self) -> Note:
        if self._activity is None:
            return self._last, 0, False
        text, number = self._activity.says()
        if self._waiting_since is None:
            return text, number, False
        self._beats += 1  # It lives.
        return f"waits for the others in round {self._round}; it {text}", self._beats, True

    def _look(self, store: Any) -> None:  # noqa: ANN401
        for rank in self._others:
            if rank not in self._there and store.check([f"{self._prefix}/{rank}"]):
                self._there.add(rank)
        ranks = sorted(self._there)
        texts = store.multi_get([f"{self._prefix}/{rank}" for rank in ranks]) if ranks else []
        told = {rank: tuple(json.loads(text)) for rank, text in zip(ranks, texts, strict=True)}
        with self._lock:
            self._looked_at = clock.now()
            self.notes.take(told, self._looked_at)


def _name_of(group: dist.ProcessGroup | None) -> str:
    of: Any = group or dist.group.WORLD
    return str(getattr(of, "group_name", ""))


_boards: weakref.WeakKeyDictionary[dist.ProcessGroup, Board] = weakref.WeakKeyDictionary()


def board_of(group: dist.ProcessGroup | None, limit_s: float) -> Board:
    """The board of a process group; there is one."""
    key: Any = group or dist.group.WORLD
    board = _boards.get(key)
    if board is None:
        board = _boards[key] = Board(group, limit_s)
    board.limit_s = limit_s
    return board


os.register_at_fork(after_in_child=_boards.clear)


# Failures of this process in each process group: the ranks that take part in the same one count
# alike.
_failures: Counter[str] = Counter()


def silent_ranks(process_group: dist.ProcessGroup | None) -> list[int] | None:
    """The ranks that do not say, through the group's store, that the collective failed for them.

    Costs nothing until a collective has failed. All ranks whose collective failed call it.

    Returns:
        Ranks within the group; None if that cannot be found out.
    """
    rank, size = dist.get_rank(process_group), dist.get_world_size(process_group)
    name = _name_of(process_group)
    _failures[name] += 1
    prefix = f"ffrecord/failure/{name}/{_failures[name]}"
    heard: set[int] = {rank}
    is_told = threading.Event()

    def ask() -> None:
        try:
            store: Any = dist.distributed_c10d._get_default_store()  # type: ignore[no-untyped-call, unused-ignore]
            store.set(f"{prefix}/{rank}", b"here")
            last = clock.now()
            while clock.now() - last < _QUIET_S and len(heard) < size:
                for other in set(range(size)) - heard:
                    if store.check([f"{prefix}/{other}"]):
                        heard.add(other)
                        last = clock.now()
                clock.sleep(0.05)
            is_told.set()
        except Exception:  # The error that was there before says more.
            return

    # A daemon: nothing waits for it.
    asking = threading.Thread(target=ask, name="ffrecord-silent", daemon=True)
    asking.start()
    clock.join(asking, _LIMIT_S)
    return sorted(set(range(size)) - heard) if is_told.is_set() else None
