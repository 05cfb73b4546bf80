"""Messages between single ranks: one line for each pair of ranks and direction."""

import contextlib
import math
import re
import threading
from collections.abc import Callable
from typing import Any

import torch

from ffrecord._base import clock
from ffrecord._ffrecord import CollectiveEngine
from ffrecord.distributed._meeting import Looking, meet_at
from ffrecord.distributed._pump import Future, Pump

_SENDER, _RECEIVER = 0, 1
_SETTINGS = ("listen_host", "timeout_s", "chunk_size_bytes")
# A thread that waits for a message looks so often whether other ranks wait for this one: the longer
# it has waited, the less often, and more often if it waits in a send.
_LOOK_MIN_S, _LOOK_MAX_S = 0.001, {_SENDER: 0.2, _RECEIVER: 1.0}
# A message that has begun most often ends within that.
_GRACE_S = 0.05
# Starts a message in an engine; returns its token.
Begin = Callable[[CollectiveEngine], int]


class Lines:
    """All lines from and to this rank, each of which is made when it is first used.

    A line is a group of two that carries messages. Neither call waits for the other rank to be
    there. A thread that waits for a message *serves*: it makes this rank's end of the lines by
    which others have begun to send, and takes their messages if it waits in a send. So ranks that
    all send first do not wait for each other. Thread-safe.
    """

    def __init__(
        self,
        store: Any,  # noqa: ANN401  # A torch.distributed.Store.
        settings: dict[str, Any],
    ) -> None:
        """Make none yet. The ranks of the group with these settings meet at the store."""
        self.store, self._settings = store, settings
        self.rank: int = settings["rank"]
        self.size: int = settings["world_size"]
        self.timeout_s: float = settings["timeout_s"]
        self._lock = threading.Lock()
        self._senders: dict[int, Line] = {}
        self._receivers: dict[int, Line] = {}
        self._looking = threading.Lock()
        self._noted: list[int] = []
        self._is_stopped = False

    def send(self, array: torch.Tensor, rank: int, tag: int) -> "Message":
        """Send the bytes of an array, which must not change until the message has ended."""
        with self._lock:
            self._check()
            line = self._senders.get(rank)
            if line is None:
                line = self._senders[rank] = self._line(self.rank, rank, _SENDER)
        address, size_bytes = array.data_ptr(), array.numel()
        return line.begin(array, lambda engine: engine.send(address, size_bytes, tag))

    def receive(self, array: torch.Tensor, rank: int, tag: int) -> "Message":
        """Receive the bytes that were sent with that tag; the first of them, if there are more."""
        address, size_bytes = array.data_ptr(), array.numel()
        return self.from_rank(rank).begin(
            array, lambda engine: engine.receive(address, size_bytes, tag)
        )

    def from_rank(self, rank: int) -> "Line":
        """The line that brings messages from a rank."""
        with self._lock:
            self._check()
            line = self._receivers.get(rank)
            if line is None:
                line = self._receivers[rank] = self._line(rank, self.rank, _RECEIVER)
        return line

    def senders(self) -> list[int]:
        """The ranks that have begun to send to this one, in that order."""
        with self._looking:
            if len(self._noted) < self.size - 1:
                self._noted += _senders_since(self.store, self.rank, len(self._noted))
            return list(self._noted)

    def serve(self, place: int) -> None:
        """Let other ranks go on, while a thread waits at the sender's or the receiver's place."""
        # If the store is gone, or this rank leaves, nobody can be served, and the wait goes on.
        with contextlib.suppress(RuntimeError, OSError):
            lines = [self.from_rank(rank) for rank in self.senders()]
            for line in lines if place == _SENDER else ():
                line.keep_next()

    def stop(self) -> None:
        """Leave all lines; pending operations fail."""
        with self._lock:
            self._is_stopped = True
            lines = [*self._senders.values(), *self._receivers.values()]
        for line in lines:
            line.stop()

    def _check(self) -> None:
        """Requires the lock."""
        if self._is_stopped:
            raise RuntimeError("this rank has left the group")

    def _line(self, sender: int, receiver: int, place: int) -> "Line":
        settings = {name: self._settings[name] for name in _SETTINGS if name in self._settings}
        settings |= {"rank": place, "world_size": 2, "algorithm": "ring", "carries_messages": True}
        for name, value in self._settings.items():
            if name.startswith("rdma_") or name in ("shares_memory", "streams", "transport"):
                settings[name] = value
        return Line(self.store, (sender, receiver), settings, lambda: self.serve(place))


