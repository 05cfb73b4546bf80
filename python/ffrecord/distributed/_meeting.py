"""How the ranks of a group find each other: through a store of torch.distributed."""

import secrets
from collections.abc import Callable
from typing import Any, Protocol

from ffrecord._base import clock
from ffrecord._ffrecord import CollectiveEngine

_SECRET_SIZE = 16
# Between two looks at a store.
_LOOK_MIN_S, _LOOK_MAX_S = 0.0005, 0.02
# How long the first rank of a monitored barrier may need to tell what it has found.
_TELLING_S = 10.0


class Store(Protocol):
    """A part of a `torch.distributed.Store`. Thread-safe."""

    def set(self, key: str, value: str) -> None:
        """Set the value of a key."""

    def get(self, key: str) -> bytes:
        """The value of a key; waits until it is set."""


def meet_at(store: Store, settings: dict[str, Any]) -> CollectiveEngine:
    """An engine with `settings`, connected to those of all ranks, which meet at the store."""
    rank, size = settings["rank"], settings["world_size"]
    engine = CollectiveEngine(**settings)
    if rank == 0:
        store.set("secret", secrets.token_hex(_SECRET_SIZE))
    store.set(f"address/{rank}", engine.address)
    addresses = [bytes(store.get(f"address/{i}")).decode() for i in range(size)]
    engine.connect(addresses, bytes.fromhex(bytes(store.get("secret")).decode()))
    return engine


class Looking:
    """A part of a store whose keys are looked for again and again.

    A store that waits for one key answers nobody else of this process until it is set.
    """

    def __init__(
        self,
        store: Any,  # noqa: ANN401  # A torch.distributed.Store.
        prefix: str,
        limit_s: float,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Keys begin with `prefix`; nothing is waited for longer than `limit_s` from now on."""
        self._store, self._prefix = store, prefix
        self._limit_s, self._is_stopped = limit_s, is_stopped
        self._ends = clock.now() + limit_s

    def set(self, key: str, value: str) -> None:
        """Set the value of a key."""
        self._store.set(self._prefix + key, value)

    def get(self, key: str) -> bytes:
        """The value of a key, once it is set.

        Raises:
            TimeoutError: it is not set in time.
            RuntimeError: it is looked for no more, or the store is gone.
        """
        found = self.wait_for(key, lambda _: True)
        if found is None:
            raise TimeoutError(f"nothing came within {self._limit_s:g} s")
        return found

    def wait_for(self, key: str, is_it: Callable[[bytes], bool]) -> bytes | None:
        """The value of a key, once it is the right one; None if it is not in time."""
        pause = _LOOK_MIN_S
        while True:
            if self._store.check([self._prefix + key]):
                found = bytes(self._store.get(self._prefix + key))
                if is_it(found):
                    return found
            if self._is_stopped():
                raise RuntimeError("this rank has left the group")
            left = self._ends - clock.now()
            if left <= 0:
                return None
            clock.sleep(min(pause, left))
            pause = min(pause * 2, _LOOK_MAX_S)


class MonitoredBarrier:
    """A barrier at a store, which names the ranks that do not arrive.

    It needs no connection between ranks, so a rank that hangs in an operation is named, too. One
    thread at a time.
    """

    def __init__(
        self,
        store: Any,  # noqa: ANN401  # A torch.distributed.Store.
        rank: int,
        size: int,
    ) -> None:
        """Join as this rank of a group, which alone uses the store."""
        self._store, self._rank, self._size = store, rank, size
        self._count = 0

    def meet(self, limit_s: float, *, wait_all_ranks: bool) -> None:
        """Return when all ranks have arrived.

        Raises:
            RuntimeError: ranks have not arrived within `limit_s`; the message names the first of
            them, or all with `wait_all_ranks`.
        """
        self._count += 1
        looking = self._looking(limit_s)
        looking.set(str(self._rank), str(self._count))
        if self._rank == 0:
            missing = self._missing(looking, wait_all_ranks)
            verdict = _verdict(missing, limit_s) if missing else ""
            looking.set("verdict", f"{self._count} {verdict}")
        else:
            verdict = self._told(looking, limit_s)
        if verdict:
            raise RuntimeError(f"monitored_barrier: {verdict}")

    def _looking(self, limit_s: float) -> Looking:
        return Looking(self._store, "monitored barrier/", limit_s)

    def _told(self, looking: Looking, limit_s: float) -> str:
        """The verdict of rank 0, which may have come as late as it was allowed to."""
        if not self._has_come(looking, 0):
            return _verdict([0], limit_s)
        found = self._looking(limit_s + _TELLING_S).wait_for("verdict", self._is_now)
        return "rank 0 does not go on" if found is None else found.decode().partition(" ")[2]

    def _has_come(self, looking: Looking, rank: int) -> bool:
        return looking.wait_for(str(rank), self._is_now) is not None

    def _is_now(self, text: bytes) -> bool:
        return int(text.partition(b" ")[0]) >= self._count

    def _missing(self, looking: Looking, wait_all_ranks: bool) -> list[int]:
        missing = []
        for rank in range(1, self._size):
            if not self._has_come(looking, rank):
                missing.append(rank)
                if not wait_all_ranks:
                    break
        return missing


def _verdict(missing: list[int], limit_s: float) -> str:
    names = ", ".join(map(str, missing))
    return f"rank{'s' * (len(missing) > 1)} {names} did not arrive within {limit_s:g} s"
