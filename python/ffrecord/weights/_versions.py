"""Weights that trainers publish and servers pull: a version is a step of a target.

A target in shared memory (a folder in /dev/shm) serves one machine, a daemon serves others. Saves
make a version appear whole or not at all. Beside the target, in the run NAME.readers, each server
keeps a small step while it reads: its lease, whose number tells the version. A publisher removes
old versions without leases.

No lease comes too late. A server writes its lease first, and reads only if the version is still the
newest then. A publisher removes a version only after a newer one has appeared, and looks for leases
in between.
"""

import contextlib
import errno
import functools
import logging
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from ffrecord import _ffrecord
from ffrecord import checkpoint as ckpt
from ffrecord._base import clock
from ffrecord._base.addresses import SEVERAL, Target, target_from_root
from ffrecord.checkpoint._commit import Commit
from ffrecord.checkpoint._peer_error import PeerError
from ffrecord.checkpoint._ranks import Group, Ranks, group_of, together
from ffrecord.checkpoint._saving import Replicated
from ffrecord.checkpoint._steps import step_number
from ffrecord.checkpoint._values import encode
from ffrecord.errors import ConflictError, CorruptionError
from ffrecord.weights._reading import Weights, named_after
from ffrecord.weights._reading import open as open_step

_log = logging.getLogger("ffrecord.weights")

# A lease's number: the version, and a random number in its low bits.
_RANDOM_BITS = 21
VERSION_MAX = (1 << (63 - _RANDOM_BITS)) - 1


class WeightPublisher(Protocol):
    """How a trainer hands out weights, such as `Publisher`."""

    def publish(self, version: int, state: object) -> object:
        """Make a version visible, whole."""


class WeightSource(Protocol):
    """How a server gets weights, such as `Subscriber`."""

    def newest(self) -> int | None:
        """The newest version; None if there is none yet."""

    def pull(self, into: Mapping[str, object], *, cast: bool = False) -> int:
        """Fill buffers from the newest version, and from no other; return its number."""


class Publisher:
    """Publishes versions of weights at a target, and removes old ones that no server reads."""

    def __init__(
        self,
        target: Target,
        *,
        group: Ranks = None,
        keep: int = 1,
        lease_s: float = 300.0,
        timeout_s: float = 30.0,
    ) -> None:
        """Store the arguments.

        Args:
            target: for these versions alone: a folder (in /dev/shm for servers on this machine),
                `ffrecord://host[:port]/run` or `s3://bucket/run`.
            group: the ranks that publish together, as for `ffrecord.checkpoint.save`.
            keep: how many of the newest versions always stay, 1 or more.
            lease_s: a server that has not renewed its lease for so long has ended. Longer than the
                `renew_s` of all servers.
            timeout_s: for each call to a daemon or store.
        """
        if keep < 1:
            raise ValueError(f"keep is {keep}, must be at least 1")
        self._target, self._group = target_from_root(target), group
        self._leases = _leases_of(self._target)
        self._keep, self._lease_s, self._timeout_s = keep, lease_s, timeout_s
        self._seen: dict[int, float] = {}  # By lease, when this publisher saw it first.

    def publish(self, version: int, state: object, *, replicated: Replicated = "rank0") -> Commit:
        """Save the state as a version, then remove versions that are old and not being read.

        When this returns, servers find the version. Old versions that cannot be removed now stay
        until the next call, and the log tells why.

        Args:
            version: greater than all before, also after the trainer went back to an earlier step.
            state: as for `ffrecord.checkpoint.save`.
            replicated: as for `ffrecord.checkpoint.save`.

        Raises:
            ValueError: the version is not greater than the newest.
            Exception: as `ffrecord.checkpoint.save`; the newest version stays what it was.
        """
        ranks = group_of(self._group)
        rank = 0 if ranks is None else ranks.rank

        def check() -> None:
            if step_number(version) > VERSION_MAX:
                raise ValueError(f"version is {version}, must be at most {VERSION_MAX}")
            newest = None if rank else _newest(self._target, self._timeout_s)
            if newest is not None and version <= newest:
                raise ValueError(
                    f"version {version} is not greater than {newest}, the newest at "
                    f"{self._target}: count versions on, or use another target"
                )

        together(ranks, check)
        made = ckpt.save(
            self._target,
            version,
            state,
            group=self._group,
            replicated=replicated,
            timeout_s=self._timeout_s,
        )
        if rank == 0:
            try:
                self.retire()
            except (OSError, RuntimeError) as error:
                _log.warning("old versions at %s stay for now: %s", self._target, error)
        return made

    def retire(self) -> list[int]:
        """Remove versions that are old and not being read; return them. On one rank."""
        versions = _ffrecord.list_steps(self._target, self._timeout_s)[: -self._keep]
        held = self._held() if versions else set()
        removed = [version for version in versions if version not in held]
        for version in removed:
            with contextlib.suppress(FileNotFoundError):
                _ffrecord.remove_checkpoint(self._target, version, self._timeout_s)
        return removed

    def _held(self) -> set[int]:
        """Versions with leases; those of servers that have ended are removed."""
        now, leases = clock.now(), _ffrecord.list_steps(self._leases, self._timeout_s)
        self._seen = {lease: self._seen.get(lease, now) for lease in leases}
        for lease, since in self._seen.items():
            if now - since > self._lease_s:
                with contextlib.suppress(FileNotFoundError):
                    ckpt.remove(self._leases, lease, timeout_s=self._timeout_s)
                leases.remove(lease)
        return {lease >> _RANDOM_BITS for lease in leases}


