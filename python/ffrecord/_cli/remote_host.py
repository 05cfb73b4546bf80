"""A host that the commands bring up: the seam through which they run programs and write files."""

import contextlib
import shlex
import subprocess
from dataclasses import dataclass
from typing import Protocol

from ffrecord.errors import UnavailableError

_CONNECT_S = 10
_SSH_FAILED = 255


@dataclass(frozen=True)
class Done:
    """The outcome of a script on a host."""

    code: int
    output: str
    errors: str

    @property
    def reason(self) -> str:
        """The last line that it has printed, which says why it failed."""
        lines = (self.errors.strip() or self.output.strip()).splitlines()
        return lines[-1] if lines else f"exit status {self.code}"


class Host(Protocol):
    """A machine, or in tests what stands for one. Thread-safe."""

    name: str

    def run(self, script: str, *, text: str = "", timeout_s: float = 60.0) -> Done:
        """Run a script of sh, with `text` as its standard input, and wait for its end.

        Raises:
            UnavailableError: The host cannot be reached; the script may have run.
        """


class SshHost:
    """A host that is reached by the program ssh, which asks no questions."""

    def __init__(self, name: str, target: str, *, sudo: bool, config: str | None) -> None:
        """`sudo`: run scripts as root; `config`: ssh's own file of settings, if not the usual."""
        self.name = name
        self._target = target
        self._sudo = sudo
        self._options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={_CONNECT_S}"]
        if config is not None:
            self._options += ["-F", config]

    def run(self, script: str, *, text: str = "", timeout_s: float = 60.0) -> Done:
        """Run a script of sh there, see `Host`."""
        shell = f"{'sudo -n ' if self._sudo else ''}sh -c {shlex.quote(script)}"
        remedy = f"see that `ssh {self._target} true` works without a password"
        try:
            done = subprocess.run(
                ["ssh", *self._options, "--", self._target, shell],
                input=text,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout_s,
                check=False,
            )
        except FileNotFoundError as error:
            raise UnavailableError(f"{self.name}: ssh is not installed here") from error
        except subprocess.TimeoutExpired as error:
            raise UnavailableError(
                f"{self.name}: ssh: {self._target} has not answered for {timeout_s:.0f} s; {remedy}"
            ) from error
        finished = Done(done.returncode, done.stdout, done.stderr)
        if done.returncode == _SSH_FAILED:
            raise UnavailableError(f"{self.name}: ssh: {finished.reason}; {remedy}")
        return finished


def write_file(host: Host, path: str, text: str, owner: str = "") -> None:
    """Put a file there, in one step: it has the old text or the new one.

    With `owner`, that user alone can read it.

    Raises:
        UnavailableError: The host cannot be reached, or refuses.
    """
    folder, new, final = (
        shlex.quote(one) for one in (path.rpartition("/")[0], f"{path}.new", path)
    )
    private = f" && chown {shlex.quote(owner)} {new}" if owner else ""
    done = host.run(
        f"umask 022 && mkdir -p {folder} && umask {'077' if owner else '022'} && rm -f {new}"
        f" && cat > {new}{private} && sync {new} && mv {new} {final}",
        text=text,
    )
    if done.code != 0:
        with contextlib.suppress(UnavailableError):
            host.run(f"rm -f {new}")
        raise UnavailableError(
            f"{host.name}: write {path}: {done.reason}; see that the user of ssh may write there,"
            " or set sudo = true"
        )
