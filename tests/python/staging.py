"""What processes do that are killed while steps go on to later places: soon imported."""

import os

import ffrecord.checkpoint as ckpt
from saved_at_a_store import state


def flush(environment: dict[str, str], address: str) -> None:
    """Copy what waits, with these variables: a forked process has those of its server."""
    os.environ.update(environment)
    ckpt.flush(address)


def save_and_end(environment: dict[str, str], address: str, step: int) -> None:
    """Save, and leave the rest to the end of the process."""
    os.environ.update(environment)
    ckpt.save(address, step, state(step))