class Subscriber:
    """Reads the newest version of weights at a target; of a version all or nothing.

    A version stays readable while it is being read, also if newer ones appear.
    """

    def __init__(
        self,
        target: Target,
        *,
        prefix: str = "",
        as_torch: bool = False,
        renew_s: float = 60.0,
        timeout_s: float = 30.0,
    ) -> None:
        """Store the arguments.

        Args:
            target: where a `Publisher` publishes. This process needs to be able to write beside it.
            prefix: as for `ffrecord.weights.open`.
            as_torch: as for `ffrecord.weights.open`.
            renew_s: how often a lease is renewed while a version is read.
            timeout_s: for each call to a daemon or store.
        """
        self._target = target_from_root(target)
        self._leases = _leases_of(self._target)
        self._prefix, self._as_torch = prefix, as_torch
        self._renew_s, self._timeout_s = renew_s, timeout_s

    def newest(self) -> int | None:
        """The newest version; None if there is none yet."""
        return _newest(self._target, self._timeout_s)

    def wait(
        self, after: int | None = None, *, timeout_s: float | None = None, every_s: float = 1.0
    ) -> int | None:
        """Wait for a version greater than `after`; return the newest, or None after `timeout_s`.

        Asks the target every `every_s` seconds.
        """
        end = None if timeout_s is None else clock.now() + timeout_s
        while True:
            found = self.newest()
            if found is not None and (after is None or found > after):
                return found
            left = every_s if end is None else min(every_s, end - clock.now())
            if left <= 0:
                return None
            clock.sleep(left)

    @contextlib.contextmanager
    def open(self) -> Iterator[Weights]:
        """The newest version, which stays readable until the block ends.

        Raises:
            FileNotFoundError: no version has been published.
            CorruptionError: a manifest of it fails a check.
        """
        with self._lease() as version:
            yield self._opened(version)

    def pull(self, into: Mapping[str, object], *, cast: bool = False, group: Ranks = None) -> int:
        """Fill buffers from the newest version, and from no other; return its number.

        Args:
            into: as for `Weights.fill`: each rank names the buffers for its own slices.
            cast: convert floating-point elements.
            group: ranks that serve one model: all of them get the same version. None: all ranks of
                torch's default process group, if there is one. "alone": this process only.

        Raises:
            FileNotFoundError: no version has been published.
            MismatchError: buffers do not fit; nothing is changed on this rank.
            CorruptionError: stored bytes fail a check. As after every error but the two before,
                buffers may be partly filled on all ranks: pull again before you serve from them.
            PeerError: another rank failed.
        """
        ranks = group_of(group)
        while True:
            with contextlib.ExitStack() as held:
                version = self._pull_once(ranks, held, into, cast)
            if version is not None:
                return version

    def _pull_once(
        self,
        ranks: Group | None,
        held: contextlib.ExitStack,
        into: Mapping[str, object],
        cast: bool,
    ) -> int | None:
        """The version that all ranks have pulled; None if it was removed meanwhile."""
        rank = 0 if ranks is None else ranks.rank

        def hold() -> int | None:
            return held.enter_context(self._lease()) if rank == 0 else None

        version: Any = together(ranks, hold)[0]
        pulled = _Pulled(functools.partial(self._opened, version), into, cast)
        ends: list[Any] = together(ranks, pulled.run)
        if not any(why for why, _ in ends):
            if len({attempt for _, attempt in ends}) > 1:
                raise ConflictError(f"ranks found different saves of version {version}")
            return int(version)
        newest = together(ranks, lambda: self.newest() if rank == 0 else None)[0]
        if newest != version:
            return None
        first, why = next((i, why) for i, (why, _) in enumerate(ends) if why)
        raise pulled.error or PeerError(f"rank {first}: {why}")

    def _opened(self, version: int) -> Weights:
        return open_step(
            self._target,
            step=version,
            prefix=self._prefix,
            as_torch=self._as_torch,
            timeout_s=self._timeout_s,
        )

    @contextlib.contextmanager
    def _lease(self) -> Iterator[int]:
        """Hold the newest version; gives its number."""
        while True:
            version = self.newest()
            if version is None:
                raise FileNotFoundError(
                    errno.ENOENT, "no version has been published here", self._target
                )
            with _Lease(self._leases, version, self._renew_s, self._timeout_s):
                if self.newest() == version:
                    yield version
                    return


