"""Finding the checkpoint to load, and filling a state from it, the same on all ranks."""

import contextlib
import warnings
from collections.abc import Callable
from typing import Any, Literal

from ffrecord import _ffrecord
from ffrecord._base import recording
from ffrecord._base.addresses import Target, target_from_root
from ffrecord.checkpoint._activity import Activity, now, watched
from ffrecord.checkpoint._agreement import digest
from ffrecord.checkpoint._collector import without_collector
from ffrecord.checkpoint._peer_error import PeerError
from ffrecord.checkpoint._ranks import Group, Ranks, group_of, together
from ffrecord.checkpoint._renaming import Rename, renamed
from ffrecord.checkpoint._restore import MismatchError, Restorer
from ffrecord.checkpoint._steps import tell_skipped, wanted_step
from ffrecord.checkpoint._values import decode
from ffrecord.errors import ConflictError, CorruptionError

# From where `_Loader` warns to who has called `load`: by way of `together`.
_CALLER = 6

OnCorrupt = Literal["raise", "previous"]


def load(
    target: Target,
    state: object = None,
    *,
    step: int | Literal["latest"] = "latest",
    strict: bool = True,
    elastic: bool = False,
    group: Ranks = None,
    on_corrupt: OnCorrupt = "raise",
    as_torch: bool = False,
    rename: Rename | None = None,
    cast: bool = False,
    resume: bool | None = None,
    timeout_s: float = 30.0,
) -> object:
    """Load a checkpoint, whatever number of ranks saved it.

    Args:
        target: as for `save`.
        state: the state to fill, of the structure that was saved. Arrays, tensors, `Shard`s and
            DTensors of any mesh are filled in place, values in dicts and lists are replaced, and
            objects get a call of their `load_state_dict`. Where the state has an enum's member, a
            dataclass or a named tuple, the value gets its type; elsewhere it is a `Named`. None
            takes whatever is stored in its place, torch's tensors as such if torch is imported.
            Nothing is changed unless everything fits and every object on every rank has taken its
            state: objects that may refuse one are asked first, and get back the one that they had
            if another refuses. They need memory for a copy of it; modules and optimizers of torch
            do not. Without a state, a new one is made, with NumPy arrays.
        step: the step to load; "latest" is the newest that is whole. If newer ones are damaged, a
            warning says so.
        strict: paths that only the state has, or that the checkpoint has and the state of no rank,
            are an error; otherwise they are left alone.
        elastic: at another number of ranks, leave `PerRank` values as they are in `state`.
        group: the ranks that load together: all load the same step, and each its `PerRank` values.
            None: all ranks of torch's default process group, if there is one. "alone": this
            process only.
        on_corrupt: with "latest", what to do if bytes of that checkpoint fail a check: raise, or
            load the previous one on all ranks, with a warning that says what was wrong.
        as_torch: without a state, make torch tensors of what were torch tensors, if torch is
            imported.
        rename: load what was saved under some paths as if it had been saved under others: stored
            path to path in the state, of a single value or of all below a path; or a function from
            the one to the other, called with the path of each value. Paths are spelled as errors
            spell them.
        cast: convert floating-point elements where the state has them of another type.
        resume: True: the run goes on from this step. If it is not the newest, later saves of this
            process give up those behind it. False: this is a look, for an evaluation, an export or
            a comparison: it changes nothing for the saves of this process. None: what a process
            loads first is what its run goes on from. If it has loaded or saved another step, and
            what a later save gives up depends on this load, that save raises ConflictError.
        timeout_s: for each call to a daemon.

    Returns:
        The state; a new one where it could not be filled in place.

    Raises:
        FileNotFoundError: there is no such step, or no checkpoint at all.
        CorruptionError: bytes fail a check; names the file, and the previous step, if there is
            one. Tensors may then be partly filled.
        ConflictError: the step was saved again while the ranks opened it; nothing is changed.
        MismatchError: a ValueError that lists every path that does not fit.
        PeerError: another rank failed.
    """
    ranks = group_of(group)
    loader = _Loader(ranks, timeout_s)
    with watched(ranks, Activity("begins a load")), recording.Span(recording.LOAD, str(target)):
        loader.begin(target, step, on_corrupt)
        while True:
            restorer = Restorer(loader.reader, loader.rank, loader.size, elastic, cast)
            damage = loader.fill(restorer, state, strict, as_torch, rename)
            if not any(damage):
                loader.go_on(resume)
                return loader.filled
            if step == "latest" and loader.has_moved_on():
                loader.begin(target, step, on_corrupt)
                continue
            before = None if step != "latest" else loader.step_before()
            if before is None or on_corrupt == "raise":
                raise loader.error(damage, before)
            loader.previous(before, damage)


