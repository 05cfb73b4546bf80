"""What a process does that copies a checkpoint and is killed: in a module that is soon imported."""

import os

import ffrecord.checkpoint as ckpt


def copy(environment: dict[str, str], source: str, target: str, compress: bool) -> None:
    """Copies with these variables, for a forked process has those of whom it was forked from."""
    os.environ.update(environment)
    ckpt.copy(source, target, compress=compress)
