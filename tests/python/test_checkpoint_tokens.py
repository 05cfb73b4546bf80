"""Goal: every question about the checkpoints of a run asks with the options of the run's address.

Method: a daemon that denies whoever has no token; each call has the address with the token alone.
"""

import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ffrecord.checkpoint as ckpt
from daemon import Daemon
from ffrecord._cli.tokens import make_token
from ffrecord.errors import ConflictError


@pytest.fixture
def run(tmp_path: Path) -> Iterator[str]:
    key = secrets.token_bytes(32)
    token = make_token(
        key,
        prefix="runs/",
        rights=("read", "write", "delete"),
        expires_s=int(time.time()) + 3600,
        client="test",
    )
    for name, text in (("keys", key.hex()), ("token", token)):
        (tmp_path / name).touch(0o600)
        (tmp_path / name).write_text(text + "\n")
    with Daemon(tmp_path / "data", "--token-keys", str(tmp_path / "keys")) as daemon:
        address = daemon.address("runs/a") + f"?token_file={tmp_path}/token"
        for step in (1, 2, 3):
            ckpt.save(address, step, {"w": np.full(10, step)}, group="alone")
        yield address


def steps(commits: list[ckpt.Commit]) -> list[int]:
    return [commit.step for commit in commits if not commit.damage]


QUESTIONS: dict[str, tuple[Callable[[str], Any], Any]] = {
    "latest": (lambda run: steps([ckpt.latest(run) or pytest.fail("there is none")]), [3]),
    "list": (lambda run: steps(ckpt.list(run)), [1, 2, 3]),
    "load": (lambda run: int(ckpt.load(run, step=2)["w"][0]), 2),
    "verify": (lambda run: ckpt.verify(run, step=2), []),
    "prune, dry": (lambda run: steps(ckpt.prune(run, keep_last=2, dry_run=True)), [1]),
    "prune": (lambda run: steps(ckpt.prune(run, keep_last=1)), [1, 2]),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_is_asked_with_the_token_of_its_address(run: str, question: str) -> None:
    ask, answer = QUESTIONS[question]
    assert ask(run) == answer


def test_a_step_that_is_there_and_whole_is_said_to_be_there(run: str) -> None:
    with pytest.raises(ConflictError, match="3"):
        ckpt.save(run, 3, {"w": np.ones(10)}, group="alone")
    assert int(ckpt.load(run, step=3)["w"][0]) == 3
