"""Files of a folder that are only in a store now, and return when the folder is opened.

The folder's file EVICTED names them and their store. It is written before a file is removed and
after one has returned, so at every moment a file is in the folder, or named there, or both.
"""

import contextlib
import fcntl
import json
import logging
import os
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

from ffrecord._base.addresses import EVICTED, Target, is_folder
from ffrecord._base.folders import sync_folder
from ffrecord._store import archive
from ffrecord.errors import CorruptionError

_log = logging.getLogger("ffrecord.archive")


def evict(
    folder: str | os.PathLike[str],
    target: Target,
    *,
    keep_bytes: int = 0,
    timeout_s: float = 30.0,
    dry_run: bool = False,
) -> list[str]:
    """Remove files of `folder` that `archive.push` stored at `target`, until `keep_bytes` are left.

    The files that were not read for the longest time go first. A file is removed only if the target
    lists it, and its copy there was read just now and has the same bytes; all others stay, and
    count. When a program opens the folder, or a file or glob in it, through `ffrecord.open` or a
    Dataset, the files are fetched first. Readers that have the folder open must not use it any
    more: pause them, or open it again.

    Returns:
        The names of the files that were removed, or that would be with `dry_run`, which reads no
        copies.

    Raises:
        FileNotFoundError: there is no folder, or nothing at the target.
        CorruptionError: the object at the target is not a list of files, or copies there are
            damaged: their files stay, the others are removed.
    """
    place, where = pathlib.Path(folder), os.fsdecode(target)
    if is_folder(where):
        where = os.path.abspath(where)  # A process in another folder may want them back.
    listed = archive.newest_list(where, timeout_s)
    with _locked(place):
        away = _read(place) or {"target": where, "files": {}}
        if away["target"] != where:
            raise ValueError(f"{place}: its other files are at {away['target']}; evict to there")
        leaving = _leaving(place, listed, keep_bytes)
        if dry_run:
            return leaving
        damaged: list[CorruptionError] = []
        gone = []
        for name in leaving:
            try:
                is_stored = archive.is_stored(place / name, where, listed[name], timeout_s)
            except CorruptionError as error:
                damaged.append(error)
                continue
            if is_stored:
                away["files"][name] = listed[name]
                _write(place, away)
                (place / name).unlink()
                gone.append(name)
    if damaged:
        raise damaged[0]
    return gone


def restore(
    folder: str | os.PathLike[str],
    names: Iterable[str] | None = None,
    *,
    timeout_s: float = 30.0,
) -> list[str]:
    """Fetch the files that `evict` removed from `folder`: all of them, or those in `names`.

    Each file appears whole, with every block verified. One process fetches it; other processes that
    need it wait for that. A file that was written under its name since stays, and is what the
    folder has from then on.

    Returns:
        The names of the files that were fetched.

    Raises:
        OSError: the store cannot be reached, or the folder cannot be written.
        CorruptionError: EVICTED or the stored data is damaged.
    """
    place = pathlib.Path(folder)
    brought: list[str] = []
    with _locked(place):
        away = _read(place)
        if away is None:
            return brought
        for name in sorted(away["files"] if names is None else away["files"].keys() & set(names)):
            facts = away["files"].pop(name)
            if os.path.lexists(place / name):
                if not archive.is_there(place / name, facts):
                    _log.warning(
                        "%s was written after an earlier file of that name was evicted: it stays, "
                        "and the earlier one is at %s alone",
                        *(place / name, away["target"]),
                    )
            elif archive.bring(place / name, away["target"], facts, timeout_s):
                brought.append(name)
            _write(place, away)
    return brought


def evicted(folder: str | os.PathLike[str]) -> list[str]:
    """The names of the files that are only in the store now.

    Raises:
        CorruptionError: EVICTED is damaged.
    """
    away = _read(pathlib.Path(folder))
    return [] if away is None else sorted(away["files"])


def _leaving(place: pathlib.Path, listed: dict[str, dict[str, Any]], keep_bytes: int) -> list[str]:
    """The files to remove, so that the folder's sealed files have at most `keep_bytes`."""
    files = {path.name: path.stat() for path in place.glob("*.ffr")}
    excess = sum(state.st_size for state in files.values()) - keep_bytes
    leaving: list[str] = []
    # Many file systems note a time of access but once a day; that of writing is at least that old.
    for name in sorted(files, key=lambda name: max(files[name].st_atime, files[name].st_mtime)):
        if excess <= 0:
            break
        if name in listed and archive.is_there(place / name, listed[name]):
            leaving.append(name)
            excess -= files[name].st_size
    return leaving


@contextlib.contextmanager
def _locked(place: pathlib.Path) -> Iterator[None]:
    handle = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _read(place: pathlib.Path) -> dict[str, Any] | None:
    """Which files are evicted, and where to; empty if none. It names paths, so check it closely."""
    path = place / EVICTED
    try:
        away = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError:
        away = None
    if (
        not isinstance(away, dict)
        or not isinstance(away.get("target"), str)
        or not isinstance(away.get("files"), dict)
        or not all(archive.is_listed(*each) for each in away["files"].items())
    ):
        raise CorruptionError(
            f"{path}: not written by evict; remove it and pull the dataset from its store again"
        )
    return away


def _write(place: pathlib.Path, away: dict[str, Any]) -> None:
    path = place / EVICTED
    if not away["files"]:
        path.unlink()
        return
    made = path.with_name(f".{EVICTED}-{os.getpid()}")
    try:
        made.write_text(json.dumps(away, indent=1))
        archive.sync(made)
        made.replace(path)
    finally:
        made.unlink(missing_ok=True)
    sync_folder(place)
