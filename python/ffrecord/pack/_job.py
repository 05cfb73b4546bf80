"""The folder of a packing: what is to be done, who does it, what is done.

`.NAME.packing`, beside the destination NAME, has

    plan.json             the plan; the folder appears with it
    ID/                   what belongs to the plan of that id, namely

    leases/000012         who works on unit 12; old ones, and those of processes that were killed
                          on this machine, are no longer held
    work/000012.TOKEN/    what a worker has of it so far
    done/000012/          its files and `record.json`; appears complete, by one rename
    parts/                the result, as far as it was put together
    ray.TOKEN/            what tasks of Ray say to the process that started them
    publishing.TOKEN/     the whole result, in the hands of the one process that may publish it

Any number of processes of any number of hosts work on it. Nothing depends on locks: a lease only
spares double work, and where two do the same unit, the first rename into `done` counts and the
other fails. Every file in `done` is durable before its folder has that name.

The folder is made as `.NAME.packing-XXXXXXXX`. It can be removed without knowing which process made
it, or whether that lives: it goes at once, and a process that then finds its own gone begins again.
"""

import errno
import json
import os
import re
import secrets
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from ffrecord._base import clock
from ffrecord._base.closeable import Closing
from ffrecord._base.folders import sync_folder
from ffrecord.errors import ConflictError
from ffrecord.pack._holder import has_ended, this_process
from ffrecord.pack._plan import Plan, id_of

RECORD = "record.json"
# A worker touches its lease so often, and loses it after that time of silence.
BEAT_S = 2.0
LEASE_S = 60.0
_PLAN = "plan.json"
_TAKEN = "publishing."
# Tries to delete a folder. After these no call of another process is under way: what is left cannot
# be deleted.
_DELETIONS_MAX = 4
_FOLDERS = ("leases", "work", "done")
# The end of a made folder's name, by `secrets.token_hex`; and the name of `own`.
_RANDOM, _OWN = re.compile(r"[0-9a-f]{8}"), re.compile(r"[0-9a-f]{16}")


def job_folder(destination: Path) -> Path:
    """The folder of a packing to `destination`."""
    return destination.parent / f".{destination.name}.packing"


def plan_of(destination: Path) -> dict[str, Any] | None:
    """The plan of the packing to `destination` that was begun, as plain values, or None."""
    return _plan_in(job_folder(destination))


