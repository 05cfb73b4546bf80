"""A daemon and an object store for the models: one of each per process, started when wanted."""

import atexit
import functools
import itertools
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import checkpoint_truth as truth
import ffrecord.checkpoint as ckpt
import object_store
from daemon import Daemon

_NUMBERS = itertools.count()


@functools.cache
def _daemon() -> Daemon:
    folder = Path(tempfile.mkdtemp(prefix="ffrecord-model-"))
    daemon = Daemon(folder)
    daemon.start()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(daemon.stop)
    return daemon


@functools.cache
def _store() -> str:
    serving = object_store.serve()
    next(serving)
    atexit.register(next, serving, None)
    return "s3://bucket"


def far_target(place: str) -> str:
    """Return the address of a run that nobody has used: at the "daemon", or at the "store"."""
    name = f"runs/{next(_NUMBERS)}"
    return _daemon().address(name) if place == "daemon" else f"{_store()}/{name}"


def spellings(place: Path, which: int) -> list[str]:
    """Return two names of one folder, which may not be there yet."""
    link = place.parent / "link"
    link.symlink_to(place.parent)
    name = str(place)
    others = [
        f"{name}/",
        f"{place.parent}/./{place.name}",
        f"{place.parent}/../{place.parent.name}/{place.name}",
        str(link / place.name),
    ]
    return [name, others[which % len(others)]]


def damaged_place(place: Path, what: str, turn: int) -> None:
    """Lose a place of a replicated target, or damage a file in it."""
    if what in ("file", "gone"):
        shutil.rmtree(place)
        if what == "file":
            place.touch()
        return
    files = truth.files(place, 1, what)
    truth.harm(files[turn % len(files)], what, turn)


def an_old_save(
    folder: Path, order: Sequence[int], old: truth.Content, new: truth.Content
) -> tuple[Path, str]:
    """Have a place come back with a step that was replaced meanwhile; return it and a target."""
    places, away = [folder / "a", folder / "b", folder / "c"], folder / "away"
    ckpt.save(ckpt.replicated_target(places[:2]), 1, old.state())
    places[1].rename(away)
    near = ckpt.replicated_target([places[0], places[2]])
    ckpt.remove(near, 1)
    ckpt.save(near, 1, new.state())
    away.rename(places[1])
    return places[1], ckpt.replicated_target([places[i] for i in order])
