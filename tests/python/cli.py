"""Runs the commands: their exit codes and what they print are the interface.

`run` and `ok` call a command in this process, which spares the start of an interpreter and its
imports, most of the time of such a test. test_cli_processes.py holds that against processes:
`started` is the same as one. A command that makes processes of this one is always started.
"""

import importlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import pytest

# Another Python with other versions of click and rich, whose run-time needs nothing else.
PYTHON = os.environ.get("FFRECORD_TEST_PYTHON", sys.executable)
MODULES = {"ffrecord": "ffrecord._cli.main", "ffrecord-pack": "ffrecord._cli.pack"}

# These fork, start daemons, take signals over, import a user's code or measure their process.
_MAKE_PROCESSES = ("--map", "--ray", "--workers")
_START = (("cluster", "down"), ("cluster", "local"), ("cluster", "up"), ("net",), ("prof",))

Done = subprocess.CompletedProcess[str]


def run(
    command: str, *arguments: str | Path, env: dict[str, str] | None = None, timeout_s: float = 180
) -> Done:
    """Run one to its end. Text in both streams is kept; nothing in it may be a traceback."""
    words = [*map(str, arguments)]
    if env or _wants_a_process(words):
        return started(command, *words, env=env, timeout_s=timeout_s)
    return _called(command, words, timeout_s)


def ok(command: str, *arguments: str | Path) -> str:
    """What a command prints that must succeed."""
    done = run(command, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def started(
    command: str, *arguments: str | Path, env: dict[str, str] | None = None, timeout_s: float = 180
) -> Done:
    """The same as `run`, by a process."""
    done = subprocess.run(
        [PYTHON, "-m", MODULES[command], *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
        env={**os.environ, **(env or {})},
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def _wants_a_process(words: list[str]) -> bool:
    """Whether the command is no call, or this is no place for one: streams are of a process."""
    return (
        sys.executable != PYTHON
        or threading.current_thread() is not threading.main_thread()
        or any(word.partition("=")[0] in _MAKE_PROCESSES for word in words)
        or any(words[: len(begin)] == [*begin] for begin in _START)
    )


def _called(command: str, words: Sequence[str], timeout_s: float) -> Done:
    """Call `main` as the script of that name does."""
    main = importlib.import_module(MODULES[command]).main
    with ExitStack() as stack:
        out, err = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(2))
        with (
            pytest.MonkeyPatch.context() as patch,
            open(os.devnull, encoding="utf-8") as nothing,
            _written_to(out, "stdout", 1),
            _written_to(err, "stderr", 2),
            _warnings_of_a_program(),
            _time_limit(timeout_s),
        ):
            patch.setattr(sys, "argv", [command, *words])
            # click names the command by it.
            patch.setattr(sys.modules["__main__"], "__package__", None, raising=False)
            patch.setattr(sys, "stdin", nothing)
            code = main()
        return subprocess.CompletedProcess([command, *words], code, _text(out), _text(err))


@contextmanager
def _written_to(file: IO[bytes], name: str, number: int) -> Iterator[None]:
    """A standard stream, also that of C++ and of processes, goes to the file."""
    before, kept = getattr(sys, name), os.dup(number)
    os.dup2(file.fileno(), number)
    try:
        with open(number, "w", encoding="utf-8", closefd=False) as stream:
            setattr(sys, name, stream)
            yield
    finally:
        setattr(sys, name, before)
        os.dup2(kept, number)
        os.close(kept)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    text = file.read().decode()
    return text.replace("\r\n", "\n").replace("\r", "\n")  # As a pipe of text has it.


@contextmanager
def _warnings_of_a_program() -> Iterator[None]:
    """Python's own filters, not those of pytest, which shows all warnings."""
    with warnings.catch_warnings():
        warnings.resetwarnings()
        for kind in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
            warnings.simplefilter("ignore", kind)
        yield


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Fail the test: by no Exception, which a command would tell as its own."""

    def fail(number: int, frame: object) -> None:
        pytest.fail(f"the command still runs after {seconds} s")

    before = signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