def _note_sender(store: Any, sender: int, receiver: int) -> None:  # noqa: ANN401
    """Leave a note for the receiver, in case it receives from any rank."""
    number = store.add(f"senders to {receiver}", 1)
    store.set(f"sender {number} to {receiver}", str(sender))


def _senders_since(store: Any, receiver: int, count: int) -> list[int]:  # noqa: ANN401
    found: list[int] = []
    while store.check([key := f"sender {count + len(found) + 1} to {receiver}"]):
        found.append(int(store.get(key)))
    return found


class Line:
    """One end of a line. Messages wait until the other end is there. Thread-safe."""

    def __init__(
        self,
        store: Any,  # noqa: ANN401  # A torch.distributed.Store.
        ranks: tuple[int, int],
        settings: dict[str, Any],
        serve: Callable[[], None],
    ) -> None:
        """`ranks` are sender and receiver, in the group; threads that wait here call `serve`."""
        self._ranks = ranks
        self.name = f"line {ranks[_SENDER]} to {ranks[_RECEIVER]}"
        self._serve = serve
        self._look_max_s = _LOOK_MAX_S[settings["rank"]]
        self._lock = threading.Lock()
        self._waiting: list[Message] = []  # For the other end.
        self.engine: CollectiveEngine | None = None
        self._pump: Pump | None = None
        self._failure: Exception | None = None
        self._is_stopped = False
        threading.Thread(
            target=self._meet, args=(store, settings), name="ffrecord-line", daemon=True
        ).start()

    def begin(self, array: torch.Tensor, begin: Begin) -> "Message":
        """A message, or a probe, that begins once the other end is there; keeps `array` alive."""
        message = Message(self, array, begin)
        with self._lock:
            if self.engine is None and self._failure is None:
                self._waiting.append(message)
                return message
            failure = self._failure if self.engine is None else None
            # Under the lock: messages begin in the order of calls.
            ends = message.start(self.engine, failure)
        ends()
        return message

    def receive_kept(self, array: torch.Tensor, tag: int) -> "Message | None":
        """Receive a message that has come, or begun to come; None if there is none."""
        with self._lock:
            engine = self.engine
        if engine is None:
            return None
        token = engine.receive_kept(array.data_ptr(), array.numel(), tag)
        if token is None:
            return None
        message = Message(self, array, lambda _: token)
        message.start(engine, None)()
        return message

    def keep_next(self) -> None:
        """Take the message that the sender has begun to send, though nothing waits for it."""
        with self._lock:
            engine = self.engine
        if engine is not None:
            engine.keep_next()

    def serve_until(
        self, ends_within: Callable[[float], bool], first_s: float, limit_s: float
    ) -> bool:
        """Wait, in turns with serving, first for `first_s`; whether it ends within `limit_s`."""
        ends_at, pause = clock.now() + limit_s, first_s
        while not ends_within(max(min(pause, ends_at - clock.now()), 0.0)):
            if clock.now() >= ends_at:
                return False
            self._serve()
            pause = min(2 * pause, self._look_max_s)
        return True

    def pump(self) -> Pump:
        """The threads that complete futures; there are none until one is wanted."""
        with self._lock:
            if self._pump is None:
                assert self.engine is not None
                self._pump = Pump(self.engine, is_recorded=False, told=self.told)
            return self._pump

    def told(self, error: Exception) -> Exception:
        """An error of the engine, with the ranks of the group."""
        return type(error)(f"{self.name}: {self._in_group(error)}")

    def stop(self) -> None:
        """Leave it; pending operations fail."""
        self._is_stopped = True
        self._met(None, RuntimeError(f"{self.name}: this rank has left the group"))
        with self._lock:
            engine, pump = self.engine, self._pump
        if pump is not None:
            pump.stop()
        elif engine is not None:
            engine.shutdown()

    def _meet(self, store: Any, settings: dict[str, Any]) -> None:  # noqa: ANN401
        looking = Looking(store, f"{self.name}/", settings["timeout_s"], lambda: self._is_stopped)
        try:
            if settings["rank"] == _SENDER:
                _note_sender(store, *self._ranks)
            engine = meet_at(looking, settings)
        except Exception as error:
            text = f"{self.name}: the other rank does not take part: {self._in_group(error)}"
            self._met(None, RuntimeError(text))
            return
        self._met(engine, None)

    def _met(self, engine: CollectiveEngine | None, failure: Exception | None) -> None:
        """The other end is there, or will never be."""
        with self._lock:
            if self.engine is not None or self._failure is not None:
                if engine is not None:
                    engine.shutdown()  # This rank has left meanwhile.
                return
            self.engine, self._failure = engine, failure
            waiting, self._waiting = self._waiting, []
            ends = [message.start(engine, failure) for message in waiting]
        for end in ends:
            end()

    def _in_group(self, error: Exception) -> str:
        """Its text, with the ranks of the group: the engine knows two, the sender first."""
        return re.sub(
            r"\brank ([01])\b", lambda its: f"rank {self._ranks[int(its[1])]}", str(error)
        )


