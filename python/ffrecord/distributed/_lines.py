"""Messages between single ranks: one line for each pair of ranks and direction."""

import collections
import contextlib
import dataclasses
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ffrecord._ffrecord import CollectiveEngine
from ffrecord.distributed._meeting import Looking, meet_at
from ffrecord.distributed._pump import Future, Pump

_SENDER, _RECEIVER = 0, 1
_SETTINGS = ("listen_host", "timeout_s", "chunk_size_bytes")


class Lines:
    """All lines from and to this rank, each of which is made when it is first used.

    A line is a group of two, in which the sender broadcasts. The sender does not wait for the
    receiver to be there; nor does the receiver. Thread-safe.
    """

    def __init__(
        self,
        store: Any,  # noqa: ANN401  # A torch.distributed.Store.
        settings: dict[str, Any],
    ) -> None:
        """Make none yet. The ranks of the group with these settings meet at the store."""
        self._store, self._settings = store, settings
        self._rank: int = settings["rank"]
        self._lock = threading.Lock()
        self._senders: dict[int, _Sender] = {}
        self._receivers: dict[int, _Receiver] = {}
        self._is_stopped = False

    def send(self, array: torch.Tensor, rank: int, tag: int, future: Future) -> None:
        """Send the bytes of an array, which must not change until `future` has ended."""
        with self._lock:
            self._check()
            line = self._senders.get(rank)
            if line is None:
                line = self._senders[rank] = _Sender(*self._place(self._rank, rank, _SENDER))
        line.send(array, tag, future)

    def receive(self, array: torch.Tensor, rank: int, tag: int, future: Future) -> None:
        """Receive the bytes that were sent with that tag; the first of them, if there are more."""
        with self._lock:
            self._check()
            line = self._receivers.get(rank)
            if line is None:
                line = self._receivers[rank] = _Receiver(*self._place(rank, self._rank, _RECEIVER))
        line.receive(array, tag, future)

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

    def _place(self, sender: int, receiver: int, place: int) -> tuple[Any, ...]:
        settings = {name: self._settings[name] for name in _SETTINGS if name in self._settings}
        settings |= {"rank": place, "world_size": 2, "algorithm": "ring"}
        for name, value in self._settings.items():
            if name.startswith("rdma_") or name in ("shares_memory", "streams", "transport"):
                settings[name] = value
        return self._store, (sender, receiver), settings


class _Line:
    """One end of a line. Messages wait until the other end is there."""

    def __init__(
        self,
        store: Any,  # noqa: ANN401  # A torch.distributed.Store.
        ranks: tuple[int, int],
        settings: dict[str, Any],
    ) -> None:
        """`ranks` are sender and receiver, in the group."""
        self._ranks = ranks
        self.name = f"line {ranks[_SENDER]} to {ranks[_RECEIVER]}"
        self._lock = threading.Lock()
        self._after: list[Callable[[], object]] = []  # For when the lock is free.
        self._waiting: list[Callable[[], None]] = []
        self._pump: Pump | None = None
        self._failure: Exception | None = None
        self._is_stopped = False
        threading.Thread(
            target=self._meet, args=(store, settings), name="ffrecord-line", daemon=True
        ).start()

    def stop(self) -> None:
        """Leave it; pending operations fail."""
        self._is_stopped = True
        self._fail(RuntimeError(f"{self.name}: this rank has left the group"))
        if self._pump is not None:
            self._pump.stop()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """With the lock. Callbacks of futures, which may do anything, come after it."""
        with self._lock:
            yield
            after, self._after = self._after, []
        for action in after:
            action()

    def _fail(self, error: Exception) -> None:
        """Nothing goes over it any more."""
        with self._locked():
            self._failure = self._failure or error
            self._do_waiting()

    def _meet(self, store: Any, settings: dict[str, Any]) -> None:  # noqa: ANN401
        looking = Looking(store, f"{self.name}/", settings["timeout_s"], lambda: self._is_stopped)
        try:
            engine = meet_at(looking, settings)
        except Exception as error:
            text = f"{self.name}: the other rank does not take part: {self._in_group(error)}"
            self._fail(RuntimeError(text))
            return
        pump = Pump(engine, is_recorded=False, told=self._told)
        with self._locked():
            self._pump = pump
            self._do_waiting()
        if self._is_stopped:
            pump.stop()

    def _told(self, error: Exception) -> Exception:
        return type(error)(f"{self.name}: {self._in_group(error)}")

    def _in_group(self, error: Exception) -> str:
        """Its text, with the ranks of the group: the engine knows two, the sender first."""
        return re.sub(
            r"\brank ([01])\b", lambda its: f"rank {self._ranks[int(its[1])]}", str(error)
        )

    def _do_waiting(self) -> None:
        """Requires the lock."""
        actions, self._waiting = self._waiting, []
        for action in actions:
            action()

    def _when_met(self, action: Callable[[], None]) -> None:
        """Do it under the lock, in the order of the calls."""
        with self._locked():
            if self._pump is None and self._failure is None:
                self._waiting.append(action)
            else:
                action()

    def _broadcast(self, array: torch.Tensor, future: Future | None = None) -> Future:
        """Requires the lock, and that the other end is there, or will never be."""
        ended: Future = torch.futures.Future() if future is None else future
        try:
            if self._failure is not None:
                raise self._failure
            assert self._pump is not None
            self._pump.submit(array, 0, _from_sender, future=ended)
        except Exception as error:  # It has failed before.
            self._fail_later(ended, error)
        return ended

    def _fail_later(self, future: Future, error: Exception) -> None:
        """Requires the lock."""
        self._after.append(lambda: future.set_exception(error))  # type: ignore[arg-type]