class Job:
    """The folder of a packing to `destination`, as one process sees it."""

    def __init__(self, destination: Path, plan: Plan) -> None:
        """Set the names; see `begin`."""
        self.plan = plan
        self.folder = job_folder(destination)
        # Belongs to this plan: a process that goes on after another plan has replaced it finds
        # nothing.
        self.own = self.folder / plan.id[:16]
        self.parts = self.own / "parts"

    def begin(self, *, restart: bool) -> None:
        """Make the folder, or join what other processes began with the same plan.

        A job of another plan is replaced if no unit of it is done and no process works on it, or
        with `restart`. A folder that packing did not make stays.

        Raises:
            ConflictError: another packing was begun there; the message says how it differs.
        """
        if restart:
            self._remove_old()
        if not self._made():
            self._join()
        sweep_job(self.folder)

    def is_done(self, unit: int) -> bool:
        """Whether a unit is complete and durable."""
        return (self._done(unit) / RECORD).exists()

    def pending(self) -> list[int]:
        """Units that are not done."""
        try:
            done = set(os.listdir(self.own / "done"))
        except FileNotFoundError:
            return []  # Another process has published the result.
        return [unit for unit in range(len(self.plan.units)) if _name(unit) not in done]

    def record(self, unit: int) -> dict[str, Any]:
        """Return what was recorded of a unit that is done."""
        found: dict[str, Any] = json.loads((self._done(unit) / RECORD).read_text())
        return found

    def done(self) -> list[int]:
        """Units that are done."""
        return sorted(int(name) for name in os.listdir(self.own / "done") if name.isdecimal())

    def take(self) -> "Lease | None":
        """Take a unit that nobody works on; None if there is none at present."""
        for unit in self.pending():
            if (lease := self._taken(unit)) is not None:
                return lease
        return None

    def commit(self, unit: int, work: Path, record: Mapping[str, Any]) -> bool:
        """Declare a unit done with the files in `work`; False if another process was first."""
        _write(work / RECORD, json.dumps(record))
        sync_folder(work)
        try:
            os.rename(work, self._done(unit))
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            shutil.rmtree(work, ignore_errors=True)
            return False
        sync_folder(self.own / "done")
        return True

    def done_bytes(self) -> int:
        """Bytes of the inputs that are behind, with those of units that are under way."""
        pending = set(self.pending())
        done = sum(
            self.plan.size_bytes(unit)
            for unit in range(len(self.plan.units))
            if unit not in pending
        )
        for unit in pending:
            with suppress(OSError, ValueError, IndexError):
                said = (self.own / "leases" / _name(unit)).read_text().split()
                done += min(int(said[1]), self.plan.size_bytes(unit))
        return done

    def release_all_of(self, tokens: set[str]) -> list[int]:
        """Let others take at once what dead workers held; return those units."""
        return self._release(lambda token: token in tokens)

    def release_all_by(self, holder: str) -> list[int]:
        """As `release_all_of`, of the process that `this_process` named so."""
        return self._release(lambda token: _holder_of(token) == holder)

    def _release(self, is_dead: Callable[[str], bool]) -> list[int]:
        found = []
        for unit in self.pending():
            path = self.own / "leases" / _name(unit)
            with suppress(OSError, IndexError):
                if is_dead(path.read_text().split()[0]):
                    path.unlink()
                    found.append(unit)
        return found

    def forget(self, units: list[int]) -> None:
        """Let units be done again."""
        for unit in units:
            remove_at_once(self._done(unit))

    def put_together(self, names: Iterable[tuple[int, str, str]]) -> None:
        """Move files of units, by unit, name and new name, into `parts`.

        Can be called again after any interruption, and by several processes at once.
        """
        self.parts.mkdir(exist_ok=True)
        for unit, name, new in names:
            with suppress(FileNotFoundError):  # It was moved before.
                os.rename(self._done(unit) / name, self.parts / new)

    def take_apart(self, names: Iterable[tuple[int, str, str]]) -> None:
        """Undo `put_together`, which was called with the same."""
        self.recover_parts()
        with suppress(FileNotFoundError):
            taken = self.take_parts()
            for unit, name, new in names:
                with suppress(FileNotFoundError):
                    os.rename(taken / new, self._done(unit) / name)
            shutil.rmtree(taken)

    def take_parts(self) -> Path:
        """Give `parts` a name that no other process uses; FileNotFoundError if another did so."""
        taken = self.own / f"{_TAKEN}{secrets.token_hex(8)}"
        os.rename(self.parts, taken)
        return taken

    def are_parts_taken(self) -> bool:
        """Whether a process publishes them, or was killed when it did."""
        return any(self.own.glob(f"{_TAKEN}*"))

    def recover_parts(self) -> None:
        """Put back what processes took that are dead, or so slow that this takes it from them."""
        for old in self.own.glob(f"{_TAKEN}*"):
            mine = self.own / f"{_TAKEN}{secrets.token_hex(8)}"
            with suppress(FileNotFoundError):
                os.rename(old, mine)  # All of it at once: then the other has nothing to publish.
                self.parts.mkdir(exist_ok=True)
                for path in mine.iterdir():
                    os.rename(path, self.parts / path.name)
                mine.rmdir()

    def write_manifest(self, name: str, manifest: Mapping[str, Any]) -> None:
        """Write the manifest among the parts, all of which are durable afterwards."""
        unnamed = self.own / f"manifest.{secrets.token_hex(4)}"
        _write(unnamed, json.dumps(manifest, indent=1) + "\n")
        os.rename(unnamed, self.parts / name)
        sync_folder(self.parts)

    def remove(self) -> None:
        """Remove the folder, with what was replaced in it."""
        remove_at_once(self.folder)

    def remove_if_published(self) -> None:
        """Remove what a process left that was killed between publishing and clearing up."""
        clear_up(self.folder, self.plan.id)

    def remove_if_empty(self) -> bool:
        """Leave nothing of a packing that has written nothing, unless others work on it."""
        with suppress(OSError):
            has_files = any(self.record(unit)["files"] for unit in self.done())
            if not has_files and not _is_worked_on(self.folder):
                self.remove()
        return not self.folder.exists()

    def _done(self, unit: int) -> Path:
        return self.own / "done" / _name(unit)

    def _made(self) -> bool:
        """Make the folder with its plan at once; False if there is one."""
        is_made = None
        while is_made is None:
            new = self.folder.with_name(f"{self.folder.name}-{secrets.token_hex(4)}")
            new.mkdir()
            try:
                is_made = self._named(new)
            except FileNotFoundError:
                pass  # Another process took it for one that was left: see `sweep_job`.
            except BaseException:
                shutil.rmtree(new, ignore_errors=True)
                raise
        return is_made

    def _named(self, new: Path) -> bool:
        """Fill a new folder, and give it the name; False if another has that.

        Nothing here makes `new` again: if it is gone, FileNotFoundError says so.
        """
        (new / self.own.name).mkdir()
        for name in _FOLDERS:
            (new / self.own.name / name).mkdir()
        _write(new / _PLAN, json.dumps(self.plan.as_json()))
        sync_folder(new)
        try:
            os.rename(new, self.folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            shutil.rmtree(new, ignore_errors=True)
            return False
        sync_folder(self.folder.parent)
        return True

    def _join(self) -> None:
        plan = _plan_in(self.folder)
        if plan is None:
            raise ConflictError(
                errno.EEXIST, f"{self.folder} is in the way, and no packing made it: remove it"
            )
        different = self.plan.differences(plan)
        if not different:
            return
        if not any(self.folder.glob("*/done/*")) and not _is_worked_on(self.folder):
            self._remove_old()
            if self._made():
                return
        raise ConflictError(
            errno.EEXIST,
            f"a packing of something else to the same destination was begun, and is kept in "
            f"{self.folder}: {'; '.join(different[:5])}. Repeat that one to finish it, or give "
            "--restart to begin anew",
        )

    def _remove_old(self) -> None:
        if _plan_in(self.folder) is not None:
            if _is_worked_on(self.folder):
                raise ConflictError(errno.EBUSY, f"a packing in {self.folder} is under way")
            self.remove()

    def _taken(self, unit: int) -> "Lease | None":
        path = self.own / "leases" / _name(unit)
        token = f"{this_process()}.{secrets.token_hex(8)}"
        try:
            with open(path, "x") as file:
                file.write(f"{token} 0\n")
            return Lease(self, unit, token)
        except FileExistsError:
            pass
        with suppress(FileNotFoundError):  # It was released just now: next time.
            if _is_held(path, _now_in(self.folder)):
                return None
            mine = self.own / "leases" / f".{token}"
            mine.write_text(f"{token} 0\n")
            os.rename(mine, path)
            return Lease(self, unit, token)
        return None


class Lease(Closing):
    """The right to work on a unit, kept by a thread until the end of a `with` block."""

    def __init__(self, job: Job, unit: int, token: str) -> None:
        """Hold it."""
        self.unit = unit
        self.token = token
        self.done_bytes = 0
        """Bytes of the unit's input; shown to others."""
        self.work = job.own / "work" / f"{_name(unit)}.{secrets.token_hex(4)}"
        self._path = job.own / "leases" / _name(unit)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="ffrecord-pack-lease", daemon=True)

    def __enter__(self) -> Self:
        """Begin to keep it."""
        found = list(self.work.parent.glob(f"{_name(self.unit)}.*"))
        # Only then they are of workers that lost it: several may take it from one that was killed,
        # and the last of them holds it.
        if self.is_mine():
            for old in found:
                remove_at_once(old)
        self.work.mkdir()
        self._thread.start()
        return self

    def close(self) -> None:
        """Release it."""
        self._end.set()
        self._thread.join()
        shutil.rmtree(self.work, ignore_errors=True)
        if self.is_mine():
            self._path.unlink(missing_ok=True)

    def is_mine(self) -> bool:
        """Whether it is still held."""
        with suppress(OSError, IndexError):
            return self._path.read_text().split()[0] == self.token
        return False

    def _beat(self) -> None:
        while not clock.wait(self._end.wait, BEAT_S):
            with suppress(OSError), open(self._path, "r+") as file:
                # Another lease is another file of that name, so this writes to no other one.
                if file.read().partition(" ")[0] != self.token:
                    return
                file.seek(0)
                file.write(f"{self.token} {self.done_bytes}\n")