class Message:
    """A message that is sent or received, or a probe for one.

    The thread that waits for it is woken by the engine. Only where there is a future, a thread of
    the line completes that. Thread-safe.
    """

    def __init__(self, line: Line, array: torch.Tensor, begin: Begin) -> None:
        """Not begun yet."""
        self._line, self._array, self._begin = line, array, begin
        self._lock = threading.Lock()
        self._has_begun = threading.Event()
        self._token: int | None = None
        self._failure: Exception | None = None
        self._has_ended = False
        self._is_waited_for = False  # By a thread in the engine.
        self._future: Future | None = None
        self._is_future_over = False

    def start(
        self, engine: CollectiveEngine | None, failure: Exception | None
    ) -> Callable[[], None]:
        """Begin it, or note why it cannot; returns a call for when no lock is held."""
        token = None
        try:
            if failure is not None:
                raise failure
            assert engine is not None
            token = self._begin(engine)
        except Exception as error:  # It has failed before.
            failure = error if engine is None else self._line.told(error)
        with self._lock:
            self._token, self._failure = token, failure
            self._has_ended = failure is not None
            announces = self._future is not None and token is not None
        self._has_begun.set()
        if announces:
            return self._announce
        return self._complete_future if failure is not None else lambda: None

    def wait(self) -> None:
        """Wait until it has ended.

        Raises:
            RuntimeError: it has failed.
        """
        if not self._has_begun.is_set():
            self.await_event(self._has_begun)
        with self._lock:
            future = self._future
            waits = not self._has_ended and future is None and not self._is_waited_for
            if waits:
                self._is_waited_for = True
            elif not self._has_ended and future is None:  # Another thread waits in the engine.
                future = self._future = torch.futures.Future()
        if waits:
            self._wait_in_engine()
        elif future is not None:
            ended = threading.Event()
            future.add_done_callback(lambda _: ended.set())
            self.await_event(ended)
            try:
                future.wait()
            except Exception as error:  # The engine's own.
                raise RuntimeError(str(error)) from error
        if self._failure is not None:
            raise RuntimeError(str(self._failure)) from self._failure

    def await_event(self, event: threading.Event, limit_s: float = math.inf) -> bool:
        """Wait for an event that this message brings about; whether it comes within the limit."""

        def comes_within(pause: float) -> bool:
            return clock.wait(event.wait, pause)

        return self._line.serve_until(comes_within, _LOOK_MIN_S, limit_s)

    def future(self) -> Future:
        """A future that ends with it."""
        with self._lock:
            if self._future is not None:
                return self._future
            future = self._future = torch.futures.Future()
            is_over = self._has_ended
            announces = not is_over and not self._is_waited_for and self._token is not None
        if announces:
            self._announce()
        elif is_over:
            self._complete_future()
        return future

    def _wait_in_engine(self) -> None:
        engine, token = self._line.engine, self._token
        assert engine is not None and token is not None
        # A handler of a signal, say of Ctrl-C, raises once the engine has answered.
        failure: Exception | None = RuntimeError(f"{self._line.name}: the wait was interrupted")
        try:
            self._line.serve_until(lambda pause: engine.wait_for(token, pause), _GRACE_S, math.inf)
            failure = None
        except Exception as error:
            failure = self._line.told(error)
        finally:
            with self._lock:
                self._failure, self._has_ended = failure, True
            self._complete_future()

    def _announce(self) -> None:
        """Let the line's threads complete the future."""
        assert self._future is not None
        token = self._token
        assert token is not None

        def start(engine: CollectiveEngine, *_: object) -> int:
            engine.announce(token)
            return token

        self._line.pump().submit(self._array, 0, start, future=self._future)

    def _complete_future(self) -> None:
        with self._lock:
            future = self._future
            if future is None or not self._has_ended or self._is_future_over:
                return
            self._is_future_over = True  # Each that finds it ended may come here.
        if self._failure is None:
            future.set_result(self._array)
        else:
            future.set_exception(self._failure)  # type: ignore[arg-type]