class _Sender(_Line):
    """The end that sends: of each message a header, and then the bytes."""

    def send(self, array: torch.Tensor, tag: int, future: Future) -> None:
        header = torch.tensor([tag, array.numel()])

        def start() -> None:
            if array.numel() == 0:
                self._broadcast(header.view(torch.uint8), future)
            else:
                self._broadcast(header.view(torch.uint8))
                self._broadcast(array, future)

        self._when_met(start)


@dataclasses.dataclass(eq=False)  # Each is itself alone.
class _Wanted:
    array: torch.Tensor
    tag: int
    future: Future


@dataclasses.dataclass(eq=False)  # Each is itself alone.
class _Early:
    """A message that nobody wanted yet when it came."""

    array: torch.Tensor
    tag: int
    received: Future


class _Receiver(_Line):
    """The end that receives.

    It asks for a header only while something is wanted, so an idle line has no operation that could
    be late. A message with another tag than those that are wanted is kept until it is wanted.
    """

    def __init__(self, *place: Any) -> None:  # noqa: ANN401
        self._wanted: list[_Wanted] = []
        self._early: collections.deque[_Early] = collections.deque()
        self._is_asking = False
        super().__init__(*place)

    def receive(self, array: torch.Tensor, tag: int, future: Future) -> None:
        self._when_met(lambda: self._want(_Wanted(array, tag, future)))

    def _want(self, wanted: _Wanted) -> None:
        """Requires the lock."""
        early = next((each for each in self._early if each.tag == wanted.tag), None)
        if early is not None:
            self._early.remove(early)
            self._hand_over(early, wanted)
            return
        self._wanted.append(wanted)
        self._ask()

    def _ask(self) -> None:
        """Requires the lock."""
        if self._is_asking or not self._wanted:
            return
        self._is_asking = True
        header = torch.empty(2, dtype=torch.int64)
        told = self._broadcast(header.view(torch.uint8))
        self._after.append(lambda: told.add_done_callback(lambda _: self._take(told, header)))

    def _take(self, told: Future, header: torch.Tensor) -> None:
        """A header has come, or will not."""
        with self._locked():
            self._is_asking = False
            try:
                told.value()
            except Exception as error:
                self._failure = self._failure or error
                for wanted in self._wanted:
                    self._fail_later(wanted.future, error)
                self._wanted.clear()
            else:
                self._receive(*header.tolist())
                self._ask()

    def _receive(self, tag: int, size_bytes: int) -> None:
        """Requires the lock."""
        wanted = next((each for each in self._wanted if each.tag == tag), None)
        if wanted is not None:
            self._wanted.remove(wanted)
            if size_bytes > 0 and wanted.array.numel() == size_bytes:
                self._broadcast(wanted.array, wanted.future)
                return
        array = torch.empty(size_bytes, dtype=torch.uint8)
        received: Future = torch.futures.Future()
        if size_bytes > 0:
            self._broadcast(array, received)
        else:
            received.set_result(array)
        early = _Early(array, tag, received)
        if wanted is None:
            self._early.append(early)
        else:
            self._hand_over(early, wanted)

    def _hand_over(self, early: _Early, wanted: _Wanted) -> None:
        """Requires the lock."""
        self._after.append(lambda: early.received.add_done_callback(lambda _: _copy(early, wanted)))


def _copy(early: _Early, wanted: _Wanted) -> None:
    try:
        early.received.value()
        if early.array.numel() != wanted.array.numel():
            raise ValueError(
                f"recv: {early.array.numel()} bytes were sent with tag {wanted.tag}, and the"
                f" tensor has {wanted.array.numel()}"
            )
        with torch.inference_mode():
            wanted.array.copy_(early.array)
    except Exception as error:
        wanted.future.set_exception(error)  # type: ignore[arg-type]
    else:
        wanted.future.set_result(wanted.array)


def _from_sender(engine: CollectiveEngine, address: int, count: int, dtype: str) -> int:
    return engine.broadcast(address, count, dtype, _SENDER)
