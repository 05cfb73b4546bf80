"""Ranks of a training script are forked from a process that has imported what the tests name.

A test module names it in `PRELOAD`: torch and a framework take seconds to import.
"""

import multiprocessing
import os
import sys
from pathlib import Path

import pytest

# Where tests/python/daemon.py, which imports it from here, looks for a daemon.
BUILD = Path(os.environ.get("FFRECORD_BUILD_DIR", Path(__file__).resolve().parents[2] / "build"))
# Their conftest chooses the package that is tested.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Tell the process from which ranks are forked; before any of them starts."""
    modules = {item.module for item in session.items if isinstance(item, pytest.Function)}
    wanted = {name for module in modules for name in getattr(module, "PRELOAD", ())}
    # torch._dynamo is what optimizers import when they are first used.
    multiprocessing.set_forkserver_preload(["ffrecord.torch", "torch._dynamo", *sorted(wanted)])