def _is_held(lease: Path, now: float) -> bool:
    """Whether it was touched a moment ago, by a process that has not ended, as far as is known.

    A time to come is that of a clock that was wrong.
    """
    if abs(now - lease.stat().st_mtime) >= LEASE_S:
        return False
    return not has_ended(_holder_of(lease.read_text().partition(" ")[0]))


def _holder_of(token: str) -> str:
    return token.rpartition(".")[0]


def _plan_in(folder: Path) -> dict[str, Any] | None:
    """The plan of a job, as plain values; None if no packing made the folder."""
    try:
        found = json.loads((folder / _PLAN).read_text())
    except (OSError, ValueError):
        return None
    # Another program may have files of that name: they are not removed.
    is_plan = isinstance(found, dict) and found.keys() >= {"version", "inputs", "units", "asked"}
    return found if is_plan else None


def _is_worked_on(folder: Path) -> bool:
    now = _now_in(folder)
    for path in folder.glob("*/leases/*"):
        with suppress(OSError):
            if _is_held(path, now):
                return True
    return False


def _now_in(folder: Path) -> float:
    """The time by the clock that stamps files here, which may be another host's."""
    probe = folder / f"clock.{secrets.token_hex(4)}"
    probe.touch()
    try:
        return probe.stat().st_mtime
    finally:
        probe.unlink()


