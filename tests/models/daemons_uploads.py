"""Clients of the model of daemons that are killed before their call has an end."""

import contextlib
import os
import pickle
import select
import signal
import time
from collections.abc import Callable

import ffrecord
from daemons_truth import Content

_ANSWER_S = 60.0


class HeldUpload:
    """A process that has sent all bytes of a file, or was refused, and then waits to be killed."""

    def __init__(self, content: Content, address: str) -> None:
        """Return once its bytes are with the daemons, or it is refused; see `errno`."""
        answers, answer = os.pipe()
        self._process: int | None = os.fork()
        if self._process == 0:
            _upload(content, address, answer)
        os.close(answer)
        with os.fdopen(answers, "rb", buffering=0) as pipe:
            is_told, _, _ = select.select([pipe], [], [], _ANSWER_S)
            if not is_told:
                self.kill()
                raise AssertionError(f"an upload of {content} has no end and no error")
            self.errno, self.error = pickle.loads(pipe.read(1 << 16))

    def go_on(self) -> None:
        """Let it publish what it has sent."""
        assert self._process is not None
        os.kill(self._process, signal.SIGUSR1)

    def finish(self) -> None:
        """Let it publish what it has sent, and return when it has or cannot."""
        self.go_on()
        assert self._process is not None
        os.waitpid(self._process, 0)
        self._process = None

    def kill(self) -> None:
        """End it, as the kernel does where memory is short."""
        if self._process is not None:
            os.kill(self._process, signal.SIGKILL)
            os.waitpid(self._process, 0)
            self._process = None


class LeftCall:
    """A process that makes a call of a client, and is killed."""

    def __init__(self, call: Callable[[], object]) -> None:
        """Begin."""
        self._process = os.fork()
        if self._process == 0:
            with contextlib.suppress(BaseException):
                call()
            os._exit(0)

    def kill(self) -> None:
        """End it."""
        os.kill(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)


def _upload(content: Content, address: str, answer: int) -> None:
    """What the child does; it never returns."""
    parent = os.getppid()
    with contextlib.suppress(BaseException):
        goes_on: list[int] = []
        signal.signal(signal.SIGUSR1, lambda number, _: goes_on.append(number))

        def told(done: int, size: int) -> None:
            if done == size and not goes_on:
                os.write(answer, pickle.dumps((0, "")))
                while os.getppid() == parent and not goes_on:
                    time.sleep(0.02)
                if not goes_on:
                    os._exit(0)

        try:
            ffrecord.publish(content.path, address, replace=True, progress=told)
            os.write(answer, pickle.dumps((-1, "it was published")))
        except OSError as error:
            os.write(answer, pickle.dumps((error.errno or -1, str(error))))
        except BaseException as error:
            os.write(answer, pickle.dumps((-1, repr(error))))
    os._exit(0)
