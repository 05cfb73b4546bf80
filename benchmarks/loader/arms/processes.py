"""Arms as processes that stay, each loading when it is its turn."""

import contextlib
import json
import os
import pathlib
import select
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from typing import Any, Self

import harness

_ARMS = pathlib.Path(__file__).resolve().parent
_CONVERT_S = 300.0
_LEAVE_S = 5.0


class Failed(harness.Lost):
    """An arm cannot do it; the message is the reason."""


class Process:
    """An arm that runs until the block is left."""

    def __init__(
        self,
        python: pathlib.Path,
        variables: dict[str, str],
        words: Sequence[object],
        *,
        begin_s: float,
    ) -> None:
        """Start it; it answers `ready`.

        Raises:
            Failed: it does not start within `begin_s`.
        """
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        # A session of its own: what it starts ends with it.
        self._process = subprocess.Popen(
            [str(python), str(_ARMS / "arm.py"), *map(str, words)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=variables,
            text=True,
            start_new_session=True,
        )
        try:
            self._answer(begin_s)
        except Failed:
            self.close()
            raise

    def ask(self, *words: object, within_s: float) -> dict[str, Any]:
        """Send a command, return the answer.

        Raises:
            Failed: it ended, or did not answer in time.
        """
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(" ".join(map(str, words)) + "\n")
            self._process.stdin.flush()
        return self._answer(within_s)

    def close(self) -> None:
        """End it and all that it has started."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_LEAVE_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            with contextlib.suppress(BrokenPipeError):
                stream.close()  # type: ignore[union-attr]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answer(self, within_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], within_s)[0]:
            raise Failed(f"no answer within {within_s:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            raise Failed(self._reason())
        found: dict[str, Any] = json.loads(line)
        return found

    def _reason(self) -> str:
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors if line.strip()]
        return lines[-1][:200] if lines else f"ended with {self._process.wait()}"


def convert(python: pathlib.Path, variables: dict[str, str], words: Sequence[object]) -> str | None:
    """Write records in a form; return why not, if not."""
    try:
        done = subprocess.run(
            [str(python), str(_ARMS / "convert.py"), *map(str, words)],
            env=variables,
            capture_output=True,
            text=True,
            timeout=_CONVERT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"not written within {_CONVERT_S:.0f} s"
    lines = done.stderr.strip().splitlines()
    return (lines[-1][:200] if lines else str(done.returncode)) if done.returncode else None
