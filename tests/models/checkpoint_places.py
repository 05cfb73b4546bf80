"""A daemon and an object store for the models: one of each per process, started when wanted."""

import atexit
import functools
import itertools
import shutil
import tempfile
from pathlib import Path

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