class _Loader:
    """One rank's side; all ranks must make the same calls of the methods that communicate."""

    def __init__(self, group: Group | None, timeout_s: float) -> None:
        self.rank, self.size = (0, 1) if group is None else (group.rank, group.size)
        self.filled: object = None
        self.reader: _ffrecord.CheckpointReader
        self._where = ""
        self._group, self._timeout_s = group, timeout_s

    def begin(self, target: Target, step: int | Literal["latest"], on_corrupt: str) -> None:
        """Open `step`; arguments may be wrong on one rank alone."""

        def take() -> int | None:
            if on_corrupt not in ("raise", "previous"):
                raise ValueError(f'on_corrupt is {on_corrupt!r}, must be "raise" or "previous"')
            self._where = target_from_root(target)
            return wanted_step(step)

        self.open(take)

    def open(self, which: Callable[[], int | None]) -> None:
        """Open the save that rank 0 opens: it decides which is the latest."""

        def open_step(wanted: int | None) -> list[object]:
            what = "the latest step" if wanted is None else f"step {wanted}"
            now(f"opens {what} of {self._where}")
            self.reader = _ffrecord.CheckpointReader(self._where, wanted, self._timeout_s)
            return list(self.reader.commit[:2])

        def decide() -> list[object] | None:
            wanted = which()
            return open_step(wanted) if self.rank == 0 else None

        def follow() -> None:
            if self.rank != 0 and open_step(chosen[0]) != chosen:
                raise ConflictError(
                    f"step {chosen[0]} of {self._where} was saved again while the ranks opened it, "
                    "or rank 0 sees another save of it than this rank: load it again"
                )
            tell_skipped(self.reader, _CALLER)

        chosen: Any = together(self._group, decide)[0]
        together(self._group, follow)

    def go_on(self, resume: bool | None) -> None:
        """Note that later saves of this process follow the step that is loaded, or may do so."""
        if self.rank == 0 and resume is not False:
            # The state is loaded, whatever the target does now.
            with contextlib.suppress(OSError, CorruptionError):
                self.reader.go_on(is_certain=resume is True)

    def previous(self, step: int, damage: list[str]) -> None:
        """Open `step` instead, and warn why."""

        def tell() -> int:
            for rank, message in enumerate(damage):
                if message:
                    text = f"rank {rank}: {message}; step {step} is loaded"
                    warnings.warn(text, stacklevel=_CALLER + 1)  # `decide` is between.
            return step

        self.open(tell)

    def fill(
        self,
        restorer: Restorer,
        state: object,
        strict: bool,
        as_torch: bool,
        rename: Rename | None = None,
    ) -> list[str]:
        """The damage that each rank found; empty if none."""

        @without_collector()
        def plan() -> None:
            now(f"plans what it reads of step {self.reader.commit[0]} of {self._where}")
            tree = decode(self.reader.structure)
            if rename is not None:
                tree = renamed(tree, rename)
            if state is None:
                self.filled = restorer.fresh(tree, as_torch=as_torch)
            else:
                self.filled = restorer.into(state, tree)
            restorer.check(strict)

        def extra() -> bytes:
            return digest(restorer.extra) if strict and restorer.extra else b""

        try:
            for work in (_told(plan, extra), _told(restorer.ask), _told(restorer.read)):
                found: Any = together(self._group, work)
                damage = [each[0] for each in found]
                if any(damage):
                    _undo(restorer)
                    return damage
                self._check_extra(restorer, [each[1] for each in found])
            together(self._group, restorer.finish)
        except BaseException as error:
            _undo(restorer, error)
            raise
        return []

    def _check_extra(self, restorer: Restorer, digests: list[bytes]) -> None:
        """Raise MismatchError for what is in the state of no rank: stages have others' besides."""
        if not all(digests):
            return
        extra = restorer.extra
        if len(set(digests)) > 1:
            mine = extra if digests.index(digests[self.rank]) == self.rank else []
            lists: Any = together(self._group, lambda: mine)
            for other in (set(each) for each in lists if each):
                extra = [path for path in extra if path in other]
        if extra:
            raise MismatchError([], extra, [])

    def has_moved_on(self) -> bool:
        """Whether the step was removed while it was read, and there is a newer one."""

        def look() -> bool:
            if self.rank != 0 or self.reader.commit[0] in self._steps():
                return False
            newest = _ffrecord.CheckpointReader(self._where, None, self._timeout_s)
            return newest.commit[0] > self.reader.commit[0]

        return bool(together(self._group, look)[0])

    def _steps(self) -> list[int]:
        return _ffrecord.list_steps(self._where, self._timeout_s)

    def step_before(self) -> int | None:
        """The newest step below the open one with whole manifests, also at the remote target."""

        def look() -> int | None:
            below = self.reader.commit[0]
            try:
                found = _ffrecord.CheckpointReader(self._where, None, self._timeout_s, below)
            except (CorruptionError, FileNotFoundError):
                return None
            return found.commit[0]

        before = together(self._group, lambda: look() if self.rank == 0 else None)[0]
        return before if isinstance(before, int) else None

    def error(self, damage: list[str], before: int | None) -> Exception:
        """The error for this rank's caller: its own damage, or that of the first rank with some."""
        offer = (
            f'. Step {before} is available: load(..., step={before}) or on_corrupt="previous"'
            if before is not None
            else ""
        )
        if damage[self.rank]:
            return CorruptionError(damage[self.rank] + offer)
        rank, message = next(found for found in enumerate(damage) if found[1])
        return PeerError(f"rank {rank}: {message}{offer}")


def _undo(restorer: Restorer, error: BaseException | None = None) -> None:
    """Undo what objects were given, on this rank; the others do the same."""
    try:
        restorer.undo()
    except Exception as failure:
        if error is None:
            raise
        error.add_note(f"an object did not take back the state that it had: {failure!r}")


def _told(
    work: Callable[[], object], more: Callable[[], bytes] = bytes
) -> Callable[[], list[object]]:
    """The same work, but reports damage, so that all ranks can decide what to do; and more."""

    def tell() -> list[object]:
        try:
            work()
        except CorruptionError as error:
            return [str(error), b""]
        return ["", more()]

    return tell