class _Pulled:
    """One rank's part of a pull."""

    def __init__(
        self, open_version: Callable[[], Weights], into: Mapping[str, object], cast: bool
    ) -> None:
        self._open, self._into, self._cast = open_version, into, cast
        self.error: Exception | None = None

    def run(self) -> list[object]:
        """Why the version could not be read, if so, and which save it is."""
        try:
            weights = self._open()
            weights.fill(self._into, cast=self._cast)
        except (CorruptionError, FileNotFoundError, ConflictError) as error:
            self.error = error
            return [f"{type(error).__name__}: {error}", ""]
        return ["", weights.commit.attempt]


class _Lease:
    """Keeps a version readable for the block; a thread renews it."""

    def __init__(self, leases: str, version: int, renew_s: float, timeout_s: float) -> None:
        self._leases, self._version, self._timeout_s = leases, version, timeout_s
        self._renew_s = renew_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="ffrecord-lease", daemon=True)

    def __enter__(self) -> None:
        self._numbers = [self._write()]
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        for number in self._numbers:
            self._remove(number)

    def _renew(self) -> None:
        while not clock.wait(self._ended.wait, self._renew_s):
            try:
                self._numbers.append(self._write())
            except (OSError, RuntimeError) as error:
                _log.warning("a lease at %s is not renewed: %s", self._leases, error)
                continue
            # The one before stays until the next time: a long listing, of many pages, that has not
            # come to the new one has passed the old one.
            if len(self._numbers) > 2:
                self._remove(self._numbers.pop(0))

    def _write(self) -> int:
        while True:
            number = self._version << _RANDOM_BITS | secrets.randbits(_RANDOM_BITS)
            try:
                save = _ffrecord.PreparedSave(
                    self._leases, number, [], True, self._timeout_s, False, None
                )
                save.commit(encode(None), None, None)
            except FileExistsError:
                continue
            return number

    def _remove(self, number: int) -> None:
        try:
            ckpt.remove(self._leases, number, timeout_s=self._timeout_s)
        except FileNotFoundError:
            pass  # The publisher thought that this process had ended.
        except (OSError, RuntimeError) as error:  # It takes it for ended after a while.
            _log.warning("a lease at %s stays: %s", self._leases, error)


def _newest(target: str, timeout_s: float) -> int | None:
    return max(_ffrecord.list_steps(target, timeout_s), default=None)


def _leases_of(target: str) -> str:
    """The run beside a target that holds the leases of its readers, however that is spelled."""
    if target.startswith(SEVERAL):
        raise ValueError("weights are published at one place, not at a target of several")
    return named_after(target if "://" in target else os.path.realpath(target), ".readers")
