"""What the chaos test breaks: the link to the daemon, and the disk under it."""

import contextlib
import os
import subprocess
from pathlib import Path

DISK_MIB = 160
# What a full disk still has: some pages, so that it is found full in the middle of things.
LEFT_BYTES = 200_000


def run(*command: str) -> str:
    """Why the command failed; empty if it did not."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    except OSError as error:
        return str(error)
    return "" if done.returncode == 0 else done.stderr.strip() or f"{command[0]} failed"


class Link:
    """A cable to a network namespace of its own, in which the daemon lives."""

    def __init__(self) -> None:
        number = os.getpid()
        self.name = f"ffc{number % 100_000}"
        self.near = f"{self.name}n"
        # Of the block for documentation, so that nobody else has it.
        net = f"198.18.{number // 64 % 256}"
        base = number % 64 * 4
        self.here, self.there = f"{net}.{base + 1}", f"{net}.{base + 2}"
        self.why_absent = ""

    def __enter__(self) -> "Link":
        far = f"{self.name}f"
        for command in (
            f"ip netns add {self.name}",
            f"ip link add {self.near} type veth peer name {far} netns {self.name}",
            f"ip address add {self.here}/30 dev {self.near}",
            f"ip -n {self.name} address add {self.there}/30 dev {far}",
            f"ip -n {self.name} link set lo up",
            f"ip -n {self.name} link set {far} up",
            f"ip link set {self.near} up",
        ):
            if why := run(*command.split()):
                self.why_absent = why
                self.undo()
                break
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()

    def undo(self) -> None:
        """Take away what there is of it."""
        run("ip", "link", "delete", self.near)
        run("ip", "netns", "delete", self.name)

    @property
    def host(self) -> str:
        """Where the daemon is."""
        return "127.0.0.1" if self.why_absent else self.there

    @property
    def prefix(self) -> list[str]:
        """What runs a command there."""
        return [] if self.why_absent else ["ip", "netns", "exec", self.name]

    def cut(self) -> None:
        """Nothing goes through."""
        run("ip", "link", "set", self.near, "down")

    def mend(self) -> None:
        """All goes through."""
        run("ip", "link", "set", self.near, "up")


class Disk:
    """A small disk in memory: it outlives the daemon, and can be filled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.why_absent = ""

    def __enter__(self) -> "Disk":
        self.folder.mkdir()
        options = ["-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs"]
        self.why_absent = run("mount", *options, str(self.folder))
        return self

    def __exit__(self, *_: object) -> None:
        if not self.why_absent:
            run("umount", str(self.folder))

    def fill(self) -> None:
        """Leave next to no room."""
        state = os.statvfs(self.folder)
        with (self.folder / "ballast").open("wb") as ballast, contextlib.suppress(OSError):
            os.posix_fallocate(
                ballast.fileno(), 0, max(state.f_bavail * state.f_frsize - LEFT_BYTES, 1)
            )

    def empty(self) -> None:
        """Give the room back."""
        (self.folder / "ballast").unlink(missing_ok=True)
