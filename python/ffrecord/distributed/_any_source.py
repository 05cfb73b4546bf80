"""Receives of a message from whichever rank sends one."""

import dataclasses
import threading
from typing import Any

import torch

from ffrecord._base import clock
from ffrecord.distributed._lines import Line, Lines
from ffrecord.distributed._pump import Future

# Between two looks at the store for ranks that have begun to send.
_LOOK_MIN_S, _LOOK_MAX_S = 0.0005, 0.02


@dataclasses.dataclass(eq=False)  # Each is itself alone.
class Asked:
    """A receive from any rank."""

    array: torch.Tensor
    tag: int
    ends_at: float
    future: Future
    source: int = -1
    """The rank that has sent it, once the future has ended."""


class AnySource:
    """Receives from any rank, in the order of the calls with each tag.

    A rank that first sends to this one leaves a note at the store. One thread looks there while a
    receive waits, has each line from a rank say when it has a message, and takes the first. Ranks
    take turns, so that none of them is passed over. Thread-safe.
    """

    def __init__(self, lines: Lines) -> None:
        """Start nothing yet."""
        self._lines = lines
        self._lock = threading.Lock()
        self._asked: list[Asked] = []
        self._news = threading.Event()
        self._probed: set[tuple[int, int]] = set()  # Rank and tag.
        self._gone: dict[int, Exception] = {}
        self._senders: list[int] = []  # The one whose turn it is first.
        self._has_thread = self._is_stopped = False

    def receive(self, array: torch.Tensor, tag: int) -> Asked:
        """Receive the bytes that some rank has sent, or will, with that tag."""
        asked = Asked(array, tag, clock.now() + self._lines.timeout_s, torch.futures.Future())
        with self._lock:
            if self._is_stopped:
                raise RuntimeError("this rank has left the group")
            self._asked.append(asked)
            starts, self._has_thread = not self._has_thread, True
        if starts:
            threading.Thread(target=self._run, name="ffrecord-any-source", daemon=True).start()
        self._news.set()
        return asked

    def stop(self) -> None:
        """Receive no more; those that wait fail."""
        with self._lock:
            self._is_stopped = True
            asked, self._asked = self._asked, []
        self._news.set()
        for each in asked:
            _fail(each, "this rank has left the group")

    # --- The thread ---

    def _run(self) -> None:
        pause = _LOOK_MIN_S
        while not self._is_stopped:
            asked = self._waiting()
            if not asked:
                pause = _LOOK_MIN_S
                self._news.wait()
            elif clock.wait(self._news.wait, self._until(asked, pause)):
                pause = _LOOK_MIN_S
            else:
                pause = min(2 * pause, _LOOK_MAX_S)
            self._news.clear()
            try:
                self._look()
            except Exception as error:  # The store is gone, with its rank.
                for each in self._waiting():
                    self._end(each, f"the ranks that send cannot be found: {error}")

    def _waiting(self) -> list[Asked]:
        with self._lock:
            return list(self._asked)

    def _until(self, asked: list[Asked], pause: float) -> float:
        if len(self._senders) + len(self._gone) < self._lines.size - 1:
            return pause
        return max(min(each.ends_at for each in asked) - clock.now(), 0.0)

    def _look(self) -> None:
        known = len(self._senders) + len(self._gone)
        if self._waiting() and known < self._lines.size - 1:
            self._senders += self._lines.senders()[known:]
        for each in self._waiting():
            if not self._take(each):
                self._probe(each.tag)
                self._give_up(each)

    def _take(self, asked: Asked) -> bool:
        for rank in [*self._senders, *self._gone]:
            line = self._lines.from_rank(rank)
            message = line.receive_kept(asked.array, asked.tag)
            if message is not None:
                if rank in self._senders:  # The others are first next time.
                    self._senders.remove(rank)
                    self._senders.append(rank)
                asked.source = rank
                with self._lock:
                    is_wanted = asked in self._asked
                    if is_wanted:
                        self._asked.remove(asked)
                if is_wanted:  # Else this rank is leaving.
                    message.future().add_done_callback(lambda ended: _pass_on(ended, asked))
                return True
        return False

    def _probe(self, tag: int) -> None:
        for rank in list(self._senders):
            with self._lock:
                is_probed = (rank, tag) in self._probed
                self._probed.add((rank, tag))
            if not is_probed:
                self._probe_line(self._lines.from_rank(rank), rank, tag)

    def _probe_line(self, line: Line, rank: int, tag: int) -> None:
        probe = line.begin(torch.empty(0, dtype=torch.uint8), lambda engine: engine.probe(tag))

        def answered(ended: torch.futures.Future[Any]) -> None:
            failure = None
            try:
                ended.value()
            except Exception as error:
                failure = error
            with self._lock:
                self._probed.discard((rank, tag))
                if failure is not None:
                    self._gone[rank] = failure
                    if rank in self._senders:
                        self._senders.remove(rank)
            self._news.set()

        probe.future().add_done_callback(answered)

    def _give_up(self, asked: Asked) -> None:
        with self._lock:
            gone = dict(self._gone)
        left = "; ".join(str(error) for _, error in sorted(gone.items()))
        if len(gone) == self._lines.size - 1:
            self._end(asked, f"no rank can send any more: {left}")
        elif clock.now() >= asked.ends_at:
            text = (
                f"no rank has sent a message with tag {asked.tag} within"
                f" {self._lines.timeout_s:g} s"
            )
            self._end(asked, f"{text}; {left}" if left else text)

    def _end(self, asked: Asked, why: str) -> None:
        with self._lock:
            if asked not in self._asked:
                return
            self._asked.remove(asked)
        _fail(asked, why)


def _fail(asked: Asked, why: str) -> None:
    asked.future.set_exception(RuntimeError(f"recv: {why}"))  # type: ignore[arg-type]


def _pass_on(ended: torch.futures.Future[Any], asked: Asked) -> None:
    try:
        ended.value()
    except Exception as error:
        asked.future.set_exception(error)  # type: ignore[arg-type]
    else:
        asked.future.set_result(asked.array)