def clear_up(folder: Path, plan_id: str) -> None:
    """Remove what was left of a job whose result is there; `plan_id` is that of the result."""
    sweep_job(folder)
    there = _plan_in(folder)
    if there is not None and id_of(there) == plan_id and not _is_worked_on(folder):
        remove_at_once(folder)


def remove_at_once(folder: Path) -> None:
    """Remove a folder that others may use: they find all of it or nothing."""
    _remove_as(folder, folder)


def _remove_as(folder: Path, name: Path) -> None:
    """As `remove_at_once`; if this is killed, `sweep(name)` does the rest."""
    aside = folder.with_name(f"{_removed(name)}{secrets.token_hex(4)}")
    with suppress(FileNotFoundError):
        os.rename(folder, aside)
        _delete(aside)


def _delete(folder: Path) -> None:
    """Delete a folder whose name nobody knows any more.

    A call that another process had begun under the name before may still put something into it.
    """
    for _ in range(_DELETIONS_MAX):
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.lexists(folder):
            return


def sweep(folder: Path) -> None:
    """Remove what is left of a folder whose removal was killed."""
    with suppress(FileNotFoundError):
        for entry in os.scandir(folder.parent):
            if entry.name.startswith(_removed(folder)):
                _delete(Path(entry.path))


def sweep_job(folder: Path) -> None:
    """Remove what processes left that were killed when they made or removed the folder of a job.

    A process that lives and is making one begins again, so this is called only after the folder of
    the caller has its name, or when the caller needs none: then each call delays others once.
    """
    sweep(folder)
    with suppress(FileNotFoundError):
        for entry in os.scandir(folder.parent):
            stem, _, random = entry.name.rpartition("-")
            is_called_so = stem == folder.name and _RANDOM.fullmatch(random)
            if is_called_so and _is_unnamed_job(entry):
                _remove_as(Path(entry.path), folder)


def _is_unnamed_job(entry: os.DirEntry[str]) -> bool:
    """Whether a folder has nothing in it but what `Job` puts there before it has its name."""
    if not entry.is_dir(follow_symlinks=False):
        return False
    for at, folders, files in os.walk(entry.path):
        depth = at.count(os.sep) - entry.path.count(os.sep)
        known = all(
            _OWN.fullmatch(name) if depth == 0 else depth == 1 and name in _FOLDERS
            for name in folders
        )
        if not known or {*files} - ({_PLAN} if depth == 0 else set()):
            return False
    return True


def _removed(folder: Path) -> str:
    return f".removed.{folder.name}."


def _write(path: Path, text: str) -> None:
    """Write a file that is durable once its folder is."""
    try:
        with open(path, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        error.filename = str(path)  # Python names it only if it cannot be opened.
        raise


def _name(unit: int) -> str:
    return f"{unit:06}"
