"""What the tests of staged targets share: what is at a place, and what becomes of one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import ffrecord.checkpoint as ckpt
from object_store import Store
from saved_at_a_store import run_of

GONE_S = 1.0  # Patience with a place that is gone; a busy machine answers within it.


def far_run(request: pytest.FixtureRequest, store: Store) -> Iterator[str]:
    """A run at the store, for the far place; whoever still tries to reach it gets through."""
    yield run_of(request, store).replace("[", ".").replace("]", "")
    store.serve_all()


def steps_at(place: object) -> list[int]:
    return [commit.step for commit in ckpt.list(str(place)) if not commit.damage]


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)


def gone(number: int, method: str, path: str) -> str:
    return "hang up"
